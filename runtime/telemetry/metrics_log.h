// metrics.jsonl: one line of JSON per training step, with at least `step` and `loss`, for people's
// own scripts.
//   {"step":1,"epoch":1,"loss":2.362259864807129,"accuracy":0.0625,"seconds":0.0021}
//   {"step":2,"epoch":1,"loss":null,"bad":"first not finite: log (logits) at model.cc:31"}
// Numbers are the shortest text that reads back as the same double; what is not finite is null.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "runtime/base/status.h"
#include "runtime/telemetry/event_file.h"

namespace meshtrain::telemetry {

struct StepRecord {
  int64_t step = 0;   // from 1
  int64_t epoch = 0;  // from 1
  double loss = 0;
  std::span<const NamedValue> metrics;
  std::optional<double> seconds;
  std::string_view bad = {};  // why the step changed nothing; "": it did
};

// With the line end. Pure.
std::string StepLine(const StepRecord& record);

// Each line is one write(): a killed process leaves whole lines. Not thread-safe. Errors:
// base/file.h's.
class MetricsLog {
 public:
  // Begins the file anew; with `resume_after`, keeps the lines up to that step (of a run that is
  // being continued).
  static Result<std::unique_ptr<MetricsLog>> Open(
      const std::string& path, std::optional<int64_t> resume_after = std::nullopt);
  ~MetricsLog();
  MetricsLog(const MetricsLog&) = delete;
  MetricsLog& operator=(const MetricsLog&) = delete;

  Status Add(const StepRecord& record);
  Status Close();

 private:
  MetricsLog(std::string path, int fd) : path_(std::move(path)), fd_(fd) {}
  std::string path_;
  int fd_;
};

}  // namespace meshtrain::telemetry
