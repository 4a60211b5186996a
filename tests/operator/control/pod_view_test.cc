#include "operator/control/pod_view.h"

#include <gtest/gtest.h>

#include "runtime/base/time_text.h"

namespace meshtrain::control {
namespace {

constexpr char kPod[] = R"({
 "apiVersion":"v1","kind":"Pod",
 "metadata":{"name":"mnist-worker-3","namespace":"ml","uid":"u1","resourceVersion":"77",
  "creationTimestamp":"2026-01-02T03:04:05Z","deletionTimestamp":"2026-01-02T03:10:30Z","deletionGracePeriodSeconds":30,
  "annotations":{"meshtrain.dev/attempt":"2","meshtrain.dev/job-uid":"j0"},
  "labels":{"app.kubernetes.io/managed-by":"meshtrain-operator","meshtrain.dev/job-name":"mnist",
            "meshtrain.dev/replica-type":"worker","meshtrain.dev/replica-index":"3","meshtrain.dev/leader":"true"},
  "managedFields":[{"manager":"x"}],
  "ownerReferences":[{"kind":"Other","name":"o","uid":"o1"},
                     {"apiVersion":"meshtrain.dev/v1","kind":"TrainingJob","name":"mnist","uid":"j1","controller":true}]},
 "spec":{"nodeName":"n1","containers":[{"name":"side","ports":[{"name":"meshtrain-http","containerPort":1}]},
   {"name":"trainer","env":[{"name":"A","value":"B"}],"ports":[{"name":"meshtrain-http","containerPort":2280}]}]},
 "status":{"phase":"Failed","reason":"Evicted","podIP":"10.1.2.3",
  "conditions":[{"type":"Ready","status":"False"},{"type":"DisruptionTarget","status":"True"}],
  "containerStatuses":[
   {"name":"side","restartCount":1,"state":{"terminated":{"exitCode":1,"reason":"Error"}}},
   {"name":"trainer","restartCount":2,
    "state":{"terminated":{"exitCode":137,"reason":"OOMKilled","message":"last words","finishedAt":"2026-01-02T03:10:00Z"}},
    "lastState":{"terminated":{"exitCode":138}}}]}})";

TEST(PodViewTest, KeepsWhatDecisionsRead) {
  const Result<Pod> got = ParsePod(kPod);
  ASSERT_TRUE(got.ok()) << got.status().ToString();
  Pod want;
  want.ns = "ml";
  want.job = "mnist";
  want.ip = "10.1.2.3";
  want.http_port = 2280;
  want.leader = true;
  want.seen.name = "mnist-worker-3";
  want.seen.uid = "u1";
  want.seen.task = cluster::TaskId{.role = cluster::Role::kWorker, .index = 3};
  want.seen.controller_uid = "j1";
  want.seen.attempt = 2;
  want.seen.job_uid = "j0";
  want.seen.created = *ParseTime("2026-01-02T03:04:05Z");
  want.seen.delete_due = ParseTime("2026-01-02T03:10:30Z");
  want.seen.delete_requested = ParseTime("2026-01-02T03:10:00Z");
  want.seen.phase = reconcile::PodPhase::kFailed;
  want.seen.reason = "Evicted";
  want.seen.disrupted = true;
  want.seen.exit_code = 137;
  want.seen.exit_reason = "OOMKilled";
  want.seen.termination_message = "last words";
  want.seen.finished = ParseTime("2026-01-02T03:10:00Z");
  want.seen.last_exit_code = 138;
  want.seen.restart_count = 3;
  want.seen.node = "n1";
  EXPECT_EQ(*got, want);
}

