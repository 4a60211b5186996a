// A status stays small and stable, whatever pods and programs put into it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "operator/api/json.h"
#include "operator/reconcile/progress.h"
#include "tests/operator/reconcile/scene.h"

namespace meshtrain::reconcile {
namespace {

using api::ConditionType;
using ::testing::HasSubstr;
using ::testing::Not;

// Bytes that JSON would change on their way to the server and back make no endless news.
TEST(LifecycleTest, OddBytesInMessagesAreWrittenOnce) {
  Scene scene(MakeJob("mnist").Workers(2));
  scene.Running();
  PodSeen pod = MakePod(scene.job, kWorker1);
  pod.waiting_reason = std::string(300, 'R');
  pod.waiting_message =
      "a\xff\xc3\x28\xed\xa0\x80\nb\0c" + std::string(150, 'x') + std::string(40, '\xc3');
  for (int i = 0; i < 60; ++i) pod.waiting_message += "\xe2\x82\xac";
  scene.Pod(pod);
  scene.Look(50);
  ASSERT_EQ(scene.status().worst.size(), 1u);
  EXPECT_EQ(scene.status().worst[0].reason.size(), 128u);
  EXPECT_EQ(api::FromJson(api::ToJson(scene.job))->status, scene.status());
  EXPECT_EQ(scene.Look(100), "");
}

TEST(LifecycleTest, StatusStaysSmallAtTenThousandPods) {
  Scene scene(MakeJob("big").Workers(10000));
  scene.seen.settings.max_creates = 100000;
  scene.Running();
  for (size_t i = 0; i < scene.seen.pods.size(); ++i) {
    PodSeen& pod = scene.seen.pods[i];
    pod.phase = PodPhase::kFailed;
    pod.exit_code = 138;
    pod.exit_reason = "Error";
    pod.termination_message = std::string(4000, 'x');
  }
  scene.Look(50);
  EXPECT_TRUE(scene.Is(ConditionType::kRestarting));
  EXPECT_EQ(scene.status().recovery.counted, 1) << "one incident, however many ranks";
  EXPECT_EQ(scene.status().worst.size(), 10u);
  EXPECT_LT(api::StatusToJson(scene.status()).size(), 8192u);
}

// Every field as long as it can be, at once.
TEST(LifecycleTest, StatusStaysSmallWhateverItSays) {
  Scene scene(MakeJob(std::string(50, 'j')).Chief().Workers(20).Ps(2).Evaluator());
  api::JobStatus& status = scene.status();
  const std::string said(5000, '"');  // two bytes each in JSON
  for (const auto type :
       {ConditionType::kCreated, ConditionType::kRunning, ConditionType::kRestarting,
        ConditionType::kSuspended, ConditionType::kWaiting, ConditionType::kStalled,
        ConditionType::kStraggling}) {
    status.conditions[type] = {.status = type == ConditionType::kRunning,
                               .reason = std::string(30, 'R'),
                               .message = said,
                               .observed_generation = 1'000'000,
                               .last_transition = At(0)};
  }
  status.start_time = At(0);
  status.recovery = {.attempt = 1'000'000,
                     .restart_all_below = 0,
                     .counted = 1'000'000,
                     .disruptions = 1'000'000,
                     .newest_pod = At(0)};
  for (const auto role : cluster::kRoles) {
    status.recovery.counted_by_role[role] = status.recovery.incidents_by_role[role] = 1'000'000;
    api::InPlace& tally = status.recovery.in_place_by_role[role];
    tally = {.told = 1'000'000, .past = 1'000'000};
    for (size_t i = 0; i < api::kMaxLost; ++i) tally.lost.push_back({std::string(32, 'i'), 10'000});
    status.recovery.in_place = tally;
  }
  for (size_t i = 0; i < api::kMaxRecent; ++i) {
    status.recovery.recent.push_back(
        {.at = At(0), .role = cluster::Role::kEvaluator, .counted = true, .in_place = true});
  }
  for (size_t i = 0; i < api::kMaxOutOfMemory; ++i) {
    status.recovery.out_of_memory.push_back({"evaluator-" + std::to_string(9000 + i), 1'000'000});
  }
  for (size_t i = 0; i < api::kMaxLost; ++i) {
    status.recovery.lost_incarnations.push_back(std::string(32, 'a' + static_cast<char>(i)));
  }
  status.active_seconds_before = 1e9;
  status.goodput = {1e9, 1e9, 1e9, int64_t{1} << 40, 0.999};
  scene.seen.progress = ParseProgress(
      R"({"step":1234567890123,"totalSteps":1234567890123,"epoch":1234.5678,"loss":0.00012345678,)"
      R"("accuracy":0.12345678,"examplesPerSecond":123456789.5,"etaSeconds":1234567890,)"
      R"("checkpoint":{"step":1234567890123,"path":")" +
          std::string(5000, 'p') + R"("},"plan":{"mesh":")" + std::string(5000, 'm') +
          R"(","peakBytesPerDevice":1234567890123,"collectiveBytesPerStep":1234567890123,"hash":")" +
          std::string(500, 'h') +
          R"("},"stoppedRank":"worker-1","rankStepSeconds":[1.2345678,9.87654321]})",
      At(10));
  for (int i = 0; i < 20; ++i) {
    PodSeen pod = MakePod(scene.job, {cluster::Role::kWorker, i});
    pod.waiting_reason = std::string(300, 'W');
    pod.waiting_message = said;
    pod.last_exit_code = 255;
    scene.Pod(pod);
  }
  scene.seen.refused = RefusedWrite{"pods \"x\"", "Forbidden", said};
  ASSERT_GT(api::StatusToJson(status).size(), size_t{8192});
  ASSERT_THAT(scene.Look(100), HasSubstr("patch status"));
  EXPECT_LE(api::StatusToJson(scene.status()).size(), size_t{8192});
  EXPECT_EQ(scene.status().recovery.recent.size(), api::kMaxRecent) << "decisions need it";
  EXPECT_EQ(scene.status().conditions.size(), 7u);
  scene.Obey();
  scene.Look(200);
  scene.Look(300);
  EXPECT_THAT(scene.Look(400), Not(HasSubstr("patch status"))) << "what is cut stays as it is";
}

}  // namespace
}  // namespace meshtrain::reconcile
