// Jobs in the queues of Kueue itself: what is asked for, admitted, taken back and admitted again is
// its own doing. The test is user, administrator and kubelet.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "operator/control/queue/workload_view.h"
#include "tests/integration/operator/kueue_fixture.h"

namespace meshtrain::testing {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

class KueueTest : public OperatorTest {
 protected:
  static void SetUpTestSuite() {
    std::string why;
    if (!KueueProcess::Available(&why)) return;
    OperatorTest::SetUpTestSuite();
    if (!api_) return;
    kueue_ = KueueProcess::Start(api());
    const CommandResult rights =
        api().Helm({"template", "meshtrain", std::string(MT_SOURCE_DIR) + "/helm/meshtrain",
                    "--namespace", "meshtrain-system", "--kube-version", "v1.34.0", "--set",
                    "queue=kueue", "-s", "templates/rbac.yaml"});
    ASSERT_EQ(rights.exit_code, 0) << rights.out;
    ASSERT_EQ(api().Kubectl({"apply", "-f", "-"}, rights.out).exit_code, 0);
    Apply({{"kind", "ResourceFlavor"},
           {"metadata", {{"name", "a100"}}},
           {"spec",
            {{"nodeLabels", {{"pool", "a100"}}},
             {"tolerations", {{{"key", "gpu"}, {"operator", "Exists"}}}}}}});
    Apply({{"kind", "WorkloadPriorityClass"}, {"metadata", {{"name", "urgent"}}}, {"value", 100}});
  }
  static void TearDownTestSuite() {
    kueue_.reset();
    OperatorTest::TearDownTestSuite();
  }

  void SetUp() override {
    std::string why;
    if (!KueueProcess::Available(&why)) GTEST_SKIP() << why;
    OperatorTest::SetUp();
    if (HasFatalFailure() || IsSkipped()) return;
    // A queue with room for two pods, on nodes of the pool a100.
    Apply({{"kind", "ClusterQueue"},
           {"metadata", {{"name", ns_}}},
           {"spec",
            {{"namespaceSelector", json::object()},
             {"preemption", {{"withinClusterQueue", "LowerPriority"}}},
             {"resourceGroups",
              {{{"coveredResources", {"cpu"}},
                {"flavors",
                 {{{"name", "a100"},
                   {"resources", {{{"name", "cpu"}, {"nominalQuota", "2"}}}}}}}}}}}}});
    Apply({{"kind", "LocalQueue"},
           {"metadata", {{"name", "research"}, {"namespace", ns_}}},
           {"spec", {{"clusterQueue", ns_}}}});
    operator_ = std::make_unique<OperatorProcess>(
        operator_kubeconfig_,
        std::vector<std::string>{"--no-leader-elect", "--namespace", ns_, "--queue", "kueue"});
    ASSERT_TRUE(Eventually([&] { return operator_->Log().find("watching") != std::string::npos; }))
        << operator_->Log();
  }
  void TearDown() override {
    operator_.reset();
    OperatorTest::TearDown();
  }

