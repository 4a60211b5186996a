// What is read of Kueue's objects, and what a Controller makes of them.
#include "operator/control/queue/workload_view.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/operator/control/controller_fixture.h"

namespace meshtrain::control {
namespace {

using ::testing::IsEmpty;

TEST(WorkloadViewTest, ReadsWhatDecisionsNeed) {
  const auto seen = ParseWorkload(R"({
    "metadata":{"name":"trainingjob-mnist-1","namespace":"ml","uid":"u","resourceVersion":"12",
      "generation":3,"annotations":{"meshtrain.dev/pod-sets":"abc"},
      "ownerReferences":[{"kind":"TrainingJob","name":"mnist","uid":"j","controller":true}]},
    "spec":{"queueName":"research","active":false,"podSets":[{"name":"worker","count":2}],
      "priority":9,"priorityClassRef":{"group":"kueue.x-k8s.io","kind":"WorkloadPriorityClass",
        "name":"urgent"}},
    "status":{"conditions":[{"type":"QuotaReserved","status":"True"}],
      "admissionChecks":[{"name":"nodes","state":"Ready"}],
      "admission":{"clusterQueue":"all","podSetAssignments":[
        {"name":"worker","count":2,"flavors":{"cpu":"a100","memory":"a100","gpu":"h100"},
         "topologyAssignment":{"levels":["host"]}}]}}})");
  ASSERT_TRUE(seen.ok()) << seen.status().ToString();
  const reconcile::WorkloadSeen want{
      .name = "trainingjob-mnist-1",
      .uid = "u",
      .resource_version = "12",
      .controller_uid = "j",
      .generation = 3,
      .stamp = "abc",
      .queue = "research",
      .priority_class = "urgent",
      .of_workloads = true,
      .active = false,
      .pod_sets = {{"worker", 2}},
      .conditions = R"([{"status":"True","type":"QuotaReserved"}])",
      .checks = R"([{"name":"nodes","state":"Ready"}])",
      .cluster_queue = "all",
      .assigned = {{"worker", {.count = 2, .flavors = {"a100", "h100"}, .topology = true}}}};
  EXPECT_EQ(*seen, want);
  EXPECT_FALSE(ParseWorkload("[]").ok());
}

// Any text: nothing is read that is not there, and nothing falls.
TEST(WorkloadViewTest, ReadsOddObjects) {
  for (const char* text :
       {R"({"metadata":{"name":"w","namespace":"ml","uid":"u","resourceVersion":"1"}})",
        R"({"metadata":{"name":"w","namespace":"ml","uid":"u","resourceVersion":"1",
            "annotations":{"meshtrain.dev/pod-sets":7}},"spec":[],"status":"x"})",
        R"({"metadata":{"name":"w","namespace":"ml","uid":"u","resourceVersion":"1"},
            "spec":{"podSets":{"a":1},"priorityClassRef":"x"},
            "status":{"conditions":{},"admission":{"podSetAssignments":[3,{"flavors":[1]}]}}})"}) {
    const auto seen = ParseWorkload(text);
    ASSERT_TRUE(seen.ok()) << text;
    EXPECT_TRUE(seen->active);
    EXPECT_EQ(seen->conditions, "");
  }
}

TEST(WorkloadViewTest, ReadsFlavorsAndClasses) {
  const auto flavor = ParseFlavor(R"({"metadata":{"name":"a100"},"spec":{
      "nodeLabels":{"pool":"a100"},"tolerations":[{"key":"gpu"}]}})");
  ASSERT_TRUE(flavor.ok());
  EXPECT_EQ(flavor->first, "a100");
  EXPECT_EQ(flavor->second, (reconcile::FlavorSeen{.node_labels = {{"pool", "a100"}},
                                                   .tolerations = R"([{"key":"gpu"}])"}));
  const auto one =
      ParsePriorityClass(R"({"metadata":{"name":"high"},"value":7,"globalDefault":true})");
  ASSERT_TRUE(one.ok());
  EXPECT_EQ(one->second, (reconcile::PriorityClassSeen{.value = 7, .global_default = true}));
}

TEST_F(ControllerTest, AJobOfAQueueFollowsItsWorkload) {
  settings_.queue = reconcile::QueueManager::kKueue;
  api_.Put(ResourceFlavors(), R"({"metadata":{"name":"a100"},"spec":{
      "nodeLabels":{"pool":"a100"}}})");
  Start();
  json job = json::parse(JobText("mnist", 2));
  job["metadata"]["labels"] = {{"kueue.x-k8s.io/queue-name", "research"},
                               {"kueue.x-k8s.io/priority-class", "urgent"}};
  api_.Put(TrainingJobs(), job.dump());
  ASSERT_TRUE(Eventually([&] { return Condition("mnist", "Suspended") == "True"; }));
  Settle();
  EXPECT_THAT(api_.All(Workloads()), IsEmpty()) << "its class is not there";
  api_.Put(WorkloadPriorityClasses(), R"({"metadata":{"name":"urgent"},"value":100})");
  ASSERT_TRUE(Eventually([&] { return api_.All(Workloads()).size() == 1; }));
  EXPECT_THAT(api_.All(kube::Pods()), IsEmpty());

  const auto kueue = [&](const json& status) {
    json workload = json::parse(api_.All(Workloads()).at(0));
    workload["status"] = status;
    api_.Put(Workloads(), workload.dump());
  };
  const auto condition = [](const char* type, const char* status, const char* reason) {
    return json{{"type", type},
                {"status", status},
                {"reason", reason},
                {"message", "as the test says"},
                {"lastTransitionTime", "2026-01-02T03:04:05Z"}};
  };
  const json admission = {
      {"clusterQueue", "all"},
      {"podSetAssignments", {{{"name", "worker"}, {"count", 2}, {"flavors", {{"cpu", "a100"}}}}}}};
  kueue({{"conditions",
          {condition("QuotaReserved", "True", "QuotaReserved"),
           condition("Admitted", "True", "Admitted")}},
         {"admission", admission}});
  ASSERT_TRUE(Eventually([&] { return api_.All(kube::Pods()).size() == 2; }));
  for (const std::string& pod : api_.All(kube::Pods())) {
    EXPECT_EQ(json::parse(pod)["spec"]["nodeSelector"]["pool"], "a100");
  }
  for (int i = 0; i < 2; ++i) SetPhase("mnist-worker-" + std::to_string(i), Running());
  ASSERT_TRUE(Eventually([&] { return Condition("mnist", "Running") == "True"; }));
  Settle();

  json workload = json::parse(api_.All(Workloads()).at(0));
  workload["status"]["conditions"].push_back(condition("Evicted", "True", "Preempted"));
  kueue(workload["status"]);
  ASSERT_TRUE(Eventually([&] {
    const json pod = json::parse(api_.Peek(kube::Pods(), "ml", "mnist-worker-1"));
    return pod["metadata"].contains("deletionTimestamp");
  }));
  Settle();
  EXPECT_TRUE(json::parse(api_.All(Workloads()).at(0))["status"].contains("admission"))
      << "its pods still end";
  for (int i = 0; i < 2; ++i) {
    api_.Remove(kube::Pods(), "ml", "mnist-worker-" + std::to_string(i));
  }
  ASSERT_TRUE(Eventually([&] {
    const json now = json::parse(api_.All(Workloads()).at(0));
    return !now["status"].contains("admission");
  }));
  EXPECT_THAT(api_.All(kube::Pods()), IsEmpty());
  Settle();
  api_.ForgetCalls();
  Settle();
  EXPECT_THAT(Writes(), IsEmpty());
}

}  // namespace
}  // namespace meshtrain::control
