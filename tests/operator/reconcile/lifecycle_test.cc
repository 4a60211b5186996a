// The life of a job that nothing happens to, and its ends: creation, Running, success, suspend,
// clean-up, TTL.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "operator/api/json.h"
#include "operator/reconcile/children.h"
#include "operator/reconcile/progress.h"
#include "tests/operator/reconcile/scene.h"

namespace meshtrain::reconcile {
namespace {

using api::ConditionType;
using testing::HasSubstr;
using testing::Not;

// The phases in which a look creates a Service and pods: "prepare service; create mnist-chief-0;
// …".
std::string Creations(const Outcome& outcome) {
  std::string out;
  for (const Action& action : outcome.actions) {
    const std::string phase = action.phase == Phase::kPrepare ? "prepare " : "create ";
    if (std::holds_alternative<CreateService>(action.write)) out += phase + "service; ";
    if (const auto* pod = std::get_if<CreatePod>(&action.write)) out += phase + pod->name + "; ";
  }
  return out;
}

TEST(LifecycleTest, CreatesTheServiceAndPodsThenTells) {
  Scene scene(MakeJob("mnist").Chief().Workers(2));
  EXPECT_EQ(scene.Look(0),
            "create service mnist\n"
            "create pod mnist-chief-0 (attempt 0)\n"
            "create pod mnist-worker-0 (attempt 0)\n"
            "create pod mnist-worker-1 (attempt 0)\n"
            "patch status Pending Created=JobCreated\n"
            "tell JobCreated: the job is created\n");
  EXPECT_EQ(scene.status().start_time, At(0));
  EXPECT_EQ(scene.status().conditions.at(ConditionType::kCreated).observed_generation, 1);
}

// Phases are done in order, and the first error ends an outcome: a Service that is refused leaves
// no pod behind.
TEST(LifecycleTest, TheServiceIsThereBeforeTheFirstPod) {
  const auto at_first = [](const JobBuilder& builder) {
    Scene scene(builder);
    scene.Look(0);
    return Creations(scene.last);
  };
  EXPECT_EQ(at_first(MakeJob("m").Chief().Workers(2)),
            "prepare service; create m-chief-0; create m-worker-0; create m-worker-1; ");
  EXPECT_EQ(at_first(MakeJob("m").Workers(1)), "prepare service; create m-worker-0; ");

  // A process that died after some pods, whose Service is gone since: the Service, then the others.
  Scene half(MakeJob("m").Chief().Workers(1));
  half.Pod(MakePod(half.job, kChief, PodPhase::kPending));
  half.Look(0);
  EXPECT_EQ(Creations(half.last), "prepare service; create m-worker-0; ");
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
  EXPECT_EQ(scene.last.wake_at, std::nullopt);
  EXPECT_FALSE(scene.last.again);
  EXPECT_EQ(scene.last.rests, "phase Running, ready 5/5: all is as it should be");
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

TEST(LifecycleTest, ALeaderThatIsToldToStopAndLeavesWithZeroHasNotSucceeded) {
  Scene scene(MakeJob("mnist").Workers(1));
  PodSeen pod = EndedPod(scene.Running().job, kWorker0, 0);
  pod.delete_requested = At(40);
  // Its node's clock may be an hour behind the API server's: the times say nothing.
  for (const double ended : {50.0, 50.0 - 3600, 30.0}) {
    Scene again = scene;
    pod.finished = At(ended);
    again.Pod(pod);
    again.Look(51);
    EXPECT_FALSE(again.Is(ConditionType::kSucceeded)) << ended;
    EXPECT_TRUE(again.Is(ConditionType::kRestarting));
  }
  // Seen before anybody deleted it, its success is on record and stays.
  Scene done(MakeJob("mnist").Workers(1));
  pod = EndedPod(done.Running().job, kWorker0, 0);
  done.Pod(pod);
  done.Look(55);
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
  // Beside parameter servers each worker knows itself and the servers only.
  Scene scene(MakeJob("mnist").Chief().Workers(2).Ps(1).With([](api::TrainingJob& job) {
    job.spec.elastic = api::Elastic{.min_replicas = 1, .max_replicas = 8};
    job.spec.strategy = api::kStrategyParameterServer;
  }));
  scene.Running();
  scene.job.spec.replica_specs[cluster::Role::kWorker].replicas = 4;
  EXPECT_EQ(scene.Look(20),
            "patch status Running Created=JobCreated Running=JobRunning\n"
            "create pod mnist-worker-2 (attempt 0)\ncreate pod mnist-worker-3 (attempt 0)\n");
  EXPECT_EQ(scene.status().ready, "4/6");
  scene.Obey();
  scene.Look(30);
  EXPECT_TRUE(scene.Is(ConditionType::kRunning)) << "it ran all along";
  EXPECT_EQ(scene.status().ready, "6/6");
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

// Every process is told all the others, so none may run beside one that was told another set.
TEST(ClusterTest, AChangeOfTheClusterRestartsAllTogether) {
  for (const int workers : {4, 1}) {
    Scene scene(MakeJob("mnist").Chief().Workers(2).With([](api::TrainingJob& job) {
      job.spec.elastic = api::Elastic{.min_replicas = 1, .max_replicas = 8};
    }));
    scene.Running();
    scene.job.spec.replica_specs[cluster::Role::kWorker].replicas = workers;
    const std::string did = scene.Look(20);
    EXPECT_THAT(did, testing::StartsWith(
                         "patch status Restarting Created=JobCreated Restarting=ClusterChanged"));
    EXPECT_THAT(did, HasSubstr("delete pod mnist-chief-0\ndelete pod mnist-worker-0\n"
                               "delete pod mnist-worker-1\n"));
    EXPECT_THAT(did, Not(HasSubstr("create pod"))) << "before the last has ended";
    EXPECT_THAT(did,
                HasSubstr("warn ClusterChanged: the set of processes changed: all pods restart "
                          "together"));
    // Two have ended, one takes its time.
    PodSeen slow = scene.seen.pods[0];
    slow.delete_requested = At(20);
    slow.delete_due = At(50);
    scene.seen.pods = {slow};
    EXPECT_THAT(scene.Look(25), Not(HasSubstr("create pod")));
    EXPECT_EQ(scene.Reason(ConditionType::kWaiting), "FormerProcesses");
    scene.seen.pods.clear();
    EXPECT_THAT(scene.Look(30), HasSubstr("create pod mnist-chief-0 (attempt 1)\n"));
    scene.Obey();
    scene.Look(33);
    EXPECT_EQ(scene.status().phase, "Running");
    EXPECT_EQ(scene.status().restarts, 0) << "the user's wish is no failure";
    EXPECT_EQ(scene.Look(60), "");
  }
}

TEST(ClusterTest, PodsOfBeforeASuspensionThatNobodySawDoNotMeetThoseAfterIt) {
  // Suspended, scaled and resumed while the operator was away.
  Scene scene(MakeJob("mnist").Chief().Workers(2));
  scene.Running();
  scene.job.spec.replica_specs[cluster::Role::kWorker].replicas = 3;
  const std::string did = scene.Look(20);
  EXPECT_THAT(did, HasSubstr("delete pod mnist-chief-0\n"));
  EXPECT_THAT(did, Not(HasSubstr("create pod")));
}

TEST(LifecycleTest, LeavesAloneWhatAnotherManages) {
  Scene scene(MakeJob("mnist").Workers(1).With(
      [](api::TrainingJob& job) { job.spec.run_policy.managed_by = "kueue.x-k8s.io/multikueue"; }));
  EXPECT_EQ(scene.Look(0), "");
  EXPECT_EQ(scene.last.rests, "runPolicy.managedBy is kueue.x-k8s.io/multikueue");
  // One that admission should have refused: nobody would run the job, and it says so.
  Scene unknown(MakeJob("mnist").Workers(1).With(
      [](api::TrainingJob& job) { job.spec.run_policy.managed_by = "example.com/typo"; }));
  EXPECT_THAT(unknown.Look(0), HasSubstr("Failed=InvalidSpec"));
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

TEST(LifecycleTest, AProgramWithAMistakeFailsWithoutPods) {
  const auto look = [](std::string_view from, std::string_view to) {
    std::string program(testing_support::kProgram);
    program.replace(program.find(from), from.size(), to);
    Scene scene(MakeJob("mnist").Workers(2).Program(program));
    const std::string did = scene.Look(0);
    EXPECT_EQ(scene.Look(1), "");
    return did;
  };
  const std::string failed = "patch status Failed Failed=InvalidSpec\nwarn JobFailed: ";
  EXPECT_EQ(look("\"batch\":12", "\"bacth\":12"),
            failed + "spec.program.data: unknown field `bacth`, did you mean `batch`?\n");
  EXPECT_EQ(look("\"flatten\"", "\"flaten\""),
            failed + "spec.program.model[0]: unknown layer `flaten`, did you mean `flatten`?\n");
  EXPECT_EQ(look("\"batch\":12", "\"batch\":0"),
            failed + "spec.program.data.batch: expected a whole number of at least 1, got: 0\n");
}

TEST(LifecycleTest, WorkersOfAProgramAreNotElasticButBesideServers) {
  Scene scene(MakeJob("mnist")
                  .Workers(2)
                  .Program(testing_support::kProgram)
                  .With([](api::TrainingJob& job) {
                    job.spec.elastic = api::Elastic{1, 5};
                  }));
  EXPECT_THAT(scene.Look(0), HasSubstr("spec.elastic: must be absent with a program"));
}

TEST(LifecycleTest, AProgramThatRunsIsNotJudgedAgain) {
  Scene scene(MakeJob("mnist").Chief().Program(testing_support::kProgram));
  scene.Running();
  scene.job.spec.program = "{}";
  scene.Look(10);
  EXPECT_FALSE(scene.Is(ConditionType::kWaiting));
  EXPECT_TRUE(scene.Is(ConditionType::kRunning));
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
            "is created\nwarn NameTaken: the pod mnist-worker-1 belongs to another\n");
}

TEST(LifecycleTest, ForeignPodsAndServicesAreLeftAloneAndNamed) {
  Scene scene(MakeJob("mnist").Workers(2));
  PodSeen foreign = MakePod(scene.job, kWorker1);
  foreign.controller_uid = "another";
  scene.Pod(foreign);
  EXPECT_EQ(scene.Look(0),
            "create service mnist\ncreate pod mnist-worker-0 (attempt 0)\n"
            "patch status Waiting Created=JobCreated Waiting=NameTaken\ntell JobCreated: the job "
            "is created\nwarn NameTaken: the pod mnist-worker-1 belongs to another\n");
  EXPECT_EQ(scene.status().conditions[ConditionType::kWaiting].message,
            "the pod mnist-worker-1 belongs to another");

  Scene service(MakeJob("mnist").Workers(2));
  service.seen.services = {{.name = "mnist", .controller_uid = ""}};
  EXPECT_EQ(service.Look(0),
            "patch status Waiting Created=JobCreated Waiting=NameTaken\ntell JobCreated: the job "
            "is created\nwarn NameTaken: a Service of the name mnist belongs to another\n");
  EXPECT_EQ(service.status().conditions[ConditionType::kWaiting].message,
            "a Service of the name mnist belongs to another");
}

TEST(NamesTest, ANewJobWaitsForThePodsOfTheOneBefore) {
  Scene scene(MakeJob("mnist").Workers(2));
  PodSeen old = MakePod(scene.job, kWorker0);
  old.controller_uid = "the former uid";
  old.delete_requested = At(-1);
  scene.Pod(old);
  EXPECT_THAT(scene.Look(0), Not(HasSubstr("create pod mnist-worker-0")));
  EXPECT_EQ(scene.status().conditions[ConditionType::kWaiting].message,
            "the pod mnist-worker-0 of a former job is still going away");
  EXPECT_EQ(scene.Reason(ConditionType::kWaiting), "NameHeld");
  // It is waited for and not asked for: the release wakes the job, no timer does.
  scene.Obey();
  scene.Look(10);
  EXPECT_EQ(scene.Look(20), "");
  EXPECT_EQ(scene.last.wake_at, std::nullopt);
  EXPECT_THAT(scene.last.rests, HasSubstr("waits: NameHeld: the pod mnist-worker-0 of a former"));
  scene.Gone(kWorker0);
  EXPECT_THAT(scene.Look(21), HasSubstr("create pod mnist-worker-0"));
}

TEST(NamesTest, AServiceThatIsGoingAwayIsWaitedFor) {
  for (const char* controller : {"uid-1", "the former uid"}) {
    Scene scene(MakeJob("mnist").Workers(1));
    scene.seen.services = {
        {.name = "mnist", .uid = "s", .controller_uid = controller, .deleting = true}};
    EXPECT_THAT(scene.Look(0), Not(HasSubstr("create pod")));
    EXPECT_THAT(ToString(scene.last), Not(HasSubstr("create service")));
    EXPECT_EQ(scene.Reason(ConditionType::kWaiting), "NameHeld");
    scene.seen.services.clear();
    EXPECT_THAT(scene.Look(1), HasSubstr("create service mnist\ncreate pod mnist-worker-0"));
  }
}

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
}

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

// Names carry the job's uid, so that nobody's object is taken for this job's.
TEST(ChildrenAreOursTest, NamesOfChildrenCarryTheJobsUid) {
  const auto names = [](const char* uid) {
    const auto job = MakeJob("mnist")
                         .Workers(4000)
                         .With([&](api::TrainingJob& j) {
                           j.metadata.uid = uid;
                           j.spec.checkpoint = api::Checkpoint{.path = "/c"};
                         })
                         .Build();
    return std::vector<std::string>{TokenSecret(job).name, CheckpointClaim(job).name,
                                    ClusterMap(job, {}).name};
  };
  const auto a = names("uid-1"), b = names("uid-2");
  for (size_t i = 0; i < a.size(); ++i) {
    EXPECT_NE(a[i], b[i]);
    EXPECT_THAT(a[i], testing::MatchesRegex("mnist-[a-z]+-[0-9a-f]{8}.*"));
  }
}

TEST(ChildrenAreOursTest, ATokenThatPodsHoldIsNeverMadeAnew) {
  Scene scene(MakeJob("mnist").Chief().Workers(1).Program(testing_support::kProgram));
  EXPECT_THAT(scene.Look(0), HasSubstr("create secret mnist-token-"));
  scene.Obey();
  scene.Look(2);
  scene.Pod(EndedPod(scene.job, kWorker0, 138));
  scene.Look(10);
  scene.Obey();
  const std::string did = scene.Look(11);
  EXPECT_THAT(did, HasSubstr("probe secret mnist-token-")) << "the chief holds its value";
  EXPECT_THAT(did, Not(HasSubstr("create secret")));
}

TEST(ChildrenAreOursTest, WhatPodsMountAndSomebodyDeletedRestartsAllTogether) {
  Scene scene(MakeJob("mnist").Chief().Workers(1).Program(testing_support::kProgram));
  scene.Running();
  scene.Pod(EndedPod(scene.job, kWorker0, 138));
  scene.Look(10);
  scene.Obey();
  scene.Look(11);  // the probe tells
  scene.seen.lost_child =
      LostChild{.what = "secret \"mnist-token-0\"", .attempt = scene.status().recovery.attempt};
  const std::string did = scene.Look(12);
  EXPECT_THAT(did, HasSubstr("Restarting=ChildLost"));
  EXPECT_THAT(did, HasSubstr("warn ChildLost: secret \"mnist-token-0\" was deleted: it is made "
                             "again, and all pods restart together"));
  EXPECT_THAT(did, HasSubstr("delete pod mnist-chief-0"));
  EXPECT_THAT(did, Not(HasSubstr("create pod"))) << "its holder has to end first";
  scene.Obey();
  scene.seen.pods.clear();
  const std::string then = scene.Look(13);
  EXPECT_THAT(then, HasSubstr("create secret mnist-token-")) << "nobody holds the former value";
  EXPECT_THAT(then, HasSubstr("create pod mnist-chief-0 (attempt 2)"));
  scene.Obey();
  scene.Look(20);
  EXPECT_EQ(scene.status().phase, "Running") << "the same finding again is no new incident";
  EXPECT_EQ(scene.status().recovery.attempt, 2);
}

TEST(ChildrenAreOursTest, AClusterFileThatPodsHoldIsAskedForAndNotMadeBesideThem) {
  // What is asked of the cluster's file, first and when a worker is to be made again.
  const auto asked = [](const JobBuilder& builder) {
    Scene scene(builder);
    scene.seen.settings.max_creates = 7000;
    const auto of_the_file = [&](double at) {
      const std::string did = scene.Look(at);
      const size_t file = did.find(" config map ");
      return file == std::string::npos ? "nothing" : did.substr(did.rfind('\n', file) + 1, 6);
    };
    const std::string first = of_the_file(0);
    scene.Obey();
    scene.Look(2);
    scene.Pod(EndedPod(scene.job, kWorker0, 138));
    scene.Look(10);
    scene.Obey();
    return first + ", then " + of_the_file(11);
  };
  EXPECT_EQ(asked(MakeJob("big").Workers(4000)), "create, then probe ");
  const auto elastic = [](api::TrainingJob& job) { job.spec.elastic = api::Elastic{1, 4}; };
  EXPECT_EQ(asked(MakeJob("big").Workers(2).Ps(6000).With(elastic)), "create, then create")
      << "the workers that stay may hold the file of another time";
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
  EXPECT_THAT(scene.Look(20), testing::HasSubstr("delete service mnist-worker-2\n"));
  scene.Obey();
  EXPECT_THAT(scene.Look(21), testing::Not(testing::HasSubstr("service")));
}

}  // namespace
}  // namespace meshtrain::reconcile
