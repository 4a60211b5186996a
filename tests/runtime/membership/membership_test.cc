// Membership with its real server and streams, several members in one process.
#include "runtime/membership/membership.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <future>
#include <map>
#include <thread>

#include "tests/runtime/membership/alarms.h"
#include "tests/runtime/membership/membership_testing.h"

namespace meshtrain::membership {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Longer than anything here takes; a test that needs it has failed.
constexpr seconds kPatience{60};

std::unique_ptr<Membership> Make(MembershipOptions options) {
  auto made = Membership::Create(std::move(options));
  EXPECT_TRUE(made.ok()) << made.status().ToString();
  return made.ok() ? std::move(*made) : nullptr;
}

// A chief and two workers.
class MembershipTest : public ::testing::Test {
 protected:
  // Nobody is silent here: a machine that stands still for a while loses no member.
  MembershipOptions Options(cluster::TaskId task) {
    MembershipOptions options = OptionsFor(cluster_, task);
    options.lost_after = seconds(10);
    return options;
  }

  void StartAll() {
    members_.clear();
    for (const cluster::TaskId task : {Chief(), Worker(0), Worker(1)}) {
      members_.push_back(Make(Options(task)));
    }
  }
  std::vector<Result<Incarnation>> JoinAll(int64_t step = 0) {
    std::vector<std::future<Result<Incarnation>>> joining;
    for (const auto& member : members_) {
      joining.push_back(
          std::async(std::launch::async, [&member, step] { return member->Join(step, {}); }));
    }
    std::vector<Result<Incarnation>> out;
    for (auto& one : joining) out.push_back(one.get());
    return out;
  }
  // Every member's answer, in the order of processes.
  std::vector<Result<std::vector<std::string>>> AgreeAll(const std::vector<std::string>& names,
                                                         const std::vector<std::string>& texts,
                                                         Duration timeout = kPatience) {
    std::vector<std::future<Result<std::vector<std::string>>>> asking;
    for (size_t i = 0; i < members_.size(); ++i) {
      asking.push_back(std::async(std::launch::async, [this, i, &names, &texts, timeout] {
        return members_[i]->Agree(names[i], texts[i], timeout, {});
      }));
    }
    std::vector<Result<std::vector<std::string>>> out;
    for (auto& one : asking) out.push_back(one.get());
    return out;
  }