  static void Apply(json object) {
    object["apiVersion"] = "kueue.x-k8s.io/v1beta2";
    const CommandResult applied = api().Kubectl({"apply", "-f", "-"}, object.dump());
    ASSERT_EQ(applied.exit_code, 0) << applied.out;
  }
  // A job of two workers that ask for one CPU each: all that there is.
  void Submit(const std::string& name, const json& labels, const json& spec = json::object()) {
    json job = {{"apiVersion", "meshtrain.dev/v1"},
                {"kind", "TrainingJob"},
                {"metadata",
                 {{"name", name},
                  {"namespace", ns_},
                  {"labels", {{"kueue.x-k8s.io/queue-name", "research"}}}}},
                {"spec",
                 {{"replicaSpecs",
                   {{"worker",
                     {{"replicas", 2},
                      {"restartPolicy", "ExitCode"},
                      {"template",
                       {{"spec",
                         {{"containers",
                           {{{"name", "trainer"},
                             {"image", "i"},
                             {"resources", {{"requests", {{"cpu", "1"}}}}}}}}}}}}}}}}}}};
    job["metadata"]["labels"].update(labels);
    job["spec"].merge_patch(spec);
    Kubectl({"apply", "-f", "-"}, job.dump());
  }
  json WorkloadOf(const std::string& job) {
    json found;
    const auto listed = api().client().List(
        control::Workloads(), {.ns = ns_, .label_selector = "meshtrain.dev/job-name=" + job},
        [&](std::string_view item) { found = json::parse(item); }, [&] { found = json(); }, {});
    EXPECT_TRUE(listed.ok()) << listed.status().ToString();
    return found;
  }
  std::string WorkloadCondition(const std::string& job, const std::string& type) {
    const json workload = WorkloadOf(job);
    if (workload.is_null() || !workload.contains("status")) return "";
    for (const json& condition : workload["status"].value("conditions", json::array())) {
      if (condition["type"] == type) return condition["status"];
    }
    return "";
  }
  bool WaitForWorkload(const std::string& job, const std::string& type, const char* status) {
    return Eventually([&] { return WorkloadCondition(job, type) == status; });
  }
  std::string Phase(const std::string& job) {
    const json object = Get(control::TrainingJobs(), job);
    return object.is_null() ? "" : object["status"].value("phase", "");
  }
  // Its pods come, on the nodes of the flavor, and run.
  void Run(const std::string& job) {
    ASSERT_TRUE(WaitForPods(job, 2)) << Message(job, "Suspended");
    for (const json& pod : Pods(job)) {
      EXPECT_EQ(pod["spec"]["nodeSelector"]["pool"], "a100");
      EXPECT_THAT(pod["spec"]["tolerations"].dump(), HasSubstr("\"gpu\""));
    }
    for (const char* index : {"0", "1"}) SetRunning(job + "-worker-" + index);
    ASSERT_TRUE(WaitForCondition(job, "Running"));
  }
  void End(const std::string& job) {
    for (const char* index : {"0", "1"}) SetEnded(job + "-worker-" + index, 0);
    ASSERT_TRUE(WaitForCondition(job, "Succeeded"));
  }

