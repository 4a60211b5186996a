#include "operator/control/progress_puller.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>
#include <vector>

#include "operator/reconcile/progress.h"

namespace meshtrain::control {
namespace {

void PutRunningLeader(Store& store, const std::string& uid, int version) {
  store.WroteJob(
      R"({"apiVersion":"meshtrain.dev/v1","kind":"TrainingJob","metadata":{"name":"mnist","namespace":"ml",
    "uid":"j1","resourceVersion":")" +
      std::to_string(version) + R"("},"spec":{"replicaSpecs":{"worker":{"template":
    {"spec":{"containers":[{"name":"trainer","image":"i"}]}}}}}})");
  store.WrotePod(R"({"metadata":{"name":"mnist-worker-0","namespace":"ml","uid":")" + uid +
                 R"(","resourceVersion":")" + std::to_string(version + 1) +
                 R"(","labels":{"meshtrain.dev/leader":"true"},"ownerReferences":[{
    "kind":"TrainingJob","name":"mnist","uid":"j1","controller":true}]},"spec":{"containers":[{"name":"trainer","ports":[
    {"name":"meshtrain-http","containerPort":2280}]}]},"status":{"phase":"Running","podIP":"10.0.0.9"}})");
}

TEST(ProgressPullerTest, AsksTheLeaderOncePerPeriodAndWakesTheJobWhenItMoved) {
  constexpr Duration kPeriod = std::chrono::milliseconds(10);
  Store store([](const std::string&) {});
  PutRunningLeader(store, "p1", 1);
  std::atomic<int> asked = 0, woken = 0;
  std::stop_source stop;
  ProgressPuller puller(
      store, SystemClock(),
      [&](const ProgressTarget& target, std::stop_token) -> Result<std::string> {
        EXPECT_EQ(target, (ProgressTarget{"10.0.0.9", 2280, "p1"}));
        const int n = ++asked;
        if (n == 4) stop.request_stop();
        return R"({"step":)" + std::to_string(n < 3 ? 10 : 20) + "}";
      },
      reconcile::ParseProgress,
      [&](const std::string& key) {
        EXPECT_EQ(key, "ml/mnist");
        ++woken;
      },
      kPeriod);
  const Duration start = SystemClock().Monotonic();
  for (int i = 0; i < 10; ++i) puller.Follow("ml/mnist");
  puller.Follow("ml/other");
  puller.Run(stop.get_token());
  EXPECT_EQ(asked, 4);
  EXPECT_GE(SystemClock().Monotonic() - start, 4 * kPeriod);
  EXPECT_EQ(woken, 2);
  ASSERT_TRUE(puller.Last("ml/mnist"));
  EXPECT_EQ(puller.Last("ml/mnist")->progress.step, 20);
}

TEST(ProgressPullerTest, AsksASilentPodLessAndLess) {
  constexpr Duration kPeriod = std::chrono::milliseconds(2);
  Store store([](const std::string&) {});
  PutRunningLeader(store, "p1", 1);
  std::vector<Duration> at;
  std::stop_source stop;
  ProgressPuller puller(
      store, SystemClock(),
      [&](const ProgressTarget&, std::stop_token) -> Result<std::string> {
        at.push_back(SystemClock().Monotonic());
        if (at.size() == 6) stop.request_stop();
        return Unavailable("nobody there");
      },
      reconcile::ParseProgress, [](const std::string&) { FAIL() << "nothing was learnt"; },
      kPeriod);
  puller.Follow("ml/mnist");
  puller.Run(stop.get_token());
  EXPECT_GE(at[1] - at[0], 2 * kPeriod);
  EXPECT_GE(at[5] - at[4], 12 * kPeriod);
  EXPECT_FALSE(puller.Last("ml/mnist"));
}

}  // namespace
}  // namespace meshtrain::control
