// The life of a job that nothing happens to: creation, Running, then no more writes.
// And what is not created: jobs that others manage, and jobs that are invalid.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/operator/reconcile/scene.h"
#include "tests/support/small_program.h"

namespace meshtrain::reconcile {
namespace {

using api::ConditionType;
using ::testing::HasSubstr;
using ::testing::Not;

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

}  // namespace
}  // namespace meshtrain::reconcile
