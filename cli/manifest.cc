#include "cli/manifest.h"

#include <cstdio>
#include <utility>

#include "runtime/base/file.h"
#include "runtime/base/text.h"
#include "runtime/cluster/exit_code.h"
#include "runtime/data/pipeline.h"

namespace meshtrain::cli {

Result<spec::Manifest> ReadManifest(const std::string& file) {
  constexpr int64_t kLargestManifest = int64_t{4} << 20;
  MT_ASSIGN_OR_RETURN(const std::string text,
                      ReadFile(file, kLargestManifest).From(Origin::kManifest));
  return spec::ParseManifest(text, file).From(Origin::kManifest);
}

Result<DataBatches> ReadBatches(const spec::ProgramSpec& program) {
  const auto read = [](data::PipelineSpec spec) -> Result<spec::Batches> {
    MT_ASSIGN_OR_RETURN(const auto pipeline, data::Pipeline::Create(std::move(spec)));
    return spec::Batches{pipeline->BatchTypes(pipeline->batch_size()), pipeline->batch_sizes()};
  };
  DataBatches batches;
  MT_ASSIGN_OR_RETURN(batches.train, read(spec::TrainPipeline(program.data)));
  if (program.data.test) {
    MT_ASSIGN_OR_RETURN(batches.test, read(spec::TestPipeline(program.data)));
  }
  return batches;
}

Status CheckBatches(const spec::Manifest& manifest, const DataBatches& batches) {
  MT_ASSIGN_OR_RETURN(const spec::Declared declared,
                      spec::Declared::Create(manifest.program).From(Origin::kManifest));
  return declared.CheckBatches(batches.train, batches.test).From(Origin::kManifest);
}

void PrintError(const char* verb, const Status& error) {
  std::fprintf(stderr, "meshtrain %s: %s\n", verb, Printable(error.message()).c_str());
}

int End(const char* verb, const Status& status) {
  if (!status.ok()) PrintError(verb, status);
  return cluster::ExitCodeOf(status);
}

}  // namespace meshtrain::cli
