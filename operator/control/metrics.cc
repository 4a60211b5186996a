#include "operator/control/metrics.h"

#include <prometheus/counter.h>
#include <prometheus/gauge.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>
#include <prometheus/text_serializer.h>
#include <sys/resource.h>

#include <algorithm>
#include <cstdio>
#include <set>
#include <tuple>

#include "operator/api/phase.h"
#include "operator/api/reason.h"
#include "runtime/base/memory.h"
#include "runtime/base/mutex.h"
#include "runtime/base/text.h"

namespace meshtrain::control {
namespace {

using prometheus::Histogram;

constexpr char kQueueName[] = "trainingjob";

double Seconds(Duration d) { return std::chrono::duration<double>(d).count(); }

// client-go's buckets: 10 ns .. 10 s by ten for the queue, and its own list for requests.
const Histogram::BucketBoundaries kQueueBuckets = {1e-8, 1e-7, 1e-6, 1e-5, 1e-4, 1e-3,
                                                   1e-2, 1e-1, 1,    10,   100,  1000};
const Histogram::BucketBoundaries kRequestBuckets = {0.005, 0.025, 0.1, 0.25, 0.5, 1,
                                                     2,     4,     8,   15,   30,  60};
const Histogram::BucketBoundaries kWorkBuckets = {0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25,
                                                  0.5,   1,     2.5,  5,     10,   30,  60};
// A phase lasts seconds or weeks.
const Histogram::BucketBoundaries kPhaseBuckets = {1,    5,     15,    60,     300,    900,
                                                   3600, 14400, 86400, 259200, 604800, 2592000};

constexpr api::ConditionType kConditions[] = {
    api::ConditionType::kCreated,    api::ConditionType::kRunning,
    api::ConditionType::kRestarting, api::ConditionType::kSuspended,
    api::ConditionType::kSucceeded,  api::ConditionType::kFailed,
    api::ConditionType::kWaiting,    api::ConditionType::kStalled,
    api::ConditionType::kStraggling};

std::string PhaseOf(const api::JobStatus& status) {
  return status.phase.empty() ? api::kNew : status.phase;
}

// The jobs whose ranks are shown, one entry per job.
std::vector<RankSteps> Shown(std::vector<RankSteps> all) {
  const auto ratio = [](const RankSteps& job) { return job.seconds / job.median; };
  const auto further = [&](const RankSteps& a, const RankSteps& b) {
    return std::tuple(b.straggles, ratio(b), a.ns, a.job) <
           std::tuple(a.straggles, ratio(a), b.ns, b.job);
  };
  if (all.size() > Metrics::kMostShown) {
    std::nth_element(all.begin(), all.begin() + Metrics::kMostShown, all.end(), further);
    all.resize(Metrics::kMostShown);
  }
  return all;
}

std::vector<JobFigures> Shown(std::vector<JobFigures> all) {
  const auto before = [](const JobFigures& a, const JobFigures& b) {
    return std::tuple(b.runs, b.advanced, a.ns, a.job) <
           std::tuple(a.runs, a.advanced, b.ns, b.job);
  };
  if (all.size() > Metrics::kMostShown) {
    std::nth_element(all.begin(), all.begin() + Metrics::kMostShown, all.end(), before);
    all.resize(Metrics::kMostShown);
  }
  return all;
}

// When the phase of `status` began: when the condition that it is named after came true, or the
// last one that goes before it ceased to be; without any, with the job. What conditions after it
// do, and those that no phase is named after, is no change of the phase.
TimePoint PhaseBegan(const api::TrainingJob& job, const api::JobStatus& status) {
  TimePoint began = job.metadata.created.value_or(TimePoint());
  for (const api::ConditionType type : api::kPhases) {
    const auto found = status.conditions.find(type);
    if (found == status.conditions.end()) continue;
    began = std::max(began, found->second.last_transition);
    if (found->second.status) break;
  }
  return began;
}

}  // namespace

struct Metrics::Impl {
  prometheus::Registry registry;
  std::string host;

