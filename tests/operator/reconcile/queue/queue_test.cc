// Jobs that Kueue holds back, admits and takes the place of.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "operator/reconcile/children.h"
#include "tests/operator/reconcile/queue/queue_scene.h"

namespace meshtrain::reconcile {
namespace {

using api::ConditionType;
using cluster::Role;
using nlohmann::json;
using ::testing::HasSubstr;
using ::testing::Not;

std::string Message(const Scene& scene, ConditionType type) {
  return scene.job.status.conditions.at(type).message;
}

// Made, asked for, admitted, and running at 4 s.
QueueScene Admitted(JobBuilder builder) {
  QueueScene scene(std::move(builder));
  scene.Look(0);
  scene.Happen();
  scene.Admit();
  scene.Look(2);
  scene.Happen();
  for (PodSeen& pod : scene.seen.pods) pod.ready = true;
  scene.Look(4);
  scene.Happen();
  return scene;
}

TEST(QueueTest, ANewJobAsksForItsPlaceAndMakesNoPods) {
  QueueScene scene(MakeJob("mnist").Chief().Workers(2));
  EXPECT_EQ(scene.Look(0),
            "patch status Queued Created=JobCreated Suspended=Queued\n"
            "create workload trainingjob-mnist-" +
                cluster::ShortHash(scene.job.metadata.uid) +
                "\ntell JobCreated: the job is created\ntell Queued: its place in the queue "
                "research is being asked for\n");
  scene.Happen();
  scene.Pend("couldn't assign flavors to pod set worker: insufficient quota for cpu");
  EXPECT_EQ(scene.Look(10), "patch status Queued Created=JobCreated Suspended=Queued\n");
  EXPECT_EQ(Message(scene, ConditionType::kSuspended),
            "queue research: couldn't assign flavors to pod set worker: insufficient quota for "
            "cpu");
  EXPECT_EQ(scene.Look(20), "");
  EXPECT_EQ(scene.status().start_time, std::nullopt) << "no deadline counts in a queue";
}

TEST(QueueTest, AdmissionChoosesTheNodesOfPodsAndNotOfTheJob) {
  QueueScene scene(MakeJob("mnist").Chief().Workers(1));
  scene.Look(0);
  scene.Happen();
  scene.Admit();
  EXPECT_EQ(scene.Look(2),
            "patch status Pending Created=JobCreated\n"
            "create service mnist\ncreate pod mnist-chief-0 (attempt 0)\n"
            "create pod mnist-worker-0 (attempt 0)\n"
            "tell Admitted: the queue lets the job run\n")
      << ToString(scene.last);
  const json pod =
      json::parse(PodBody(scene.job, scene.seen.settings,
                          {.name = "mnist-worker-0", .task = kWorker0}, scene.last.placements));
  EXPECT_EQ(pod["spec"]["nodeSelector"], json({{"pool", "a100"}}));
  EXPECT_EQ(pod["spec"]["tolerations"], json::parse(R"([{"key":"gpu","operator":"Exists"}])"));
  EXPECT_THAT(scene.job.spec.replica_specs[Role::kWorker].pod_template.json,
              Not(HasSubstr("pool")));
  scene.Happen();
  for (PodSeen& one : scene.seen.pods) one.ready = false;
  EXPECT_THAT(scene.Look(4), Not(HasSubstr("workload"))) << "pods that run are not ready yet";
  for (PodSeen& one : scene.seen.pods) one.ready = true;
  EXPECT_THAT(scene.Look(5), HasSubstr("patch status of workload"));
  scene.Happen();
  EXPECT_TRUE(scene.Has("PodsReady"));
  EXPECT_TRUE(scene.Is(ConditionType::kRunning));
  EXPECT_EQ(scene.Look(30), "");
}

TEST(QueueTest, APreemptedJobGivesItsQuotaBackOnceItsPodsAreGone) {
  QueueScene scene = Admitted(MakeJob("mnist").Chief().Workers(1));
  ASSERT_TRUE(scene.Is(ConditionType::kRunning));
  scene.Evict("Preempted", "Preempted to accommodate a workload (UID: 7) of higher priority");
  EXPECT_EQ(scene.Look(20),
            "patch status Queued Created=JobCreated Suspended=Queued\n"
            "delete pod mnist-chief-0\ndelete pod mnist-worker-0\n"
            "tell Queued: queue research: Preempted to accommodate a workload (UID: 7) of higher "
            "priority\n");
  EXPECT_EQ(scene.status().phase, "Queued");
  EXPECT_FALSE(scene.Is(ConditionType::kRunning));
  for (PodSeen& pod : scene.seen.pods) {
    pod.delete_requested = At(20);
    pod.delete_due = At(50);
  }
  EXPECT_THAT(scene.Look(30), Not(HasSubstr("workload"))) << "they still end";
  scene.seen.pods.clear();
  EXPECT_THAT(scene.Look(40), HasSubstr("patch status of workload"));
  scene.Happen();
  EXPECT_FALSE(scene.Has("QuotaReserved"));
  EXPECT_FALSE(scene.Has("Admitted"));
  EXPECT_FALSE(scene.Has("PodsReady"));
  EXPECT_TRUE(scene.Has("Requeued")) << "it keeps its place";
  EXPECT_TRUE(scene.workload().assigned.empty());
  EXPECT_EQ(scene.Look(60), "") << "Kueue is to say more";

  scene.seen.queue.flavors["h100"] = {.node_labels = {{"pool", "h100"}}};
  scene.Admit("h100");
  EXPECT_THAT(scene.Look(100), HasSubstr("create pod mnist-chief-0 (attempt 1)"));
  EXPECT_EQ(scene.last.placements.at(Role::kChief).node_selector,
            (std::map<std::string, std::string>{{"pool", "h100"}}));
  EXPECT_EQ(scene.status().start_time, At(100));
  scene.Happen();
  scene.Look(102);
  EXPECT_TRUE(scene.Is(ConditionType::kRunning));
  EXPECT_EQ(scene.status().restarts, 0) << "nothing failed";
}

TEST(QueueTest, ADeactivatedJobStandsStillAndSaysWhy) {
  QueueScene scene = Admitted(MakeJob("mnist").Workers(1));
  scene.workload().active = false;
  scene.Evict("Deactivated", "The workload is deactivated");
  scene.Look(20);
  scene.Happen();
  scene.Look(30);
  scene.Happen();
  EXPECT_FALSE(scene.Has("QuotaReserved"));
  EXPECT_FALSE(scene.Has("Requeued"));
  scene.Look(40);
  EXPECT_EQ(Message(scene, ConditionType::kSuspended),
            "queue research: The workload is deactivated");
}

TEST(QueueTest, ChecksOfAnAdmissionAreWaitedForAndTheirWordsGoIntoPods) {
  QueueScene scene(MakeJob("mnist").Workers(1));
  scene.Look(0);
  scene.Happen();
  scene.Say("QuotaReserved", true, "QuotaReserved", "");
  scene.workload().checks =
      R"([{"name":"nodes","state":"Pending","message":"2 nodes are being made"}])";
  scene.Look(10);
  EXPECT_EQ(Message(scene, ConditionType::kSuspended),
            "queue research: it has its quota, and waits for admission checks: nodes (Pending): 2 "
            "nodes are being made");
  scene.workload().checks =
      R"([{"name":"nodes","state":"Ready","podSetUpdates":[{"name":"worker",)"
      R"("annotations":{"asked":"yes"},"nodeSelector":{"made-for":"mnist"}}]}])";
  scene.Admit();
  scene.Look(20);
  const Placement& place = scene.last.placements.at(Role::kWorker);
  EXPECT_EQ(place.annotations.at("asked"), "yes");
  EXPECT_EQ(place.node_selector.at("made-for"), "mnist");
  EXPECT_EQ(place.node_selector.at("pool"), "a100");
}

TEST(QueueTest, TheEndIsToldToKueue) {
  QueueScene scene = Admitted(MakeJob("mnist").Chief().Workers(1));
  scene.Pod(EndedPod(scene.job, kChief, 0));
  scene.Look(20);
  EXPECT_THAT(scene.Look(21), HasSubstr("patch status of workload"));
  scene.Happen();
  EXPECT_EQ(WorkloadStatus(scene.workload()).Find("Finished")->reason, "Succeeded");
  EXPECT_THAT(scene.Look(22), Not(HasSubstr("workload")));
}

TEST(QueueTest, SuspensionLeavesTheQueueOncePodsAreGone) {
  QueueScene scene = Admitted(MakeJob("mnist").Workers(1));
  scene.job.spec.run_policy.suspend = true;
  EXPECT_THAT(scene.Look(20), Not(HasSubstr("workload")));
  EXPECT_EQ(scene.status().phase, "Suspended");
  scene.Happen();
  EXPECT_THAT(scene.Look(30), HasSubstr("delete workload"));
  scene.Happen();
  scene.job.spec.run_policy.suspend = false;
  EXPECT_THAT(scene.Look(40), HasSubstr("create workload"));
  EXPECT_EQ(scene.status().phase, "Queued");
}

TEST(QueueTest, AWaitingJobThatChangesIsRenewedAndAnAdmittedOneThatGrowsQueuesAgain) {
  QueueScene scene(MakeJob("mnist").Workers(2));
  scene.Look(0);
  scene.Happen();
  scene.job.spec.replica_specs[Role::kWorker].replicas = 3;
  EXPECT_THAT(scene.Look(10), HasSubstr("patch workload"));
  scene.Happen();
  EXPECT_EQ(scene.workload().pod_sets.at("worker"), 3);
  EXPECT_THAT(scene.Look(20), Not(HasSubstr("workload")));
  scene.Admit();
  scene.Look(30);
  scene.Happen();
  scene.Look(32);

  scene.job.spec.replica_specs[Role::kWorker].replicas = 2;
  EXPECT_THAT(scene.Look(40), Not(HasSubstr("delete workload"))) << "it keeps its place";
  scene.Happen();
  scene.Look(50);
  scene.Happen();
  scene.Look(52);
  EXPECT_TRUE(scene.Is(ConditionType::kRunning));
  scene.job.spec.replica_specs[Role::kWorker].replicas = 4;
  const std::string grown = scene.Look(60);
  EXPECT_THAT(grown, HasSubstr("delete pod mnist-worker-0"));
  EXPECT_THAT(grown, Not(HasSubstr("workload")));
  scene.Happen();
  EXPECT_THAT(scene.Look(70), HasSubstr("delete workload"));
  scene.Happen();
  EXPECT_THAT(scene.Look(71), HasSubstr("create workload"));
  scene.Happen();
  EXPECT_EQ(scene.workload().pod_sets.at("worker"), 4);
}

TEST(QueueTest, AnotherQueueIsAnotherPlace) {
  QueueScene scene = Admitted(MakeJob("mnist").Workers(1));
  scene.job.metadata.labels[std::string(kLabelQueue)] = "other";
  EXPECT_THAT(scene.Look(20), HasSubstr("delete pod mnist-worker-0"));
  scene.Happen();
  EXPECT_THAT(scene.Look(30), HasSubstr("delete workload"));
  scene.Happen();
  scene.Look(31);
  scene.Happen();
  EXPECT_EQ(scene.workload().queue, "other");
  // And none is none: its pods are made anew without a quota that they no longer have.
  scene.job.metadata.labels.clear();
  EXPECT_THAT(scene.Look(40), HasSubstr("delete workload"));
  scene.Happen();
  EXPECT_THAT(scene.Look(50), HasSubstr("create pod mnist-worker-0 (attempt 1)"));
}

TEST(QueueTest, APriorityClassIsFoundAndFollowed) {
  QueueScene scene(MakeJob("mnist").Workers(1));
  scene.job.metadata.labels[std::string(kLabelPriorityClass)] = "urgent";
  EXPECT_THAT(scene.Look(0), Not(HasSubstr("create workload")));
  EXPECT_EQ(Message(scene, ConditionType::kSuspended),
            "WorkloadPriorityClass urgent: expected one of that name, got: none");
  scene.seen.queue.workload_priorities = {{"urgent", {.value = 9}}, {"later", {.value = 1}}};
  scene.Look(10);
  const auto made = std::find_if(
      scene.last.actions.begin(), scene.last.actions.end(),
      [](const Action& action) { return std::holds_alternative<CreateWorkload>(action.write); });
  ASSERT_NE(made, scene.last.actions.end());
  const json body = json::parse(std::get<CreateWorkload>(made->write).body);
  EXPECT_EQ(body["spec"]["priority"], 9);
  EXPECT_EQ(body["spec"]["priorityClassRef"]["kind"], "WorkloadPriorityClass");
  scene.Happen();
  scene.Admit();
  scene.Look(20);
  scene.Happen();
  scene.job.metadata.labels[std::string(kLabelPriorityClass)] = "later";
  EXPECT_THAT(scene.Look(30), HasSubstr("patch workload")) << "also while it runs";
  scene.Happen();
  EXPECT_EQ(scene.workload().priority_class, "later");
  EXPECT_THAT(scene.Look(40), Not(HasSubstr("workload")));
}

TEST(QueueTest, WhatCannotBeDoneHoldsTheJobBackAndSaysSo) {
  const auto says = [](const char* what, const std::function<void(QueueScene*)>& change) {
    QueueScene scene(MakeJob("mnist").Workers(2));
    scene.Look(0);
    scene.Happen();
    scene.Admit();
    change(&scene);
    EXPECT_THAT(scene.Look(10), Not(HasSubstr("create pod")));
    EXPECT_THAT(Message(scene, ConditionType::kSuspended), HasSubstr(what));
  };
  says("expected all 2 pods to be admitted, got: 1",
       [](QueueScene* scene) { scene->workload().assigned["worker"].count = 1; });
  says("expected flavors without a topology",
       [](QueueScene* scene) { scene->workload().assigned["worker"].topology = true; });
  says("ResourceFlavor a100: expected one of that name, got: none",
       [](QueueScene* scene) { scene->seen.queue.flavors.clear(); });
  says("expected an assignment of it, got: none",
       [](QueueScene* scene) { scene->workload().assigned.clear(); });
  says("going away", [](QueueScene* scene) { scene->workload().deleting = true; });
  says("its name is taken",
       [](QueueScene* scene) { scene->workload().controller_uid = "another"; });
}

TEST(QueueTest, ATemplateThatAsksForOtherNodesIsNotRunOnThese) {
  QueueScene scene(MakeJob("mnist").Workers(1).Template(
      Role::kWorker,
      R"({"spec":{"nodeSelector":{"pool":"h100"},"containers":[{"name":"trainer","image":"i"}]}})"));
  scene.Look(0);
  scene.Happen();
  scene.Admit();
  EXPECT_THAT(scene.Look(10), Not(HasSubstr("create pod")));
  EXPECT_THAT(Message(scene, ConditionType::kSuspended),
              HasSubstr("expected nodes with pool=a100, got a template that asks for pool=h100"));
}

// The program says what its pods ask for too: a place that was given for less is not run in.
TEST(QueueTest, AProgramThatAsksForMoreDevicesQueuesAgain) {
  const auto on = [](const std::string& slice) {
    return R"({"devices":{"slice":")" + slice +
           R"("},"data":{"train":{"idx":{"images":"data/a.gz","labels":"data/b.gz"}},"batch":32},)"
           R"("model":["flatten",{"dense":{"units":2}}],"optimizer":{"adam":{}},)"
           R"("loss":{"sparse_categorical_crossentropy":{"from_logits":true}},)"
           R"("train":{"epochs":10}})";
  };
  QueueScene scene = Admitted(MakeJob("mnist").Workers(1).With([&](api::TrainingJob& job) {
    job.spec.strategy = "TPU";
    job.spec.program = on("v5e-1");
  }));
  ASSERT_EQ(scene.seen.pods.size(), 1u);
  scene.job.spec.run_policy.suspend = true;
  scene.Look(20);
  // While its pod still ends.
  scene.job.spec.program = on("v5e-8");
  scene.job.spec.run_policy.suspend = false;
  scene.Look(21);
  scene.seen.pods.clear();
  const std::string then = scene.Look(51);
  EXPECT_THAT(then, Not(HasSubstr("create pod")));
  EXPECT_THAT(then, HasSubstr("delete workload"));
}

