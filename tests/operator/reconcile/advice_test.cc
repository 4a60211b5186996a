// What the user is told to do, by what holds the job up.
#include <gtest/gtest.h>

#include "operator/reconcile/policy.h"
#include "tests/operator/reconcile/scene.h"
#include "tests/support/small_program.h"

namespace meshtrain::reconcile {
namespace {

JobBuilder Declared() {
  return MakeJob("mnist")
      .Workers(1)
      .Program(testing_support::kProgram)
      .With([](api::TrainingJob& job) {
        job.spec.replica_specs[cluster::Role::kWorker].pod_template = {};
      });
}

api::JobStatus Holds(ConditionType type, Reason reason) {
  api::JobStatus status;
  status.conditions[type] = {.status = true, .reason = std::string(api::ReasonName(reason))};
  return status;
}

std::string OfExit(const api::TrainingJob& job, int code, const std::string& reason = "Error") {
  api::JobStatus status = Holds(ConditionType::kFailed, Reason::kPodFailed);
  status.worst = {{.pod = "mnist-worker-1", .reason = "ContainerCreating"},
                  {.pod = "mnist-worker-0", .exit_code = code, .reason = reason}};
  return WhatToDo(job, status);
}

TEST(AdviceTest, IsThatOfTheReason) {
  const api::TrainingJob job = Declared().Build();
  EXPECT_EQ(WhatToDo(job, Holds(ConditionType::kWaiting, Reason::kQuotaExceeded)),
            "Free or raise the quota, or ask for less.");
  EXPECT_EQ(WhatToDo(job, Holds(ConditionType::kStraggling, Reason::kSlowReplica)).substr(0, 16),
            "Look at its node");
  EXPECT_EQ(WhatToDo(job, {}), "") << "nothing holds it up";
  EXPECT_EQ(WhatToDo(job, Holds(ConditionType::kSucceeded, Reason::kJobSucceeded)), "");
  api::JobStatus former = Holds(ConditionType::kWaiting, Reason::kImagePull);
  former.conditions[ConditionType::kWaiting].status = false;
  EXPECT_EQ(WhatToDo(job, former), "");
  api::JobStatus both = Holds(ConditionType::kStalled, Reason::kNoProgress);
  both.conditions[ConditionType::kWaiting] = {.status = true, .reason = "NodeNotReady"};
  EXPECT_EQ(WhatToDo(job, both).substr(0, 14), "Bring the node") << "the most telling";
  both.conditions[ConditionType::kWaiting].reason = "AWordOfAnotherOperator";
  EXPECT_EQ(WhatToDo(job, both), "");
}

TEST(AdviceTest, OfAProcessItGoesByTheExitCode) {
  const api::TrainingJob job = Declared().Build();
  EXPECT_EQ(OfExit(job, 78), "Mend the manifest as the last line says.");
  EXPECT_EQ(OfExit(job, 79).substr(0, 25), "Lower the learning rate o");
  EXPECT_EQ(OfExit(job, 137, "OOMKilled").substr(0, 32), "Raise the container's memory lim");
  EXPECT_EQ(OfExit(job, 137).substr(0, 18), "See who killed it:") << "not for want of memory";
  EXPECT_EQ(OfExit(job, 138).substr(0, 30), "See the process or the port th");
  EXPECT_EQ(OfExit(job, 127).substr(0, 31), "Correct the container's command");
  EXPECT_EQ(OfExit(job, 1), api::Reasons()[static_cast<size_t>(Reason::kPodFailed)].advice);
  // Another image means other things by our codes.
  const api::TrainingJob foreign = MakeJob("tf").Workers(1).Build();
  EXPECT_EQ(OfExit(foreign, 78), OfExit(foreign, 1));
  EXPECT_EQ(OfExit(foreign, 138), OfExit(foreign, 1));
  EXPECT_EQ(OfExit(foreign, 127), OfExit(job, 127));
  // A deadline is not mended by what a process left with.
  api::JobStatus late = Holds(ConditionType::kFailed, Reason::kDeadlineExceeded);
  late.worst = {{.pod = "mnist-worker-0", .exit_code = 78}};
  EXPECT_EQ(WhatToDo(job, late).substr(0, 5), "Raise");
}

// A reason may have several causes, which the kubelet's words tell apart.
TEST(AdviceTest, GoesByWhatTheNodeSaid) {
  const api::TrainingJob job = Declared().Build();
  const auto of = [&](ConditionType type, Reason reason, const std::string& message) {
    api::JobStatus status = Holds(type, reason);
    status.conditions[type].message = message;
    status.worst = {{.pod = "mnist-worker-0", .exit_code = 1, .reason = "Error"}};
    return WhatToDo(job, status);
  };
  const ConditionType waiting = ConditionType::kWaiting, failed = ConditionType::kFailed;
  EXPECT_EQ(of(waiting, Reason::kContainerWaits,
               "mnist-worker-0: container has runAsNonRoot and image will run as root")
                .substr(0, 41),
            "Use an image that runs as another user th");
  EXPECT_EQ(of(waiting, Reason::kContainerWaits, "mnist-worker-0: configmap \"m\" not found"),
            api::Reasons()[static_cast<size_t>(Reason::kContainerWaits)].advice);
  EXPECT_EQ(of(waiting, Reason::kForbidden,
               "pods \"mnist-worker-0\" is forbidden: violates PodSecurity \"restricted:latest\"")
                .substr(0, 29),
            "Set what the message names in");
  EXPECT_EQ(
      of(waiting, Reason::kForbidden, "pods \"mnist-worker-0\" is forbidden: no").substr(0, 3),
      "Ask");
  const std::string nodes = "mnist-worker-0: Unschedulable: 0/2 nodes are available: ";
  EXPECT_EQ(of(waiting, Reason::kUnschedulable, nodes + "persistentvolumeclaim \"c\" not found")
                .substr(0, 14),
            "Make the claim");
  EXPECT_EQ(of(waiting, Reason::kUnschedulable,
               nodes + "pod has unbound immediate PersistentVolumeClaims")
                .substr(0, 17),
            "See why its claim");
  EXPECT_EQ(of(waiting, Reason::kUnschedulable, nodes + "2 Insufficient cpu").substr(0, 12),
            "Add or free ");
  EXPECT_NE(of(ConditionType::kStalled, Reason::kNoProgress,
               "the first step has not moved on for 20 s or more")
                .find("NetworkPolicies"),
            std::string::npos);
  EXPECT_EQ(of(ConditionType::kStalled, Reason::kNoProgress, "step 7 has not moved on"),
            api::Reasons()[static_cast<size_t>(Reason::kNoProgress)].advice);
  for (const Reason reason :
       {Reason::kPodFailed, Reason::kBackoffLimitExceeded, Reason::kCrashLoop}) {
    EXPECT_EQ(of(failed, reason, "exec /usr/bin/train: exec format error").substr(0, 34),
              "Use an image that is built for the");
  }
}

}  // namespace
}  // namespace meshtrain::reconcile
