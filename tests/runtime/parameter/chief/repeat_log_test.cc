#include "runtime/parameter/chief/repeat_log.h"

#include <gtest/gtest.h>

#include <vector>

namespace meshtrain::parameter {
namespace {

using std::chrono::seconds;

TEST(RepeatLogTest, SaysSoAfterAWhileAndThenNowAndThen) {
  RepeatLog notes;
  std::vector<int> said;
  for (int second = 100; second < 180; ++second) {
    if (notes.Due(0, seconds(second))) said.push_back(second);
  }
  EXPECT_EQ(said, (std::vector<int>{105, 135, 165}));
}

TEST(RepeatLogTest, EachHasATimeOfItsOwnAndAnAnswerBeginsItAnew) {
  RepeatLog notes;
  EXPECT_FALSE(notes.Due(0, seconds(1)));
  EXPECT_FALSE(notes.Due(1, seconds(4)));
  EXPECT_TRUE(notes.Due(0, seconds(6)));
  EXPECT_FALSE(notes.Due(1, seconds(6)));
  EXPECT_TRUE(notes.Due(1, seconds(9)));
  notes.Answered(0);
  EXPECT_FALSE(notes.Due(0, seconds(40)));
  EXPECT_FALSE(notes.Due(0, seconds(44)));
  EXPECT_TRUE(notes.Due(0, seconds(45)));
}

}  // namespace
}  // namespace meshtrain::parameter