  ReservedPort port_;
  cluster::ClusterSpec cluster_ = ChiefAndWorkers(port_.address(), 2);
  std::vector<std::unique_ptr<Membership>> members_;
};

TEST_F(MembershipTest, AllSeeOneIncarnation) {
  StartAll();
  const auto joined = JoinAll(7);
  for (size_t i = 0; i < joined.size(); ++i) {
    ASSERT_TRUE(joined[i].ok()) << joined[i].status().ToString();
    EXPECT_EQ(joined[i]->process, static_cast<int>(i));
    EXPECT_EQ(joined[i]->id, joined[0]->id);
    EXPECT_EQ(joined[i]->members, joined[0]->members);
  }
  ASSERT_EQ(joined[0]->members.size(), 3u);
  const Member& last = joined[0]->members[2];
  EXPECT_EQ(last, (Member{Worker(1), "data-of-worker-1:1", "host-of-worker-1", 7, last.instance}));
  EXPECT_NE(last.instance, joined[0]->members[1].instance);
}

TEST_F(MembershipTest, AgreeGathersInTheOrderOfProcesses) {
  StartAll();
  JoinAll();
  for (int round = 0; round < 20; ++round) {
    const std::string name = "round " + std::to_string(round);
    for (const auto& texts : AgreeAll({name, name, name}, {"a", "", std::string("c\0d", 3)})) {
      ASSERT_TRUE(texts.ok()) << texts.status().ToString();
      EXPECT_THAT(*texts, ElementsAre("a", "", std::string("c\0d", 3)));
    }
  }
}

TEST_F(MembershipTest, AgreeTakesAMebibyteAndNotMore) {
  StartAll();
  JoinAll();
  const std::string big((1 << 20) - 1, 'x');
  for (const auto& texts : AgreeAll({"n", "n", "n"}, {big, big, big})) {
    ASSERT_TRUE(texts.ok()) << texts.status().ToString();
    EXPECT_EQ(*texts, (std::vector<std::string>{big, big, big}));
  }
  EXPECT_EQ(members_[1]->Agree("name", big, kPatience, {}).status().code(),
            StatusCode::kInvalidArgument);
  // That one call was refused here and is no round: the next still fits the others'.
  for (const auto& texts : AgreeAll({"n", "n", "n"}, {"1", "2", "3"})) EXPECT_TRUE(texts.ok());
}

TEST_F(MembershipTest, AgreeNamesBothRanksThatDiffer) {
  StartAll();
  JoinAll();
  for (const auto& texts : AgreeAll({"plan", "plan", "resume"}, {"", "", ""})) {
    ASSERT_FALSE(texts.ok());
    EXPECT_EQ(texts.status().code(), StatusCode::kFailedPrecondition);
    EXPECT_THAT(texts.status().message(),
                AllOf(HasSubstr("\"plan\""), HasSubstr("\"resume\""), HasSubstr("worker-1")));
  }
}

TEST_F(MembershipTest, AgreeNamesWhoDidNotCome) {
  StartAll();
  JoinAll();
  auto chief = std::async(std::launch::async,
                          [&] { return members_[0]->Agree("plan", "", milliseconds(300), {}); });
  const auto worker = members_[1]->Agree("plan", "", kPatience, {});
  const auto chiefs = chief.get();
  for (const auto* texts : {&worker, &chiefs}) {
    ASSERT_FALSE(texts->ok());
    EXPECT_EQ(texts->status().code(), StatusCode::kDeadlineExceeded);
    EXPECT_THAT(texts->status().message(), HasSubstr("worker-1 did not come within "));
  }
  // Who comes late hears the same, and all are in step again.
  EXPECT_EQ(members_[2]->Agree("plan", "", kPatience, {}).status().code(),
            StatusCode::kDeadlineExceeded);
  for (const auto& texts : AgreeAll({"n", "n", "n"}, {"1", "2", "3"})) EXPECT_TRUE(texts.ok());
}

TEST_F(MembershipTest, StopEndsJoinAndAgree) {
  StartAll();
  std::stop_source stop;
  auto joining =
      std::async(std::launch::async, [&] { return members_[1]->Join(0, stop.get_token()); });
  stop.request_stop();
  EXPECT_EQ(joining.get().status().code(), StatusCode::kCancelled);
  for (const auto& joined : JoinAll()) ASSERT_TRUE(joined.ok()) << joined.status().ToString();
  std::stop_source stop_agree;
  auto asking = std::async(std::launch::async, [&] {
    return members_[1]->Agree("plan", "", kPatience, stop_agree.get_token());
  });
  stop_agree.request_stop();
  EXPECT_EQ(asking.get().status().code(), StatusCode::kCancelled);
}

TEST_F(MembershipTest, JoinNamesWhoIsMissing) {
  MembershipOptions options = Options(Chief());
  options.join_timeout = milliseconds(1500);
  const auto chief = Make(options);
  options = Options(Worker(1));
  options.join_timeout = milliseconds(1500);
  const auto worker = Make(options);
  auto joining = std::async(std::launch::async, [&] { return chief->Join(0, {}); });
  const Status workers = worker->Join(0, {}).status();
  for (const Status& status : {joining.get().status(), workers}) {
    EXPECT_EQ(status.code(), StatusCode::kDeadlineExceeded);
    EXPECT_THAT(status.message(), AllOf(HasSubstr("expected 3 members within 1.5 s"),
                                        HasSubstr("worker-0 (never came)")));
  }
}

TEST_F(MembershipTest, JoinSaysThatTheServerDoesNotAnswer) {
  MembershipOptions options = Options(Worker(1));
  options.join_timeout = seconds(1);
  const Status status = Make(options)->Join(0, {}).status();
  EXPECT_EQ(status.code(), StatusCode::kDeadlineExceeded);
  EXPECT_THAT(status.message(), AllOf(HasSubstr("chief-0 does not answer"), HasSubstr("refused")));
}

TEST_F(MembershipTest, WorkersComeBeforeTheChief) {
  members_.resize(3);
  members_[1] = Make(Options(Worker(0)));
  members_[2] = Make(Options(Worker(1)));
  std::vector<std::future<Result<Incarnation>>> joining;
  for (int i : {1, 2}) {
    joining.push_back(std::async(std::launch::async, [&, i] { return members_[i]->Join(0, {}); }));
  }
  std::this_thread::sleep_for(milliseconds(500));
  members_[0] = Make(Options(Chief()));
  const auto chief = members_[0]->Join(0, {});
  ASSERT_TRUE(chief.ok()) << chief.status().ToString();
  for (auto& one : joining) EXPECT_EQ(one.get().value().id, chief->id);
}

TEST_F(MembershipTest, LossIsHeardByAllAndAReturnMakesTheNextIncarnation) {
  StartAll();
  const uint64_t first = JoinAll()[0].value().id;
  Alarms of_chief, of_worker;
  of_chief.Listen(*members_[0]);
  of_worker.Listen(*members_[1]);
  auto asking =
      std::async(std::launch::async, [&] { return members_[1]->Agree("plan", "", kPatience, {}); });
  members_[2].reset();
  for (Alarms* alarms : {&of_chief, &of_worker}) {
    const auto heard = alarms->WaitFor(1, kPatience);
    ASSERT_EQ(heard.size(), 1u);
    EXPECT_EQ(heard[0].code(), StatusCode::kUnavailable);
    EXPECT_THAT(heard[0].message(), HasSubstr("worker-1 lost: connection closed"));
  }
  const Status asked = asking.get().status();
  EXPECT_EQ(asked.code(), StatusCode::kUnavailable);
  EXPECT_THAT(asked.message(), HasSubstr("worker-1 lost"));
  EXPECT_EQ(members_[0]->Agree("plan", "", kPatience, {}).status().code(),
            StatusCode::kUnavailable);

  members_[2] = Make(Options(Worker(1)));
  for (const auto& joined : JoinAll()) {
    ASSERT_TRUE(joined.ok()) << joined.status().ToString();
    EXPECT_GT(joined->id, first);
  }
  for (const auto& texts : AgreeAll({"n", "n", "n"}, {"1", "2", "3"})) EXPECT_TRUE(texts.ok());
  EXPECT_EQ(of_chief.WaitFor(2, milliseconds(10)).size(), 1u);
}

TEST_F(MembershipTest, ALossBeforeOnLostIsToldTooAndAnotherInTheNextIncarnation) {
  StartAll();
  JoinAll();
  members_[2].reset();
  EXPECT_EQ(members_[0]->Agree("plan", "", kPatience, {}).status().code(),
            StatusCode::kUnavailable);
  Alarms alarms;
  alarms.Listen(*members_[0]);
  EXPECT_EQ(alarms.WaitFor(1, kPatience).size(), 1u);
  members_[2] = Make(Options(Worker(1)));
  JoinAll();
  members_[1].reset();
  const auto heard = alarms.WaitFor(2, kPatience);
  ASSERT_EQ(heard.size(), 2u);
  EXPECT_THAT(heard[1].message(), HasSubstr("worker-0 lost"));
}

TEST_F(MembershipTest, AServerThatEndsIsALossOfTheChiefAndItsSuccessorHasHigherIds) {
  StartAll();
  const uint64_t first = JoinAll()[0].value().id;
  Alarms alarms;
  alarms.Listen(*members_[1]);
  members_[0].reset();
  const auto heard = alarms.WaitFor(1, kPatience);
  ASSERT_EQ(heard.size(), 1u);
  EXPECT_EQ(heard[0].code(), StatusCode::kUnavailable);
  EXPECT_THAT(heard[0].message(), HasSubstr("chief-0 lost: connection closed"));
  members_[0] = Make(Options(Chief()));
  for (const auto& joined : JoinAll()) {
    ASSERT_TRUE(joined.ok()) << joined.status().ToString();
    EXPECT_GT(joined->id, first);
  }
}

TEST_F(MembershipTest, JoiningAnewEndsAGoodIncarnationForAll) {
  StartAll();
  const uint64_t first = JoinAll()[0].value().id;
  Alarms alarms;
  alarms.Listen(*members_[0]);
  auto again = std::async(std::launch::async, [&] { return members_[2]->Join(3, {}); });
  const auto heard = alarms.WaitFor(1, kPatience);
  ASSERT_EQ(heard.size(), 1u);
  EXPECT_THAT(heard[0].message(), HasSubstr("worker-1 gave up incarnation"));
  auto worker = std::async(std::launch::async, [&] { return members_[1]->Join(3, {}); });
  const auto chief = members_[0]->Join(3, {});
  ASSERT_TRUE(chief.ok()) << chief.status().ToString();
  EXPECT_GT(chief->id, first);
  EXPECT_EQ(again.get().value().id, chief->id);
  EXPECT_EQ(worker.get().value().id, chief->id);
}

TEST_F(MembershipTest, WithoutPeerReturnJoinAfterALossFailsAtOnce) {
  members_.push_back(Make(Options(Chief())));
  members_.push_back(Make(Options(Worker(0))));
  MembershipOptions options = Options(Worker(1));
  options.peer_return = Duration(0);
  members_.push_back(Make(options));
  JoinAll();
  Alarms alarms;
  alarms.Listen(*members_[2]);
  members_[1].reset();
  alarms.WaitFor(1, kPatience);
  const Status status = members_[2]->Join(0, {}).status();
  EXPECT_EQ(status.code(), StatusCode::kUnavailable);
  EXPECT_THAT(status.message(), HasSubstr("worker-0 lost"));
}

TEST_F(MembershipTest, LeavingAlarmsNobodyAndAgreeSaysWhoLeft) {
  StartAll();
  JoinAll();
  Alarms alarms;
  alarms.Listen(*members_[0]);
  auto asking =
      std::async(std::launch::async, [&] { return members_[1]->Agree("plan", "", kPatience, {}); });
  EXPECT_TRUE(members_[2]->Leave(kPatience).ok());
  const Status asked = asking.get().status();
  EXPECT_EQ(asked.code(), StatusCode::kUnavailable);
  EXPECT_THAT(asked.message(), HasSubstr("worker-1 left"));
  EXPECT_THAT(members_[0]->Agree("plan", "", kPatience, {}).status().message(),
              HasSubstr("worker-1 left"));
  members_[2].reset();
  EXPECT_TRUE(alarms.WaitFor(1, milliseconds(300)).empty());
  // The rest can still be lost.
  members_[1].reset();
  const auto heard = alarms.WaitFor(1, kPatience);
  ASSERT_EQ(heard.size(), 1u);
  EXPECT_THAT(heard[0].message(), HasSubstr("worker-0 lost"));
}

TEST_F(MembershipTest, JoinAfterALeaveWaitsForTheReturnAndSaysWhoLeft) {
  members_.push_back(Make(Options(Chief())));
  MembershipOptions options = Options(Worker(0));
  options.peer_return = seconds(3);
  members_.push_back(Make(options));
  members_.push_back(Make(Options(Worker(1))));
  JoinAll();
  EXPECT_TRUE(members_[2]->Leave(kPatience).ok());
  const Status status = members_[1]->Join(0, {}).status();
  EXPECT_EQ(status.code(), StatusCode::kDeadlineExceeded);
  EXPECT_THAT(status.message(), HasSubstr("worker-1 (left)"));
  members_[2] = Make(Options(Worker(1)));
  for (const auto& joined : JoinAll()) EXPECT_TRUE(joined.ok()) << joined.status().ToString();
}

TEST_F(MembershipTest, WhenTheChiefLeavesNobodyIsAlarmedAndAllCanLeave) {
  StartAll();
  JoinAll();
  Alarms alarms;
  alarms.Listen(*members_[1]);
  EXPECT_TRUE(members_[0]->Leave(kPatience).ok());
  const Status asked = members_[1]->Agree("plan", "", kPatience, {}).status();
  EXPECT_EQ(asked.code(), StatusCode::kUnavailable);
  EXPECT_THAT(asked.message(), HasSubstr("chief-0 left"));
  EXPECT_TRUE(members_[1]->Leave(kPatience).ok());
  EXPECT_TRUE(members_[2]->Leave(kPatience).ok());
  EXPECT_TRUE(alarms.WaitFor(1, milliseconds(100)).empty());
  EXPECT_EQ(members_[1]->Join(0, {}).status().code(), StatusCode::kFailedPrecondition);
}

TEST_F(MembershipTest, LeaveEndsAJoinUnderWay) {
  StartAll();
  auto joining = std::async(std::launch::async, [&] { return members_[1]->Join(0, {}); });
  std::this_thread::sleep_for(milliseconds(200));
  EXPECT_TRUE(members_[1]->Leave(kPatience).ok());
  // Where its thread came late: a join that finds this process gone.
  EXPECT_THAT(joining.get().status().code(),
              AnyOf(StatusCode::kCancelled, StatusCode::kFailedPrecondition));
}

TEST_F(MembershipTest, TheFurthestBehindIsNamedWhenOthersWaitForIt) {
  for (const cluster::TaskId task : {Chief(), Worker(0), Worker(1)}) {
    MembershipOptions options = Options(task);
    options.stuck_after = milliseconds(800);
    members_.push_back(Make(options));
  }
  JoinAll();
  Alarms of_chief, of_stuck;
  of_chief.Listen(*members_[0]);
  of_stuck.Listen(*members_[2]);
  members_[0]->ReportProgress(42, 7, "all_reduce of %31");
  members_[1]->ReportProgress(42, 7, "all_reduce of %31");
  members_[2]->ReportProgress(41, 9, "");
  for (Alarms* alarms : {&of_chief, &of_stuck}) {
    const auto heard = alarms->WaitFor(1, kPatience);
    ASSERT_EQ(heard.size(), 1u);
    EXPECT_EQ(heard[0].code(), StatusCode::kUnavailable);
    EXPECT_THAT(heard[0].message(),
                AllOf(HasSubstr("worker-1 stuck: stands at step 41, collective 9, and computes"),
                      HasSubstr("2 others wait for it"), HasSubstr("all_reduce of %31")));
  }
}

TEST_F(MembershipTest, WhoBeatsButDoesNotComeToAnAgreementIsNamedWithIt) {
  for (const cluster::TaskId task : {Chief(), Worker(0), Worker(1)}) {
    MembershipOptions options = Options(task);
    options.stuck_after = milliseconds(800);
    members_.push_back(Make(options));
  }
  JoinAll();
  for (const auto& texts : AgreeAll({"plans", "plans", "plans"}, {"", "", ""})) {
    ASSERT_TRUE(texts.ok());
  }
  Alarms of_stuck;
  of_stuck.Listen(*members_[2]);
  auto chief = std::async(std::launch::async,
                          [&] { return members_[0]->Agree("loaded", "", kPatience, {}); });
  const auto worker = members_[1]->Agree("loaded", "", kPatience, {});
  const auto chiefs = chief.get();
  for (const auto* texts : {&worker, &chiefs}) {
    ASSERT_FALSE(texts->ok());
    EXPECT_EQ(texts->status().code(), StatusCode::kUnavailable);
    EXPECT_THAT(texts->status().message(),
                AllOf(HasSubstr("worker-1 stuck: stands at step 0, collective 0, and computes"),
                      HasSubstr("2 others wait for it"), HasSubstr("in agree on \"loaded\"")));
  }
  EXPECT_EQ(of_stuck.WaitFor(1, kPatience).size(), 1u);
}

TEST_F(MembershipTest, WhoIsBusyIsWaitedForToTheDeadlineOfTheAgreement) {
  for (const cluster::TaskId task : {Chief(), Worker(0), Worker(1)}) {
    MembershipOptions options = Options(task);
    options.stuck_after = seconds(1);
    members_.push_back(Make(options));
  }
  JoinAll();
  members_[2]->ReportBusy("loading step-40");
  auto chief = std::async(std::launch::async,
                          [&] { return members_[0]->Agree("loaded", "", seconds(3), {}); });
  const auto worker = members_[1]->Agree("loaded", "", kPatience, {});
  const auto chiefs = chief.get();
  for (const auto* texts : {&worker, &chiefs}) {
    EXPECT_EQ(texts->status().code(), StatusCode::kDeadlineExceeded);
    EXPECT_THAT(texts->status().message(),
                AllOf(HasSubstr("worker-1 did not come within "),
                      HasSubstr("worker-1 stands at step 0, collective 0, busy with loading")));
  }
}

TEST_F(MembershipTest, WhatIsReportedRightAfterJoinStands) {
  StartAll();
  for (int64_t round = 1; round <= 5; ++round) {
    std::vector<std::jthread> joining;
    for (const auto& member : members_) {
      joining.emplace_back([&member, round] {
        EXPECT_TRUE(member->Join(0, {}).ok());
        member->ReportProgress(40 + round, 9, "");
      });
    }
    joining.clear();
    // Nobody else comes, so the chief hears where the first of them stands.
    const Status alone = members_[0]->Agree("alone", "", seconds(1), {}).status();
    EXPECT_EQ(alone.code(), StatusCode::kDeadlineExceeded);
    EXPECT_THAT(alone.message(), HasSubstr("worker-0 stands at step " + std::to_string(40 + round) +
                                           ", collective 9"));
  }
}

TEST_F(MembershipTest, ASecondProcessOfALiveTaskIsKeptOut) {
  StartAll();
  JoinAll();
  MembershipOptions options = Options(Worker(1));
  options.join_timeout = seconds(1);
  const Status status = Make(options)->Join(0, {}).status();
  EXPECT_EQ(status.code(), StatusCode::kDeadlineExceeded);
  EXPECT_THAT(status.message(), HasSubstr("another process of this task is here and alive"));
  for (const auto& texts : AgreeAll({"n", "n", "n"}, {"1", "2", "3"})) EXPECT_TRUE(texts.ok());
}

TEST_F(MembershipTest, CreateRefusesWhatCannotBe) {
  MembershipOptions options = Options({cluster::Role::kPs, 0});
  EXPECT_EQ(Membership::Create(options).status().code(), StatusCode::kInvalidArgument);
  options = Options(Worker(7));
  EXPECT_EQ(Membership::Create(options).status().code(), StatusCode::kInvalidArgument);
  options = Options(Chief());
  options.config.cluster.hosts[cluster::Role::kChief][0] = "nowhere";
  EXPECT_EQ(Membership::Create(options).status().code(), StatusCode::kInvalidArgument);
}

TEST_F(MembershipTest, ATakenPortIsSaid) {
  const auto first = Make(Options(Chief()));
  const Status status = Membership::Create(Options(Chief())).status();
  EXPECT_EQ(status.code(), StatusCode::kUnavailable);
  EXPECT_THAT(status.message(),
              AllOf(HasSubstr(port_.address()), HasSubstr("Address already in use")));
}

TEST_F(MembershipTest, WithoutAChiefTheFirstWorkerServes) {
  cluster_.hosts.erase(cluster::Role::kChief);
  cluster_.hosts[cluster::Role::kWorker][0] = port_.address();
  members_.push_back(Make(Options(Worker(1))));
  members_.push_back(Make(Options(Worker(0))));
  const auto joined = JoinAll();
  ASSERT_TRUE(joined[0].ok()) << joined[0].status().ToString();
  EXPECT_EQ(joined[0]->process, 1);
  EXPECT_EQ(joined[1].value().process, 0);
}

TEST(LoneMembershipTest, AJobOfOneAgreesWithItself) {
  const ReservedPort port;
  const auto alone = Make(OptionsFor(ChiefAndWorkers(port.address(), 0), Chief()));
  ASSERT_TRUE(alone->Join(0, {}).ok());
  EXPECT_THAT(alone->Agree("n", "me", kPatience, {}).value(), ElementsAre("me"));
  EXPECT_TRUE(alone->Leave(kPatience).ok());
}

}  // namespace
}  // namespace meshtrain::membership
