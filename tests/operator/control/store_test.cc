#include "operator/control/store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <malloc.h>

#include <nlohmann/json.hpp>

#include "tests/support/fake_clock.h"

namespace meshtrain::control {
namespace {

using kube::WatchEventType;
using nlohmann::json;
using reconcile::NodeState;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using ::testing::UnorderedElementsAre;

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
  EXPECT_THAT(view->Observe().pods, SizeIs(1));
  EXPECT_EQ(view->Observe().pods[0].name, "a-worker-0");
  EXPECT_FALSE(store_.View("ml/b")) << "its pods are there, the job is not";
  pods_.watched(WatchEventType::kDeleted, 8, PodJson("a", 0, 8).dump());
  EXPECT_THAT(store_.View("ml/a")->Observe().pods, IsEmpty());
}

TEST_F(StoreTest, KnowsItsOwnWritesAtOnceAndIsNotWokenByTheirEcho) {
  jobs_.watched(WatchEventType::kAdded, 5, JobJson("a", 5).dump());
  store_.WrotePod(PodJson("a", 0, 6).dump());
  EXPECT_THAT(store_.View("ml/a")->Observe().pods, SizeIs(1));
  woken_.clear();
  pods_.watched(WatchEventType::kAdded, 6, PodJson("a", 0, 6).dump());
  EXPECT_THAT(woken_, IsEmpty());
  // A later version that changes nothing we read wakes nobody either.
  pods_.watched(WatchEventType::kModified, 9, PodJson("a", 0, 9).dump());
  EXPECT_THAT(woken_, IsEmpty());
}

json NodeJson(const std::string& name, int version, const std::string& ready = "True") {
  return {{"metadata", {{"name", name}, {"resourceVersion", std::to_string(version)}}},
          {"status",
           {{"conditions",
             {{{"type", "Ready"},
               {"status", ready},
               {"lastTransitionTime", "2026-01-02T03:04:05Z"}}}}}}};
}

TEST_F(StoreTest, ANodeThatTheWatchLacksIsMissingUntilTheServerSaysThatItIsGone) {
  jobs_.watched(WatchEventType::kAdded, 5, JobJson("a", 5).dump());
  pods_.watched(WatchEventType::kAdded, 20, PodJson("a", 0, 20).dump());
  const auto state = [&] { return store_.View("ml/a")->Observe().pods.at(0).node_state; };
  const auto missing = [&] { return store_.View("ml/a")->MissingNodes(); };
  EXPECT_EQ(state(), NodeState::kUnseen) << "Nodes may not be readable at all";
  EXPECT_THAT(missing(), IsEmpty());
  // Versions of nodes and of pods may come from two etcds: neither says which is older.
  for (const int version : {1, 20, 1'000'000}) {
    nodes_.begin_list();
    nodes_.end_list(version, false);
    EXPECT_EQ(state(), NodeState::kUnseen) << version;
    EXPECT_THAT(missing(), ElementsAre("node-0"));
  }
  nodes_.begin_list();
  nodes_.end_list(1, false);
  nodes_.watched(WatchEventType::kAdded, 2, NodeJson("node-0", 2).dump());
  EXPECT_EQ(state(), NodeState::kReady);
  EXPECT_THAT(missing(), IsEmpty());
  woken_.clear();
  nodes_.watched(WatchEventType::kModified, 3, NodeJson("node-0", 3, "Unknown").dump());
  EXPECT_EQ(state(), NodeState::kNotReady);
  EXPECT_THAT(woken_, ElementsAre("ml/a"));
  woken_.clear();
  nodes_.watched(WatchEventType::kDeleted, 4, NodeJson("node-0", 4).dump());
  EXPECT_THAT(woken_, ElementsAre("ml/a"));
  EXPECT_EQ(state(), NodeState::kUnseen);
  woken_.clear();
  store_.LostNode(*store_.View("ml/a"), "node-0");
  EXPECT_THAT(woken_, ElementsAre("ml/a"));
  EXPECT_EQ(state(), NodeState::kGone);
  EXPECT_THAT(missing(), IsEmpty());
}

TEST_F(StoreTest, APodOnANewNodeOfALostNodesNameHasNotLostIt) {
  jobs_.watched(WatchEventType::kAdded, 5, JobJson("a", 5).dump());
  pods_.watched(WatchEventType::kAdded, 6, PodJson("a", 0, 6).dump());
  nodes_.begin_list();
  nodes_.end_list(7, false);
  const auto before = *store_.View("ml/a");
  json other = PodJson("a", 100, 8);  // on node-0 too
  pods_.watched(WatchEventType::kAdded, 8, other.dump());
  store_.LostNode(before, "node-0");
  std::map<std::string, NodeState> states;
  for (const auto& pod : store_.View("ml/a")->Observe().pods) states[pod.name] = pod.node_state;
  EXPECT_EQ(states["a-worker-0"], NodeState::kGone);
  EXPECT_EQ(states["a-worker-100"], NodeState::kUnseen);
  EXPECT_THAT(store_.View("ml/a")->MissingNodes(), ElementsAre("node-0"));
}

TEST_F(StoreTest, ANodeTaintedOutOfServiceIsKnownAsSuch) {
  jobs_.watched(WatchEventType::kAdded, 5, JobJson("a", 5).dump());
  pods_.watched(WatchEventType::kAdded, 6, PodJson("a", 0, 6).dump());
  json node = NodeJson("node-0", 7, "Unknown");
  nodes_.begin_list();
  nodes_.listed(node.dump());
  nodes_.end_list(7, false);
  woken_.clear();
  node["metadata"]["resourceVersion"] = "8";
  node["spec"]["taints"] = {
      {{"key", "node.kubernetes.io/out-of-service"}, {"effect", "NoExecute"}}};
  nodes_.watched(WatchEventType::kModified, 8, node.dump());
  EXPECT_THAT(woken_, ElementsAre("ml/a"));
  EXPECT_EQ(store_.View("ml/a")->Observe().pods.at(0).node_state, NodeState::kOutOfService);
}

TEST_F(StoreTest, WakesTheJobOfAPodWhoseNodeIsFoundMissing) {
  // The first look comes before the nodes, and nothing else ever happens to the pod.
  jobs_.watched(WatchEventType::kAdded, 5, JobJson("a", 5).dump());
  pods_.watched(WatchEventType::kAdded, 8, PodJson("a", 0, 8).dump());
  EXPECT_THAT(store_.View("ml/a")->MissingNodes(), IsEmpty());
  woken_.clear();
  nodes_.begin_list();
  nodes_.end_list(10, false);
  EXPECT_THAT(woken_, ElementsAre("ml/a"));
  EXPECT_THAT(store_.View("ml/a")->MissingNodes(), ElementsAre("node-0"));
}

TEST_F(StoreTest, AnAnswerToADeletionTellsWhenThePodWillBeGone) {
  jobs_.watched(WatchEventType::kAdded, 5, JobJson("a", 5).dump());
  pods_.watched(WatchEventType::kAdded, 6, PodJson("a", 0, 6).dump());
  const std::string uid = PodJson("a", 0, 6)["metadata"]["uid"];
  json going = PodJson("a", 0, 7);
  going["metadata"]["deletionTimestamp"] = "2026-01-02T03:04:35Z";
  going["metadata"]["deletionGracePeriodSeconds"] = 30;
  // Our own clock is an hour off, and not asked.
  store_.DeletedPod("ml", "a-worker-0", uid, TimePoint(), going.dump());
  const auto pod = store_.View("ml/a")->Observe().pods.at(0);
  EXPECT_EQ(*pod.delete_due - *pod.delete_requested, std::chrono::seconds(30));
  EXPECT_GT(*pod.delete_requested, TimePoint());
}

TEST_F(StoreTest, TellsByItsOwnClockSinceWhenAPodIsGoingOrStartingAndANodeNotReady) {
  // What other machines' clocks say is an hour off, either way.
  testing::FakeClock clock;
  Store store([](const std::string&) {}, clock);
  Sink jobs = store.JobSink(), pods = store.PodSink(), nodes = store.NodeSink();
  jobs.watched(WatchEventType::kAdded, 5, JobJson("a", 5).dump());
  nodes.begin_list();
  nodes.listed(NodeJson("node-0", 6, "Unknown").dump());
  nodes.end_list(6, false);
  json going = PodJson("a", 0, 7);
  going["metadata"]["deletionTimestamp"] = "2026-01-02T02:04:35Z";
  going["metadata"]["deletionGracePeriodSeconds"] = 30;
  going["status"]["phase"] = "Pending";
  pods.watched(WatchEventType::kAdded, 7, going.dump());
  const TimePoint seen = clock.Now();
  clock.Advance(std::chrono::minutes(7));
  going["metadata"]["resourceVersion"] = "8";
  going["status"]["reason"] = "another word";
  pods.watched(WatchEventType::kModified, 8, going.dump());
  nodes.watched(WatchEventType::kModified, 9, NodeJson("node-0", 9, "False").dump());
  const auto pod = store.View("ml/a")->Observe().pods.at(0);
  EXPECT_EQ(pod.starting_since, seen);
  EXPECT_EQ(pod.delete_seen, seen);
  EXPECT_EQ(pod.node_not_ready_since, seen);
  EXPECT_EQ(pod.node_state, NodeState::kNotReady);
  going["metadata"]["resourceVersion"] = "10";
  going["status"]["phase"] = "Running";
  pods.watched(WatchEventType::kModified, 10, going.dump());
  EXPECT_EQ(store.View("ml/a")->Observe().pods.at(0).starting_since, std::nullopt);
}

TEST_F(StoreTest, KnowsServicesThatAreGoingAway) {
  jobs_.watched(WatchEventType::kAdded, 5, JobJson("a", 5).dump());
  json service = {{"metadata", PodJson("a", 0, 6)["metadata"]}};
  service["metadata"]["name"] = "a";
  store_.WroteService(service.dump());
  EXPECT_FALSE(store_.View("ml/a")->services.at(0).deleting);
  service["metadata"]["resourceVersion"] = "7";
  service["metadata"]["deletionTimestamp"] = "2026-01-02T03:04:35Z";
  store_.WroteService(service.dump());
  EXPECT_TRUE(store_.View("ml/a")->services.at(0).deleting);
}

TEST_F(StoreTest, OnlyWhatIsToldChangesTheWorld) {
  jobs_.watched(WatchEventType::kAdded, 5, JobJson("a", 5).dump());
  const int64_t first = store_.View("ml/a")->change;
  store_.WrotePod(PodJson("a", 0, 6).dump());
  store_.DeletedPod("ml", "a-worker-0", PodJson("a", 0, 6)["metadata"]["uid"], TimePoint());
  EXPECT_EQ(store_.View("ml/a")->change, first);
  pods_.watched(WatchEventType::kAdded, 7, PodJson("b", 0, 7).dump());
  EXPECT_EQ(store_.View("ml/a")->change, first) << "another job's";
  pods_.watched(WatchEventType::kModified, 8, PodJson("a", 0, 8).dump());
  EXPECT_GT(store_.View("ml/a")->change, first);
}

TEST_F(StoreTest, AViewSharesItsPodsWithTheStore) {
  constexpr int kPods = 10'000;
  jobs_.watched(WatchEventType::kAdded, 5, JobJson("big", 5).dump());
  for (int i = 0; i < kPods; ++i) {
    pods_.watched(WatchEventType::kAdded, 100 + i, PodJson("big", i, 100 + i).dump());
  }
  const auto one = store_.View("ml/big"), other = store_.View("ml/big");
  ASSERT_EQ(one->pods.size(), size_t{kPods});
#if !defined(__SANITIZE_THREAD__) && !defined(__SANITIZE_ADDRESS__)
  const size_t before = mallinfo2().uordblks + mallinfo2().hblkhd;
  const auto third = store_.View("ml/big");
  EXPECT_LT(mallinfo2().uordblks + mallinfo2().hblkhd - before, size_t{100} * kPods);
#endif
  for (int i = 0; i < kPods; ++i) {
    ASSERT_EQ(one->pods[i].pod.get(), other->pods[i].pod.get()) << "no copy is made";
  }
  // And a view keeps what it saw.
  const std::string name = one->pods[0].pod->seen.name, uid = one->pods[0].pod->seen.uid;
  store_.DeletedPod("ml", name, uid, TimePoint());
  EXPECT_FALSE(one->pods[0].pod->seen.delete_requested);
  EXPECT_TRUE(store_.View("ml/big")->pods[0].pod->seen.delete_requested);
  EXPECT_EQ(one->Observe().pods.size(), size_t{kPods});
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

TEST_F(StoreTest, TellsTheRanksOfJobsThatRun) {
  const auto job = [&](const std::string& name, int version, const char* running,
                       const char* straggling) {
    json text = JobJson(name, version);
    const auto condition = [](const char* type, const char* status) {
      return json{{"type", type}, {"status", status}, {"reason", "r"}, {"message", "m"}};
    };
    text["status"] = {
        {"conditions", {condition("Running", running), condition("Straggling", straggling)}},
        {"progress",
         {{"step", 7},
          {"slowest", {{"replica", "worker-3"}, {"seconds", 2.5}, {"medianSeconds", 1.0}}}}}};
    jobs_.watched(WatchEventType::kModified, version, text.dump());
  };
  job("slow", 2, "True", "True");
  job("ended", 3, "False", "True");
  jobs_.watched(WatchEventType::kAdded, 4, JobJson("silent", 4).dump());
  EXPECT_THAT(store_.Ranks(), ElementsAre(RankSteps{.ns = "ml",
                                                    .job = "slow",
                                                    .slowest = "worker-3",
                                                    .seconds = 2.5,
                                                    .median = 1,
                                                    .straggles = true}));
  job("slow", 5, "True", "False");
  EXPECT_FALSE(store_.Ranks().at(0).straggles);
  jobs_.watched(WatchEventType::kDeleted, 6, JobJson("slow", 6).dump());
  EXPECT_THAT(store_.Ranks(), IsEmpty());
}

TEST_F(StoreTest, TellsTheFiguresOfJobsUntilTheyAreDeleted) {
  json text = JobJson("mnist", 2);
  const auto condition = [](const char* type) {
    return json{{"type", type}, {"status", "True"}, {"reason", "r"}, {"message", "m"}};
  };
  text["status"] = {{"conditions", {condition("Succeeded")}},
                    {"restarts", 2},
                    {"checkpoint", {{"step", 100}}},
                    {"progress",
                     {{"step", 120},
                      {"totalSteps", 120},
                      {"loss", 0.25},
                      {"advancedAt", "1970-01-01T00:00:09Z"}}}};
  jobs_.watched(WatchEventType::kModified, 2, text.dump());
  jobs_.watched(WatchEventType::kAdded, 3, JobJson("silent", 3).dump());
  EXPECT_THAT(store_.Figures(),
              UnorderedElementsAre(JobFigures{.ns = "ml",
                                              .job = "mnist",
                                              .step = 120,
                                              .total_steps = 120,
                                              .checkpoint_step = 100,
                                              .loss = 0.25,
                                              .restarts = 2,
                                              .processes = 1,
                                              .advanced = TimePoint(std::chrono::seconds(9))},
                                   JobFigures{.ns = "ml", .job = "silent", .processes = 1}));
  jobs_.watched(WatchEventType::kDeleted, 4, text.dump());
  EXPECT_THAT(store_.Figures(),
              ElementsAre(JobFigures{.ns = "ml", .job = "silent", .processes = 1}));
}

}  // namespace
}  // namespace meshtrain::control
