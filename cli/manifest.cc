#include "cli/manifest.h"

#include <cstdio>

#include "runtime/base/file.h"
#include "runtime/base/text.h"
#include "runtime/data/pipeline.h"

namespace meshtrain::cli {

Result<spec::Manifest> ReadManifest(const std::string& file) {
  constexpr int64_t kLargestManifest = int64_t{4} << 20;
  MT_ASSIGN_OR_RETURN(const std::string text, ReadFile(file, kLargestManifest));
  return spec::ParseManifest(text, file);
}

Result<std::vector<mesh::TensorType>> BatchTypes(const spec::ProgramSpec& program) {
  MT_ASSIGN_OR_RETURN(const auto pipeline,
                      data::Pipeline::Create(spec::TrainPipeline(program.data)));
  return pipeline->BatchTypes(pipeline->batch_size());
}

void PrintError(const char* verb, const Status& error) {
  std::fprintf(stderr, "meshtrain %s: %s\n", verb, Printable(error.message()).c_str());
}

}  // namespace meshtrain::cli
