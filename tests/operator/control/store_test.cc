#include "operator/control/store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <malloc.h>

#include <nlohmann/json.hpp>

namespace meshtrain::control {
namespace {

using kube::WatchEventType;
using nlohmann::json;
using reconcile::NodeState;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

json JobJson(const std::string& name, int version) {
  const json container = {{"name", "trainer"}, {"image", "i"}};
  const json pod = {{"spec", {{"containers", json::array({container})}}}};
  return {{"apiVersion", "meshtrain.dev/v1"},
          {"kind", "TrainingJob"},
          {"metadata",
           {{"name", name},
            {"namespace", "ml"},
            {"uid", "job-" + name},
            {"resourceVersion", std::to_string(version)}}},
          {"spec", {{"replicaSpecs", {{"worker", {{"template", pod}}}}}}}};
}

json PodJson(const std::string& job, int index, int version) {
  return {
      {"apiVersion", "v1"},
      {"kind", "Pod"},
      {"metadata",
       {{"name", job + "-worker-" + std::to_string(index)},
        {"namespace", "ml"},
        {"uid", "0b4bd9b8-38ba-4dd6-8d0b-" + std::to_string(100000000000 + index)},
        {"resourceVersion", std::to_string(version)},
        {"creationTimestamp", "2026-01-02T03:04:05Z"},
        {"labels",
         {{"app.kubernetes.io/managed-by", "meshtrain-operator"},
          {"meshtrain.dev/job-name", job},
          {"meshtrain.dev/replica-type", "worker"},
          {"meshtrain.dev/replica-index", std::to_string(index)}}},
        {"managedFields", {{{"manager", std::string(2000, 'x')}}}},
        {"ownerReferences",
         {{{"kind", "TrainingJob"}, {"name", job}, {"uid", "job-" + job}, {"controller", true}}}}}},
      {"spec",
       {{"nodeName", "node-" + std::to_string(index % 100)},
        {"containers",
         {{{"name", "trainer"},
           {"env", {{{"name", "TF_CONFIG"}, {"value", std::string(3000, 'y')}}}}}}}}},
      {"status",
       {{"phase", "Running"},
        {"podIP", "10.244.100.200"},
        {"conditions", {{{"type", "Ready"}, {"status", "True"}}}}}}};
}

class StoreTest : public ::testing::Test {
 protected:
  std::vector<std::string> woken_;
  Store store_{[this](const std::string& key) { woken_.push_back(key); }};
  Sink jobs_ = store_.JobSink(), pods_ = store_.PodSink(), nodes_ = store_.NodeSink();
};

TEST_F(StoreTest, ArrangesByJobAndWakesIt) {
  jobs_.watched(WatchEventType::kAdded, 5, JobJson("a", 5).dump());
  pods_.watched(WatchEventType::kAdded, 6, PodJson("a", 0, 6).dump());
  pods_.watched(WatchEventType::kAdded, 7, PodJson("b", 0, 7).dump());
  EXPECT_THAT(woken_, ElementsAre("ml/a", "ml/a", "ml/b"));
  const auto view = store_.View("ml/a");
  ASSERT_TRUE(view);
  EXPECT_THAT(view->seen.pods, SizeIs(1));
  EXPECT_EQ(view->seen.pods[0].name, "a-worker-0");
  EXPECT_FALSE(store_.View("ml/b")) << "its pods are there, the job is not";
  pods_.watched(WatchEventType::kDeleted, 8, PodJson("a", 0, 8).dump());
  EXPECT_THAT(store_.View("ml/a")->seen.pods, IsEmpty());
}

TEST_F(StoreTest, KnowsItsOwnWritesAtOnceAndIsNotWokenByTheirEcho) {
  jobs_.watched(WatchEventType::kAdded, 5, JobJson("a", 5).dump());
  store_.WrotePod(PodJson("a", 0, 6).dump());
  EXPECT_THAT(store_.View("ml/a")->seen.pods, SizeIs(1));
  woken_.clear();
  pods_.watched(WatchEventType::kAdded, 6, PodJson("a", 0, 6).dump());
  EXPECT_THAT(woken_, IsEmpty());
  // A later version that changes nothing we read wakes nobody either.
  pods_.watched(WatchEventType::kModified, 9, PodJson("a", 0, 9).dump());
  EXPECT_THAT(woken_, IsEmpty());
}

TEST_F(StoreTest, TakesANodeForGoneOnlyWhenTheNodeWatchIsPastThePod) {
  jobs_.watched(WatchEventType::kAdded, 5, JobJson("a", 5).dump());
  pods_.watched(WatchEventType::kAdded, 20, PodJson("a", 0, 20).dump());
  const auto state = [&] { return store_.View("ml/a")->seen.pods.at(0).node_state; };
  EXPECT_EQ(state(), NodeState::kUnseen) << "Nodes may not be readable at all";
  nodes_.begin_list();
  nodes_.end_list(10);
  EXPECT_EQ(state(), NodeState::kUnseen) << "the node may be newer than our list of nodes";
  const json ready = {{"metadata", {{"name", "node-0"}, {"resourceVersion", "15"}}},
                      {"status", {{"conditions", {{{"type", "Ready"}, {"status", "True"}}}}}}};
  nodes_.watched(WatchEventType::kAdded, 15, ready.dump());
  EXPECT_EQ(state(), NodeState::kReady);
  json lost = ready;
  lost["status"]["conditions"][0] = {
      {"type", "Ready"}, {"status", "Unknown"}, {"lastTransitionTime", "2026-01-02T03:04:05Z"}};
  woken_.clear();
  nodes_.watched(WatchEventType::kModified, 25, lost.dump());
  EXPECT_EQ(state(), NodeState::kNotReady);
  EXPECT_THAT(woken_, ElementsAre("ml/a"));
  nodes_.watched(WatchEventType::kDeleted, 30, lost.dump());
  EXPECT_EQ(state(), NodeState::kGone);
}

TEST_F(StoreTest, WakesTheJobOfAPodWhoseNodeIsFoundGone) {
  // The first look comes before the nodes, and nothing else ever happens to the pod.
  jobs_.watched(WatchEventType::kAdded, 5, JobJson("a", 5).dump());
  pods_.watched(WatchEventType::kAdded, 8, PodJson("a", 0, 8).dump());
  const auto state = [&] { return store_.View("ml/a")->seen.pods.at(0).node_state; };
  EXPECT_EQ(state(), NodeState::kUnseen);
  woken_.clear();
  nodes_.begin_list();
  nodes_.end_list(10);
  EXPECT_THAT(woken_, ElementsAre("ml/a"));
  EXPECT_EQ(state(), NodeState::kGone);
  // Or the pod is newer than the list: then a bookmark tells.
  pods_.watched(WatchEventType::kModified, 20, PodJson("a", 1, 20).dump());
  pods_.watched(WatchEventType::kDeleted, 21, PodJson("a", 0, 21).dump());
  EXPECT_EQ(state(), NodeState::kUnseen);
  woken_.clear();
  nodes_.watched(WatchEventType::kBookmark, 15, "");
  EXPECT_THAT(woken_, IsEmpty());
  nodes_.watched(WatchEventType::kBookmark, 25, "");
  EXPECT_THAT(woken_, ElementsAre("ml/a"));
  EXPECT_EQ(state(), NodeState::kGone);
  nodes_.watched(WatchEventType::kBookmark, 26, "");
  EXPECT_THAT(woken_, ElementsAre("ml/a")) << "once";
}

// The sanitizers bring their own allocators, which mallinfo2 does not see.
#if !defined(__SANITIZE_THREAD__) && !defined(__SANITIZE_ADDRESS__)
TEST_F(StoreTest, TakesLessThanTwoKilobytesAPod) {
  constexpr int kPods = 5000;
  std::vector<std::string> texts;
  for (int i = 0; i < kPods; ++i) texts.push_back(PodJson("big", i, 100 + i).dump());
  const size_t before = mallinfo2().uordblks;
  for (int i = 0; i < kPods; ++i) pods_.watched(WatchEventType::kAdded, 100 + i, texts[i]);
  const size_t per_pod = (mallinfo2().uordblks - before) / kPods;
  RecordProperty("bytes_per_pod", static_cast<int>(per_pod));
  EXPECT_EQ(store_.pods(), kPods);
  EXPECT_LT(per_pod, 2000u);
  EXPECT_GT(per_pod, 200u) << "the measure itself is broken";
}
#endif

}  // namespace
}  // namespace meshtrain::control
