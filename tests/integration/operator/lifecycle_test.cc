// The life of jobs on a real API server, seen and done through kubectl and HTTP only.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <filesystem>
#include <set>

#include "tests/integration/operator/operator_fixture.h"
#include "tests/support/small_program.h"

namespace meshtrain::testing {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

class LifecycleTest : public OperatorTest {
 protected:
  std::set<std::string> Uids(const std::string& job) {
    std::set<std::string> uids;
    for (const json& pod : Pods(job)) uids.insert(pod["metadata"]["uid"]);
    return uids;
  }
  std::string Uid(const std::string& pod) {
    const json object = Get(kube::Pods(), pod);
    return object.is_object() ? object["metadata"]["uid"].get<std::string>() : "";
  }
};

TEST_F(LifecycleTest, RunsAJobToSuccessWithFewWrites) {
  OperatorProcess& process = StartOperator();
  ApplyJob("mnist", 1, 2);
  ASSERT_TRUE(WaitForPods("mnist", 3));
  // It is made beside the last pods.
  ASSERT_TRUE(Eventually([&] { return Get(kube::Services(), "mnist").is_object(); }));
  const json service = Get(kube::Services(), "mnist");
  EXPECT_EQ(service["spec"]["clusterIP"], "None");
  EXPECT_EQ(service["spec"]["publishNotReadyAddresses"], true);
  for (const json& pod : Pods("mnist")) {
    EXPECT_EQ(pod["spec"]["enableServiceLinks"], false);
    EXPECT_THAT(pod["spec"]["containers"][0]["env"].dump(),
                HasSubstr("mnist-worker-1.mnist." + ns_ + ".svc:2222"));
  }
  for (const char* pod : {"mnist-chief-0", "mnist-worker-0", "mnist-worker-1"}) SetRunning(pod);
  ASSERT_TRUE(WaitForCondition("mnist", "Running"));
  EXPECT_TRUE(Eventually([&] {
    return Kubectl({"get", "tj", "mnist"}).find("3/3") != std::string::npos;
  }));
  SetEnded("mnist-chief-0", 0);
  Kubectl({"wait", "--for=condition=Succeeded", "trainingjob/mnist", "--timeout=20s"});
  EXPECT_NE(Condition("mnist", "Running"), "True");
  EXPECT_THAT(Kubectl({"describe", "tj", "mnist"}), HasSubstr("Events:"));
  EXPECT_THAT(Kubectl({"explain", "trainingjob.spec"}), HasSubstr("replicaSpecs"));
  // Pods + 6 writes in all are allowed: 3 pods and the service leave 5 for the status (events may
  // patch too).
  double patches = 0;
  for (const char* code : {"200", "409"}) {
    const std::string host = api().config().server.substr(std::string("https://").size());
    patches +=
        std::max(0.0, process.Metric("rest_client_requests_total{code=\"" + std::string(code) +
                                     "\",host=\"" + host + "\",method=\"PATCH\"}"));
  }
  EXPECT_GE(patches, 3) << "created, running, succeeded";
  EXPECT_LE(patches, 5);
}

TEST_F(LifecycleTest, ReplacesAWorkerThatAsksForARetryAndFailsOnAPermanentCode) {
  StartOperator();
  ApplyJob("mnist", 1, 2);
  ASSERT_TRUE(WaitForPods("mnist", 3));
  for (const char* pod : {"mnist-chief-0", "mnist-worker-0", "mnist-worker-1"}) SetRunning(pod);
  ASSERT_TRUE(WaitForCondition("mnist", "Running"));
  const std::string before = Uid("mnist-worker-1"), chief = Uid("mnist-chief-0");
  SetEnded("mnist-worker-1", 138);
  ASSERT_TRUE(Eventually([&] {
    const std::string now = Uid("mnist-worker-1");
    return !now.empty() && now != before;
  }));
  EXPECT_EQ(Uid("mnist-chief-0"), chief);
  ASSERT_TRUE(Eventually(
      [&] { return Get(control::TrainingJobs(), "mnist")["status"].value("restarts", 0) == 1; }));
  SetRunning("mnist-worker-1");
  SetEnded("mnist-worker-1", 65);
  ASSERT_TRUE(WaitForCondition("mnist", "Failed"));
  EXPECT_NE(Condition("mnist", "Succeeded"), "True");
  EXPECT_NE(Condition("mnist", "Running"), "True");
}

TEST_F(LifecycleTest, ScalesWithKubectlTouchingOnlyWhatChanges) {
  StartOperator();
  // Beside a parameter server workers come and go alone.
  const json pod = {{"spec", {{"containers", {{{"name", "trainer"}, {"image", "i"}}}}}}};
  ApplyJob("mnist", 1, 2,
           {{"elastic", {{"minReplicas", 1}, {"maxReplicas", 8}}},
            {"replicaSpecs", {{"ps", {{"replicas", 1}, {"template", pod}}}}}});
  ASSERT_TRUE(WaitForPods("mnist", 4));
  const std::set<std::string> before = Uids("mnist");
  Kubectl({"scale", "tj", "mnist", "--replicas=4"});
  ASSERT_TRUE(WaitForPods("mnist", 6));
  Kubectl({"scale", "tj", "mnist", "--replicas=2"});
  ASSERT_TRUE(WaitForPods("mnist", 4));
  EXPECT_EQ(Uids("mnist"), before);
}

TEST_F(LifecycleTest, AJobThatIsNotElasticIsNotScaled) {
  StartOperator();
  ApplyJob("mnist", 0, 2);
  ASSERT_TRUE(WaitForPods("mnist", 2));
  const CommandResult scaled = TryKubectl({"scale", "tj", "mnist", "--replicas=4"});
  EXPECT_NE(scaled.exit_code, 0);
  EXPECT_THAT(scaled.out, HasSubstr("cannot be scaled without spec.elastic"));
  EXPECT_EQ(Get(control::TrainingJobs(), "mnist")["spec"]["replicaSpecs"]["worker"]["replicas"], 2);
}

TEST_F(LifecycleTest, AScaleOfWorkersThatKnowEachOtherRestartsAllTogether) {
  StartOperator();
  ApplyJob("mnist", 0, 2, {{"elastic", {{"minReplicas", 1}, {"maxReplicas", 8}}}});
  ASSERT_TRUE(WaitForPods("mnist", 2));
  const std::set<std::string> before = Uids("mnist");
  Kubectl({"scale", "tj", "mnist", "--replicas=4"});
  ASSERT_TRUE(WaitForPods("mnist", 4));
  std::set<std::string> configs;
  for (const json& made : Pods("mnist")) {
    EXPECT_FALSE(before.contains(made["metadata"]["uid"]));
    configs.insert(made["metadata"]["annotations"]["meshtrain.dev/cluster"]);
  }
  EXPECT_EQ(configs.size(), 1u) << "all know the same";
}

TEST_F(LifecycleTest, ServicesOfReplicasGoWithTheirReplicas) {
  StartOperator();
  ApplyJob("mnist", 1, 1,
           {{"tfConfig", {{"compat", "kubeflow-v1"}}},
            {"elastic", {{"minReplicas", 1}, {"maxReplicas", 8}}}});
  const auto services = [&] {
    return TryKubectl({"get", "services", "-l", "meshtrain.dev/job-name=mnist", "-o", "name"}).out;
  };
  const std::string two = "service/mnist\nservice/mnist-chief-0\nservice/mnist-worker-0\n";
  ASSERT_TRUE(Eventually([&] { return services() == two; })) << services();
  Kubectl({"scale", "tj", "mnist", "--replicas=3"});
  ASSERT_TRUE(Eventually(
      [&] { return services() == two + "service/mnist-worker-1\nservice/mnist-worker-2\n"; }));
  Kubectl({"scale", "tj", "mnist", "--replicas=1"});
  EXPECT_TRUE(Eventually([&] { return services() == two; })) << services();
}

TEST_F(LifecycleTest, SuspendsAndResumes) {
  StartOperator();
  ApplyJob("mnist", 0, 2);
  ASSERT_TRUE(WaitForPods("mnist", 2));
  Kubectl(
      {"patch", "tj", "mnist", "--type=merge", "-p", R"({"spec":{"runPolicy":{"suspend":true}}})"});
  ASSERT_TRUE(WaitForPods("mnist", 0));
  ASSERT_TRUE(WaitForCondition("mnist", "Suspended"));
  Kubectl({"patch", "tj", "mnist", "--type=merge", "-p",
           R"({"spec":{"runPolicy":{"suspend":false}}})"});
  ASSERT_TRUE(WaitForPods("mnist", 2));
  EXPECT_TRUE(Eventually([&] { return Condition("mnist", "Suspended") != "True"; }));
}

TEST_F(LifecycleTest, RefusesWhatIsWrongWithItsPath) {
  const CommandResult negative =
      TryKubectl({"apply", "-f", "-"}, R"({"apiVersion":"meshtrain.dev/v1",
    "kind":"TrainingJob","metadata":{"name":"bad"},"spec":{"replicaSpecs":{"worker":{"replicas":-1,"template":{}}}}})");
  EXPECT_NE(negative.exit_code, 0);
  EXPECT_THAT(negative.out, HasSubstr("spec.replicaSpecs.worker.replicas"));
}