  static std::unique_ptr<KueueProcess> kueue_;
  std::unique_ptr<OperatorProcess> operator_;
};

std::unique_ptr<KueueProcess> KueueTest::kueue_;

TEST_F(KueueTest, QueuesAdmitsPreemptsAndResumes) {
  Submit("first", json::object());
  ASSERT_NO_FATAL_FAILURE(Run("first"));
  EXPECT_TRUE(WaitForWorkload("first", "PodsReady", "True"));
  const std::string before = Get(control::TrainingJobs(), "first")["spec"].dump();

  Submit("second", json::object());
  ASSERT_TRUE(Eventually([&] {
    return Message("second", "Suspended").find("insufficient unused quota") != std::string::npos;
  })) << Message("second", "Suspended");
  EXPECT_THAT(Message("second", "Suspended"), HasSubstr("queue research: "));
  EXPECT_EQ(Phase("second"), "Queued");
  EXPECT_THAT(Kubectl({"get", "tj", "second"}), HasSubstr("Queued"));
  EXPECT_TRUE(Pods("second").empty());

  // A third of a higher class takes the first's place, once the first's pods are gone.
  Submit("third", {{"kueue.x-k8s.io/priority-class", "urgent"}});
  ASSERT_TRUE(WaitForPods("first", 0));
  ASSERT_TRUE(Eventually([&] { return Phase("first") == "Queued"; }));
  ASSERT_TRUE(WaitForWorkload("first", "QuotaReserved", "False"));
  EXPECT_EQ(WorkloadCondition("first", "Admitted"), "False");
  EXPECT_FALSE(WorkloadOf("first")["status"].contains("admission"));
  EXPECT_EQ(Get(control::TrainingJobs(), "first")["status"].value("startTime", ""), "");
  ASSERT_NO_FATAL_FAILURE(Run("third"));
  EXPECT_EQ(WorkloadOf("third")["spec"]["priority"], 100);
  EXPECT_TRUE(Pods("first").empty());

  // Its end frees the place for the first, which kept its turn before the second.
  ASSERT_NO_FATAL_FAILURE(End("third"));
  EXPECT_TRUE(WaitForWorkload("third", "Finished", "True"));
  ASSERT_NO_FATAL_FAILURE(Run("first"));
  EXPECT_EQ(Get(control::TrainingJobs(), "first")["status"].value("restarts", 0), 0);
  EXPECT_EQ(Get(control::TrainingJobs(), "first")["spec"].dump(), before)
      << "the user's own words stay as they are";
  EXPECT_EQ(Phase("second"), "Queued");
  ASSERT_NO_FATAL_FAILURE(End("first"));
  ASSERT_NO_FATAL_FAILURE(Run("second"));

  // A job that is deleted takes its Workload along, and its quota is free.
  Kubectl({"delete", "tj", "second", "--wait=false"});
  EXPECT_TRUE(Eventually([&] { return WorkloadOf("second").is_null(); }, std::chrono::seconds(60)));
  Submit("fourth", json::object());
  ASSERT_TRUE(WaitForWorkload("fourth", "Admitted", "True"));
}

TEST_F(KueueTest, DeactivatedSuspendedAndRescaledJobsGiveTheirPlaceBack) {
  Submit("mnist", json::object(), {{"elastic", {{"minReplicas", 1}, {"maxReplicas", 4}}}});
  ASSERT_NO_FATAL_FAILURE(Run("mnist"));
  const auto active = [&](const char* value) {
    Kubectl({"patch", "workload", WorkloadOf("mnist")["metadata"]["name"], "--type=merge", "-p",
             R"({"spec":{"active":)" + std::string(value) + "}}"});
  };
  active("false");
  ASSERT_TRUE(WaitForPods("mnist", 0));
  ASSERT_TRUE(WaitForWorkload("mnist", "QuotaReserved", "False"));
  EXPECT_TRUE(Eventually([&] {
    return Message("mnist", "Suspended") == "queue research: The workload is deactivated";
  })) << Message("mnist", "Suspended");
  active("true");
  ASSERT_NO_FATAL_FAILURE(Run("mnist"));

  const auto suspend = [&](const char* value) {
    Kubectl({"patch", "tj", "mnist", "--type=merge", "-p",
             R"({"spec":{"runPolicy":{"suspend":)" + std::string(value) + "}}}"});
  };
  suspend("true");
  ASSERT_TRUE(WaitForPods("mnist", 0));
  EXPECT_TRUE(Eventually([&] { return WorkloadOf("mnist").is_null(); }));
  EXPECT_EQ(Phase("mnist"), "Suspended");
  suspend("false");
  ASSERT_NO_FATAL_FAILURE(Run("mnist"));

  // More than there is room for: it goes back to the queue, and waits.
  Kubectl({"scale", "tj", "mnist", "--replicas=3"});
  ASSERT_TRUE(WaitForPods("mnist", 0));
  ASSERT_TRUE(Eventually([&] {
    const json workload = WorkloadOf("mnist");
    return workload.is_object() && workload["spec"]["podSets"][0]["count"] == 3;
  }));
  EXPECT_TRUE(Eventually([&] {
    return Message("mnist", "Suspended").find("insufficient quota") != std::string::npos;
  })) << Message("mnist", "Suspended");
  // While it waits, its Workload follows.
  Kubectl({"scale", "tj", "mnist", "--replicas=2"});
  ASSERT_NO_FATAL_FAILURE(Run("mnist"));

  // An administrator who deletes the Workload stops the job; it asks anew.
  const std::string uid = WorkloadOf("mnist")["metadata"]["uid"];
  Kubectl({"delete", "workload", WorkloadOf("mnist")["metadata"]["name"]});
  ASSERT_TRUE(Eventually([&] {
    const json workload = WorkloadOf("mnist");
    return workload.is_object() && workload["metadata"]["uid"] != uid;
  }));
  ASSERT_TRUE(Eventually([&] { return Pods("mnist").size() == 2; }));
}

// Kueue is told to admit nobody while pods of somebody else are not ready (waitForPodsReady).
TEST_F(KueueTest, KueueIsToldWhenPodsAreReady) {
  const json one = {{"replicaSpecs", {{"worker", {{"replicas", 1}}}}}};
  Submit("first", json::object(), one);
  ASSERT_TRUE(WaitForPods("first", 1));
  Submit("second", json::object(), one);
  ASSERT_TRUE(Eventually([&] {
    return Message("second", "Suspended").find("PodsReady") != std::string::npos;
  })) << Message("second", "Suspended");
  SetRunning("first-worker-0");
  ASSERT_TRUE(WaitForPods("second", 1)) << Message("second", "Suspended");
}

TEST_F(KueueTest, AQueueThatIsNotThereIsSaid) {
  Submit("lost", {{"kueue.x-k8s.io/queue-name", "nowhere"}});
  EXPECT_TRUE(Eventually([&] {
    return Message("lost", "Suspended") == "queue nowhere: LocalQueue nowhere doesn't exist";
  })) << Message("lost", "Suspended");
  Kubectl({"label", "tj", "lost", "kueue.x-k8s.io/queue-name=research", "--overwrite"});
  ASSERT_NO_FATAL_FAILURE(Run("lost"));
}

}  // namespace
}  // namespace meshtrain::testing
