// Stopping and saving together: a process that was asked to stop tells the others between two
// steps, and all stop after the same one, so that what they save is one state. When a save is due
// by the chief's clock, all save after the same step.
//
// They ask each other in a small collective, about every 100 ms: the chief's measured steps say
// after how many steps the next one comes.
#pragma once

#include <cstdint>
#include <functional>
#include <stop_token>

#include "runtime/membership/team.h"
#include "runtime/train/loop.h"

namespace meshtrain::trainer {

// After how many steps to ask again, when a step takes `seconds`: at least 1, at most 1,000. Pure.
int64_t StepsBetweenVotes(double seconds);

// Before CheckpointEvery among the callbacks.
class StopVote final : public train::Callback {
 public:
  // `mine`: what this process was asked; `all`: requested when any process wants to stop.
  // `overdue`: whether a save is due; the chief's answer counts.
  StopVote(membership::Team& team, std::stop_token mine, std::stop_source all,
           std::function<bool()> overdue)
      : team_(team), mine_(std::move(mine)), all_(std::move(all)), overdue_(std::move(overdue)) {}
  Status OnTrainBegin(const train::Position& position) override;
  Status OnStepEnd(const train::StepInfo& info) override;
  Status OnBadStep(const train::BadStepInfo& info) override;
  // Whether all save after the step that has just ended.
  bool saves() const { return saves_; }

 private:
  Status Vote(int64_t step);

  membership::Team& team_;
  std::stop_token mine_;
  std::stop_source all_;
  std::function<bool()> overdue_;
  bool saves_ = false;
  int64_t next_ = 0;
  double seconds_ = 0;  // of a step, smoothed
};

}  // namespace meshtrain::trainer