TEST(PodViewTest, SaysWhyAPodDoesNotStart) {
  const Result<Pod> unschedulable =
      ParsePod(R"({"metadata":{"name":"a"},"status":{"phase":"Pending","conditions":[
    {"type":"PodScheduled","status":"False","reason":"Unschedulable","message":"0/3 nodes"}]}})");
  EXPECT_EQ(unschedulable->seen.waiting_reason, "Unschedulable");
  EXPECT_EQ(unschedulable->seen.waiting_message, "0/3 nodes");
  const Result<Pod> image =
      ParsePod(R"({"metadata":{"name":"a"},"spec":{"containers":[{"name":"c"}]},
    "status":{"containerStatuses":[{"name":"c","state":{"waiting":{"reason":"ImagePullBackOff","message":"m"}}}]}})");
  EXPECT_EQ(image->seen.waiting_reason, "ImagePullBackOff");
  const Result<Pod> starting =
      ParsePod(R"({"metadata":{"name":"a"},"spec":{"containers":[{"name":"c"}]},
    "status":{"containerStatuses":[{"name":"c","state":{"waiting":{"reason":"ContainerCreating"}}}]}})");
  EXPECT_EQ(starting->seen.waiting_reason, "");
}

TEST(PodViewTest, WhatItsVolumesAreOfIsKeptWhileItHasNotStarted) {
  const auto of = [](const std::string& phase) {
    return ParsePod(R"({"metadata":{"name":"a"},"spec":{"volumes":[
      {"name":"s","secret":{"secretName":"wandb-key"}},{"name":"e","emptyDir":{}},7,
      {"name":"m","configMap":{"name":"settings"}},{"name":"odd","secret":"none"},
      {"name":"p","persistentVolumeClaim":{"claimName":"mnist-data"}}]},"status":{"phase":")" +
                    phase + "\"}}")
        ->seen.volumes;
  };
  EXPECT_EQ(of("Pending"), "Secret wandb-key, ConfigMap settings, claim mnist-data");
  EXPECT_EQ(of("Running"), "");
  EXPECT_EQ(ParsePod(R"({"metadata":{"name":"a"},"spec":{"volumes":{"secret":{}}}})")->seen.volumes,
            "");
}

// What no kubelet writes, but whoever may write a pod's status can: no sum of it overflows, and no
// exit code turns into another.
TEST(PodViewTest, NumbersBeyondAllBoundsAreTheNearestWithin) {
  const Result<Pod> pod =
      ParsePod(R"({"metadata":{"name":"a","deletionTimestamp":"2026-01-02T03:10:30Z",
      "deletionGracePeriodSeconds":9223372036854775807},"spec":{"containers":[{"name":"c"}]},
    "status":{"containerStatuses":[
      {"name":"c","restartCount":2147483647,"state":{"terminated":{"exitCode":4294967296}}},
      {"name":"d","restartCount":18446744073709551615},{"name":"e","restartCount":-5}]}})");
  ASSERT_TRUE(pod.ok()) << pod.status().ToString();
  EXPECT_LT(*pod->seen.delete_requested, *pod->seen.delete_due);
  EXPECT_EQ(pod->seen.restart_count, 99'995);
  EXPECT_EQ(pod->seen.exit_code, INT32_MAX);
  // What its time is, it is: far off is none.
  EXPECT_FALSE(ParsePod(R"({"metadata":{"name":"a","deletionTimestamp":"1678-01-01T00:00:00Z"}})")
                   ->seen.delete_due);
}

TEST(PodViewTest, SurvivesOddShapes) {
  EXPECT_FALSE(ParsePod("").ok());
  EXPECT_FALSE(ParsePod("[]").ok());
  EXPECT_FALSE(ParsePod(R"({"metadata":{}})").ok());
  const Result<Pod> odd = ParsePod(R"({"metadata":{"name":"a","labels":7,"ownerReferences":{},
    "annotations":{"meshtrain.dev/attempt":"many"}},"spec":[],"status":{"conditions":"x","containerStatuses":[1,null]}})");
  ASSERT_TRUE(odd.ok());
  EXPECT_EQ(odd->seen.name, "a");
  EXPECT_FALSE(odd->seen.matches_selector);
}

}  // namespace
}  // namespace meshtrain::control
