// Jobs whose pods are scheduled together. The schedulers are not here: the test does what they do
// to the objects. Their PodGroups are declared by the projects' own CRDs (tests/testdata/crds).
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/integration/operator/operator_fixture.h"

namespace meshtrain::testing {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

class GangTest : public OperatorTest {
 protected:
  // Declares the PodGroup of `group` and gives the operator the rights on it that the chart gives.
  void Declare(const std::string& scheduler, const std::string& group) {
    Kubectl({"apply", "-f",
             std::string(MT_SOURCE_DIR) + "/tests/testdata/crds/" + group + "_podgroups.yaml"});
    AwaitCrd("podgroups." + group);
    const CommandResult rights =
        api().Helm({"template", "meshtrain", std::string(MT_SOURCE_DIR) + "/helm/meshtrain",
                    "--namespace", "meshtrain-system", "--kube-version", "v1.34.0", "--set",
                    "gangScheduler=" + scheduler, "-s", "templates/rbac.yaml"});
    ASSERT_EQ(rights.exit_code, 0) << rights.out;
    ASSERT_EQ(api().Kubectl({"apply", "-f", "-"}, rights.out).exit_code, 0);
    gang_ = std::make_unique<OperatorProcess>(
        operator_kubeconfig_, std::vector<std::string>{"--no-leader-elect", "--namespace", ns_,
                                                       "--gang-scheduler", scheduler});
    ASSERT_TRUE(Eventually([&] { return gang_->Log().find("watching") != std::string::npos; }));
  }
  void TearDown() override {
    gang_.reset();
    OperatorTest::TearDown();
  }
  std::unique_ptr<OperatorProcess> gang_;
};

const kube::Resource kVolcanoGroups = {"scheduling.volcano.sh", "v1beta1", "podgroups"};
const kube::Resource kPluginGroups = {"scheduling.x-k8s.io", "v1alpha1", "podgroups"};

TEST_F(GangTest, VolcanosGroupComesBeforePodsAndGoesWithTheEnd) {
  ASSERT_NO_FATAL_FAILURE(Declare("volcano", "scheduling.volcano.sh"));
  ApplyJob("mnist", 1, 2,
           {{"runPolicy", {{"schedulingPolicy", {{"queue", "research"}, {"minAvailable", 2}}}}}});
  ASSERT_TRUE(Eventually([&] { return !Get(kVolcanoGroups, "mnist").is_null(); }));
  const json group = Get(kVolcanoGroups, "mnist");
  EXPECT_EQ(group["spec"]["minMember"], 2);
  EXPECT_EQ(group["spec"]["queue"], "research");
  EXPECT_EQ(group["metadata"]["ownerReferences"][0]["kind"], "TrainingJob");
  ASSERT_TRUE(WaitForCondition("mnist", "Waiting"));
  EXPECT_THAT(Message("mnist", "Waiting"), HasSubstr("not admitted yet"));
  EXPECT_EQ(Pods("mnist").size(), 0u);
  // Volcano's controller admits it; its PodGroup has no status subresource.
  ASSERT_TRUE(api()
                  .client()
                  .Patch(kVolcanoGroups, ns_, "mnist", "", kube::PatchType::kMerge,
                         R"({"status":{"phase":"Inqueue"}})", {})
                  .ok());
  ASSERT_TRUE(WaitForPods("mnist", 3));
  for (const json& pod : Pods("mnist")) {
    EXPECT_EQ(pod["spec"]["schedulerName"], "volcano");
    EXPECT_EQ(pod["metadata"]["annotations"]["scheduling.k8s.io/group-name"], "mnist");
  }
  for (const char* pod : {"mnist-chief-0", "mnist-worker-0", "mnist-worker-1"}) SetRunning(pod);
  SetEnded("mnist-chief-0", 0);
  ASSERT_TRUE(WaitForCondition("mnist", "Succeeded"));
  EXPECT_TRUE(Eventually([&] { return Get(kVolcanoGroups, "mnist").is_null(); }))
      << "it would hold its place";
}

TEST_F(GangTest, SchedulerPluginsGroupFollowsTheScale) {
  ASSERT_NO_FATAL_FAILURE(Declare("scheduler-plugins", "scheduling.x-k8s.io"));
  ApplyJob("mnist", 0, 2,
           {{"elastic", {{"minReplicas", 1}, {"maxReplicas", 8}}},
            {"runPolicy", {{"schedulingPolicy", {{"scheduleTimeoutSeconds", 30}}}}}});
  ASSERT_TRUE(WaitForPods("mnist", 2));  // that scheduler holds the pods back itself
  EXPECT_EQ(Get(kPluginGroups, "mnist")["spec"]["minMember"], 2);
  EXPECT_EQ(Get(kPluginGroups, "mnist")["spec"]["scheduleTimeoutSeconds"], 30);
  for (const json& pod : Pods("mnist")) {
    EXPECT_EQ(pod["spec"]["schedulerName"], "scheduler-plugins-scheduler");
    EXPECT_EQ(pod["metadata"]["labels"]["scheduling.x-k8s.io/pod-group"], "mnist");
  }
  Kubectl({"scale", "tj", "mnist", "--replicas=5"});
  EXPECT_TRUE(Eventually([&] { return Get(kPluginGroups, "mnist")["spec"]["minMember"] == 5; }));
  EXPECT_TRUE(WaitForPods("mnist", 5));
  Kubectl(
      {"patch", "tj", "mnist", "--type=merge", "-p", R"({"spec":{"runPolicy":{"suspend":true}}})"});
  EXPECT_TRUE(
      Eventually([&] { return Get(kPluginGroups, "mnist").is_null() && Pods("mnist").empty(); }));
}

// Kueue creates no objects that we must know: it holds the job by runPolicy.suspend, writes the
// node selectors of the flavor it admitted into the templates while the job stands still, and takes
// them out when it evicts the job.
TEST_F(GangTest, KueueHoldsTheJobAndChoosesItsNodes) {
  StartOperator();
  ApplyJob("mnist", 0, 2, {{"runPolicy", {{"suspend", true}}}});
  ASSERT_TRUE(WaitForCondition("mnist", "Suspended"));
  EXPECT_EQ(Pods("mnist").size(), 0u);
  const auto admit = [&](bool suspend, const char* selector) {
    Kubectl({"patch", "tj", "mnist", "--type=merge", "-p",
             R"({"spec":{"runPolicy":{"suspend":)" + std::string(suspend ? "true" : "false") +
                 R"(},"replicaSpecs":{"worker":{"template":{"spec":{"nodeSelector":)" + selector +
                 "}}}}}}"});
  };
  admit(false, R"({"pool":"a100"})");
  ASSERT_TRUE(WaitForPods("mnist", 2));
  for (const json& pod : Pods("mnist")) EXPECT_EQ(pod["spec"]["nodeSelector"]["pool"], "a100");
  for (const char* pod : {"mnist-worker-0", "mnist-worker-1"}) SetRunning(pod);
  ASSERT_TRUE(WaitForCondition("mnist", "Running"));
  Kubectl(
      {"patch", "tj", "mnist", "--type=merge", "-p", R"({"spec":{"runPolicy":{"suspend":true}}})"});
  ASSERT_TRUE(WaitForPods("mnist", 0));
  ASSERT_TRUE(WaitForCondition("mnist", "Suspended"));
  EXPECT_EQ(Get(control::TrainingJobs(), "mnist")["status"].value("startTime", ""), "");
  admit(true, "null");
  admit(false, R"({"pool":"h100"})");
  ASSERT_TRUE(WaitForPods("mnist", 2));
  for (const json& pod : Pods("mnist")) {
    EXPECT_EQ(pod["spec"]["nodeSelector"], json({{"pool", "h100"}}));
  }
}

}  // namespace
}  // namespace meshtrain::testing