TEST_F(LifecycleTest, AProgramWithAMistakeFailsWithoutAPod) {
  StartOperator();
  std::string program(testing_support::kProgram);
  program.replace(program.find("flatten"), 7, "flaten");
  ApplyJob("typo", 0, 2, {{"program", nlohmann::json::parse(program)}});
  ASSERT_TRUE(WaitForCondition("typo", "Failed"));
  EXPECT_THAT(Kubectl({"get", "tj", "typo", "-o", "jsonpath={.status.conditions}"}),
              HasSubstr("spec.program.model[0]: unknown layer `flaten`, did you mean `flatten`?"));
  EXPECT_EQ(Kubectl({"get", "pods", "-o", "name"}), "");
}

TEST_F(LifecycleTest, RefusesAJobOfSomebodyWhoMayNotCreatePods) {
  Kubectl({"create", "role", "jobs-only", "--verb=create,get",
           "--resource=trainingjobs.meshtrain.dev"});
  Kubectl({"create", "rolebinding", "jobs-only", "--role=jobs-only", "--user=mallory"});
  const std::string job =
      R"({"apiVersion":"meshtrain.dev/v1","kind":"TrainingJob","metadata":{"name":"sneaky"},
    "spec":{"replicaSpecs":{"worker":{"template":{"spec":{"containers":[{"name":"trainer","image":"i"}]}}}}}})";
  // The policy takes a moment to be in force after it was created.
  CommandResult refused;
  ASSERT_TRUE(Eventually([&] {
    refused = TryKubectl({"create", "--as=mallory", "--dry-run=server", "-f", "-"}, job);
    return refused.exit_code != 0;
  }));
  EXPECT_THAT(refused.out, HasSubstr("needs the right to create pods"));
  Kubectl({"create", "role", "pods", "--verb=create", "--resource=pods"});
  Kubectl({"create", "rolebinding", "pods", "--role=pods", "--user=mallory"});
  EXPECT_TRUE(Eventually([&] {
    return TryKubectl({"create", "--as=mallory", "--dry-run=server", "-f", "-"}, job).exit_code ==
           0;
  }));
}

