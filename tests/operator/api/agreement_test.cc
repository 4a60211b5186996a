// A real API server with our CRD and `Validate` say the same of every manifest: refused or not, in
// the same words, and with the same defaults.
#include <gtest/gtest.h>

#include "operator/api/crd.h"
#include "operator/api/json.h"
#include "operator/api/rules.h"
#include "tests/operator/api/manifest_cases.h"
#include "tests/support/api_server.h"

namespace meshtrain::api {
namespace {

using cases::Manifest;
using cases::One;
using cases::Roles;
using cases::Template;

const kube::Resource kJobs{"meshtrain.dev", "v1", "trainingjobs"};

class AgreementTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    std::string why;
    if (!meshtrain::testing::ApiServer::Available(&why)) return;
    auto server = meshtrain::testing::ApiServer::Start(/*controllers=*/false);
    ASSERT_TRUE(server.ok()) << server.status().ToString();
    server_ = std::move(*server);
    const auto applied = server_->Kubectl({"apply", "--server-side", "-f", "-"}, CrdYaml());
    ASSERT_EQ(applied.exit_code, 0) << applied.out;
    const auto ready = server_->Kubectl(
        {"wait", "--for=condition=established", "--timeout=30s", "crd/trainingjobs.meshtrain.dev"});
    ASSERT_EQ(ready.exit_code, 0) << ready.out;
    // The rules on changes that a schema cannot say.
    const auto policy = server_->Kubectl(
        {"apply", "-f", std::string(MT_SOURCE_DIR) + "/deploy/base/admission-policy.yaml"});
    ASSERT_EQ(policy.exit_code, 0) << policy.out;
  }
  static void TearDownTestSuite() { server_.reset(); }
  void SetUp() override {
    std::string why;
    if (!meshtrain::testing::ApiServer::Available(&why)) GTEST_SKIP() << why;
    ASSERT_NE(server_, nullptr);
  }

  static Result<std::string> Create(const std::string& json) {
    return server_->client().Create(kJobs, "default", json, {});
  }
  static void Delete(const std::string& name) {
    ASSERT_TRUE(server_->client().Delete(kJobs, "default", name, {}, {}).ok());
  }
  // A policy takes a moment to be in force after it was created.
  static void WaitForPolicy() {
    ASSERT_TRUE(Create(*YamlToJson(Manifest(Roles(One("worker", 1)), "probe"))).ok());
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(30);
    bool refused = false;
    while (!refused && std::chrono::steady_clock::now() < end) {
      refused = server_
                    ->Kubectl({"patch", "tj", "probe", "--dry-run=server", "--type=merge", "-p",
                               R"({"spec":{"program":{"seed":3}}})"})
                    .exit_code != 0;
    }
    Delete("probe");
    ASSERT_TRUE(refused) << "the policy is not in force";
  }
  static std::unique_ptr<meshtrain::testing::ApiServer> server_;
};
std::unique_ptr<meshtrain::testing::ApiServer> AgreementTest::server_;

// The words of a rule, without the value that only our side prints.
std::string Words(const FieldError& error) {
  return error.message.substr(0, error.message.find(", got: "));
}

TEST_F(AgreementTest, ServerAndValidateSayTheSameOfEveryManifest) {
  for (const cases::Case& c : cases::kCases) {
    SCOPED_TRACE(c.name);
    const std::string json = *YamlToJson(Manifest(c.spec, c.job));
    const TrainingJob ours = *FromJson(json);
    std::vector<FieldError> errors = Validate(ours);
    // The server prunes unknown fields, and cannot add up host names within CEL's budget.
    std::erase_if(errors,
                  [](const FieldError& e) { return e.message.starts_with("is not a field"); });
    std::erase_if(errors, [](const FieldError& e) {
      return e.message.starts_with("must keep the list of all hosts");
    });
    const auto stored = Create(json);
    EXPECT_EQ(stored.ok(), errors.empty())
        << (stored.ok() ? "accepted" : stored.status().ToString());
    if (stored.ok()) {
      // Its defaults are ours.
      EXPECT_EQ(FromJson(*stored)->spec, ours.spec) << *stored;
      Delete(c.job);
    } else {
      for (const FieldError& error : errors) {
        EXPECT_NE(stored.status().message().find(Words(error)), std::string::npos)
            << ToString(error) << "\n"
            << stored.status().message();
      }
    }
  }
}

