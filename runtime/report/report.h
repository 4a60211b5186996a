// The page that a run leaves: curves of each metric against epochs and against steps, the figures,
// and what was run. One HTML file without outside resources. Pure.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "runtime/report/curve.h"

namespace meshtrain::report {

struct EpochFigures {
  int64_t epoch = 0;                    // from 1
  std::map<std::string, double> train;  // "loss", "accuracy", ...
  std::map<std::string, double> test;   // empty where it was not evaluated
  double seconds = 0;                   // 0: not known, of a run before this one
};

struct Report {
  std::string title;     // "mnist-mlp"
  std::string subtitle;  // "3 epochs on batch=8, 2026-11-21"
  std::vector<EpochFigures> epochs;
  // By metric, of each step's batch; where there is one, its curve stands beside the epochs'.
  std::map<std::string, std::vector<CurvePoint>> steps;
  std::vector<std::pair<std::string, std::string>> facts;  // "checkpoint", "runs/…/ckpt-00000120"
  std::optional<int> reload_seconds;                       // of a live page
};

// The epoch with the least loss: of the test data where it was evaluated at all, else of the
// training data. Null where there is none.
const EpochFigures* BestEpoch(const Report& report);

// Loss comes first, then accuracy, then the other metrics by name. Of many epochs the table shows
// some; the curves are of all.
std::string RenderPage(const Report& report);

}  // namespace meshtrain::report
