// The chart on a real API server: helm install, upgrade and uninstall; the operator then runs as
// its Deployment says, under the chart's own ServiceAccount and nothing more.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>

#include "runtime/base/text.h"
#include "tests/integration/operator/operator_fixture.h"

namespace meshtrain::testing {
namespace {

using nlohmann::json;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr char kRelease[] = "meshtrain";

class HelmTest : public OperatorTest {
 protected:
  // A server on which nothing of ours is installed.
  static void SetUpTestSuite() { StartApiServer(); }

  void TearDown() override {
    process_.reset();
    if (api_) Helm({"uninstall", kRelease, "--ignore-not-found"});
    OperatorTest::TearDown();
  }

  CommandResult Helm(std::vector<std::string> args) {
    args.insert(args.end(), {"--namespace", ns_});
    return api().Helm(std::move(args));
  }
  std::string Chart() const { return std::string(MT_SOURCE_DIR) + "/helm/meshtrain"; }
  json Deployment() { return Get({"apps", "v1", "deployments"}, kRelease); }

  // The operator's pod as the Deployment's controller made it; null while there is none.
  json OperatorPod() {
    json found;
    const auto version = api().client().List(
        kube::Pods(), {.ns = ns_, .label_selector = "app.kubernetes.io/component=operator"},
        [&](std::string_view item) { found = json::parse(item); }, [] {}, {});
    EXPECT_TRUE(version.ok());
    return found;
  }

  // What a kubelet would start, but for the port, which this machine gives: the pod's arguments and
  // account.
  void RunPod() {
    json pod;
    ASSERT_TRUE(Eventually([&] {
      pod = OperatorPod();
      return pod.is_object();
    })) << Kubectl({"describe", "replicasets"});
    const std::string account = pod["spec"]["serviceAccountName"];
    operator_token_ = std::string(Trim(Kubectl({"create", "token", account, "--duration=1h"})));
    std::vector<std::string> args;
    for (const std::string arg : pod["spec"]["containers"][0]["args"]) {
      if (!arg.starts_with("--metrics-address=")) args.push_back(arg);
    }
    process_ = std::make_unique<OperatorProcess>(KubeconfigFor(api().config().server), args);
    ASSERT_TRUE(Eventually([&] { return process_->Log().find("watching") != std::string::npos; },
                           std::chrono::seconds(40)));
  }
  void StopPod() {
    process_->Signal(SIGTERM);
    EXPECT_EQ(process_->Wait(std::chrono::seconds(15)), 0);
    EXPECT_THAT(process_->Log(), Not(HasSubstr("forbidden")));
    process_.reset();
  }

