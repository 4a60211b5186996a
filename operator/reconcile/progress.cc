#include "operator/reconcile/progress.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "operator/reconcile/policy.h"
#include "runtime/base/time_text.h"

namespace meshtrain::reconcile {
namespace {

using Json = nlohmann::json;
using std::chrono::seconds;

// How much a new step time moves the usual one.
constexpr double kNewShare = 0.3;
constexpr double kStallFactor = 10;
constexpr double kLeastStallSeconds = 60;
// A process is a straggler from so many times the usual time of a step on, until it is below the
// other; times too short to matter make none.
constexpr double kStragglerFactor = 2;
constexpr double kEvenFactor = 1.5;
constexpr double kLeastStraggle = 0.01;
constexpr size_t kMostRanks = 4096;
// Of anything that is counted here; a double holds every whole number up to there.
constexpr double kMostCounted = 9e15;

std::optional<double> Number(const Json& object, const char* name) {
  const auto found = object.find(name);
  if (found == object.end() || !found->is_number()) return std::nullopt;
  const double value = found->get<double>();
  return std::isfinite(value) ? std::optional(value) : std::nullopt;
}
std::optional<int64_t> Whole(const Json& object, const char* name) {
  const auto value = Number(object, name);
  if (!value || *value < 0 || *value > kMostCounted) return std::nullopt;
  return static_cast<int64_t>(*value);
}
std::string Text(const Json& object, const char* name, size_t most) {
  const auto found = object.find(name);
  if (found == object.end() || !found->is_string()) return {};
  return Tidy(found->get_ref<const std::string&>(), most);
}

TimePoint Floor(TimePoint time) { return std::chrono::floor<seconds>(time); }

// Six digits: printer columns show what they are given, and the worker's own records have them all.
std::optional<double> ForPeople(std::optional<double> value) {
  if (!value) return value;
  char text[32];
  std::snprintf(text, sizeof text, "%.6g", *value);
  return std::strtod(text, nullptr);
}

// What is newest: of a leader that has ended its last words, else the answer of /progress, else the
// last words of its container before.
std::optional<ProgressSeen> Newest(const View& view) {
  const auto& answer = view.seen.progress;
  const PodSeen* leader = view.Ours(api::Leader(view.job.spec));
  if (leader == nullptr || leader->termination_message.empty()) return answer;
  if (answer && !leader->exit_code) return answer;
  auto last = ParseProgress(leader->termination_message, view.now);
  return last ? last : answer;
}

// Of the processes' own times in their last steps.
std::optional<RankTimes> ReadRanks(const Json& json) {
  const auto found = json.find("rankStepSeconds");
  if (found == json.end() || !found->is_array() || found->size() > kMostRanks) return std::nullopt;
  std::vector<double> times;
  RankTimes out;
  for (size_t rank = 0; rank < found->size(); ++rank) {
    const Json& value = (*found)[rank];
    const double seconds = value.is_number() ? value.get<double>() : 0;
    if (!std::isfinite(seconds) || seconds <= 0) continue;  // has not ended a step
    times.push_back(seconds);
    if (seconds > out.seconds) {
      out.slowest = static_cast<int32_t>(rank);
      out.seconds = seconds;
    }
  }
  if (times.size() < 2) return std::nullopt;
  // The lower one of two in the middle: of two processes the other.
  const auto middle = times.begin() + static_cast<int64_t>((times.size() - 1) / 2);
  std::nth_element(times.begin(), middle, times.end());
  out.median = *middle;
  return out;
}

// Ranks are numbered through the roles (contract.h): the chief first, then the workers.
TaskId TaskOfRank(const api::Spec& spec, int32_t rank) {
  const int32_t chiefs = api::Replicas(spec, Role::kChief);
  return rank < chiefs ? TaskId{Role::kChief, rank} : TaskId{Role::kWorker, rank - chiefs};
}

}  // namespace

std::optional<ProgressSeen> ParseProgress(std::string_view text, TimePoint observed_at) {
  if (text.empty() || text.front() != '{') return std::nullopt;
  const Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) return std::nullopt;
  const auto step = Whole(json, "step");
  if (!step) return std::nullopt;
  ProgressSeen out;
  out.progress = {.step = *step,
                  .total_steps = Whole(json, "totalSteps"),
                  .epoch = Number(json, "epoch"),
                  .loss = ForPeople(Number(json, "loss")),
                  .accuracy = ForPeople(Number(json, "accuracy")),
                  .examples_per_second = ForPeople(Number(json, "examplesPerSecond")),
                  .eta_seconds = Whole(json, "etaSeconds"),
                  .observed_at = observed_at};
  if (const auto plan = json.find("plan"); plan != json.end() && plan->is_object()) {
    out.plan = {.mesh = Text(*plan, "mesh", 256),
                .peak_bytes_per_device = Whole(*plan, "peakBytesPerDevice"),
                .collective_bytes_per_step = Whole(*plan, "collectiveBytesPerStep"),
                .hash = Text(*plan, "hash", 64)};
  }
  if (const auto saved = json.find("checkpoint"); saved != json.end() && saved->is_object()) {
    if (const auto at = Whole(*saved, "step")) {
      out.checkpoint = {.step = *at, .path = Text(*saved, "path", 512)};
    }
  }
  out.stopped_rank = Text(json, "stoppedRank", 64);
  out.ranks = ReadRanks(json);
  return out;
}

