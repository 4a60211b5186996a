#include "operator/control/progress_puller.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "operator/reconcile/progress.h"
#include "tests/support/fake_clock.h"

namespace meshtrain::control {
namespace {

using std::chrono::milliseconds;
using std::chrono::minutes;
using std::chrono::seconds;

void PutRunningLeader(Store& store, const std::string& job, const std::string& uid,
                      const std::string& ip, int version) {
  store.WroteJob(R"({"apiVersion":"meshtrain.dev/v1","kind":"TrainingJob","metadata":{"name":")" +
                 job + R"(","namespace":"ml","uid":"j1","resourceVersion":")" +
                 std::to_string(version) + R"("},"spec":{"replicaSpecs":{"worker":{"template":
    {"spec":{"containers":[{"name":"trainer","image":"i"}]}}}}}})");
  store.WrotePod(
      R"({"metadata":{"name":")" + job + R"(-worker-0","namespace":"ml","uid":")" + uid +
      R"(","resourceVersion":")" + std::to_string(version + 1) +
      R"(","labels":{"meshtrain.dev/leader":"true"},"ownerReferences":[{
    "kind":"TrainingJob","name":")" +
      job +
      R"(","uid":"j1","controller":true}]},"spec":{"containers":[{"name":"trainer","ports":[
    {"name":"meshtrain-http","containerPort":2280}]}]},"status":{"phase":"Running","podIP":")" +
      ip + R"("}})");
}

// An answer of a process that sends more than it may.
constexpr char kPastTheLimits[] = "past the limits";

// Leaders and the network between, in virtual time: whoever is there answers after 10 ms, whoever
// is not lets the 2 s of a read pass.
class VirtualNetwork : public ProgressNetwork {
 public:
  VirtualNetwork(testing::FakeClock& clock,
                 std::function<std::string(const ProgressTarget&)> answer,
                 std::function<void()> on_wait)
      : clock_(clock), answer_(std::move(answer)), on_wait_(std::move(on_wait)) {}

  void Ask(int64_t id, const ProgressTarget& target) override {
    asked[target.ip].push_back(clock_.Monotonic());
    const std::string text = answer_(target);
    const Duration takes = text.empty() ? Duration(seconds(2)) : Duration(milliseconds(10));
    under_way_.emplace(clock_.Monotonic() + takes, std::pair(id, text));
    most = std::max(most, under_way_.size());
  }
  std::vector<Answer> Wait(Duration longest, std::stop_token) override {
    if (!under_way_.empty()) {
      longest = std::min(longest, under_way_.begin()->first - clock_.Monotonic());
    }
    clock_.Advance(std::max(longest, Duration(0)));
    on_wait_();
    std::vector<Answer> out;
    while (!under_way_.empty() && under_way_.begin()->first <= clock_.Monotonic()) {
      const auto& [id, text] = under_way_.begin()->second;
      out.push_back({id, text.empty()             ? Result<std::string>(Unavailable("nobody there"))
                         : text == kPastTheLimits ? Result<std::string>(DataLoss("too much"))
                                                  : Result<std::string>(text)});
      under_way_.erase(under_way_.begin());
    }
    return out;
  }
  void Interrupt() override {}

  std::map<std::string, std::vector<Duration>> asked;  // by address
  size_t most = 0;                                     // under way at once

 private:
  testing::FakeClock& clock_;
  const std::function<std::string(const ProgressTarget&)> answer_;
  const std::function<void()> on_wait_;
  std::multimap<Duration, std::pair<int64_t, std::string>> under_way_;  // by when they end
};

class ProgressPullerTest : public ::testing::Test {
 protected:
  void Make(std::function<std::string(const ProgressTarget&)> answer, Duration until) {
    auto network = std::make_unique<VirtualNetwork>(clock_, std::move(answer), [this, until] {
      if (clock_.Monotonic() >= until) stop_.request_stop();
    });
    network_ = network.get();
    puller_ = std::make_unique<ProgressPuller>(store_, clock_, std::move(network),
                                               reconcile::ParseProgress,
                                               [this](const std::string& key) { ++woken_[key]; });
  }
  void Run() { puller_->Run(stop_.get_token()); }

  testing::FakeClock clock_;
  Store store_{[](const std::string&) {}};
  std::map<std::string, int> woken_;
  std::stop_source stop_;
  VirtualNetwork* network_ = nullptr;
  std::unique_ptr<ProgressPuller> puller_;
};

