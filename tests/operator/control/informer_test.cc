#include "operator/control/informer.h"

#include <gtest/gtest.h>

#include <atomic>
#include <map>
#include <mutex>
#include <thread>

#include "operator/kube/json_slice.h"
#include "tests/support/fake_api.h"

namespace meshtrain::control {
namespace {

using testing::FakeApi;

std::string PodText(const std::string& name, const std::string& label = "yes") {
  return R"({"metadata":{"name":")" + name + R"(","namespace":"ml","labels":{"ours":")" + label +
         R"("}}})";
}

// A clock whose sleeps are short: back-offs are counted, not waited for.
class QuickClock : public Clock {
 public:
  TimePoint Now() const override { return SystemClock().Now(); }
  Duration Monotonic() const override { return SystemClock().Monotonic(); }
  bool SleepFor(Duration how_long, std::stop_token stop) override {
    longest = std::max(longest.load(), how_long.count());
    if (sleeps < 3) longest_of_three = longest.load();
    ++sleeps;
    return SystemClock().SleepFor(std::chrono::milliseconds(1), stop);
  }
  std::atomic<int> sleeps = 0;
  std::atomic<int64_t> longest = 0;
  std::atomic<int64_t> longest_of_three = 0;  // the first three
};

class InformerTest : public ::testing::Test {
 protected:
  void Start(bool needed = false) {
    Sink sink;
    sink.begin_list = [this] { listed_.clear(); };
    sink.listed = [this](std::string_view object) {
      listed_[std::string(kube::SliceString(object, {"metadata", "name"}))] = object;
    };
    sink.end_list = [this](int64_t, bool anew) {
      anew_ += anew ? 1 : 0;
      std::lock_guard lock(mutex_);
      seen_ = listed_;
    };
    sink.watched = [this](kube::WatchEventType type, int64_t, std::string_view object) {
      std::lock_guard lock(mutex_);
      const std::string name(kube::SliceString(object, {"metadata", "name"}));
      if (type == kube::WatchEventType::kDeleted) seen_.erase(name);
      if (type == kube::WatchEventType::kAdded || type == kube::WatchEventType::kModified) {
        seen_[name] = object;
      }
    };
    informer_ = std::make_unique<Informer>(
        api_, clock_,
        InformerOptions{
            .resource = kube::Pods(), .ns = "ml", .label_selector = "ours=yes", .needed = needed},
        sink);
    thread_ = std::jthread([this](std::stop_token stop) { informer_->Run(stop); });
  }
  // Waits until the informer's copy is what the server has.
  bool Settles() {
    for (int i = 0; i < 5000; ++i) {
      std::map<std::string, std::string> want;
      for (const std::string& text : api_.All(kube::Pods())) {
        if (text.find(R"("ours":"yes")") != std::string::npos) {
          want[std::string(kube::SliceString(text, {"metadata", "name"}))] = text;
        }
      }
      {
        std::lock_guard lock(mutex_);
        if (informer_->synced() && seen_ == want) return true;
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return false;
  }

  FakeApi api_;
  QuickClock clock_;
  std::mutex mutex_;
  std::map<std::string, std::string> listed_, seen_;
  std::atomic<int> anew_ = 0;
  std::unique_ptr<Informer> informer_;
  std::jthread thread_;
};

TEST_F(InformerTest, ListsThenFollows) {
  api_.Put(kube::Pods(), PodText("a"));
  api_.Put(kube::Pods(), PodText("foreign", "no"));
  Start();
  ASSERT_TRUE(Settles());
  api_.Put(kube::Pods(), PodText("b"));
  api_.Remove(kube::Pods(), "ml", "a");
  ASSERT_TRUE(Settles());
  EXPECT_EQ(informer_->lists(), 1);
}

TEST_F(InformerTest, TakesUpACutWatchWithoutListing) {
  api_.Put(kube::Pods(), PodText("a"));
  Start();
  ASSERT_TRUE(Settles());
  for (int i = 0; i < 5; ++i) {
    api_.CutWatches();
    api_.Put(kube::Pods(), PodText("p" + std::to_string(i)));
    ASSERT_TRUE(Settles());
  }
  EXPECT_EQ(informer_->lists(), 1);
  EXPECT_GE(informer_->watches(), 2);
}

TEST_F(InformerTest, ListsAgainWhenItsVersionIsGone) {
  api_.Put(kube::Pods(), PodText("a"));
  Start();
  ASSERT_TRUE(Settles());
  // Nothing can be watched while the change happens and is compacted away.
  api_.SetFault([](const FakeApi::Call& call, bool) {
    return call.verb == "watch" ? Unavailable("x") : OkStatus();
  });
  api_.CutWatches();
  api_.Put(kube::Pods(), PodText("b"));
  api_.Remove(kube::Pods(), "ml", "a");
  api_.Compact();
  api_.SetFault({});
  ASSERT_TRUE(Settles());
  EXPECT_EQ(informer_->lists(), 2);
}

TEST_F(InformerTest, ListsAnewWhenVersionsFell) {
  api_.Put(kube::Pods(), PodText("a"));
  api_.Put(kube::Pods(), PodText("b"));
  api_.Snapshot();
  Start();
  ASSERT_TRUE(Settles());
  for (int i = 0; i < 10; ++i) api_.Put(kube::Pods(), PodText("later" + std::to_string(i)));
  api_.Remove(kube::Pods(), "ml", "a");
  ASSERT_TRUE(Settles());
  api_.Restore();  // a watch from the version that we know would be silent for eleven changes
  ASSERT_TRUE(Settles());
  EXPECT_EQ(anew_, 1);
  api_.Put(kube::Pods(), PodText("c"));
  ASSERT_TRUE(Settles());
  EXPECT_EQ(informer_->lists(), 2);
}

TEST_F(InformerTest, InDoubtItIsNotSureUntilItHasAsked) {
  api_.Put(kube::Pods(), PodText("a"));
  Start();
  ASSERT_TRUE(Settles());
  EXPECT_TRUE(informer_->sure());
  std::atomic<bool> answers = false;
  api_.SetFault([&](const FakeApi::Call& call, bool) {
    while (call.verb == "version" && !answers) std::this_thread::yield();
    return OkStatus();
  });
  informer_->Doubt();  // its watch is open, and would stay so
  EXPECT_FALSE(informer_->sure());
  answers = true;
  while (!informer_->sure()) std::this_thread::yield();
  api_.SetFault({});
  api_.Put(kube::Pods(), PodText("b"));
  ASSERT_TRUE(Settles());
  EXPECT_EQ(informer_->lists(), 1) << "what it knew was right";
}

TEST_F(InformerTest, AServerThatWasAwayIsListedAnew) {
  api_.Put(kube::Pods(), PodText("a"));
  api_.Snapshot();
  Start();
  ASSERT_TRUE(Settles());
  for (int i = 0; i < 5; ++i) api_.Put(kube::Pods(), PodText("later" + std::to_string(i)));
  ASSERT_TRUE(Settles());
  api_.SetFault([](const FakeApi::Call&, bool) { return Unavailable("down"); });
  api_.Restore();
  // By the time it is back its versions are past ours.
  for (int i = 0; i < 20; ++i) api_.Put(kube::Pods(), PodText("new" + std::to_string(i)));
  const int sleeps = clock_.sleeps;
  while (clock_.sleeps < sleeps + 3) std::this_thread::yield();
  api_.SetFault({});
  ASSERT_TRUE(Settles());
  EXPECT_EQ(anew_, 1);
}

TEST_F(InformerTest, AKindThatIsNotAllowedIsLeftAloneUnlessAllWaitsForIt) {
  for (const bool needed : {false, true}) {
    api_.SetFault([](const FakeApi::Call&, bool) { return PermissionDenied("forbidden"); });
    clock_.longest = 0;
    clock_.sleeps = 0;
    Start(needed);
    while (clock_.sleeps < 3) std::this_thread::yield();
    // Of more than three the back-off makes long ones too.
    EXPECT_EQ(clock_.longest_of_three >= Duration(std::chrono::seconds(30)).count(), !needed);
    api_.SetFault({});
    EXPECT_TRUE(Settles());
    thread_ = {};
  }
}

TEST_F(InformerTest, BacksOffWhileTheServerIsAway) {
  api_.SetFault([](const FakeApi::Call&, bool) { return Unavailable("down"); });
  api_.Put(kube::Pods(), PodText("a"));
  Start();
  while (clock_.sleeps < 12) std::this_thread::yield();
  EXPECT_FALSE(informer_->synced());
  EXPECT_GE(clock_.longest, Duration(std::chrono::seconds(30)).count());
  EXPECT_LE(clock_.longest, Duration(std::chrono::seconds(60)).count());
  api_.SetFault({});
  EXPECT_TRUE(Settles());
}

}  // namespace
}  // namespace meshtrain::control