  std::unique_ptr<OperatorProcess> process_;
};

TEST_F(HelmTest, InstallsUpgradesAndUninstallsLeavingTheJobs) {
  // The strictest of Kubernetes' pod standards must admit the operator.
  Kubectl({"label", "namespace", ns_, "pod-security.kubernetes.io/enforce=restricted"});
  const CommandResult installed = Helm({"install", kRelease, Chart(), "--set", "logFormat=text"});
  ASSERT_EQ(installed.exit_code, 0) << installed.out;
  EXPECT_THAT(installed.out, HasSubstr("kubectl explain trainingjob.spec"));
  Kubectl(
      {"wait", "--for=condition=Established", "crd/trainingjobs.meshtrain.dev", "--timeout=30s"});
  EXPECT_THAT(Deployment()["spec"]["template"]["spec"]["containers"][0]["args"],
              Contains("--threads=4"));
  RunPod();

  std::string elsewhere = ns_ + "-jobs";
  ASSERT_EQ(api().Kubectl({"create", "namespace", elsewhere}).exit_code, 0);
  ASSERT_TRUE(Eventually([&] {
    return api().Kubectl({"-n", elsewhere, "get", "serviceaccount", "default"}).exit_code == 0;
  }));
  std::swap(elsewhere, ns_);  // the helpers below act on the namespace of the jobs
  ApplyJob("mnist", 1, 2);
  EXPECT_TRUE(WaitForPods("mnist", 3));
  for (const char* pod : {"mnist-chief-0", "mnist-worker-0", "mnist-worker-1"}) SetRunning(pod);
  EXPECT_TRUE(WaitForCondition("mnist", "Running"));
  EXPECT_TRUE(Eventually([&] {
    return TryKubectl({"get", "events"}).out.find("trainingjob/mnist") != std::string::npos;
  })) << "events need rights too";
  std::swap(elsewhere, ns_);
  StopPod();

  const CommandResult upgraded =
      Helm({"upgrade", kRelease, Chart(), "--reuse-values", "--set", "threads=8"});
  ASSERT_EQ(upgraded.exit_code, 0) << upgraded.out;
  EXPECT_THAT(Deployment()["spec"]["template"]["spec"]["containers"][0]["args"],
              Contains("--threads=8"));
  EXPECT_EQ(api().Kubectl({"-n", elsewhere, "get", "tj", "mnist"}).exit_code, 0);

  const CommandResult gone = Helm({"uninstall", kRelease});
  ASSERT_EQ(gone.exit_code, 0) << gone.out;
  EXPECT_THAT(gone.out, HasSubstr("kept due to the resource policy"));
  EXPECT_TRUE(Eventually([&] { return Deployment().is_null(); }));
  EXPECT_EQ(api().Kubectl({"get", "clusterrole", kRelease}).exit_code, 1);
  EXPECT_EQ(api().Kubectl({"get", "validatingadmissionpolicy", "meshtrain-pods"}).exit_code, 1);
  EXPECT_EQ(api().Kubectl({"-n", elsewhere, "get", "tj", "mnist"}).exit_code, 0)
      << "nobody's job goes with the chart";
  const CommandResult again = Helm({"install", kRelease, Chart()});
  EXPECT_EQ(again.exit_code, 0) << again.out;
  api().Kubectl({"delete", "namespace", elsewhere, "--wait=false"});
}

TEST_F(HelmTest, InOneNamespaceItNeedsNoRightsInOthers) {
  // A CRD that an uninstalled release of another namespace left behind is taken over.
  const CommandResult installed = Helm({"install", kRelease, Chart(), "--take-ownership", "--set",
                                        "scope=namespace,logFormat=text"});
  ASSERT_EQ(installed.exit_code, 0) << installed.out;
  Kubectl(
      {"wait", "--for=condition=Established", "crd/trainingjobs.meshtrain.dev", "--timeout=30s"});
  EXPECT_EQ(api().Kubectl({"get", "clusterrole", kRelease}).exit_code, 1);
  RunPod();
  ApplyJob("mnist", 0, 2);
  EXPECT_TRUE(WaitForPods("mnist", 2));
  const auto may = [&](const std::string& ns, std::vector<std::string> what) {
    what.insert(what.begin(),
                {"auth", "can-i", "-n", ns, "--as", "system:serviceaccount:" + ns_ + ":meshtrain"});
    const CommandResult answer = api().Kubectl(std::move(what));
    EXPECT_TRUE(Trim(answer.out).ends_with(answer.exit_code == 0 ? "yes" : "no")) << answer.out;
    return answer.exit_code == 0;
  };
  EXPECT_TRUE(may(ns_, {"create", "pods"}));
  EXPECT_FALSE(may("default", {"create", "pods"}));
  EXPECT_FALSE(may(ns_, {"get", "secrets"}));
  EXPECT_FALSE(may(ns_, {"create", "pods", "--subresource=exec"}));
  EXPECT_FALSE(may(ns_, {"list", "nodes"}));
  // A release of the same name in another namespace has a policy of its own.
  EXPECT_EQ(
      api().Kubectl({"get", "validatingadmissionpolicy", "meshtrain-" + ns_ + "-pods"}).exit_code,
      0);
  StopPod();
}

// Dashboards, policies, two replicas, OpenShift's way, and what `helm test` makes: a job whose pods
// a strict namespace takes. What needs the Prometheus operator's kinds is only rendered.
TEST_F(HelmTest, WhatIsOptionalIsTakenByTheServerAndTheTestsJobGetsItsPod) {
  for (const char* mode : {"enforce", "warn"}) {
    Kubectl({"label", "namespace", ns_,
             std::string("pod-security.kubernetes.io/") + mode + "=restricted"});
  }
  const std::string optional =
      "scope=namespace,logFormat=text,dashboards.enabled=true,networkPolicies.enabled=true,"
      "networkPolicies.jobNamespaces={" +
      ns_ + "},replicas=2,openShift=true,workerImage=meshtrain-worker:1";
  const CommandResult installed =
      Helm({"install", kRelease, Chart(), "--take-ownership", "--set", optional});
  ASSERT_EQ(installed.exit_code, 0) << installed.out;
  EXPECT_THAT(installed.out, HasSubstr("helm -n " + ns_ + " test " + kRelease));
  Kubectl(
      {"wait", "--for=condition=Established", "crd/trainingjobs.meshtrain.dev", "--timeout=30s"});
  const std::string boards =
      Kubectl({"get", "configmaps", "-l", "grafana_dashboard=1", "-o", "name"});
  EXPECT_EQ(std::count(boards.begin(), boards.end(), '\n'), 4) << boards;
  const std::string policies = Kubectl({"get", "networkpolicies", "-o", "name"});
  EXPECT_EQ(std::count(policies.begin(), policies.end(), '\n'), 2) << policies;
  EXPECT_FALSE(Deployment()["spec"]["template"]["spec"]["securityContext"].contains("runAsUser"));
  const CommandResult monitored =
      Helm({"template", kRelease, Chart(), "--kube-version", "v1.34.0", "--set",
            "metrics.podMonitor.enabled=true,metrics.serviceMonitor.enabled=true,"
            "prometheusRule.enabled=true"});
  EXPECT_EQ(monitored.exit_code, 0) << monitored.out;
  for (const char* kind : {"kind: PodMonitor", "kind: ServiceMonitor", "kind: PrometheusRule"}) {
    EXPECT_THAT(monitored.out, HasSubstr(kind));
  }

  const CommandResult test = Helm({"template", kRelease, Chart(), "--kube-version", "v1.34.0",
                                   "--set", optional, "--show-only", "templates/tests/job.yaml"});
  ASSERT_EQ(test.exit_code, 0) << test.out;
  EXPECT_THAT(Kubectl({"apply", "-f", "-"}, test.out), Not(HasSubstr("Warning")));
  const json data = Get({"", "v1", "configmaps"}, "meshtrain-test");
  RunPod();
  const std::string made =
      Kubectl({"create", "--as=system:serviceaccount:" + ns_ + ":meshtrain-test", "-f", "-"},
              data["data"]["job.yaml"].get<std::string>());
  const std::string job = made.substr(made.find('/') + 1, made.find(' ') - made.find('/') - 1);
  EXPECT_TRUE(WaitForPods(job, 1)) << Message(job, "Waiting") << Message(job, "Failed");
  StopPod();
}

}  // namespace
}  // namespace meshtrain::testing