void ObserveProgress(const View& view, Draft* draft) {
  const auto newest = Newest(view);
  if (!newest) return;
  const auto& before = view.job.status.progress;
  api::ProgressStatus now = newest->progress;
  now.observed_at = Floor(now.observed_at);
  // An older answer than the one on record; but a record from the future is of an operator whose
  // clock was ahead.
  if (before && now.observed_at < before->observed_at && before->observed_at <= view.now) return;
  now.advanced_at = before ? before->advanced_at : now.observed_at;
  now.seconds_per_step = before ? before->seconds_per_step : std::nullopt;
  if (before && now.step > before->step) {
    const double spent =
        std::chrono::duration<double>(now.observed_at - before->advanced_at).count();
    const double each = spent / static_cast<double>(now.step - before->step);
    // Time that a restart took is not the job's usual step time.
    if (spent > 0 && view.Is(ConditionType::kRunning) &&
        view.job.status.conditions.at(ConditionType::kRunning).last_transition <=
            before->advanced_at) {
      const double old = now.seconds_per_step.value_or(each);
      now.seconds_per_step = std::round((old + kNewShare * (each - old)) * 1e6) / 1e6;
    }
  }
  if (before && now.step < before->step) {
    int64_t& lost = draft->next.goodput.lost_steps;
    lost = std::min(lost + before->step - now.step, static_cast<int64_t>(kMostCounted));
  }
  if (before && now.step != before->step) now.advanced_at = now.observed_at;
  if (!now.total_steps && before) now.total_steps = before->total_steps;
  if (!now.eta_seconds && now.total_steps && now.seconds_per_step) {
    const auto left = static_cast<double>(std::max<int64_t>(0, *now.total_steps - now.step));
    now.eta_seconds = static_cast<int64_t>(std::min(left * *now.seconds_per_step, kMostCounted));
  }
  if (newest->ranks) {
    now.slowest = {.replica = cluster::ToString(TaskOfRank(view.job.spec, newest->ranks->slowest)),
                   .seconds = *ForPeople(newest->ranks->seconds),
                   .median_seconds = *ForPeople(newest->ranks->median)};
  }
  // A second look at the same state is no news.
  api::ProgressStatus same = now;
  if (before) same.observed_at = before->observed_at;
  if (!before || same != *before) draft->next.progress = now;
  if (newest->plan) draft->next.plan = newest->plan;
  if (newest->checkpoint) draft->next.checkpoint = newest->checkpoint;
}

void WatchForStall(const View& view, Draft* draft) {
  api::JobStatus& next = draft->next;
  const auto& deadline = view.job.spec.run_policy.progress_deadline_seconds;
  const auto calm = [&](const char* why) {
    if (view.Is(ConditionType::kStalled)) {
      draft->Set(ConditionType::kStalled, false, Reason::kMoving, why);
    };
  };
  if (!api::IsTrue(next, ConditionType::kRunning)) return calm("the job is not running");
  if (!next.progress && !deadline) return;
  double limit = kLeastStallSeconds;
  if (deadline) {
    limit = static_cast<double>(*deadline);
  } else if (next.progress->seconds_per_step) {
    limit = std::max(limit, kStallFactor * *next.progress->seconds_per_step);
  } else {
    return calm("no usual step time is known");
  }
  if (next.progress && next.progress->total_steps &&
      next.progress->step >= *next.progress->total_steps) {
    return calm("all steps are done");
  }
  TimePoint since = next.conditions.at(ConditionType::kRunning).last_transition;
  if (next.progress) since = std::max(since, next.progress->advanced_at);
  const auto newest = Newest(view);
  if (newest && newest->standing_since) since = std::max(since, *newest->standing_since);
  if (view.seen.watched_since) since = std::max(since, *view.seen.watched_since);
  TimePoint due = since + BoundedSeconds(limit);
  // Of many jobs each is asked seldom, and moves on between two answers.
  if (newest && newest->next_answer && newest->progress.observed_at < due) {
    due = std::max(due, *newest->next_answer);
  }
  if (view.now < due) {
    draft->WakeAt(due);
    return calm("the step moves again");
  }
  std::string message =
      next.progress ? "step " + std::to_string(next.progress->step) : std::string("the first step");
  message += " has not moved on for " + std::to_string(static_cast<int64_t>(limit)) + " s or more";
  if (newest && !newest->stopped_rank.empty()) {
    message += "; " + newest->stopped_rank + " stopped first";
  }
  if (!view.Is(ConditionType::kStalled)) draft->Event(true, Reason::kJobStalled, message);
  draft->Set(ConditionType::kStalled, true, Reason::kNoProgress, message);
}

void WatchForStraggler(const View& view, Draft* draft) {
  const auto& progress = draft->next.progress;
  const bool is = view.Is(ConditionType::kStraggling);
  const bool runs = api::IsTrue(draft->next, ConditionType::kRunning);
  if (runs && progress && progress->slowest) {
    const api::Straggler& slowest = *progress->slowest;
    const double times = slowest.seconds / slowest.median_seconds;
    const bool matters = slowest.seconds - slowest.median_seconds >= kLeastStraggle;
    if (matters && times >= (is ? kEvenFactor : kStragglerFactor)) {
      char text[160];
      std::snprintf(text, sizeof text,
                    " takes %.3g s of its own for a step, the median of all is %.3g s",
                    slowest.seconds, slowest.median_seconds);
      const std::string message = slowest.replica + text;
      if (!is) draft->Event(true, Reason::kSlowReplica, message);
      draft->Set(ConditionType::kStraggling, true, Reason::kSlowReplica, message);
      return;
    }
  }
  if (is) {
    draft->Set(ConditionType::kStraggling, false, Reason::kEvenReplicas,
               runs ? "no process takes much longer than the others" : "the job is not running");
  }
}

}  // namespace meshtrain::reconcile
