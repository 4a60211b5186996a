// The page of a run, the same while it goes on and afterwards: its state, figures and curves, what
// was run, the mesh, the layouts and the collectives of a step. What it shows is one JSON document;
// one HTML file without outside resources draws it. Pure.
//
// Both are bounded, however long a run is: at most kMostPoints points a curve, kMostRows rows of
// epochs (epochs.h), kMostVariables variables and kMostDevices devices; the document says how many
// there are in all. Figures are rounded to six digits: the exact ones are in metrics.jsonl.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "runtime/report/curve.h"
#include "runtime/report/epochs.h"

namespace meshtrain::report {

inline constexpr int64_t kMostPoints = 240;
inline constexpr size_t kMostVariables = 256;
inline constexpr size_t kMostDevices = 256;

enum class Phase : uint8_t { kStarting, kTraining, kWaiting, kStopped, kEnded, kFailed };
std::string_view PhaseName(Phase phase);  // "starting", "training", ...

// Where a run is. What is not known is left out of the page.
struct State {
  Phase phase = Phase::kEnded;
  std::string why;  // "worker-2 is lost", the error that it failed with; "": nothing to say
  std::optional<int64_t> step, steps;     // done, of all
  std::optional<int64_t> epoch, epochs;   // the one under way, from 1, of all
  std::map<std::string, double> figures;  // of the newest step
  std::optional<double> step_seconds, examples_per_second, eta_seconds, elapsed_seconds;
};

// One tensor of a step and how it lies on the mesh.
struct Variable {
  std::string name;
  std::string type;                             // "f32[784,700]"
  std::string layout;                           // "{*, model}"
  std::vector<std::vector<std::string>> split;  // per dimension: the axes that split it
  std::string shard;                            // "f32[784,350]"
  int64_t bytes = 0;                            // of one device's shard
};

struct Collective {
  std::string kind;   // "all_reduce"
  std::string axes;   // "batch", "batch,model"
  int64_t count = 0;  // instructions of a step
  int64_t bytes = 0;  // sent by one device in a step
};

// Where a step runs and what it moves.
struct PlanView {
  std::vector<std::pair<std::string, int64_t>> axes;  // of the mesh, the last one fastest
  std::vector<std::string> devices;  // in the mesh's order; the first kMostDevices are enough
  int64_t num_devices = 0;
  // Where processes are no mesh: what kind they are, and their names.
  std::vector<std::pair<std::string, std::vector<std::string>>> groups;
  std::vector<Variable> inputs, variables;
  std::vector<Collective> collectives;
  std::vector<std::pair<std::string, int64_t>>
      memory;              // bytes of a device: "states", "inputs", ...
  int64_t peak_bytes = 0;  // of a device; 0: not known
  std::string note;        // one sentence
};

struct Report {
  std::string title;     // "mnist-mlp"
  std::string subtitle;  // "3 epochs on batch=8, 2026-11-21"
  std::optional<State> state;
  EpochSummary epochs;
  // By metric, of each step's batch; where there is one, its curve stands beside the epochs'.
  std::map<std::string, std::vector<CurvePoint>> steps;
  std::vector<CurvePoint> step_seconds;
  std::vector<std::pair<std::string, std::string>> facts;  // "checkpoint", "runs/…/ckpt-00000120"
  std::optional<PlanView> plan;
};

// The document. Loss comes first, then accuracy, then the other metrics by name. A point of a curve
// is [x, value], or of several values in a row [first x, last x, mean, least, largest]; a value
// that is not finite is null.
// {"title":…,"subtitle":…,
//  "state":{"phase":"training","why":"","step":120,"steps":6000,"epoch":3,"epochs":150,
//           "figures":{"loss":0.3},"stepSeconds":…,"examplesPerSecond":…,"etaSeconds":…,
//           "elapsedSeconds":…},
//  "charts":[{"title":"Loss","unit":"epoch","values":"number","fromZero":true,
//             "series":[{"name":"train","points":[…]}]}],
//  "epochs":{"count":2,"every":1,"columns":["train loss"],
//            "rows":[{"epoch":2,"best":true,"figures":[0.3],"seconds":0.1}]},
//  "facts":[["model","…"]],
//  "plan":{"axes":[["batch",2]],"devices":["cpu:0","cpu:1"],"deviceCount":2,"groups":[],
//          "inputs":[…],"variables":[{"name":…,"type":…,"layout":…,"split":[[],["model"]],
//          "shard":…,"bytes":…}],"variableCount":4,"collectives":[{"kind":…,"axes":…,"count":…,
//          "bytes":…}],"memory":[["states",…]],"peakBytes":…,"note":""}}
std::string Document(const Report& report);

// The page around a document. `live`: where the newest document is fetched, relative to the page's
// own address ("run.json"); "": nowhere, what the page holds is all.
std::string RenderPage(std::string_view title, std::string_view document,
                       std::string_view live = "");
inline std::string RenderPage(const Report& report) {
  return RenderPage(report.title, Document(report));
}

// & < > " as entities.
std::string EscapeHtml(std::string_view text);

}  // namespace meshtrain::report
