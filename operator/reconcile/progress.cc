#include "operator/reconcile/progress.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "operator/reconcile/policy.h"

namespace meshtrain::reconcile {
namespace {

using Json = nlohmann::json;
using std::chrono::seconds;

// How much a new step time moves the usual one.
constexpr double kNewShare = 0.3;
constexpr double kStallFactor = 10;
constexpr double kLeastStallSeconds = 60;

std::optional<double> Number(const Json& object, const char* name) {
  const auto found = object.find(name);
  if (found == object.end() || !found->is_number()) return std::nullopt;
  const double value = found->get<double>();
  return std::isfinite(value) ? std::optional(value) : std::nullopt;
}
std::optional<int64_t> Whole(const Json& object, const char* name) {
  const auto value = Number(object, name);
  if (!value || *value < 0 || *value > 9e15) return std::nullopt;
  return static_cast<int64_t>(*value);
}
std::string Text(const Json& object, const char* name, size_t most) {
  const auto found = object.find(name);
  if (found == object.end() || !found->is_string()) return {};
  return Tidy(found->get_ref<const std::string&>(), most);
}

TimePoint Floor(TimePoint time) { return std::chrono::floor<seconds>(time); }

// What is newest: the answer of /progress, or what the leader said when it ended.
// Six digits: printer columns show what they are given, and the worker's own records have them all.
std::optional<double> ForPeople(std::optional<double> value) {
  if (!value) return value;
  char text[32];
  std::snprintf(text, sizeof text, "%.6g", *value);
  return std::strtod(text, nullptr);
}

std::optional<ProgressSeen> Newest(const View& view) {
  std::optional<ProgressSeen> best = view.seen.progress;
  const PodSeen* leader = view.Ours(api::Leader(view.job.spec));
  if (leader != nullptr && !leader->termination_message.empty()) {
    const auto last =
        ParseProgress(leader->termination_message, leader->finished.value_or(view.now));
    if (last && (!best || last->progress.observed_at >= best->progress.observed_at)) best = last;
  }
  return best;
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
      out.checkpoint = {.step = *at, .path = Text(*saved, "path", 1024)};
    }
  }
  out.stopped_rank = Text(json, "stoppedRank", 64);
  return out;
}

void ObserveProgress(const View& view, Draft* draft) {
  const auto newest = Newest(view);
  if (!newest) return;
  const auto& before = view.job.status.progress;
  api::Progress now = newest->progress;
  now.observed_at = Floor(now.observed_at);
  if (before && now.observed_at < before->observed_at) {
    return;  // an answer from an operator that is no more
  }
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
  if (before && now.step < before->step) draft->next.goodput.lost_steps += before->step - now.step;
  if (before && now.step != before->step) now.advanced_at = now.observed_at;
  if (!now.total_steps && before) now.total_steps = before->total_steps;
  if (!now.eta_seconds && now.total_steps && now.seconds_per_step) {
    now.eta_seconds = static_cast<int64_t>(
        static_cast<double>(std::max<int64_t>(0, *now.total_steps - now.step)) *
        *now.seconds_per_step);
  }
  // A second look at the same state is no news.
  api::Progress same = now;
  if (before) same.observed_at = before->observed_at;
  if (!before || same != *before) draft->next.progress = now;
  if (newest->plan) draft->next.plan = newest->plan;
  if (newest->checkpoint) draft->next.checkpoint = newest->checkpoint;
}

void WatchForStall(const View& view, Draft* draft) {
  api::JobStatus& next = draft->next;
  const auto& deadline = view.job.spec.run_policy.progress_deadline_seconds;
  const auto calm = [&](const char* why) {
    if (view.Is(ConditionType::kStalled)) draft->Set(ConditionType::kStalled, false, "Moving", why);
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
  const TimePoint due =
      since + std::chrono::duration_cast<Duration>(std::chrono::duration<double>(limit));
  if (view.now < due) {
    draft->WakeAt(due);
    return calm("the step moves again");
  }
  const auto newest = Newest(view);
  std::string message =
      next.progress ? "step " + std::to_string(next.progress->step) : std::string("the first step");
  message +=
      " has not moved on since " + std::to_string(static_cast<int64_t>(limit)) + " s or more";
  if (newest && !newest->stopped_rank.empty()) {
    message += "; " + newest->stopped_rank + " stopped first";
  }
  if (!view.Is(ConditionType::kStalled)) draft->Event(true, "JobStalled", message);
  draft->Set(ConditionType::kStalled, true, "NoProgress", message);
}

}  // namespace meshtrain::reconcile
