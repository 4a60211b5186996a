#include "cli/cluster/connection.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <mutex>
#include <ostream>
#include <utility>

#include "cli/manifest.h"
#include "operator/api/json.h"
#include "operator/kube/config.h"
#include "operator/kube/http_client.h"
#include "runtime/base/clock.h"
#include "runtime/cluster/exit_code.h"

namespace meshtrain::cli {
namespace {

std::optional<std::string> Env(const std::string& name) {
  const char* value = std::getenv(name.c_str());
  return value == nullptr ? std::nullopt : std::optional<std::string>(value);
}

}  // namespace

void AddClusterFlags(CLI::App* verb, ClusterFlags* flags) {
  verb->add_option("--kubeconfig", flags->kubeconfig,
                   "kubeconfig file(s); else $KUBECONFIG, the pod's account, ~/.kube/config");
  verb->add_option("--context", flags->context, "Context of the kubeconfig");
  verb->add_option("-n,--namespace", flags->ns, "Namespace (default: the context's)");
  verb->add_flag("-q,--quiet", flags->quiet, "Print results and errors only");
  verb->add_flag("-v,--verbose", flags->verbose, "Tell every request on stderr");
}

std::string CheckJobName(const std::string& name) {
  return name.empty() ? "expected a job's name, got: an empty one" : "";
}

Result<Cluster> Connect(const ClusterFlags& flags, const Console& console) {
  MT_ASSIGN_OR_RETURN(
      const kube::ClientConfig config,
      kube::FindConfig(flags.kubeconfig, flags.context, Env).From(Origin::kManifest));
  kube::HttpClientOptions options;
  options.user_agent = "meshtrain";
  if (flags.verbose) {
    auto mutex = std::make_shared<std::mutex>();
    options.on_request = [mutex, &err = console.err](std::string_view verb, std::string_view code,
                                                     Duration took) {
      const std::lock_guard lock(*mutex);
      err << "meshtrain: " << verb << " " << code << " in "
          << std::chrono::duration_cast<std::chrono::milliseconds>(took).count() << " ms\n";
    };
  }
  Cluster out;
  out.ns = !flags.ns.empty() ? flags.ns : !config.ns.empty() ? config.ns : "default";
  MT_ASSIGN_OR_RETURN(out.client, kube::NewHttpClient(config, options, SystemClock()));
  return out;
}

Result<std::string> GetJobText(Cluster& cluster, const std::string& name, std::stop_token stop) {
  auto text = cluster.client->Get(TrainingJobs(), cluster.ns, name, {.stop = std::move(stop)});
  if (!text.ok() && text.status().code() == StatusCode::kNotFound) {
    // Also where the kind is not known at all: then the server's words say it.
    return text.status().At("trainingjob \"" + name + "\" in namespace " + cluster.ns);
  }
  return text;
}

Result<api::TrainingJob> JobOf(std::string_view answer) {
  return api::FromJson(answer).From(Origin::kApiServer);
}

Result<api::TrainingJob> GetJob(Cluster& cluster, const std::string& name, std::stop_token stop) {
  MT_ASSIGN_OR_RETURN(const std::string text, GetJobText(cluster, name, std::move(stop)));
  return JobOf(text);
}

bool Patience::Rest(const Status& answer, const std::stop_token& stop) {
  constexpr Duration kAtMost = std::chrono::minutes(5);
  if (answer.ok()) {
    silent_since_.reset();
    SystemClock().SleepFor(std::chrono::seconds(1), stop);
    return true;
  }
  if (answer.code() != StatusCode::kUnavailable && answer.code() != StatusCode::kDeadlineExceeded) {
    return false;
  }
  const Duration now = SystemClock().Monotonic();
  pause_ = silent_since_ ? std::min<Duration>(2 * pause_, std::chrono::seconds(10))
                         : std::chrono::seconds(1);
  if (!silent_since_) silent_since_ = now;
  if (now - *silent_since_ > kAtMost) return false;
  SystemClock().SleepFor(pause_, stop);
  return true;
}

Status NoLongerWaiting(const std::string& job) {
  return Cancelled("trainingjob \"" + job + "\": it goes on in the cluster; no longer waiting")
      .From(Origin::kStop);
}

Status CannotPrint() {
  return Unavailable("standard output: expected to write to it, got: an error")
      .From(Origin::kOutput);
}

int EndOfCall(const char* verb, const Status& status, const Console& console, int signal) {
  if (!status.ok()) PrintError(verb, status, console.err);
  return cluster::ExitCodeOf(status, signal != 0 ? signal : SIGINT);
}

std::string ExitCodesHelp() {
  return "Exit codes: 0 done; 64 wrong usage; 65 bad data; 66 no such file, job or pod; 70 an "
         "error "
         "of ours;\n73 a file that cannot be made; 74 reading or writing failed, or the API server "
         "did not answer;\n78 a manifest or a change that is refused; 79 a loss that is not "
         "finite; "
         "130, 143 stopped by a signal.\n`run` and `submit --wait` end with the exit code of the "
         "job's "
         "first failed process.";
}

}  // namespace meshtrain::cli
