// Pods in a namespace that is held to Pod Security `restricted`, by the API server's own admission:
// every job of deploy/examples, as it stands.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "runtime/base/file.h"
#include "tests/integration/operator/operator_fixture.h"
#include "tests/support/small_program.h"

namespace meshtrain::testing {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;
using ::testing::Not;

class RestrictedTest : public OperatorTest {
 protected:
  void SetUp() override {
    OperatorTest::SetUp();
    if (IsSkipped()) return;
    for (const char* mode : {"enforce", "warn", "audit"}) {
      Kubectl({"label", "namespace", ns_,
               std::string("pod-security.kubernetes.io/") + mode + "=restricted"});
    }
  }
  size_t Wanted(const json& job) {
    size_t count = 0;
    for (const json& replica : job["spec"]["replicaSpecs"]) count += replica["replicas"].get<int>();
    return count;
  }
  json Claim(const json& pod, const std::string& path) {
    for (const json& mount : pod["spec"]["containers"][0]["volumeMounts"]) {
      if (mount["mountPath"] != path) continue;
      for (const json& volume : pod["spec"]["volumes"]) {
        if (volume["name"] == mount["name"]) {
          return {{"claim", volume["persistentVolumeClaim"]["claimName"]},
                  {"readOnly", mount.value("readOnly", false)}};
        }
      }
    }
    return {};
  }
};

TEST_F(RestrictedTest, TakesEveryExampleAsItStands) {
  OperatorProcess& process = StartOperator();
  int examples = 0;
  for (const auto& file :
       std::filesystem::directory_iterator(std::string(MT_SOURCE_DIR) + "/deploy/examples")) {
    if (file.path().extension() != ".yaml") continue;
    SCOPED_TRACE(file.path());
    ++examples;
    const std::string applied = Kubectl({"apply", "-f", file.path()});
    EXPECT_THAT(applied, Not(HasSubstr("Warning")));
    const std::string name =
        applied.substr(applied.find('/') + 1, applied.find(' ') - applied.find('/') - 1);
    const json job = Get(control::TrainingJobs(), name);
    ASSERT_TRUE(job.is_object()) << applied;
    EXPECT_TRUE(WaitForPods(name, Wanted(job))) << Message(name, "Waiting");
    for (const json& pod : Pods(name)) {
      // The same once more by the server, so that warnings are seen too.
      json again = pod;
      again["apiVersion"] = "v1";
      again["kind"] = "Pod";
      again["metadata"] = {{"name", "again"}, {"namespace", ns_}};
      again.erase("status");
      EXPECT_THAT(Kubectl({"create", "--dry-run=server", "-f", "-"}, again.dump()),
                  Not(HasSubstr("Warning")));
    }
  }
  EXPECT_GE(examples, 4);
  EXPECT_THAT(process.Log(), Not(HasSubstr("violates PodSecurity")));
  // The quickstart's job, beside claims that hold its data and take what it leaves.
  const json leader = Get(kube::Pods(), "mnist-mlp-worker-0");
  EXPECT_EQ(Claim(leader, "/work/data"), json({{"claim", "mnist-data"}, {"readOnly", true}}));
  EXPECT_EQ(Claim(leader, "/work/output"), json({{"claim", "mnist-runs"}, {"readOnly", false}}));
}

// The test of the test: what an image of one's own does not say is refused, and the job says so.
TEST_F(RestrictedTest, RefusesATemplateThatSaysNothingAndTheJobTellsWhy) {
  StartOperator();
  ApplyJob("plain", 0, 1);
  EXPECT_TRUE(WaitForCondition("plain", "Waiting"));
  EXPECT_TRUE(Eventually([&] {
    return Message("plain", "Waiting").find("violates PodSecurity") != std::string::npos;
  })) << Message("plain", "Waiting");
  EXPECT_TRUE(Pods("plain").empty());
}

TEST_F(RestrictedTest, WhoMayNotMakeClaimsMakesNoneThroughAJob) {
  Kubectl({"create", "role", "trainer", "--verb=create,patch,get,list,watch",
           "--resource=pods,trainingjobs.meshtrain.dev"});
  Kubectl({"create", "rolebinding", "trainer", "--role=trainer", "--user=ann"});
  const auto job = [](bool makes) {
    json checkpoint = {{"path", "/c"}};
    if (makes) {
      checkpoint["volumeClaimTemplate"] = {{"spec",
                                            {{"accessModes", {"ReadWriteOnce"}},
                                             {"resources", {{"requests", {{"storage", "1Gi"}}}}}}}};
    }
    return json{{"apiVersion", "meshtrain.dev/v1"},
                {"kind", "TrainingJob"},
                {"metadata", {{"name", "mnist"}}},
                {"spec",
                 {{"replicaSpecs", {{"worker", {{"replicas", 1}}}}},
                  {"program", json::parse(testing_support::kProgram)},
                  {"checkpoint", checkpoint}}}}
        .dump();
  };
  // A policy takes a moment to be in force.
  ASSERT_TRUE(Eventually([&] {
    return TryKubectl({"create", "--as=ann", "--dry-run=server", "-f", "-"}, job(true)).exit_code !=
           0;
  }));
  EXPECT_THAT(TryKubectl({"create", "--as=ann", "--dry-run=server", "-f", "-"}, job(true)).out,
              HasSubstr("needs the right to create persistentvolumeclaims"));
  EXPECT_EQ(TryKubectl({"create", "--as=ann", "--dry-run=server", "-f", "-"}, job(false)).exit_code,
            0);
}

}  // namespace
}  // namespace meshtrain::testing
