#include "cli/run.h"

#include <sys/resource.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <cstdlib>
#include <memory>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "cli/job.h"
#include "cli/manifest.h"
#include "cli/verbs.h"
#include "cli/worker_process.h"
#include "operator/local/run_folder.h"
#include "runtime/base/cores.h"
#include "runtime/base/memory.h"
#include "runtime/base/text.h"
#include "runtime/cluster/contract.h"

namespace meshtrain::cli {
namespace {

constexpr char kRuns[] = "runs";

// What a container would have from its image, its node and its device plugin; all else is the
// manifest's to give.
constexpr std::array kFromHere = {"PATH",
                                  "HOME",
                                  "USER",
                                  "LANG",
                                  "LC_ALL",
                                  "TZ",
                                  "TMPDIR",
                                  "LD_LIBRARY_PATH",
                                  "CUDA_VISIBLE_DEVICES",
                                  "XLA_FLAGS",
                                  "LIBTPU_INIT_ARGS",
                                  "MESHTRAIN_PJRT_PLUGIN",
                                  "MESHTRAIN_PJRT_OPTIONS",
                                  "MESHTRAIN_PJRT_CACHE",
                                  "MESHTRAIN_DISCRETE_OPTIONS",
                                  "MESHTRAIN_INSTRUCTION_SET",
                                  "TERM"};

// A replica takes a handful of descriptors; the usual limit of 1,024 is made for programs that
// select(2).
void AllowManyFiles() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = std::max(limit.rlim_cur, std::min<rlim_t>(limit.rlim_max, 65536));
  ::setrlimit(RLIMIT_NOFILE, &limit);  // less room otherwise
}

// Mistakes that show only when the program meets its data are told here, once and with their place
// in the manifest, instead of by each of its processes.
Status CheckProgram(const JobFile& job) {
  if (!job.program || !ReadsDataHere(job)) return OkStatus();
  MT_ASSIGN_OR_RETURN(const DataBatches batches, ReadBatches(job.program->program));
  return CheckBatches(*job.program, batches);
}

int Run(const RunFlags& flags, const Console& console) {
  if (!IsMetricsAddress(flags.metrics_address)) {
    PrintError("run",
               InvalidArgument("--metrics-address: expected HOST:PORT or none, got: " +
                               flags.metrics_address),
               console.err);
    return cluster::kExitUsage;
  }
  auto prepared = PrepareRun(flags);
  if (!prepared.ok()) return End("run", prepared.status(), console.err);
  if (prepared->goes_on) {
    console.out << "going on in " << prepared->options.launch.output
                << ", whose run of this manifest is unfinished; --output FOLDER begins elsewhere"
                << std::endl;  // the runner writes past the stream's buffer
  }
  AllowManyFiles();
  local::StopSignals signals;  // before the runner has threads
  return local::Runner(std::move(prepared->job), std::move(prepared->options))
      .Run(signals)
      .exit_code;
}

}  // namespace

bool IsMetricsAddress(const std::string& text) {
  if (text.empty() || text == "none") return true;
  const size_t colon = text.rfind(':');
  if (colon == std::string::npos) return false;
  const int64_t port = ParseInt(std::string_view(text).substr(colon + 1)).value_or(-1);
  return port >= 0 && port <= 65535;
}

Result<PreparedRun> PrepareRun(const RunFlags& flags) {
  MT_ASSIGN_OR_RETURN(JobFile job, ReadJob(flags.file));
  MT_RETURN_IF_ERROR(CheckProgram(job));
  PreparedRun out;
  std::string output = flags.output;
  if (output.empty()) {
    MT_ASSIGN_OR_RETURN(
        const local::RunFolder chosen,
        local::ChooseRunFolder(kRuns, job.job.metadata.name, job.text).From(Origin::kOutput));
    output = chosen.path;
    out.goes_on = chosen.unfinished;
  }
  out.job = std::move(job.job);
  out.options.manifest = std::move(job.text);
  out.options.manifest_name = flags.file;
  out.options.launch = {.output = std::move(output),
                        .worker = WorkerPath(),
                        .metrics_address = flags.metrics_address,
                        .isolated = flags.isolated,
                        .threads = flags.threads,
                        .cores = UsableCores(),
                        .memory = UsableMemory().bytes};
  for (const char* name : kFromHere) {
    if (const char* value = std::getenv(name)) {
      out.options.launch.environment.emplace_back(name, value);
    }
  }
  return out;
}

void AddRun(CLI::App& app, Action* chosen) {
  auto flags = std::make_shared<RunFlags>();
  CLI::App* verb = app.add_subcommand(
      "run", "Run the job on this machine, as a cluster would: processes for pods");
  verb->add_option("-f,--file,manifest", flags->file, "The manifest, YAML or JSON")->required();
  verb->add_option(
      "-o,--output", flags->output,
      "Folder for metrics, curves, the model and logs (default: runs/NAME where an "
      "unfinished run of the same manifest goes on, else one of its own: runs/NAME-2)");
  verb->add_option("--metrics-address", flags->metrics_address,
                   "HOST:PORT for the leader to serve /metrics, /healthz and /progress on (port 0: "
                   "any free one); none: "
                   "it does not");
  verb->add_flag("--isolated", flags->isolated,
                 "Give every virtual device its own memory and run every collective");
  verb->add_option("--threads", flags->threads,
                   "Threads that each process computes with (default: the cores, divided among the "
                   "mesh's processes)")
      ->check(CLI::Range(0, 4096));
  verb->callback([flags, chosen] {
    *chosen = [flags](const Console& console) { return Run(*flags, console); };
  });
}

}  // namespace meshtrain::cli
