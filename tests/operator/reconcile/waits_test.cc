// Pods that do not start, or fail: which of them is named, and in whose words.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/operator/reconcile/scene.h"
#include "tests/support/small_program.h"

namespace meshtrain::reconcile {
namespace {

using api::ConditionType;
using ::testing::HasSubstr;

TEST(WaitsTest, NamesThePodThatDoesNotStartAndWhy) {
  struct Case {
    const char* reason;
    const char* message;
    const char* want;
  };
  for (const Case& c :
       {Case{"ImagePullBackOff", "Back-off pulling image \"train:1\"", "ImagePull"},
        Case{"CrashLoopBackOff", "back-off 10s", "CrashLoop"},
        Case{"CreateContainerConfigError", "secret \"s\" not found", "ContainerWaits"},
        Case{"Unschedulable", "0/5 nodes are available", "Unschedulable"}}) {
    Scene scene(MakeJob("mnist").Workers(2));
    scene.Look(0);
    scene.Obey();
    for (PodSeen& pod : scene.seen.pods) {
      pod.phase = PodPhase::kPending;
      pod.waiting_reason = c.reason;
      pod.waiting_message = c.message;
    }
    const std::string message =
        std::string("mnist-worker-0: ") + c.reason + ": " + c.message + " (and 1 more)";
    EXPECT_THAT(scene.Look(3), HasSubstr("warn " + std::string(c.want) + ": " + message + "\n"));
    EXPECT_EQ(scene.Reason(ConditionType::kWaiting), c.want);
    EXPECT_EQ(scene.status().conditions[ConditionType::kWaiting].message, message);
    EXPECT_EQ(scene.status().worst.size(), 2u);
    EXPECT_EQ(scene.Look(100), "") << "said once";
  }
}

// The kubelet only says how long it waits.
TEST(WaitsTest, ACrashLoopIsToldWithTheProgramsLastLine) {
  Scene scene(MakeJob("mnist").Workers(1));
  scene.Look(0);
  scene.Obey();
  PodSeen& pod = scene.seen.pods[0];
  pod.waiting_reason = "CrashLoopBackOff";
  pod.waiting_message = "back-off 10s";
  pod.last_exit_code = 1;
  pod.termination_message = "Traceback:\n  line 3\nImportError: no module\n";
  EXPECT_THAT(scene.Look(3), HasSubstr("warn CrashLoop: mnist-worker-0: CrashLoopBackOff: back-off "
                                       "10s; it ended with exit code 1: ImportError: no module\n"));
  EXPECT_EQ(scene.status().worst.at(0).last_line, "ImportError: no module");
}

TEST(WaitsTest, AFailureIsToldWithTheProgramsLastLine) {
  const auto said = [](const std::string& last_words, int code = 1) {
    Scene scene(MakeJob("mnist").Workers(1).Backoff(0));
    scene.Running();
    PodSeen pod = EndedPod(scene.job, kWorker0, code, "Error");
    pod.termination_message = last_words;
    scene.Pod(pod).Look(5);
    return scene.status().conditions[ConditionType::kFailed].message;
  };
  const std::string failed = said("");
  EXPECT_THAT(failed, HasSubstr("mnist-worker-0 failed with exit code 1 (Error)"));
  EXPECT_EQ(said("Traceback:\n  line 3\nValueError: 783 columns\n"),
            failed + ": ValueError: 783 columns");
  EXPECT_EQ(said(R"({"step":7})"), failed);
  EXPECT_EQ(said(R"({"lostIncarnation":"a1"})"), failed);
  EXPECT_EQ(said(R"({"step":7,"error":"saving step 7: No space left on device"})"),
            failed + ": saving step 7: No space left on device");
  EXPECT_EQ(said(R"({"step":7,"error":[1]})"), failed);
  EXPECT_EQ(said("{\"level\":\"info\"}\nValueError: 783 columns"),
            failed + ": ValueError: 783 columns");
  // What it said last before it was killed is not why.
  EXPECT_EQ(said("step 40: loss 0.3", 137), said("", 137));
  EXPECT_EQ(said("step 40: loss 0.3", 143), said("", 143));
}

TEST(WaitsTest, TheMostTellingWaitIsToldInWhateverOrderPodsStand) {
  for (const bool swapped : {false, true}) {
    Scene scene(MakeJob("mnist").Workers(2));
    scene.Look(0);
    scene.Obey();
    scene.seen.pods[swapped ? 1 : 0].waiting_reason = "CrashLoopBackOff";
    scene.seen.pods[swapped ? 0 : 1].waiting_reason = "Unschedulable";
    for (PodSeen& pod : scene.seen.pods) pod.phase = PodPhase::kPending;
    scene.Look(3);
    EXPECT_EQ(scene.Reason(ConditionType::kWaiting), "Unschedulable");
  }
}

// A volume that does not mount shows in no state of a container.
TEST(WaitsTest, APodThatHasItsNodeAndDoesNotStartIsTold) {
  Scene scene(MakeJob("mnist").Workers(1).Program(testing_support::kProgram));
  scene.Look(0);
  scene.Obey();
  scene.seen.pods[0].phase = PodPhase::kPending;
  scene.seen.pods[0].starting_since = At(10);
  scene.Look(20);
  EXPECT_FALSE(scene.Is(ConditionType::kWaiting));
  EXPECT_EQ(scene.last.wake_at, At(70));
  const std::string did = scene.Look(70);
  EXPECT_THAT(did,
              HasSubstr("warn SlowStart: mnist-worker-0 has been on its node node-1 for a minute"));
  EXPECT_THAT(did, HasSubstr("probe secret mnist-token-")) << "it may be what is missing";
  scene.seen.mounts_asked = At(70);
  EXPECT_EQ(scene.Look(80), "") << "once";
}

TEST(WaitsTest, APodThatDoesNotStartIsToldWithWhatItMounts) {
  Scene scene(MakeJob("mnist").Workers(1));
  scene.Look(0);
  scene.Obey();
  scene.seen.pods[0].phase = PodPhase::kPending;
  scene.seen.pods[0].starting_since = At(10);
  scene.seen.pods[0].volumes = "Secret wandb-key, claim mnist-data";
  EXPECT_THAT(scene.Look(70), HasSubstr("has not started: a volume (Secret wandb-key, claim "
                                        "mnist-data) may not mount"));
}

// Nothing else shows that it is missing: no watch tells of Secrets.
TEST(WaitsTest, WhatASlowPodMountsIsAskedForUntilThereIsAnAnswerAndThenEveryFiveMinutes) {
  Scene scene(MakeJob("mnist").Workers(2).Program(testing_support::kProgram));
  scene.Look(0);
  scene.Obey();
  scene.seen.mounts_asked = At(0);
  for (PodSeen& pod : scene.seen.pods) pod.phase = PodPhase::kPending;
  scene.seen.pods[0].starting_since = At(10);
  scene.seen.pods[1].starting_since = At(30);
  EXPECT_THAT(scene.Look(70), HasSubstr("probe secret")) << "the answer gets lost";
  EXPECT_THAT(scene.Look(71), HasSubstr("probe secret"));
  scene.seen.mounts_asked = At(71);
  EXPECT_EQ(scene.Look(80), "");
  EXPECT_EQ(scene.last.wake_at, At(90));
  EXPECT_THAT(scene.Look(90), HasSubstr("probe secret")) << "for the other pod";
  scene.seen.mounts_asked = At(90);
  EXPECT_EQ(scene.Look(389), "");
  EXPECT_EQ(scene.last.wake_at, At(390));
  EXPECT_EQ(scene.Look(390).substr(0, 12), "probe secret") << "it may have been deleted since";
  EXPECT_TRUE(scene.last.actions[0].repeat) << "though nothing was told since";
  scene.seen.mounts_asked = At(4000);
  EXPECT_THAT(scene.Look(400), HasSubstr("probe secret")) << "the clock was set back";
}

}  // namespace
}  // namespace meshtrain::reconcile
