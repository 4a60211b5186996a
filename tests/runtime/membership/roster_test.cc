#include "runtime/membership/roster.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <random>

#include "runtime/base/text.h"

namespace meshtrain::membership {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::HasSubstr;

constexpr cluster::TaskId kChief{cluster::Role::kChief, 0};
constexpr cluster::TaskId kWorker0{cluster::Role::kWorker, 0};
constexpr cluster::TaskId kWorker1{cluster::Role::kWorker, 1};
const std::vector<cluster::TaskId> kTasks = {kChief, kWorker0, kWorker1};

RosterOptions Options(uint64_t first_id = 1000) {
  return {.tasks = kTasks,
          .first_id = first_id,
          .lost_after = milliseconds(1500),
          .stuck_after = seconds(60),
          .tick = milliseconds(100)};
}

// A roster, its time, and what it answered last.
class RosterTest : public ::testing::Test {
 protected:
  void Handle(const RosterEvent& event) { answers_ = roster_.Handle(event, now_); }
  void Join(uint64_t connection, cluster::TaskId task, uint64_t instance, uint64_t last = 0,
            std::vector<uint64_t> last_members = {}) {
    Handle(Said{connection, JoinMessage{.task = task,
                                        .instance = instance,
                                        .last_incarnation = last,
                                        .checkpoint_step = static_cast<int64_t>(connection),
                                        .data_address = "d" + std::to_string(instance),
                                        .host = "h",
                                        .expected = kTasks,
                                        .last_members = std::move(last_members)}});
  }
  // Connections 1, 2, 3 of instances 11, 12, 13.
  void JoinAll() {
    Join(1, kChief, 11);
    Join(2, kWorker0, 12);
    Join(3, kWorker1, 13);
  }
  void Ask(uint64_t call, cluster::TaskId task, uint64_t instance, uint64_t round,
           std::string name = "plan", std::string text = "t", Duration timeout = seconds(10)) {
    Handle(Asked{call, AgreeMessage{task, instance, roster_.open(), round, std::move(name),
                                    std::move(text), timeout}});
  }
  void Tick(Duration passed, const std::vector<uint64_t>& heard) {
    for (Duration at{}; at < passed; at += milliseconds(100)) {
      now_ += milliseconds(100);
      for (const uint64_t connection : heard) roster_.Handle(Said{connection, BeatMessage{}}, now_);
      Handle(membership::Tick{});
      if (!answers_.empty()) return;
    }
  }

  // "1<welcome 1000" "2<alarm 1000 UNAVAILABLE: ..." "3<end ..." "call 7<..."
  std::vector<std::string> Said_() const {
    std::vector<std::string> out;
    for (const RosterAnswer& answer : answers_) {
      if (const auto* tell = std::get_if<Tell>(&answer)) {
        const std::string to = std::to_string(tell->connection) + "<";
        if (const auto* welcome = std::get_if<WelcomeMessage>(&tell->message)) {
          out.push_back(to + "welcome " + std::to_string(welcome->incarnation.id));
        } else if (const auto* alarm = std::get_if<AlarmMessage>(&tell->message)) {
          out.push_back(to + "alarm " + std::to_string(alarm->incarnation) + " " +
                        alarm->why.ToString());
        } else if (const auto* left = std::get_if<LeftMessage>(&tell->message)) {
          out.push_back(to + "left " + cluster::ToString(left->task));
        }
      } else if (const auto* end = std::get_if<End>(&answer)) {
        out.push_back(std::to_string(end->connection) + "<end " + end->why.ToString());
      } else {
        const auto& of_call = std::get<Answer>(answer);
        out.push_back(
            "call " + std::to_string(of_call.call) + "<" +
            (of_call.texts ? meshtrain::Join(*of_call.texts, ",") : of_call.status.ToString()));
      }
    }
    return out;
  }

