#include "operator/control/apply.h"

#include <sys/random.h>

#include <algorithm>
#include <functional>
#include <nlohmann/json.hpp>
#include <type_traits>

#include "operator/api/json.h"
#include "operator/certificates/certificates.h"
#include "operator/control/queue/workload_view.h"
#include "operator/control/refusal.h"
#include "operator/kube/json_slice.h"
#include "operator/reconcile/children.h"
#include "runtime/base/check.h"
#include "runtime/base/log.h"

namespace meshtrain::control {
namespace {

using kube::CallOptions;
using kube::PatchType;
using kube::Resource;
using nlohmann::json;

Resource Secrets() { return {"", "v1", "secrets"}; }
Resource ConfigMaps() { return {"", "v1", "configmaps"}; }
Resource Claims() { return {"", "v1", "persistentvolumeclaims"}; }
Resource NetworkPolicies() { return {"networking.k8s.io", "v1", "networkpolicies"}; }

// A JobView::change that no view has.
constexpr int64_t kNoChange = -1;
// Of the labels that only the operator gives.
constexpr std::string_view kOurPrefix = "meshtrain.dev/";

std::string RandomHex32() {
  unsigned char bytes[32];
  size_t have = 0;
  while (have < sizeof bytes) {
    const ssize_t n = getrandom(bytes + have, sizeof bytes - have, 0);
    if (n > 0) have += static_cast<size_t>(n);
  }
  static constexpr char kHex[] = "0123456789abcdef";
  std::string out;
  for (unsigned char b : bytes) {
    out += kHex[b >> 4];
    out += kHex[b & 15];
  }
  return out;
}

// Whether all that a status has to say is how far the training is, as it does every few seconds.
bool TellsProgressAlone(const reconcile::Write& write, const api::JobStatus& before) {
  const auto* patch = std::get_if<reconcile::PatchStatus>(&write);
  if (patch == nullptr) return false;
  api::JobStatus rest = patch->status;
  rest.progress = before.progress;
  rest.plan = before.plan;
  rest.checkpoint = before.checkpoint;
  rest.goodput = before.goodput;
  rest.last_reconcile_time = before.last_reconcile_time;
  return rest == before;
}

}  // namespace

Resource TrainingJobs() {
  return {std::string(cluster::kGroup), "v1", std::string(cluster::kPlural)};
}

std::optional<Resource> PodGroups(reconcile::GangScheduler gang) {
  switch (gang) {
    case reconcile::GangScheduler::kVolcano:
      return Resource{"scheduling.volcano.sh", "v1beta1", "podgroups"};
    case reconcile::GangScheduler::kSchedulerPlugins:
      return Resource{"scheduling.x-k8s.io", "v1alpha1", "podgroups"};
    case reconcile::GangScheduler::kNone:
      break;
  }
  return std::nullopt;
}

Applier::Applier(kube::Client& client, kube::EventRecorder& events, Store& store, FanOut& fan_out,
                 Clock& clock, Observer observer)
    : client_(client),
      events_(events),
      store_(store),
      fan_out_(fan_out),
      clock_(clock),
      observer_(std::move(observer)),
      guard_(clock) {}

// One Apply under way. Write() is called from several threads, once per action.
struct Applier::Run {
  Applier& applier;
  const api::TrainingJob& job;
  const reconcile::Settings& settings;
  const int64_t change;
  const std::string key;  // "namespace/name"
  const std::optional<Resource> pod_groups;
  std::optional<reconcile::PodRenderer>
      renderer;  // made where pods are created: it formats the whole cluster
  // Status patches are alone in their phases, so these have one writer at a time.
  api::JobStatus status_now;
  std::string version_now;
  bool told = false;
  Mutex mutex;
  bool read_job_anew MT_GUARDED_BY(mutex) = false;
  std::optional<reconcile::RefusedWrite> refused MT_GUARDED_BY(mutex);
  std::optional<reconcile::LostChild> lost_child MT_GUARDED_BY(mutex);
  std::optional<Duration> look_again_in MT_GUARDED_BY(mutex);

  const std::string& ns() const { return job.metadata.namespace_name; }
  CallOptions call() const { return {.timeout = std::chrono::seconds(30)}; }
  kube::Client& client() { return applier.client_; }

