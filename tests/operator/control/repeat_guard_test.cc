#include "operator/control/repeat_guard.h"

#include <gtest/gtest.h>

#include "tests/support/fake_clock.h"

namespace meshtrain::control {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

class RepeatGuardTest : public ::testing::Test {
 protected:
  // Whether `write` would be sent.
  bool Sends(const std::string& write, int64_t change) {
    return !guard_.Before("ml/a", write, change).has_value();
  }
  testing::FakeClock clock_;
  RepeatGuard guard_{clock_};
};

TEST_F(RepeatGuardTest, WhatWasAcceptedIsNotSentAgainBeforeTheWorldChanges) {
  EXPECT_TRUE(Sends("delete p", 7));
  guard_.Answered("ml/a", "delete p", 7, OkStatus());
  clock_.Advance(seconds(100'000));
  const auto before = guard_.Before("ml/a", "delete p", 7);
  ASSERT_TRUE(before);
  EXPECT_TRUE(before->status.ok());
  EXPECT_FALSE(before->may_in) << "no timer: the world will tell";
  EXPECT_TRUE(Sends("delete p", 8));
  EXPECT_TRUE(Sends("delete q", 7));
  EXPECT_FALSE(guard_.Before("ml/b", "delete p", 7)) << "another job";
}

TEST_F(RepeatGuardTest, NothingIsSentTwiceWithinASecond) {
  guard_.Answered("ml/a", "delete p", 7, OkStatus());
  clock_.Advance(milliseconds(400));
  const auto before = guard_.Before("ml/a", "delete p", 8);
  ASSERT_TRUE(before);
  EXPECT_EQ(before->may_in, milliseconds(600));
  clock_.Advance(milliseconds(600));
  EXPECT_TRUE(Sends("delete p", 8));
}

TEST_F(RepeatGuardTest, WhatWasRefusedIsTriedLessAndLessAndAtOnceWhenTheWorldChanges) {
  for (const int wait : {1, 2, 4, 8, 16, 32, 60, 60}) {
    guard_.Answered("ml/a", "create p", 7, ResourceExhausted("quota"));
    const auto before = guard_.Before("ml/a", "create p", 7);
    ASSERT_TRUE(before);
    EXPECT_EQ(before->status.code(), StatusCode::kResourceExhausted);
    EXPECT_EQ(before->may_in, seconds(wait));
    clock_.Advance(seconds(1));
    EXPECT_TRUE(Sends("create p", 8));
    if (wait > 1) {
      EXPECT_FALSE(Sends("create p", 7));
    }
    clock_.Advance(seconds(wait - 1));
    EXPECT_TRUE(Sends("create p", 7));
  }
  guard_.Answered("ml/a", "create p", 7, OkStatus());
  guard_.Answered("ml/a", "create p", 8, ResourceExhausted("quota"));
  EXPECT_EQ(guard_.Before("ml/a", "create p", 8)->may_in, seconds(1)) << "refusals in a row";
}

TEST_F(RepeatGuardTest, RemembersManyAndForgetsAJobThatIsGone) {
  for (int i = 0; i < 5000; ++i) {
    guard_.Answered("ml/a", "create " + std::to_string(i), 7, OkStatus());
  }
  for (int i = 0; i < 5000; ++i) EXPECT_FALSE(Sends("create " + std::to_string(i), 7));
  guard_.Forget("ml/a");
  EXPECT_TRUE(Sends("create 0", 7));
}

}  // namespace
}  // namespace meshtrain::control
