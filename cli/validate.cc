#include <CLI/CLI.hpp>
#include <memory>
#include <ostream>
#include <string>

#include "cli/job.h"
#include "cli/manifest.h"
#include "cli/verbs.h"
#include "runtime/base/text.h"

namespace meshtrain::cli {
namespace {

Status Validate(const std::string& file, std::ostream& out) {
  MT_ASSIGN_OR_RETURN(const JobFile job, ReadJob(file));
  // With the data at hand, its batches too; without it the manifest is valid as far as one can see.
  if (job.program) {
    MT_ASSIGN_OR_RETURN(const DataBatches batches,
                        ReadBatchesHere(job.program->program, !ReadsDataHere(job)));
    MT_RETURN_IF_ERROR(CheckBatches(*job.program, batches));
  }
  out << Printable(file) << ": valid\n";
  return OkStatus();
}

}  // namespace

void AddValidate(CLI::App& app, Action* chosen) {
  auto file = std::make_shared<std::string>();
  CLI::App* verb = app.add_subcommand("validate",
                                      "Check a manifest as the operator and the worker would: "
                                      "every mistake with its line and column");
  verb->add_option("-f,--file,manifest", *file, "The manifest, YAML or JSON")->required();
  verb->callback([file, chosen] {
    *chosen = [file](const Console& console) {
      return End("validate", Validate(*file, console.out), console.err);
    };
  });
}

}  // namespace meshtrain::cli