TEST(QueueTest, ALabelWithoutTheSettingIsWarnedOfAndTheJobRuns) {
  QueueScene scene(MakeJob("mnist").Workers(1));
  scene.seen.settings.queue = QueueManager::kNone;
  EXPECT_THAT(scene.Look(0), HasSubstr("create pod mnist-worker-0 (attempt 0)"));
  EXPECT_THAT(ToString(scene.last), HasSubstr("warn ManifestWarning: metadata.labels: "
                                              "kueue.x-k8s.io/queue-name is research, but"));
}

TEST(QueueTest, WithoutTheLabelNothingChanges) {
  Scene plain(MakeJob("mnist").Chief().Workers(1));
  QueueScene scene(MakeJob("mnist").Chief().Workers(1), "");
  EXPECT_EQ(scene.Look(0), plain.Look(0));
}

TEST(QueueTest, AJobThatRanBeforeItsQueueWasKnownStopsAndAsks) {
  QueueScene scene(MakeJob("mnist").Workers(1));
  scene.seen.settings.queue = QueueManager::kNone;
  scene.Running();
  scene.seen.settings.queue = QueueManager::kKueue;
  EXPECT_THAT(scene.Look(20), HasSubstr("delete pod mnist-worker-0"));
  scene.Happen();
  EXPECT_THAT(scene.Look(30), HasSubstr("create workload"));
}

