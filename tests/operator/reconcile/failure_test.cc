// What a failed pod is: a failure by its exit code, a disruption that never counts, or what the
// job's own failure rules say.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/operator/reconcile/scene.h"

namespace meshtrain::reconcile {
namespace {

using api::ConditionType;
using cluster::Role;
using ::testing::HasSubstr;
using ::testing::Not;

struct ExitCase {
  std::string name;
  std::string_view policy;
  int code;
  std::string reason;
  std::string want;  // the phase after it
};
class ExitTest : public ::testing::TestWithParam<ExitCase> {};
TEST_P(ExitTest, RestartsOrFails) {
  const ExitCase& c = GetParam();
  Scene scene(MakeJob("mnist").Chief().Workers(2, c.policy));
  scene.Running().Pod(EndedPod(scene.job, kWorker1, c.code, c.reason));
  const std::string did = scene.Look(50);
  EXPECT_EQ(scene.status().phase, c.want) << did;
  if (c.want == "Restarting") {
    EXPECT_THAT(did, HasSubstr("delete pod mnist-worker-1\n"));
    EXPECT_EQ(scene.status().recovery.counted, 1);
    EXPECT_EQ(scene.Look(50.5), "delete pod mnist-worker-1\n")
        << "seen again, it is not counted again";
    scene.Obey();
    EXPECT_EQ(scene.Look(51), "create pod mnist-worker-1 (attempt 1)\n");
    scene.Obey();
    scene.Look(53);
    EXPECT_EQ(scene.status().phase, "Running");
    EXPECT_EQ(scene.status().restarts, 1);
    EXPECT_EQ(scene.status().replica_statuses[Role::kWorker].restarts, 1);
    EXPECT_EQ(scene.status().goodput.restarting_seconds, 3);
  } else {
    EXPECT_THAT(did, Not(HasSubstr("delete pod"))) << "the record comes first";
    EXPECT_THAT(scene.status().conditions[ConditionType::kFailed].message,
                HasSubstr("mnist-worker-1 failed with exit code"));
  }
}
const ExitCase kExits[] = {
    {"NeverFails", api::kRestartNever, 138, "", "Failed"},
    {"OnFailureRestartsAnything", api::kRestartOnFailure, 1, "", "Restarting"},
    {"AlwaysRestartsAnything", api::kRestartAlways, 1, "", "Restarting"},
    {"Usage", api::kRestartExitCode, 64, "", "Failed"},
    {"BadConfig", api::kRestartExitCode, 78, "", "Failed"},
    {"Internal", api::kRestartExitCode, 70, "", "Failed"},
    {"NotFinite", api::kRestartExitCode, 79, "", "Failed"},
    {"CannotCreate", api::kRestartExitCode, 73, "", "Failed"},
    {"Io", api::kRestartExitCode, 74, "", "Restarting"},
    {"One", api::kRestartExitCode, 1, "", "Failed"},
    {"Below128", api::kRestartExitCode, 127, "", "Failed"},
    {"From128", api::kRestartExitCode, 128, "", "Restarting"},
    {"Interrupted", api::kRestartExitCode, 130, "", "Restarting"},
    {"Aborted", api::kRestartExitCode, 134, "", "Failed"},
    {"Killed", api::kRestartExitCode, 137, "", "Restarting"},
    {"OutOfMemoryOnce", api::kRestartExitCode, 137, "OOMKilled", "Restarting"},
    {"RetryMe", api::kRestartExitCode, 138, "", "Restarting"},
    {"Segfault", api::kRestartExitCode, 139, "", "Failed"},
    {"Terminated", api::kRestartExitCode, 143, "", "Restarting"},
};
INSTANTIATE_TEST_SUITE_P(Codes, ExitTest, ::testing::ValuesIn(kExits),
                         [](const auto& i) { return i.param.name; });

struct DisruptionCase {
  std::string name;
  std::string_view policy;
  std::function<void(PodSeen&)> change;
};
class DisruptionTest : public ::testing::TestWithParam<DisruptionCase> {};
TEST_P(DisruptionTest, NeverCountsAndNeverFailsTheJob) {
  Scene scene(
      MakeJob("mnist")
          .Chief(GetParam().policy)
          .Workers(1, GetParam().policy)
          .Backoff(0)
          .With([](api::TrainingJob& job) { job.spec.run_policy.dead_node_seconds = 300; }));
  PodSeen pod = MakePod(scene.Running().job, kChief);
  GetParam().change(pod);
  scene.Pod(pod);
  const std::string did = scene.Look(400);
  EXPECT_EQ(scene.status().phase, "Restarting") << did;
  EXPECT_EQ(scene.status().recovery.counted, 0);
  EXPECT_EQ(scene.status().recovery.disruptions, 1);
  scene.Gone(kChief);
  EXPECT_EQ(scene.Look(401), "create pod mnist-chief-0 (attempt 1)\n");
  scene.Obey();
  scene.Look(402);
  EXPECT_EQ(scene.status().phase, "Running");
}
const DisruptionCase kDisruptionCases[] = {
    {"Evicted", api::kRestartNever,
     [](PodSeen& p) { p.phase = PodPhase::kFailed, p.reason = "Evicted"; }},
    {"EvictedWithACode", api::kRestartExitCode,
     [](PodSeen& p) { p.phase = PodPhase::kFailed, p.reason = "Evicted", p.exit_code = 1; }},
    {"DisruptionTarget", api::kRestartExitCode,
     [](PodSeen& p) { p.phase = PodPhase::kFailed, p.disrupted = true, p.exit_code = 1; }},
    {"NodeShutdown", api::kRestartNever,
     [](PodSeen& p) { p.phase = PodPhase::kFailed, p.reason = "Terminated"; }},
    {"Drained", api::kRestartNever,
     [](PodSeen& p) {
       p.phase = PodPhase::kFailed, p.exit_code = 143, p.delete_requested = At(399);
     }},
    {"NodeGone", api::kRestartNever, [](PodSeen& p) { p.node_state = NodeState::kGone; }},
    {"NodeOutOfService", api::kRestartNever,
     [](PodSeen& p) { p.node_state = NodeState::kOutOfService; }},
    {"NodeSilent", api::kRestartNever,
     [](PodSeen& p) { p.node_state = NodeState::kNotReady, p.node_not_ready_since = At(50); }},
    // Turned away by its node before it started.
    {"OutOfCpu", api::kRestartNever,
     [](PodSeen& p) { p.phase = PodPhase::kFailed, p.reason = "OutOfcpu"; }},
    {"OutOfMemory", api::kRestartNever,
     [](PodSeen& p) { p.phase = PodPhase::kFailed, p.reason = "OutOfmemory"; }},
    {"OutOfGpus", api::kRestartNever,
     [](PodSeen& p) { p.phase = PodPhase::kFailed, p.reason = "OutOfnvidia.com/gpu"; }},
    {"OutOfPods", api::kRestartNever,
     [](PodSeen& p) { p.phase = PodPhase::kFailed, p.reason = "OutOfpods"; }},
    {"TopologyAffinityError", api::kRestartNever,
     [](PodSeen& p) { p.phase = PodPhase::kFailed, p.reason = "TopologyAffinityError"; }},
    {"NodeAffinity", api::kRestartNever,
     [](PodSeen& p) { p.phase = PodPhase::kFailed, p.reason = "NodeAffinity"; }},
    {"UnexpectedAdmissionError", api::kRestartNever,
     [](PodSeen& p) { p.phase = PodPhase::kFailed, p.reason = "UnexpectedAdmissionError"; }},
};
INSTANTIATE_TEST_SUITE_P(Kinds, DisruptionTest, ::testing::ValuesIn(kDisruptionCases),
                         [](const auto& i) { return i.param.name; });

TEST(LostTest, APodThatVanishedIsMadeAgainWithAWarning) {
  Scene scene(MakeJob("mnist").Chief().Workers(1));
  scene.Running().Gone(kChief);
  EXPECT_EQ(scene.Look(50),
            "patch status Restarting Created=JobCreated Restarting=PodLost\n"
            "create pod mnist-chief-0 (attempt 1)\n"
            "warn PodLost: mnist-chief-0 was deleted: it is made again, and training goes on from "
            "the last checkpoint\n");
}

struct RuleCase {
  std::string name;
  api::FailureRule rule;
  std::function<void(PodSeen&)> change;
  std::string want;
};
class RuleTest : public ::testing::TestWithParam<RuleCase> {};
TEST_P(RuleTest, TheFirstMatchDecides) {
  Scene scene(MakeJob("mnist").Chief().Workers(2).With([](api::TrainingJob& job) {
    job.spec.failure_rules = {GetParam().rule, {.action = "Fail"}};
  }));
  PodSeen pod = EndedPod(scene.Running().job, kWorker1, 1);
  GetParam().change(pod);
  scene.Pod(pod);
  scene.Look(50);
  EXPECT_EQ(scene.status().phase, GetParam().want);
}
const RuleCase kRules[] = {
    {"RoleMatches", {.roles = {Role::kWorker}, .action = "Restart"}, [](PodSeen&) {}, "Restarting"},
    {"RoleDoesNot", {.roles = {Role::kPs}, .action = "Restart"}, [](PodSeen&) {}, "Failed"},
    {"CodeMatches", {.exit_codes = {2, 1}, .action = "Restart"}, [](PodSeen&) {}, "Restarting"},
    {"CodeDoesNot", {.exit_codes = {2}, .action = "Restart"}, [](PodSeen&) {}, "Failed"},
    {"ReasonMatches", {.reasons = {"Error"}, .action = "Restart"}, [](PodSeen&) {}, "Restarting"},
    {"AllListsMustMatch",
     {.roles = {Role::kWorker}, .exit_codes = {2}, .action = "Restart"},
     [](PodSeen&) {},
     "Failed"},
    {"IgnoreLeavesItLyingThere",
     {.exit_codes = {1}, .action = "Ignore"},
     [](PodSeen&) {},
     "Running"},
    {"ADisruptionNeedsItsReason",
     {.action = "Fail"},
     [](PodSeen& p) { p.reason = "Evicted"; },
     "Restarting"},
    {"ADisruptionByName",
     {.reasons = {"Evicted"}, .action = "Fail"},
     [](PodSeen& p) { p.reason = "Evicted"; },
     "Failed"},
};
INSTANTIATE_TEST_SUITE_P(Rules, RuleTest, ::testing::ValuesIn(kRules),
                         [](const auto& i) { return i.param.name; });

TEST(RuleTest, RestartAllMakesEveryPodAgain) {
  Scene scene(MakeJob("mnist").Chief().Workers(2).With([](api::TrainingJob& job) {
    job.spec.failure_rules = {{.exit_codes = {138}, .action = "RestartAll"}};
  }));
  scene.Running().Pod(EndedPod(scene.job, kWorker1, 138));
  EXPECT_THAT(
      scene.Look(50),
      HasSubstr(
          "Restarting=RestartAll\n"
          "delete pod mnist-chief-0\ndelete pod mnist-worker-0\ndelete pod mnist-worker-1\n"));
  scene.Obey();
  EXPECT_EQ(scene.Look(51),
            "create pod mnist-chief-0 (attempt 1)\ncreate pod mnist-worker-0 (attempt 1)\n"
            "create pod mnist-worker-1 (attempt 1)\n");
  scene.Obey();
  scene.Look(52);
  EXPECT_EQ(scene.status().phase, "Running");
  EXPECT_EQ(scene.status().recovery.counted, 1);
  EXPECT_EQ(scene.Look(100), "");
}

}  // namespace
}  // namespace meshtrain::reconcile
