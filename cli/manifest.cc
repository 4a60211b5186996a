#include "cli/manifest.h"

#include <istream>
#include <memory>
#include <ostream>
#include <utility>

#include "cli/verbs.h"
#include "runtime/base/file.h"
#include "runtime/base/text.h"
#include "runtime/cluster/exit_code.h"
#include "runtime/data/pipeline.h"

namespace meshtrain::cli {

Result<std::string> ReadManifestText(const std::string& file, const Console& console) {
  if (file != "-") return ReadFile(file, kLargestManifest).From(Origin::kManifest);
  std::string text;
  char buffer[4096];
  while (console.in.read(buffer, sizeof buffer) || console.in.gcount() > 0) {
    text.append(buffer, static_cast<size_t>(console.in.gcount()));
    if (static_cast<int64_t>(text.size()) > kLargestManifest) {
      return InvalidArgument("standard input: expected at most 4 MiB, got: more")
          .From(Origin::kManifest);
    }
  }
  return text;
}

Result<manifest::Manifest> ReadManifest(const std::string& file,
                                        const manifest::ReadOptions& options) {
  MT_ASSIGN_OR_RETURN(const std::string text,
                      ReadFile(file, kLargestManifest).From(Origin::kManifest));
  return recipe::ParseManifest(text, file, options).From(Origin::kManifest);
}

namespace {

using OpenedData = std::unique_ptr<data::Pipeline>;

recipe::Batches BatchesOf(const data::Pipeline& data) {
  return {data.BatchTypes(data.batch_size()), data.batch_sizes()};
}

// Of the two that are there.
Result<DataBatches> BatchesOf(const OpenedData& train, const OpenedData& test) {
  if (train && test) MT_RETURN_IF_ERROR(data::CheckSameClasses(*train, *test));
  DataBatches batches;
  if (train) batches.train = BatchesOf(*train);
  if (test) batches.test = BatchesOf(*test);
  return batches;
}

}  // namespace

Result<DataBatches> ReadBatches(const manifest::Program& program) {
  OpenedData train, test;
  MT_ASSIGN_OR_RETURN(train, data::Pipeline::Create(recipe::TrainPipeline(program)));
  if (program.data.test) {
    MT_ASSIGN_OR_RETURN(test, data::Pipeline::Create(recipe::TestPipeline(program)));
  }
  return BatchesOf(train, test);
}

Result<DataBatches> ReadBatchesHere(const manifest::Program& program, bool may_be_elsewhere) {
  OpenedData train, test;
  const auto open = [&](data::PipelineSpec spec, OpenedData* out) -> Status {
    auto found = data::Pipeline::Create(std::move(spec));
    if (found.ok()) *out = std::move(*found);
    if (found.ok() || may_be_elsewhere || found.status().code() == StatusCode::kNotFound) {
      return OkStatus();
    }
    return found.status();
  };
  MT_RETURN_IF_ERROR(open(recipe::TrainPipeline(program), &train));
  if (program.data.test) MT_RETURN_IF_ERROR(open(recipe::TestPipeline(program), &test));
  return BatchesOf(train, test);
}

Status CheckBatches(const manifest::Manifest& manifest, const DataBatches& batches) {
  MT_ASSIGN_OR_RETURN(const recipe::Declared declared,
                      recipe::Declared::Create(manifest.program).From(Origin::kManifest));
  return declared.CheckBatches(batches.train, batches.test).From(Origin::kManifest);
}

void PrintError(const char* verb, const Status& error, std::ostream& err) {
  err << "meshtrain " << verb << ": " << Printable(error.message()) << "\n";
}

int End(const char* verb, const Status& status, std::ostream& err) {
  if (!status.ok()) PrintError(verb, status, err);
  return cluster::ExitCodeOf(status);
}

}  // namespace meshtrain::cli