TEST_F(LifecycleTest, WaitsForQuotaAndSaysSo) {
  StartOperator();
  Kubectl({"create", "quota", "q", "--hard=pods=2"});
  ASSERT_TRUE(Eventually([&] {
    return TryKubectl({"get", "quota", "q", "-o", "jsonpath={.status.hard.pods}"}).out == "2";
  }));
  ApplyJob("mnist", 0, 3);
  ASSERT_TRUE(WaitForCondition("mnist", "Waiting"));
  EXPECT_THAT(Message("mnist", "Waiting"), HasSubstr("exceeded quota"));
  EXPECT_EQ(Pods("mnist").size(), 2u);
  Kubectl({"delete", "quota", "q"});
  EXPECT_TRUE(Eventually([&] { return Pods("mnist").size() == 3; }, std::chrono::seconds(70)));
  EXPECT_TRUE(Eventually([&] { return Condition("mnist", "Waiting") != "True"; }));
}

TEST_F(LifecycleTest, HasNoPodsWhileItsServicesNameIsAnothers) {
  Kubectl({"create", "service", "clusterip", "mnist", "--clusterip=None"});
  StartOperator();
  ApplyJob("mnist", 1, 2);
  ASSERT_TRUE(WaitForCondition("mnist", "Waiting"));
  EXPECT_THAT(Message("mnist", "Waiting"), HasSubstr("services \"mnist\""));
  EXPECT_TRUE(Eventually([&] { return Pods("mnist").empty(); }));
  EXPECT_EQ(Get(kube::Services(), "mnist")["metadata"]["labels"]["app"], "mnist")
      << "left as it was";
  Kubectl({"delete", "service", "mnist"});
  EXPECT_TRUE(Eventually([&] { return Pods("mnist").size() == 3; }, std::chrono::seconds(70)));
  EXPECT_TRUE(Eventually([&] { return Condition("mnist", "Waiting") != "True"; }));
}

TEST_F(LifecycleTest, LeavesForeignPodsAlone) {
  StartOperator();
  const json pod = {
      {"apiVersion", "v1"},
      {"kind", "Pod"},
      {"metadata", {{"name", "mnist-worker-0"}, {"labels", {{"meshtrain.dev/job-name", "mnist"}}}}},
      {"spec", {{"containers", {{{"name", "c"}, {"image", "i"}}}}}}};
  Kubectl({"create", "-f", "-"}, pod.dump());
  const std::string uid = Uid("mnist-worker-0");
  ApplyJob("mnist", 0, 1);
  ASSERT_TRUE(WaitForCondition("mnist", "Waiting"));
  Kubectl({"delete", "tj", "mnist"});
  EXPECT_EQ(Uid("mnist-worker-0"), uid);
  EXPECT_FALSE(Get(kube::Pods(), "mnist-worker-0")["metadata"].contains("ownerReferences"));
}

