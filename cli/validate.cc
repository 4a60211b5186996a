#include <CLI/CLI.hpp>
#include <cstdio>
#include <memory>
#include <string>

#include "cli/job.h"
#include "cli/manifest.h"
#include "cli/verbs.h"
#include "runtime/base/text.h"
#include "runtime/cluster/exit_code.h"

namespace meshtrain::cli {
namespace {

int Validate(const std::string& file) {
  const auto job = ReadJob(file);
  if (!job.ok()) {
    PrintError("validate", job.status());
    return cluster::ManifestExitCode(job.status());
  }
  // With the data at hand, its batches too; without it the manifest is valid as far as one can see.
  if (job->program && ReadsDataHere(*job)) {
    const auto batches = ReadBatches(job->program->program);
    const Status fits = batches.ok() ? CheckBatches(*job->program, *batches) : OkStatus();
    if (!fits.ok()) {
      PrintError("validate", fits);
      return cluster::ManifestExitCode(fits);
    }
  }
  std::printf("%s: valid\n", Printable(file).c_str());
  return 0;
}

}  // namespace

void AddValidate(CLI::App& app, Action* chosen) {
  auto file = std::make_shared<std::string>();
  CLI::App* verb = app.add_subcommand("validate",
                                      "Check a manifest as the operator and the worker would: "
                                      "every mistake with its line and column");
  verb->add_option("-f,--file", *file, "The manifest, YAML or JSON")->required();
  verb->callback([file, chosen] { *chosen = [file] { return Validate(*file); }; });
}

}  // namespace meshtrain::cli
