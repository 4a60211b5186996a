// The chart on a real API server: helm install, upgrade and uninstall; the operator then runs as
// its Deployment says, under the chart's own ServiceAccount and nothing more.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <map>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "runtime/base/text.h"
#include "tests/integration/operator/operator_fixture.h"
#include "tests/support/small_program.h"

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
  json OperatorPod(const std::string& argument = "--threads=4") {
    json found;
    const auto version = api().client().List(
        kube::Pods(), {.ns = ns_, .label_selector = "app.kubernetes.io/component=operator"},
        [&](std::string_view item) {
          const json pod = json::parse(item);
          const json& args = pod["spec"]["containers"][0]["args"];
          if (std::find(args.begin(), args.end(), argument) != args.end()) found = pod;
        },
        [] {}, {});
    EXPECT_TRUE(version.ok());
    return found;
  }

  // What a kubelet would start, but for the port, which this machine gives: the pod's arguments and
  // account. Of several pods, of which an old one stays until a new one is ready, it is one with
  // this argument.
  void RunPod(const std::string& argument = "--threads=4") {
    json pod;
    ASSERT_TRUE(Eventually([&] {
      pod = OperatorPod(argument);
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
  // A line of the log in which the server may say that it forbids something.
  static constexpr const char* kMayNotSeeTheCrd = "the CRD was not looked at";
  void StopPod(const std::string& forbidden = "is being terminated") {
    process_->Signal(SIGTERM);
    EXPECT_EQ(process_->Wait(std::chrono::seconds(15)), 0);
    // An operator of the whole cluster sees the namespaces of other tests go, too.
    std::istringstream log(process_->Log());
    for (std::string line; std::getline(log, line);) {
      if (line.find("is being terminated") != std::string::npos) continue;
      if (line.find(forbidden) != std::string::npos) continue;
      EXPECT_THAT(line, Not(HasSubstr("forbidden")));
    }
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
  AwaitCrd("trainingjobs.meshtrain.dev");
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
  EXPECT_EQ(Kubectl({"get", "lease", "-o", "name"}), "");
  EXPECT_EQ(api().Kubectl({"get", "validatingadmissionpolicy", "meshtrain-pods"}).exit_code, 1);
  EXPECT_EQ(api().Kubectl({"-n", elsewhere, "get", "tj", "mnist"}).exit_code, 0)
      << "nobody's job goes with the chart";
  const CommandResult again = Helm({"install", kRelease, Chart()});
  EXPECT_EQ(again.exit_code, 0) << again.out;
  api().Kubectl({"delete", "namespace", elsewhere, "--wait=false"});
}

// Fifty jobs run, ten of them sealed. The versions are the server's own count of writes.
class UpgradeTest : public HelmTest {
 protected:
  static constexpr int kJobs = 50, kSealed = 10;

  std::map<std::string, json> All(const kube::Resource& resource, const std::string& selector) {
    std::map<std::string, json> found;
    const auto version = api().client().List(
        resource, {.ns = ns_, .label_selector = selector},
        [&](std::string_view item) {
          json object = json::parse(item);
          const std::string name = object["metadata"]["name"];
          found[name] = std::move(object);
        },
        [&] { found.clear(); }, {});
    EXPECT_TRUE(version.ok()) << version.status().ToString();
    return found;
  }
  std::map<std::string, json> Jobs() { return All(control::TrainingJobs(), ""); }
  std::map<std::string, json> AllPods() { return All(kube::Pods(), "meshtrain.dev/job-name"); }
  std::map<std::string, std::string> Versions() {
    std::map<std::string, std::string> out;
    for (const auto& objects : {Jobs(), AllPods()}) {
      for (const auto& [name, object] : objects) {
        out[object["metadata"]["uid"]] = object["metadata"]["resourceVersion"];
      }
    }
    return out;
  }
  bool CrdHas(const std::string& field) {
    const std::string crd =
        api().Kubectl({"get", "crd", "trainingjobs.meshtrain.dev", "-o", "json"}).out;
    return crd.find("\"" + field + "\": {") != std::string::npos;
  }

  void StartJobs() {
    const json pod = {{"spec", {{"containers", {{{"name", "trainer"}, {"image", "i"}}}}}}};
    for (int i = 0; i < kJobs; ++i) {
      const bool sealed = i < kSealed;
      json worker = {{"replicas", sealed ? 2 : 1}, {"restartPolicy", "ExitCode"}};
      if (!sealed) worker["template"] = pod;
      json job = {{"apiVersion", "meshtrain.dev/v1"},
                  {"kind", "TrainingJob"},
                  {"metadata", {{"name", "job-" + std::to_string(i)}, {"namespace", ns_}}},
                  {"spec", {{"replicaSpecs", {{"worker", worker}}}}}};
      if (sealed) job["spec"]["program"] = json::parse(testing_support::kProgram);
      const auto made = api().client().Create(control::TrainingJobs(), ns_, job.dump(), {});
      ASSERT_TRUE(made.ok()) << made.status().ToString();
    }
    ASSERT_TRUE(Eventually([&] { return AllPods().size() == kJobs + kSealed; }));
    for (const auto& [name, made] : AllPods()) SetRunning(name);
    ASSERT_TRUE(Eventually([&] {
      const auto now = Jobs();
      return std::count_if(now.begin(), now.end(), [](const auto& job) {
               // Each is told a while after its last pod runs.
               const std::string ready = job.second["status"].value("ready", "");
               return job.second["status"].value("phase", "") == "Running" &&
                      (ready == "1/1" || ready == "2/2");
             }) == kJobs;
    }));
    // The last events are told, and then nothing is written any more.
    before_ = Versions();
    ASSERT_TRUE(Eventually([&] {
      SystemClock().SleepFor(std::chrono::seconds(1), {});
      return std::exchange(before_, Versions()) == before_;
    }));
    was_ = Jobs();
    EXPECT_EQ(was_.at("job-0")["status"]["security"], "mutualTLS");
  }

  void ExpectNothingChanged(const char* after) {
    // It has looked at every job, and a moment more.
    EXPECT_TRUE(Eventually([&] {
      return process_->Metric("meshtrain_operator_reconcile_total{result=\"success\"") >= kJobs;
    })) << after;
    SystemClock().SleepFor(std::chrono::seconds(1), {});
    EXPECT_EQ(Versions(), before_) << after << ": objects that were written, made or deleted";
    const auto now = Jobs();
    for (const auto& [name, job] : was_) EXPECT_EQ(now.at(name)["status"], job["status"]) << after;
    EXPECT_THAT(process_->Log(), Not(HasSubstr("msg=done "))) << after;
  }

  std::map<std::string, std::string> before_;  // what the server had written last
  std::map<std::string, json> was_;
};

// The operator that follows would seal none and has another worker image.
TEST_F(UpgradeTest, OtherValuesAndTheFormerOnesRestartNoPodAndChangeNoStatus) {
  const CommandResult installed =
      Helm({"install", kRelease, Chart(), "--take-ownership", "--set", "logFormat=text"});
  ASSERT_EQ(installed.exit_code, 0) << installed.out;
  AwaitCrd("trainingjobs.meshtrain.dev");
  RunPod();
  StartJobs();
  StopPod();
  const CommandResult upgraded =
      Helm({"upgrade", kRelease, Chart(), "--reuse-values", "--set",
            "threads=8,security=none,workerImage=registry.example/worker:2"});
  ASSERT_EQ(upgraded.exit_code, 0) << upgraded.out;
  RunPod("--threads=8");
  ExpectNothingChanged("upgrade");
  StopPod();
  const CommandResult back = Helm({"rollback", kRelease, "1"});
  ASSERT_EQ(back.exit_code, 0) << back.out;
  RunPod();
  ExpectNothingChanged("rollback");
  StopPod();
}

// The older chart's CRD is older than this operator, which stands in for the older one: that chart
// gives it no right to see the CRD, so it starts, and the server cuts off what that CRD lacks.
TEST_F(UpgradeTest, FromAnOlderChartAndBackRestartsNoPodAndChangesNoStatus) {
  const std::string older = std::string(MT_TESTDATA) + "/charts/meshtrain-0.0.9.tgz";
  const std::string values = "scope=namespace,logFormat=text";
  const CommandResult installed =
      Helm({"install", kRelease, older, "--take-ownership", "--set", values});
  ASSERT_EQ(installed.exit_code, 0) << installed.out;
  AwaitCrd("trainingjobs.meshtrain.dev");
  const auto expect_older = [&] {
    EXPECT_FALSE(CrdHas("whatToDo"));
    EXPECT_THAT(process_->Log(), HasSubstr("the CRD was not looked at"));
  };
  RunPod();
  expect_older();
  StartJobs();
  StopPod(kMayNotSeeTheCrd);
  const CommandResult upgraded =
      Helm({"upgrade", kRelease, Chart(), "--reset-then-reuse-values", "--set", "threads=8"});
  ASSERT_EQ(upgraded.exit_code, 0) << upgraded.out;
  RunPod("--threads=8");
  EXPECT_TRUE(CrdHas("whatToDo"));
  EXPECT_THAT(process_->Log(), Not(HasSubstr("the CRD was not looked at")));
  ExpectNothingChanged("upgrade");
  StopPod();
  const CommandResult back = Helm({"rollback", kRelease, "1"});
  ASSERT_EQ(back.exit_code, 0) << back.out;
  RunPod();
  expect_older();
  ExpectNothingChanged("rollback");
  StopPod(kMayNotSeeTheCrd);
  // It does not start where it sees that the CRD is older.
  EXPECT_EQ(api()
                .Kubectl({"create", "clusterrolebinding", ns_, "--clusterrole=cluster-admin",
                          "--serviceaccount=" + ns_ + ":meshtrain"})
                .exit_code,
            0);
  OperatorProcess refused(KubeconfigFor(api().config().server), {"--namespace", ns_});
  EXPECT_GT(refused.Wait(std::chrono::seconds(20)), 0);
  EXPECT_THAT(refused.Log(), HasSubstr("got: one without status.whatToDo"));
  api().Kubectl({"delete", "clusterrolebinding", ns_});
}

TEST_F(HelmTest, RunsTheJobsOfAListOfNamespaces) {
  const std::string home = ns_;
  const std::vector<std::string> listed = {home + "-ml", home + "-bio"};
  const std::string other = home + "-other";
  for (const std::string& ns : {listed[0], listed[1], other}) {
    ASSERT_EQ(api().Kubectl({"create", "namespace", ns}).exit_code, 0);
    ASSERT_TRUE(Eventually([&] {
      return api().Kubectl({"-n", ns, "get", "serviceaccount", "default"}).exit_code == 0;
    }));
  }
  const CommandResult installed =
      Helm({"install", kRelease, Chart(), "--take-ownership", "--set",
            "scope=namespace,logFormat=text,namespaces={" + Join(listed, ",") + "}"});
  ASSERT_EQ(installed.exit_code, 0) << installed.out;
  EXPECT_THAT(installed.out, HasSubstr("in these namespaces: " + Join(listed, ", ") + "."));
  AwaitCrd("trainingjobs.meshtrain.dev");
  RunPod();
  EXPECT_EQ(Trim(Kubectl({"get", "lease", "-o", "name"})), "lease.coordination.k8s.io/meshtrain");
  for (const std::string& ns : {other, home, listed[0], listed[1]}) {
    ns_ = ns;
    ApplyJob("mnist", 0, 2);
  }
  for (const std::string& ns : listed) {
    ns_ = ns;
    EXPECT_TRUE(WaitForPods("mnist", 2)) << ns;
    for (const char* pod : {"mnist-worker-0", "mnist-worker-1"}) SetRunning(pod);
    EXPECT_TRUE(WaitForCondition("mnist", "Running")) << ns;
    EXPECT_TRUE(Eventually([&] {
      return TryKubectl({"get", "events"}).out.find("trainingjob/mnist") != std::string::npos;
    })) << ns;
  }
  for (const std::string& ns : {other, home}) {
    ns_ = ns;
    EXPECT_TRUE(Pods("mnist").empty()) << ns;
    EXPECT_FALSE(Get(control::TrainingJobs(), "mnist").contains("status")) << ns;
  }
  ns_ = home;
  EXPECT_EQ(process_->Metric("meshtrain_jobs{namespace=\"" + listed[1] + "\",phase=\"Running\"}"),
            1);
  const auto account = "--as=system:serviceaccount:" + home + ":meshtrain";
  const auto rights = [&](const std::string& ns) {
    return api().Kubectl({"auth", "can-i", "--list", "--no-headers", account, "-n", ns}).out;
  };
  EXPECT_THAT(rights(listed[0]), HasSubstr("trainingjobs.meshtrain.dev "));
  EXPECT_EQ(rights(listed[0]), rights(listed[1]));
  for (const std::string& ns : {other, home}) {
    EXPECT_THAT(rights(ns), Not(HasSubstr("trainingjobs.meshtrain.dev "))) << ns;
    EXPECT_THAT(rights(ns), Not(HasSubstr("pods"))) << ns;
  }
  // Who may not create pods may not create jobs, where the operator runs them.
  const auto user = [&](const std::string& ns) {
    api().Kubectl({"-n", ns, "create", "role", "jobs", "--verb=create",
                   "--resource=trainingjobs.meshtrain.dev"});
    api().Kubectl({"-n", ns, "create", "rolebinding", "jobs", "--role=jobs", "--user=somebody"});
    const json pod = {{"spec", {{"containers", {{{"name", "trainer"}, {"image", "i"}}}}}}};
    const json job = {{"apiVersion", "meshtrain.dev/v1"},
                      {"kind", "TrainingJob"},
                      {"metadata", {{"name", "theirs"}}},
                      {"spec", {{"replicaSpecs", {{"worker", {{"template", pod}}}}}}}};
    return api().Kubectl({"-n", ns, "create", "--as=somebody", "-f", "-"}, job.dump());
  };
  for (const std::string& ns : listed) {
    CommandResult tried;
    EXPECT_TRUE(Eventually([&] {
      tried = user(ns);
      return tried.out.find("needs the right to create pods") != std::string::npos;
    })) << ns
        << ": " << tried.out;
  }
  EXPECT_EQ(user(other).exit_code, 0);
  StopPod();
  // One of them fewer: its jobs are left alone from then on.
  const CommandResult fewer = Helm({"upgrade", kRelease, Chart(), "--reuse-values", "--set",
                                    "threads=8,namespaces={" + listed[1] + "}"});
  ASSERT_EQ(fewer.exit_code, 0) << fewer.out;
  EXPECT_THAT(fewer.out, HasSubstr("in the namespace " + listed[1] + "."));
  EXPECT_THAT(rights(listed[0]), Not(HasSubstr("pods")));
  RunPod("--threads=8");
  StopPod();
  for (const std::string& ns : {listed[0], listed[1], other}) {
    api().Kubectl({"delete", "namespace", ns, "--wait=false"});
  }
}

TEST_F(HelmTest, InOneNamespaceItNeedsNoRightsInOthers) {
  // A CRD that an uninstalled release of another namespace left behind is taken over.
  const CommandResult installed = Helm({"install", kRelease, Chart(), "--take-ownership", "--set",
                                        "scope=namespace,logFormat=text"});
  ASSERT_EQ(installed.exit_code, 0) << installed.out;
  AwaitCrd("trainingjobs.meshtrain.dev");
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
      api().Kubectl({"get", "validatingadmissionpolicy", "meshtrain." + ns_ + "-pods"}).exit_code,
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
      "networkPolicies.scrapers[0].namespaceSelector.matchLabels.team=metrics,replicas=2,"
      "openShift=true,workerImage=meshtrain-worker:1";
  const CommandResult installed =
      Helm({"install", kRelease, Chart(), "--take-ownership", "--set", optional});
  ASSERT_EQ(installed.exit_code, 0) << installed.out;
  EXPECT_THAT(installed.out, HasSubstr("helm -n " + ns_ + " test " + kRelease));
  AwaitCrd("trainingjobs.meshtrain.dev");
  const std::string boards =
      Kubectl({"get", "configmaps", "-l", "grafana_dashboard=1", "-o", "name"});
  EXPECT_EQ(std::count(boards.begin(), boards.end(), '\n'), 4) << boards;
  const std::string policies = Kubectl({"get", "networkpolicies", "-o", "name"});
  EXPECT_EQ(std::count(policies.begin(), policies.end(), '\n'), 1) << policies;
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
  // The job's own policy, as the server has it: its pods, and at one port whoever may ask them.
  const std::string uid = Get(control::TrainingJobs(), job)["metadata"]["uid"];
  const json policy = Get({"networking.k8s.io", "v1", "networkpolicies"},
                          job + "-network-" + cluster::ShortHash(uid));
  ASSERT_TRUE(policy.is_object());
  EXPECT_EQ(policy["metadata"]["ownerReferences"][0]["uid"], uid);
  const json& rules = policy["spec"]["ingress"];
  ASSERT_EQ(rules.size(), 2u) << policy;
  EXPECT_EQ(rules[0]["from"][0]["podSelector"], policy["spec"]["podSelector"]);
  EXPECT_FALSE(rules[0]["from"][0].contains("namespaceSelector"));
  EXPECT_EQ(rules[1]["ports"][0]["port"], "meshtrain-http");
  ASSERT_EQ(rules[1]["from"].size(), 2u);
  const json labels = OperatorPod()["metadata"]["labels"];
  for (const auto& [key, value] : rules[1]["from"][0]["podSelector"]["matchLabels"].items()) {
    EXPECT_EQ(labels[key], value) << "the operator itself asks for progress";
  }
  EXPECT_EQ(rules[1]["from"][1]["namespaceSelector"]["matchLabels"]["team"], "metrics");
  StopPod();
}

}  // namespace
}  // namespace meshtrain::testing
