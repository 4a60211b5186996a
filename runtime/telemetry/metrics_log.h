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

#include "runtime/base/clock.h"
#include "runtime/base/file.h"
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
// base/file.h's; kAlreadyExists where a symbolic link lies in the file's place; kNotFound, naming
// the folder, once the file is not where it was opened, because somebody removed or moved it. That
// is looked at once a second and by Close(). Once another process has opened or written the file,
// nothing is added to it any more.
class MetricsLog {
 public:
  // Begins the file anew; with `resume_after`, goes on behind the last line whose step is at most
  // that (of a run that is being continued). What stands behind that line is cut off: the steps
  // that are done again, a line that a killed process left unfinished, and whatever is no line of
  // ours. The file is read from its end, a block at a time, so its size costs nothing.
  static Result<std::unique_ptr<MetricsLog>> Open(
      const std::string& path, std::optional<int64_t> resume_after = std::nullopt,
      Clock& clock = SystemClock());
  MetricsLog(const MetricsLog&) = delete;
  MetricsLog& operator=(const MetricsLog&) = delete;

  // The step of the last line that was kept; none in a file that begins anew.
  std::optional<int64_t> resumed_at() const { return resumed_at_; }
  Status Add(const StepRecord& record);
  Status Close();

 private:
  MetricsLog(std::string path, FileDescriptor file, int64_t size, std::optional<int64_t> resumed_at,
             Clock& clock)
      : path_(std::move(path)),
        file_(std::move(file)),
        size_(size),
        resumed_at_(resumed_at),
        clock_(clock),
        looked_(clock.Monotonic()) {}
  Status CheckStillThere() const;
  bool WasTakenOver();

  std::string path_;
  FileDescriptor file_;
  int64_t size_;  // of what was kept and what this process added
  bool taken_over_ = false;
  std::optional<int64_t> resumed_at_;
  Clock& clock_;
  Duration looked_;
};

}  // namespace meshtrain::telemetry
