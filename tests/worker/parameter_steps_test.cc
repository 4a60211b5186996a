#include "worker/parameter_steps.h"

#include <gtest/gtest.h>

namespace meshtrain::worker {
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

}  // namespace
}  // namespace meshtrain::worker