TEST_F(LifecycleTest, ReplacesAPodOfANodeThatIsGone) {
  StartOperator();
  const std::string node = ns_ + "-node";
  const json object = {{"apiVersion", "v1"}, {"kind", "Node"}, {"metadata", {{"name", node}}}};
  Kubectl({"create", "-f", "-"}, object.dump());
  ApplyJob("mnist", 0, 1);
  ASSERT_TRUE(WaitForPods("mnist", 1));
  const std::string before = Uid("mnist-worker-0");
  const json binding = {{"apiVersion", "v1"},
                        {"kind", "Binding"},
                        {"metadata", {{"name", "mnist-worker-0"}, {"namespace", ns_}}},
                        {"target", {{"apiVersion", "v1"}, {"kind", "Node"}, {"name", node}}}};
  Kubectl(
      {"create", "--raw", "/api/v1/namespaces/" + ns_ + "/pods/mnist-worker-0/binding", "-f", "-"},
      binding.dump());
  SetRunning("mnist-worker-0");
  ASSERT_TRUE(WaitForCondition("mnist", "Running"));
  // Drained, but no kubelet answers: it would stay Terminating for ever.
  Kubectl({"delete", "pod", "mnist-worker-0", "--wait=false"});
  EXPECT_EQ(Uid("mnist-worker-0"), before);
  Kubectl({"delete", "node", node});
  ASSERT_TRUE(Eventually(
      [&] {
        const std::string now = Uid("mnist-worker-0");
        return !now.empty() && now != before;
      },
      std::chrono::seconds(30)));
  EXPECT_NE(Condition("mnist", "Failed"), "True");
}

TEST_F(LifecycleTest, ConvergesHoweverOftenTheOperatorIsKilled) {
  // Killed a little later into the work each time; without leader election, so that the next may
  // start at once.
  for (int ms = 0; ms <= 60; ms += 6) {
    const std::string job = "job-" + std::to_string(ms);
    auto run = [&] {
      return std::make_unique<OperatorProcess>(
          operator_kubeconfig_, std::vector<std::string>{"--no-leader-elect", "--namespace", ns_});
    };
    auto first = run();
    ASSERT_TRUE(Eventually([&] { return first->Log().find("watching") != std::string::npos; }));
    ApplyJob(job, 1, 2);
    SystemClock().SleepFor(std::chrono::milliseconds(ms), {});
    first->Signal(SIGKILL);
    first->Wait(std::chrono::seconds(5));
    const std::set<std::string> had = Uids(job);
    auto second = run();
    ASSERT_TRUE(Eventually([&] { return second->Log().find("watching") != std::string::npos; }));
    ASSERT_TRUE(WaitForPods(job, 3)) << ms;
    ASSERT_TRUE(WaitForCondition(job, "Created")) << ms;
    for (const std::string& uid : had) {
      EXPECT_TRUE(Uids(job).contains(uid)) << "a pod was made again, " << ms;
    }
    second->Signal(SIGTERM);
    EXPECT_EQ(second->Wait(std::chrono::seconds(10)), 0);
  }
}

TEST_F(LifecycleTest, DeletingAJobTakesItsChildrenWithIt) {
  StartOperator();
  ApplyJob("mnist", 0, 2);
  ASSERT_TRUE(WaitForPods("mnist", 2));
  Kubectl({"delete", "tj", "mnist"});
  // The garbage collector learns of new kinds every 30 s.
  EXPECT_TRUE(
      Eventually([&] { return Pods("mnist").empty() && Get(kube::Services(), "mnist").is_null(); },
                 std::chrono::seconds(60)));
  ApplyJob("mnist", 0, 2);
  EXPECT_TRUE(WaitForPods("mnist", 2));
}

TEST_F(LifecycleTest, WhatIsRenderedFromTheChartIsUpToDate) {
  namespace fs = std::filesystem;
  const fs::path source = MT_SOURCE_DIR;
  const fs::path work = fs::path(::testing::TempDir()) / "meshtrain-render";
  fs::remove_all(work);
  fs::create_directories(work / "deploy");
  fs::create_directories(work / "helm");
  fs::copy(source / "helm/meshtrain", work / "helm/meshtrain", fs::copy_options::recursive);
  const CommandResult rendered =
      RunCommand({(source / "scripts/kubernetes/render").string(), MT_OPERATOR, work.string()});
  ASSERT_EQ(rendered.exit_code, 0) << rendered.out;
  for (const char* folder : {"helm/meshtrain", "deploy/base", "deploy/namespaced"}) {
    const CommandResult same =
        RunCommand({"diff", "-r", (source / folder).string(), (work / folder).string()});
    EXPECT_EQ(same.exit_code, 0) << "run scripts/kubernetes/render: " << same.out;
  }
  fs::remove_all(work);
}

}  // namespace
}  // namespace meshtrain::testing