  prometheus::Family<prometheus::Counter>& Counter(const char* name, const char* help) {
    return prometheus::BuildCounter().Name(name).Help(help).Register(registry);
  }
  prometheus::Family<prometheus::Gauge>& Gauge(const char* name, const char* help) {
    return prometheus::BuildGauge().Name(name).Help(help).Register(registry);
  }
  prometheus::Family<Histogram>& Histograms(const char* name, const char* help) {
    return prometheus::BuildHistogram().Name(name).Help(help).Register(registry);
  }

  prometheus::Family<prometheus::Counter>& requests =
      Counter("rest_client_requests_total",
              "Number of HTTP requests, partitioned by status code, method, and host.");
  prometheus::Family<Histogram>& request_seconds =
      Histograms("rest_client_request_duration_seconds",
                 "Request latency in seconds. Broken down by verb, and host.");
  prometheus::Family<Histogram>& limiter_seconds =
      Histograms("rest_client_rate_limiter_duration_seconds",
                 "Client side rate limiter latency in seconds. Broken down by verb, and host.");

  const std::map<std::string, std::string> queue_labels = {{"name", kQueueName}};
  prometheus::Counter& adds =
      Counter("workqueue_adds_total", "Total number of adds handled by workqueue")
          .Add(queue_labels);
  prometheus::Counter& retries =
      Counter("workqueue_retries_total", "Total number of retries handled by workqueue")
          .Add(queue_labels);
  prometheus::Gauge& depth =
      Gauge("workqueue_depth", "Current depth of workqueue").Add(queue_labels);
  prometheus::Gauge& unfinished = Gauge("workqueue_unfinished_work_seconds",
                                        "How many seconds of work has been done that is in "
                                        "progress and hasn't been observed by work_duration.")
                                      .Add(queue_labels);
  prometheus::Gauge& longest =
      Gauge("workqueue_longest_running_processor_seconds",
            "How many seconds has the longest running processor for workqueue been running.")
          .Add(queue_labels);
  Histogram& waited =
      Histograms("workqueue_queue_duration_seconds",
                 "How long in seconds an item stays in workqueue before being requested")
          .Add(queue_labels, kQueueBuckets);
  Histogram& worked = Histograms("workqueue_work_duration_seconds",
                                 "How long in seconds processing an item from workqueue takes.")
                          .Add(queue_labels, kQueueBuckets);

