// Failures and what is made of them: restart policies, exit codes, rules, budgets, disruptions,
// dead nodes, deadlines.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/operator/reconcile/scene.h"

namespace meshtrain::reconcile {
namespace {

using api::ConditionType;
using cluster::Role;
using testing::HasSubstr;
using testing::Not;

struct ExitCase {
  std::string name;
  std::string_view policy;
  int code;
  std::string reason;
  std::string want;  // the phase after it
};
class ExitTest : public testing::TestWithParam<ExitCase> {};
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
INSTANTIATE_TEST_SUITE_P(Codes, ExitTest, testing::ValuesIn(kExits),
                         [](const auto& i) { return i.param.name; });

// Fails a replica, and lets the operator bring it back.
void FailAndRecover(Scene* scene, cluster::TaskId task, int code, double at,
                    std::string_view reason = "") {
  PodSeen pod = EndedPod(scene->job, task, code, reason);
  for (const PodSeen& before : scene->seen.pods) {
    if (before.task == task) {
      pod.uid = before.uid;
      pod.attempt = before.attempt;
    }
  }
  scene->Pod(pod);
  scene->Look(at);
  for (int i = 0; i < 4; ++i) {
    scene->Obey();
    scene->Look(at + 301 + i);
  }
}

TEST(RestartTest, OutOfMemoryTwiceInARowIsPermanent) {
  Scene scene(MakeJob("mnist").Chief().Workers(2));
  scene.Running();
  FailAndRecover(&scene, kWorker1, 137, 100, "OOMKilled");
  EXPECT_EQ(scene.status().phase, "Running");
  FailAndRecover(&scene, kWorker0, 137, 1000, "OOMKilled");
  EXPECT_EQ(scene.status().phase, "Running") << "another replica's first";
  FailAndRecover(&scene, kWorker1, 137, 2000, "OOMKilled");
  EXPECT_EQ(scene.status().phase, "Failed");
  EXPECT_EQ(scene.status().conditions[ConditionType::kFailed].message,
            "mnist-worker-1 failed with exit code 137 (OOMKilled), the second time in a row");
}

TEST(RestartTest, OutOfMemoryWithAnotherEndBetweenIsNotInARow) {
  Scene scene(MakeJob("mnist").Chief().Workers(2));
  scene.Running();
  FailAndRecover(&scene, kWorker1, 137, 100, "OOMKilled");
  FailAndRecover(&scene, kWorker1, 138, 2000);
  FailAndRecover(&scene, kWorker1, 137, 4000, "OOMKilled");
  EXPECT_EQ(scene.status().phase, "Running");
}

TEST(RestartTest, OneIncidentCountsOnceHoweverManyRanksLeave) {
  Scene scene(MakeJob("mnist").Chief().Workers(3).Backoff(1));
  scene.Running().Pod(EndedPod(scene.job, kWorker1, 137));
  scene.Look(50);
  EXPECT_EQ(scene.status().recovery.counted, 1);
  // The survivors give up two minutes later, one after the other.
  scene.Pod(EndedPod(scene.job, kChief, 138)).Pod(EndedPod(scene.job, kWorker0, 138));
  EXPECT_THAT(
      scene.Look(170),
      HasSubstr(
          "delete pod mnist-chief-0\ndelete pod mnist-worker-0\ndelete pod mnist-worker-1\n"));
  scene.Obey();
  scene.Pod(EndedPod(scene.job, kWorker2, 138));
  scene.Look(171);
  scene.Obey();
  scene.Look(172);
  scene.Obey();
  scene.Look(175);
  EXPECT_EQ(scene.status().phase, "Running");
  EXPECT_EQ(scene.status().recovery.counted, 1);
}

TEST(RestartTest, APodOfTheNewAttemptThatFailsIsANewIncident) {
  Scene scene(MakeJob("mnist").Chief().Workers(1).Backoff(1));
  scene.Running().Pod(EndedPod(scene.job, kWorker0, 138));
  scene.Look(50);
  scene.Obey();
  scene.Look(51);
  scene.Obey();
  PodSeen again = EndedPod(scene.job, kWorker0, 138);
  again.attempt = 1;
  again.uid = "new";
  for (PodSeen& pod : scene.seen.pods) {
    if (pod.task == kChief) pod.phase = PodPhase::kFailed, pod.exit_code = 138;
  }
  scene.Pod(again);
  scene.Look(52);
  EXPECT_EQ(scene.status().phase, "Failed");
  EXPECT_EQ(scene.Reason(ConditionType::kFailed), "BackoffLimitExceeded");
  EXPECT_EQ(scene.status().conditions[ConditionType::kFailed].message,
            "mnist-worker-0 failed with exit code 138 (Error), after 1 restarts, which "
            "runPolicy.backoffLimit allows");
}

TEST(RestartTest, BackoffLimitCountsRecreationsAndContainersRestartedInPlace) {
  Scene scene(MakeJob("mnist").Chief().Workers(2, api::kRestartOnFailure).Backoff(2));
  scene.Running();
  for (PodSeen& pod : scene.seen.pods) {
    if (pod.task == kWorker0) pod.restart_count = 2, pod.last_exit_code = 1;
  }
  scene.Look(50);
  EXPECT_EQ(scene.status().phase, "Running");
  scene.Look(60);
  EXPECT_EQ(scene.status().restarts, 2);
  PodSeen pod = EndedPod(scene.job, kWorker1, 1);
  scene.Pod(pod);
  scene.Look(70);
  EXPECT_EQ(scene.Reason(ConditionType::kFailed), "BackoffLimitExceeded");
}

// The kubelet restarts a pod's container once more; with 138 it may say which incarnation was lost.
void InPlace(Scene* scene, cluster::TaskId task, int code, const std::string& lost = "") {
  for (PodSeen& pod : scene->seen.pods) {
    if (pod.task != task) continue;
    ++pod.restart_count;
    pod.last_exit_code = code;
    pod.termination_message = lost.empty() ? "" : R"({"step":5,"lostIncarnation":")" + lost + "\"}";
  }
}

TEST(RestartTest, EachRestartInPlaceCountsOnceAsBatchV1Counts) {
  Scene scene(
      MakeJob("mnist").Chief(api::kRestartOnFailure).Workers(3, api::kRestartOnFailure).Backoff(9));
  scene.Running();
  // All at the same moment, and with the same code: that alone makes them no one incident.
  for (const auto task : {kChief, kWorker0, kWorker1, kWorker2}) InPlace(&scene, task, 138);
  scene.Look(50);
  scene.Look(60);
  EXPECT_EQ(scene.status().restarts, 4);
  EXPECT_EQ(scene.status().replica_statuses[Role::kWorker].restarts, 3);
}

TEST(RestartTest, EachIncidentThatAllLeaveWith138CountsOnceInWhateverOrderTheyAreSeen) {
  Scene scene(MakeJob("mnist").Workers(8, api::kRestartOnFailure).Backoff(5));
  scene.Running();
  double at = 50;
  for (int incident = 1; incident <= 3; ++incident) {
    for (int i = 0; i < 8; ++i) {
      InPlace(&scene, {Role::kWorker, (i * 3 + incident) % 8}, 138,
              "lost-" + std::to_string(incident));
      scene.Look(at += 6);
      EXPECT_EQ(scene.status().restarts, incident) << "after " << i + 1 << " pods";
    }
  }
  // What a rank does alone is its own, before and after it joins the next incident.
  InPlace(&scene, kWorker1, 1);
  InPlace(&scene, kWorker1, 1);
  scene.Look(at += 6);
  EXPECT_EQ(scene.status().restarts, 5);
  EXPECT_EQ(scene.status().phase, "Running");
  for (int i = 0; i < 8; ++i) {
    InPlace(&scene, {Role::kWorker, i}, 138, "lost-4");
    scene.Look(at += 6);
  }
  EXPECT_EQ(scene.status().restarts, 6);
  EXPECT_EQ(scene.Reason(ConditionType::kFailed), "BackoffLimitExceeded");
}

TEST(RestartTest, WhatWasJoinedStaysJoinedHoweverManyIncarnationsFollow) {
  Scene scene(MakeJob("mnist").Workers(4, api::kRestartOnFailure));
  scene.Running();
  double at = 50;
  for (int incident = 1; incident <= 20; ++incident) {
    for (int i = 0; i < 4; ++i) {
      InPlace(&scene, {Role::kWorker, i}, 138, "lost-" + std::to_string(incident));
    }
    scene.Look(at += 6);
    EXPECT_EQ(scene.status().restarts, incident);
  }
  EXPECT_EQ(scene.status().recovery.in_place.lost.size(), api::kMaxLost);
}

// Made again by the operator: the incident was over when the last of them left.
TEST(RestartTest, PodsThatLeaveWith138ForTheSameIncarnationCountOnceTogether) {
  const auto leaves = [](Scene* scene, cluster::TaskId task, const char* lost) {
    PodSeen pod = EndedPod(scene->job, task, 138);
    pod.termination_message = std::string(R"({"step":5,"lostIncarnation":")") + lost + "\"}";
    for (const PodSeen& before : scene->seen.pods) {
      if (before.task == task) pod.uid = before.uid, pod.attempt = before.attempt;
    }
    scene->Pod(pod);
  };
  Scene scene(MakeJob("mnist").Chief().Workers(2).Backoff(1));
  scene.Running();
  double at = 100;
  for (const auto task : {kWorker0, kWorker1, kChief}) {
    leaves(&scene, task, "feed");
    scene.Look(at);
    for (int i = 0; i < 3; ++i) {
      scene.Obey();
      scene.Look(at + 10 * (i + 1));
    }
    EXPECT_EQ(scene.status().phase, "Running");
    EXPECT_EQ(scene.status().recovery.counted, 1);
    at += 1000;
  }
  EXPECT_EQ(scene.status().restarts, 1);
  EXPECT_EQ(scene.status().recovery.attempt, 3) << "each was made again";
  leaves(&scene, kWorker0, "beef");
  scene.Look(at);
  EXPECT_EQ(scene.Reason(ConditionType::kFailed), "BackoffLimitExceeded") << "another loss";
}

TEST(RestartTest, AnIncidentOfSeveralRolesCountsOnceForTheJobAndOnceForEach) {
  Scene scene(MakeJob("mnist").Chief(api::kRestartOnFailure).Workers(2, api::kRestartOnFailure));
  scene.Running();
  for (const char* lost : {"one", "two"}) {
    for (const auto task : {kChief, kWorker0, kWorker1}) InPlace(&scene, task, 138, lost);
    scene.Look(60);
  }
  scene.Look(70);
  EXPECT_EQ(scene.status().restarts, 2);
  EXPECT_EQ(scene.status().replica_statuses[Role::kChief].restarts, 2);
  EXPECT_EQ(scene.status().replica_statuses[Role::kWorker].restarts, 2);
}

TEST(RestartTest, RestartsInPlaceCountWithinAWindow) {
  const auto window = [](api::TrainingJob& job) {
    job.spec.run_policy.backoff_window_seconds = 600;
  };
  Scene loops(MakeJob("mnist").Workers(2, api::kRestartOnFailure).Backoff(2).With(window));
  loops.Running();
  for (const double at : {100, 200, 300}) {
    EXPECT_EQ(loops.status().phase, "Running");
    InPlace(&loops, kWorker1, 1);
    loops.Look(at);
  }
  EXPECT_EQ(loops.Reason(ConditionType::kFailed), "BackoffLimitExceeded");

  Scene slow(MakeJob("mnist").Workers(2, api::kRestartOnFailure).Backoff(2).With(window));
  slow.Running();
  for (int i = 1; i <= 10; ++i) {
    InPlace(&slow, kWorker1, 1);
    slow.Look(400 * i);
  }
  EXPECT_EQ(slow.status().phase, "Running") << "never three within ten minutes";
  EXPECT_EQ(slow.status().restarts, 10);

  Scene role(
      MakeJob("mnist").Chief().Workers(2, api::kRestartOnFailure).With([](api::TrainingJob& job) {
        job.spec.replica_specs[Role::kWorker].restart_budget =
            api::RestartBudget{.limit = 1, .window_seconds = 600};
      }));
  role.Running();
  for (const double at : {100, 200}) {
    InPlace(&role, kWorker0, 1);
    role.Look(at);
  }
  EXPECT_EQ(role.Reason(ConditionType::kFailed), "RestartBudgetExceeded");
}

TEST(RestartTest, RestartsInPlaceStayCountedWhenTheirPodsGo) {
  const auto restarted = [](std::string_view all) {
    Scene scene(MakeJob("mnist")
                    .Chief()
                    .Workers(3, api::kRestartOnFailure)
                    .With([&](api::TrainingJob& job) {
                      job.spec.elastic = api::Elastic{.min_replicas = 1, .max_replicas = 3};
                      if (!all.empty()) {
                        job.spec.failure_rules = {
                            {.roles = {Role::kChief}, .action = std::string(all)}};
                      }
                    }));
    scene.Running();
    for (int i = 0; i < 2; ++i) InPlace(&scene, kWorker2, 1);
    for (const char* lost : {"one", "two"}) {
      for (int i = 0; i < 3; ++i) InPlace(&scene, {Role::kWorker, i}, 138, lost);
      scene.Look(lost[0] == 'o' ? 54 : 60);
    }
    EXPECT_EQ(scene.status().restarts, 4);
    return scene;
  };
  const auto settle = [](Scene* scene, double at) {
    for (int i = 0; i < 6; ++i) {
      scene->Look(at + 301 * i);
      scene->Obey();
    }
  };
  Scene all = restarted(api::kActionRestartAll);
  all.Pod(EndedPod(all.job, kChief, 138));
  settle(&all, 100);
  EXPECT_EQ(all.status().phase, "Running");
  EXPECT_EQ(all.status().restarts, 4 + 1);
  EXPECT_EQ(all.status().replica_statuses[Role::kWorker].restarts, 4);
  InPlace(&all, kWorker0, 138);
  settle(&all, 3000);
  EXPECT_EQ(all.status().restarts, 4 + 1 + 1) << "and those of the new pods come on top";

  Scene lost = restarted("");
  lost.Gone(kWorker2);
  settle(&lost, 100);
  EXPECT_EQ(lost.status().restarts, 4 + 1);

  Scene suspended = restarted("");
  suspended.job.spec.run_policy.suspend = true;
  settle(&suspended, 100);
  EXPECT_EQ(suspended.status().restarts, 4);
  suspended.job.spec.run_policy.suspend = false;
  settle(&suspended, 3000);
  EXPECT_EQ(suspended.status().restarts, 4);

  Scene scaled = restarted("");
  scaled.job.spec.replica_specs[Role::kWorker].replicas = 2;
  scaled.job.spec.elastic->max_replicas = 2;
  settle(&scaled, 61);
  EXPECT_EQ(scaled.status().restarts, 4);

  // Not on record yet, for it is written every five seconds only: before a pod goes it is.
  InPlace(&scaled, kWorker0, 1);
  scaled.Pod(EndedPod(scaled.job, kChief, 138));
  EXPECT_THAT(scaled.Look(2000), testing::StartsWith("patch status"));
  EXPECT_EQ(scaled.status().restarts, 4 + 1 + 1);
}

TEST(RestartTest, BudgetsOfARoleAndOfAWindow) {
  Scene role(MakeJob("mnist").Chief().Workers(2).With([](api::TrainingJob& job) {
    job.spec.replica_specs[Role::kWorker].restart_budget = api::RestartBudget{.limit = 1};
  }));
  role.Running();
  FailAndRecover(&role, kChief, 138, 100);
  FailAndRecover(&role, kWorker0, 138, 1000);
  EXPECT_EQ(role.status().phase, "Running");
  FailAndRecover(&role, kWorker1, 138, 2000);
  EXPECT_EQ(role.Reason(ConditionType::kFailed), "RestartBudgetExceeded");

  Scene window(MakeJob("mnist").Chief().Workers(2).Backoff(1).With(
      [](api::TrainingJob& job) { job.spec.run_policy.backoff_window_seconds = 600; }));
  window.Running();
  for (const double at : {1000, 2000, 3000, 4000}) FailAndRecover(&window, kWorker1, 138, at);
  EXPECT_EQ(window.status().phase, "Running") << "never two within ten minutes";
  FailAndRecover(&window, kWorker1, 138, 4310);
  EXPECT_EQ(window.Reason(ConditionType::kFailed), "BackoffLimitExceeded");
}

TEST(RestartTest, RepeatedRestartsWaitLongerAndLonger) {
  Scene scene(MakeJob("mnist").Workers(1));
  scene.Running();
  std::vector<double> waits;
  double at = 100;
  for (int i = 0; i < 5; ++i) {
    PodSeen pod = EndedPod(scene.job, kWorker0, 138);
    pod.attempt = scene.status().recovery.attempt;
    pod.uid = "u" + std::to_string(i);
    scene.Gone(kWorker0).Pod(pod);
    scene.Look(at);
    scene.Obey();
    double wait = 0;
    while (scene.Look(at + wait).find("create pod") == std::string::npos && wait < 400) wait += 1;
    waits.push_back(wait);
    scene.Obey();
    at += wait + 1;
    scene.Look(at);
  }
  EXPECT_THAT(waits, testing::ElementsAre(0, 5, 10, 20, 40));
}

// Clocks of two operators may differ: a restart on record that lies ahead holds nothing back.
TEST(RestartTest, ALeaderWhoseClockIsBehindDoesNotWaitForTheOtherOnes) {
  Scene scene(MakeJob("mnist").Workers(1));
  scene.Running();
  for (const double at : {3600.0, 3700.0}) FailAndRecover(&scene, kWorker0, 138, at);
  PodSeen pod = EndedPod(scene.job, kWorker0, 138);
  pod.attempt = scene.status().recovery.attempt;
  scene.Gone(kWorker0).Pod(pod);
  scene.Look(4010);
  scene.Obey();
  EXPECT_THAT(scene.Look(410), HasSubstr("create pod mnist-worker-0")) << scene.last.rests;
  EXPECT_THAT(scene.Look(411), HasSubstr("create pod")) << "and counts are not held back either";
}

struct DisruptionCase {
  std::string name;
  std::string_view policy;
  std::function<void(PodSeen&)> change;
};
class DisruptionTest : public testing::TestWithParam<DisruptionCase> {};
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
INSTANTIATE_TEST_SUITE_P(Kinds, DisruptionTest, testing::ValuesIn(kDisruptionCases),
                         [](const auto& i) { return i.param.name; });

JobBuilder Patient(int64_t seconds) {
  return MakeJob("mnist").Workers(1).With(
      [=](api::TrainingJob& job) { job.spec.run_policy.dead_node_seconds = seconds; });
}

TEST(NodeTest, ASilentNodeIsGivenTheTimeThatTheUserSays) {
  Scene scene(Patient(300));
  PodSeen pod = MakePod(scene.Running().job, kWorker0);
  pod.node_state = NodeState::kNotReady;
  pod.node_not_ready_since = At(50);
  scene.Pod(pod);
  EXPECT_THAT(scene.Look(349), Not(HasSubstr("delete")));
  EXPECT_EQ(scene.last.wake_at, At(350));
  EXPECT_THAT(scene.Look(350), HasSubstr("force-delete pod mnist-worker-0\n"));
}

// Cut off, the old process may live on and write where the new one would.
TEST(NodeTest, WithoutTheUsersWordNothingOnASilentNodeIsReplaced) {
  Scene scene(MakeJob("mnist").Workers(1));
  PodSeen pod = MakePod(scene.Running().job, kWorker0);
  pod.node_state = NodeState::kNotReady;
  pod.node_not_ready_since = At(50);
  scene.Pod(pod);
  EXPECT_THAT(scene.Look(100), HasSubstr("warn NodeNotReady: mnist-worker-0 is on the node node-1, "
                                         "which is not ready: it is replaced when"));
  EXPECT_EQ(scene.Look(1e6), "") << "however long";
  EXPECT_TRUE(scene.Is(ConditionType::kRunning));
  // The taint controller asks for its deletion, which its node does not answer either.
  pod.delete_requested = At(400);
  pod.delete_due = At(430);
  pod.delete_seen = At(400);
  scene.Pod(pod);
  for (const double at : {500.0, 600.0, 1e6, 2e6}) {
    EXPECT_THAT(scene.Look(at), Not(HasSubstr("delete pod")));
    EXPECT_THAT(ToString(scene.last), Not(HasSubstr("create pod"))) << at;
  }
  EXPECT_EQ(scene.Reason(ConditionType::kWaiting), "NodeNotReady");
  for (const auto known : {NodeState::kGone, NodeState::kOutOfService}) {
    Scene told = scene;
    told.seen.pods[0].node_state = known;
    EXPECT_THAT(told.Look(2e6 + 1), HasSubstr("force-delete pod mnist-worker-0\n"));
  }
}

TEST(NodeTest, APodStuckTerminatingIsReplacedWithoutAViewOfNodesOnlyByTheUsersWord) {
  Scene scene(Patient(300));
  PodSeen pod = MakePod(scene.Running().job, kWorker0);
  // The API server's clock is an hour ahead of the operator's: only its durations count.
  pod.delete_requested = At(3610);
  pod.delete_due = At(3640);
  pod.delete_seen = At(10);
  scene.Pod(pod);
  EXPECT_THAT(scene.Look(11), Not(HasSubstr("delete pod"))) << "its node answers";
  scene.seen.pods[0].node_state = NodeState::kUnseen;  // an operator that may not read nodes
  EXPECT_THAT(scene.Look(339), Not(HasSubstr("delete pod")));
  EXPECT_EQ(scene.Reason(ConditionType::kWaiting), "PodDoesNotEnd");
  EXPECT_THAT(scene.Look(340), HasSubstr("force-delete pod mnist-worker-0\n"));
  Scene unsaid = scene;
  unsaid.job.spec.run_policy.dead_node_seconds.reset();
  EXPECT_THAT(unsaid.Look(1e6), Not(HasSubstr("delete pod")));
  Scene cannot_say = scene;
  cannot_say.seen.pods[0].delete_seen.reset();
  EXPECT_THAT(cannot_say.Look(1e6), Not(HasSubstr("delete pod"))) << "nor may times be mixed";
}

// A finalizer keeps the object of a pod that was deleted by force.
TEST(NodeTest, AForcedDeletionIsAskedForOnce) {
  Scene scene(MakeJob("mnist").Workers(1).Clean(api::kCleanAll));
  scene.Running();
  scene.seen.pods[0].node_state = NodeState::kGone;
  EXPECT_THAT(scene.Look(10), HasSubstr("force-delete pod mnist-worker-0\n"));
  scene.seen.pods[0].delete_requested = scene.seen.pods[0].delete_due = At(10);
  scene.seen.pods[0].delete_seen = At(10);
  EXPECT_EQ(scene.Look(11), "");
  EXPECT_THAT(scene.Look(71), HasSubstr("warn PodDoesNotEnd: mnist-worker-0 should have ended"));
  // Nor by what follows a suspension, or an end.
  scene.job.spec.run_policy.suspend = true;
  EXPECT_THAT(scene.Look(80), Not(HasSubstr("delete pod")));
  EXPECT_EQ(scene.Look(90), "");
  scene.status().conditions[ConditionType::kFailed] = {.status = true, .reason = "PodFailed"};
  scene.status().completion_time = At(90);
  EXPECT_THAT(scene.Look(95), Not(HasSubstr("delete pod")));
}

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
class RuleTest : public testing::TestWithParam<RuleCase> {};
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
INSTANTIATE_TEST_SUITE_P(Rules, RuleTest, testing::ValuesIn(kRules),
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

TEST(DeadlineTest, ActiveTimeIsCountedWithoutSuspensions) {
  Scene scene(MakeJob("mnist").Workers(1).With(
      [](api::TrainingJob& job) { job.spec.run_policy.active_deadline_seconds = 100; }));
  scene.Running();
  EXPECT_EQ(scene.last.wake_at, At(100));
  scene.job.spec.run_policy.suspend = true;
  scene.Look(60);
  scene.Obey();
  scene.job.spec.run_policy.suspend = false;
  scene.Look(1000);
  scene.Obey();
  scene.Look(1002);
  EXPECT_EQ(scene.last.wake_at, At(1040));
  scene.Look(1039);
  EXPECT_EQ(scene.status().phase, "Running");
  scene.Look(1040);
  EXPECT_EQ(scene.Reason(ConditionType::kFailed), "DeadlineExceeded");
}

TEST(DeadlineTest, StartupEndsWhenTheJobFirstRuns) {
  const auto builder = MakeJob("mnist").Workers(1).With(
      [](api::TrainingJob& job) { job.spec.run_policy.startup_deadline_seconds = 30; });
  Scene late(builder);
  late.Look(0);
  EXPECT_EQ(late.last.wake_at, At(30));
  late.Look(30);
  EXPECT_EQ(late.Reason(ConditionType::kFailed), "StartupDeadlineExceeded");
  Scene soon(builder);
  soon.Running();
  soon.Gone(kWorker0);
  soon.Look(100);
  soon.Look(200);
  EXPECT_EQ(soon.status().phase, "Restarting") << "a restart is no start";
  // A failure before the job ever ran does not lift the deadline.
  Scene never(MakeJob("mnist").Chief().Workers(1).With(
      [](api::TrainingJob& job) { job.spec.run_policy.startup_deadline_seconds = 30; }));
  never.Look(0);
  never.Obey();
  for (PodSeen& pod : never.seen.pods) pod.phase = PodPhase::kPending;
  never.Pod(EndedPod(never.job, kWorker0, 138));
  never.Look(10);
  never.Obey();
  never.Look(11);
  EXPECT_EQ(never.status().phase, "Restarting");
  never.Look(30);
  EXPECT_EQ(never.Reason(ConditionType::kFailed), "StartupDeadlineExceeded");
}

TEST(GangTest, VolcanoAdmitsTheGroupFirst) {
  Scene scene(MakeJob("mnist").Chief().Workers(2).Gpus(8));
  scene.seen.settings.gang = GangScheduler::kVolcano;
  EXPECT_EQ(scene.Look(0),
            "create service mnist\ncreate pod group mnist\n"
            "patch status Waiting Created=JobCreated Waiting=PodGroupPending\ntell JobCreated: the "
            "job is created\nwarn PodGroupPending: the pod group is not admitted yet\n");
  const auto& group = std::get<CreatePodGroup>(scene.last.actions[1].write);
  EXPECT_THAT(
      group.body,
      HasSubstr(R"("spec":{"minMember":3,"minResources":{"cpu":"1500m","memory":"3221225472",)"
                R"("nvidia.com/gpu":"24"},"queue":"default"})"));
  scene.Obey();
  scene.seen.pod_group->phase = "Pending";
  EXPECT_THAT(scene.Look(1), Not(HasSubstr("create pod")));
  scene.seen.pod_group->phase = "Inqueue";
  EXPECT_THAT(scene.Look(2), HasSubstr("create pod mnist-chief-0"));
  scene.Obey();
  scene.Look(3);
  scene.job.spec.replica_specs[Role::kWorker].replicas = 3;
  scene.seen.pod_group->resource_version = "7";
  scene.job.spec.elastic = api::Elastic{.min_replicas = 1, .max_replicas = 8};
  EXPECT_THAT(scene.Look(20), HasSubstr("patch pod group mnist\n"));
  const auto patch = std::find_if(
      scene.last.actions.begin(), scene.last.actions.end(),
      [](const Action& action) { return std::holds_alternative<PatchPodGroup>(action.write); });
  EXPECT_EQ(std::get<PatchPodGroup>(patch->write).body,
            R"({"metadata":{"resourceVersion":"7","uid":"pg"},"spec":{"minMember":4,)"
            R"("minResources":{"cpu":"2","memory":"4294967296","nvidia.com/gpu":"32"}}})");
  scene.seen.pod_group->min_member = 4;
  for (int i = 0; i < 4; ++i) {
    scene.Obey();
    scene.Look(30 + i);
  }
  scene.Pod(EndedPod(scene.job, kChief, 0));
  scene.Look(50);
  EXPECT_THAT(scene.Look(51), HasSubstr("delete pod group mnist\n"));
  // Held by a finalizer, it is not asked for again; and a name that is held is waited for.
  scene.seen.pod_group->deleting = true;
  EXPECT_THAT(scene.Look(52), Not(HasSubstr("pod group")));
  Scene next(MakeJob("mnist").Chief());
  next.seen.settings.gang = GangScheduler::kVolcano;
  next.seen.pod_group = scene.seen.pod_group;
  EXPECT_THAT(next.Look(0), Not(HasSubstr("create pod")));
  EXPECT_EQ(next.Reason(ConditionType::kWaiting), "NameHeld");
}

TEST(GangTest, ATemplatesOwnSchedulerIsTold) {
  Scene scene(MakeJob("mnist").Workers(1).Template(
      Role::kWorker,
      R"({"spec":{"schedulerName":"mine","containers":[{"name":"trainer","image":"i"}]}})"));
  scene.seen.settings.gang = GangScheduler::kSchedulerPlugins;
  scene.seen.settings.gang_scheduler_name = "gangs";
  EXPECT_THAT(scene.Look(0),
              HasSubstr("warn OtherScheduler: "
                        "spec.replicaSpecs.worker.template.spec.schedulerName: is mine, not the "
                        "gang scheduler's gangs: its pods are no part of the gang"));
  EXPECT_EQ(scene.Reason(ConditionType::kWaiting), "OtherScheduler");
}

TEST(GangTest, SchedulerPluginsHoldPodsBackThemselves) {
  Scene scene(MakeJob("mnist").Workers(2).With([](api::TrainingJob& job) {
    job.spec.run_policy.scheduling_policy =
        api::SchedulingPolicy{.min_available = 1, .schedule_timeout_seconds = 9};
  }));
  scene.seen.settings.gang = GangScheduler::kSchedulerPlugins;
  EXPECT_THAT(scene.Look(0), HasSubstr("create service mnist\ncreate pod group mnist\n"));
  EXPECT_THAT(std::get<CreatePodGroup>(scene.last.actions[1].write).body,
              HasSubstr(R"("spec":{"minMember":1,"scheduleTimeoutSeconds":9})"));
  EXPECT_THAT(ToString(scene.last), HasSubstr("create pod mnist-worker-1"));
}

}  // namespace
}  // namespace meshtrain::reconcile
