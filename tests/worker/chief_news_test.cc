// What a server or a worker makes of its chief, and when it goes, on a clock of the test's.
#include "worker/chief_news.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

#include "tests/support/fake_clock.h"

namespace meshtrain::worker {
namespace {

using parameter::ChiefSeen;
using std::chrono::milliseconds;
using std::chrono::minutes;
using std::chrono::seconds;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

std::string Logged(const std::function<void()>& act) {
  ::testing::internal::CaptureStderr();
  act();
  return ::testing::internal::GetCapturedStderr();
}

cluster::TfConfig ServerOf(bool with_chief) {
  cluster::TfConfig config{.cluster = {}, .task = {cluster::Role::kPs, 0}};
  if (with_chief) config.cluster.hosts[cluster::Role::kChief][0] = "chief:1";
  config.cluster.hosts[cluster::Role::kWorker] = {{0, "worker-0:1"}, {1, "worker-1:1"}};
  config.cluster.hosts[cluster::Role::kPs][0] = "ps:1";
  return config;
}

class ChiefNewsTest : public ::testing::Test {
 protected:
  // As often as processes look, until `time`; the end of the last look, and what all of them said.
  Status LookUntil(Duration time, const ChiefSeen& seen) {
    Status status;
    said_ = Logged([&] {
      while (clock_.Monotonic() < time) {
        clock_.Advance(std::min(kLook, time - clock_.Monotonic()));
        status = news_.Look(seen);
      }
    });
    return status;
  }

  testing::FakeClock clock_;
  ChiefNews news_{ServerOf(/*with_chief=*/true), /*peer_return=*/seconds(4), clock_};
  std::string said_;
};

TEST_F(ChiefNewsTest, AChiefIsLostOnceItIsSilentAndBackOnceItIsHeard) {
  const ChiefSeen seen{.heard = Duration(0)};
  EXPECT_TRUE(LookUntil(milliseconds(1499), seen).ok());
  EXPECT_THAT(said_, IsEmpty());
  EXPECT_TRUE(LookUntil(milliseconds(1500), seen).ok());
  EXPECT_THAT(said_, HasSubstr("the chief is lost"));
  EXPECT_THAT(said_, HasSubstr("chief-0"));
  EXPECT_TRUE(LookUntil(seconds(2), seen).ok());
  EXPECT_THAT(said_, IsEmpty()) << "it is said once";
  EXPECT_TRUE(LookUntil(milliseconds(2100), {.heard = milliseconds(2050)}).ok());
  EXPECT_THAT(said_, HasSubstr("the chief is back"));
}

TEST_F(ChiefNewsTest, AChiefThatStaysAwayIsWaitedForAsLongAsTheJobSays) {
  const ChiefSeen seen{.heard = Duration(0)};
  EXPECT_TRUE(LookUntil(milliseconds(3999), seen).ok());
  const Status away = LookUntil(seconds(4), seen);
  EXPECT_EQ(away.code(), StatusCode::kUnavailable);
  EXPECT_EQ(away.origin(), Origin::kPeers);
  EXPECT_THAT(away.message(), HasSubstr("chief-0: expected it back within 4 s"));
}

TEST_F(ChiefNewsTest, WhoStoodStillItselfHasHeardNothingMeanwhile) {
  const ChiefSeen seen{.heard = Duration(0)};
  clock_.Advance(minutes(1));
  EXPECT_THAT(Logged([&] { EXPECT_TRUE(news_.Look(seen).ok()); }), IsEmpty());
  EXPECT_TRUE(LookUntil(seconds(63), seen).ok());
  EXPECT_THAT(said_, HasSubstr("the chief is lost"));
  EXPECT_EQ(LookUntil(seconds(64), seen).code(), StatusCode::kUnavailable);
}

TEST_F(ChiefNewsTest, AChiefThatNeverCameIsWaitedForTenMinutes) {
  EXPECT_TRUE(LookUntil(minutes(10) - milliseconds(1), {}).ok());
  const Status none = LookUntil(minutes(10), {});
  EXPECT_THAT(none.message(), HasSubstr("chief-0: expected it to call within 600 s, got: nothing"));
}

TEST_F(ChiefNewsTest, OthersThatTheChiefMissesAreSaidOnceAndNotWeOurselves) {
  const auto look = [&](std::vector<std::string> lost) {
    return Logged([&] {
      const ChiefSeen seen{.heard = clock_.Monotonic(), .left = false, .lost = std::move(lost)};
      EXPECT_TRUE(news_.Look(seen).ok());
    });
  };
  const std::string said = look({"ps-0", "worker-1"});
  EXPECT_THAT(said, HasSubstr("worker-1"));
  EXPECT_THAT(said, Not(HasSubstr("ps-0")));
  EXPECT_THAT(look({"ps-0", "worker-1"}), IsEmpty());
  EXPECT_THAT(look({}), IsEmpty());
  EXPECT_THAT(look({"worker-1"}), HasSubstr("lost, says the chief")) << "it was back meanwhile";
}

TEST_F(ChiefNewsTest, WithoutAChiefTheFirstWorkerIsIt) {
  ChiefNews news(ServerOf(/*with_chief=*/false), Duration(0), clock_);
  clock_.Advance(minutes(10));
  EXPECT_THAT(news.Look({}).message(), HasSubstr("worker-0: expected it to call"));
}

class ServingTest : public ::testing::Test {
 protected:
  bool MayEnd(const ChiefSeen& chief) {
    bool may = false;
    ::testing::internal::CaptureStdout();
    logged_ = Logged([&] { may = serving_.MayEnd(chief); });
    said_ = ::testing::internal::GetCapturedStdout();
    return may;
  }
  ChiefSeen Heard() const { return {.heard = clock_.Monotonic()}; }

