// What the operator asks of a real API server while the world stands still, or is not what it
// seems: names that a predecessor still holds, objects that do not go, watches that tell nothing.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "tests/integration/operator/proxy_fixture.h"
#include "tests/support/small_program.h"

namespace meshtrain::testing {
namespace {

using nlohmann::json;
using ::testing::IsEmpty;

class HarmTest : public ProxyTest {
 protected:
  // Merge-patches a pod, status or not.
  void PatchPod(const std::string& pod, const json& patch, const std::string& subresource = "") {
    const auto patched = api().client().Patch(kube::Pods(), ns_, pod, subresource,
                                              kube::PatchType::kMerge, patch.dump(), {});
    EXPECT_TRUE(patched.ok()) << patched.status().ToString();
  }
  std::string UidOf(const kube::Resource& resource, const std::string& name) {
    const json object = Get(resource, name);
    return object.is_null() ? "" : object["metadata"]["uid"].get<std::string>();
  }
  static std::string Owner(const json& object) {
    for (const json& owner : object["metadata"].value("ownerReferences", json::array())) {
      if (owner.value("controller", false)) return owner["uid"];
    }
    return "";
  }
  // The controller of a pod; "" where there is none.
  std::string OwnerOf(const std::string& pod) {
    const json object = Get(kube::Pods(), pod);
    return object.is_null() ? "" : Owner(object);
  }
  // Writes on objects whose path or body names `name`, as "METHOD target".
  std::vector<ApiProxy::Call> WritesOn(const std::string& name) {
    std::vector<ApiProxy::Call> out;
    for (const ApiProxy::Call& call : proxy_->calls()) {
      const bool its = call.target.find('/' + name) != std::string::npos ||
                       call.body.find("\"name\":\"" + name + '"') != std::string::npos;
      if (call.IsWrite() && its) out.push_back(call);
    }
    return out;
  }
  void MakeNode(const std::string& name) {
    const json node = {{"apiVersion", "v1"},
                       {"kind", "Node"},
                       {"metadata", {{"name", name}}},
                       {"status", {{"conditions", {{{"type", "Ready"}, {"status", "True"}}}}}}};
    Kubectl({"create", "-f", "-"}, node.dump());
    const json ready = {{"status", node["status"]}};
    ASSERT_TRUE(
        api()
            .client()
            .Patch(kube::Nodes(), "", name, "status", kube::PatchType::kMerge, ready.dump(), {})
            .ok());
  }
  // The scheduler's part.
  void Bind(const std::string& pod, const std::string& node) {
    const json binding = {{"apiVersion", "v1"},
                          {"kind", "Binding"},
                          {"metadata", {{"name", pod}}},
                          {"target", {{"apiVersion", "v1"}, {"kind", "Node"}, {"name", node}}}};
    Kubectl(
        {"create", "--raw", "/api/v1/namespaces/" + ns_ + "/pods/" + pod + "/binding", "-f", "-"},
        binding.dump());
  }
  // The kubelet's part, once a pod's processes have ended.
  void Finish(const std::string& pod) {
    TryKubectl({"delete", "pod", pod, "--grace-period=0", "--force", "--wait=false"});
  }
  int64_t Deletions(const std::string& pod) {
    return proxy_->Count([&](const ApiProxy::Call& call) {
      return call.method == "DELETE" && call.target.find("/pods/" + pod) != std::string::npos;
    });
  }
  void TearDown() override {
    if (proxy_) ExpectNothingRepeatedWithinASecond();
    ProxyTest::TearDown();
  }
  // Whatever a test does, no write that was answered is sent again within a second.
  void ExpectNothingRepeatedWithinASecond() {
    std::map<std::string, std::chrono::steady_clock::time_point> last;
    std::vector<ApiProxy::Call> calls = proxy_->calls();
    std::sort(calls.begin(), calls.end(), [](const auto& a, const auto& b) { return a.at < b.at; });
    for (const ApiProxy::Call& call : calls) {
      if (!call.IsWrite() || call.status >= 500) continue;
      const std::string what = call.method + " " + call.target + " " + call.body;
      const auto at = last.find(what);
      if (at != last.end()) {
        EXPECT_GE(call.at - at->second, std::chrono::milliseconds(950)) << what;
      }
      last[what] = call.at;
    }
  }
  // Another job that comes, is seen to and has nothing left to write: whatever would have been
  // written meanwhile has been.
  void Settle() {
    const std::string name = "settle-" + std::to_string(++settled_);
    ApplyJob(name, 0, 1);
    ASSERT_TRUE(WaitForPods(name, 1));
    ASSERT_TRUE(WaitForCondition(name, "Created"));
  }
  int settled_ = 0;
};

TEST_F(HarmTest, ANewJobTakesItsNamesWhenTheLastPodOfTheOneBeforeIsGone) {
  ASSERT_NO_FATAL_FAILURE(Run());
  // The claim of a former job is held as long as one of its pods is there.
  const json spec = {{"checkpoint",
                      {{"path", "/c"},
                       {"volumeClaimTemplate",
                        {{"spec",
                          {{"accessModes", {"ReadWriteMany"}},
                           {"resources", {{"requests", {{"storage", "1Gi"}}}}}}}}}}}};
  ApplyJob("mnist", 0, 3, spec);
  ASSERT_TRUE(WaitForPods("mnist", 3));
  const std::string before = UidOf(control::TrainingJobs(), "mnist");
  for (int i = 0; i < 3; ++i) Bind("mnist-worker-" + std::to_string(i), "n1");
  PatchPod("mnist-worker-1", {{"metadata", {{"finalizers", {"example.com/wait"}}}}});
  Kubectl({"delete", "tj", "mnist"});
  ApplyJob("mnist", 0, 3, spec);
  const std::string after = UidOf(control::TrainingJobs(), "mnist");
  ASSERT_NE(before, after);
  ASSERT_TRUE(Eventually([&] {
    const json pod = Get(kube::Pods(), "mnist-worker-1");
    return !pod.is_null() && pod["metadata"].contains("deletionTimestamp");
  }));
  for (const char* pod : {"mnist-worker-0", "mnist-worker-1", "mnist-worker-2"}) Finish(pod);
  ASSERT_TRUE(WaitForCondition("mnist", "Waiting"));
  EXPECT_EQ(OwnerOf("mnist-worker-1"), before);
  Settle();
  const double retries = alone_->Metric("workqueue_retries_total");
  PatchPod("mnist-worker-1", {{"metadata", {{"finalizers", nullptr}}}});
  EXPECT_TRUE(Eventually([&] {
    return OwnerOf("mnist-worker-0") == after && OwnerOf("mnist-worker-1") == after &&
           OwnerOf("mnist-worker-2") == after;
  }));
  EXPECT_EQ(alone_->Metric("workqueue_retries_total"), retries)
      << "the end of the pod was the reason, no timer";
  EXPECT_TRUE(Eventually([&] { return Condition("mnist", "Waiting") == "False"; }));
}

TEST_F(HarmTest, APodThatDoesNotGoFromANodeThatIsGoneIsAskedForOnce) {
  ASSERT_NO_FATAL_FAILURE(Run(/*everywhere=*/true));
  MakeNode("gone-1");
  ApplyJob("mnist", 0, 2);
  ASSERT_TRUE(WaitForPods("mnist", 2));
  for (const char* pod : {"mnist-worker-0", "mnist-worker-1"}) {
    Bind(pod, "gone-1");
    SetRunning(pod);
  }
  ASSERT_TRUE(WaitForCondition("mnist", "Running"));
  PatchPod("mnist-worker-1", {{"metadata", {{"finalizers", {"example.com/wait"}}}}});
  Settle();
  Kubectl({"delete", "node", "gone-1"});
  ASSERT_TRUE(Eventually([&] { return Deletions("mnist-worker-1") > 0; }));
  MakeNode("other");  // news of nodes, but not of this one
  ASSERT_TRUE(Eventually([&] {
    const json pod = Get(kube::Pods(), "mnist-worker-0");
    return !pod.is_null() && !pod["spec"].contains("nodeName");
  })) << "the other one is made again";
  Settle();
  // Once when its node was found gone; once more where its own answer to that brought news.
  EXPECT_LE(Deletions("mnist-worker-1"), 2);
  const int64_t before = Deletions("mnist-worker-1");
  for (int i = 0; i < 3; ++i) Settle();
  EXPECT_EQ(Deletions("mnist-worker-1"), before);
  PatchPod("mnist-worker-1", {{"metadata", {{"finalizers", nullptr}}}});
  EXPECT_TRUE(WaitForPods("mnist", 2));
}

TEST_F(HarmTest, WhileTheWatchOfPodsTellsNothingEachIsMadeOnce) {
  ASSERT_NO_FATAL_FAILURE(Run());
  proxy_->HoldWatches("pods");
  ApplyJob("mnist", 0, 3);
  ASSERT_TRUE(WaitForPods("mnist", 3));
  ASSERT_TRUE(WaitForCondition("mnist", "Created"));
  for (int i = 0; i < 3; ++i) Settle();
  int64_t creations = 0;
  for (const ApiProxy::Call& call : proxy_->calls()) {
    creations += call.IsWrite() && call.method == "POST" && call.OnPods() &&
                 call.body.find("\"mnist-worker-") != std::string::npos;
  }
  EXPECT_EQ(creations, 3);
  proxy_->LetWatchesGo();
  for (int i = 0; i < 3; ++i) SetRunning("mnist-worker-" + std::to_string(i));
  EXPECT_TRUE(WaitForCondition("mnist", "Running"));
}

TEST_F(HarmTest, APodGroupThatDoesNotGoIsAskedForOnce) {
  const kube::Resource groups = {"scheduling.volcano.sh", "v1beta1", "podgroups"};
  Kubectl(
      {"apply", "-f",
       std::string(MT_SOURCE_DIR) + "/tests/testdata/crds/scheduling.volcano.sh_podgroups.yaml"});
  AwaitCrd("podgroups.scheduling.volcano.sh");
  const CommandResult rights =
      api().Helm({"template", "meshtrain", std::string(MT_SOURCE_DIR) + "/helm/meshtrain",
                  "--namespace", "meshtrain-system", "--kube-version", "v1.34.0", "--set",
                  "gangScheduler=volcano", "-s", "templates/rbac.yaml"});
  ASSERT_EQ(rights.exit_code, 0) << rights.out;
  ASSERT_EQ(api().Kubectl({"apply", "-f", "-"}, rights.out).exit_code, 0);
  ASSERT_NO_FATAL_FAILURE(Run(/*everywhere=*/false, {"--gang-scheduler", "volcano"}));
  const auto admit = [&](const std::string& job, const json& metadata) {
    ASSERT_TRUE(Eventually([&] { return !Get(groups, job).is_null(); }));
    const json patch = {{"metadata", metadata}, {"status", {{"phase", "Inqueue"}}}};
    ASSERT_TRUE(
        api().client().Patch(groups, ns_, job, "", kube::PatchType::kMerge, patch.dump(), {}).ok());
    ASSERT_TRUE(WaitForPods(job, 1));
  };
  ApplyJob("mnist", 0, 1);
  admit("mnist", {{"finalizers", {"example.com/wait"}}});
  SetRunning("mnist-worker-0");
  ASSERT_TRUE(WaitForCondition("mnist", "Running"));
  SetEnded("mnist-worker-0", 0);
  ASSERT_TRUE(WaitForCondition("mnist", "Succeeded"));
  const auto deletions = [&] {
    return proxy_->Count([](const ApiProxy::Call& call) {
      return call.method == "DELETE" && call.target.find("/podgroups/mnist") != std::string::npos;
    });
  };
  ASSERT_TRUE(Eventually([&] { return deletions() > 0; }));
  // Another job lives meanwhile: whatever would have been asked again has been.
  ApplyJob("other", 0, 1);
  admit("other", json::object());
  ASSERT_TRUE(WaitForCondition("other", "Created"));
  EXPECT_LE(deletions(), 2);
  EXPECT_FALSE(Get(groups, "mnist").is_null());
}

TEST_F(HarmTest, NoOrphanIsAdoptedForAJobThatIsBeingDeleted) {
  ASSERT_NO_FATAL_FAILURE(Run());
  ApplyJob("mnist", 0, 2);
  ASSERT_TRUE(WaitForPods("mnist", 2));
  for (const char* pod : {"mnist-worker-0", "mnist-worker-1"}) SetRunning(pod);
  ASSERT_TRUE(WaitForCondition("mnist", "Running"));
  proxy_->HoldWatches("trainingjobs");
  Kubectl({"delete", "tj", "mnist", "--cascade=orphan", "--wait=false"});
  // The garbage collector's part, which it plays too, but not at once.
  for (const char* pod : {"mnist-worker-0", "mnist-worker-1"}) {
    PatchPod(pod, {{"metadata", {{"ownerReferences", nullptr}}}});
  }
  // The operator sees pods without an owner, and of the job only that it is there. It looks at
  // once.
  const auto asked = [&] {
    return proxy_->Count([](const ApiProxy::Call& call) {
      return call.method == "GET" && call.target.ends_with("/trainingjobs/mnist");
    });
  };
  EXPECT_TRUE(Eventually([&] { return asked() > 0; })) << "it reads the job first";
  proxy_->LetWatchesGo();
  Settle();
  for (const ApiProxy::Call& call : proxy_->calls()) {
    EXPECT_FALSE(call.method == "PATCH" && call.OnPods()) << call.target << " " << call.body;
  }
  EXPECT_EQ(Pods("mnist").size(), 2u);
  EXPECT_LE(asked(), 2);
}

TEST_F(HarmTest, ATokenThatSomebodyDeletedIsMadeAgainAndAllRestartTogether) {
  ASSERT_NO_FATAL_FAILURE(Run());
  ApplyJob("mnist", 0, 2, {{"program", nlohmann::json::parse(testing_support::kProgram)}});
  ASSERT_TRUE(WaitForPods("mnist", 2));
  for (const char* pod : {"mnist-worker-0", "mnist-worker-1"}) SetRunning(pod);
  ASSERT_TRUE(WaitForCondition("mnist", "Running"));
  const std::string token =
      cluster::TokenSecretName("mnist", UidOf(control::TrainingJobs(), "mnist"));
  const std::string first = UidOf({"", "v1", "secrets"}, token);
  ASSERT_NE(first, "");
  const std::string zero = UidOf(kube::Pods(), "mnist-worker-0");
  Kubectl({"delete", "secret", token});
  // The next pod that is to be made shows it.
  SetEnded("mnist-worker-1", 138);
  ASSERT_TRUE(Eventually([&] {
    const std::string now = UidOf({"", "v1", "secrets"}, token);
    return !now.empty() && now != first;
  })) << alone_->Log();
  EXPECT_TRUE(Eventually([&] {
    const std::string now = UidOf(kube::Pods(), "mnist-worker-0");
    return !now.empty() && now != zero;
  })) << "the other one holds the former token";
  EXPECT_TRUE(WaitForPods("mnist", 2));
  EXPECT_TRUE(Eventually([&] {
    return TryKubectl({"get", "events"}).out.find("ChildLost") != std::string::npos;
  }));
}

TEST_F(HarmTest, AForeignSecretOfATokensFormerNameIsNobodysBusiness) {
  Kubectl({"create", "secret", "generic", "mnist-token", "--from-literal=token=theirs"});
  ASSERT_NO_FATAL_FAILURE(Run());
  ApplyJob("mnist", 0, 1, {{"program", nlohmann::json::parse(testing_support::kProgram)}});
  ASSERT_TRUE(WaitForPods("mnist", 1));
  const std::string volumes = Get(kube::Pods(), "mnist-worker-0")["spec"]["volumes"].dump();
  EXPECT_EQ(volumes.find("\"mnist-token\""), std::string::npos) << volumes;
}

// An API server whose nodes lie in an etcd of their own, with revisions of its own.
class SecondEtcdTest : public HarmTest {
 protected:
  static void SetUpTestSuite() {
    setenv("ETCD_OVERRIDE", "/nodes", 1);
    OperatorTest::SetUpTestSuite();
    unsetenv("ETCD_OVERRIDE");
  }
  int64_t Version(const kube::Resource& resource) {
    const auto version = api().client().Version(resource, "", {});
    EXPECT_TRUE(version.ok()) << version.status().ToString();
    return version.ok() ? std::stoll(*version) : 0;
  }
};

TEST_F(SecondEtcdTest, VersionsOfNodesAndOfPodsAreNeverCompared) {
  ASSERT_NO_FATAL_FAILURE(Run(/*everywhere=*/true));
  MakeNode("a");
  // Nodes far behind pods: one that is gone is found gone all the same.
  ApplyJob("behind", 0, 1);
  ASSERT_TRUE(WaitForPods("behind", 1));
  ASSERT_LT(Version(kube::Nodes()), Version(kube::Pods()));
  Bind("behind-worker-0", "a");
  SetRunning("behind-worker-0");
  ASSERT_TRUE(WaitForCondition("behind", "Running"));
  const std::string first = UidOf(kube::Pods(), "behind-worker-0");
  Kubectl({"delete", "node", "a"});
  EXPECT_TRUE(Eventually([&] {
    const std::string now = UidOf(kube::Pods(), "behind-worker-0");
    return !now.empty() && now != first;
  }));
  // Nodes far ahead of pods: one that is there is not taken for gone, though its watch is late.
  MakeNode("b");
  const int64_t ahead = Version(kube::Pods()) + 500;
  for (int i = 0; Version(kube::Nodes()) < ahead; i += 50) {
    for (int k = i; k < i + 50; ++k) {
      const json patch = {{"metadata", {{"annotations", {{"n", std::to_string(k)}}}}}};
      ASSERT_TRUE(api()
                      .client()
                      .Patch(kube::Nodes(), "", "b", "", kube::PatchType::kMerge, patch.dump(), {})
                      .ok());
    }
  }
  ApplyJob("ahead", 0, 1);
  ASSERT_TRUE(WaitForPods("ahead", 1));
  Settle();
  proxy_->HoldWatches("nodes");
  MakeNode("c");
  Bind("ahead-worker-0", "c");
  SetRunning("ahead-worker-0");
  ASSERT_TRUE(WaitForCondition("ahead", "Running"));
  Settle();
  EXPECT_EQ(Deletions("ahead-worker-0"), 0);
  proxy_->LetWatchesGo();
  Settle();
  EXPECT_EQ(Deletions("ahead-worker-0"), 0);
}

class RestoreTest : public HarmTest {};

TEST_F(RestoreTest, AnEtcdRestoredToAnOlderRevisionIsWhatCounts) {
  ASSERT_NO_FATAL_FAILURE(Run());
  ApplyJob("before", 0, 2);
  ASSERT_TRUE(WaitForPods("before", 2));
  for (const char* pod : {"before-worker-0", "before-worker-1"}) SetRunning(pod);
  ASSERT_TRUE(WaitForCondition("before", "Running"));
  Settle();
  ASSERT_TRUE(api().Save().ok());
  ApplyJob("after", 0, 3);
  ASSERT_TRUE(WaitForPods("after", 3));
  SetEnded("before-worker-0", 0);
  ASSERT_TRUE(WaitForCondition("before", "Succeeded"));
  Settle();
  const Status restored = api().Restore();
  ASSERT_TRUE(restored.ok()) << restored.ToString();
  ASSERT_EQ(Condition("before", "Succeeded"), "");
  // What a fresh process would see: the job runs, and may end anew; the other one never was.
  const auto metric = [&](const std::string& name) { return alone_->Metric(name); };
  EXPECT_TRUE(Eventually([&] { return metric("meshtrain_pods ") == 3; }, std::chrono::seconds(60)))
      << "two of the job before, one of the first that settled";
  ApplyJob("after", 0, 1);
  EXPECT_TRUE(WaitForPods("after", 1));
  SetEnded("before-worker-0", 0);
  EXPECT_TRUE(WaitForCondition("before", "Succeeded"));
  EXPECT_EQ(Condition("before", "Failed"), "");
  EXPECT_EQ(Pods("before").size(), 2u) << "none was made again";
}

}  // namespace
}  // namespace meshtrain::testing
