// The page that a local run leaves: curves of each metric on training and test data against epochs,
// the figures, and what was run. One HTML file without outside resources. Pure.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace meshtrain::telemetry {

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
  std::vector<std::pair<std::string, std::string>> facts;  // "checkpoint", "runs/…/ckpt-00000120"
  std::optional<int> reload_seconds;                       // of a live page
};

// Loss comes first, then accuracy, then the other metrics by name.
std::string RenderReport(const Report& report);

}  // namespace meshtrain::telemetry
