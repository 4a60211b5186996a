#include "runtime/membership/rendezvous_wire.h"

#include <gtest/gtest.h>

#include "proto/meshtrain/v1/rendezvous.pb.h"

namespace meshtrain::membership {
namespace {

constexpr cluster::TaskId kChief{cluster::Role::kChief, 0};
constexpr cluster::TaskId kWorker{cluster::Role::kWorker, 12};

// The two ends of one call.
struct Call {
  rpc::CallMac caller{"s3cret", "00ff", rpc::CallMac::End::kCaller};
  rpc::CallMac server{"s3cret", "00ff", rpc::CallMac::End::kServer};
};

TEST(RendezvousWireTest, EveryMessageComesBackAsItWas) {
  Call call;
  for (const MemberMessage& message : std::vector<MemberMessage>{
           JoinMessage{kWorker,
                       ~uint64_t{0},
                       7,
                       -1,
                       "10.0.0.1:5",
                       "host",
                       {kChief, kWorker},
                       {1, ~uint64_t{0}}},
           JoinMessage{}, BeatMessage{9, {41, 17, "all_reduce of %31", 3, "saving", 0.25}},
           BeatMessage{}, LeaveMessage{}}) {
    const auto back = OpenMember(Seal(message, call.caller), call.server);
    ASSERT_TRUE(back.ok()) << back.status().ToString();
    EXPECT_EQ(*back, message);
  }
  for (const RosterMessage& message : std::vector<RosterMessage>{
           WelcomeMessage{{.id = 5,
         .process = 1,
         .members = {{kChief, "a", "b", 3, 4}, {kWorker, "c", "d", -1, 5}}}},
           AlarmMessage{4, Unavailable("worker-12 lost: connection closed")},
           PulseMessage{"worker-12 (never came)"}, PulseMessage{}, LeftMessage{kWorker}}) {
    const auto back = OpenRoster(Seal(message, call.server), call.caller);
    ASSERT_TRUE(back.ok()) << back.status().ToString();
    EXPECT_EQ(*back, message);
  }
  const AgreeMessage agree{
      kWorker, 1, 2, 3, "plan", std::string("a\0b", 3), std::chrono::milliseconds(1500)};
  const auto back = OpenAgree(Seal(agree, call.caller), call.server);
  ASSERT_TRUE(back.ok());
  EXPECT_EQ(*back, agree);
  for (const std::vector<std::string>& texts :
       {std::vector<std::string>{}, {""}, {"a", "", std::string("b\0c", 3)}}) {
    const auto agreed = OpenAgreed(Seal(texts, call.server), call.caller);
    ASSERT_TRUE(agreed.ok());
    ASSERT_TRUE(agreed->ok());
    EXPECT_EQ(**agreed, texts);
  }
  const Status none = DeadlineExceeded("worker-12 did not come");
  const auto answer = OpenAgreed(Seal(none, call.server), call.caller);
  ASSERT_TRUE(answer.ok());
  EXPECT_EQ(answer->status(), none);
}

// Flips each bit of what travels, one at a time: it does not parse, or it is kDataLoss and counted.
template <typename Message, typename Open>
void ExpectEveryFlipRefused(const Message& message, const Open& open) {
  Call call;
  const v1::Sealed sealed = Seal(message, call.caller);
  const std::string bytes = sealed.SerializeAsString();
  const int64_t before = DamagedMessages();
  int64_t parsed = 0;
  for (size_t bit = 0; bit < 8 * bytes.size(); ++bit) {
    std::string changed = bytes;
    changed[bit / 8] = static_cast<char>(changed[bit / 8] ^ (1 << bit % 8));
    v1::Sealed came;
    if (!came.ParseFromString(changed)) continue;
    ++parsed;
    const Status status = open(came, call.server).status();
    EXPECT_EQ(status.code(), StatusCode::kDataLoss) << "bit " << bit << ": " << status.ToString();
    EXPECT_NE(status.message().find("bytes changed on the way"), std::string::npos);
  }
  EXPECT_GE(parsed, 256) << "at least the seal's";
  EXPECT_EQ(DamagedMessages() - before, parsed);
  EXPECT_TRUE(open(sealed, call.server).ok());
}

TEST(RendezvousWireTest, AnyBitThatChangesOnTheWayIsNoticed) {
  // -1 and ~0 take ten bytes, the last of which holds bits that protobuf would drop.
  for (const MemberMessage& message : std::vector<MemberMessage>{
           JoinMessage{
               kWorker, ~uint64_t{0}, ~uint64_t{0}, -1, "10.0.0.1:5", "host", {kChief}, {1}},
           BeatMessage{9, {41, 17, "all_reduce of %31", 3, "saving", 0.25}}, BeatMessage{},
           LeaveMessage{}}) {
    ExpectEveryFlipRefused(message, OpenMember);
  }
  for (const RosterMessage& message :
       std::vector<RosterMessage>{WelcomeMessage{{.id = 5,
       .process = 1,
       .members = {{kChief, "a", "b", 3, 4}, {kWorker, "c", "d", -1, 5}}}},
                                  AlarmMessage{4, Unavailable("worker-12 lost: connection closed")},
                                  PulseMessage{}, LeftMessage{kWorker}}) {
    ExpectEveryFlipRefused(message, OpenRoster);
  }
  ExpectEveryFlipRefused(
      AgreeMessage{kWorker, 1, 2, 3, "resume from", "40", std::chrono::seconds(2)}, OpenAgree);
  ExpectEveryFlipRefused(std::vector<std::string>{"40", "", "30"}, OpenAgreed);
  ExpectEveryFlipRefused(std::vector<std::string>{}, OpenAgreed);
  ExpectEveryFlipRefused(Unavailable("worker-12 left"), OpenAgreed);
}

TEST(RendezvousWireTest, WithoutASealNothingIsRead) {
  Call call;
  v1::Sealed sealed = Seal(MemberMessage(LeaveMessage{}), call.caller);
  sealed.clear_mac();
  const Status status = OpenMember(sealed, call.server).status();
  EXPECT_EQ(status.code(), StatusCode::kDataLoss);
  EXPECT_NE(status.message().find("expected the seal of its place in its call, got: none"),
            std::string::npos)
      << status.ToString();
  EXPECT_EQ(OpenAgreed(v1::Sealed(), call.caller).status().code(), StatusCode::kDataLoss);
}

TEST(RendezvousWireTest, AMessageIsReadOnceAndInItsOwnCall) {
  Call call, other{.caller = {"s3cret", "00fe", rpc::CallMac::End::kCaller},
                   .server = {"s3cret", "00fe", rpc::CallMac::End::kServer}};
  const v1::Sealed sealed = Seal(MemberMessage(JoinMessage{kWorker, 4}), call.caller);
  EXPECT_EQ(OpenMember(sealed, other.server).status().code(), StatusCode::kDataLoss);
  EXPECT_TRUE(OpenMember(sealed, call.server).ok());
  EXPECT_EQ(OpenMember(sealed, call.server).status().code(), StatusCode::kDataLoss);
}

TEST(RendezvousWireTest, WhatSaysNothingOrNoSenseIsRefused) {
  EXPECT_EQ(FromWire(v1::MemberSays()).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(FromWire(v1::RosterSays()).status().code(), StatusCode::kInvalidArgument);
  v1::MemberSays join;
  join.mutable_join()->mutable_task()->set_role("king");
  EXPECT_EQ(FromWire(join).status().code(), StatusCode::kInvalidArgument);
  join.mutable_join()->mutable_task()->set_role("worker");
  join.mutable_join()->mutable_task()->set_index(-1);
  EXPECT_EQ(FromWire(join).status().code(), StatusCode::kInvalidArgument);
  v1::RosterSays welcome;
  welcome.mutable_welcome()->set_process(1);
  EXPECT_EQ(FromWire(welcome).status().code(), StatusCode::kInvalidArgument);
}

TEST(RendezvousWireTest, AnAlarmIsNeverOk) {
  v1::RosterSays alarm;
  alarm.mutable_alarm()->set_code(0);
  EXPECT_EQ(std::get<AlarmMessage>(FromWire(alarm).value()).why.code(), StatusCode::kUnavailable);
  alarm.mutable_alarm()->set_code(99);
  EXPECT_EQ(std::get<AlarmMessage>(FromWire(alarm).value()).why.code(), StatusCode::kUnavailable);
}

TEST(RendezvousWireTest, TimeoutsOfStrangersAreBounded) {
  v1::AgreeRequest request;
  request.mutable_task()->set_role("chief");
  request.set_timeout_ms(INT64_MAX);
  EXPECT_LE(FromWire(request).value().timeout, std::chrono::hours(24 * 365));
  request.set_timeout_ms(INT64_MIN);
  EXPECT_EQ(FromWire(request).value().timeout, Duration(0));
}

}  // namespace
}  // namespace meshtrain::membership
