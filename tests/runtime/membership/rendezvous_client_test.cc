#include "runtime/membership/rendezvous_client.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace meshtrain::membership {
namespace {

using std::chrono::milliseconds;
using Phase = RendezvousClient::Phase;
using ::testing::HasSubstr;

const cluster::TaskId kChief{cluster::Role::kChief, 0}, kWorker{cluster::Role::kWorker, 0};

class RendezvousClientTest : public ::testing::Test {
 protected:
  Incarnation Of(uint64_t id) const {
    return {.id = id,
            .process = 1,
            .members = {{.task = kChief, .instance = 5}, {.task = kWorker, .instance = 7}}};
  }
  // A stream over which the worker becomes a member.
  void Become(uint64_t id, Duration now) {
    worker_.Join(-1);
    worker_.Opening(now);
    worker_.Opened(now);
    worker_.Heard(WelcomeMessage{Of(id)}, now);
  }

  RendezvousClient worker_{{.task = kWorker,
                            .server = kChief,
                            .instance = 7,
                            .data_address = "here:1",
                            .host = "here",
                            .expected = {kChief, kWorker},
                            .heartbeat = milliseconds(100),
                            .lost_after = milliseconds(1500),
                            .connect_timeout = milliseconds(3000),
                            .look_again = milliseconds(5000)}};
};

TEST_F(RendezvousClientTest, WhoStoodStillLongerThanSilenceMayLastGivesItsIncarnationUp) {
  Become(1, milliseconds(0));
  worker_.Tick({}, milliseconds(100));
  worker_.Tick({}, milliseconds(1800));
  EXPECT_EQ(worker_.phase(), Phase::kOver);
  EXPECT_THAT(worker_.alarm()->message(), HasSubstr("worker-0 lost: stood still for 1.7 s"));
}

// A join that is said, and then the stream is cut: whoever it completed would begin with nobody.
TEST_F(RendezvousClientTest, WhoServesLooksAgainAfterJoiningSoLongAndNotBecauseItsStreamIsOld) {
  RendezvousClient server{{.task = kChief,
                           .server = kChief,
                           .instance = 5,
                           .expected = {kChief, kWorker},
                           .heartbeat = milliseconds(100),
                           .lost_after = milliseconds(1500),
                           .connect_timeout = milliseconds(3000),
                           .look_again = milliseconds(5000)}};
  server.Join(-1);
  server.Opening(milliseconds(0));
  server.Opened(milliseconds(0));
  server.Heard(WelcomeMessage{Of(1)}, milliseconds(0));
  Duration now{};
  const auto until = [&](Duration end) {
    for (; now <= end; now += milliseconds(100)) {
      server.Heard(PulseMessage{}, now);
      server.Tick({}, now);
    }
  };
  const auto joins = [&] {
    int joins = 0;
    for (const MemberMessage& message : server.TakeOutgoing()) {
      joins += std::holds_alternative<JoinMessage>(message) ? 1 : 0;
    }
    return joins;
  };
  until(milliseconds(20000));
  EXPECT_EQ(joins(), 1);
  server.Join(3);
  until(milliseconds(20200));
  EXPECT_FALSE(server.wants_end()) << "it has joined for 0.2 s";
  EXPECT_EQ(joins(), 1);
  until(milliseconds(25500));
  EXPECT_TRUE(server.wants_end());
  // Nothing is said on a stream that is about to be cut.
  server.Join(4);
  EXPECT_FALSE(server.has_outgoing());
  EXPECT_EQ(joins(), 0);
  server.Ended(Unavailable("cut"));
  server.Opening(now);
  server.Opened(now);
  EXPECT_EQ(joins(), 1);
}

TEST_F(RendezvousClientTest, APauseIsNotHeldAgainstTheIncarnationThatBeganAfterIt) {
  Become(1, milliseconds(0));
  worker_.Tick({}, milliseconds(100));
  // Stopped, given up, continued: the reading thread hears of it and joins again before the beating
  // one looks at its clock.
  worker_.Ended(Aborted("worker-0 lost: silent for 1.5 s"));
  EXPECT_EQ(worker_.phase(), Phase::kOver);
  Become(2, milliseconds(1800));
  worker_.Tick({}, milliseconds(1801));
  EXPECT_EQ(worker_.phase(), Phase::kIn);
  EXPECT_EQ(worker_.incarnation().id, 2u);
  EXPECT_FALSE(worker_.wants_end());
}

TEST_F(RendezvousClientTest, AServerThatIsSilentIsLeft) {
  Become(1, milliseconds(0));
  for (int at = 100; at <= 1500; at += 100) worker_.Tick({}, milliseconds(at));
  EXPECT_FALSE(worker_.wants_end());
  worker_.Tick({}, milliseconds(1600));
  EXPECT_TRUE(worker_.wants_end());
  worker_.Ended(Cancelled("cut"));
  EXPECT_EQ(worker_.phase(), Phase::kOver);
  EXPECT_EQ(worker_.alarm()->message(), "chief-0 lost: silent for 1.6 s");
}

}  // namespace
}  // namespace meshtrain::membership
