#include "runtime/parameter/chief/steps.h"

#include <gtest/gtest.h>

#include <utility>
#include <vector>

namespace meshtrain::parameter {
namespace {

TEST(BoundariesTest, StepsEndWhereAnEpochOrASaveDoes) {
  const Boundaries both{.first = 0, .steps_per_epoch = 10, .save_every = 4};
  std::vector<int64_t> ends;
  for (int64_t step = 0; step < 20; step = ends.back()) ends.push_back(both.After(step));
  EXPECT_EQ(ends, (std::vector<int64_t>{4, 8, 10, 12, 16, 20}));
  EXPECT_EQ(both.After(5), 8);
  EXPECT_EQ(both.After(9), 10);
}

TEST(BoundariesTest, AResumedJobKeepsItsEpochs) {
  // Resumed at step 25, five batches into the third epoch of ten.
  const Boundaries at{.first = 20, .steps_per_epoch = 10, .save_every = 0};
  EXPECT_EQ(at.After(25), 30);
  EXPECT_EQ(at.After(30), 40);
  // An earlier run had epochs of another length: they are counted from where this one's began.
  const Boundaries other{.first = 7, .steps_per_epoch = 5, .save_every = 100};
  EXPECT_EQ(other.After(7), 12);
  EXPECT_EQ(other.After(98), 100);
}

TEST(InFlightTest, EveryWorkerHoldsEquallyManyAndAsManyLieReady) {
  const auto divided = [](int64_t steps, int64_t workers) {
    const InFlight made = DivideInFlight(steps, workers);
    return std::pair<int, int64_t>(made.per_worker, made.ahead);
  };
  EXPECT_EQ(divided(0, 3), std::pair(1, int64_t{6}));
  EXPECT_EQ(divided(6, 3), std::pair(2, int64_t{12}));
  // Never more at once than asked for.
  EXPECT_EQ(divided(1, 3), std::pair(1, int64_t{1}));
  EXPECT_EQ(divided(4, 3), std::pair(2, int64_t{4}));
}

}  // namespace
}  // namespace meshtrain::parameter
