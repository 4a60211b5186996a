// meshtrain-operator: watches TrainingJobs and keeps their pods as they should be.
#include <malloc.h>
#include <signal.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <regex>
#include <string>
#include <thread>
#include <vector>

#include "operator/api/crd.h"
#include "operator/control/controller.h"
#include "operator/control/metrics.h"
#include "operator/control/status_server.h"
#include "operator/kube/config.h"
#include "operator/kube/events.h"
#include "operator/kube/http_client.h"
#include "operator/kube/lease.h"
#include "operator/reconcile/children.h"
#include "runtime/base/file.h"
#include "runtime/base/log.h"
#include "runtime/base/mutex.h"
#include "runtime/base/text.h"
#include "runtime/cluster/contract.h"
#include "runtime/cluster/exit_code.h"
#include "runtime/cluster/usage_error.h"

namespace meshtrain {
namespace {

struct Flags {
  std::string kubeconfig, context, metrics_address = ":8080";
  std::vector<std::string> namespaces;
  std::string log_level = "info", log_format = "text";
  std::string queue = "none";
  std::string gang = "none", gang_scheduler_name, worker_image, cluster_domain, fs_group;
  std::string security = std::string(api::kMutualTls);
  std::optional<std::string> http_peers;
  std::string lease_namespace, lease_name = "meshtrain-operator", identity;
  bool leader_elect = true, print_crd = false;
  std::string watch_nodes = "auto";
  int threads = 4, connections = 16;
};

std::optional<std::string> Env(const std::string& name) {
  const char* value = std::getenv(name.c_str());
  return value == nullptr ? std::nullopt : std::optional<std::string>(value);
}

// Unique per process, and telling to people: the host (in a cluster: the pod) and what no other
// process has.
std::string MakeIdentity() {
  char host[256] = "unknown";
  gethostname(host, sizeof host - 1);
  std::string unique = std::to_string(getpid());
  if (const auto uuid = ReadFile("/proc/sys/kernel/random/uuid", 64); uuid.ok()) {
    unique = std::string(Trim(*uuid));
  }
  return std::string(host) + "_" + unique;
}

std::string HostOf(std::string_view url) {
  const size_t scheme = url.find("://");
  if (scheme != std::string_view::npos) url.remove_prefix(scheme + 3);
  return std::string(url.substr(0, url.find('/')));
}

// An empty name would mean all namespaces.
std::string CheckNamespace(const std::string& name) {
  static const std::regex kName("[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?");
  return std::regex_match(name, kName) ? "" : "expected a namespace's name, got: '" + name + "'";
}

void AddFlags(CLI::App& app, Flags& flags) {
  app.add_option("--kubeconfig", flags.kubeconfig,
                 "kubeconfig file(s); else $KUBECONFIG, the pod's account, ~/.kube/config");
  app.add_option("--context", flags.context, "context of the kubeconfig");
  app.add_option("--namespace", flags.namespaces,
                 "watch these namespaces only, with a comma between them or a flag for each; "
                 "else all")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->check(CLI::Validator(CheckNamespace, "NAME"));
  app.add_option("--metrics-address", flags.metrics_address,
                 "HOST:PORT of /metrics, /healthz and /readyz; empty: none")
      ->capture_default_str();
  app.add_flag("--leader-elect,!--no-leader-elect", flags.leader_elect,
               "work only while holding the Lease (default)");
  app.add_option("--leader-elect-namespace", flags.lease_namespace,
                 "namespace of the Lease; else the pod's");
  app.add_option("--leader-elect-name", flags.lease_name, "name of the Lease")
      ->capture_default_str();
  app.add_option("--identity", flags.identity, "who we are in the Lease; else made up");
  app.add_option("--threads", flags.threads, "jobs looked at at once")
      ->check(CLI::Range(1, 256))
      ->capture_default_str();
  app.add_option("--connections", flags.connections, "requests to the API server at once")
      ->check(CLI::Range(2, 1024))
      ->capture_default_str();
  app.add_option("--watch-nodes", flags.watch_nodes,
                 "replace pods of nodes that are gone (auto: with all namespaces)")
      ->check(CLI::IsMember({"auto", "true", "false"}))
      ->capture_default_str();
  app.add_option("--gang-scheduler", flags.gang,
                 "who schedules the pods of each job together: every job gets a pod group")
      ->check(CLI::IsMember({"none", "volcano", "scheduler-plugins"}))
      ->capture_default_str();
  app.add_option("--gang-scheduler-name", flags.gang_scheduler_name,
                 "schedulerName of gang-scheduled pods");
  app.add_option("--queue", flags.queue,
                 "who decides when jobs with the label kueue.x-k8s.io/queue-name may run")
      ->check(CLI::IsMember({"none", "kueue"}))
      ->capture_default_str();
  app.add_option("--worker-image", flags.worker_image,
                 "image of jobs that declare a program and no template");
  app.add_option("--fs-group", flags.fs_group,
                 "group of the volumes of pods that run the worker image (none: the cluster gives "
                 "one, as OpenShift does)")
      ->default_str(std::to_string(cluster::kPodGroup));
  app.add_option("--security", flags.security,
                 "how processes of jobs that begin from now on speak to each other where the "
                 "manifest does not say: mutualTLS or none")
      ->check(CLI::IsMember({"mutualTLS", "none"}))
      ->capture_default_str();
  app.add_option("--network-policy-peers", flags.http_peers,
                 "make a NetworkPolicy for each job: its pods are reached by each other and, at "
                 "meshtrain-http, by these (a JSON list, as a policy's `from`, each with a "
                 "namespaceSelector or an ipBlock); else none is made");
  app.add_option("--cluster-domain", flags.cluster_domain,
                 "DNS domain of the cluster; else $CUSTOM_CLUSTER_DOMAIN");
  app.add_option("--log-level", flags.log_level, "debug, info, warning or error")
      ->check(CLI::IsMember({"debug", "info", "warning", "error"}))
      ->capture_default_str();
  app.add_option("--log-format", flags.log_format, "text (key=value) or json")
      ->check(CLI::IsMember({"text", "json"}))
      ->capture_default_str();
  app.add_flag("--print-crd", flags.print_crd, "print the CustomResourceDefinition and end");
}

reconcile::Settings MakeSettings(const Flags& flags) {
  reconcile::Settings settings;
  settings.seals = flags.security == api::kMutualTls;
  settings.cluster_domain = !flags.cluster_domain.empty()
                                ? flags.cluster_domain
                                : Env(std::string(cluster::kEnvClusterDomain)).value_or("");
  settings.http_peers = flags.http_peers;
  if (flags.fs_group == "none") settings.fs_group.reset();
  if (const auto group = ParseInt(flags.fs_group)) settings.fs_group = *group;
  if (!flags.worker_image.empty()) settings.worker_image = flags.worker_image;
  if (flags.queue == "kueue") settings.queue = reconcile::QueueManager::kKueue;
  if (flags.gang == "volcano") {
    settings.gang = reconcile::GangScheduler::kVolcano;
    settings.gang_scheduler_name = "volcano";
  } else if (flags.gang == "scheduler-plugins") {
    settings.gang = reconcile::GangScheduler::kSchedulerPlugins;
    settings.gang_scheduler_name = "scheduler-plugins-scheduler";
  }
  if (!flags.gang_scheduler_name.empty()) settings.gang_scheduler_name = flags.gang_scheduler_name;
  return settings;
}

LogLevel ParseLevel(const std::string& level) {
  if (level == "debug") return LogLevel::kDebug;
  if (level == "warning") return LogLevel::kWarning;
  if (level == "error") return LogLevel::kError;
  return LogLevel::kInfo;
}

// What a burst needed goes back to the system: two arenas in place of eight per core, and large
// texts (a pod of a job of thousands) in mappings of their own, which leave no holes.
void KeepHeapSmall() {
  mallopt(M_ARENA_MAX, 2);
  mallopt(M_MMAP_THRESHOLD, 64 << 10);
  mallopt(M_TRIM_THRESHOLD, 256 << 10);
}

// Requests `stop` at the first SIGTERM or SIGINT. The signals are blocked in every thread and
// waited for here, so no handler runs in the middle of anything; the wait ends with the process.
void StopOnSignal(std::stop_source& stop, const sigset_t& signals) {
  while (!stop.stop_requested()) {
    const timespec tick{.tv_sec = 0, .tv_nsec = 200'000'000};
    const int signal = sigtimedwait(&signals, nullptr, &tick);
    if (signal == SIGTERM || signal == SIGINT) {
      LogInfo("stopping", {{"signal", std::to_string(signal)}});
      stop.request_stop();
    }
  }
}

// Whether the API server keeps all that this operator writes. One whose CRD is older cuts off what
// it does not know, silently: a decision that was recorded would be gone at the next look.
Status CheckCrd(kube::Client& client, const std::stop_token& stop) {
  const std::string name = std::string(cluster::kPlural) + "." + std::string(cluster::kGroup);
  const auto crd = client.Get({"apiextensions.k8s.io", "v1", "customresourcedefinitions"}, "", name,
                              {.stop = stop});
  if (!crd.ok()) {
    // Without it, or without the right to read it, there is nothing to do here, and who does not
    // answer now is asked again by all that follows.
    LogWarning("the CRD was not looked at", {{"error", crd.status().ToString()}});
    return OkStatus();
  }
  const auto missing = api::MissingInCrd(*crd);
  if (!missing.ok()) return missing.status().At(name);
  if (missing->empty()) return OkStatus();
  return FailedPrecondition(
      name + ": expected the CRD of this operator or a newer one, got: one without " +
      Join(*missing, ", ") + " (apply the chart's, or `meshtrain-operator --print-crd`)");
}

Status RunOperator(const Flags& flags, std::stop_source& stop) {
  Clock& clock = SystemClock();
  MT_ASSIGN_OR_RETURN(
      const kube::ClientConfig config,
      kube::FindConfig(flags.kubeconfig, flags.context, Env).From(Origin::kManifest));
  control::Metrics metrics(HostOf(config.server));

  const auto on_request = [&](std::string_view verb, std::string_view code, Duration took) {
    metrics.OnRequest(verb, code, took);
  };
  // The election has a connection of its own: a renewal must not wait behind 500 creations.
  MT_ASSIGN_OR_RETURN(
      std::unique_ptr<kube::Client> lease_client,
      kube::NewHttpClient(config, {.connections = 2, .on_request = on_request}, clock));
  MT_RETURN_IF_ERROR(CheckCrd(*lease_client, stop.get_token()));
  const std::string lease_ns = !flags.lease_namespace.empty() ? flags.lease_namespace
                               : !config.ns.empty()           ? config.ns
                                                              : "default";
  kube::LeaderElector elector(
      *lease_client, clock,
      {.ns = lease_ns,
       .name = flags.lease_name,
       .identity = flags.identity.empty() ? MakeIdentity() : flags.identity});
  kube::HttpClientOptions options;
  options.connections = flags.connections;
  options.on_request = on_request;
  options.on_wait = [&](std::string_view verb, Duration waited) { metrics.OnWait(verb, waited); };
  if (flags.leader_elect) {
    options.may_write = [&] {
      return elector.Held() ? OkStatus()
                            : FailedPrecondition("the lease is not held: nothing may be written");
    };
  }
  MT_ASSIGN_OR_RETURN(std::unique_ptr<kube::Client> client,
                      kube::NewHttpClient(config, options, clock));

  Mutex running_mutex;  // whoever asks it holds this, so that it does not go meanwhile
  const control::Controller* running = nullptr;
  std::atomic<bool> leading = false;
  std::unique_ptr<control::StatusServer> server;
  if (!flags.metrics_address.empty()) {
    MT_ASSIGN_OR_RETURN(
        server, control::StatusServer::Start(flags.metrics_address,
                                             {.metrics = [&] { return metrics.Text(); },
                                              .healthy =
                                                  [&] {
                                                    MutexLock lock(running_mutex);
                                                    return running == nullptr ? OkStatus()
                                                                              : running->Healthy();
                                                  },
                                              // Standing by is ready: a rolling update must not
                                              // wait for a lease that the old pod holds.
                                              .ready = [&]() -> Status {
                                                MutexLock lock(running_mutex);
                                                if (!leading) return OkStatus();
                                                if (running == nullptr)
                                                  return Unavailable("begins");
                                                return running->Ready();
                                              }}));
    LogInfo("serving",
            {{"address", flags.metrics_address}, {"port", std::to_string(server->port())}});
  }

  metrics.SetLeader(flags.lease_name, false);
  if (flags.leader_elect) {
    const Status acquired = elector.Acquire(stop.get_token(), [](const std::string& holder) {
      LogInfo("standing by", {{"leader", holder}});
    });
    if (!acquired.ok()) return OkStatus();  // stopped while standing by
    LogInfo("leading", {{"lease", lease_ns + "/" + flags.lease_name}});
  }
  metrics.SetLeader(flags.lease_name, true);
  leading = true;

  kube::EventRecorder events(*client, clock, "meshtrain-operator");
  control::ControllerOptions controller_options;
  controller_options.namespaces = {flags.namespaces.begin(), flags.namespaces.end()};
  controller_options.threads = flags.threads;
  // The caller of a fan-out works too; two connections are left for reads.
  controller_options.helpers = std::max(1, flags.connections - flags.threads - 2);
  controller_options.watch_nodes =
      flags.watch_nodes == "true" || (flags.watch_nodes == "auto" && flags.namespaces.empty());
  controller_options.settings = MakeSettings(flags);
  // What looks at large jobs needed lies in holes between what is kept, which no free() gives back.
  controller_options.on_rest = [] { malloc_trim(0); };
  Status lost;
  {
    control::Controller controller(*client, events, clock, metrics, controller_options);
    const auto set_running = [&](const control::Controller* now) {
      MutexLock lock(running_mutex);
      running = now;
    };
    set_running(&controller);
    std::jthread holder;
    if (flags.leader_elect) {
      holder = std::jthread([&](std::stop_token) {
        const Status status = elector.Hold(stop.get_token());
        if (status.code() != StatusCode::kCancelled) {
          lost = status;
          stop.request_stop();
        }
      });
    }
    controller.Run(stop.get_token());
    if (holder.joinable()) holder.join();
    set_running(nullptr);
    leading = false;
  }
  metrics.SetLeader(flags.lease_name, false);
  // The process ends and is started anew: nothing that it knows may be trusted.
  if (!lost.ok()) return lost.WithCode(StatusCode::kUnavailable);
  events.Flush(std::chrono::seconds(2));
  // All writes have ended: whoever stands by may begin at once.
  if (flags.leader_elect) {
    if (const Status status = elector.Release(); !status.ok()) {
      LogWarning("lease not given back", {{"error", status.ToString()}});
    }
  }
  LogInfo("stopped");
  return OkStatus();
}

int Main(int argc, char** argv) {
  CLI::App app{"The Meshtrain operator: runs TrainingJobs on Kubernetes", "meshtrain-operator"};
  app.set_version_flag("--version", "meshtrain-operator " MT_VERSION);
  Flags flags;
  AddFlags(app, flags);
  app.failure_message(cluster::UsageError);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : cluster::kExitUsage;
  }
  const auto group = ParseInt(flags.fs_group);
  if (!flags.fs_group.empty() && flags.fs_group != "none" && (!group || *group < 0)) {
    std::cerr << "meshtrain-operator: --fs-group: expected a group's number or none, got: "
              << flags.fs_group << "\n";
    return cluster::kExitUsage;
  }
  if (flags.http_peers) {
    if (const Status peers = reconcile::CheckHttpPeers(*flags.http_peers); !peers.ok()) {
      std::cerr << "meshtrain-operator: --network-policy-peers: " << peers.message() << "\n";
      return cluster::kExitUsage;
    }
  }
  if (flags.print_crd) {
    std::cout << api::CrdYaml();
    return 0;
  }
  ConfigureLog(ParseLevel(flags.log_level),
               flags.log_format == "json" ? LogFormat::kJson : LogFormat::kKeyValue);

  KeepHeapSmall();
  signal(SIGPIPE, SIG_IGN);
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGINT);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);  // inherited by every thread
  std::stop_source stop;
  std::jthread signal_thread([&] { StopOnSignal(stop, signals); });

  const Status status = RunOperator(flags, stop);
  stop.request_stop();
  if (!status.ok()) {
    LogError("ended", {{"error", status.ToString()}});
    return cluster::ExitCodeOf(status);
  }
  return 0;
}

}  // namespace
}  // namespace meshtrain

int main(int argc, char** argv) { return meshtrain::Main(argc, argv); }
