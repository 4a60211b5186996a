#include "runtime/telemetry/progress.h"

#include <cmath>
#include <nlohmann/json.hpp>

namespace meshtrain::telemetry {
namespace {

using nlohmann::ordered_json;

constexpr size_t kMaxRanks = 1024;
constexpr size_t kMaxMessage = 4096;
constexpr size_t kMaxError = 400;  // each byte of it may become six: \u001b

ordered_json Number(double v) { return std::isfinite(v) ? ordered_json(v) : ordered_json(nullptr); }

template <typename T>
void PutIf(ordered_json& out, const char* key, const std::optional<T>& value) {
  if (value) out[key] = Number(static_cast<double>(*value));
}

ordered_json Json(const Progress& p, bool ranks, bool metrics) {
  ordered_json out = {{"step", p.step}};
  if (p.total_steps) out["totalSteps"] = *p.total_steps;
  out["epoch"] = Number(p.epoch);
  PutIf(out, "loss", p.loss);
  if (const auto accuracy = p.metrics.find("accuracy"); accuracy != p.metrics.end()) {
    out["accuracy"] = Number(accuracy->second);
  }
  if (metrics && !p.metrics.empty()) {
    for (const auto& [name, value] : p.metrics) out["metrics"][name] = Number(value);
  }
  PutIf(out, "examplesPerSecond", p.examples_per_second);
  PutIf(out, "etaSeconds", p.eta_seconds);
  if (ranks && !p.rank_step_seconds.empty() && p.rank_step_seconds.size() <= kMaxRanks) {
    for (const double s : p.rank_step_seconds) out["rankStepSeconds"].push_back(Number(s));
  }
  if (p.checkpoint) {
    out["checkpoint"] = {{"step", p.checkpoint->step}, {"path", p.checkpoint->path}};
  }
  if (p.plan) {
    out["plan"] = {{"mesh", p.plan->mesh},
                   {"peakBytesPerDevice", p.plan->peak_bytes_per_device},
                   {"collectiveBytesPerStep", p.plan->collective_bytes_per_step},
                   {"hash", p.plan->hash}};
    out["planHash"] = p.plan->hash;
  }
  if (!p.stopped_rank.empty()) out["stoppedRank"] = p.stopped_rank;
  if (!p.lost_incarnation.empty()) out["lostIncarnation"] = p.lost_incarnation;
  return out;
}

std::string Dump(const ordered_json& value) {
  return value.dump(-1, ' ', false, ordered_json::error_handler_t::replace);
}

}  // namespace

std::string ProgressJson(const Progress& progress) { return Dump(Json(progress, true, true)); }

std::string TerminationMessage(const Progress& progress, std::string_view error) {
  const auto text = [error](const Progress& p, bool metrics) {
    ordered_json out = Json(p, false, metrics);
    if (!error.empty()) out["error"] = error.substr(0, kMaxError);
    return Dump(out);
  };
  std::string said = text(progress, true);
  if (said.size() > kMaxMessage) said = text(progress, false);
  if (said.size() <= kMaxMessage) return said;
  Progress bare = progress;  // a path or a mesh of thousands of characters
  bare.checkpoint.reset();
  bare.plan.reset();
  return text(bare, false);
}

}  // namespace meshtrain::telemetry
