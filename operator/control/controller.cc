#include "operator/control/controller.h"

#include <algorithm>
#include <exception>
#include <thread>

#include "operator/reconcile/progress.h"
#include "operator/reconcile/reconcile.h"
#include "runtime/base/log.h"
#include "runtime/base/text.h"

namespace meshtrain::control {
namespace {

// A node that the server knows and the watch does not tell of yet, or one that cannot be read.
constexpr Duration kLookForNodeAgain = std::chrono::seconds(5);
// Nothing is asked for again before.
constexpr Duration kSoonest = std::chrono::seconds(1);
// Until what is known of each kind was checked.
constexpr Duration kLookWhenSure = std::chrono::milliseconds(200);

std::string ManagedSelector() {
  return std::string(cluster::kLabelManagedBy) + "=" + std::string(cluster::kManagedByValue);
}

}  // namespace

Controller::Controller(kube::Client& client, kube::EventRecorder& events, Clock& clock,
                       Metrics& metrics, ControllerOptions options)
    : client_(client),
      clock_(clock),
      metrics_(metrics),
      options_(std::move(options)),
      queue_(clock, metrics.ForQueue()),
      store_([this](const std::string& key) { queue_.Add(key); }, clock),
      fan_out_(options_.helpers),
      applier_(client, events, store_, fan_out_, clock,
               {.on_status =
                    [this](const api::TrainingJob& job, const api::JobStatus& before,
                           const api::JobStatus& after) { metrics_.OnStatus(job, before, after); },
                .on_answer = [this] { Moved(); }}),
      puller_(store_, clock, NewHttpProgressNetwork(), reconcile::ParseProgress,
              [this](const std::string& key) { queue_.Add(key); }) {
  const auto watch = [&](kube::Resource resource, const std::string& ns,
                         const std::string& selector, bool needed, Sink sink) {
    // What was listed anew may come before the news that a job never was: each is asked for first.
    sink.end_list = [this, end_list = sink.end_list](int64_t version, bool anew) {
      if (anew) {
        const std::vector<std::string> jobs = store_.JobKeys();
        MutexLock lock(mutex_);
        read_anew_.insert(jobs.begin(), jobs.end());
      }
      end_list(version, anew);
    };
    sink.in_doubt = [this, self = informers_.size()] {
      for (size_t i = 0; i < informers_.size(); ++i) {
        if (i != self) informers_[i]->Doubt();
      }
    };
    informers_.push_back(std::make_unique<Informer>(client_, clock_,
                                                    InformerOptions{.resource = std::move(resource),
                                                                    .ns = ns,
                                                                    .label_selector = selector,
                                                                    .needed = needed},
                                                    std::move(sink)));
  };
  const bool queues = options_.settings.queue == reconcile::QueueManager::kKueue;
  if (queues) {
    watch(ResourceFlavors(), "", "", true, store_.FlavorSink());
    watch(WorkloadPriorityClasses(), "", "", true, store_.WorkloadPrioritySink());
    watch(PriorityClasses(), "", "", true, store_.PodPrioritySink());
  }
  // Children before jobs: a job that is looked at must not seem to have none.
  for (const std::string& ns : Watched()) {
    watch(kube::Pods(), ns, ManagedSelector(), true, store_.PodSink(ns));
    watch(kube::Services(), ns, ManagedSelector(), true, store_.ServiceSink(ns));
    if (const auto groups = PodGroups(options_.settings.gang)) {
      watch(*groups, ns, ManagedSelector(), true, store_.PodGroupSink(ns));
    }
    if (queues) watch(Workloads(), ns, ManagedSelector(), true, store_.WorkloadSink(ns));
    watch(TrainingJobs(), ns, "", true, store_.JobSink(ns));
  }
  if (options_.watch_nodes) watch(kube::Nodes(), "", "", false, store_.NodeSink());
  metrics_.SetGauges({.jobs_by_phase = [this] { return store_.Phases(); },
                      .rank_steps = [this] { return store_.Ranks(); },
                      .figures = [this] { return store_.Figures(); },
                      .pods = [this] { return store_.pods(); },
                      .queue_depth = [this] { return queue_.depth(); },
                      .unfinished = [this] { return queue_.unfinished(); },
                      .longest_running = [this] { return queue_.longest_running(); }});
}

Controller::~Controller() { metrics_.SetGauges({}); }

std::vector<std::string> Controller::Watched() const {
  if (options_.namespaces.empty()) return {""};
  return {options_.namespaces.begin(), options_.namespaces.end()};
}

Status Controller::Ready() const {
  std::vector<std::string> missing;
  for (const auto& informer : informers_) {
    if (!informer->needed() || informer->synced()) continue;
    missing.push_back(informer->kind() + (informer->ns().empty() ? "" : " in " + informer->ns()));
  }
  if (missing.empty()) return OkStatus();
  return Unavailable("lists are not in yet: " + Join(missing, ", "));
}

bool Controller::Synced(std::string_view ns) const {
  for (const auto& informer : informers_) {
    const bool concerns = informer->ns().empty() || informer->ns() == ns;
    if (concerns && informer->needed() && !informer->synced()) return false;
  }
  return true;
}

bool Controller::sure() const {
  for (const auto& informer : informers_) {
    if (informer->needed() && !informer->sure()) return false;
  }
  return true;
}

bool Controller::idle() const { return queue_.idle(); }

Status Controller::Healthy() const {
  const Duration waited = std::max(queue_.longest_waiting(), queue_.longest_running());
  const Duration still = clock_.Monotonic() - Duration(moved_at_.load());
  if (std::min(waited, still) < kStands) return OkStatus();
  return Unavailable(
      "expected work to move on, got: none for " +
      std::to_string(
          std::chrono::duration_cast<std::chrono::seconds>(std::min(waited, still)).count()) +
      " s");
}

void Controller::Run(std::stop_token stop) {
  began_ = clock_.Now();
  std::vector<std::jthread> watchers, workers;
  for (const auto& informer : informers_) {
    watchers.emplace_back(
        [informer = informer.get(), stop](std::stop_token) { informer->Run(stop); });
  }
  const std::vector<std::string> watched = Watched();
  const auto in = [this](const std::string& ns) { return Synced(ns); };
  while (!std::any_of(watched.begin(), watched.end(), in) &&
         clock_.SleepFor(std::chrono::milliseconds(5), stop)) {
  }
  if (!stop.stop_requested()) {
    LogInfo("watching", {{"namespace", options_.namespaces.empty() ? "all" : Join(watched, ",")},
                         {"jobs", std::to_string(store_.jobs())},
                         {"pods", std::to_string(store_.pods())}});
    for (int i = 0; i < options_.threads; ++i) workers.emplace_back([this, stop] { Work(stop); });
    if (options_.pull_progress) workers.emplace_back([this, stop] { puller_.Run(stop); });
    Rest(stop);
  }
  // The threads end on `stop`; joining them is the wait.
}

void Controller::Rest(std::stop_token stop) {
  RestWatch watch;
  while (clock_.SleepFor(std::chrono::seconds(1), stop)) {
    if (watch.RestsNow(looks_, queue_.idle()) && options_.on_rest) options_.on_rest();
  }
}

void Controller::Work(std::stop_token stop) {
  while (const auto key = queue_.Take(stop)) {
    const Duration start = clock_.Monotonic();
    Moved();
    const Status status = LookAt(*key, stop);
    Moved();
    ++looks_;
    metrics_.OnReconcile(!status.ok(), clock_.Monotonic() - start);
    queue_.Done(*key);
  }
}

// Brings the store up to a status write of ours whose fate is unknown, or to a server that may have
// been set back. Does nothing for other jobs.
Status Controller::ReadAnew(const std::string& key, std::stop_token stop) {
  {
    MutexLock lock(mutex_);
    if (!read_anew_.contains(key)) return OkStatus();
  }
  const size_t slash = key.find('/');
  // Of whom the answer tells: by the time it is here, another job may have the name.
  const auto asked = store_.View(key);
  const Result<std::string> job =
      client_.Get(TrainingJobs(), key.substr(0, slash), key.substr(slash + 1), {.stop = stop});
  if (!job.ok() && job.status().code() != StatusCode::kNotFound) return job.status();
  if (job.ok()) {
    store_.WroteJob(*job);
  } else if (asked) {
    store_.DeletedJob(key.substr(0, slash), key.substr(slash + 1), asked->job->metadata.uid);
  }
  MutexLock lock(mutex_);
  read_anew_.erase(key);
  return OkStatus();
}

void Controller::ForgetTries(const std::string& key) {
  queue_.Forget(key);
  puller_.Forget(key);
  applier_.Forget(key);
}

void Controller::Forget(const std::string& key) {
  ForgetTries(key);
  MutexLock lock(mutex_);
  memory_.erase(key);
  read_anew_.erase(key);
}

void Controller::Recall(const std::string& key, const JobView& view, reconcile::Observed* seen) {
  const std::string& uid = view.job->metadata.uid;
  bool other = false;
  {
    MutexLock lock(mutex_);
    Memory& memory = memory_[key];
    other = !memory.uid.empty() && memory.uid != uid;
    if (memory.uid != uid) memory = {.uid = uid};
    if (memory.refused) {
      seen->refused = memory.refused->write;
      // What was in the way may have gone.
      if (memory.refused->change != view.change) {
        seen->refused->retry_at = memory.refused->at + kSoonest;
      }
    }
    seen->lost_child = memory.lost_child;
    seen->mounts_asked = memory.mounts_asked;
  }
  // No look came between the end of the job of that name and this one's beginning.
  if (other) ForgetTries(key);
  seen->progress = puller_.Last(key);
}

Status Controller::LookAt(const std::string& key, std::stop_token stop) {
  if (!Synced(std::string_view(key).substr(0, key.find('/')))) {
    queue_.AddAfter(key, kSoonest);
    return OkStatus();
  }
  // A pod that ended, as a server knew it that was set back since, would end the job for good.
  if (!sure()) {
    queue_.AddAfter(key, kLookWhenSure);
    return OkStatus();
  }
  if (const Status read = ReadAnew(key, stop); !read.ok()) {
    queue_.AddRateLimited(key);
    return read;
  }
  const std::optional<Duration> pod_event_at = store_.TakePodEvent(key);
  auto view = store_.View(key);
  if (!view) {
    Forget(key);
    return OkStatus();
  }
  if (FindMissingNodes(key, *view, stop)) {
    view = store_.View(key);
    if (!view) return OkStatus();  // its end woke it once more
  }
  reconcile::Observed seen = view->Observe();
  seen.settings = options_.settings;
  seen.watched_since = began_;
  Recall(key, *view, &seen);
  const TimePoint now = clock_.Now();
  reconcile::Outcome outcome;
  try {
    outcome = reconcile::Reconcile(*view->job, seen, now);
  } catch (const std::exception& e) {
    // A bug of ours must not take the other jobs down: this one is set aside until it changes.
    LogError("cannot decide", {{"job", key}, {"error", e.what()}});
    return Internal(e.what());
  }
  if (options_.pull_progress && !api::IsFinished(view->job->status)) puller_.Follow(key);

  if (outcome.empty()) {
    Log(LogLevel::kDebug, "nothing to do", {{"job", key}, {"why", outcome.rests}});
  }
  const Applied applied =
      applier_.Apply(*view->job, outcome, options_.settings, view->change, stop);
  if (pod_event_at) {
    if (applied.told) {
      metrics_.OnPodEventTold(clock_.Monotonic() - *pod_event_at);
    } else if (outcome.tells_later || !applied.status.ok()) {
      store_.ReturnPodEvent(key, *pod_event_at);
    }
  }
  bool new_refusal = false, lifted = false;
  {
    MutexLock lock(mutex_);
    if (applied.read_job_anew) read_anew_.insert(key);
    Memory& memory = memory_[key];
    if (applied.lost_child) memory.lost_child = applied.lost_child;
    if (applied.status.ok()) {
      memory.lost_child.reset();
      if (reconcile::AsksForMounts(outcome)) memory.mounts_asked = now;
    }
    if (applied.refused) {
      Refusal refusal{.write = *applied.refused, .at = clock_.Now(), .change = view->change};
      new_refusal = !memory.refused || memory.refused->write.what != refusal.write.what ||
                    memory.refused->write.message != refusal.write.message;
      refusal.write.retry_at = refusal.at + applied.look_again_in.value_or(kSoonest);
      memory.refused = std::move(refusal);
    } else if (applied.status.ok() && memory.refused &&
               (!seen.refused->retry_at || now >= *seen.refused->retry_at)) {
      // Whatever is still wanted was asked for once more, and got through.
      memory.refused.reset();
      lifted = true;
    }
  }

  if (applied.look_again_in) queue_.AddAfter(key, *applied.look_again_in);
  switch (applied.status.code()) {
    case StatusCode::kOk:
      if (outcome.wake_at) queue_.AddAfter(key, *outcome.wake_at - clock_.Now());
      queue_.Forget(key);
      // What our own writes changed is in the store and has put the job on the queue already; what
      // they did not change would only be asked for again.
      if (lifted) queue_.Add(key);
      return OkStatus();
    case StatusCode::kCancelled:
      return OkStatus();
    case StatusCode::kNotFound:
    case StatusCode::kAborted:
      // Decided on old knowledge (a conflict), or the job is gone: the watch will bring what
      // changed; ask again in case it has done so already.
      queue_.AddRateLimited(key);
      return OkStatus();
    default:
      break;
  }
  if (new_refusal) queue_.Add(key);  // so that the job's status says why
  if (!applied.look_again_in) queue_.AddRateLimited(key);
  return applied.status;
}

bool Controller::FindMissingNodes(const std::string& key, const JobView& view,
                                  std::stop_token stop) {
  bool lost = false;
  for (const std::string& name : view.MissingNodes()) {
    bool there = false;
    const Status asked =
        client_
            .List(
                kube::Nodes(), {.field_selector = "metadata.name=" + name},
                [&](std::string_view) { there = true; }, [&] { there = false; }, {.stop = stop})
            .status();
    if (asked.ok() && !there) {
      store_.LostNode(view, name);
      LogInfo("a node is gone", {{"job", key}, {"node", name}});
      lost = true;
      continue;
    }
    if (!asked.ok()) {
      LogWarning("cannot look for a node", {{"node", name}, {"error", asked.ToString()}});
    }
    queue_.AddAfter(key, kLookForNodeAgain);
  }
  return lost;
}

}  // namespace meshtrain::control
