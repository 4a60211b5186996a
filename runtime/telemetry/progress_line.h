// What a person sees while training: Keras' progress line on a terminal, plain lines elsewhere.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>

#include "runtime/base/clock.h"
#include "runtime/telemetry/event_file.h"

namespace meshtrain::telemetry {

struct LineState {
  int64_t step = 0;    // of this epoch
  int64_t steps = 0;   // 0: unknown
  double seconds = 0;  // of this epoch so far
  bool done = false;
};

// Keras 3's, without the line end. Pure.
//   39/40 ━━━━━━━━━━━━━━━━━━━━ 0s 2ms/step - accuracy: 0.7720 - loss: 0.8310
// Before the end the time is what is left; after it, what it took.
std::string TerminalLine(const LineState& state, std::span<const NamedValue> values);

// For a log: `epoch 1/3  step 40/40  0.1 s  2.0 ms/step  loss 0.8310  accuracy 0.7720`. Pure.
std::string PlainLine(int64_t epoch, int64_t epochs, const LineState& state,
                      std::span<const NamedValue> values);

// Not thread-safe; `write` gets whole pieces of text to print.
class ProgressLine {
 public:
  struct Options {
    bool terminal = false;  // isatty(), by the caller
    // Between two lines: a terminal is redrawn at most so often; a log gets a line within an epoch
    // at most so often.
    Duration redraw = std::chrono::milliseconds(100);
    Duration log = std::chrono::seconds(10);
  };
  ProgressLine(Options options, std::function<void(std::string_view)> write,
               Clock& clock = SystemClock())
      : options_(options), write_(std::move(write)), clock_(clock) {}

  // `steps`: in this epoch; 0: unknown. `first`: steps of it that a checkpoint has already done.
  void BeginEpoch(int64_t epoch, int64_t epochs, int64_t steps, int64_t first = 0);
  // After a step. `values`: the epoch's running means, in the order in which to show them.
  void Step(int64_t step, std::span<const NamedValue> values);
  void EndEpoch(std::span<const NamedValue> values);
  // Leaves a half-drawn line behind it, so that the next message begins on its own.
  void Interrupt();

 private:
  LineState State(int64_t step, bool done) const;
  Options options_;
  std::function<void(std::string_view)> write_;
  Clock& clock_;
  int64_t epoch_ = 0;
  int64_t epochs_ = 0;
  int64_t steps_ = 0;
  int64_t first_ = 0;
  int64_t step_ = 0;
  Duration begun_{0};
  Duration shown_{0};
  bool open_ = false;  // the terminal's cursor is behind a line of ours
};

}  // namespace meshtrain::telemetry
