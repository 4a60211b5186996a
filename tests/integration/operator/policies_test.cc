// What ends, restarts and surrounds a job, on a real API server: one short case each, under the
// operator's own ServiceAccount, so that each also shows that it may do what it has to.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "operator/api/crd.h"
#include "tests/integration/operator/operator_fixture.h"
#include "tests/support/small_program.h"

namespace meshtrain::testing {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

class PoliciesTest : public OperatorTest {
 protected:
  std::string Reason(const std::string& job, const std::string& type) {
    const json object = Get(control::TrainingJobs(), job);
    if (!object.is_object() || !object.contains("status")) return "";
    for (const json& condition : object["status"].value("conditions", json::array())) {
      if (condition["type"] == type) return condition.value("reason", "");
    }
    return "";
  }
  std::set<std::string> Uids(const std::string& job) {
    std::set<std::string> uids;
    for (const json& pod : Pods(job)) uids.insert(pod["metadata"]["uid"]);
    return uids;
  }
  void Run(const std::string& job, std::vector<std::string> replicas) {
    ASSERT_TRUE(WaitForPods(job, replicas.size())) << job;
    for (const std::string& replica : replicas) SetRunning(job + "-" + replica);
    ASSERT_TRUE(WaitForCondition(job, "Running")) << job;
  }
  // "": it is not there.
  std::string UidOf(const kube::Resource& resource, const std::string& name) {
    const json object = Get(resource, name);
    return object.is_object() ? object["metadata"].value("uid", "") : std::string();
  }
  // The uids of those that own the object, without the job's.
  std::string Owners(const kube::Resource& resource, const std::string& name) {
    const json object = Get(resource, name);
    std::string out;
    if (!object.is_object()) return "gone";
    for (const json& owner : object["metadata"].value("ownerReferences", json::array())) {
      out += owner["kind"].get<std::string>() + " ";
    }
    return out;
  }
};

json Policy(const json& policy) { return {{"runPolicy", policy}}; }
json Replica(const std::string& policy) {
  return {{"replicas", 1},
          {"restartPolicy", policy},
          {"template",
           {{"spec", {{"containers", json::array({{{"name", "trainer"}, {"image", "i"}}})}}}}}};
}

TEST_F(PoliciesTest, DeadlinesEndAJob) {
  StartOperator();
  ApplyJob("active", 0, 1, Policy({{"activeDeadlineSeconds", 10}}));
  Run("active", {"worker-0"});
  ApplyJob("startup", 0, 1, Policy({{"startupDeadlineSeconds", 2}}));
  ASSERT_TRUE(WaitForCondition("startup", "Failed"));
  EXPECT_EQ(Reason("startup", "Failed"), "StartupDeadlineExceeded");
  ASSERT_TRUE(WaitForCondition("active", "Failed"));
  EXPECT_EQ(Reason("active", "Failed"), "DeadlineExceeded");
}

TEST_F(PoliciesTest, ATtlDeletesTheJobAfterItsEnd) {
  StartOperator();
  ApplyJob("mnist", 0, 1, Policy({{"ttlSecondsAfterFinished", 8}}));
  Run("mnist", {"worker-0"});
  SetEnded("mnist-worker-0", 0);
  ASSERT_TRUE(WaitForCondition("mnist", "Succeeded"));
  EXPECT_TRUE(Eventually([&] { return Get(control::TrainingJobs(), "mnist").is_null(); }));
}

TEST_F(PoliciesTest, ABackoffLimitEndsAJob) {
  StartOperator();
  ApplyJob("mnist", 1, 1, Policy({{"backoffLimit", 1}}));
  Run("mnist", {"chief-0", "worker-0"});
  const std::set<std::string> before = Uids("mnist");
  SetEnded("mnist-worker-0", 138);
  ASSERT_TRUE(Eventually([&] { return Uids("mnist") != before && Uids("mnist").size() == 2; }));
  EXPECT_NE(Condition("mnist", "Failed"), "True");
  SetRunning("mnist-worker-0");
  SetEnded("mnist-worker-0", 138);
  ASSERT_TRUE(WaitForCondition("mnist", "Failed"));
  EXPECT_EQ(Reason("mnist", "Failed"), "BackoffLimitExceeded");
}

TEST_F(PoliciesTest, FailureRulesComeBeforeRestartPolicies) {
  StartOperator();
  const json rules = {
      {"failurePolicy",
       {{"rules",
         {{{"exitCodes", {138}}, {"action", "Fail"}},
          {{"roles", {"Worker"}}, {"exitCodes", {3}}, {"action", "RestartAll"}}}}}}};
  ApplyJob("fails", 1, 1, rules);
  ApplyJob("restarts", 1, 2, rules);
  Run("fails", {"chief-0", "worker-0"});
  SetEnded("fails-worker-0", 138);
  ASSERT_TRUE(WaitForCondition("fails", "Failed"));
  EXPECT_THAT(Message("fails", "Failed"), HasSubstr("failurePolicy.rules[0] says Fail"));

  Run("restarts", {"chief-0", "worker-0", "worker-1"});
  const std::set<std::string> before = Uids("restarts");
  SetEnded("restarts-worker-1", 3);
  ASSERT_TRUE(Eventually([&] {
    const std::set<std::string> now = Uids("restarts");
    return now.size() == 3 && std::none_of(now.begin(), now.end(), [&](const std::string& uid) {
             return before.contains(uid);
           });
  })) << "all three are made again";
  Run("restarts", {"chief-0", "worker-0", "worker-1"});
  EXPECT_EQ(Get(control::TrainingJobs(), "restarts")["status"]["restarts"], 1);
}

TEST_F(PoliciesTest, SuccessMayWaitForAllWorkersAndForTheEvaluator) {
  StartOperator();
  ApplyJob("all", 1, 2, {{"successPolicy", "AllWorkers"}});
  ApplyJob("evaluated", 1, 1,
           {{"waitForEvaluator", true}, {"replicaSpecs", {{"evaluator", Replica("ExitCode")}}}});
  Run("all", {"chief-0", "worker-0", "worker-1"});
  Run("evaluated", {"chief-0", "worker-0", "evaluator-0"});
  SetEnded("all-chief-0", 0);
  SetEnded("all-worker-0", 0);
  SetEnded("evaluated-chief-0", 0);
  // Told of the ends, and still not done.
  EXPECT_TRUE(Eventually([&] {
    const json status = Get(control::TrainingJobs(), "all")["status"];
    return status["replicaStatuses"]["worker"].value("succeeded", 0) == 1;
  }));
  EXPECT_NE(Condition("all", "Succeeded"), "True");
  EXPECT_NE(Condition("evaluated", "Succeeded"), "True");
  SetEnded("all-worker-1", 0);
  SetEnded("evaluated-evaluator-0", 0);
  EXPECT_TRUE(WaitForCondition("all", "Succeeded"));
  EXPECT_TRUE(WaitForCondition("evaluated", "Succeeded"));
}

TEST_F(PoliciesTest, AdoptsAndReleasesLeavingOtherOwnersInPlace) {
  StartOperator();
  Kubectl({"create", "configmap", "mine"});
  const std::string mine =
      Get({"", "v1", "configmaps"}, "mine")["metadata"]["uid"].get<std::string>();
  ApplyJob("mnist", 0, 2);
  ASSERT_TRUE(WaitForPods("mnist", 2));
  const std::set<std::string> before = Uids("mnist");
  // Somebody gives it another owner instead of its job.
  const json owner = {{"apiVersion", "v1"}, {"kind", "ConfigMap"}, {"name", "mine"}, {"uid", mine}};
  Kubectl({"patch", "pod", "mnist-worker-0", "--type=merge", "-p",
           json{{"metadata", {{"ownerReferences", json::array({owner})}}}}.dump()});
  EXPECT_TRUE(Eventually([&] {
    return Owners(kube::Pods(), "mnist-worker-0") == "TrainingJob ConfigMap ";
  })) << Owners(kube::Pods(), "mnist-worker-0");
  EXPECT_EQ(Uids("mnist"), before);
  Kubectl({"label", "pod", "mnist-worker-0", "--overwrite", "meshtrain.dev/job-name=other"});
  EXPECT_TRUE(Eventually([&] { return Owners(kube::Pods(), "mnist-worker-0") == "ConfigMap "; }))
      << Owners(kube::Pods(), "mnist-worker-0");
}

TEST_F(PoliciesTest, LabelsThatSomebodyTookAwayAreGivenBackAndNothingIsAskedForInACircle) {
  OperatorProcess& process = StartOperator();
  ApplyJob("mnist", 0, 2);
  Run("mnist", {"worker-0", "worker-1"});
  const std::string host = api().config().server.substr(std::string("https://").size());
  const std::set<std::string> before = Uids("mnist");
  const auto label = [&](const kube::Resource& resource, const std::string& name) {
    return Get(resource, name)["metadata"]["labels"].value("app.kubernetes.io/managed-by", "");
  };
  const auto conflicts = [&] {
    return std::max(0.0, process.Metric("rest_client_requests_total{code=\"409\",host=\"" + host +
                                        "\",method=\"POST\"}"));
  };
  const double asked = conflicts();
  Kubectl({"label", "service", "mnist", "app.kubernetes.io/managed-by-"});
  EXPECT_TRUE(Eventually([&] { return label(kube::Services(), "mnist") == "meshtrain-operator"; }));
  Kubectl({"label", "pod", "mnist-worker-1", "app.kubernetes.io/managed-by-"});
  EXPECT_TRUE(
      Eventually([&] { return label(kube::Pods(), "mnist-worker-1") == "meshtrain-operator"; }));
  EXPECT_EQ(Uids("mnist"), before);
  SystemClock().SleepFor(std::chrono::seconds(1), {});
  EXPECT_LE(conflicts() - asked, 6) << "creations of what is there";
  EXPECT_NE(Condition("mnist", "Failed"), "True");
}

TEST_F(PoliciesTest, DoesNotStartOnACrdOlderThanItself) {
  const std::string crd = "trainingjobs.meshtrain.dev";
  const std::string field =
      "/spec/versions/0/schema/openAPIV3Schema/properties/status/properties/security";
  api().Kubectl({"patch", "crd", crd, "--type=json",
                 "-p=" + json({{{"op", "remove"}, {"path", field}}}).dump()});
  OperatorProcess& refused = StartOperator(/*wait_until_leading=*/false);
  EXPECT_EQ(refused.Wait(std::chrono::seconds(30)), 78) << refused.Log();
  EXPECT_THAT(refused.Log(), HasSubstr("got: one without status.security"));
  EXPECT_THAT(refused.Log(), Not(HasSubstr("watching")));
  api().Kubectl({"apply", "--server-side", "--force-conflicts", "-f", "-"}, api::CrdJson());
  StartOperator();
}

TEST_F(PoliciesTest, MakesCertificatesOnceAndMountsThem) {
  StartOperator();
  const json program = nlohmann::json::parse(testing_support::kProgram);
  ApplyJob("mnist", 0, 2, {{"program", program}});
  ApplyJob("plain", 0, 2, {{"program", program}, {"security", "none"}});
  ApplyJob("tf", 0, 2);
  for (const char* name : {"mnist", "plain", "tf"}) ASSERT_TRUE(WaitForPods(name, 2));
  const kube::Resource secrets{"", "v1", "secrets"};
  const auto secret_of = [&](const char* name) {
    return cluster::TlsSecretName(name, UidOf(control::TrainingJobs(), name));
  };
  const std::string tls = secret_of("mnist");
  const json secret = Get(secrets, tls);
  ASSERT_TRUE(secret.is_object());
  EXPECT_EQ(secret["type"], "kubernetes.io/tls");
  EXPECT_EQ(secret["immutable"], true);
  EXPECT_EQ(Owners(secrets, tls), "TrainingJob ") << "it goes with the job";
  for (const char* file : {"ca.crt", "tls.crt", "tls.key"}) {
    EXPECT_GT(secret["data"][file].get<std::string>().size(), 200u) << file;
  }
  EXPECT_EQ(secret["data"].size(), 3u) << "not the authority's own key";
  EXPECT_FALSE(Get(secrets, secret_of("plain")).is_object());
  EXPECT_FALSE(Get(secrets, secret_of("tf")).is_object());
  for (const char* pod : {"mnist-worker-0", "mnist-worker-1"}) {
    const std::string spec = Get(kube::Pods(), pod)["spec"].dump();
    EXPECT_THAT(spec, HasSubstr("\"secretName\":\"" + tls + "\""));
    EXPECT_THAT(spec, HasSubstr("/etc/meshtrain/tls/tls.key"));
  }
  EXPECT_THAT(Get(kube::Pods(), "plain-worker-0")["spec"].dump(), Not(HasSubstr("meshtrain-tls")));
  EXPECT_EQ(Get(control::TrainingJobs(), "mnist")["status"]["security"], "mutualTLS");

  // Pods that are made again, by another operator too, mount the same.
  const std::string made = UidOf(secrets, tls), one = UidOf(kube::Pods(), "mnist-worker-1");
  StopOperators();
  StartOperator();
  SetRunning("mnist-worker-0");
  SetEnded("mnist-worker-1", 138);
  ASSERT_TRUE(Eventually([&] {
    const std::string now = UidOf(kube::Pods(), "mnist-worker-1");
    return !now.empty() && now != one;
  }));
  EXPECT_EQ(UidOf(secrets, tls), made);
  EXPECT_EQ(Get(secrets, tls)["data"], secret["data"]);
}

TEST_F(PoliciesTest, MakesTheTokenTheClaimAndTheClusterFile) {
  StartOperator();
  ApplyJob("mnist", 0, 2,
           {{"program", nlohmann::json::parse(testing_support::kProgram)},
            {"checkpoint",
             {{"path", "/checkpoints"},
              {"volumeClaimTemplate",
               {{"spec",
                 {{"accessModes", {"ReadWriteMany"}},
                  {"resources", {{"requests", {{"storage", "1Gi"}}}}}}}}}}}});
  ASSERT_TRUE(WaitForPods("mnist", 2));
  const std::string uid = Get(control::TrainingJobs(), "mnist")["metadata"]["uid"];
  const std::string token = cluster::TokenSecretName("mnist", uid);
  const json secret = Get({"", "v1", "secrets"}, token);
  ASSERT_TRUE(secret.is_object());
  EXPECT_EQ(secret["data"].begin()->get<std::string>().size(), 88u) << "64 digits in base64";
  EXPECT_EQ(Owners({"", "v1", "secrets"}, token), "TrainingJob ");
  const std::string claim = cluster::CheckpointClaimName("mnist", uid);
  EXPECT_EQ(Owners({"", "v1", "persistentvolumeclaims"}, claim), "TrainingJob ");
  const std::string volumes = Get(kube::Pods(), "mnist-worker-1")["spec"]["volumes"].dump();
  EXPECT_THAT(volumes, HasSubstr(token));
  EXPECT_THAT(volumes, HasSubstr(claim));

  // Long names make a large cluster of few pods, and a quota keeps most of those from being made.
  Kubectl({"create", "quota", "q", "--hard=pods=3"});
  ASSERT_TRUE(Eventually([&] {
    return TryKubectl({"get", "quota", "q", "-o", "jsonpath={.status.hard.pods}"}).out == "3";
  }));
  const std::string large(50, 'l');
  ApplyJob(large, 0, 900);
  json map;
  ASSERT_TRUE(Eventually([&] {
    std::vector<json> maps;
    const auto listed = api().client().List(
        {"", "v1", "configmaps"}, {.ns = ns_, .label_selector = "meshtrain.dev/job-name=" + large},
        [&](std::string_view item) { maps.push_back(json::parse(item)); }, [&] { maps.clear(); },
        {});
    if (listed.ok() && maps.size() == 1) map = maps[0];
    return maps.size() == 1;
  }));
  const json cluster = json::parse(map["data"].begin()->get<std::string>());
  EXPECT_EQ(cluster["cluster"]["worker"].size(), 900u);
  ASSERT_TRUE(WaitForPods(large, 1));
  EXPECT_THAT(Pods(large).at(0)["spec"]["volumes"].dump(),
              HasSubstr(map["metadata"]["name"].get<std::string>()));
}

}  // namespace
}  // namespace meshtrain::testing