  // Sends one write, unless it would only repeat another, and says so in the log.
  Status Send(const reconcile::Action& action) {
    const std::string id = Identity(action.write);
    std::optional<RepeatGuard::Last> before;
    if (!id.empty()) {
      before = applier.guard_.Before(key, id, action.repeat ? kNoChange : change);
    }
    Status status;
    if (before) {
      status = before->status;
      // Asked for a moment ago, and the world has changed since: what comes after it waits too.
      if (status.ok() && before->may_in) status = Cancelled("apply: asked for a moment ago");
      Log(LogLevel::kDebug, "not repeated",
          {{"job", key}, {"what", reconcile::ToString(action.write)}});
    } else {
      const bool routine = TellsProgressAlone(action.write, status_now);
      status = std::visit([&](const auto& write) { return Write(write); }, action.write);
      if (applier.observer_.on_answer) applier.observer_.on_answer();
      if (!id.empty() && WasAnswered(action.write, status)) {
        applier.guard_.Answered(key, id, change, status);
        if (!status.ok()) before = applier.guard_.Before(key, id, change);
      }
      if (status.ok()) {
        Log(routine ? LogLevel::kDebug : LogLevel::kInfo, "done",
            {{"job", key}, {"what", reconcile::ToString(action.write)}, {"why", action.why}});
      } else {
        // What a server must not do is an error; what networks and other writers do is not.
        const bool broken = status.code() == StatusCode::kDataLoss;
        Log(broken ? LogLevel::kError : LogLevel::kWarning, "not done",
            {{"job", key},
             {"what", reconcile::ToString(action.write)},
             {"why", action.why},
             {"error", OneLine(status.ToString())}});
      }
    }
    MutexLock lock(mutex);
    if (before && before->may_in) {
      look_again_in = std::min(look_again_in.value_or(*before->may_in), *before->may_in);
    }
    if (!status.ok() && !refused) refused = RefusalOf(action.write, status);
    return status;
  }

  // Whether the job is still the one that we know, as the server has it now: who adopts pods for a
  // job that is being deleted with --cascade=orphan has them collected with it.
  Status StillThere() {
    const std::string& name = job.metadata.name;
    const Result<std::string> now = client().Get(TrainingJobs(), ns(), name, call());
    if (!now.ok()) {
      if (now.status().code() != StatusCode::kNotFound) return now.status();
      applier.store_.DeletedJob(ns(), name, job.metadata.uid);
      return Aborted("adoption for " + key + ": expected the job, got: none");
    }
    const bool same = kube::SliceString(*now, {"metadata", "uid"}) == job.metadata.uid;
    if (same && !Deleting(*now)) return OkStatus();
    applier.store_.WroteJob(*now);
    return Aborted("adoption for " + key + ": expected the job to stay, got: " +
                   (same ? "one that is being deleted" : "another job of its name"));
  }

  // Our labels of `body` that the object lacks, as a merge patch; empty where it has them all.
  // Without them no watch of ours shows it, and it would be asked for again for ever.
  static std::string MissingLabels(const std::string& body, const std::string& there,
                                   const std::string& uid) {
    const auto labels = [](const std::string& text) {
      const json object = json::parse(text, nullptr, /*allow_exceptions=*/false);
      const json::json_pointer at("/metadata/labels");
      return object.is_object() && object.contains(at) ? object[at] : json::object();
    };
    const json has = labels(there), given = labels(body);
    json missing = json::object();
    for (const auto& [key, value] : given.items()) {
      const bool ours = key == cluster::kLabelManagedBy || key.starts_with(kOurPrefix);
      if (ours && (!has.contains(key) || has[key] != value)) missing[key] = value;
    }
    if (missing.empty()) return {};
    return json{{"metadata", {{"uid", uid}, {"labels", missing}}}}.dump(
        -1, ' ', false, json::error_handler_t::replace);
  }