TEST_F(ProgressPullerTest, AsksTheLeaderOncePerPeriodAndWakesTheJobWhenItMoved) {
  PutRunningLeader(store_, "mnist", "p1", "10.0.0.9", 1);
  int asked = 0;
  Make(
      [&](const ProgressTarget& target) {
        EXPECT_EQ(target, (ProgressTarget{"10.0.0.9", 2280, "p1"}));
        return R"({"step":)" + std::to_string(++asked < 3 ? 10 : 20) + "}";
      },
      milliseconds(20'500));
  for (int i = 0; i < 10; ++i) puller_->Follow("ml/mnist");
  puller_->Follow("ml/other");
  Run();
  EXPECT_EQ(asked, 4);
  const auto& at = network_->asked["10.0.0.9"];
  for (size_t i = 0; i < at.size(); ++i) {
    EXPECT_GE(at[i], seconds(5) * (i + 1));
    EXPECT_LE(at[i], milliseconds(5010) * (i + 1));
  }
  EXPECT_EQ(woken_["ml/mnist"], 2);
  ASSERT_TRUE(puller_->Last("ml/mnist"));
  EXPECT_EQ(puller_->Last("ml/mnist")->progress.step, 20);
  // First seen with the third answer, and not since the fourth.
  EXPECT_EQ(puller_->Last("ml/mnist")->standing_since,
            clock_.Now() - clock_.Monotonic() + at[2] + milliseconds(10));
  EXPECT_EQ(puller_->Last("ml/mnist")->next_answer,
            clock_.Now() - clock_.Monotonic() + at[3] + milliseconds(10) + seconds(5 + 3));
}

TEST_F(ProgressPullerTest, AnAnswerPastTheLimitsIsAnErrorInTheLogAndWaitedOff) {
  PutRunningLeader(store_, "mnist", "p1", "10.0.0.9", 1);
  Make([](const ProgressTarget&) { return kPastTheLimits; }, minutes(5));
  puller_->Follow("ml/mnist");
  ::testing::internal::CaptureStderr();
  Run();
  const std::string log = ::testing::internal::GetCapturedStderr();
  EXPECT_THAT(log, ::testing::HasSubstr("progress not read"));
  EXPECT_THAT(log, ::testing::HasSubstr("job=ml/mnist"));
  EXPECT_LE(network_->asked["10.0.0.9"].size(), 10u);
}

TEST_F(ProgressPullerTest, AsksASilentPodLessAndLess) {
  PutRunningLeader(store_, "mnist", "p1", "10.0.0.9", 1);
  Make([](const ProgressTarget&) { return ""; }, minutes(10));
  puller_->Follow("ml/mnist");
  Run();
  const auto& at = network_->asked["10.0.0.9"];
  ASSERT_GE(at.size(), 6u);
  EXPECT_EQ(at[1] - at[0], seconds(12));
  EXPECT_EQ(at[5] - at[4], seconds(62));
  EXPECT_TRUE(woken_.empty()) << "nothing was learnt";
  EXPECT_FALSE(puller_->Last("ml/mnist"));
}

TEST_F(ProgressPullerTest, AThousandUnreachableJobsStarveNone) {
  const auto put = [&](const std::string& job, const std::string& ip, int version) {
    PutRunningLeader(store_, job, "p-" + job, ip, version);
    puller_->Follow("ml/" + job);
  };
  int step = 0;
  Make(
      [&](const ProgressTarget& target) {
        return target.ip == "10.0.0.9" ? R"({"step":)" + std::to_string(++step) + "}" : "";
      },
      minutes(30));
  for (int i = 0; i < 1000; ++i) {
    put("lost-" + std::to_string(i),
        "10.1." + std::to_string(i / 250) + "." + std::to_string(i % 250), 10 + 2 * i);
  }
  put("mnist", "10.0.0.9", 5000);  // the last in the line
  Run();
  const auto& at = network_->asked["10.0.0.9"];
  ASSERT_GE(at.size(), 300u) << "half an hour";
  // At first nobody is known to be silent: four times 2 s for 256 each.
  EXPECT_LE(at[0], seconds(5 + 8));
  for (size_t i = 1; i < at.size(); ++i) EXPECT_LE(at[i] - at[i - 1], milliseconds(5020)) << i;
  EXPECT_LE(network_->most, size_t{ProgressPuller::kMostAsked});
  for (const auto& [ip, times] : network_->asked) {
    EXPECT_GE(times.size(), 20u) << ip << ": nor are the others given up";
  }
}

TEST_F(ProgressPullerTest, AThousandJobsThatMoveOnTakeTurns) {
  int step = 0;
  Make([&](const ProgressTarget&) { return R"({"step":)" + std::to_string(++step) + "}"; },
       minutes(5));
  for (int i = 0; i < 1000; ++i) {
    const std::string job = "tells-" + std::to_string(i);
    PutRunningLeader(store_, job, "p-" + job,
                     "10.1." + std::to_string(i / 250) + "." + std::to_string(i % 250), 10 + 2 * i);
    puller_->Follow("ml/" + job);
  }
  Run();
  std::vector<Duration> all;
  for (const auto& [ip, times] : network_->asked) {
    EXPECT_GE(times.size(), 19u) << ip << ": every 15 s, five minutes long";
    EXPECT_LE(times.size(), 21u) << ip;
    all.insert(all.end(), times.begin(), times.end());
  }
  EXPECT_EQ(network_->asked.size(), 1000u);
  std::sort(all.begin(), all.end());
  // The first time all are due at once.
  const auto second = std::upper_bound(all.begin(), all.end(), milliseconds(9'900));
  for (auto at = second; at + 67 < all.end(); ++at) {
    EXPECT_GE(*(at + 67) - *at, milliseconds(980)) << "67 in a second at most";
  }
}

TEST_F(ProgressPullerTest, AJobThatIsForgottenWhileItIsAskedStaysForgotten) {
  PutRunningLeader(store_, "mnist", "p1", "10.0.0.9", 1);
  Make(
      [&](const ProgressTarget&) {
        puller_->Forget("ml/mnist");
        return R"({"step":1})";
      },
      minutes(2));
  puller_->Follow("ml/mnist");
  Run();
  EXPECT_EQ(network_->asked["10.0.0.9"].size(), 1u);
  EXPECT_FALSE(puller_->Last("ml/mnist"));
}

}  // namespace
}  // namespace meshtrain::control
