#include "runtime/trainer/stop_vote.h"

#include <algorithm>
#include <cmath>

namespace meshtrain::trainer {
namespace {

constexpr double kSecondsBetween = 0.1;
constexpr int64_t kMostSteps = 1000;
// What a process says that wants to stop; the chief otherwise says a number of steps, and kSave
// more where a save is due, the others nothing. Each sum of both is an integer that a float holds.
constexpr float kStop = 1e9F;
constexpr float kSave = 1e6F;
constexpr double kSmoothing = 0.2;

}  // namespace

int64_t StepsBetweenVotes(double seconds) {
  if (!(seconds > 0)) return 1;
  return std::clamp<int64_t>(
      static_cast<int64_t>(std::llround(std::min(kSecondsBetween / seconds, 1e6))), 1, kMostSteps);
}

Status StopVote::OnTrainBegin(const train::Position& position) {
  team_.ReportStep(position.step);
  next_ = position.step + 1;
  return OkStatus();
}

Status StopVote::OnStepEnd(const train::StepInfo& info) {
  const double seconds = std::chrono::duration<double>(info.seconds).count();
  seconds_ = seconds_ == 0 ? seconds : (1 - kSmoothing) * seconds_ + kSmoothing * seconds;
  return Vote(info.position.step);
}

Status StopVote::OnBadStep(const train::BadStepInfo& info) { return Vote(info.position.step); }

Status StopVote::Vote(int64_t step) {
  team_.ReportStep(step);
  saves_ = false;
  if (step < next_) return OkStatus();
  float mine = 0;
  if (team_.chief()) {
    mine = static_cast<float>(StepsBetweenVotes(seconds_)) + (overdue_() ? kSave : 0);
  }
  if (mine_.stop_requested()) mine = kStop;
  MT_ASSIGN_OR_RETURN(const float said, team_.Largest(mine));
  if (said >= kStop) {
    all_.request_stop();
    return OkStatus();
  }
  saves_ = said >= kSave;
  next_ = step + static_cast<int64_t>(saves_ ? said - kSave : said);
  return OkStatus();
}

}  // namespace meshtrain::trainer