  // Creates; an object of that name that is already ours counts as made, and gets back the labels
  // by which we watch. `wrote` takes the object; null: the kind is not watched.
  Status Create(const Resource& resource, const std::string& name, const std::string& body,
                const std::function<void(const std::string&)>& wrote, bool probe = false) {
    CallOptions options = call();
    options.dry_run = probe;
    Result<std::string> made = client().Create(resource, ns(), body, options);
    if (made.ok()) {
      if (probe) return Lost(resource, name);
      if (wrote) wrote(*made);
      return OkStatus();
    }
    if (made.status().code() != StatusCode::kAlreadyExists) return made.status();
    Result<std::string> there = client().Get(resource, ns(), name, call());
    if (!there.ok()) return there.status();
    const Result<Meta> meta = ParseMeta(*there);
    if (!meta.ok()) return meta.status();
    if (meta->controller_uid != job.metadata.uid) {
      return AlreadyExists(resource.plural + " \"" + name +
                           "\": expected it to be controlled by this job, got: " +
                           (meta->controller_uid.empty() ? "an object of somebody else"
                                                         : "one of " + meta->controller_name));
    }
    // Of what is watched, the store knows from here on that it is going away, and so does the next
    // look; what is not watched has to be said.
    if (!wrote) return Deleting(*there) ? GoingAway(resource, name) : OkStatus();
    if (const std::string patch = MissingLabels(body, *there, meta->uid); !patch.empty()) {
      LogWarning("labels are given back", {{"object", resource.plural + " " + ns() + "/" + name}});
      there = client().Patch(resource, ns(), name, "", PatchType::kMerge, patch, call());
      if (!there.ok()) return Gone(there.status());
    }
    wrote(*there);
    return OkStatus();
  }

  static bool Deleting(const std::string& object) {
    return !kube::SliceString(object, {"metadata", "deletionTimestamp"}).empty();
  }

  // One of ours, under a name that is needed. Pods mount a claim until they end, so somebody
  // deleted it while they do; a name of another kind will be free.
  Status GoingAway(const Resource& resource, const std::string& name) {
    if (resource != Claims()) {
      return AlreadyExists(resource.plural + " \"" + name +
                           "\": expected it to stay, got: one that is being deleted");
    }
    return Lost(resource, name);
  }
  // Of the kinds that pods mount, whose plurals end in "s".
  Status Lost(const Resource& resource, const std::string& name) {
    std::string what = resource.plural.substr(0, resource.plural.size() - 1) + " \"" + name + "\"";
    MutexLock lock(mutex);
    lost_child = {.what = std::move(what), .attempt = job.status.recovery.attempt};
    return NotFound(lost_child->what + ": expected the one that pods mount, got: none that stays");
  }