  prometheus::Family<prometheus::Counter>& reconciles =
      Counter("meshtrain_operator_reconcile_total", "Looks at a job, by result.");
  Histogram& reconcile_seconds = Histograms("meshtrain_operator_reconcile_seconds",
                                            "Time of a look at a job, with the writes it made.")
                                     .Add({}, kWorkBuckets);
  prometheus::Family<prometheus::Counter>& transitions = Counter(
      "meshtrain_jobs_condition_total", "Jobs for which a condition became true, by condition.");
  prometheus::Family<prometheus::Counter>& reasons =
      Counter("meshtrain_job_reasons_total",
              "Conditions that became true, or were and got another reason, by that reason.");
  prometheus::Family<prometheus::Counter>& restarts =
      Counter("meshtrain_restarts_total", "Replicas made again or restarted in place.");
  prometheus::Family<Histogram>& phase_seconds = Histograms(
      "meshtrain_job_phase_seconds", "How long jobs were in a phase that they have left.");
  Histogram& pod_event_seconds =
      Histograms("meshtrain_operator_pod_event_to_status_seconds",
                 "From the arrival of a pod's event to the job's status that tells of it.")
          .Add({}, kWorkBuckets);
  prometheus::Family<prometheus::Gauge>& jobs =
      Gauge("meshtrain_jobs", "Jobs by namespace and phase.");
  prometheus::Family<prometheus::Gauge>& rank_steps =
      Gauge("meshtrain_job_rank_step_seconds",
            "What the median rank and the slowest rank of a running job take for a step, without "
            "waiting for others.");
  prometheus::Family<prometheus::Gauge>& stragglers =
      Gauge("meshtrain_job_straggler_step_seconds",
            "What a replica that is far slower than the others takes for a step. Absent where none "
            "is.");
  // By the member of JobFigures that each shows.
  std::map<std::string, prometheus::Family<prometheus::Gauge>*> figures = {
      {"step", &Gauge("meshtrain_job_step", "Steps that a job has done.")},
      {"total_steps", &Gauge("meshtrain_job_steps_wanted", "Steps of a job in all.")},
      {"checkpoint_step",
       &Gauge("meshtrain_job_checkpoint_step", "Step of a job's newest whole checkpoint.")},
      {"loss", &Gauge("meshtrain_job_loss", "The last loss of a job.")},
      {"accuracy", &Gauge("meshtrain_job_accuracy", "The last accuracy of a job.")},
      {"examples_per_second",
       &Gauge("meshtrain_job_examples_per_second", "Examples per second over all processes.")},
      {"restarts", &Gauge("meshtrain_job_restarts", "Restarts of a job's processes.")},
      {"processes", &Gauge("meshtrain_job_processes", "Processes that a job wants.")}};
  prometheus::Gauge& pods = Gauge("meshtrain_pods", "Pods of jobs, as last seen.").Add({});
  prometheus::Family<prometheus::Gauge>& leader =
      Gauge("leader_election_master_status",
            "Gauge of if the reporting system is master of the relevant lease, 0 indicates backup, "
            "1 indicates master.");
  prometheus::Gauge& resident =
      Gauge("process_resident_memory_bytes", "Resident memory size in bytes.").Add({});
  prometheus::Counter& cpu =
      Counter("process_cpu_seconds_total", "Total user and system CPU time spent in seconds.")
          .Add({});

  Mutex mutex;
  Gauges gauges MT_GUARDED_BY(mutex);
  std::map<std::string, std::map<std::string, prometheus::Gauge*>> jobs_shown
      MT_GUARDED_BY(mutex);                            // namespace -> phase
  std::set<std::string> counted MT_GUARDED_BY(mutex);  // namespaces whose counters are there

  // Series of a family, by their labels.
  using Series = std::map<std::map<std::string, std::string>, prometheus::Gauge*>;
  Series rank_steps_shown MT_GUARDED_BY(mutex), stragglers_shown MT_GUARDED_BY(mutex);
  std::map<std::string, Series> figures_shown MT_GUARDED_BY(mutex);

  // Makes the series of `family` those of `values`: what is there no more goes.
  static void Replace(prometheus::Family<prometheus::Gauge>& family, Series& shown,
                      const std::map<std::map<std::string, std::string>, double>& values) {
    std::erase_if(shown, [&](const auto& series) {
      const bool gone = !values.contains(series.first);
      if (gone) family.Remove(series.second);
      return gone;
    });
    for (const auto& [labels, value] : values) {
      prometheus::Gauge*& gauge = shown[labels];
      if (gauge == nullptr) gauge = &family.Add(labels);
      gauge->Set(value);
    }
  }

  void ShowRanks(std::vector<RankSteps> all) MT_REQUIRES(mutex) {
    std::map<std::map<std::string, std::string>, double> steps, late;
    for (const RankSteps& job : Shown(std::move(all))) {
      const auto labels = [&](const char* label, const std::string& value) {
        return std::map<std::string, std::string>{
            {"namespace", job.ns}, {"job", job.job}, {label, value}};
      };
      steps[labels("rank", "median")] = job.median;
      steps[labels("rank", "slowest")] = job.seconds;
      if (job.straggles) late[labels("replica", job.slowest)] = job.seconds;
    }
    Replace(rank_steps, rank_steps_shown, steps);
    Replace(stragglers, stragglers_shown, late);
  }

