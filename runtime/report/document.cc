#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>

#include "runtime/report/report.h"

namespace meshtrain::report {
namespace {

using Json = nlohmann::ordered_json;

// Six digits are more than a page shows, and a third of what a double takes.
Json Number(double value) {
  if (!std::isfinite(value)) return nullptr;
  return std::strtod(fmt::format("{:.6g}", value).c_str(), nullptr);
}

// Places are counted: they stay whole.
Json Place(double x) { return static_cast<int64_t>(x); }

Json Points(const std::vector<CurvePoint>& points) {
  Json out = Json::array();
  for (const CurvePoint& p : Thinned(points, kMostPoints)) {
    if (p.absent) continue;
    if (p.first == p.x) {
      out.push_back({Place(p.x), p.count == 0 ? Json(nullptr) : Number(p.value)});
    } else if (p.count == 0) {
      out.push_back({Place(p.first), Place(p.x), nullptr, nullptr, nullptr});
    } else {
      out.push_back(
          {Place(p.first), Place(p.x), Number(p.value), Number(p.least), Number(p.largest)});
    }
  }
  return out;
}

int Order(const std::string& name) { return name == "loss" ? 0 : name == "accuracy" ? 1 : 2; }

std::vector<std::string> MetricNames(const Report& report) {
  std::set<std::string> all;
  for (const auto* curves : {&report.epochs.train, &report.epochs.test, &report.steps}) {
    for (const auto& [name, points] : *curves) all.insert(name);
  }
  std::vector<std::string> names(all.begin(), all.end());
  std::sort(names.begin(), names.end(), [](const std::string& a, const std::string& b) {
    return std::pair(Order(a), a) < std::pair(Order(b), b);
  });
  return names;
}

std::string Title(std::string name) {
  std::replace(name.begin(), name.end(), '_', ' ');
  if (!name.empty() && name[0] >= 'a' && name[0] <= 'z') {
    name[0] = static_cast<char>(name[0] - 'a' + 'A');
  }
  return name;
}

Json Chart(std::string title, const char* unit, bool from_zero, const char* values = "number") {
  return {{"title", std::move(title)},
          {"unit", unit},
          {"values", values},
          {"fromZero", from_zero},
          {"series", Json::array()}};
}

void AddSeries(Json& chart, const char* name,
               const std::map<std::string, std::vector<CurvePoint>>& curves,
               const std::string& metric) {
  const auto found = curves.find(metric);
  if (found == curves.end()) return;
  chart["series"].push_back({{"name", name}, {"points", Points(found->second)}});
}

Json Charts(const Report& report, const std::vector<std::string>& names) {
  Json out = Json::array();
  for (const std::string& name : names) {
    Json epochs = Chart(Title(name), "epoch", name == "loss");
    AddSeries(epochs, "train", report.epochs.train, name);
    AddSeries(epochs, "test", report.epochs.test, name);
    if (!epochs["series"].empty()) out.push_back(std::move(epochs));
    Json steps = Chart(Title(name) + " of each step", "step", name == "loss");
    AddSeries(steps, "train", report.steps, name);
    if (!steps["series"].empty()) out.push_back(std::move(steps));
  }
  if (!report.step_seconds.empty()) {
    Json times = Chart("Time of each step", "step", true, "seconds");
    times["series"].push_back({{"name", "train"}, {"points", Points(report.step_seconds)}});
    out.push_back(std::move(times));
  }
  return out;
}

double Find(const std::map<std::string, double>& figures, const std::string& name) {
  const auto found = figures.find(name);
  return found == figures.end() ? std::numeric_limits<double>::quiet_NaN() : found->second;
}

Json Epochs(const EpochSummary& epochs, const std::vector<std::string>& names) {
  Json columns = Json::array(), rows = Json::array();
  for (const std::string& name : names) columns.push_back("train " + name);
  if (epochs.tested) {
    for (const std::string& name : names) columns.push_back("test " + name);
  }
  for (const EpochFigures& e : epochs.rows) {
    Json figures = Json::array();
    for (const std::string& name : names) figures.push_back(Number(Find(e.train, name)));
    if (epochs.tested) {
      for (const std::string& name : names) figures.push_back(Number(Find(e.test, name)));
    }
    rows.push_back({{"epoch", e.epoch},
                    {"best", e.epoch == epochs.best},
                    {"figures", std::move(figures)},
                    {"seconds", e.seconds > 0 ? Number(e.seconds) : Json(nullptr)}});
  }
  return {{"count", epochs.count},
          {"every", epochs.every},
          {"columns", std::move(columns)},
          {"rows", std::move(rows)}};
}

template <typename T>
void PutIf(Json& out, const char* key, const std::optional<T>& value) {
  if (!value) return;
  if constexpr (std::is_integral_v<T>) {
    out[key] = *value;
  } else {
    out[key] = Number(*value);
  }
}

Json StateJson(const State& state) {
  Json out = {{"phase", PhaseName(state.phase)}, {"why", state.why}};
  PutIf(out, "step", state.step);
  PutIf(out, "steps", state.steps);
  PutIf(out, "epoch", state.epoch);
  PutIf(out, "epochs", state.epochs);
  out["figures"] = Json::object();
  for (const auto& [name, value] : state.figures) out["figures"][name] = Number(value);
  PutIf(out, "stepSeconds", state.step_seconds);
  PutIf(out, "examplesPerSecond", state.examples_per_second);
  PutIf(out, "etaSeconds", state.eta_seconds);
  PutIf(out, "elapsedSeconds", state.elapsed_seconds);
  return out;
}

Json Variables(const std::vector<Variable>& variables) {
  Json out = Json::array();
  for (const Variable& v : variables) {
    if (out.size() == kMostVariables) break;
    out.push_back({{"name", v.name},
                   {"type", v.type},
                   {"layout", v.layout},
                   {"split", v.split},
                   {"shard", v.shard},
                   {"bytes", v.bytes}});
  }
  return out;
}

Json PlanJson(const PlanView& plan) {
  Json axes = Json::array(), devices = Json::array(), groups = Json::array(),
       collectives = Json::array(), memory = Json::array();
  for (const auto& [name, size] : plan.axes) axes.push_back({name, size});
  for (const std::string& device : plan.devices) {
    if (devices.size() == kMostDevices) break;
    devices.push_back(device);
  }
  size_t shown = 0;
  for (const auto& [kind, names] : plan.groups) {
    Json some = Json::array();
    for (const std::string& name : names) {
      if (shown++ < kMostDevices) some.push_back(name);
    }
    groups.push_back({kind, std::move(some), names.size()});
  }
  for (const Collective& c : plan.collectives) {
    collectives.push_back(
        {{"kind", c.kind}, {"axes", c.axes}, {"count", c.count}, {"bytes", c.bytes}});
  }
  for (const auto& [what, bytes] : plan.memory) memory.push_back({what, bytes});
  return {{"axes", std::move(axes)},
          {"devices", std::move(devices)},
          {"deviceCount", plan.num_devices},
          {"groups", std::move(groups)},
          {"inputs", Variables(plan.inputs)},
          {"variables", Variables(plan.variables)},
          {"variableCount", plan.variables.size()},
          {"collectives", std::move(collectives)},
          {"memory", std::move(memory)},
          {"peakBytes", plan.peak_bytes},
          {"note", plan.note}};
}

}  // namespace

std::string_view PhaseName(Phase phase) {
  switch (phase) {
    case Phase::kStarting:
      return "starting";
    case Phase::kTraining:
      return "training";
    case Phase::kWaiting:
      return "waiting";
    case Phase::kStopped:
      return "stopped";
    case Phase::kEnded:
      return "ended";
    case Phase::kFailed:
      return "failed";
  }
  return "";
}

std::string Document(const Report& report) {
  const std::vector<std::string> names = MetricNames(report);
  Json facts = Json::array();
  for (const auto& [name, what] : report.facts) facts.push_back({name, what});
  Json out = {{"title", report.title}, {"subtitle", report.subtitle}};
  if (report.state) out["state"] = StateJson(*report.state);
  out["charts"] = Charts(report, names);
  out["epochs"] = Epochs(report.epochs, names);
  out["facts"] = std::move(facts);
  if (report.plan) out["plan"] = PlanJson(*report.plan);
  return out.dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace meshtrain::report