  Status Write(const reconcile::CreateService& write) {
    return Create(kube::Services(), write.name, write.body,
                  [&](const std::string& made) { applier.store_.WroteService(made); });
  }
  Status Write(const reconcile::DeleteService& write) {
    const Status deleted = Gone(
        client().Delete(kube::Services(), ns(), write.name, {.uid = write.uid}, call()).status());
    if (deleted.ok()) applier.store_.DeletedService(ns(), write.name, write.uid);
    return deleted;
  }
  Status Write(const reconcile::CreateConfigMap& write) {
    return Create(ConfigMaps(), write.name, write.body, {}, write.probe);
  }
  Status Write(const reconcile::CreateClaim& write) {
    return Create(Claims(), write.name, write.body, {});
  }
  Status Write(const reconcile::CreateNetworkPolicy& write) {
    return Create(NetworkPolicies(), write.name, write.body, {});
  }
  Status Write(const reconcile::CreateSecret& write) {
    json body = json::parse(write.body, nullptr, /*allow_exceptions=*/false);
    MT_CHECK(body.is_object());
    json& values = body["stringData"];
    if (write.hosts.empty()) {
      values[write.key] = RandomHex32();
    } else {
      MT_ASSIGN_OR_RETURN(const auto made,
                          certificates::MakeJobCertificates(ns() + "/" + job.metadata.name,
                                                            write.hosts, applier.clock_.Now()));
      values[cluster::kTlsCaFileName] = made.ca;
      values[cluster::kTlsCertificateFileName] = made.certificate;
      values[cluster::kTlsKeyFileName] = made.key;
    }
    CallOptions options = call();
    options.dry_run = write.probe;
    const Status status = client().Create(Secrets(), ns(), body.dump(), options).status();
    if (write.probe && status.ok()) return Lost(Secrets(), write.name);
    // Secrets are never read, so whose it is cannot be asked.
    return status.code() == StatusCode::kAlreadyExists ? OkStatus() : status;
  }
  Status Write(const reconcile::CreatePodGroup& write) {
    if (!pod_groups) {
      return Internal("pod group " + write.name +
                      ": expected a gang scheduler in the settings, got: none");
    }
    return Create(*pod_groups, write.name, write.body,
                  [&](const std::string& made) { applier.store_.WrotePodGroup(made); });
  }
  Status Write(const reconcile::PatchPodGroup& write) {
    if (!pod_groups) {
      return Internal("pod group " + write.name +
                      ": expected a gang scheduler in the settings, got: none");
    }
    Result<std::string> patched =
        client().Patch(*pod_groups, ns(), write.name, "", PatchType::kMerge, write.body, call());
    if (!patched.ok()) return patched.status();
    applier.store_.WrotePodGroup(*patched);
    return OkStatus();
  }
  Status Write(const reconcile::DeletePodGroup& write) {
    if (!pod_groups) {
      return Internal("pod group " + write.name +
                      ": expected a gang scheduler in the settings, got: none");
    }
    return Gone(
        client().Delete(*pod_groups, ns(), write.name, {.uid = write.uid}, call()).status());
  }
  Status Write(const reconcile::CreateWorkload& write) {
    return Create(Workloads(), write.name, write.body,
                  [&](const std::string& made) { applier.store_.WroteWorkload(made); });
  }
  Status Write(const reconcile::PatchWorkload& write) {
    Result<std::string> patched =
        client().Patch(Workloads(), ns(), write.name, write.status ? "status" : "",
                       PatchType::kMerge, write.body, call());
    if (!patched.ok()) return patched.status();
    applier.store_.WroteWorkload(*patched);
    return OkStatus();
  }
  Status Write(const reconcile::DeleteWorkload& write) {
    return Gone(
        client().Delete(Workloads(), ns(), write.name, {.uid = write.uid}, call()).status());
  }
  Status Write(const reconcile::CreatePod& write) {
    return Create(kube::Pods(), write.name, renderer->Body(write),
                  [&](const std::string& made) { applier.store_.WrotePod(made); });
  }
  Status Write(const reconcile::DeletePod& write) {
    kube::DeleteOptions options{.uid = write.uid};
    options.grace_seconds = write.grace_seconds;
    Result<std::string> deleted = client().Delete(kube::Pods(), ns(), write.name, options, call());
    MT_RETURN_IF_ERROR(Gone(deleted.status()));
    applier.store_.DeletedPod(ns(), write.name, write.uid, applier.clock_.Now(),
                              deleted.ok() ? std::string_view(*deleted) : std::string_view());
    return OkStatus();
  }
  Status Write(const reconcile::AdoptPod& write) {
    return PatchPod(write.name, reconcile::AdoptBody(job, write));
  }
  Status Write(const reconcile::ReleasePod& write) {
    return PatchPod(write.name, reconcile::ReleaseBody(job, write));
  }
  Status Write(const reconcile::PatchStatus& write) {
    const std::string patch = api::StatusMergePatch(status_now, write.status);
    if (patch.empty()) return OkStatus();
    json body = json::parse(patch, nullptr, /*allow_exceptions=*/false);
    MT_CHECK(body.is_object());
    body["metadata"]["resourceVersion"] = version_now;
    Result<std::string> patched = client().Patch(TrainingJobs(), ns(), job.metadata.name, "status",
                                                 PatchType::kMerge, body.dump(), call());
    if (!patched.ok()) {
      MutexLock lock(mutex);
      read_job_anew = true;
      return patched.status();
    }
    if (applier.observer_.on_status) applier.observer_.on_status(job, status_now, write.status);
    told = true;
    status_now = write.status;
    version_now = std::string(kube::SliceString(*patched, {"metadata", "resourceVersion"}));
    applier.store_.WroteJob(*patched, &job);
    return OkStatus();
  }
  // Of the job as the decision saw it, and as the outcome's own status has left it since. Whoever
  // else changed it may have changed the decision, so after a conflict the job is read anew.
  Status Write(const reconcile::DeleteJob& write) {
    kube::DeleteOptions options{.uid = write.uid, .resource_version = write.resource_version};
    if (options.resource_version == job.metadata.resource_version) {
      options.resource_version = version_now;
    }
    const Status status =
        client().Delete(TrainingJobs(), ns(), job.metadata.name, options, call()).status();
    if (!status.ok() && status.code() != StatusCode::kNotFound) {
      MutexLock lock(mutex);
      read_job_anew = true;
      return status;
    }
    applier.store_.DeletedJob(ns(), job.metadata.name, write.uid);
    return OkStatus();
  }
  Status Write(const reconcile::RecordEvent& write) {
    applier.events_.Record(
        {.about = {std::string(cluster::kApiVersion), std::string(cluster::kKind), ns(),
                   job.metadata.name, job.metadata.uid},
         .warning = write.warning,
         .reason = write.reason,
         .message = write.message});
    return OkStatus();
  }