  Roster roster_{Options()};
  Duration now_ = seconds(1);
  std::vector<RosterAnswer> answers_;
};

using Texts = std::vector<std::string>;

TEST_F(RosterTest, OpensWhenTheLastJoins) {
  Join(1, kChief, 11);
  EXPECT_EQ(Said_(), Texts{});
  Join(2, kWorker0, 12);
  EXPECT_EQ(roster_.Missing(), "worker-1 (never came)");
  EXPECT_EQ(roster_.open(), 0u);
  Join(3, kWorker1, 13);
  EXPECT_EQ(Said_(), (Texts{"1<welcome 1000", "2<welcome 1000", "3<welcome 1000"}));
  const auto& welcome = std::get<WelcomeMessage>(std::get<Tell>(answers_[1]).message);
  EXPECT_EQ(welcome.incarnation, (Incarnation{1000,
                                              1,
                                              {{kChief, "d11", "h", 1, 11},
                                               {kWorker0, "d12", "h", 2, 12},
                                               {kWorker1, "d13", "h", 3, 13}}}));
}

TEST_F(RosterTest, IdsStandAboveWhatAnyJoinerKnows) {
  Join(1, kChief, 11);
  Join(2, kWorker0, 12, 5000);
  Join(3, kWorker1, 13, 4999);
  EXPECT_EQ(roster_.open(), 5001u);
}

TEST_F(RosterTest, ABrokenStreamAlarmsTheOthersAndTheReturnOpensTheNext) {
  JoinAll();
  Handle(Broken{3, "connection closed"});
  EXPECT_EQ(Said_(), (Texts{"1<alarm 1000 UNAVAILABLE: worker-1 lost: connection closed",
                            "2<alarm 1000 UNAVAILABLE: worker-1 lost: connection closed"}));
  Handle(Broken{3, "connection closed"});
  EXPECT_EQ(Said_(), Texts{});
  Join(1, kChief, 11, 1000);
  Join(2, kWorker0, 12, 1000);
  EXPECT_EQ(roster_.Missing(), "worker-1 (lost: connection closed)");
  Join(4, kWorker1, 14);
  EXPECT_EQ(Said_(), (Texts{"1<welcome 1001", "2<welcome 1001", "4<welcome 1001"}));
  // The old process of worker-1 comes back: on a new stream, or with an agreement.
  Join(5, kWorker1, 13, 1000);
  EXPECT_EQ(Said_(), (Texts{"5<end FAILED_PRECONDITION: stale incarnation: worker-1 has a newer "
                            "process than this one"}));
  Ask(6, kWorker1, 13, 0);
  EXPECT_THAT(Said_(), ::testing::ElementsAre(HasSubstr("stale incarnation")));
  EXPECT_EQ(roster_.open(), 1001u);
}

TEST_F(RosterTest, SilenceIsALossAndOneMayComeBack) {
  JoinAll();
  Tick(seconds(10), {1, 2});
  EXPECT_EQ(now_, milliseconds(2600));  // 1.5 s after the last word, and one tick
  EXPECT_EQ(Said_(), (Texts{"1<alarm 1000 UNAVAILABLE: worker-1 lost: silent for 1.6 s",
                            "2<alarm 1000 UNAVAILABLE: worker-1 lost: silent for 1.6 s",
                            "3<end ABORTED: worker-1 lost: silent for 1.6 s"}));
  Join(1, kChief, 11, 1000);
  Join(2, kWorker0, 12, 1000);
  Join(4, kWorker1, 13, 1000);
  EXPECT_EQ(roster_.open(), 1001u);
}

TEST_F(RosterTest, WhatIsSaidOnAConnectionThatWasToldToEndCountsNoMore) {
  JoinAll();
  Tick(seconds(2), {1, 2});
  ASSERT_EQ(roster_.open(), 0u);
  Join(1, kChief, 11, 1000);
  Join(2, kWorker0, 12, 1000);
  // Written when worker-1 woke up, before it read that its stream is over. Else an incarnation
  // would open that the end of the stream closes at once.
  Join(3, kWorker1, 13, 1000);
  EXPECT_EQ(Said_(), Texts{});
  EXPECT_EQ(roster_.open(), 0u);
  Handle(Broken{3, "closed"});
  EXPECT_EQ(Said_(), Texts{});
  Join(4, kWorker1, 13, 1000);
  EXPECT_EQ(roster_.open(), 1001u);
}

TEST_F(RosterTest, AServerThatStoodStillBlamesNobodyForIt) {
  JoinAll();
  Tick(milliseconds(200), {1, 2, 3});
  now_ += seconds(30);
  Handle(membership::Tick{});
  EXPECT_EQ(Said_(), Texts{});
  Tick(seconds(10), {1, 2});  // who is silent after it is lost
  EXPECT_THAT(Said_(), ::testing::Contains(HasSubstr("worker-1 lost: silent for 1.")));
}

TEST_F(RosterTest, AnotherProcessOfALiveTaskWaits) {
  JoinAll();
  Join(4, kWorker1, 14);
  EXPECT_EQ(Said_(),
            (Texts{"4<end UNAVAILABLE: worker-1: another process of this task is here and alive"}));
  EXPECT_EQ(roster_.open(), 1000u);
  Handle(Broken{3, "connection closed"});
  Join(5, kWorker1, 14);
  EXPECT_EQ(Said_(), Texts{});
}

TEST_F(RosterTest, OneThatWasReplacedBeforeItWasAMemberStaysOut) {
  Join(1, kWorker1, 13);
  Handle(Broken{1, "connection closed"});
  Join(2, kWorker1, 14);
  Join(3, kWorker1, 13);
  EXPECT_THAT(Said_(),
              ::testing::ElementsAre(HasSubstr("3<end FAILED_PRECONDITION: stale incarnation")));
}

TEST_F(RosterTest, ANewConnectionOfAMemberEndsTheIncarnation) {
  JoinAll();
  Join(4, kWorker1, 13, 1000);
  EXPECT_EQ(Said_(),
            (Texts{"1<alarm 1000 UNAVAILABLE: worker-1 lost: connection lost, and made anew",
                   "2<alarm 1000 UNAVAILABLE: worker-1 lost: connection lost, and made anew",
                   "3<end ABORTED: this process has a newer connection"}));
  Handle(Broken{3, "connection closed"});  // of the old one, late
  EXPECT_EQ(Said_(), Texts{});
  Join(3, kWorker1, 13, 1000);  // of the old one, later still
  EXPECT_EQ(Said_(), (Texts{"3<end UNAVAILABLE: this process has a newer connection"}));
  Join(1, kChief, 11, 1000);
  Join(2, kWorker0, 12, 1000);
  EXPECT_EQ(roster_.open(), 1001u);
}

TEST_F(RosterTest, AJoinThatCrossedItsWelcomeIsWelcomedAgain) {
  JoinAll();
  Join(3, kWorker1, 13);
  EXPECT_EQ(Said_(), (Texts{"3<welcome 1000"}));
  Join(3, kWorker1, 13, 1000);
  EXPECT_EQ(Said_(),
            (Texts{"1<alarm 1000 UNAVAILABLE: worker-1 gave up incarnation 1000 and joins anew",
                   "2<alarm 1000 UNAVAILABLE: worker-1 gave up incarnation 1000 and joins anew"}));
}

TEST_F(RosterTest, ANewServerLearnsWhoWasReplaced) {
  // Incarnation 900 was of instances 1, 2, 30; before that instance 3 was worker-1. The server is
  // new and knows nothing.
  Join(1, kWorker1, 3, 800, {1, 2, 3});
  EXPECT_EQ(Said_(), Texts{});
  Join(2, kWorker0, 2, 900, {1, 2, 30});
  EXPECT_THAT(Said_(),
              ::testing::ElementsAre(HasSubstr("1<end FAILED_PRECONDITION: stale incarnation")));
  Join(3, kWorker1, 3, 800, {1, 2, 3});
  EXPECT_THAT(Said_(),
              ::testing::ElementsAre(HasSubstr("3<end FAILED_PRECONDITION: stale incarnation")));
  Join(4, kChief, 100);
  Join(5, kWorker1, 30, 900, {1, 2, 30});
  EXPECT_EQ(Said_(), (Texts{"4<welcome 1000", "2<welcome 1000", "5<welcome 1000"}));
}

TEST_F(RosterTest, BetweenProcessesThatNobodyKnowsTheLaterMemberIsTheNewer) {
  Join(1, kWorker1, 13, 800);
  Join(2, kWorker1, 14, 900);
  EXPECT_THAT(Said_(),
              ::testing::ElementsAre(HasSubstr("1<end FAILED_PRECONDITION: stale incarnation")));
  Join(3, kWorker1, 15, 850);
  EXPECT_THAT(Said_(),
              ::testing::ElementsAre(HasSubstr("3<end FAILED_PRECONDITION: stale incarnation")));
  Handle(Broken{2, "connection closed"});
  Join(4, kWorker1, 16);  // never was a member: newer than all
  EXPECT_EQ(Said_(), Texts{});
  Join(5, kWorker1, 14, 900);
  EXPECT_THAT(Said_(),
              ::testing::ElementsAre(HasSubstr("5<end FAILED_PRECONDITION: stale incarnation")));
}

TEST_F(RosterTest, StrangersAreRefused) {
  Join(1, {cluster::Role::kWorker, 7}, 11);
  EXPECT_THAT(Said_(),
              ::testing::ElementsAre(
                  "1<end FAILED_PRECONDITION: expected one of the members chief-0, worker-0, "
                  "worker-1, got: worker-7"));
  Handle(Said{2, JoinMessage{.task = kWorker1, .instance = 1, .expected = {kChief, kWorker1}}});
  EXPECT_THAT(Said_(),
              ::testing::ElementsAre(
                  "2<end FAILED_PRECONDITION: worker-1 knows another cluster: expected the "
                  "members chief-0, worker-0, worker-1, got: chief-0, worker-1"));
  Join(3, kWorker1, 0);
  EXPECT_THAT(Said_(), ::testing::ElementsAre(HasSubstr("3<end INVALID_ARGUMENT")));
  Join(4, kWorker1, 13, kMaxIncarnation);
  EXPECT_THAT(Said_(), ::testing::ElementsAre(HasSubstr("4<end INVALID_ARGUMENT")));
  Handle(Said{5, BeatMessage{}});
  Handle(Said{6, LeaveMessage{}});
  EXPECT_EQ(Said_(), Texts{});
}

TEST_F(RosterTest, AgreementGathersByPlaceAndCountsRounds) {
  JoinAll();
  Ask(7, kWorker1, 13, 0, "plan", "c");
  Ask(8, kChief, 11, 0, "plan", "a");
  EXPECT_EQ(Said_(), Texts{});
  Ask(9, kWorker0, 12, 0, "plan", "b");
  EXPECT_EQ(Said_(), (Texts{"call 8<a,b,c", "call 9<a,b,c", "call 7<a,b,c"}));
  // An answer that did not arrive can be asked for again, also when others are a round ahead.
  Ask(10, kChief, 11, 1, "next");
  Ask(11, kWorker0, 12, 0, "plan", "b");
  EXPECT_EQ(Said_(), (Texts{"call 11<a,b,c"}));
  Ask(12, kWorker0, 12, 5);
  EXPECT_THAT(Said_(), ::testing::ElementsAre(HasSubstr("call 12<FAILED_PRECONDITION")));
  Ask(13, kWorker1, 13, ~uint64_t{0});
  EXPECT_THAT(Said_(), ::testing::ElementsAre(HasSubstr("call 13<FAILED_PRECONDITION")));
}

TEST_F(RosterTest, AnAgreementEndsAlikeForAll) {
  JoinAll();
  Ask(7, kChief, 11, 0, "plan");
  Ask(8, kWorker0, 12, 0, "resume");
  const std::string differ =
      "FAILED_PRECONDITION: members disagree on what to agree on: chief-0 expects \"plan\", got: "
      "\"resume\" from worker-0";
  EXPECT_EQ(Said_(), (Texts{"call 7<" + differ, "call 8<" + differ}));
  Ask(9, kWorker1, 13, 0, "plan");
  EXPECT_EQ(Said_(), (Texts{"call 9<" + differ}));

  Ask(10, kChief, 11, 1, "x", "t", seconds(10));
  Ask(11, kWorker1, 13, 1, "x", "t", milliseconds(500));
  Tick(seconds(1), {1, 2, 3});
  const std::string late =
      "DEADLINE_EXCEEDED: agree on \"x\": worker-0 did not come within 0.5 s; here: chief-0, "
      "worker-1; worker-0 stands at step 0, collective 0, and computes";
  EXPECT_EQ(Said_(), (Texts{"call 10<" + late, "call 11<" + late}));
  Ask(12, kWorker0, 12, 1, "x");
  EXPECT_EQ(Said_(), (Texts{"call 12<" + late}));

  Ask(13, kChief, 11, 2, "y");
  Ask(14, kWorker0, 12, 2, "y");
  Handle(Withdrawn{14});
  EXPECT_THAT(Said_(),
              ::testing::Contains("call 13<UNAVAILABLE: agree on \"y\": worker-0 waits no longer"));

  Ask(15, kChief, 11, 3, "z");
  Handle(Broken{2, "connection closed"});
  EXPECT_THAT(Said_(),
              ::testing::Contains("call 15<UNAVAILABLE: worker-0 lost: connection closed"));
  Handle(Asked{16, AgreeMessage{kWorker1, 13, 1000, 3, "z", "", seconds(1)}});
  EXPECT_EQ(Said_(), (Texts{"call 16<UNAVAILABLE: worker-0 lost: connection closed"}));
}

TEST_F(RosterTest, ALeaveIsNoAlarm) {
  JoinAll();
  Ask(7, kChief, 11, 0);
  Handle(Said{3, LeaveMessage{}});
  EXPECT_EQ(Said_(), (Texts{"call 7<UNAVAILABLE: worker-1 left", "1<left worker-1",
                            "2<left worker-1", "3<left worker-1", "3<end OK"}));
  Handle(Broken{3, "connection closed"});
  EXPECT_EQ(Said_(), Texts{});
  Ask(8, kWorker0, 12, 1);
  EXPECT_EQ(Said_(), (Texts{"call 8<UNAVAILABLE: worker-1 left"}));
  Handle(Broken{2, "connection closed"});
  EXPECT_EQ(Said_(), (Texts{"1<alarm 1000 UNAVAILABLE: worker-0 lost: connection closed"}));
  Join(1, kChief, 11, 1000);
  EXPECT_EQ(roster_.Missing(), "worker-0 (lost: connection closed), worker-1 (left)");
  Join(4, kWorker0, 14);
  Join(5, kWorker1, 15);
  EXPECT_EQ(roster_.open(), 1001u);
}

TEST_F(RosterTest, AllMayLeave) {
  JoinAll();
  for (const uint64_t connection : {1, 2, 3}) Handle(Said{connection, LeaveMessage{}});
  EXPECT_EQ(roster_.open(), 0u);
}

TEST_F(RosterTest, AStuckMemberEndsTheIncarnationOnce) {
  JoinAll();
  const auto beat = [&](uint64_t connection, int64_t step, std::string at) {
    roster_.Handle(Said{connection, BeatMessage{1000, {step, 1, std::move(at)}}}, now_);
  };
  int alarms = 0;
  for (int i = 0; i < 700; ++i) {
    now_ += milliseconds(100);
    beat(1, 42, "all_reduce");
    beat(2, 42, "all_reduce");
    beat(3, 41, "");
    Handle(membership::Tick{});
    for (const std::string& said : Said_()) {
      EXPECT_THAT(said, HasSubstr("worker-1 stuck"));
      ++alarms;
    }
  }
  EXPECT_EQ(alarms, 3);  // the stuck one hears it too
}

// Any sequence of events whatever, of few processes that repeat themselves: what is always true
// stays true.
TEST(RosterFuzzTest, KeepsItsPromisesUnderAnyEvents) {
  const char* given = std::getenv("MT_TEST_SEED");
  const uint64_t first = given != nullptr ? std::strtoull(given, nullptr, 10) : 1;
  const uint64_t seeds = given != nullptr ? 1 : 300;
  int64_t opened = 0;
  int64_t agreed = 0;
  for (uint64_t seed = first; seed < first + seeds; ++seed) {
    SCOPED_TRACE("MT_TEST_SEED=" + std::to_string(seed));
    std::mt19937_64 random(seed);
    const auto pick = [&](uint64_t below) { return random() % below; };
    Roster roster(Options(1));
    Duration now{};
    uint64_t highest = 0;
    std::vector<uint64_t> instances;  // of the open incarnation
    std::map<uint64_t, cluster::TaskId> connections;
    std::map<uint64_t, AgreeMessage> calls;
    std::map<std::pair<uint64_t, uint64_t>, std::vector<std::string>> outcomes;
    std::set<uint64_t> answered;
    uint64_t next_call = 1;
    uint64_t next_round = 0;
    for (int i = 0; i < 400; ++i) {
      now += milliseconds(pick(200));
      RosterEvent event;
      const uint64_t connection = 1 + pick(12);
      // Each connection is of one process, as in life; three processes a task.
      const size_t place = connection % 3;
      const cluster::TaskId task = kTasks[place];
      const uint64_t instance = 10 * (1 + place) + (connection / 3) % 3;
      const uint64_t what = pick(100);
      if (what < (roster.open() == 0 ? 50 : 4)) {
        event = Said{
            connection,
            JoinMessage{.task = task,
                        .instance = instance,
                        .last_incarnation = pick(3) == 0 ? highest : pick(2) * pick(highest + 1),
                        .expected = kTasks,
                        .last_members = pick(2) == 0 ? instances : std::vector<uint64_t>{}}};
      } else if (what < 53) {
        event = Said{connection, BeatMessage{highest, {}}};
      } else if (what < 56) {
        event = Broken{connection, "x"};
      } else if (what < 57) {
        event = Said{connection, LeaveMessage{}};
      } else if (what < 65) {
        event = Tick{};
      } else if (what < 67) {
        event = Withdrawn{1 + pick(next_call)};
      } else {
        AgreeMessage message{task,
                             pick(8) == 0 || instances.empty() ? instance : instances[place],
                             pick(16) == 0 ? pick(highest + 2) : highest,
                             pick(8) == 0 ? pick(4) : next_round,
                             pick(32) == 0 ? "other" : "plan",
                             "",
                             seconds(1 + pick(5))};
        message.text = std::to_string(message.instance);
        calls[next_call] = message;
        event = Asked{next_call++, std::move(message)};
      }
      uint64_t welcomed = 0;
      std::vector<uint64_t> members;
      for (const RosterAnswer& answer : roster.Handle(event, now)) {
        if (const auto* tell = std::get_if<Tell>(&answer)) {
          const auto* welcome = std::get_if<WelcomeMessage>(&tell->message);
          if (welcome == nullptr) continue;
          welcomed = welcome->incarnation.id;
          members.clear();
          for (const Member& member : welcome->incarnation.members) {
            members.push_back(member.instance);
          }
        } else if (const auto* of_call = std::get_if<Answer>(&answer)) {
          EXPECT_TRUE(answered.insert(of_call->call).second) << "answered twice";
          const AgreeMessage& asked = calls.at(of_call->call);
          if (asked.incarnation == highest && asked.round == next_round) ++next_round;
          if (of_call->texts == nullptr) {
            EXPECT_FALSE(of_call->status.ok());
            continue;
          }
          ++agreed;
          // An agreement of an incarnation is of its members, and the same for all.
          EXPECT_EQ(asked.incarnation, highest);
          std::vector<std::string> want;
          for (const uint64_t member : instances) want.push_back(std::to_string(member));
          EXPECT_EQ(*of_call->texts, want);
          EXPECT_NE(std::find(instances.begin(), instances.end(), asked.instance), instances.end())
              << "a stale member";
          const auto [at, fresh] =
              outcomes.try_emplace({asked.incarnation, asked.round}, *of_call->texts);
          EXPECT_EQ(at->second, *of_call->texts);
        }
      }
      if (welcomed != 0 && welcomed != highest) {
        ++opened;
        EXPECT_GT(welcomed, highest) << "ids rise";
        highest = welcomed;
        instances = members;
        next_round = 0;
      }
      EXPECT_THAT(roster.open(), ::testing::AnyOf(0u, highest));
    }
    if (::testing::Test::HasFailure()) break;
  }
  // The test saw what it is about.
  if (given == nullptr) {
    EXPECT_GT(opened, 500);
    EXPECT_GT(agreed, 100);
  }
}

}  // namespace
}  // namespace meshtrain::membership
