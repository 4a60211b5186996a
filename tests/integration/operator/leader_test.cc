// Two operators and one Lease.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include "tests/integration/operator/operator_fixture.h"

namespace meshtrain::testing {
namespace {

using ::testing::HasSubstr;

using LeaderTest = OperatorTest;

TEST_F(LeaderTest, HandsOverAtOnceOnSigterm) {
  OperatorProcess& first = StartOperator();
  OperatorProcess& second = StartOperator(/*wait_until_leading=*/false);
  ASSERT_TRUE(Eventually([&] { return second.Log().find("standing by") != std::string::npos; }));
  first.Signal(SIGTERM);
  EXPECT_EQ(first.Wait(std::chrono::seconds(10)), 0) << first.Log();
  // The next try comes within 2.4 s; a lease that had to expire would take 15 s.
  EXPECT_TRUE(Eventually([&] { return second.Log().find("leading") != std::string::npos; },
                         std::chrono::seconds(12)));
  ApplyJob("mnist", 0, 1);
  EXPECT_TRUE(WaitForPods("mnist", 1));
}

TEST_F(LeaderTest, AStoppedLeaderIsFollowedAndWritesNothingAfter) {
  OperatorProcess& first = StartOperator();
  OperatorProcess& second = StartOperator(/*wait_until_leading=*/false);
  ASSERT_TRUE(Eventually([&] { return second.Log().find("standing by") != std::string::npos; }));
  first.Signal(SIGSTOP);
  ApplyJob("mnist", 0, 2);  // the event waits in the stopped process' socket
  ASSERT_TRUE(Eventually([&] { return second.Log().find("leading") != std::string::npos; },
                         std::chrono::seconds(30)));
  ASSERT_TRUE(WaitForPods("mnist", 2));
  // Now nobody may work, and there is work to do.
  second.Signal(SIGSTOP);
  ApplyJob("late", 0, 1);
  Kubectl({"delete", "pod", "mnist-worker-1"});
  first.Signal(SIGCONT);
  EXPECT_EQ(first.Wait(std::chrono::seconds(15)), 74)
      << "it ends when it sees that the lease is lost";
  EXPECT_THAT(first.Log(), HasSubstr("lease"));
  EXPECT_EQ(Pods("late").size(), 0u);
  EXPECT_EQ(Pods("mnist").size(), 1u);
  // It leads on where it slept for less than the lease allows; else the next does.
  second.Signal(SIGCONT);
  StartOperator(/*wait_until_leading=*/false);
  EXPECT_TRUE(Eventually([&] { return Pods("late").size() == 1; }, std::chrono::seconds(40)));
}

}  // namespace
}  // namespace meshtrain::testing
