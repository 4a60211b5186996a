#include "runtime/trainer/stop_vote.h"

#include <gtest/gtest.h>

#include <limits>

namespace meshtrain::trainer {
namespace {

TEST(StopVoteTest, VotesComeAboutTenTimesASecond) {
  EXPECT_EQ(StepsBetweenVotes(0.002), 50);
  EXPECT_EQ(StepsBetweenVotes(0.1), 1);
  EXPECT_EQ(StepsBetweenVotes(7), 1);        // every step, where steps are long
  EXPECT_EQ(StepsBetweenVotes(1e-9), 1000);  // and never so rarely that a stop waits for long
}

TEST(StopVoteTest, AnyMeasurementGivesAtLeastOneStep) {
  for (const double seconds : {0.0, -1.0, std::numeric_limits<double>::quiet_NaN(),
                               std::numeric_limits<double>::infinity(), 1e-300}) {
    const int64_t steps = StepsBetweenVotes(seconds);
    EXPECT_GE(steps, 1) << seconds;
    EXPECT_LE(steps, 1000) << seconds;
  }
}

}  // namespace
}  // namespace meshtrain::trainer
