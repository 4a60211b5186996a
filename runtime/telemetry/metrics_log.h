// metrics.jsonl: one line of JSON per training step, with at least `step` and `loss`, and one per
// validation, whose figures have `val_` before their names, for people's own scripts.
//   {"step":1,"epoch":1,"loss":2.362259864807129,"accuracy":0.0625,"seconds":0.0021}
//   {"step":2,"epoch":1,"loss":null,"bad":"first not finite: log (logits) at model.cc:31"}
//   {"step":2,"epoch":1,"val_loss":1.92,"val_accuracy":0.31}
// Numbers are the shortest text that reads back as the same double; what is not finite is null.
#pragma once

#include <cstdint>
#include <functional>
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

struct ValidationRecord {
  int64_t step = 0;   // finished when it was made
  int64_t epoch = 0;  // from 1
  std::span<const NamedValue> figures;
};

// With the line end. Pure.
std::string StepLine(const StepRecord& record);
std::string ValidationLine(const ValidationRecord& record);

// Goes over the steps of such a file from its beginning: `add` takes each step's number and its
// figures, the loss first, a null as not a number, and its seconds, where the line has them. Lines
// of bad steps, of validations and of others are left out. Errors: base/file.h's.
using AddStep = std::function<void(int64_t step, std::span<const NamedValue> figures,
                                   std::optional<double> seconds)>;
Status ReadSteps(const std::string& path, const AddStep& add);

// Each line is one write(): a killed process leaves whole lines. Not thread-safe. Errors:
// base/file.h's; kAlreadyExists where a symbolic link lies in the file's place; kNotFound, naming
// the folder, once the file is not where it was opened, because somebody removed or moved it. That
// is looked at once a second and by Close(). Once another process has opened or written the file,
// nothing is added to it any more.
class MetricsLog {
 public:
  // Where a run goes on.
  struct Behind {
    int64_t step = 0;
    bool validated = true;  // the validation after that step, if there was one, is done
  };
  // Begins the file anew; with `behind`, goes on behind the last line of that step or one before it
  // (of a run that is being continued). What stands behind that line is cut off: the steps
  // that are done again, a line that a killed process left unfinished, and whatever is no line of
  // ours. The file is read from its end, a block at a time, so its size costs nothing.
  static Result<std::unique_ptr<MetricsLog>> Open(const std::string& path,
                                                  std::optional<Behind> behind = std::nullopt,
                                                  Clock& clock = SystemClock());
  MetricsLog(const MetricsLog&) = delete;
  MetricsLog& operator=(const MetricsLog&) = delete;

  // The step of the last line that was kept; none in a file that begins anew.
  std::optional<int64_t> resumed_at() const { return resumed_at_; }
  Status Add(const StepRecord& record) { return AddLine(StepLine(record)); }
  Status Add(const ValidationRecord& record) { return AddLine(ValidationLine(record)); }
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
  Status AddLine(const std::string& line);
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
