#include "runtime/telemetry/progress_line.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>

namespace meshtrain::telemetry {
namespace {

constexpr int kBar = 20;
constexpr std::string_view kDim = "\x1b[2m";
constexpr std::string_view kBright = "\x1b[32m";
constexpr std::string_view kReset = "\x1b[0m";
constexpr std::string_view kClearLine = "\r\x1b[K";

// Keras': 12s, 1:05, 2:00:00.
std::string Clocked(double seconds) {
  const auto s = static_cast<int64_t>(std::llround(std::max(0.0, seconds)));
  if (s >= 3600) return fmt::format("{}:{:02}:{:02}", s / 3600, s / 60 % 60, s % 60);
  if (s >= 60) return fmt::format("{}:{:02}", s / 60, s % 60);
  return fmt::format("{}s", s);
}

std::string PerStep(double seconds) {
  if (seconds >= 1) return fmt::format("{:.0f}s/step", seconds);
  if (seconds >= 1e-3) return fmt::format("{:.0f}ms/step", seconds * 1e3);
  return fmt::format("{:.0f}us/step", seconds * 1e6);
}

// Four decimals, as Keras; scientific where that would show nothing.
std::string Value(double v) {
  if (v == 0 || std::abs(v) > 1e-3 || !std::isfinite(v)) return fmt::format("{:.4f}", v);
  return fmt::format("{:.4e}", v);
}

int64_t Width(int64_t n) { return static_cast<int64_t>(std::to_string(n).size()); }

}  // namespace

std::string TerminalLine(const LineState& s, std::span<const NamedValue> values) {
  std::string line;
  if (s.steps > 0) {
    line = fmt::format("{:>{}}/{} ", s.step, Width(s.steps), s.steps);
    const int full = static_cast<int>(kBar * std::min(s.step, s.steps) / s.steps);
    line += kBright;
    for (int i = 0; i < full; ++i) line += "━";
    line += kReset;
    line += kDim;
    for (int i = full; i < kBar; ++i) line += "━";
    line += kReset;
  } else {
    line = fmt::format("{}/?", s.step);
  }
  const double per_step = s.step > 0 ? s.seconds / static_cast<double>(s.step) : 0;
  const double left = s.steps > 0 ? per_step * static_cast<double>(s.steps - s.step) : s.seconds;
  line += " " + Clocked(s.done ? s.seconds : left) + " " + PerStep(per_step);
  for (const auto& [name, value] : values) line += " - " + name + ": " + Value(value);
  return line;
}

std::string PlainLine(int64_t epoch, int64_t epochs, const LineState& s,
                      std::span<const NamedValue> values) {
  std::string line = fmt::format("epoch {}/{}  step {}", epoch, epochs, s.step);
  if (s.steps > 0) line += fmt::format("/{}", s.steps);
  const double per_step = s.step > 0 ? s.seconds / static_cast<double>(s.step) : 0;
  line += fmt::format("  {:.1f} s  {:.1f} ms/step", s.seconds, per_step * 1e3);
  for (const auto& [name, value] : values) line += "  " + name + " " + Value(value);
  return line;
}

LineState ProgressLine::State(int64_t step, bool done) const {
  const double seconds = std::chrono::duration<double>(clock_.Monotonic() - begun_).count();
  // The rate counts the steps that were done here; a resumed epoch began in its middle.
  const int64_t here = std::max<int64_t>(0, step - first_);
  const double scaled =
      here > 0 && !done ? seconds * static_cast<double>(step) / static_cast<double>(here) : seconds;
  return {
      .step = step, .steps = steps_, .seconds = options_.terminal ? scaled : seconds, .done = done};
}

void ProgressLine::BeginEpoch(int64_t epoch, int64_t epochs, int64_t steps, int64_t first) {
  epoch_ = epoch;
  epochs_ = epochs;
  steps_ = steps;
  first_ = first;
  step_ = first;
  begun_ = clock_.Monotonic();
  shown_ = options_.terminal ? begun_ - options_.redraw : begun_;
  if (options_.terminal) write_(fmt::format("Epoch {}/{}\n", epoch, epochs));
}

void ProgressLine::Step(int64_t step, std::span<const NamedValue> values) {
  step_ = step;
  const Duration now = clock_.Monotonic();
  if (now - shown_ < (options_.terminal ? options_.redraw : options_.log)) return;
  shown_ = now;
  if (options_.terminal) {
    write_(std::string(kClearLine) + TerminalLine(State(step, false), values));
    open_ = true;
  } else {
    write_(PlainLine(epoch_, epochs_, State(step, false), values) + "\n");
  }
}

void ProgressLine::EndEpoch(std::span<const NamedValue> values) {
  if (options_.terminal) {
    write_(std::string(kClearLine) + TerminalLine(State(step_, true), values) + "\n");
    open_ = false;
  } else {
    write_(PlainLine(epoch_, epochs_, State(step_, true), values) + "\n");
  }
}

void ProgressLine::Interrupt() {
  if (open_) write_("\n");
  open_ = false;
}

}  // namespace meshtrain::telemetry
