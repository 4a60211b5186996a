#include "runtime/membership/stuck.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

namespace meshtrain::membership {
namespace {

using std::chrono::seconds;

constexpr Duration kStuckAfter = seconds(60);

cluster::TaskId Worker(int index) { return {cluster::Role::kWorker, index}; }

Standing At(int worker, int64_t step, uint64_t collective, std::string waiting_at, Duration since) {
  return {Worker(worker), {step, collective, std::move(waiting_at)}, since, since};
}

std::string Stuck(const std::vector<Standing>& members, Duration now) {
  const auto status = FindStuck(members, now, kStuckAfter);
  if (!status) return "";
  EXPECT_EQ(status->code(), StatusCode::kUnavailable);
  return status->message();
}

TEST(StandingTest, MovesWithStepAndCollectiveAndWaitsAnewAtEachPlace) {
  Standing standing{Worker(0), {}, seconds(1), seconds(1)};
  standing.Report({1, 1, "all_reduce"}, seconds(2));
  EXPECT_EQ(standing.moved, seconds(2));
  EXPECT_EQ(standing.waiting_since, seconds(2));
  standing.Report({1, 1, "all_reduce"}, seconds(3));
  EXPECT_EQ(standing.waiting_since, seconds(2));
  standing.Report({1, 1, ""}, seconds(4));
  standing.Report({1, 1, "all_reduce"}, seconds(5));
  EXPECT_EQ(standing.moved, seconds(2));
  EXPECT_EQ(standing.waiting_since, seconds(5));
}

TEST(FindStuckTest, NobodyIsStuckBeforeTheTimeIsUp) {
  const std::vector<Standing> members = {At(0, 5, 3, "all_reduce", seconds(0)),
                                         At(1, 5, 2, "", seconds(0))};
  EXPECT_EQ(Stuck(members, seconds(59)), "");
  EXPECT_NE(Stuck(members, seconds(60)), "");
}

TEST(FindStuckTest, NamesTheOneThatComputesWhileOthersWaitAtTheSamePlace) {
  EXPECT_EQ(Stuck({At(0, 5, 3, "all_reduce of %31", seconds(0)), At(1, 5, 3, "", seconds(0)),
                   At(2, 5, 3, "all_reduce of %31", seconds(10))},
                  seconds(60)),
            "worker-1 stuck: stands at step 5, collective 3, and computes for 60.0 s; 2 others "
            "wait for it, worker-0 "
            "longest, in all_reduce of %31");
}

TEST(FindStuckTest, NamesTheFurthestBehindThoughItWaitsToo) {
  EXPECT_EQ(Stuck({At(0, 5, 3, "all_reduce of %31", seconds(0)),
                   At(1, 5, 2, "all_gather of %7", seconds(0))},
                  seconds(61)),
            "worker-1 stuck: stands at step 5, collective 2, in all_gather of %7 for 61.0 s; 1 "
            "other waits for it, "
            "worker-0 longest, in all_reduce of %31");
}

TEST(FindStuckTest, CountsThoseThatStandBesideTheLast) {
  EXPECT_THAT(Stuck({At(0, 5, 3, "x", seconds(0)), At(1, 4, 9, "", seconds(0)),
                     At(2, 4, 9, "", seconds(0))},
                    seconds(60)),
              ::testing::StartsWith("worker-1 and 1 more stuck: stands at step 4"));
}

TEST(FindStuckTest, ADeadlockOfAllIsSaid) {
  EXPECT_EQ(Stuck({At(0, 5, 3, "all_reduce", seconds(0)), At(1, 5, 3, "all_reduce", seconds(0))},
                  seconds(60)),
            "worker-0 and all others stuck: each stands at step 5, collective 3, in all_reduce for "
            "60.0 s, and none is "
            "behind");
}

TEST(FindStuckTest, WorkThatNobodyWaitsForMayTakeItsTime) {
  EXPECT_EQ(Stuck({At(0, 5, 3, "", seconds(0)), At(1, 5, 2, "", seconds(0))}, seconds(1000)), "");
  EXPECT_EQ(Stuck({At(0, 5, 3, "all_reduce", seconds(0))}, seconds(1000)), "");
}

TEST(FindStuckTest, WhoWaitsOnlyNowHasPatience) {
  // Both compiled for 70 s; one of them is done a moment before the other.
  EXPECT_EQ(Stuck({{Worker(0), {0, 0, "all_reduce"}, seconds(0), seconds(70)},
                   At(1, 0, 0, "", seconds(0))},
                  seconds(71)),
            "");
}

TEST(FindStuckTest, NamesTheOneThatDoesNotComeToAnAgreement) {
  Standing here = At(0, 0, 0, "agree on \"loaded\"", seconds(0));
  here.progress.agreements = 3;
  Standing hangs = At(1, 0, 0, "", seconds(0));
  hangs.progress.agreements = 2;
  EXPECT_EQ(
      Stuck({here, hangs}, seconds(60)),
      "worker-1 stuck: stands at step 0, collective 0, and computes for 60.0 s; 1 other waits "
      "for it, worker-0 longest, in agree on \"loaded\"");
  // It was in the agreement before that one 10 s ago.
  hangs = At(1, 0, 0, "agree on \"resume from\"", seconds(0));
  hangs.Report({.agreements = 2}, seconds(50));
  EXPECT_EQ(Stuck({here, hangs}, seconds(60)), "");
  EXPECT_NE(Stuck({here, hangs}, seconds(110)), "");
}

TEST(FindStuckTest, WhoIsBusyWithASlowVolumeIsWaitedForButNoExcuseForAnother) {
  const Standing here = At(0, 5, 3, "agree on \"end\"", seconds(0));
  Standing saves = At(1, 5, 3, "", seconds(0));
  saves.Report({5, 3, "", 0, "the last save"}, seconds(1));
  EXPECT_EQ(Stuck({here, saves}, seconds(1000)), "");
  EXPECT_THAT(
      Stuck({here, saves, At(2, 5, 3, "", seconds(0))}, seconds(60)),
      ::testing::StartsWith("worker-2 stuck: stands at step 5, collective 3, and computes"));
  saves.Report({5, 3, "", 0, ""}, seconds(1000));  // done, and given time to come
  EXPECT_EQ(Stuck({here, saves}, seconds(1059)), "");
  EXPECT_NE(Stuck({here, saves}, seconds(1060)), "");
  EXPECT_EQ(Where({5, 3, "", 0, "the last save"}),
            "stands at step 5, collective 3, busy with the last save");
}

TEST(FindStuckTest, WhoMovesIsSlowNotStuck) {
  EXPECT_EQ(
      Stuck({At(0, 900, 3, "all_reduce", seconds(0)), At(1, 5, 2, "", seconds(30))}, seconds(80)),
      "");
}

}  // namespace
}  // namespace meshtrain::membership