  void ShowFigures(std::vector<JobFigures> all) MT_REQUIRES(mutex) {
    std::map<std::string, std::map<std::map<std::string, std::string>, double>> values;
    for (const JobFigures& job : Shown(std::move(all))) {
      const std::map<std::string, std::string> labels = {{"namespace", job.ns}, {"job", job.job}};
      const auto show = [&](const char* what, std::optional<double> value) {
        if (value) values[what][labels] = *value;
      };
      const auto whole = [](std::optional<int64_t> value) {
        return value ? std::optional<double>(static_cast<double>(*value)) : std::nullopt;
      };
      show("step", whole(job.step));
      show("total_steps", whole(job.total_steps));
      show("checkpoint_step", whole(job.checkpoint_step));
      show("loss", job.loss);
      show("accuracy", job.accuracy);
      show("examples_per_second", job.runs ? job.examples_per_second : std::nullopt);
      show("restarts", static_cast<double>(job.restarts));
      show("processes", static_cast<double>(job.processes));
    }
    for (const auto& [what, family] : figures) {
      Replace(*family, figures_shown[what], values[what]);
    }
  }

  // Counters that stand at 0 from the first sight of a namespace can be alerted on.
  void ShowCounters(const std::string& ns) MT_REQUIRES(mutex) {
    if (!counted.insert(ns).second) return;
    for (const auto type : kConditions) {
      transitions.Add({{"condition", std::string(api::ConditionName(type))}, {"namespace", ns}});
    }
    restarts.Add({{"namespace", ns}});
    for (const api::ReasonInfo& info : api::Reasons()) {
      if (info.reason < api::Reason::kNameTaken || info.reason > api::Reason::kOtherScheduler) {
        continue;  // nothing that a job waits for
      }
      reasons.Add({{"condition", std::string(api::ConditionName(api::ConditionType::kWaiting))},
                   {"reason", std::string(info.name)},
                   {"namespace", ns}});
    }
  }
};

Metrics::Metrics(std::string api_host) : impl_(std::make_unique<Impl>()) {
  impl_->host = std::move(api_host);
  for (const char* result : {"success", "error"}) impl_->reconciles.Add({{"result", result}});
}

Metrics::~Metrics() = default;

void Metrics::OnRequest(std::string_view verb, std::string_view code, Duration took) {
  impl_->requests
      .Add({{"code", std::string(code)},
            {"method", verb == "WATCH" ? "GET" : std::string(verb)},
            {"host", impl_->host}})
      .Increment();
  // A watch lasts as long as its server lets it; that is no latency.
  if (verb == "WATCH") return;
  impl_->request_seconds.Add({{"verb", std::string(verb)}, {"host", impl_->host}}, kRequestBuckets)
      .Observe(Seconds(took));
}

void Metrics::OnWait(std::string_view verb, Duration waited) {
  impl_->limiter_seconds.Add({{"verb", std::string(verb)}, {"host", impl_->host}}, kRequestBuckets)
      .Observe(Seconds(waited));
}

QueueObserver Metrics::ForQueue() {
  Impl* impl = impl_.get();
  return {.added = [impl] { impl->adds.Increment(); },
          .retried = [impl] { impl->retries.Increment(); },
          .taken = [impl](Duration waited) { impl->waited.Observe(Seconds(waited)); },
          .done = [impl](Duration worked) { impl->worked.Observe(Seconds(worked)); }};
}

void Metrics::OnReconcile(bool failed, Duration took) {
  impl_->reconciles.Add({{"result", failed ? "error" : "success"}}).Increment();
  impl_->reconcile_seconds.Observe(Seconds(took));
}

void Metrics::OnStatus(const api::TrainingJob& job, const api::JobStatus& before,
                       const api::JobStatus& after) {
  const std::string& ns = job.metadata.namespace_name;
  {
    MutexLock lock(impl_->mutex);
    impl_->ShowCounters(ns);
  }
  for (const auto& [type, condition] : after.conditions) {
    if (!condition.status) continue;
    const std::string name(api::ConditionName(type));
    const bool was = api::IsTrue(before, type);
    if (!was) impl_->transitions.Add({{"condition", name}, {"namespace", ns}}).Increment();
    const bool same = was && before.conditions.at(type).reason == condition.reason;
    // A closed set: another operator may have left a word of its own.
    if (same || !api::ParseReason(condition.reason)) continue;
    impl_->reasons.Add({{"condition", name}, {"reason", condition.reason}, {"namespace", ns}})
        .Increment();
  }
  if (after.restarts > before.restarts) {
    impl_->restarts.Add({{"namespace", ns}}).Increment(after.restarts - before.restarts);
  }
  const TimePoint began = PhaseBegan(job, before);
  if (PhaseOf(before) != PhaseOf(after) && began != TimePoint()) {
    // One clock's stamps, but for the job's own, which another clock made.
    const Duration lasted = std::max(PhaseBegan(job, after) - began, Duration(0));
    impl_->phase_seconds.Add({{"namespace", ns}, {"phase", PhaseOf(before)}}, kPhaseBuckets)
        .Observe(Seconds(lasted));
  }
}

void Metrics::OnPodEventTold(Duration took) { impl_->pod_event_seconds.Observe(Seconds(took)); }

void Metrics::SetLeader(const std::string& lease, bool leading) {
  impl_->leader.Add({{"name", lease}}).Set(leading ? 1 : 0);
}

void Metrics::SetGauges(Gauges gauges) {
  MutexLock lock(impl_->mutex);
  impl_->gauges = std::move(gauges);
}

std::string Metrics::Text() {
  {
    // Held during the calls, so that after SetGauges({}) none of them runs any more.
    Impl& impl = *impl_;
    MutexLock lock(impl.mutex);
    if (impl.gauges.jobs_by_phase) {
      const auto counts = impl.gauges.jobs_by_phase();
      for (const auto& [where, count] : counts) {
        impl.ShowCounters(where.first);
        auto& shown = impl.jobs_shown[where.first];
        if (!shown.empty()) continue;
        const auto show = [&](const std::string& phase) {
          shown[phase] = &impl.jobs.Add({{"namespace", where.first}, {"phase", phase}});
        };
        show(api::kNew);
        show(api::kPending);
        show(api::kQueued);
        for (const auto type : api::kPhases) show(std::string(api::ConditionName(type)));
      }
      // A namespace that has had jobs keeps its lines, at 0.
      for (auto& [ns, phases] : impl.jobs_shown) {
        for (auto& [phase, gauge] : phases) gauge->Set(0);
      }
      for (const auto& [where, count] : counts) {
        const std::string phase = where.second.empty() ? api::kNew : where.second;
        impl.jobs.Add({{"namespace", where.first}, {"phase", phase}})
            .Set(static_cast<double>(count));
      }
    }
    impl.ShowRanks(impl.gauges.rank_steps ? impl.gauges.rank_steps() : std::vector<RankSteps>());
    impl.ShowFigures(impl.gauges.figures ? impl.gauges.figures() : std::vector<JobFigures>());
    if (impl.gauges.pods) impl.pods.Set(static_cast<double>(impl.gauges.pods()));
    if (impl.gauges.queue_depth) impl.depth.Set(static_cast<double>(impl.gauges.queue_depth()));
    if (impl.gauges.unfinished) impl.unfinished.Set(Seconds(impl.gauges.unfinished()));
    if (impl.gauges.longest_running) impl.longest.Set(Seconds(impl.gauges.longest_running()));
  }
  if (const auto bytes = ResidentBytes()) impl_->resident.Set(static_cast<double>(*bytes));
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_usec) * 1e-6;
  };
  {
    MutexLock lock(impl_->mutex);  // two scrapes would count the same time twice
    const double used = seconds(usage.ru_utime) + seconds(usage.ru_stime);
    impl_->cpu.Increment(std::max(0.0, used - impl_->cpu.Value()));
  }
  return prometheus::TextSerializer().Serialize(impl_->registry.Collect());
}

}  // namespace meshtrain::control
