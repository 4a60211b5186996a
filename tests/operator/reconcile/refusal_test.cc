// A write that the API server refused: the job waits, tries again in time and says what is wrong.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/operator/reconcile/scene.h"

namespace meshtrain::reconcile {
namespace {

using api::ConditionType;
using ::testing::HasSubstr;
using ::testing::Not;

TEST(RefusalTest, ARefusedWriteIsWhatTheJobWaitsFor) {
  Scene scene(MakeJob("mnist").Workers(3));
  scene.Look(0);
  scene.Obey();
  scene.status() = {};
  scene.Gone(kWorker2);
  scene.seen.refused = RefusedWrite{"pods \"mnist-worker-2\"", "Forbidden", "exceeded quota: gpus"};
  EXPECT_EQ(scene.Look(1),
            "patch status Waiting Created=JobCreated Waiting=QuotaExceeded\n"
            "create pod mnist-worker-2 (attempt 0)\ntell JobCreated: the job is created\n"
            "warn QuotaExceeded: pods \"mnist-worker-2\": exceeded quota: gpus\n");
  EXPECT_EQ(scene.status().conditions[ConditionType::kWaiting].message,
            "pods \"mnist-worker-2\": exceeded quota: gpus");
  EXPECT_EQ(scene.Look(9), "create pod mnist-worker-2 (attempt 0)\n")
      << "it keeps trying, and says it once";
  EXPECT_FALSE(scene.Is(ConditionType::kRunning)) << "a job that lacks a pod does not run";
  scene.Obey();
  scene.seen.refused.reset();
  scene.Look(20);
  EXPECT_TRUE(scene.Is(ConditionType::kRunning));
  EXPECT_FALSE(scene.Is(ConditionType::kWaiting));
}

TEST(RefusalTest, NothingIsAskedForAgainBeforeItsTime) {
  Scene scene(MakeJob("mnist").Workers(2));
  scene.seen.refused = RefusedWrite{
      .what = "services \"mnist\"", .reason = "Forbidden", .message = "no", .retry_at = At(30)};
  EXPECT_THAT(scene.Look(1), Not(AnyOf(HasSubstr("create service"), HasSubstr("create pod"))));
  EXPECT_EQ(scene.Reason(ConditionType::kWaiting), "Forbidden");
  EXPECT_TRUE(scene.Is(ConditionType::kCreated)) << "it was accepted, though nothing is made yet";
  EXPECT_EQ(scene.Look(10), "");
  EXPECT_EQ(scene.last.wake_at, At(30));
  EXPECT_THAT(scene.Look(30), HasSubstr("create service mnist\ncreate pod mnist-worker-0"));
}

TEST(RefusalTest, NamesThePathInTheManifest) {
  const auto said = [](RefusedWrite refused) {
    Scene scene(MakeJob("mnist").Chief().Workers(2));
    scene.seen.refused = std::move(refused);
    scene.Look(1);
    return scene.Reason(ConditionType::kWaiting) + " " +
           scene.status().conditions[ConditionType::kWaiting].message;
  };
  EXPECT_EQ(said({"pods \"mnist-worker-1\"", "Invalid",
                  "Pod \"mnist-worker-1\" is invalid: [spec.containers[0].image: Required value, "
                  "spec.containers[0].name: Invalid value]"}),
            "Refused Pod \"mnist-worker-1\" is invalid: "
            "[spec.replicaSpecs.worker.template.spec.containers[0].image: Required value, "
            "spec.replicaSpecs.worker.template.spec.containers[0].name: Invalid value]");
  EXPECT_EQ(said({"services \"mnist\"", "AlreadyExists", "spec.x is not ours"}),
            "NameTaken services \"mnist\": spec.x is not ours");
  EXPECT_EQ(said({"pods \"mnist-worker-1\"", "InternalError", "failed calling webhook \"w\""}),
            "ServerError pods \"mnist-worker-1\": failed calling webhook \"w\"");
}

}  // namespace
}  // namespace meshtrain::reconcile
