// Keras' progress line as a callback of Model::Fit. With several processes the chief draws it, and
// the others nothing.
#pragma once

#include <functional>
#include <memory>
#include <string_view>

#include "runtime/strategy/strategy.h"
#include "runtime/telemetry/progress_line.h"
#include "runtime/train/loop.h"

namespace meshtrain::trainer {

class ProgressBar final : public train::Callback {
 public:
  // On stdout: drawn anew where that is a terminal, now and then a line elsewhere.
  explicit ProgressBar(const strategy::Strategy& strategy = strategy::GetStrategy());
  ProgressBar(const strategy::Strategy& strategy, telemetry::ProgressLine::Options options,
              std::function<void(std::string_view)> write, Clock& clock = SystemClock());

  Status OnTrainBegin(const train::Position& position) override;
  Status OnStepEnd(const train::StepInfo& info) override;
  Status OnEpochEnd(const train::EpochInfo& info, const train::Position& position) override;
  Status OnTrainEnd(const train::FitResult& result) override;

 private:
  std::unique_ptr<telemetry::ProgressLine> line_;  // null: not the chief
  int64_t epoch_ = -1;                             // that the line shows
};

}  // namespace meshtrain::trainer
