#include "worker/config.h"

#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cstdio>

#include "runtime/base/text.h"
#include "runtime/cluster/contract.h"
#include "runtime/cluster/exit_code.h"
#include "runtime/cluster/tf_config.h"
#include "runtime/cluster/usage_error.h"

namespace meshtrain::worker {

namespace {

// Of both families; of IPv4 alone where the kernel has no other.
std::string AllAddresses() {
  const int fd = ::socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return "0.0.0.0";
  sockaddr_in6 any{.sin6_family = AF_INET6,
                   .sin6_port = 0,
                   .sin6_flowinfo = 0,
                   .sin6_addr = {},
                   .sin6_scope_id = 0};
  const bool binds = ::bind(fd, reinterpret_cast<const sockaddr*>(&any), sizeof any) == 0;
  ::close(fd);
  return binds ? "::" : "0.0.0.0";
}

}  // namespace

Status ParseMetricsAddress(const std::string& text, trainer::JobConfig* config) {
  if (text == "none") {
    config->port.reset();
    return OkStatus();
  }
  const size_t colon = text.rfind(':');
  const auto port = colon == std::string::npos ? std::nullopt
                                               : ParseInt(std::string_view(text).substr(colon + 1));
  if (!port || *port < 0 || *port > 65535) {
    return InvalidArgument("--metrics-address: expected HOST:PORT or none, got: " + text);
  }
  if (colon > 0) config->host = cluster::HostOf(text);
  config->port = static_cast<int>(*port);
  return OkStatus();
}

std::variant<trainer::JobConfig, int> ParseArguments(int argc, char** argv) {
  trainer::JobConfig config{.version = MT_VERSION};
  std::string address;
  CLI::App app("Trains the program that a manifest declares.", "meshtrain-worker");
  app.set_version_flag("--version", "meshtrain-worker " MT_VERSION);
  CLI::Option* const file =
      app.add_option("-f,--file", config.file,
                     "The manifest, YAML or JSON (default: the program in the environment)");
  app.add_option("--manifest-name", config.manifest_name,
                 "What errors call the manifest (default: the file's name)")
      ->needs(file);
  app.add_option("--checkpoint-path", config.checkpoint_path,
                 "Folder of checkpoints, in place of the manifest's checkpoint.path")
      ->needs(file);
  app.add_option("-o,--output", config.output,
                 "Folder for metrics, curves, checkpoints and the model")
      ->envname(std::string(cluster::kEnvOutput))
      ->capture_default_str();
  app.add_option(
      "--metrics-address", address,
      "HOST:PORT to serve /metrics, /healthz, /readyz, /progress and a live page on; none: do not "
      "(default: 127.0.0.1 and a free port; in a job, all addresses, port 2280)");
  app.add_flag("--isolated", config.isolated,
               "Give every virtual device its own memory and run every collective");
  app.add_option("--threads", config.threads, "Threads to compute with (default: one per core)")
      ->check(CLI::Range(0, 4096));
  app.add_option("--memory", config.memory,
                 "Bytes that variables and steps may take; a program that needs more is refused "
                 "(default: the machine's memory, or the container's limit)")
      ->check(CLI::NonNegativeNumber);
  app.failure_message(cluster::UsageError);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : cluster::kExitUsage;
  }
  auto job = trainer::ReadEnvironment(trainer::ProcessEnvironment());
  if (!job.ok()) {
    std::fprintf(stderr, "meshtrain-worker: %s\n", Printable(job.status().message()).c_str());
    return cluster::ExitCodeOf(job.status().From(Origin::kManifest));
  }
  config.job = std::move(*job);
  if (config.file.empty()) {
    if (config.job.manifest.empty()) {
      std::fprintf(stderr, "meshtrain-worker: expected --file MANIFEST, or a program in %s\n",
                   std::string(cluster::kEnvProgram).c_str());
      return cluster::kExitUsage;
    }
    // The operator reads /progress from outside of the pod.
    config.host = AllAddresses();
    config.port = cluster::kHttpPort;
  }
  if (!address.empty()) {
    if (const Status status = ParseMetricsAddress(address, &config); !status.ok()) {
      std::fprintf(stderr, "meshtrain-worker: %s\n", Printable(status.message()).c_str());
      return cluster::kExitUsage;
    }
  }
  return config;
}

}  // namespace meshtrain::worker
