#include "runtime/trainer/progress_bar.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <utility>
#include <vector>

namespace meshtrain::trainer {

ProgressBar::ProgressBar(const strategy::Strategy& strategy)
    : ProgressBar(strategy, {.terminal = ::isatty(STDOUT_FILENO) != 0}, [](std::string_view text) {
        std::fwrite(text.data(), 1, text.size(), stdout);
        std::fflush(stdout);
      }) {}

ProgressBar::ProgressBar(const strategy::Strategy& strategy,
                         telemetry::ProgressLine::Options options,
                         std::function<void(std::string_view)> write, Clock& clock)
    : line_(strategy.chief()
                ? std::make_unique<telemetry::ProgressLine>(options, std::move(write), clock)
                : nullptr) {}

Status ProgressBar::OnTrainBegin(const train::Position&) {
  epoch_ = -1;
  return OkStatus();
}

Status ProgressBar::OnStepEnd(const train::StepInfo& info) {
  if (line_ == nullptr) return OkStatus();
  const train::Position& at = info.position;
  if (epoch_ != at.epoch) {
    line_->BeginEpoch(at.epoch + 1, info.epochs, std::max<int64_t>(info.steps_per_epoch, 0),
                      at.batch - 1);
    epoch_ = at.epoch;
  }
  const train::Scalars means = at.figures.Means();
  line_->Step(at.batch, std::vector<telemetry::NamedValue>(means.begin(), means.end()));
  return OkStatus();
}

Status ProgressBar::OnEpochEnd(const train::EpochInfo& info, const train::Position&) {
  if (line_ == nullptr) return OkStatus();
  std::vector<telemetry::NamedValue> values(info.train.begin(), info.train.end());
  for (const auto& [name, value] : info.validation) values.emplace_back("val_" + name, value);
  line_->EndEpoch(values);
  return OkStatus();
}

Status ProgressBar::OnTrainEnd(const train::FitResult& result) {
  if (line_ != nullptr && result.end != train::FitEnd::kFinished) line_->Interrupt();
  return OkStatus();
}

}  // namespace meshtrain::trainer