// Whatever Kueue, the user and an administrator do, in whatever order: pods are made from an
// admission only, quota goes back only when no pod is left, nobody else's Workload is written, and
// when all have come to rest the job runs, or stands still because somebody wants that.
TEST(QueueTest, EveryOrderOfEventsKeepsThePromises) {
  SCOPED_TRACE("MT_TEST_SEED=" + std::to_string(Seed()));
  Dice dice(Seed() + 17);
  for (int round = 0; round < 400; ++round) {
    QueueScene scene(MakeJob("any").Chief().Workers(1 + dice.Below(3)));
    scene.seen.queue.workload_priorities = {{"urgent", {.value = 9}}, {"later", {.value = 1}}};
    double at = 0;
    std::string story;
    const auto look = [&] {
      const bool fits = scene.there() && scene.Has("Admitted") && scene.Has("QuotaReserved") &&
                        !scene.Has("Evicted") && !scene.Has("Finished") &&
                        !scene.workload().deleting;
      const bool foreign =
          scene.there() && scene.workload().controller_uid != scene.job.metadata.uid;
      at += 10;
      story += scene.Look(at) + "--\n";
      for (const Action& action : scene.last.actions) {
        if (const auto* pod = std::get_if<CreatePod>(&action.write)) {
          const bool queued = !QueueName(scene.job).empty();
          ASSERT_TRUE(fits || !queued) << story;
          if (queued) {
            ASSERT_LT(pod->task.index,
                      scene.workload().pod_sets.at(std::string(cluster::RoleName(pod->task.role))))
                << story;
          }
        }
        const auto* patch = std::get_if<PatchWorkload>(&action.write);
        const bool gives_back =
            patch != nullptr && json::parse(patch->body)["status"].contains("admission");
        if (gives_back || std::holds_alternative<DeleteWorkload>(action.write)) {
          ASSERT_TRUE(scene.seen.pods.empty()) << story;
        }
        if (patch != nullptr || std::holds_alternative<DeleteWorkload>(action.write)) {
          ASSERT_FALSE(foreign) << story;
        }
      }
      // Pods end when they like.
      const std::vector<PodSeen> before = scene.seen.pods;
      scene.Happen();
      if (dice.Once(3)) {
        for (PodSeen pod : before) {
          const bool left = std::none_of(scene.seen.pods.begin(), scene.seen.pods.end(),
                                         [&](const PodSeen& now) { return now.name == pod.name; });
          if (!left) continue;
          pod.delete_requested = pod.delete_requested.value_or(At(at));
          pod.delete_due = At(at + 30);
          scene.seen.pods.push_back(pod);
        }
      } else {
        std::erase_if(scene.seen.pods, [](const PodSeen& p) { return p.delete_requested; });
      }
      for (PodSeen& pod : scene.seen.pods) pod.ready = dice.Once(2);
    };
    for (int event = 0; event < 25; ++event) {
      const bool there = scene.there();
      const int what = dice.Below(11);
      story += "event " + std::to_string(what) + "\n";
      if (what == 0 && there && !scene.Has("Evicted")) scene.Admit();
      if (what == 1 && there && !scene.Has("QuotaReserved")) scene.Admit();
      if (what == 2 && there && scene.Has("Admitted")) scene.Evict("Preempted", "preempted");
      if (what == 3 && there) {
        scene.workload().active = false;
        scene.Evict("Deactivated", "deactivated");
      }
      if (what == 4 && there) scene.workload().active = true;
      if (what == 5) scene.seen.queue.workload.reset();  // an administrator's deletion
      if (what == 6) scene.job.spec.run_policy.suspend = !scene.job.spec.run_policy.suspend;
      if (what == 7) scene.job.spec.replica_specs[Role::kWorker].replicas = 1 + dice.Below(4);
      if (what == 8) {
        scene.job.metadata.labels[std::string(kLabelQueue)] = dice.Once(2) ? "research" : "other";
      }
      if (what == 9) {
        scene.job.metadata.labels[std::string(kLabelPriorityClass)] =
            dice.Once(2) ? "urgent" : "later";
      }
      if (what == 10 && there && dice.Once(4)) scene.Say("Finished", true, "OutOfSync", "said");
      look();
      if (HasFatalFailure()) return;
    }
    // Rest: Kueue admits what waits, and everybody else is content.
    for (int i = 0; i < 14; ++i) {
      if (scene.there()) {
        scene.workload().active = true;
        if (!scene.Has("QuotaReserved")) scene.Admit();
      }
      std::erase_if(scene.seen.pods, [](const PodSeen& p) { return p.delete_requested; });
      look();
      if (HasFatalFailure()) return;
      std::erase_if(scene.seen.pods, [](const PodSeen& p) { return p.delete_requested; });
      for (PodSeen& pod : scene.seen.pods) pod.ready = true;
    }
    ASSERT_EQ(scene.Is(ConditionType::kRunning), !scene.job.spec.run_policy.suspend) << story;
    ASSERT_EQ(scene.there(), !scene.job.spec.run_policy.suspend) << story;
    at += 400;
    ASSERT_EQ(scene.Look(at), "") << story;
  }
}

}  // namespace
}  // namespace meshtrain::reconcile
