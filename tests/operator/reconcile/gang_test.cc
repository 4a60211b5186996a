// Pod groups of the gang schedulers Volcano and scheduler-plugins.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/operator/reconcile/scene.h"

namespace meshtrain::reconcile {
namespace {

using api::ConditionType;
using cluster::Role;
using ::testing::HasSubstr;
using ::testing::Not;

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