  testing::FakeClock clock_;
  std::stop_source stop_;
  Serving serving_{/*serve=*/seconds(27), stop_.get_token(), clock_};
  std::string said_, logged_;
};

TEST_F(ServingTest, WhoWasNotAskedServesOn) {
  EXPECT_FALSE(MayEnd({}));
  clock_.Advance(std::chrono::hours(1));
  EXPECT_FALSE(MayEnd({.heard = Duration(0), .left = true}));
}

TEST_F(ServingTest, WhoHasNoChiefGoesAtOnce) {
  stop_.request_stop();
  EXPECT_TRUE(MayEnd({}));
  EXPECT_THAT(said_ + logged_, IsEmpty());
}

TEST_F(ServingTest, AChiefIsServedToItsEndOrForAllTheTimeThereIs) {
  clock_.Advance(minutes(5));
  stop_.request_stop();
  EXPECT_FALSE(MayEnd(Heard()));
  EXPECT_THAT(said_, HasSubstr("serving until the chief has saved, for 27 s at most"));
  clock_.Advance(seconds(26));
  EXPECT_FALSE(MayEnd(Heard()));
  EXPECT_THAT(said_, IsEmpty()) << "it is said once";
  EXPECT_TRUE(MayEnd({.heard = clock_.Monotonic(), .left = true}));
  EXPECT_THAT(logged_, IsEmpty());
  clock_.Advance(seconds(1));
  EXPECT_TRUE(MayEnd(Heard()));
  EXPECT_THAT(logged_, HasSubstr("the chief has not come to its end in time"));
}

TEST_F(ServingTest, APauseEndsWithTheStopThatHasNotBeenSeen) {
  serving_.Pause();
  EXPECT_EQ(clock_.Monotonic(), Duration(kLook));
  stop_.request_stop();
  serving_.Pause();
  EXPECT_EQ(clock_.Monotonic(), Duration(kLook)) << "there is something to see to";
  EXPECT_FALSE(MayEnd(Heard()));
  serving_.Pause();
  EXPECT_EQ(clock_.Monotonic(), 2 * kLook) << "and then it looks as often as before";
}

}  // namespace
}  // namespace meshtrain::worker
