#include "operator/reconcile/progress.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/operator/reconcile/scene.h"

namespace meshtrain::reconcile {
namespace {

using api::ConditionType;
using ::testing::HasSubstr;

ProgressSeen Step(int64_t step, double at, int64_t total = 1000) {
  ProgressSeen seen;
  seen.progress = {.step = step, .total_steps = total, .loss = 0.5, .observed_at = At(at)};
  return seen;
}

TEST(ProgressTest, ReadsWhatTheWorkerWrites) {
  const auto seen = ParseProgress(
      R"({"step":120,"totalSteps":400,"epoch":1.5,"loss":0.2,"accuracy":0.9,"examplesPerSecond":1000.5,"etaSeconds":3.7,)"
      R"("rankStepSeconds":[1],"checkpoint":{"step":100,"path":"/c"},"plan":{"mesh":"batch=8","peakBytesPerDevice":5,)"
      R"("collectiveBytesPerStep":6,"hash":"h"},"stoppedRank":"worker-3"})",
      At(7));
  ASSERT_TRUE(seen.has_value());
  EXPECT_EQ(seen->progress, (api::ProgressStatus{.step = 120,
                                                 .total_steps = 400,
                                                 .epoch = 1.5,
                                                 .loss = 0.2,
                                                 .accuracy = 0.9,
                                                 .examples_per_second = 1000.5,
                                                 .eta_seconds = 3,
                                                 .observed_at = At(7)}));
  EXPECT_EQ(seen->checkpoint, (api::CheckpointStatus{100, "/c"}));
  EXPECT_EQ(seen->plan->mesh, "batch=8");
  EXPECT_EQ(seen->stopped_rank, "worker-3");
}

TEST(ProgressTest, OtherTextsAreNoProgress) {
  for (const char* text : {"", "Traceback", "{", "[]", "{}", R"({"step":"x"})", R"({"step":-1})",
                           R"({"step":1e300})"}) {
    EXPECT_FALSE(ParseProgress(text, At(0)).has_value()) << text;
  }
  EXPECT_EQ(
      ParseProgress(R"({"step":1,"loss":null,"plan":7,"checkpoint":[]})", At(0))->progress.loss,
      std::nullopt);
}

TEST(ProgressTest, NumbersAreRoundedAsAColumnShowsThem) {
  const auto seen = ParseProgress(
      R"({"step":1,"loss":0.03232154622673988,"examplesPerSecond":1234567.8})", At(0));
  EXPECT_EQ(seen->progress.loss, 0.0323215);
  EXPECT_EQ(seen->progress.examples_per_second, 1234570);
}

TEST(ProgressTest, IsWrittenAtMostEveryFiveSeconds) {
  Scene scene(MakeJob("mnist").Workers(1));
  scene.Running();
  scene.seen.progress = Step(10, 3);
  EXPECT_EQ(scene.Look(3), "");
  EXPECT_EQ(scene.last.wake_at, At(7));
  scene.seen.progress = Step(30, 7);
  EXPECT_THAT(scene.Look(7), HasSubstr("patch status Running"));
  EXPECT_EQ(scene.status().progress->step, 30);
  EXPECT_EQ(scene.Look(100), "") << "the same again is no news";
}

TEST(ProgressTest, TheLastWordOfAShortJobIsItsTerminationMessage) {
  Scene scene(MakeJob("mnist").Workers(1));
  PodSeen pod = EndedPod(scene.Running().job, kWorker0, 0);
  pod.termination_message = R"({"step":120,"totalSteps":120,"loss":0.18,"accuracy":0.94})";
  scene.Pod(pod);
  scene.Look(51);
  EXPECT_TRUE(scene.Is(ConditionType::kSucceeded));
  EXPECT_EQ(scene.status().progress->step, 120);
  EXPECT_EQ(scene.status().progress->accuracy, 0.94);
}

TEST(ProgressTest, LearnsTheUsualStepTimeAndGuessesTheEnd) {
  Scene scene(MakeJob("mnist").Workers(1));
  scene.Running();
  scene.seen.progress = Step(0, 10);
  scene.Look(10);
  scene.seen.progress = Step(10, 20);
  scene.Look(20);
  EXPECT_EQ(scene.status().progress->seconds_per_step, 1.0);
  EXPECT_EQ(scene.status().progress->eta_seconds, 990);
  EXPECT_EQ(scene.status().progress->advanced_at, At(20));
}

// A chief may say any number: what is made of it stays one.
TEST(ProgressTest, WhatIsMadeOfNumbersWithoutEndStaysWithinBounds) {
  Scene scene(MakeJob("mnist").Workers(1));
  scene.Running();
  const auto say = [&](const std::string& step, double at) {
    scene.seen.progress =
        ParseProgress(R"({"step":)" + step + R"(,"totalSteps":9000000000000000})", At(at));
    scene.Look(at);
  };
  say("1", 10);
  say("2", 100'010);  // 100,000 s a step
  EXPECT_EQ(scene.status().progress->eta_seconds, 9'000'000'000'000'000);
  for (int i = 0; i < 2000; ++i) {
    say("9000000000000000", 200'000 + 20 * i);
    say("0", 200'010 + 20 * i);
  }
  EXPECT_EQ(scene.status().goodput.lost_steps, 9'000'000'000'000'000);
}

TEST(ProgressTest, StallsAfterItsDeadlineAndNamesTheRank) {
  Scene scene(MakeJob("mnist").Workers(1).With(
      [](api::TrainingJob& job) { job.spec.run_policy.progress_deadline_seconds = 30; }));
  scene.Running();
  scene.seen.progress = Step(5, 10);
  scene.Look(10);
  EXPECT_EQ(scene.last.wake_at, At(40));
  scene.seen.progress = Step(5, 39);
  scene.Look(39);
  EXPECT_FALSE(scene.Is(ConditionType::kStalled));
  scene.seen.progress->stopped_rank = "worker-3";
  EXPECT_THAT(scene.Look(40),
              HasSubstr("Stalled=NoProgress\nwarn JobStalled: step 5 has not moved on"));
  EXPECT_THAT(scene.status().conditions[ConditionType::kStalled].message,
              HasSubstr("worker-3 stopped first"));
  EXPECT_EQ(scene.status().phase, "Stalled");
  EXPECT_TRUE(scene.Is(ConditionType::kRunning));
  scene.seen.progress = Step(6, 60);
  scene.Look(60);
  EXPECT_FALSE(scene.Is(ConditionType::kStalled));
}

TEST(ProgressTest, AJobThatIsAskedSeldomIsJudgedByAnAnswerPastItsDeadline) {
  Scene scene(MakeJob("mnist").Workers(1).With(
      [](api::TrainingJob& job) { job.spec.run_policy.progress_deadline_seconds = 4; }));
  scene.Running();
  const auto answer = [&](int64_t step, double at) {
    scene.seen.progress = Step(step, at);
    scene.seen.progress->standing_since = At(step == 5 ? 10 : 25);
    scene.seen.progress->next_answer = At(at + 18);
    scene.Look(at);
  };
  answer(5, 10);
  EXPECT_EQ(scene.last.wake_at, At(28));
  scene.Look(20);
  EXPECT_FALSE(scene.Is(ConditionType::kStalled)) << "it may have moved on";
  answer(6, 25);
  EXPECT_FALSE(scene.Is(ConditionType::kStalled)) << "it has";
  answer(6, 40);
  EXPECT_TRUE(scene.Is(ConditionType::kStalled)) << "it says that it stands";
  answer(7, 55);
  EXPECT_FALSE(scene.Is(ConditionType::kStalled));
  scene.Look(72);
  EXPECT_FALSE(scene.Is(ConditionType::kStalled));
  scene.Look(73);
  EXPECT_TRUE(scene.Is(ConditionType::kStalled)) << "nor does it answer when it should";
}

TEST(ProgressTest, AStepThatThisProcessHasJustSeenDoesNotStandStill) {
  Scene scene(MakeJob("mnist").Workers(1).With(
      [](api::TrainingJob& job) { job.spec.run_policy.progress_deadline_seconds = 30; }));
  scene.Running();
  scene.seen.progress = Step(5, 10);
  scene.Look(10);
  // Another operator, whose clock is an hour ahead.
  scene.seen.progress = Step(5, 3612);
  scene.seen.progress->standing_since = At(3610);
  scene.Look(3612);
  EXPECT_FALSE(scene.Is(ConditionType::kStalled));
  EXPECT_EQ(scene.last.wake_at, At(3640));
  scene.Look(3640);
  EXPECT_TRUE(scene.Is(ConditionType::kStalled));
}

TEST(ProgressTest, NothingStandsStillForLongerThanItWasWatched) {
  Scene scene(MakeJob("mnist").Workers(1).With(
      [](api::TrainingJob& job) { job.spec.run_policy.progress_deadline_seconds = 30; }));
  scene.Running();
  scene.seen.progress = Step(5, 10);
  scene.Look(10);
  // The next process' first look: it has not asked anybody yet.
  scene.seen.progress.reset();
  scene.seen.watched_since = At(200);
  scene.Look(200);
  EXPECT_FALSE(scene.Is(ConditionType::kStalled));
  EXPECT_EQ(scene.last.wake_at, At(230));
  scene.Look(230);
  EXPECT_TRUE(scene.Is(ConditionType::kStalled)) << "and heard nothing since";
}

TEST(ProgressTest, AnOperatorWhoseClockIsBehindGoesOnTelling) {
  Scene scene(MakeJob("mnist").Workers(1));
  scene.Running();
  scene.seen.progress = Step(5, 3610);
  scene.Look(3610);
  scene.seen.progress = Step(9, 20);
  EXPECT_THAT(scene.Look(20), HasSubstr("patch status"));
  EXPECT_EQ(scene.status().progress->step, 9);
}

TEST(ProgressTest, NamesTheStraggler) {
  Scene scene(MakeJob("mnist").Chief().Workers(3));
  scene.Running();
  const auto look = [&](int64_t step, const std::string& times) {
    const double at = 10 * static_cast<double>(step);
    scene.seen.progress = ParseProgress(
        R"({"step":)" + std::to_string(step) + R"(,"rankStepSeconds":)" + times + "}", At(at));
    return scene.Look(at);
  };
  look(1, "[1.0,1.1,1.9,1.0]");
  EXPECT_EQ(scene.status().progress->slowest, (api::Straggler{"worker-1", 1.9, 1.0}));
  EXPECT_FALSE(scene.Is(ConditionType::kStraggling));
  EXPECT_THAT(look(2, "[1.0,1.1,2.5,1.0]"),
              HasSubstr("Straggling=SlowReplica\nwarn SlowReplica: worker-1 takes 2.5 s of its own "
                        "for a step, the median of all is 1 s\n"));
  EXPECT_TRUE(scene.Is(ConditionType::kRunning));
  look(3, "[1.0,1.1,1.6,1.0]");
  EXPECT_TRUE(scene.Is(ConditionType::kStraggling)) << "until it is far better";
  look(4, "[1.0,1.1,1.2,1.0]");
  EXPECT_EQ(scene.Reason(ConditionType::kStraggling), "EvenReplicas");
  look(5, "[0.001,0.001,0.004,0.001]");
  EXPECT_FALSE(scene.Is(ConditionType::kStraggling)) << "too short to matter";
  for (const char* odd : {"[]", "[1]", "[null,1]", "[1e999]", "7", R"(["a",{}])", "[0,-1]"}) {
    look(6, odd);
    EXPECT_FALSE(scene.Is(ConditionType::kStraggling)) << odd;
  }
}

TEST(ProgressTest, WithoutADeadlineTenUsualStepsAreTooLong) {
  Scene scene(MakeJob("mnist").Workers(1));
  scene.Running();
  for (int i = 1; i <= 3; ++i) {
    scene.seen.progress = Step(i, 20.0 * i);
    scene.Look(20.0 * i);
  }
  EXPECT_EQ(scene.status().progress->seconds_per_step, 20.0);
  EXPECT_EQ(scene.last.wake_at, At(260));
  scene.Look(259);
  EXPECT_FALSE(scene.Is(ConditionType::kStalled));
  scene.Look(260);
  EXPECT_TRUE(scene.Is(ConditionType::kStalled));
}

TEST(ProgressTest, AJobThatNeverRanHasNoGoodput) {
  Scene scene(MakeJob("mnist").Workers(2));
  scene.Look(0);
  scene.Obey();
  PodSeen pod = MakePod(scene.job, kWorker1);
  pod.phase = PodPhase::kPending;
  scene.Pod(pod);
  pod = MakePod(scene.job, kWorker0);
  pod.phase = PodPhase::kPending;
  scene.Pod(pod);
  scene.Look(60);
  EXPECT_EQ(scene.status().replica_statuses[cluster::Role::kWorker].replicas, 2);
  EXPECT_EQ(scene.status().goodput, api::Goodput{});
}

TEST(ProgressTest, GoodputCountsRestartsAndLostSteps) {
  Scene scene(MakeJob("mnist").Workers(1));
  scene.Running();
  scene.seen.progress = Step(10, 10);
  scene.Look(10);
  scene.seen.progress = Step(100, 100);
  scene.Look(100);
  PodSeen pod = EndedPod(scene.job, kWorker0, 138);
  scene.Pod(pod);
  scene.Look(110);
  scene.Obey();
  scene.Look(111);
  scene.Obey();
  scene.Look(130);
  EXPECT_EQ(scene.status().phase, "Running");
  scene.seen.progress = Step(80, 140);
  scene.Look(140);
  EXPECT_EQ(scene.status().goodput.lost_steps, 20);
  EXPECT_EQ(scene.status().goodput.restarting_seconds, 20);
  EXPECT_EQ(scene.status().goodput.waiting_seconds, 2);
  EXPECT_EQ(scene.status().goodput.running_seconds, 118);
  EXPECT_NEAR(*scene.status().goodput.ratio, (118.0 - 20) / 140, 1e-3);
}

TEST(ProgressTest, GoodputTellsWaitingFromRunning) {
  Scene scene(MakeJob("mnist").Workers(1));
  scene.Look(0);
  scene.Look(1);
  scene.Look(50);  // nowhere to run yet
  scene.Obey();
  scene.Look(60);
  scene.seen.progress = Step(100, 160);
  scene.Look(160);
  EXPECT_EQ(scene.status().goodput.waiting_seconds, 60);
  EXPECT_EQ(scene.status().goodput.running_seconds, 100);
  EXPECT_NEAR(*scene.status().goodput.ratio, 100.0 / 160, 1e-3);

  scene.job.spec.run_policy.suspend = true;
  scene.Look(170);
  scene.Obey();
  scene.Look(1000);
  scene.job.spec.run_policy.suspend = false;
  scene.Look(2000);
  scene.Look(2030);
  scene.Obey();
  scene.Look(2040);
  scene.seen.progress = Step(120, 2050);
  scene.Look(2050);
  EXPECT_EQ(scene.status().goodput.waiting_seconds, 100);
  EXPECT_EQ(scene.status().goodput.running_seconds, 120);
}

TEST(ProgressTest, GoodputCountsNoWaitTwice) {
  Scene scene(MakeJob("mnist").Workers(1));
  scene.Look(0);
  scene.Obey();
  scene.Pod(EndedPod(scene.job, kWorker0, 138));  // before anybody saw it run
  scene.Look(20);
  EXPECT_TRUE(scene.Is(ConditionType::kRestarting));
  EXPECT_EQ(scene.status().goodput.running_seconds, 0) << "it still waits for its first run";
  scene.Look(21);
  scene.Obey();
  scene.Look(30);
  scene.Look(31);
  scene.Obey();
  scene.Look(40);
  scene.seen.progress = Step(10, 100);
  scene.Look(100);
  EXPECT_TRUE(scene.Is(ConditionType::kRunning));
  EXPECT_EQ(scene.status().goodput.waiting_seconds, 40);
  EXPECT_EQ(scene.status().goodput.waiting_seconds + scene.status().goodput.restarting_seconds +
                scene.status().goodput.running_seconds,
            100);
}

}  // namespace
}  // namespace meshtrain::reconcile
