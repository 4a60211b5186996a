// Keras' TensorBoard callback: what Model::Fit reports, as event files. With several processes the
// chief writes, and the others nothing, so that all may be given the same folder.
#pragma once

#include <memory>
#include <string>

#include "runtime/strategy/strategy.h"
#include "runtime/telemetry/event_file.h"
#include "runtime/train/loop.h"

namespace meshtrain::trainer {

class TensorBoard final : public train::Callback {
 public:
  // FOLDER/train gets losses and metrics by step, FOLDER/validation by epoch. A fit that goes on
  // writes further files beside the ones there are; TensorBoard shows them as one curve.
  explicit TensorBoard(std::string folder,
                       const strategy::Strategy& strategy = strategy::GetStrategy());

  // Errors, here and below: the disk's, which end Fit.
  Status OnTrainBegin(const train::Position& position) override;
  Status OnStepEnd(const train::StepInfo& info) override;
  Status OnEpochEnd(const train::EpochInfo& info, const train::Position& position) override;
  Status OnTrainEnd(const train::FitResult& result) override;

 private:
  const std::string folder_;
  const bool chief_;
  std::unique_ptr<telemetry::EventFileWriter> train_,
      validation_;  // the second: made by the first epoch that has one
};

}  // namespace meshtrain::trainer
