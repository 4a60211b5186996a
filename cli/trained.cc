#include "cli/trained.h"

#include <CLI/CLI.hpp>
#include <ostream>

#include "cli/job.h"
#include "cli/manifest.h"
#include "cli/worker_process.h"
#include "operator/local/run_folder.h"

namespace meshtrain::cli {
namespace {

Status Check(const TrainedFlags& flags) {
  MT_ASSIGN_OR_RETURN(const JobFile job, ReadJob(flags.file));
  if (!job.program) {
    return InvalidArgument(flags.file + ": spec.program: expected a program, got: none")
        .From(Origin::kManifest);
  }
  if (local::EndOf(flags.from) == local::RunEnd::kNotSucceeded) {
    return FailedPrecondition(flags.from +
                              ": expected the folder of a run that has succeeded, got: one "
                              "that has not (" +
                              flags.from + "/checkpoints stands for its newest checkpoint)")
        .From(Origin::kInput);
  }
  return OkStatus();
}

}  // namespace

void AddTrainedFlags(CLI::App* verb, TrainedFlags* flags) {
  verb->add_option("-f,--file,manifest", flags->file, "The manifest, YAML or JSON")->required();
  verb->add_option("--from", flags->from,
                   "The trained weights: a run's folder, a checkpoint or a .safetensors file")
      ->required();
  verb->add_flag("--one-device", flags->one_device,
                 "Compute on one device, whatever the manifest's mesh is");
  verb->add_option("--threads", flags->threads, "Threads to compute with (default: one per core)")
      ->check(CLI::Range(0, 4096));
}

int RunTrained(const char* verb, const TrainedFlags& flags, const std::vector<std::string>& more,
               const Console& console) {
  if (const Status status = Check(flags); !status.ok()) return End(verb, status, console.err);
  std::vector<std::string> arguments = {verb,
                                        "--file",
                                        flags.file,
                                        "--from",
                                        flags.from,
                                        "--caller",
                                        std::string("meshtrain ") + verb};
  if (flags.one_device) arguments.emplace_back("--one-device");
  if (flags.threads > 0) {
    arguments.insert(arguments.end(), {"--threads", std::to_string(flags.threads)});
  }
  arguments.insert(arguments.end(), more.begin(), more.end());
  console.out << std::flush;  // the worker writes past the stream's buffer
  const Result<int> code = RunWorker(arguments);
  return code.ok() ? *code : End(verb, code.status(), console.err);
}

}  // namespace meshtrain::cli
