// Whose objects bear the names that a job needs: its own, another's, or those of a former job.
// Children that pods mount are the job's own, and are made again when somebody deleted them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "operator/reconcile/children.h"
#include "tests/operator/reconcile/scene.h"
#include "tests/support/small_program.h"

namespace meshtrain::reconcile {
namespace {

using api::ConditionType;
using ::testing::HasSubstr;
using ::testing::Not;

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
  EXPECT_EQ(
      service.Look(0),
      "patch status Waiting Created=JobCreated Waiting=NameTaken\ntell JobCreated: the job "
      "is created\nwarn NameTaken: a Service of the name mnist has no owner: a former job left "
      "it when it was deleted with --cascade=orphan\n");
  service.seen.services = {{.name = "mnist", .controller_uid = "another"}};
  service.Look(10);
  EXPECT_EQ(service.status().conditions[ConditionType::kWaiting].message,
            "a Service of the name mnist belongs to another");
}

// Deleted with --cascade=orphan and made again: what it left has another token and other attempts,
// and a chief that has succeeded did so for the job before.
TEST(NamesTest, WhatAFormerJobLeftWithoutAnOwnerIsNotThisJobs) {
  for (const char* uid : {"the former uid", ""}) {  // "": made before pods said whose they are
    Scene scene(MakeJob("mnist").Chief().Workers(1));
    scene.seen.services = {{.name = "mnist", .controller_uid = scene.job.metadata.uid}};
    for (PodSeen pod : {EndedPod(scene.job, kChief, 0), MakePod(scene.job, kWorker0)}) {
      pod.controller_uid.clear();
      pod.job_uid = uid;
      scene.Pod(pod);
    }
    EXPECT_EQ(scene.Look(1),
              "patch status Waiting Created=JobCreated Waiting=NameTaken\n"
              "tell JobCreated: the job is created\n"
              "warn NameTaken: the pod mnist-chief-0 has no owner: a former job left it when it "
              "was deleted with --cascade=orphan\n");
    EXPECT_FALSE(scene.Is(ConditionType::kSucceeded));
    scene.seen.pods.clear();
    EXPECT_THAT(scene.Look(10), HasSubstr("create pod mnist-chief-0"));
  }
}

TEST(NamesTest, PodsThatSayNothingOfTheirJobAreItsOwnWhereItOwnsThem) {
  Scene scene(MakeJob("mnist").Chief().Workers(1));
  scene.Running();
  for (PodSeen& pod : scene.seen.pods) pod.job_uid.clear();
  scene.Look(10);
  EXPECT_EQ(scene.Look(20), "");
  EXPECT_TRUE(scene.Is(ConditionType::kRunning));
  EXPECT_EQ(scene.status().restarts, 0);
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
    EXPECT_THAT(a[i], ::testing::MatchesRegex("mnist-[a-z]+-[0-9a-f]{8}.*"));
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

}  // namespace
}  // namespace meshtrain::reconcile