  Status PatchPod(const std::string& name, const std::string& body) {
    Result<std::string> patched =
        client().Patch(kube::Pods(), ns(), name, "", PatchType::kStrategicMerge, body, call());
    if (patched.ok()) {
      applier.store_.WrotePod(*patched);
      return OkStatus();
    }
    return Gone(patched.status());
  }

  // What makes a write the same as another of its job; empty: it may always be repeated.
  std::string Identity(const reconcile::Write& write) const {
    const auto hash = [](const std::string& text) {
      return std::to_string(std::hash<std::string>()(text));
    };
    std::string id = job.metadata.uid + " " + std::to_string(write.index()) + " " + NameOf(write);
    return std::visit(
        [&](const auto& what) -> std::string {
          using W = std::decay_t<decltype(what)>;
          if constexpr (std::is_same_v<W, reconcile::RecordEvent>) return "";
          if constexpr (requires { what.body; }) id += " " + hash(what.body);
          if constexpr (requires { what.uid; }) id += " " + what.uid;
          if constexpr (requires { what.attempt; }) id += " " + std::to_string(what.attempt);
          if constexpr (requires { what.probe; }) id += what.probe ? " probe" : "";
          if constexpr (requires { what.grace_seconds; }) {
            if (what.grace_seconds) id += " " + std::to_string(*what.grace_seconds);
          }
          if constexpr (std::is_same_v<W, reconcile::PatchStatus>) {
            // The time of the write is not what it says.
            api::JobStatus next = what.status;
            next.last_reconcile_time = status_now.last_reconcile_time;
            id += " " + version_now + " " + hash(api::StatusMergePatch(status_now, next));
          }
          return id;
        },
        write);
  }

  // A deletion or a patch under a uid: what is gone, or another object by now, needs no more.
  static Status Gone(const Status& status) {
    const bool gone =
        status.code() == StatusCode::kNotFound || status.code() == StatusCode::kAborted;
    return gone ? OkStatus() : status;
  }
};

Applied Applier::Apply(const api::TrainingJob& job, const reconcile::Outcome& outcome,
                       const reconcile::Settings& settings, int64_t change, std::stop_token stop) {
  Run run{.applier = *this,
          .job = job,
          .settings = settings,
          .change = change,
          .key = job.metadata.namespace_name + "/" + job.metadata.name,
          .pod_groups = PodGroups(settings.gang),
          .status_now = job.status,
          .version_now = job.metadata.resource_version};
  const auto& actions = outcome.actions;
  for (const reconcile::Action& action : actions) {
    if (!std::holds_alternative<reconcile::CreatePod>(action.write)) continue;
    run.renderer.emplace(job, settings, outcome.placements);
    break;
  }
  const auto applied = [&](Status status) {
    MutexLock lock(run.mutex);
    return Applied{.status = std::move(status),
                   .refused = run.refused,
                   .read_job_anew = run.read_job_anew,
                   .lost_child = run.lost_child,
                   .told = run.told,
                   .look_again_in = run.look_again_in};
  };
  for (size_t begin = 0; begin < actions.size();) {
    size_t end = begin;
    bool adopts = false;
    std::vector<std::function<Status()>> calls;
    for (; end < actions.size() && actions[end].phase == actions[begin].phase; ++end) {
      adopts = adopts || std::holds_alternative<reconcile::AdoptPod>(actions[end].write);
      calls.emplace_back([&run, &stop, &action = actions[end]] {
        // A phase may hold 500 creations: a hand-over need not wait for all of them.
        if (stop.stop_requested()) return Cancelled("apply: stopped");
        return run.Send(action);
      });
    }
    if (adopts) {
      if (Status there = run.StillThere(); !there.ok()) {
        LogWarning("not adopted", {{"job", run.key}, {"why", there.ToString()}});
        return applied(std::move(there));
      }
    }
    if (Status status = fan_out_.Run(calls); !status.ok()) return applied(std::move(status));
    begin = end;
  }
  return applied(OkStatus());
}

}  // namespace meshtrain::control
