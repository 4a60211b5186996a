// What happens to requests, watches and processes, on a real API server: each fault is placed by a
// proxy between two known requests, is counted, and a fault that did not fire fails its test.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <atomic>
#include <set>
#include <thread>

#include "tests/integration/operator/proxy_fixture.h"

namespace meshtrain::testing {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;
using Verdict = ApiProxy::Verdict;

class FaultTest : public ProxyTest {
 protected:
  int64_t Answers(int status) {
    return proxy_->Count([&](const ApiProxy::Call& call) { return call.status == status; });
  }
  json Job(const std::string& name) { return Get(control::TrainingJobs(), name); }

  void ApplyLife(const std::string& job) {
    ApplyJob(job, 1, 2, {{"runPolicy", {{"cleanPodPolicy", "Running"}}}});
  }

  // Plays kubelet through one job's life: what is created runs, worker 1 leaves once with 138, and
  // once that is mended the chief ends well. `between` is called between looks. Returns what the
  // job looks like at its end, "" when it did not come to one.
  std::string Live(const std::string& job, const std::function<void()>& between) {
    std::string failed;
    const bool ended = Eventually(
        [&] {
          between();
          const std::vector<json> pods = Pods(job);
          size_t running = 0;
          std::string worker;
          for (const json& pod : pods) {
            const std::string name = pod["metadata"]["name"], phase = pod["status"]["phase"];
            if (phase == "Pending") TrySetRunning(name);
            running += phase == "Running";
            if (name == job + "-worker-1") worker = pod["metadata"]["uid"];
          }
          if (running == 3 && Condition(job, "Running") == "True" &&
              Condition(job, "Restarting") != "True") {
            if (failed.empty()) {
              failed = worker;
              TrySetEnded(job + "-worker-1", 138);
            } else if (worker != failed) {
              TrySetEnded(job + "-chief-0", 0);
            }
          }
          return Condition(job, "Succeeded") == "True" && pods.size() == 1;
        },
        std::chrono::seconds(90));
    if (!ended) return "";
    const json status = Job(job)["status"];
    std::set<std::string> truths;
    for (const json& condition : status["conditions"]) {
      if (condition["status"] == "True") truths.insert(condition["type"]);
    }
    const json end = {
        {"phase", status["phase"]},
        {"restarts", status["restarts"]},
        {"true", truths},
        {"counted", status["recovery"]["counted"]},
        {"disruptions", status["recovery"].value("disruptions", 0)},
        {"replicas", status["replicaStatuses"]},
        {"left", Pods(job)[0]["metadata"]["name"].get<std::string>().substr(job.size())}};
    return end.dump();
  }