TEST_F(AgreementTest, ServerAndValidateUpdateNameTheSameImmutableFields) {
  const std::string base =
      Roles(One("worker", 1) + "," + One("ps", 1)) +
      ", strategy: ParameterServer, checkpoint: {path: /a}, runPolicy: {managedBy: "
      "meshtrain.dev/operator, schedulingPolicy: {queue: a}}";
  const auto replaced = [&](const std::string& from, const std::string& to) {
    std::string out = base;
    const size_t at = out.find(from);
    EXPECT_NE(at, std::string::npos) << from;
    return out.replace(at, from.size(), to);
  };
  const std::string changes[] = {
      replaced("worker: {replicas: 1", "worker: {replicas: 4"),
      replaced("runPolicy: {", "runPolicy: {suspend: true, "),
      replaced(", strategy: ParameterServer", ""),
      replaced("ps: {replicas: 1", "ps: {replicas: 2"),
      replaced("worker: {", "chief: {"),
      replaced("meshtrain.dev/operator", "me"),
      replaced("queue: a", "queue: b"),
      replaced("path: /a", "path: /b"),
      replaced("image: i", "image: j"),
      replaced("image: i", "image: i, command: [a]"),
      replaced("{containers", "{nodeSelector: {pool: a}, containers"),
      // Beside a suspension, as Kueue does.
      [&] {
        std::string out = replaced("image: i", "image: j");
        return out.replace(out.find("runPolicy: {"), 12, "runPolicy: {suspend: true, ");
      }(),
      base + ", program: {seed: 2}",
      base + ", security: none",
      base + ", claims: [{name: a, path: data}]",
      base + ", output: {claim: a}",
      base + ", successPolicy: AllWorkers",
      base + ", tfConfig: {compat: kubeflow-v1}",
  };
  WaitForPolicy();
  for (const std::string& change : changes) {
    SCOPED_TRACE(change);
    const auto stored = Create(*YamlToJson(Manifest(base, "mnist")));
    ASSERT_TRUE(stored.ok()) << stored.status().ToString();
    TrainingJob after = *FromJson(*YamlToJson(Manifest(change, "mnist")));
    const auto errors = ValidateUpdate(*FromJson(*stored), after);
    after.metadata.resource_version = FromJson(*stored)->metadata.resource_version;
    const auto updated = server_->client().Update(kJobs, "default", "mnist", ToJson(after), {});
    EXPECT_EQ(updated.ok(), errors.empty()) << updated.status().ToString();
    for (const FieldError& error : errors) {
      EXPECT_NE(updated.status().message().find(Words(error)), std::string::npos)
          << ToString(error);
    }
    Delete("mnist");
  }
}

// A job that stands still takes another template and another program, and runs with them.
TEST_F(AgreementTest, ASuspendedJobTakesAnotherTemplate) {
  WaitForPolicy();
  const std::string roles = Roles("worker: {" + Template() + "}");
  ASSERT_TRUE(Create(*YamlToJson(Manifest(
                         roles + ", program: {seed: 1}, runPolicy: {suspend: true}", "mnist")))
                  .ok());
  std::string other =
      Manifest(roles + ", program: {seed: 2}, runPolicy: {suspend: false}", "mnist");
  other.replace(other.find("image: i"), 8, "image: j");
  const auto applied =
      server_->Kubectl({"apply", "--server-side", "--force-conflicts", "-f", "-"}, other);
  EXPECT_EQ(applied.exit_code, 0) << applied.out;
  Delete("mnist");
}

// Who may change jobs, but not make pods, changes nothing of what the pods run.
TEST_F(AgreementTest, WhoMayNotCreatePodsChangesNothingThatTheyRun) {
  WaitForPolicy();
  const auto kubectl = [](std::vector<std::string> args) {
    const auto result = server_->Kubectl(std::move(args));
    EXPECT_EQ(result.exit_code, 0) << result.out;
  };
  kubectl({"create", "role", "jobs", "--verb=create,get,patch,update",
           "--resource=trainingjobs.meshtrain.dev"});
  kubectl({"create", "rolebinding", "jobs", "--role=jobs", "--user=mallory"});
  ASSERT_TRUE(
      Create(*YamlToJson(Manifest(
                 Roles("worker: {" + Template() + "}") + ", runPolicy: {suspend: true}", "mnist")))
          .ok());
  const auto patch = [](const std::string& spec) {
    return server_->Kubectl(
        {"patch", "tj", "mnist", "--as=mallory", "--type=json", "-p", "[" + spec + "]"});
  };
  const std::string at = R"({"op":"add","path":"/spec/replicaSpecs/worker/template/spec/)";
  const std::string meta =
      R"({"op":"add","path":"/spec/replicaSpecs/worker/template/metadata","value":)";
  for (const std::string& change :
       {at + R"(containers/0/command","value":["sh"]})", at + R"(hostNetwork","value":true})",
        at + R"(serviceAccountName","value":"admin"})",
        // A Service finds pods by their labels; webhooks and agents obey annotations.
        meta + R"({"labels":{"app":"shop"}}})",
        meta + R"({"annotations":{"sidecar.istio.io/inject":"false"}}})",
        std::string(R"({"op":"add","path":"/spec/security","value":"none"})"),
        std::string(R"({"op":"add","path":"/spec/program","value":{"seed":1}})")}) {
    const auto refused = patch(change);
    EXPECT_NE(refused.exit_code, 0) << change;
    EXPECT_NE(refused.out.find("needs the right to create pods"), std::string::npos) << refused.out;
  }
  // A queue that admits jobs of others chooses their nodes and resumes them.
  const auto admitted = patch(at + R"(nodeSelector","value":{"pool":"a"}},)" + at +
                              R"(tolerations","value":[{"operator":"Exists"}]},)" +
                              R"({"op":"replace","path":"/spec/runPolicy/suspend","value":false})");
  EXPECT_EQ(admitted.exit_code, 0) << admitted.out;
  Delete("mnist");
}

