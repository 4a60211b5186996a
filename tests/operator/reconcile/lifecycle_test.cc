// The life of a job that nothing happens to, and its ends: creation, Running, success, suspend,
// clean-up, TTL.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "operator/api/json.h"
#include "tests/operator/reconcile/scene.h"

namespace meshtrain::reconcile {
namespace {

using api::ConditionType;
using testing::HasSubstr;
using testing::Not;

// The phases in which a look creates a Service and pods: "first mnist-chief-0; create service;
// create …".
std::string Creations(const Outcome& outcome) {
  std::string out;
  for (const Action& action : outcome.actions) {
    const std::string phase = action.phase == Phase::kFirst     ? "first "
                              : action.phase == Phase::kPrepare ? "prepare "
                                                                : "create ";
    if (std::holds_alternative<CreateService>(action.write)) out += phase + "service; ";
    if (const auto* pod = std::get_if<CreatePod>(&action.write)) out += phase + pod->name + "; ";
  }
  return out;
}

TEST(LifecycleTest, CreatesPodsAndTheServiceThenTells) {
  Scene scene(MakeJob("mnist").Chief().Workers(2));
  EXPECT_EQ(scene.Look(0),
            "create pod mnist-chief-0 (attempt 0)\n"
            "create service mnist\n"
            "create pod mnist-worker-0 (attempt 0)\n"
            "create pod mnist-worker-1 (attempt 0)\n"
            "patch status Pending Created=JobCreated\n"
            "tell JobCreated: the job is created\n");
  EXPECT_EQ(scene.status().start_time, At(0));
  EXPECT_EQ(scene.status().conditions.at(ConditionType::kCreated).observed_generation, 1);
}

TEST(LifecycleTest, TheFirstPodComesFirstOnceAndLaterTheServiceDoes) {
  const auto at_first = [](const JobBuilder& builder) {
    Scene scene(builder);
    scene.Look(0);
    return Creations(scene.last);
  };
  EXPECT_EQ(at_first(MakeJob("m").Chief().Workers(2)),
            "first m-chief-0; create service; create m-worker-0; create m-worker-1; ");
  EXPECT_EQ(at_first(MakeJob("m").Workers(1)), "first m-worker-0; create service; ");
  EXPECT_EQ(at_first(MakeJob("m").Workers(1).With(
                [](api::TrainingJob& job) { job.spec.program = "{}"; })),
            "prepare service; create m-worker-0; ")
      << "its Secret is mounted";

  // A process that died between the two: the Service, then the pods that are missing.
  Scene half(MakeJob("m").Chief().Workers(1));
  half.Pod(MakePod(half.job, kChief, PodPhase::kPending));
  half.Look(0);
  EXPECT_EQ(Creations(half.last), "prepare service; create m-worker-0; ");

  // Once anything was told, or refused, the Service comes first.
  Scene later(MakeJob("m").Chief().Workers(1));
  later.Look(0);
  later.Look(1);
  EXPECT_EQ(Creations(later.last), "prepare service; create m-chief-0; create m-worker-0; ");
  Scene refused(MakeJob("m").Chief().Workers(1));
  refused.seen.refused = RefusedWrite{"pods \"m-chief-0\"", "Forbidden", "exceeded quota"};
  refused.Look(0);
  EXPECT_EQ(Creations(refused.last), "prepare service; create m-chief-0; create m-worker-0; ");

  // A pod of another in the first one's place makes no other the first.
  Scene taken(MakeJob("m").Chief().Workers(1));
  PodSeen other = MakePod(taken.job, kChief);
  other.controller_uid = "another";
  taken.Pod(other);
  taken.Look(0);
  EXPECT_EQ(Creations(taken.last), "prepare service; create m-worker-0; ");
}

TEST(LifecycleTest, WhatWasMadeBesideARefusedServiceGoes) {
  const RefusedWrite refusal{
      .what = "services \"m\"", .reason = "AlreadyExists", .message = "another's", .service = true};
  Scene scene(MakeJob("m").Chief().Workers(2));
  scene.seen.refused = refusal;
  scene.Pod(MakePod(scene.job, kChief, PodPhase::kPending));
  EXPECT_THAT(scene.Look(0), testing::StartsWith("patch status Waiting Waiting=AlreadyExists\n"
                                                 "delete pod m-chief-0\n"
                                                 "create service m\n"));
  EXPECT_EQ(Creations(scene.last), "prepare service; create m-worker-0; create m-worker-1; ");
  EXPECT_THAT(scene.status().conditions.at(ConditionType::kWaiting).message,
              HasSubstr("services \"m\": another's"));
  scene.Gone(kChief);
  scene.Look(1);
  EXPECT_EQ(Creations(scene.last),
            "prepare service; create m-chief-0; create m-worker-0; create m-worker-1; ");

  Scene all(MakeJob("m").Chief().Workers(1));
  all.seen.refused = refusal;
  all.Pod(MakePod(all.job, kChief)).Pod(MakePod(all.job, kWorker0, PodPhase::kPending));
  EXPECT_THAT(all.Look(0), HasSubstr("delete pod m-worker-0\n"));
  EXPECT_THAT(ToString(all.last), Not(HasSubstr("delete pod m-chief-0"))) << "it runs";

  // No pod goes of a job that ran, nor where something else was refused, nor where the Service is
  // there.
  const auto deletes = [&](const std::function<void(Scene*)>& change) {
    Scene other(MakeJob("m").Chief().Workers(2));
    other.seen.refused = refusal;
    other.Pod(MakePod(other.job, kChief, PodPhase::kPending));
    change(&other);
    return other.Look(0).find("delete pod") != std::string::npos;
  };
  EXPECT_TRUE(deletes([](Scene*) {}));
  EXPECT_FALSE(deletes([](Scene* s) { s->Pod(MakePod(s->job, kChief)); }));
  EXPECT_FALSE(deletes([](Scene* s) { s->seen.refused->service = false; }));
  EXPECT_FALSE(deletes([](Scene* s) {
    s->seen.services.push_back({.name = "m", .uid = "s", .controller_uid = s->job.metadata.uid});
  }));
  EXPECT_FALSE(deletes([](Scene* s) {
    s->status().conditions[ConditionType::kRunning] = {.status = false, .reason = "JobSuspended"};
  }));
}

TEST(LifecycleTest, RunsWhenEveryPodIsThereAndTheChiefRuns) {
  Scene scene(MakeJob("mnist").Chief().Workers(2));
  scene.Look(0);
  scene.Obey();
  for (PodSeen& pod : scene.seen.pods) pod.phase = PodPhase::kPending;
  EXPECT_EQ(scene.Look(1), "") << "counts alone wait for five seconds";
  EXPECT_EQ(scene.last.wake_at, At(5));
  scene.Pod(MakePod(scene.job, kWorker0));
  scene.Look(2);
  EXPECT_FALSE(scene.Is(ConditionType::kRunning));
  scene.Pod(MakePod(scene.job, kChief));
  EXPECT_EQ(scene.Look(3),
            "patch status Running Created=JobCreated Running=JobRunning\ntell JobRunning: the job "
            "runs\n");
  EXPECT_EQ(scene.status().ready, "2/3");
  EXPECT_EQ(scene.status().replica_statuses.at(cluster::Role::kWorker),
            (api::ReplicaStatus{.replicas = 2, .active = 1}));
}

TEST(LifecycleTest, AnUnchangedJobCostsNothing) {
  Scene scene(MakeJob("mnist").Chief().Workers(2).Ps(1).Evaluator().With(
      [](api::TrainingJob& job) { job.spec.run_policy.backoff_limit = 3; }));
  scene.Running();
  EXPECT_EQ(scene.Look(100), "");
  EXPECT_EQ(scene.last, Outcome{});
  EXPECT_EQ(scene.Look(10000), "");
}

TEST(LifecycleTest, SucceedsWithItsChief) {
  Scene scene(MakeJob("mnist").Chief().Workers(1).Clean(api::kCleanRunning));
  scene.Running().Pod(EndedPod(scene.job, kChief, 0));
  EXPECT_EQ(scene.Look(50),
            "patch status Succeeded Created=JobCreated Succeeded=JobSucceeded\n"
            "tell JobSucceeded: mnist-chief-0 has succeeded\n");
  EXPECT_FALSE(scene.Is(ConditionType::kRunning));
  EXPECT_EQ(scene.status().completion_time, At(50));
  EXPECT_EQ(scene.status().replica_statuses.at(cluster::Role::kWorker).succeeded, 1)
      << "as TFJob: what ran was not needed";
  EXPECT_EQ(scene.Look(51), "delete pod mnist-worker-0\n");
  scene.Obey();
  EXPECT_EQ(scene.Look(60), "") << "and never runs again";
  scene.Gone(kChief);
  EXPECT_EQ(scene.Look(61), "");
}

TEST(LifecycleTest, WithoutAChiefWorkerZeroDecides) {
  Scene scene(MakeJob("mnist").Workers(2));
  scene.Running().Pod(EndedPod(scene.job, kWorker1, 0));
  scene.Look(50);
  EXPECT_FALSE(scene.Is(ConditionType::kSucceeded));
  scene.Pod(EndedPod(scene.job, kWorker0, 0));
  scene.Look(60);
  EXPECT_TRUE(scene.Is(ConditionType::kSucceeded));
}

TEST(LifecycleTest, AllWorkersWaitsForAllOfThemAndTheChief) {
  Scene scene(MakeJob("mnist").Chief().Workers(2).With(
      [](api::TrainingJob& job) { job.spec.success_policy = "AllWorkers"; }));
  scene.Running().Pod(EndedPod(scene.job, kWorker0, 0)).Pod(EndedPod(scene.job, kWorker1, 0));
  scene.Look(50);
  EXPECT_FALSE(scene.Is(ConditionType::kSucceeded));
  scene.Pod(EndedPod(scene.job, kChief, 0));
  scene.Look(51);
  EXPECT_TRUE(scene.Is(ConditionType::kSucceeded));
}

TEST(LifecycleTest, MayWaitForTheEvaluator) {
  const cluster::TaskId evaluator{cluster::Role::kEvaluator, 0};
  Scene scene(MakeJob("mnist").Chief().Evaluator().With(
      [](api::TrainingJob& job) { job.spec.wait_for_evaluator = true; }));
  scene.Running().Pod(EndedPod(scene.job, kChief, 0));
  scene.Look(50);
  EXPECT_FALSE(scene.Is(ConditionType::kSucceeded));
  scene.Pod(EndedPod(scene.job, evaluator, 0));
  scene.Look(51);
  EXPECT_TRUE(scene.Is(ConditionType::kSucceeded));
}

TEST(LifecycleTest, ADrainedLeaderThatLeavesWithZeroHasNotSucceeded) {
  Scene scene(MakeJob("mnist").Workers(1));
  PodSeen pod = EndedPod(scene.Running().job, kWorker0, 0);
  pod.delete_requested = At(40);  // told to stop at 40 s, ended at 50 s
  scene.Pod(pod);
  scene.Look(51);
  EXPECT_FALSE(scene.Is(ConditionType::kSucceeded));
  EXPECT_TRUE(scene.Is(ConditionType::kRestarting));
  // One that was done before somebody deleted it has.
  Scene done(MakeJob("mnist").Workers(1));
  pod = EndedPod(done.Running().job, kWorker0, 0);
  pod.delete_requested = At(55);
  done.Pod(pod);
  done.Look(56);
  EXPECT_TRUE(done.Is(ConditionType::kSucceeded));
}

struct CleanCase {
  std::string name;
  std::string_view policy;
  bool fails;
  std::string want;
};
class CleanTest : public testing::TestWithParam<CleanCase> {};
TEST_P(CleanTest, DeletesWhatThePolicySays) {
  const CleanCase& c = GetParam();
  Scene scene(MakeJob("mnist").Chief().Workers(2).Clean(c.policy));
  scene.Running().Pod(EndedPod(scene.job, kChief, c.fails ? 1 : 0));
  PodSeen pending = MakePod(scene.job, kWorker1, PodPhase::kPending);
  scene.Pod(pending);
  scene.Look(50);
  ASSERT_TRUE(api::IsFinished(scene.job.status));
  EXPECT_EQ(scene.Look(51), c.want);
}
const CleanCase kClean[] = {
    {"All", api::kCleanAll, false,
     "delete pod mnist-chief-0\ndelete pod mnist-worker-0\ndelete pod mnist-worker-1\n"},
    {"Running", api::kCleanRunning, false,
     "delete pod mnist-worker-0\ndelete pod mnist-worker-1\n"},
    {"NoneKeepsAllButPodsThatNeverRan", api::kCleanNone, false, "delete pod mnist-worker-1\n"},
    {"AllAfterAFailure", api::kCleanAll, true,
     "delete pod mnist-chief-0\ndelete pod mnist-worker-0\ndelete pod mnist-worker-1\n"},
    {"RunningAfterAFailure", api::kCleanRunning, true,
     "delete pod mnist-worker-0\ndelete pod mnist-worker-1\n"},
};
INSTANTIATE_TEST_SUITE_P(Policies, CleanTest, testing::ValuesIn(kClean),
                         [](const auto& i) { return i.param.name; });

TEST(LifecycleTest, TtlDeletesTheJob) {
  for (const int64_t ttl : {0, 30}) {
    Scene scene(MakeJob("mnist").Workers(1).With(
        [&](api::TrainingJob& job) { job.spec.run_policy.ttl_seconds_after_finished = ttl; }));
    scene.Running().Pod(EndedPod(scene.job, kWorker0, 0));
    scene.Look(50);
    if (ttl > 0) {
      EXPECT_EQ(scene.Look(60), "");
      EXPECT_EQ(scene.last.wake_at, At(80));
    }
    EXPECT_EQ(scene.Look(50 + static_cast<double>(ttl)), "delete job\n");
  }
}

TEST(LifecycleTest, SuspendDeletesPodsAndResumeStartsAnew) {
  Scene scene(MakeJob("mnist").Chief().Workers(1));
  scene.Running();
  scene.job.spec.run_policy.suspend = true;
  EXPECT_EQ(scene.Look(20),
            "patch status Suspended Created=JobCreated Suspended=JobSuspended\n"
            "delete pod mnist-chief-0\ndelete pod mnist-worker-0\n"
            "tell JobSuspended: the job is suspended\n");
  EXPECT_FALSE(scene.Is(ConditionType::kRunning));
  EXPECT_EQ(scene.status().start_time, std::nullopt);
  EXPECT_EQ(scene.status().active_seconds_before, 20);
  scene.Obey();
  EXPECT_EQ(scene.Look(30), "patch status Suspended Created=JobCreated Suspended=JobSuspended\n")
      << "counts";
  EXPECT_EQ(scene.Look(40), "");
  scene.job.spec.run_policy.suspend = false;
  EXPECT_EQ(scene.Look(100),
            "patch status Pending Created=JobCreated\n"
            "create pod mnist-chief-0 (attempt 1)\ncreate pod mnist-worker-0 (attempt 1)\n"
            "tell JobResumed: the job is resumed\n");
  EXPECT_EQ(scene.status().start_time, At(100));
  scene.Obey();
  scene.Look(102);
  EXPECT_TRUE(scene.Is(ConditionType::kRunning));
}

TEST(LifecycleTest, WhatPodsDidBeforeASuspensionDoesNotCountAfterIt) {
  Scene scene(MakeJob("mnist").Chief().Workers(1));
  scene.Running().Pod(EndedPod(scene.job, kWorker0, 1));
  scene.job.spec.run_policy.suspend = true;
  scene.Look(20);
  scene.job.spec.run_policy.suspend = false;
  EXPECT_THAT(scene.Look(21), HasSubstr("delete pod mnist-chief-0\ndelete pod mnist-worker-0\n"))
      << "seen late";
  EXPECT_FALSE(scene.Is(ConditionType::kFailed));
  EXPECT_FALSE(scene.Is(ConditionType::kRunning));
}

TEST(LifecycleTest, AJobMadeSuspendedMakesNoPods) {
  Scene scene(MakeJob("mnist").Workers(1).Suspended());
  EXPECT_EQ(scene.Look(0),
            "patch status Suspended Created=JobCreated Suspended=JobSuspended\n"
            "tell JobSuspended: the job is suspended\n");
  EXPECT_EQ(scene.Look(9), "");
}

TEST(LifecycleTest, ScalesUpAndDownTouchingOnlyWhatChanges) {
  Scene scene(MakeJob("mnist").Chief().Workers(2));
  scene.Running();
  scene.job.spec.replica_specs[cluster::Role::kWorker].replicas = 4;
  EXPECT_EQ(scene.Look(20),
            "patch status Running Created=JobCreated Running=JobRunning\n"
            "create pod mnist-worker-2 (attempt 0)\ncreate pod mnist-worker-3 (attempt 0)\n");
  EXPECT_EQ(scene.status().ready, "3/5");
  scene.Obey();
  scene.Look(30);
  EXPECT_TRUE(scene.Is(ConditionType::kRunning)) << "it ran all along";
  EXPECT_EQ(scene.status().ready, "5/5");
  scene.job.spec.replica_specs[cluster::Role::kWorker].replicas = 1;
  EXPECT_THAT(
      scene.Look(40),
      HasSubstr(
          "delete pod mnist-worker-1\ndelete pod mnist-worker-2\ndelete pod mnist-worker-3\n"));
  scene.Obey();
  scene.Look(50);
  EXPECT_EQ(scene.Look(60), "");
  EXPECT_EQ(scene.status().recovery, api::Recovery{});
}

TEST(LifecycleTest, LeavesAloneWhatAnotherManages) {
  Scene scene(MakeJob("mnist").Workers(1).With(
      [](api::TrainingJob& job) { job.spec.run_policy.managed_by = "kueue.x-k8s.io/multikueue"; }));
  EXPECT_EQ(scene.Look(0), "");
  scene.job.spec.run_policy.managed_by = std::string(cluster::kManagedBy);
  EXPECT_NE(scene.Look(0), "");
  scene.job.metadata.deleted = At(1);
  EXPECT_EQ(scene.Look(2), "") << "the garbage collector follows the owner references";
}

TEST(LifecycleTest, AnInvalidJobFailsWithoutPods) {
  Scene scene(MakeJob("mnist").Chief().With(
      [](api::TrainingJob& job) { job.spec.replica_specs[cluster::Role::kChief].replicas = 2; }));
  EXPECT_EQ(scene.Look(0),
            "patch status Failed Failed=InvalidSpec\n"
            "warn JobFailed: spec.replicaSpecs.chief.replicas: must be at most 1, got: 2\n");
  EXPECT_EQ(scene.Look(1), "");
}

TEST(LifecycleTest, ARunningJobIsNotStoppedForAnInvalidEdit) {
  Scene scene(MakeJob("mnist").Chief());
  scene.Running();
  scene.job.spec.replica_specs[cluster::Role::kChief].replicas = 2;
  EXPECT_THAT(scene.Look(10), Not(HasSubstr("pod")));
  EXPECT_EQ(scene.Reason(ConditionType::kWaiting), "InvalidSpec");
  EXPECT_TRUE(scene.Is(ConditionType::kRunning));
}

TEST(LifecycleTest, AnInvalidEditHoldsBackNothingButCreation) {
  const auto spoiled = [] {
    Scene scene(MakeJob("mnist").Chief().Workers(2).With(
        [](api::TrainingJob& job) { job.spec.run_policy.active_deadline_seconds = 100; }));
    scene.Running();
    scene.job.spec.replica_specs[cluster::Role::kChief].replicas = 2;
    scene.Look(10);
    return scene;
  };
  Scene done = spoiled();
  done.Pod(EndedPod(done.job, kChief, 0)).Look(20);
  EXPECT_EQ(done.status().phase, "Succeeded");
  Scene suspended = spoiled();
  suspended.job.spec.run_policy.suspend = true;
  EXPECT_THAT(suspended.Look(20), HasSubstr("delete pod mnist-chief-0"));
  EXPECT_EQ(suspended.status().phase, "Suspended");
  Scene late = spoiled();
  EXPECT_EQ(late.last.wake_at, At(100));
  late.Look(100);
  EXPECT_EQ(late.Reason(ConditionType::kFailed), "DeadlineExceeded");
  Scene failed = spoiled();
  EXPECT_THAT(failed.Pod(EndedPod(failed.job, kWorker1, 138)).Look(20),
              HasSubstr("delete pod mnist-worker-1"));
  failed.Obey();
  EXPECT_THAT(failed.Look(21), Not(HasSubstr("create")));
  failed.job.spec.replica_specs[cluster::Role::kChief].replicas = 1;
  EXPECT_THAT(failed.Look(30), HasSubstr("create pod mnist-worker-1"));
  // Who belongs to the job cannot be read: its pods stay as they are.
  Scene unread = spoiled();
  unread.job.problems = {{"spec.replicaSpecs.chief", "must be an object"}};
  unread.job.spec.replica_specs.erase(cluster::Role::kChief);
  EXPECT_THAT(unread.Pod(EndedPod(unread.job, kWorker0, 0)).Look(20), Not(HasSubstr("pod")));
  EXPECT_NE(unread.status().phase, "Succeeded");
}

TEST(LifecycleTest, AdoptsOrphansAndReleasesStrays) {
  Scene scene(MakeJob("mnist").Workers(2));
  PodSeen orphan = MakePod(scene.job, kWorker0);
  orphan.controller_uid.clear();
  PodSeen stray = MakePod(scene.job, kWorker1);
  stray.matches_selector = false;
  scene.Pod(orphan).Pod(stray);
  EXPECT_EQ(scene.Look(0),
            "adopt pod mnist-worker-0\nrelease pod mnist-worker-1\ncreate service mnist\n"
            "patch status Waiting Created=JobCreated Waiting=NameTaken\ntell JobCreated: the job "
            "is created\n");
}

TEST(LifecycleTest, ForeignPodsAndServicesAreLeftAloneAndNamed) {
  Scene scene(MakeJob("mnist").Workers(2));
  PodSeen foreign = MakePod(scene.job, kWorker1);
  foreign.controller_uid = "another";
  scene.Pod(foreign);
  EXPECT_EQ(scene.Look(0),
            "create pod mnist-worker-0 (attempt 0)\ncreate service mnist\n"
            "patch status Waiting Created=JobCreated Waiting=NameTaken\ntell JobCreated: the job "
            "is created\n");
  EXPECT_EQ(scene.status().conditions[ConditionType::kWaiting].message,
            "the pod mnist-worker-1 belongs to another");

  Scene service(MakeJob("mnist").Workers(2));
  service.seen.services = {{.name = "mnist", .controller_uid = ""}};
  EXPECT_EQ(service.Look(0),
            "patch status Waiting Created=JobCreated Waiting=NameTaken\ntell JobCreated: the job "
            "is created\n");
  EXPECT_EQ(service.status().conditions[ConditionType::kWaiting].message,
            "a Service of the name mnist belongs to another");
}

TEST(LifecycleTest, ANewJobWaitsForThePodsOfTheOneBefore) {
  Scene scene(MakeJob("mnist").Workers(1));
  PodSeen old = MakePod(scene.job, kWorker0);
  old.controller_uid = "the former uid";
  old.delete_requested = At(-1);
  scene.Pod(old);
  EXPECT_THAT(scene.Look(0), Not(HasSubstr("create pod")));
  EXPECT_EQ(scene.status().conditions[ConditionType::kWaiting].message,
            "the pod mnist-worker-0 of a former job is still going away");
  scene.Gone(kWorker0);
  EXPECT_THAT(scene.Look(1), HasSubstr("create pod mnist-worker-0"));
}

TEST(LifecycleTest, ARefusedWriteIsWhatTheJobWaitsFor) {
  Scene scene(MakeJob("mnist").Workers(3));
  scene.Look(0);
  scene.Obey();
  scene.status() = {};
  scene.Gone(kWorker2);
  scene.seen.refused = RefusedWrite{"pods \"mnist-worker-2\"", "Forbidden", "exceeded quota: gpus"};
  EXPECT_EQ(scene.Look(1),
            "patch status Waiting Waiting=Forbidden\ncreate pod mnist-worker-2 (attempt 0)\n");
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

TEST(LifecycleTest, NamesThePodThatDoesNotStart) {
  Scene scene(MakeJob("mnist").Workers(2));
  scene.Look(0);
  scene.Obey();
  for (PodSeen& pod : scene.seen.pods) {
    pod.phase = PodPhase::kPending;
    pod.waiting_reason = "ImagePullBackOff";
    pod.waiting_message = "Back-off pulling image \"train:1\"";
  }
  scene.Look(3);
  EXPECT_EQ(scene.Reason(ConditionType::kWaiting), "PodsNotStarting");
  EXPECT_EQ(scene.status().conditions[ConditionType::kWaiting].message,
            "mnist-worker-0: ImagePullBackOff: Back-off pulling image \"train:1\" (and 1 more)");
  EXPECT_EQ(scene.status().worst.size(), 2u);
}

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

TEST(LifecycleTest, MakesManyPodsInPortions) {
  Scene scene(MakeJob("big").Workers(10).With([](api::TrainingJob&) {}));
  scene.seen.settings.max_creates = 4;
  scene.Look(0);
  EXPECT_TRUE(scene.last.again);
  scene.Obey();
  scene.Look(0);
  scene.Obey();
  EXPECT_EQ(scene.seen.pods.size(), 8u);
  EXPECT_TRUE(scene.last.again);
  scene.Look(0);
  scene.Obey();
  EXPECT_EQ(scene.seen.pods.size(), 10u);
  EXPECT_FALSE(scene.last.again);
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

TEST(LifecycleTest, ServicesOfReplicasThatAreWantedNoMoreGo) {
  Scene scene(MakeJob("mnist").Workers(3).With([](api::TrainingJob& job) {
    job.spec.tf_config_compat = "kubeflow-v1";
    job.spec.elastic = api::Elastic{1, 5};
  }));
  scene.Running();
  ASSERT_EQ(scene.seen.services.size(), 4u);
  // Under names that no replica can have, or of somebody else: not ours to delete.
  scene.seen.services.push_back(
      {.name = "dashboard", .uid = "u1", .controller_uid = scene.job.metadata.uid});
  scene.seen.services.push_back(
      {.name = "mnist-worker-7", .uid = "u2", .controller_uid = "another"});
  scene.job.spec.replica_specs[cluster::Role::kWorker].replicas = 2;
  EXPECT_THAT(scene.Look(20),
              testing::HasSubstr("delete service mnist-worker-2\ndelete pod mnist-worker-2\n"));
  scene.Obey();
  EXPECT_THAT(scene.Look(21), testing::Not(testing::HasSubstr("service")));
}

}  // namespace
}  // namespace meshtrain::reconcile
