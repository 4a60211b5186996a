#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "cli/manifest.h"
#include "cli/verbs.h"
#include "runtime/cluster/contract.h"
#include "runtime/cluster/exit_code.h"

namespace meshtrain::cli {
namespace {

struct RunFlags {
  std::string file;
  std::string output = "runs";
  std::string metrics_address;
  bool isolated = false;
  int threads = 0;
};

// The worker that was built with this command line stands beside it.
std::string WorkerPath() {
  std::error_code error;
  const auto self = std::filesystem::read_symlink("/proc/self/exe", error);
  return error ? "meshtrain-worker" : (self.parent_path() / "meshtrain-worker").string();
}

// Becomes the worker: signals and the exit code are the worker's own.
int Run(const RunFlags& flags) {
  // Checked here first, so that a wrong manifest is told before anything starts.
  const auto manifest = ReadManifest(flags.file);
  if (!manifest.ok()) {
    PrintError("run", manifest.status());
    return cluster::ManifestExitCode(manifest.status());
  }
  std::vector<std::string> args = {WorkerPath(), "--file", flags.file, "--output", flags.output};
  if (!flags.metrics_address.empty()) args.insert(args.end(), {"--metrics-address", flags.metrics_address});
  if (flags.isolated) args.emplace_back("--isolated");
  if (flags.threads > 0) args.insert(args.end(), {"--threads", std::to_string(flags.threads)});
  std::vector<char*> argv;
  for (std::string& arg : args) argv.push_back(arg.data());
  argv.push_back(nullptr);
  ::execv(argv[0], argv.data());
  std::fprintf(stderr, "meshtrain run: %s: cannot start the worker: %s\n", argv[0], std::strerror(errno));
  return cluster::kExitInternal;
}

}  // namespace

void AddRun(CLI::App& app, Action* chosen) {
  auto flags = std::make_shared<RunFlags>();
  CLI::App* verb = app.add_subcommand("run", "Train the manifest's program on this machine");
  verb->add_option("-f,--file", flags->file, "The manifest, YAML or JSON")->required();
  verb->add_option("-o,--output", flags->output, "Folder for metrics, curves and the model")->capture_default_str();
  verb->add_option("--metrics-address", flags->metrics_address,
                   "HOST:PORT to serve /metrics, /healthz and /progress on (port 0: any free one)");
  verb->add_flag("--isolated", flags->isolated,
                 "Give every virtual device its own memory and run every collective");
  verb->add_option("--threads", flags->threads, "Threads to compute with (default: one per core)");
  verb->callback([flags, chosen] { *chosen = [flags] { return Run(*flags); }; });
}

}  // namespace meshtrain::cli
