#include "runtime/trainer/job/stop_times.h"

#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <string_view>

namespace meshtrain::trainer {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

TEST(StopTimesTest, EveryTimeFitsIntoTheOneAfterIt) {
  const auto usual_or = StopTimesIn([](std::string_view) { return std::optional<std::string>(); });
  ASSERT_TRUE(usual_or.ok());
  const cluster::StopTimes usual = *usual_or;
  EXPECT_EQ(usual.steps, seconds(15));
  EXPECT_EQ(usual.save, seconds(24));
  EXPECT_EQ(usual.serve, seconds(27));
  for (const Duration grace : {Duration{}, Duration{1}, Duration(milliseconds(1)),
                               Duration(seconds(1)), Duration(std::chrono::hours(1))}) {
    const cluster::StopTimes times = cluster::StopTimesOf(grace);
    EXPECT_LE(times.steps, times.save);
    EXPECT_LE(times.save, times.serve);
    EXPECT_LE(times.serve, grace);
  }
}

TEST(StopTimesTest, TheGracePeriodIsThePodsOwn) {
  const auto of = [](const std::string& text) {
    return StopTimesIn([&](std::string_view name) {
      return name == "MESHTRAIN_STOP_GRACE_SECONDS" ? std::optional(text) : std::nullopt;
    });
  };
  ASSERT_TRUE(of("600").ok());
  EXPECT_EQ(of("600")->serve, seconds(540));
  EXPECT_EQ(of("0")->serve, Duration{});
  ASSERT_TRUE(of("99999999999").ok());
  EXPECT_EQ(of("99999999999")->serve, of("2147483647")->serve) << "68 years";
  for (const char* wrong : {"soon", "-1"}) {
    EXPECT_EQ(of(wrong).status().message(),
              std::string("MESHTRAIN_STOP_GRACE_SECONDS: expected seconds from 0, got: ") + wrong);
  }
}

TEST(StopTimesTest, ServesWhileTheChiefIsThere) {
  const Duration asked = seconds(100), serve = seconds(27);
  const parameter::ChiefSeen there{.heard = seconds(109), .left = false};
  EXPECT_FALSE(MayLeave(there, asked, seconds(110), serve));
  EXPECT_FALSE(MayLeave(there, asked, seconds(114) - Duration{1}, serve));
  EXPECT_TRUE(MayLeave(there, asked, seconds(114), serve)) << "it has been silent";
  const parameter::ChiefSeen talks{.heard = seconds(127), .left = false};
  EXPECT_FALSE(MayLeave(talks, asked, seconds(127) - Duration{1}, serve));
  EXPECT_TRUE(MayLeave(talks, asked, seconds(127), serve)) << "its own time is over";
}

TEST(StopTimesTest, AChiefIsWaitedForSoLongAndNotLonger) {
  const Duration began = seconds(100);
  const auto stays = [&](parameter::ChiefSeen seen, Duration now, Duration peer_return) {
    const Status status = ChiefStays("chief-0", seen, began, now, peer_return);
    if (!status.ok()) {
      EXPECT_EQ(status.code(), StatusCode::kUnavailable);
      EXPECT_EQ(status.message().rfind("chief-0: expected it", 0), 0u) << status.ToString();
    }
    return status.ok();
  };
  // At first: ten minutes, whatever the time to return.
  EXPECT_TRUE(stays({}, seconds(700) - Duration{1}, Duration{}));
  EXPECT_FALSE(stays({}, seconds(700), seconds(3600)));
  // Once it was there.
  const parameter::ChiefSeen heard{.heard = seconds(1000)};
  EXPECT_TRUE(stays(heard, seconds(1120) - Duration{1}, seconds(120)));
  EXPECT_FALSE(stays(heard, seconds(1120), seconds(120)));
  // At once: as soon as it is lost.
  EXPECT_TRUE(stays(heard, seconds(1001), Duration{}));
  EXPECT_TRUE(stays(heard, seconds(1001), seconds(1)));
  EXPECT_FALSE(stays(heard, seconds(1000) + cluster::kLostAfter, Duration{}));
  // One that has left is waited for too, but not missed first.
  const parameter::ChiefSeen left{.heard = seconds(1000), .left = true};
  EXPECT_TRUE(stays(left, seconds(1119), seconds(120)));
  EXPECT_FALSE(stays(left, seconds(1120), seconds(120)));
  EXPECT_FALSE(stays(left, seconds(1000), Duration{}));
}

TEST(StopTimesTest, GoesAtOnceWhereThereIsNoChief) {
  const Duration now = seconds(100), serve = seconds(27);
  EXPECT_TRUE(MayLeave({}, now, now, serve)) << "none came";
  EXPECT_TRUE(MayLeave({.heard = now, .left = true}, now, now, serve));
  parameter::ChiefWatch watch;
  const auto may = [&] {
    const Duration at = SystemClock().Monotonic();
    return MayLeave(watch.seen(), at, at, serve);
  };
  EXPECT_TRUE(may());
  watch.Began();
  EXPECT_FALSE(may());
  watch.Left();
  EXPECT_TRUE(may());
  watch.Heard({});
  EXPECT_TRUE(may()) << "a ping that was on its way does not bring it back";
  watch.Began();
  EXPECT_FALSE(may()) << "the next chief is there";
}

TEST(StopTimesTest, TheLateStopComesAfterTheStopAndOnlyThen) {
  std::stop_source stop;
  LateStop late, later;
  ASSERT_TRUE(late.Start(stop.get_token(), milliseconds(50)).ok());
  ASSERT_TRUE(later.Start(stop.get_token(), std::chrono::hours(1)).ok());
  EXPECT_TRUE(SystemClock().SleepFor(milliseconds(100), late.token())) << "nobody has asked";
  stop.request_stop();
  EXPECT_FALSE(SystemClock().SleepFor(seconds(60), late.token()));
  EXPECT_FALSE(later.token().stop_requested());  // and its end waits for nothing
}

}  // namespace
}  // namespace meshtrain::trainer
