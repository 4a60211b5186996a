// Long: what is known of jobs, pods, services and nodes is one state under one lock.
#include "operator/control/store.h"

#include <nlohmann/json.hpp>

#include "operator/api/json.h"
#include "operator/kube/json_slice.h"
#include "runtime/base/log.h"
#include "runtime/base/text.h"

namespace meshtrain::control {
namespace {

using nlohmann::json;

std::string KeyOf(std::string_view ns, std::string_view name) {
  std::string key(ns);
  key += '/';
  key += name;
  return key;
}

// The job that an object belongs to: its controller, else its label.
std::string JobKeyOf(const Meta& meta, std::string_view text) {
  if (meta.controller_kind == cluster::kKind) return KeyOf(meta.ns, meta.controller_name);
  const std::string_view label =
      kube::SliceString(text, {"metadata", "labels", cluster::kLabelJob});
  return KeyOf(meta.ns, label.empty() ? meta.name : label);
}

bool Deleting(std::string_view object) {
  return !kube::SliceString(object, {"metadata", "deletionTimestamp"}).empty();
}

template <typename Index>
void Reindex(Index& index, const std::string& object, const std::string* before,
             const std::string* after) {
  if (before && (!after || *before != *after)) {
    const auto it = index.find(*before);
    if (it != index.end()) {
      it->second.erase(object);
      if (it->second.empty()) index.erase(it);
    }
  }
  if (after && (!before || *before != *after)) index[*after].insert(object);
}

int64_t VersionOf(std::string_view object) {
  return ParseInt(kube::SliceString(object, {"metadata", "resourceVersion"})).value_or(0);
}

}  // namespace

Store::Store(Wake wake, Clock& clock)
    : wake_(std::move(wake)),
      clock_(clock),
      jobs_([this](const std::string& key, const Job*, const Job*)
                MT_REQUIRES(mutex_) { touched_.insert(key); }),
      pods_([this](const std::string& key, const PodPtr* before, const PodPtr* after)
                MT_REQUIRES(mutex_) {
                  const std::string was = before ? KeyOf((*before)->ns, (*before)->job) : "";
                  const std::string is = after ? KeyOf((*after)->ns, (*after)->job) : "";
                  Reindex(pods_of_, key, before ? &was : nullptr, after ? &is : nullptr);
                  // A field that nobody reads.
                  if (before && after && **before == **after) return;
                  if (before) touched_.insert(was);
                  if (after) touched_.insert(is);
                  if (pod_event_now_) pod_event_at_.try_emplace(after ? is : was, *pod_event_now_);
                }),
      services_([this](const std::string& key, const Service* before, const Service* after)
                    MT_REQUIRES(mutex_) {
                      Reindex(services_of_, key, before ? &before->job_key : nullptr,
                              after ? &after->job_key : nullptr);
                      if (before && after && before->seen == after->seen) return;
                      if (before) touched_.insert(before->job_key);
                      if (after) touched_.insert(after->job_key);
                    }),
      groups_([this](const std::string& key, const PodGroup* before, const PodGroup* after)
                  MT_REQUIRES(mutex_) {
                    if (before) group_of_.erase(before->job_key);
                    if (after) group_of_[after->job_key] = key;
                    if (before) touched_.insert(before->job_key);
                    if (after) touched_.insert(after->job_key);
                  }),
      nodes_([this](const std::string& key, const Node* before, const Node* after)
                 MT_REQUIRES(mutex_) {
                   if (before && after && *before == *after) return;
                   // A new node that is well tells nobody anything.
                   if (!before && (!after || (after->ready && !after->out_of_service))) return;
                   pods_.ForEach([&](const std::string&, const PodPtr& pod) MT_REQUIRES(mutex_) {
                     if (pod->seen.node == key) touched_.insert(KeyOf(pod->ns, pod->job));
                   });
                 }),
      workloads_([this](const std::string&, const Workload* before, const Workload* after)
                     MT_REQUIRES(mutex_) {
                       if (before) touched_.insert(before->job_key);
                       if (after) touched_.insert(after->job_key);
                     }),
      flavors_([this](const std::string&, const reconcile::FlavorSeen*,
                      const reconcile::FlavorSeen*) MT_REQUIRES(mutex_) { TouchQueued(); }),
      workload_priorities_([this](const std::string&, const reconcile::PriorityClassSeen*,
                                  const reconcile::PriorityClassSeen*)
                               MT_REQUIRES(mutex_) { TouchQueued(); }),
      pod_priorities_([this](const std::string&, const reconcile::PriorityClassSeen*,
                             const reconcile::PriorityClassSeen*)
                          MT_REQUIRES(mutex_) { TouchQueued(); }) {}

void Store::TouchQueued() {
  jobs_.ForEach([&](const std::string& key, const Job& job) MT_REQUIRES(mutex_) {
    if (!reconcile::QueueName(*job).empty()) touched_.insert(key);
  });
}

void Store::Locked(News news, const std::function<void()>& change) {
  std::set<std::string> touched;
  {
    MutexLock lock(mutex_);
    change();
    touched.swap(touched_);
    for (const std::string& key : touched) {
      if (jobs_.Find(key) == nullptr) {
        changes_.erase(key);
        pod_event_at_.erase(key);
      } else if (news == News::kTold) {
        changes_[key] = ++told_;
      }
    }
  }
  for (const std::string& key : touched) wake_(key);
}

template <typename T>
Sink Store::MakeSink(
    Cache<T>* cache, const std::string& ns,
    std::function<std::optional<std::pair<std::string, T>>(std::string_view)> parse) {
  Sink sink;
  sink.begin_list = [this, cache, ns] {
    Locked(News::kTold, [&]() MT_REQUIRES(mutex_) { cache->BeginList(ns); });
  };
  sink.listed = [this, cache, parse](std::string_view object) {
    auto parsed = parse(object);
    if (!parsed) return;
    const int64_t version = VersionOf(object);
    Locked(News::kTold, [&]() MT_REQUIRES(mutex_) {
      Carry(cache->Find(parsed->first), parsed->second);
      cache->Listed(parsed->first, version, std::move(parsed->second));
    });
  };
  sink.end_list = [this, cache, ns](int64_t version, bool anew) {
    Locked(News::kTold, [&]() MT_REQUIRES(mutex_) { cache->EndList(ns, version, anew); });
  };
  sink.watched = [this, cache, ns, parse](kube::WatchEventType type, int64_t version,
                                          std::string_view object) {
    if (type == kube::WatchEventType::kBookmark) {
      Locked(News::kTold, [&]() MT_REQUIRES(mutex_) { cache->Bookmark(ns, version); });
      return;
    }
    if (type != kube::WatchEventType::kDeleted) {
      // Most events repeat a write of our own, whose answer has been read already: no need to parse
      // it twice.
      const std::string key = KeyOf(kube::SliceString(object, {"metadata", "namespace"}),
                                    kube::SliceString(object, {"metadata", "name"}));
      bool known = false;
      Locked(News::kTold, [&]() MT_REQUIRES(mutex_) {
        known = cache->VersionOf(key) >= version;
        if (known) cache->Bookmark(ns, version);
      });
      if (known) return;
    }
    auto parsed = parse(object);
    if (!parsed) return;
    Locked(News::kTold, [&]() MT_REQUIRES(mutex_) {
      if (type == kube::WatchEventType::kDeleted) {
        cache->Watched(parsed->first, version, std::nullopt);
      } else {
        Carry(cache->Find(parsed->first), parsed->second);
        cache->Watched(parsed->first, version, std::move(parsed->second));
      }
    });
  };
  return sink;
}

namespace {

// What cannot be parsed is our bug, or not the kind we asked for: said once per object, then passed
// over.
void LogUnreadable(std::string_view kind, const Status& status) {
  LogError("object passed over", {{"kind", std::string(kind)}, {"error", status.ToString()}});
}

std::optional<std::pair<std::string, std::shared_ptr<const api::TrainingJob>>> ParseJob(
    std::string_view text, const api::TrainingJob* before = nullptr) {
  Result<api::TrainingJob> job = api::FromJson(text, before);
  if (!job.ok()) {
    LogUnreadable("trainingjob", job.status());
    return std::nullopt;
  }
  const std::string key = KeyOf(job->metadata.namespace_name, job->metadata.name);
  return std::pair(key, std::make_shared<const api::TrainingJob>(*std::move(job)));
}

std::optional<std::pair<std::string, std::shared_ptr<const Pod>>> ParsePodEntry(
    std::string_view text) {
  Result<Pod> pod = ParsePod(text);
  if (!pod.ok()) {
    LogUnreadable("pod", pod.status());
    return std::nullopt;
  }
  const std::string key = KeyOf(pod->ns, pod->seen.name);
  return std::pair(key, std::make_shared<const Pod>(*std::move(pod)));
}

}  // namespace

Sink Store::JobSink(const std::string& ns) {
  return MakeSink<Job>(&jobs_, ns, [](std::string_view text) { return ParseJob(text); });
}
Sink Store::PodSink(const std::string& ns) {
  Sink sink = MakeSink<PodPtr>(&pods_, ns, ParsePodEntry);
  // Noted in on_change, where it is known whose the pod is; only of what a watch tells.
  auto watched = sink.watched;
  sink.watched = [this, watched](kube::WatchEventType type, int64_t version,
                                 std::string_view object) {
    Locked(News::kTold, [&]() MT_REQUIRES(mutex_) { pod_event_now_ = clock_.Monotonic(); });
    watched(type, version, object);
    Locked(News::kTold, [&]() MT_REQUIRES(mutex_) { pod_event_now_.reset(); });
  };
  return sink;
}

std::optional<std::pair<std::string, Store::Service>> Store::ParseService(std::string_view text) {
  const Result<Meta> meta = ParseMeta(text);
  if (!meta.ok()) {
    LogUnreadable("service", meta.status());
    return std::nullopt;
  }
  return std::pair(KeyOf(meta->ns, meta->name), Service{JobKeyOf(*meta, text),
                                                        {.name = meta->name,
                                                         .uid = meta->uid,
                                                         .controller_uid = meta->controller_uid,
                                                         .deleting = Deleting(text)}});
}

std::optional<std::pair<std::string, Store::PodGroup>> Store::ParsePodGroup(std::string_view text) {
  const Result<Meta> meta = ParseMeta(text);
  if (!meta.ok()) {
    LogUnreadable("podgroup", meta.status());
    return std::nullopt;
  }
  const json minimum =
      json::parse(kube::Slice(text, {"spec", "minMember"}), nullptr, /*allow_exceptions=*/false);
  return std::pair(KeyOf(meta->ns, meta->name),
                   PodGroup{JobKeyOf(*meta, text),
                            {.uid = meta->uid,
                             .resource_version = std::to_string(meta->version),
                             .controller_uid = meta->controller_uid,
                             .phase = std::string(kube::SliceString(text, {"status", "phase"})),
                             .min_member = minimum.is_number_integer() ? minimum.get<int32_t>() : 0,
                             .deleting = Deleting(text)}});
}

std::optional<std::pair<std::string, Workload>> Store::ParseWorkloadEntry(std::string_view text) {
  const Result<Meta> meta = ParseMeta(text);
  Result<reconcile::WorkloadSeen> seen =
      meta.ok() ? ParseWorkload(text) : Result<reconcile::WorkloadSeen>(meta.status());
  if (!seen.ok()) {
    LogUnreadable("workload", seen.status());
    return std::nullopt;
  }
  return std::pair(KeyOf(meta->ns, meta->name),
                   Workload{.job_key = JobKeyOf(*meta, text), .seen = *std::move(seen)});
}

namespace {

// Of a kind without namespaces.
template <typename T>
std::optional<std::pair<std::string, T>> Entry(std::string_view kind,
                                               Result<std::pair<std::string, T>> parsed) {
  if (!parsed.ok()) {
    LogUnreadable(kind, parsed.status());
    return std::nullopt;
  }
  return std::pair(KeyOf("", parsed->first), std::move(parsed->second));
}

}  // namespace

Sink Store::WorkloadSink(const std::string& ns) {
  return MakeSink<Workload>(&workloads_, ns, ParseWorkloadEntry);
}
Sink Store::FlavorSink() {
  return MakeSink<reconcile::FlavorSeen>(&flavors_, "", [](std::string_view text) {
    return Entry("resourceflavor", ParseFlavor(text));
  });
}
Sink Store::WorkloadPrioritySink() {
  return MakeSink<reconcile::PriorityClassSeen>(
      &workload_priorities_, "", [](std::string_view text) {
        return Entry("workloadpriorityclass", ParsePriorityClass(text));
      });
}
Sink Store::PodPrioritySink() {
  return MakeSink<reconcile::PriorityClassSeen>(&pod_priorities_, "", [](std::string_view text) {
    return Entry("priorityclass", ParsePriorityClass(text));
  });
}

reconcile::QueueSeen Store::QueueOf(const api::TrainingJob& job) const {
  reconcile::QueueSeen seen;
  const Workload* workload =
      workloads_.Find(KeyOf(job.metadata.namespace_name, reconcile::WorkloadName(job)));
  if (workload != nullptr) {
    seen.workload = workload->seen;
    for (const auto& [name, assigned] : workload->seen.assigned) {
      for (const std::string& flavor : assigned.flavors) {
        const reconcile::FlavorSeen* found = flavors_.Find(KeyOf("", flavor));
        if (found != nullptr) seen.flavors[flavor] = *found;
      }
    }
  } else if (reconcile::QueueName(job).empty()) {
    return seen;
  }
  const auto fill = [](const Cache<reconcile::PriorityClassSeen>& from,
                       std::map<std::string, reconcile::PriorityClassSeen>* to) {
    from.ForEach([&](const std::string& key, const reconcile::PriorityClassSeen& one) {
      (*to)[key.substr(1)] = one;
    });
  };
  fill(workload_priorities_, &seen.workload_priorities);
  fill(pod_priorities_, &seen.pod_priorities);
  return seen;
}

Sink Store::ServiceSink(const std::string& ns) {
  return MakeSink<Service>(&services_, ns, ParseService);
}
Sink Store::PodGroupSink(const std::string& ns) {
  return MakeSink<PodGroup>(&groups_, ns, ParsePodGroup);
}

Sink Store::NodeSink() {
  Sink sink = MakeSink<Node>(
      &nodes_, "", [](std::string_view text) -> std::optional<std::pair<std::string, Node>> {
        const std::string name(kube::SliceString(text, {"metadata", "name"}));
        if (name.empty()) return std::nullopt;
        Node node;
        kube::ForEachElement(kube::Slice(text, {"status", "conditions"}),
                             [&](std::string_view condition) {
                               if (kube::SliceString(condition, {"type"}) != "Ready") return true;
                               node.ready = kube::SliceString(condition, {"status"}) == "True";
                               return false;
                             });
        kube::ForEachElement(kube::Slice(text, {"spec", "taints"}), [&](std::string_view taint) {
          node.out_of_service = node.out_of_service || kube::SliceString(taint, {"key"}) ==
                                                           "node.kubernetes.io/out-of-service";
          return true;
        });
        return std::pair(name, node);
      });
  auto end_list = sink.end_list;
  sink.end_list = [this, end_list](int64_t version, bool anew) {
    Locked(News::kTold, [&]() MT_REQUIRES(mutex_) { nodes_known_ = true; });
    end_list(version, anew);
    // A node that this list lacks, and no list before had, changed in nobody's eyes.
    Locked(News::kTold, [&]() MT_REQUIRES(mutex_) {
      pods_.ForEach([&](const std::string&, const PodPtr& pod) MT_REQUIRES(mutex_) {
        if (pod->seen.node.empty() || nodes_.Find(pod->seen.node) != nullptr) return;
        touched_.insert(KeyOf(pod->ns, pod->job));
      });
    });
  };
  return sink;
}

template <typename T>
void Store::Wrote(Cache<T>* cache, std::optional<std::pair<std::string, T>> parsed,
                  std::string_view text) {
  if (!parsed) return;
  const int64_t version = VersionOf(text);
  Locked(News::kOurs, [&]() MT_REQUIRES(mutex_) {
    Carry(cache->Find(parsed->first), parsed->second);
    cache->Wrote(parsed->first, version, std::move(parsed->second));
  });
}

void Store::WrotePod(std::string_view text) { Wrote(&pods_, ParsePodEntry(text), text); }
void Store::WroteJob(std::string_view text, const api::TrainingJob* before) {
  Wrote(&jobs_, ParseJob(text, before), text);
}
void Store::WroteService(std::string_view text) { Wrote(&services_, ParseService(text), text); }
void Store::WrotePodGroup(std::string_view text) { Wrote(&groups_, ParsePodGroup(text), text); }
void Store::WroteWorkload(std::string_view text) {
  Wrote(&workloads_, ParseWorkloadEntry(text), text);
}

void Store::Carry(const PodPtr* before, PodPtr& next) {
  const Pod* was = before && (*before)->seen.uid == next->seen.uid ? before->get() : nullptr;
  const bool lost = was && was->node_lost;
  const bool going = next->seen.delete_requested.has_value();
  const bool starting =
      next->seen.phase == reconcile::PodPhase::kPending && !next->seen.node.empty();
  if (!lost && !going && !starting) return;
  auto carried = std::make_shared<Pod>(*next);
  carried->node_lost = lost;
  if (going) {
    carried->seen.delete_seen = was && was->seen.delete_seen ? was->seen.delete_seen : clock_.Now();
  }
  if (starting) {
    const bool before_too = was && was->seen.starting_since;
    carried->seen.starting_since = before_too ? was->seen.starting_since : clock_.Now();
  }
  next = std::move(carried);
}

void Store::Carry(const Node* before, Node& next) {
  if (next.ready) return;
  next.not_ready_since = before && before->not_ready_since ? before->not_ready_since : clock_.Now();
}

bool Store::MarkPod(const std::string& key, const std::string& uid,
                    const std::function<void(Pod& pod)>& mark) {
  PodPtr* pod = pods_.FindMutable(key);
  if (pod == nullptr || (*pod)->seen.uid != uid) return false;
  auto marked = std::make_shared<Pod>(**pod);
  mark(*marked);
  *pod = std::move(marked);
  touched_.insert(KeyOf((*pod)->ns, (*pod)->job));
  return true;
}

void Store::DeletedPod(const std::string& ns, const std::string& name, const std::string& uid,
                       TimePoint now, std::string_view answer) {
  // The server's own times, where it says them.
  if (!kube::SliceString(answer, {"metadata", "deletionTimestamp"}).empty()) WrotePod(answer);
  Locked(News::kOurs, [&]() MT_REQUIRES(mutex_) {
    const std::string key = KeyOf(ns, name);
    const PodPtr* pod = pods_.Find(key);
    if (pod == nullptr || (*pod)->seen.delete_requested) return;
    MarkPod(key, uid, [&](Pod& marked) {
      marked.seen.delete_requested = now;
      marked.seen.delete_due = now;
      marked.seen.delete_seen = now;
    });
  });
}

void Store::LostNode(const JobView& view, const std::string& name) {
  Locked(News::kTold, [&]() MT_REQUIRES(mutex_) {
    for (const JobView::SeenPod& seen : view.pods) {
      const Pod& pod = *seen.pod;
      if (pod.seen.node != name) continue;
      MarkPod(KeyOf(pod.ns, pod.seen.name), pod.seen.uid,
              [](Pod& marked) { marked.node_lost = true; });
    }
  });
}

void Store::DeletedService(const std::string& ns, const std::string& name, const std::string& uid) {
  Locked(News::kOurs, [&]() MT_REQUIRES(mutex_) {
    const std::string key = KeyOf(ns, name);
    const Service* service = services_.Find(key);
    // A Service has no grace period: it is gone, and the watch will say so.
    if (service != nullptr && service->seen.uid == uid) services_.Forget(key);
  });
}

void Store::DeletedJob(const std::string& ns, const std::string& name, const std::string& uid) {
  Locked(News::kOurs, [&]() MT_REQUIRES(mutex_) {
    Job* job = jobs_.FindMutable(KeyOf(ns, name));
    if (job == nullptr || (*job)->metadata.uid != uid || (*job)->metadata.deleted) return;
    auto marked = std::make_shared<api::TrainingJob>(**job);
    marked->metadata.deleted = TimePoint();
    *job = std::move(marked);
  });
}

std::optional<JobView> Store::View(const std::string& key) const {
  MutexLock lock(mutex_);
  const Job* job = jobs_.Find(key);
  if (job == nullptr) return std::nullopt;
  JobView view{.job = *job};
  if (const auto it = changes_.find(key); it != changes_.end()) view.change = it->second;
  if (const auto it = pods_of_.find(key); it != pods_of_.end()) {
    view.pods.reserve(it->second.size());
    for (const std::string& pod_key : it->second) {
      JobView::SeenPod& seen = view.pods.emplace_back();
      seen.pod = *pods_.Find(pod_key);
      const std::string& name = seen.pod->seen.node;
      if (name.empty() || !nodes_known_) continue;
      if (const Node* node = nodes_.Find(name)) {
        seen.node_state = node->out_of_service ? reconcile::NodeState::kOutOfService
                          : node->ready        ? reconcile::NodeState::kReady
                                               : reconcile::NodeState::kNotReady;
        seen.node_not_ready_since = node->not_ready_since;
      } else if (seen.pod->node_lost) {
        seen.node_state = reconcile::NodeState::kGone;
      } else {
        seen.node_missing = true;
      }
    }
  }
  if (const auto it = services_of_.find(key); it != services_of_.end()) {
    for (const std::string& service : it->second) {
      view.services.push_back(services_.Find(service)->seen);
    }
  }
  if (const auto it = group_of_.find(key); it != group_of_.end()) {
    if (const PodGroup* group = groups_.Find(it->second)) view.pod_group = group->seen;
  }
  view.queue = QueueOf(**job);
  return view;
}

reconcile::Observed JobView::Observe() const {
  reconcile::Observed seen{.services = services, .pod_group = pod_group, .queue = queue};
  seen.pods.reserve(pods.size());
  for (const SeenPod& from : pods) {
    reconcile::PodSeen& pod = seen.pods.emplace_back(from.pod->seen);
    pod.node_state = from.node_state;
    pod.node_not_ready_since = from.node_not_ready_since;
  }
  return seen;
}

std::set<std::string> JobView::MissingNodes() const {
  std::set<std::string> names;
  for (const SeenPod& seen : pods) {
    if (seen.node_missing) names.insert(seen.pod->seen.node);
  }
  return names;
}

std::optional<ProgressTarget> Store::Leader(const std::string& key) const {
  MutexLock lock(mutex_);
  const Job* job = jobs_.Find(key);
  const auto it = pods_of_.find(key);
  if (job == nullptr || it == pods_of_.end()) return std::nullopt;
  for (const std::string& pod_key : it->second) {
    const Pod& pod = **pods_.Find(pod_key);
    if (pod.leader && pod.http_port > 0 && !pod.ip.empty() &&
        pod.seen.phase == reconcile::PodPhase::kRunning && !pod.seen.delete_requested &&
        pod.seen.controller_uid == (*job)->metadata.uid) {
      return ProgressTarget{pod.ip, pod.http_port, pod.seen.uid};
    }
  }
  return std::nullopt;
}

std::vector<std::string> Store::JobKeys() const {
  MutexLock lock(mutex_);
  std::vector<std::string> keys;
  keys.reserve(jobs_.size());
  jobs_.ForEach([&](const std::string& key, const Job&) { keys.push_back(key); });
  return keys;
}

int64_t Store::jobs() const {
  MutexLock lock(mutex_);
  return static_cast<int64_t>(jobs_.size());
}

int64_t Store::pods() const {
  MutexLock lock(mutex_);
  return static_cast<int64_t>(pods_.size());
}

std::map<std::pair<std::string, std::string>, int64_t> Store::Phases() const {
  MutexLock lock(mutex_);
  std::map<std::pair<std::string, std::string>, int64_t> phases;
  jobs_.ForEach([&](const std::string&, const Job& job) {
    ++phases[{job->metadata.namespace_name, job->status.phase}];
  });
  return phases;
}

std::vector<RankSteps> Store::Ranks() const {
  MutexLock lock(mutex_);
  std::vector<RankSteps> ranks;
  jobs_.ForEach([&](const std::string&, const Job& job) {
    const api::JobStatus& status = job->status;
    if (!api::IsTrue(status, api::ConditionType::kRunning) || api::IsFinished(status) ||
        !status.progress || !status.progress->slowest) {
      return;
    }
    const api::Straggler& slowest = *status.progress->slowest;
    ranks.push_back({.ns = job->metadata.namespace_name,
                     .job = job->metadata.name,
                     .slowest = slowest.replica,
                     .seconds = slowest.seconds,
                     .median = slowest.median_seconds,
                     .straggles = api::IsTrue(status, api::ConditionType::kStraggling)});
  });
  return ranks;
}

std::vector<JobFigures> Store::Figures() const {
  MutexLock lock(mutex_);
  std::vector<JobFigures> figures;
  jobs_.ForEach([&](const std::string&, const Job& job) {
    const api::JobStatus& status = job->status;
    JobFigures one{
        .ns = job->metadata.namespace_name,
        .job = job->metadata.name,
        .runs = api::IsTrue(status, api::ConditionType::kRunning) && !api::IsFinished(status),
        .restarts = status.restarts,
        .processes = api::TotalReplicas(job->spec)};
    if (status.progress) {
      const api::ProgressStatus& progress = *status.progress;
      one.step = progress.step;
      one.total_steps = progress.total_steps;
      one.loss = progress.loss;
      one.accuracy = progress.accuracy;
      one.examples_per_second = progress.examples_per_second;
      one.advanced = progress.advanced_at;
    }
    if (status.checkpoint) one.checkpoint_step = status.checkpoint->step;
    figures.push_back(std::move(one));
  });
  return figures;
}

std::optional<Duration> Store::TakePodEvent(const std::string& key) {
  MutexLock lock(mutex_);
  const auto it = pod_event_at_.find(key);
  if (it == pod_event_at_.end()) return std::nullopt;
  const Duration at = it->second;
  pod_event_at_.erase(it);
  return at;
}

void Store::ReturnPodEvent(const std::string& key, Duration at) {
  MutexLock lock(mutex_);
  if (jobs_.Find(key) != nullptr) pod_event_at_[key] = at;  // no later one is older
}

}  // namespace meshtrain::control