// Nor does who may only change and scale jobs make more pods of them than they could have.
TEST_F(AgreementTest, WhoMayNotCreatePodsGivesAJobNoMoreOfThem) {
  WaitForPolicy();
  const auto kubectl = [](std::vector<std::string> args) {
    const auto result = server_->Kubectl(std::move(args));
    EXPECT_EQ(result.exit_code, 0) << result.out;
  };
  kubectl({"create", "role", "sizes", "--verb=get,patch,update",
           "--resource=trainingjobs.meshtrain.dev,trainingjobs.meshtrain.dev/scale"});
  kubectl({"create", "rolebinding", "sizes", "--role=sizes", "--user=trudy",
           "--serviceaccount=kube-system:horizontal-pod-autoscaler"});
  ASSERT_TRUE(Create(*YamlToJson(Manifest(Roles("worker: {replicas: 3, " + Template() + "}") +
                                              ", elastic: {minReplicas: 1, maxReplicas: 4}, "
                                              "runPolicy: {suspend: true}",
                                          "mnist")))
                  .ok());
  const auto patch = [](const std::string& spec) {
    return server_->Kubectl(
        {"patch", "tj", "mnist", "--as=trudy", "--type=merge", "-p", R"({"spec":)" + spec + "}"});
  };
  const auto scale = [](int workers, const std::string& user) {
    return server_->Kubectl(
        {"scale", "tj/mnist", "--replicas=" + std::to_string(workers), "--as=" + user});
  };
  const std::string autoscaler = "system:serviceaccount:kube-system:horizontal-pod-autoscaler";
  // The rule on scaling takes a moment of its own to be in force.
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(30);
  while (scale(4, "trudy").exit_code == 0 && std::chrono::steady_clock::now() < end) {
    EXPECT_EQ(scale(3, "trudy").exit_code, 0);
  }
  for (const auto& refused :
       {scale(4, "trudy"), patch(R"({"elastic":{"maxReplicas":9}})"),
        patch(R"({"elastic":null,"replicaSpecs":{"worker":{"replicas":350}}})")}) {
    EXPECT_NE(refused.exit_code, 0);
    EXPECT_NE(refused.out.find("more pods needs the right to create pods"), std::string::npos)
        << refused.out;
  }
  for (const auto& taken : {scale(4, autoscaler), scale(2, "trudy"),
                            patch(R"({"replicaSpecs":{"worker":{"replicas":4}}})"),
                            patch(R"({"elastic":{"maxReplicas":4,"minReplicas":2}})")}) {
    EXPECT_EQ(taken.exit_code, 0) << taken.out;
  }
  Delete("mnist");
}

TEST_F(AgreementTest, KubectlExplainsAndScales) {
  const auto explained = server_->Kubectl({"explain", "trainingjob.spec.runPolicy.backoffLimit"});
  EXPECT_NE(explained.out.find("one incident counts once"), std::string::npos) << explained.out;
  ASSERT_TRUE(Create(*YamlToJson(Manifest(Roles(One("worker", 1)), "fixed"))).ok());
  const auto refused = server_->Kubectl({"scale", "tj/fixed", "--replicas=3"});
  EXPECT_NE(refused.exit_code, 0);
  EXPECT_NE(refused.out.find("elastic"), std::string::npos) << refused.out;
  Delete("fixed");
  ASSERT_TRUE(
      Create(*YamlToJson(Manifest(
                 Roles(One("worker", 1)) + ", elastic: {minReplicas: 1, maxReplicas: 4}", "mnist")))
          .ok());
  const auto scaled = server_->Kubectl({"scale", "tj/mnist", "--replicas=3"});
  EXPECT_EQ(scaled.exit_code, 0) << scaled.out;
  const auto got = server_->client().Get(kJobs, "default", "mnist", {});
  ASSERT_TRUE(got.ok());
  EXPECT_EQ(Replicas(FromJson(*got)->spec, cluster::Role::kWorker), 3);
}

}  // namespace
}  // namespace meshtrain::api
