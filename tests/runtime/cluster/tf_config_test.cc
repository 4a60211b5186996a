#include "runtime/cluster/tf_config.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <random>

namespace meshtrain::cluster {
namespace {

ClusterSpec Cluster(int chiefs, int workers, int ps, int evaluators) {
  const HostNames names{.job = "mnist", .namespace_name = "ml"};
  ClusterSpec cluster;
  const auto add = [&](Role role, int count) {
    for (int i = 0; i < count; ++i) cluster.hosts[role][i] = HostPort(names, {role, i}, 2222);
  };
  add(Role::kChief, chiefs);
  add(Role::kWorker, workers);
  add(Role::kPs, ps);
  add(Role::kEvaluator, evaluators);
  return cluster;
}

std::string TextFor(const ClusterSpec& all, TaskId task, Form form = Form::kDense) {
  return FormatTfConfig({.cluster = ViewFor(all, task, form), .task = task});
}

TEST(TfConfigTest, DenseFormIsCompactWithSortedRoles) {
  EXPECT_EQ(
      TextFor(Cluster(1, 2, 1, 0), {Role::kWorker, 1}),
      R"({"cluster":{"chief":["mnist-chief-0.mnist.ml.svc:2222"],"ps":["mnist-ps-0.mnist.ml.svc:2222"],)"
      R"("worker":["mnist-worker-0.mnist.ml.svc:2222","mnist-worker-1.mnist.ml.svc:2222"]},)"
      R"("task":{"type":"worker","index":1},"environment":"cloud"})");
}

TEST(TfConfigTest, EvaluatorIsListedInItsOwnOnly) {
  const ClusterSpec all = Cluster(1, 1, 1, 1);
  for (const Role role : {Role::kChief, Role::kWorker, Role::kPs}) {
    EXPECT_EQ(TextFor(all, {role, 0}).find("evaluator"), std::string::npos) << RoleName(role);
  }
  EXPECT_EQ(ViewFor(all, {Role::kEvaluator, 0}, Form::kDense), all);
}

TEST(TfConfigTest, SparseFormShowsAWorkerItselfAndAllServers) {
  const ClusterSpec all = Cluster(1, 3, 2, 0);
  EXPECT_EQ(
      TextFor(all, {Role::kWorker, 1}, Form::kSparse),
      R"({"cluster":{"ps":["mnist-ps-0.mnist.ml.svc:2222","mnist-ps-1.mnist.ml.svc:2222"],)"
      R"("worker":{"1":"mnist-worker-1.mnist.ml.svc:2222"}},"task":{"type":"worker","index":1},)"
      R"("environment":"cloud"})");
  EXPECT_EQ(TextFor(all, {Role::kPs, 1}, Form::kSparse),
            R"({"cluster":{"ps":["mnist-ps-0.mnist.ml.svc:2222","mnist-ps-1.mnist.ml.svc:2222"]},)"
            R"("task":{"type":"ps","index":1},"environment":"cloud"})");
  EXPECT_EQ(ViewFor(all, {Role::kChief, 0}, Form::kSparse), all)
      << "the chief keeps the full, dense form";
}

TEST(TfConfigTest, SparseFormOfAWorkerDoesNotChangeAsOthersComeAndGo) {
  EXPECT_EQ(TextFor(Cluster(1, 3, 2, 0), {Role::kWorker, 1}, Form::kSparse),
            TextFor(Cluster(1, 9, 2, 0), {Role::kWorker, 1}, Form::kSparse));
}

TEST(TfConfigTest, KubeflowSparseTextIsTfJobs) {
  ClusterSpec view;
  view.hosts[Role::kWorker][1] = "j-worker-1.ns.svc:2222";
  view.hosts[Role::kPs][0] = "j-ps-0.ns.svc:2222";
  EXPECT_EQ(FormatSparseKubeflow(view, {Role::kWorker, 1}),
            R"({"cluster":{"worker":{"1":"j-worker-1.ns.svc:2222"},"ps":["j-ps-0.ns.svc:2222"]},)"
            R"("task":{"type":"worker","index":1}})");
  view.hosts.erase(Role::kWorker);
  EXPECT_EQ(
      FormatSparseKubeflow(view, {Role::kPs, 0}),
      R"({"cluster":{"worker":{},"ps":["j-ps-0.ns.svc:2222"]},"task":{"type":"ps","index":0}})");
}

TEST(TfConfigTest, HostNamesFollowTheServiceAndTheDomain) {
  HostNames names{.job = "a", .namespace_name = "n", .domain = "cluster.local"};
  EXPECT_EQ(HostPort(names, {Role::kPs, 2}, 9000), "a-ps-2.a.n.svc.cluster.local:9000");
  names.domain.clear();
  names.service_per_replica = true;
  EXPECT_EQ(HostPort(names, {Role::kPs, 2}, 2222), "a-ps-2.n.svc:2222");
}

TEST(TfConfigTest, ReadsWhatOthersWrite) {
  const auto config = ParseTfConfig(
      R"({"cluster": {"Master": ["a:1"], "WORKER": ["b:1", "[::1]:2"]}, "task": {"type": "worker", "index": "1"}})");
  ASSERT_TRUE(config.ok()) << config.status().ToString();
  EXPECT_EQ(config->task, (TaskId{Role::kWorker, 1}));
  EXPECT_EQ(config->cluster.host({Role::kChief, 0}), "a:1");
  EXPECT_EQ(config->cluster.host({Role::kWorker, 1}), "[::1]:2");

  const auto alone = ParseTfConfig(R"({"cluster":{"worker":["b:1"]}})");
  ASSERT_TRUE(alone.ok());
  EXPECT_EQ(alone->task, (TaskId{Role::kWorker, 0}));
}

TEST(TfConfigTest, SaysWhatIsWrongAndWhere) {
  struct Case {
    std::string text;
    std::string want;
  };
  const Case cases[] = {
      {"{", "TF_CONFIG: must be JSON, got: {"},
      {"[]", "TF_CONFIG: (root): must be an object, got: []"},
      {"{}", "TF_CONFIG: cluster: must be there, got: nothing"},
      {R"({"cluster":{"worker":["a:1","b:1"]}})",
       "TF_CONFIG: task: must say which of 2 processes this one is, got: nothing"},
      {R"({"cluster":{"wroker":["a:1"]}})",
       "TF_CONFIG: cluster.wroker: must be chief, worker, ps or evaluator, got: wroker, did you "
       "mean `worker`?"},
      {R"({"cluster":{"worker":["a"]},"task":{"type":"worker","index":0}})",
       "TF_CONFIG: cluster.worker[0]: must be \"host:port\" with a port from 1 to 65535, got: "
       "\"a\""},
      {R"({"cluster":{"worker":["a:1"]},"task":{"type":"worker","index":1}})",
       "TF_CONFIG: task.index: must be one of the 1 worker processes of the cluster, got: 1"},
      {R"({"cluster":{"worker":["a:1"]},"task":{"type":"worker","index":-1}})",
       "TF_CONFIG: task.index: must be a number from 0, got: -1"},
      {R"({"cluster":{"worker":["a:1"]},"task":{"type":"worker","index":18446744073709551615}})",
       "TF_CONFIG: task.index: must be a number from 0, got: 18446744073709551615"},
      {R"({"cluster":{"chief":["a:1"],"Master":["b:1"]}})",
       "TF_CONFIG: cluster.chief: must be given once, got: two spellings of chief"},
  };
  for (const Case& c : cases) EXPECT_EQ(ParseTfConfig(c.text).status().message(), c.want) << c.text;
}

TEST(TfConfigTest, ClusterFileNeedsNoTask) {
  const ClusterSpec all = Cluster(1, 3, 0, 0);
  const auto read = ParseClusterFile("{\"cluster\":" + ClusterText(all) + "}");
  ASSERT_TRUE(read.ok());
  EXPECT_EQ(*read, all);
}

// ParseTfConfig(FormatTfConfig(x)) == x, for dense and sparse views of random clusters with random
// host names.
TEST(TfConfigTest, RoundTrips) {
  const char* given = std::getenv("MT_TEST_SEED");
  const uint64_t seed = given != nullptr ? std::strtoull(given, nullptr, 10) : 20240607;
  SCOPED_TRACE("MT_TEST_SEED=" + std::to_string(seed));
  std::mt19937_64 random(seed);
  const auto below = [&](int n) { return static_cast<int>(random() % static_cast<uint64_t>(n)); };
  for (int round = 0; round < 2000; ++round) {
    ClusterSpec all;
    for (const Role role : kRoles) {
      const int count = below(role == Role::kWorker ? 12 : 3);
      for (int i = 0; i < count; ++i) {
        std::string name;
        for (int k = 1 + below(12); k > 0; --k) name += "abz09-._\"\\\x01\xc3\xa9"[below(10)];
        all.hosts[role][i] = name + ":" + std::to_string(1 + below(65535));
      }
    }
    for (const auto& [role, hosts] : all.hosts) {
      for (const auto& [index, host] : hosts) {
        for (const Form form : {Form::kDense, Form::kSparse}) {
          const TaskId task{role, index};
          TfConfig config{.cluster = ViewFor(all, task, form), .task = task};
          if (role == Role::kPs && form == Form::kSparse && config.cluster.host(task).empty()) {
            continue;
          }
          const std::string text = FormatTfConfig(config);
          const auto read = ParseTfConfig(text);
          ASSERT_TRUE(read.ok()) << read.status().ToString() << "\n" << text;
          // Lists cannot tell {"0"} from an object with the one key 0; both name the same process.
          ASSERT_EQ(*read, config) << text;
          ASSERT_EQ(FormatTfConfig(*read), text);
        }
      }
    }
  }
}

TEST(TfConfigTest, ListensOnTheLoopbackWherePeersAreThere) {
  const auto listens = [](const std::string& address) {
    TfConfig config{.task = {Role::kPs, 1}};
    config.cluster.hosts[Role::kPs][1] = address;
    return ListenAddress(config);
  };
  EXPECT_EQ(listens("127.0.0.1:10007"), "127.0.0.1");
  EXPECT_EQ(listens("127.3.2.1:10007"), "127.3.2.1");
  EXPECT_EQ(listens("localhost:2222"), "127.0.0.1");
  EXPECT_EQ(listens("[::1]:2222"), "::1");
  for (const char* elsewhere :
       {"mnist-ps-1.mnist.ml.svc:2222", "10.0.0.1:2222", "0.0.0.0:2222", "[fd00::1]:2222",
        "127.example:2222", "localhost.example:2222", "1127.0.0.1:2222", ""}) {
    EXPECT_EQ(listens(elsewhere), "") << elsewhere;
  }
  EXPECT_EQ(HostOf("[fd00::1]:2222"), "fd00::1");
  EXPECT_EQ(HostOf("::1:2222"), "::1");
  EXPECT_EQ(HostOf(":2222"), "");
}

}  // namespace
}  // namespace meshtrain::cluster