  // One life per write of a life, with `accident` after exactly that write; the last one, of which
  // no write has that number, is the life without. All must end alike.
  void OneAccidentPerWrite(const std::function<Verdict()>& accident) {
    std::string want;
    std::vector<std::string> ends;
    int fired = 0;
    for (int write = 1; write <= 60; ++write) {
      const std::string job = "life-" + std::to_string(write);
      std::atomic<int> seen = 0;
      std::atomic<bool> now = false;
      proxy_->SetHook([&](const ApiProxy::Call& call) {
        const bool ours = call.target.find(job + "-") != std::string::npos ||
                          call.target.ends_with(job + "/status") ||
                          call.body.find('"' + job + '"') != std::string::npos;
        if (call.status == 0 || !ours || ++seen != write) return Verdict::kPass;
        now = true;
        return accident();
      });
      if (!alone_) Run();
      if (HasFatalFailure()) return;
      ApplyLife(job);
      const std::string end = Live(job, [&] {
        if (!HasFatalFailure() && alone_->Wait(std::chrono::seconds(0)) >= 0) Run();
      });
      proxy_->SetHook(nullptr);
      ASSERT_NE(end, "") << "after write " << write << ": " << Job(job)["status"].dump(1);
      ends.push_back(end);
      if (!now) break;
      ++fired;
    }
    std::printf("%d lives with one accident each, one without\n", fired);
    EXPECT_GE(fired, 12)
        << "the Service, 3 pods, a deletion, a fourth pod, the statuses, the clean-up";
    EXPECT_LT(fired, 60);
    for (size_t i = 0; i < ends.size(); ++i) {
      EXPECT_EQ(ends[i], ends.back()) << "accident after write " << i + 1;
    }
  }
};

TEST_F(FaultTest, AQuietLifeIsCheapAndANewProcessHasNothingToWrite) {
  ASSERT_NO_FATAL_FAILURE(Run());
  const auto list = [&](const std::string& of) {
    std::string out;
    for (const ApiProxy::Call& call : proxy_->calls()) {
      const bool its = call.target.find('/' + of) != std::string::npos ||
                       call.body.find("\"name\":\"" + of) != std::string::npos;
      if (call.IsWrite() && its) out += call.method + " " + call.target + " " + call.body + "\n";
    }
    return out;
  };
  ApplyLife("mnist");
  ASSERT_TRUE(WaitForPods("mnist", 3));
  for (const char* pod : {"mnist-chief-0", "mnist-worker-0", "mnist-worker-1"}) SetRunning(pod);
  ASSERT_TRUE(Eventually([&] { return Job("mnist")["status"]["ready"] == "3/3"; }));
  SetEnded("mnist-chief-0", 0);
  ASSERT_TRUE(Eventually(
      [&] { return Condition("mnist", "Succeeded") == "True" && Pods("mnist").size() == 1; }));
  ApplyJob("pending", 1, 2);
  ASSERT_TRUE(Eventually([&] {  // the last that there is to write of it
    const json status = Job("pending")["status"];
    return status.contains("replicaStatuses") &&
           status["replicaStatuses"]["worker"]["replicas"] == 2;
  }));
  const std::string life = list("mnist");
  const int64_t deletions = 2;
  const int64_t writes = std::count(life.begin(), life.end(), '\n') - deletions;
  EXPECT_LE(writes, 3 + 6) << life;
  std::printf("%lld creations and status writes in a life of 3 pods\n",
              static_cast<long long>(writes));
  alone_->Signal(SIGTERM);
  EXPECT_EQ(alone_->Wait(std::chrono::seconds(15)), 0);
  const int64_t before = proxy_->writes();
  ASSERT_NO_FATAL_FAILURE(Run());
  // A third job shows that the new process has looked at what was there before it.
  ApplyJob("new", 0, 1);
  ASSERT_TRUE(WaitForPods("new", 1));
  ASSERT_TRUE(WaitForCondition("new", "Created"));
  // The proxy lists a call when it has passed on the answer.
  EXPECT_TRUE(Eventually([&] {
    const std::string later = list("new");
    return proxy_->writes() - before == std::count(later.begin(), later.end(), '\n');
  })) << proxy_->writes() - before
      << " writes: " << list("");
}

TEST_F(FaultTest, KilledAfterAnyWriteOfALifeTheNextOperatorEndsItAlike) {
  OneAccidentPerWrite([&] {
    MutexLock lock(mutex_);  // this is the proxy's thread
    alone_->Signal(SIGKILL);
    return Verdict::kLose;
  });
}

TEST_F(FaultTest, AnyWriteOfALifeMayGoUnanswered) {
  OneAccidentPerWrite([] { return Verdict::kLose; });
}

TEST_F(FaultTest, WatchesThatAreCutAreTakenUpAgain) {
  ASSERT_NO_FATAL_FAILURE(Run());
  ApplyLife("mnist");
  int cut = 0;
  const std::string end = Live("mnist", [&] {
    if (cut >= 6) return;  // the life goes on when all three are back, and have been cut twice
    EXPECT_TRUE(Eventually([&] { return proxy_->open_watches() >= 3; }, std::chrono::seconds(40)));
    cut += proxy_->CutWatches();
  });
  EXPECT_NE(end, "") << Job("mnist").dump(1);
  EXPECT_GE(cut, 6) << "pods, Services and jobs, twice";
  std::printf("%d watches cut\n", cut);
  EXPECT_EQ(Answers(410), 0);
}

TEST_F(FaultTest, ConflictingWritersOnlyCostAnotherTry) {
  // Somebody else writes the job just before each of the operator's first status writes arrives.
  std::atomic<int> meddled = 0;
  proxy_->SetHook([&](const ApiProxy::Call& call) {
    if (call.status != 0 || !call.OnStatus() || meddled >= 6) return Verdict::kPass;
    const json patch = {{"metadata", {{"annotations", {{"meddler", std::to_string(++meddled)}}}}}};
    EXPECT_TRUE(api()
                    .client()
                    .Patch(control::TrainingJobs(), ns_, "mnist", "", kube::PatchType::kMerge,
                           patch.dump(), {})
                    .ok());
    return Verdict::kPass;
  });
  ASSERT_NO_FATAL_FAILURE(Run());
  ApplyLife("mnist");
  EXPECT_NE(Live("mnist", [] {}), "") << Job("mnist").dump(1);
  EXPECT_EQ(meddled, 6);
  EXPECT_EQ(Answers(409), 6);
  EXPECT_EQ(Job("mnist")["metadata"]["annotations"]["meddler"], "6") << "what is not ours stays";
}

TEST_F(FaultTest, AStatusThatSomebodyWipedIsWrittenAgain) {
  ASSERT_NO_FATAL_FAILURE(Run());
  ApplyJob("mnist", 1, 2);
  ASSERT_TRUE(WaitForPods("mnist", 3));
  for (const char* pod : {"mnist-chief-0", "mnist-worker-0", "mnist-worker-1"}) SetRunning(pod);
  ASSERT_TRUE(WaitForCondition("mnist", "Running"));
  Kubectl({"patch", "tj", "mnist", "--subresource=status", "--type=merge", "-p",
           R"({"status":{"conditions":null,"phase":"Nonsense","replicaStatuses":null}})"});
  EXPECT_TRUE(WaitForCondition("mnist", "Running"));
  EXPECT_TRUE(Eventually([&] { return Job("mnist")["status"]["phase"] == "Running"; }));
  EXPECT_EQ(Pods("mnist").size(), 3u);
}

TEST_F(FaultTest, AQuotaThatRefusesPodThreeOfEightHoldsTheJobUntilItIsRaised) {
  const auto allow = [&](int pods) {
    Kubectl({"apply", "-f", "-"}, json{{"apiVersion", "v1"},
                                       {"kind", "ResourceQuota"},
                                       {"metadata", {{"name", "q"}}},
                                       {"spec", {{"hard", {{"pods", std::to_string(pods)}}}}}}
                                      .dump());
    ASSERT_TRUE(Eventually([&] {
      return TryKubectl({"get", "quota", "q", "-o", "jsonpath={.status.hard.pods}"}).out ==
             std::to_string(pods);
    }));
  };
  allow(2);
  ASSERT_NO_FATAL_FAILURE(Run());
  ApplyJob("mnist", 0, 8);
  ASSERT_TRUE(WaitForCondition("mnist", "Waiting"));
  EXPECT_THAT(Message("mnist", "Waiting"), HasSubstr("exceeded quota"));
  EXPECT_EQ(Pods("mnist").size(), 2u);
  const auto refused = [&] {
    return proxy_->Count([](const ApiProxy::Call& call) {
      return call.status == 403 && call.OnPods() && call.method == "POST";
    });
  };
  EXPECT_GE(refused(), 1);
  std::set<std::string> first;
  for (const json& pod : Pods("mnist")) first.insert(pod["metadata"]["uid"]);
  allow(8);
  ASSERT_TRUE(Eventually([&] { return Pods("mnist").size() == 8; }, std::chrono::seconds(90)));
  std::set<std::string> all;
  for (const json& pod : Pods("mnist")) all.insert(pod["metadata"]["uid"]);
  EXPECT_TRUE(std::includes(all.begin(), all.end(), first.begin(), first.end()))
      << "those two were left alone";
  EXPECT_TRUE(Eventually([&] { return Condition("mnist", "Waiting") != "True"; }));
  EXPECT_LT(refused(), 500) << "it backs off";
  std::printf("%lld creations refused\n", static_cast<long long>(refused()));
}

TEST_F(FaultTest, TheLeaderThatSleptWritesNothingAfterItsLease) {
  const std::vector<std::string> election = {"--leader-elect-namespace", "meshtrain-system",
                                             "--leader-elect-name", "meshtrain"};
  OperatorProcess first(KubeconfigFor(proxy_->url()), election);
  ASSERT_TRUE(Eventually([&] { return first.Log().find("watching") != std::string::npos; },
                         std::chrono::seconds(40)));
  OperatorProcess& second = StartOperator(/*wait_until_leading=*/false);
  ASSERT_TRUE(Eventually([&] { return second.Log().find("standing by") != std::string::npos; }));
  // It falls asleep with creations on their way and many more in its head. A namespace of a test
  // before may still be going, and its job's pods asked for: those hold nothing.
  proxy_->SetHook([&](const ApiProxy::Call& call) {
    if (call.status == 0 && call.method == "POST" &&
        call.target.find("/" + ns_ + "/pods") != std::string::npos) {
      proxy_->HoldWrites();
    }
    return Verdict::kPass;
  });
  ApplyJob("mnist", 0, 40);
  ASSERT_TRUE(Eventually([&] { return proxy_->held() >= 8; }));
  proxy_->SetHook(nullptr);
  first.Signal(SIGSTOP);
  const int held = proxy_->held();
  const int64_t pods_before = static_cast<int64_t>(Pods("mnist").size());
  const auto leases = [&] {
    return proxy_->Count([](const ApiProxy::Call& call) {
      return call.method != "GET" && call.target.find("/leases") != std::string::npos;
    });
  };
  ASSERT_TRUE(Eventually([&] { return second.Log().find("leading") != std::string::npos; },
                         std::chrono::seconds(40)));
  ASSERT_TRUE(WaitForPods("mnist", 40));
  proxy_->LetWritesGo(/*lose=*/true);
  // Pods that the sleeper would miss, if it still might.
  Kubectl({"delete", "pod", "mnist-worker-3", "mnist-worker-39"});
  second.Signal(SIGSTOP);
  // What it had sent before it fell asleep has long arrived: a lease ran out since.
  const int64_t before = proxy_->writes();
  const int64_t renewals = leases();
  first.Signal(SIGCONT);
  EXPECT_EQ(first.Wait(std::chrono::seconds(20)), 74)
      << "it ends when it sees that the lease is lost";
  EXPECT_EQ(proxy_->writes(), before);
  EXPECT_EQ(leases(), renewals);
  EXPECT_LT(pods_before, 40);
  std::printf("asleep with %lld of 40 pods made, %d creations on their way\n",
              static_cast<long long>(pods_before), held);
  second.Signal(SIGCONT);
  EXPECT_TRUE(WaitForPods("mnist", 40));
}

TEST_F(FaultTest, PodsOfOthersWithOurLabelsAreLeftAsTheyAre) {
  const auto labels = [](int index) {
    return json{{std::string(cluster::kLabelJob), "mnist"},
                {std::string(cluster::kLabelManagedBy), std::string(cluster::kManagedByValue)},
                {std::string(cluster::kLabelRole), "worker"},
                {std::string(cluster::kLabelIndex), std::to_string(index)}};
  };
  const auto create = [&](const std::string& ns, json metadata) {
    const json pod = {{"metadata", std::move(metadata)},
                      {"spec", {{"containers", {{{"name", "trainer"}, {"image", "i"}}}}}}};
    const auto made = api().client().Create(kube::Pods(), ns, pod.dump(), {});
    EXPECT_TRUE(made.ok()) << made.status().ToString();
  };
  const std::string elsewhere = ns_ + "-2";
  ASSERT_EQ(api().Kubectl({"create", "namespace", elsewhere}).exit_code, 0);
  ASSERT_TRUE(Eventually([&] {
    return api().Kubectl({"-n", elsewhere, "get", "serviceaccount", "default"}).exit_code == 0;
  }));
  Kubectl({"create", "configmap", "keeper"});
  const json keeper = Get({"", "v1", "configmaps"}, "keeper");
  create(ns_, {{"name", "of-another"},
               {"labels", labels(1)},
               {"ownerReferences",
                {{{"apiVersion", "v1"},
                  {"kind", "ConfigMap"},
                  {"name", "keeper"},
                  {"uid", keeper["metadata"]["uid"]},
                  {"controller", true}}}}});
  create(ns_, {{"name", "beyond"}, {"labels", labels(9)}});
  create(elsewhere, {{"name", "mnist-worker-0"}, {"labels", labels(0)}});
  const auto versions = [&] {
    std::string out;
    for (const auto& [ns, name] :
         {std::pair(ns_, "of-another"), {ns_, "beyond"}, {elsewhere, "mnist-worker-0"}}) {
      const auto text = api().client().Get(kube::Pods(), ns, name, {});
      out += text.ok() ? json::parse(*text)["metadata"]["resourceVersion"].get<std::string>() + " "
                       : "gone ";
    }
    return out;
  };
  const std::string before = versions();
  StartOperator();
  ApplyJob("mnist", 0, 2, {{"runPolicy", {{"cleanPodPolicy", "All"}}}});
  ASSERT_TRUE(Eventually([&] {
    return !Get(kube::Pods(), "mnist-worker-0").is_null() &&
           !Get(kube::Pods(), "mnist-worker-1").is_null();
  }));
  SetRunning("mnist-worker-0");
  SetEnded("mnist-worker-0", 0);
  ASSERT_TRUE(WaitForCondition("mnist", "Succeeded"));
  ASSERT_TRUE(Eventually([&] {
    return Get(kube::Pods(), "mnist-worker-0").is_null() &&
           Get(kube::Pods(), "mnist-worker-1").is_null();
  }));
  Kubectl({"delete", "tj", "mnist"});
  EXPECT_TRUE(Eventually([&] { return Get(kube::Services(), "mnist").is_null(); },
                         std::chrono::seconds(60)));
  EXPECT_EQ(versions(), before);
  api().Kubectl({"delete", "namespace", elsewhere, "--wait=false"});
}

// The API server answers watches from its own memory, which etcd's compaction does not touch;
// without that memory, etcd says 410 itself.
class CompactionTest : public FaultTest {
 protected:
  static void SetUpTestSuite() {
    setenv("APISERVER_FLAGS", "--watch-cache=false", 1);
    OperatorTest::SetUpTestSuite();
    unsetenv("APISERVER_FLAGS");
  }
};

TEST_F(CompactionTest, ARunningOperatorWhoseVersionWasCompactedListsAgain) {
  ASSERT_NO_FATAL_FAILURE(Run());
  ApplyJob("mnist", 0, 1);
  ASSERT_TRUE(WaitForPods("mnist", 1));
  proxy_->RefuseWatches(true);
  EXPECT_GE(proxy_->CutWatches(), 3);
  SetRunning("mnist-worker-0");
  ApplyJob("late", 0, 1);
  ASSERT_TRUE(api().Compact().ok());
  proxy_->RefuseWatches(false);
  EXPECT_TRUE(Eventually([&] { return Condition("mnist", "Running") == "True"; },
                         std::chrono::seconds(60)));
  EXPECT_TRUE(Eventually([&] { return Pods("late").size() == 1; }, std::chrono::seconds(60)));
  const std::string log = alone_->Log();
  int listed_again = 0;
  for (size_t at = log.find("listing again"); at != std::string::npos;
       at = log.find("listing again", at + 1)) {
    ++listed_again;
  }
  EXPECT_GE(listed_again, 2) << "pods and jobs";
  std::printf("%d watches answered 410\n", listed_again);
}

}  // namespace
}  // namespace meshtrain::testing
