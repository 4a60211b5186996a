#include "runtime/parameter/chief/schedule.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "tests/runtime/parameter/seed.h"

namespace meshtrain::parameter {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using Kind = ScheduleAction::Kind;

std::vector<std::string> Texts(const std::vector<ScheduleAction>& actions) {
  std::vector<std::string> out;
  for (const ScheduleAction& a : actions) out.push_back(a.ToString());
  return out;
}

// Two workers, set up with one entry.
Schedule ReadySchedule(int in_flight = 1) {
  Schedule schedule({.workers = 2, .in_flight = in_flight, .max_attempts = 3});
  schedule.On(EntriesAdded{1});
  for (int w = 0; w < 2; ++w) {
    schedule.On(WorkerTried{w});
    schedule.On(WorkerSetUp{w, 1, 1});
  }
  return schedule;
}

TEST(ScheduleTest, StepsGoToIdleWorkersInOrder) {
  Schedule s = ReadySchedule();
  EXPECT_THAT(Texts(s.On(StepSubmitted{0, 1})), ElementsAre("run step 0 on worker-0 (1)"));
  EXPECT_THAT(Texts(s.On(StepSubmitted{1, 1})), ElementsAre("run step 1 on worker-1 (1)"));
  EXPECT_THAT(Texts(s.On(StepSubmitted{2, 1})), IsEmpty());
  EXPECT_EQ(s.queued(), 1);
  EXPECT_THAT(Texts(s.On(StepDone{1, 1, 1})),
              ElementsAre("finish step 1", "run step 2 on worker-1 (1)"));
  EXPECT_THAT(Texts(s.On(StepDone{0, 1, 0})), ElementsAre("finish step 0"));
  EXPECT_FALSE(s.idle());
  EXPECT_THAT(Texts(s.On(StepDone{1, 1, 2})), ElementsAre("finish step 2"));
  EXPECT_TRUE(s.idle());
}

TEST(ScheduleTest, ALostWorkersStepRunsElsewhereAndTheReturnedWorkerIsSetUpAnew) {
  Schedule s = ReadySchedule();
  s.On(StepSubmitted{0, 1});
  s.On(StepSubmitted{1, 1});
  s.On(StepSubmitted{2, 1});
  EXPECT_THAT(Texts(s.On(WorkerLost{0, 1})), IsEmpty());
  EXPECT_THAT(Texts(s.On(StepDone{1, 1, 1})),
              ElementsAre("finish step 1", "run step 0 on worker-1 (1)"));
  EXPECT_THAT(Texts(s.On(StepDone{0, 1, 0})), IsEmpty()) << "its incarnation has ended";
  EXPECT_THAT(Texts(s.On(WorkerTried{0})), ElementsAre("set up worker-0 (2) with 1"));
  EXPECT_THAT(Texts(s.On(WorkerSetUp{0, 1, 1})), IsEmpty()) << "an old answer";
  EXPECT_THAT(Texts(s.On(WorkerSetUp{0, 2, 1})), ElementsAre("run step 2 on worker-0 (2)"));
  EXPECT_EQ(s.workers_lost(), 1);
  EXPECT_EQ(s.steps_rerun(), 1);
}

TEST(ScheduleTest, AWorkerLoadsWhatAStepNeeds) {
  Schedule s = ReadySchedule();
  s.On(EntriesAdded{3});
  EXPECT_THAT(Texts(s.On(StepSubmitted{0, 2})),
              ElementsAre("load 1 to 3 on worker-0 (1)", "load 1 to 3 on worker-1 (1)"));
  EXPECT_THAT(Texts(s.On(WorkerLoaded{1, 1, 3})), ElementsAre("run step 0 on worker-1 (1)"));
  EXPECT_THAT(Texts(s.On(WorkerLoaded{0, 1, 3})), IsEmpty());
}

TEST(ScheduleTest, AWindowFillsTheLeastBusyFirst) {
  Schedule s = ReadySchedule(2);
  for (int64_t i = 0; i < 5; ++i) s.On(StepSubmitted{i, 1});
  EXPECT_EQ(s.running(), 4);
  EXPECT_THAT(Texts(s.On(StepDone{0, 1, 2})),
              ElementsAre("finish step 2", "run step 4 on worker-0 (1)"));
}

TEST(ScheduleTest, IdleWorkersTakeTurnsWithOneStepAtATime) {
  Schedule s = ReadySchedule();
  for (int64_t i = 0; i < 6; ++i) {
    const int worker = static_cast<int>(i % 2);
    EXPECT_THAT(Texts(s.On(StepSubmitted{i, 1})),
                ElementsAre("run step " + std::to_string(i) + " on worker-" +
                            std::to_string(worker) + " (1)"));
    s.On(StepDone{worker, 1, i});
  }
  EXPECT_EQ(s.steps_done(0), 3);
  EXPECT_EQ(s.steps_done(1), 3);
}

TEST(ScheduleTest, AFailedStepCancelsTheRest) {
  Schedule s = ReadySchedule();
  for (int64_t i = 0; i < 4; ++i) s.On(StepSubmitted{i, 1});
  const auto actions = s.On(StepFailed{0, 1, 0, InvalidArgument("bad shape")});
  EXPECT_THAT(Texts(actions), ElementsAre("cancel step 0", "cancel step 2", "cancel step 3"));
  EXPECT_EQ(actions[0].error, InvalidArgument("bad shape"));
  EXPECT_EQ(actions[1].error, Cancelled("another step failed: bad shape"));
  EXPECT_EQ(*s.error(), InvalidArgument("bad shape"));
  EXPECT_THAT(Texts(s.On(StepSubmitted{4, 1})), ElementsAre("cancel step 4"));
  EXPECT_FALSE(s.idle()) << "step 1 is still running";
  EXPECT_THAT(Texts(s.On(WorkerLost{1, 1})), ElementsAre("cancel step 1"));
  EXPECT_TRUE(s.idle());
  s.On(ErrorTold{});
  EXPECT_THAT(Texts(s.On(StepSubmitted{5, 1})), ElementsAre("run step 5 on worker-0 (1)"));
}

TEST(ScheduleTest, NothingBeginsWhileAServerIsAwayOrAGateIsClosed) {
  Schedule s = ReadySchedule();
  s.On(ServerLost{1});
  EXPECT_THAT(Texts(s.On(StepSubmitted{0, 1})), IsEmpty());
  s.On(GateSet{true});
  EXPECT_THAT(Texts(s.On(ServerBack{1})), IsEmpty());
  EXPECT_THAT(Texts(s.On(GateSet{false})), ElementsAre("run step 0 on worker-0 (1)"));
  s.On(ServerLost{0});
  EXPECT_THAT(Texts(s.On(StepReturned{0, 1, 0})), IsEmpty());
  EXPECT_THAT(Texts(s.On(ServerBack{0})), ElementsAre("run step 0 on worker-0 (1)"));
}

TEST(ScheduleTest, AReturnedStepRunsWhereItRanWhileThatLasts) {
  Schedule s = ReadySchedule();
  s.On(StepSubmitted{0, 1});
  s.On(StepSubmitted{1, 1});
  s.On(ServerLost{0});
  EXPECT_THAT(Texts(s.On(StepReturned{0, 1, 0})), IsEmpty());
  EXPECT_THAT(Texts(s.On(StepReturned{1, 1, 1})), IsEmpty());
  EXPECT_THAT(Texts(s.On(ServerBack{0})),
              ElementsAre("run step 0 on worker-0 (1)", "run step 1 on worker-1 (1)"));
  s.On(ServerLost{0});
  s.On(StepReturned{1, 1, 1});
  s.On(WorkerLost{0, 1});
  EXPECT_THAT(Texts(s.On(ServerBack{0})), ElementsAre("run step 0 on worker-1 (1)"))
      << "which may run anywhere, and is the older one";
  // Others do not wait with a step whose worker has its hands full.
  s.On(StepSubmitted{2, 1});
  s.On(WorkerTried{0});
  EXPECT_THAT(Texts(s.On(WorkerSetUp{0, 2, 1})), ElementsAre("run step 2 on worker-0 (2)"));
  EXPECT_THAT(Texts(s.On(StepDone{0, 2, 2})), ElementsAre("finish step 2"));
  EXPECT_THAT(Texts(s.On(StepDone{1, 1, 0})),
              ElementsAre("finish step 0", "run step 1 on worker-1 (1)"));
}

// It waited behind the gate, and a checkpoint had its push on one server and not on the other.
TEST(ScheduleTest, AClosedGateLetsAReturnedStepEnd) {
  Schedule s = ReadySchedule();
  s.On(StepSubmitted{0, 1});
  s.On(StepSubmitted{1, 1});
  s.On(StepSubmitted{2, 1});
  s.On(ServerLost{1});
  s.On(StepReturned{0, 1, 0});
  s.On(GateSet{true});
  EXPECT_THAT(Texts(s.On(StepDone{1, 1, 1})), ElementsAre("finish step 1"));
  EXPECT_EQ(s.running(), 0);
  EXPECT_EQ(s.unfinished(), 1);
  EXPECT_THAT(Texts(s.On(ServerBack{1})), ElementsAre("run step 0 on worker-0 (1)"));
  EXPECT_EQ(s.unfinished(), 1);
  EXPECT_THAT(Texts(s.On(StepDone{0, 1, 0})), ElementsAre("finish step 0"));
  EXPECT_EQ(s.unfinished(), 0);
  EXPECT_THAT(Texts(s.On(GateSet{false})), ElementsAre("run step 2 on worker-1 (1)"));
  // One whose worker is lost runs as if it had never begun.
  s.On(ServerLost{1});
  s.On(StepReturned{1, 1, 2});
  s.On(GateSet{true});
  EXPECT_EQ(s.unfinished(), 1);
  s.On(WorkerLost{1, 1});
  EXPECT_EQ(s.unfinished(), 0);
  EXPECT_THAT(Texts(s.On(ServerBack{1})), IsEmpty());
  EXPECT_THAT(Texts(s.On(GateSet{false})), ElementsAre("run step 2 on worker-0 (1)"));
}

// It was tried for ever, and nobody was told why.
TEST(ScheduleTest, AStepThatIsReturnedTooOftenIsTheJobsError) {
  Schedule s = ReadySchedule();
  s.On(StepSubmitted{0, 1});
  s.On(StepSubmitted{1, 1});
  s.On(StepSubmitted{2, 1});
  const Status away = Unavailable("worker-0: ps-1: no answer");
  for (int attempt = 1; attempt < 3; ++attempt) {
    s.On(ServerLost{1});
    EXPECT_THAT(Texts(s.On(StepReturned{0, 1, 0, away})), IsEmpty());
    EXPECT_THAT(Texts(s.On(ServerBack{1})), ElementsAre("run step 0 on worker-0 (1)"));
  }
  EXPECT_EQ(s.steps_rerun(), 2);
  const auto actions = s.On(StepReturned{0, 1, 0, away});
  EXPECT_THAT(Texts(actions), ElementsAre("cancel step 0", "cancel step 2"));
  EXPECT_EQ(actions[0].error, Unavailable("step 0: attempt 3: worker-0: ps-1: no answer"));
  EXPECT_EQ(*s.error(), actions[0].error);
}

TEST(ScheduleTest, AFullDiskOfAServerIsTheJobsErrorAtOnce) {
  Schedule s = ReadySchedule();
  s.On(StepSubmitted{0, 1});
  const Status full = ResourceExhausted("worker-0: ps-1: cannot write").From(Origin::kOutput);
  EXPECT_THAT(Texts(s.On(StepReturned{0, 1, 0, full})), ElementsAre("cancel step 0"));
  EXPECT_EQ(*s.error(), ResourceExhausted("step 0: attempt 1: worker-0: ps-1: cannot write"));
  EXPECT_EQ(s.error()->origin(), Origin::kOutput);
}

TEST(ScheduleTest, AReturnedStepRunsElsewhereOnceItsWorkerIsLost) {
  Schedule s = ReadySchedule();
  s.On(StepSubmitted{0, 1});
  s.On(ServerLost{0});
  s.On(StepReturned{0, 1, 0});
  s.On(WorkerLost{0, 1});
  EXPECT_THAT(Texts(s.On(ServerBack{0})), ElementsAre("run step 0 on worker-1 (1)"));
}

TEST(ScheduleTest, AStepThatKillsItsWorkersIsTheJobsError) {
  Schedule s = ReadySchedule();
  s.On(StepSubmitted{0, 1});
  for (int lost = 1; lost <= 3; ++lost) {
    s.On(WorkerLost{0, lost});
    s.On(WorkerLost{1, 1});
    s.On(WorkerTried{0});
    s.On(WorkerSetUp{0, lost + 1, 1});
  }
  ASSERT_TRUE(s.error().has_value());
  EXPECT_EQ(s.error()->message(),
            "step 0: expected to lose fewer than 3 workers while they run it, got: 3");
  EXPECT_TRUE(s.idle());
}

TEST(ScheduleTest, AProgramThatNoWorkerTakesIsTheJobsError) {
  Schedule s = ReadySchedule();
  s.On(EntriesAdded{2});
  s.On(StepSubmitted{0, 2});
  EXPECT_THAT(Texts(s.On(EntryRefused{0, 1, InvalidArgument("no kernel")})),
              ElementsAre("cancel step 0"));
  EXPECT_EQ(*s.error(), InvalidArgument("no kernel"));
  EXPECT_TRUE(s.away(0));
}

// A world of workers that are killed, answer late or twice, and servers that come and go; then
// quiet. Every step has been finished once, and has run at least once.
TEST(SchedulePropertyTest, EveryStepEndsOnceWhateverHappens) {
  const uint64_t seed = testing_seed::FromEnvironment();
  for (uint64_t sd = seed; sd < seed + 200; ++sd) {
    SCOPED_TRACE("MT_TEST_SEED=" + std::to_string(sd));
    std::mt19937_64 random(sd);
    const auto below = [&](uint64_t n) { return random() % n; };
    const int workers = static_cast<int>(1 + below(4));
    const int in_flight = static_cast<int>(1 + below(3));
    Schedule schedule({.workers = workers, .in_flight = in_flight, .max_attempts = 1000000});
    struct Message {
      ScheduleEvent event;
    };
    std::vector<ScheduleEvent> answers;  // on their way, in any order
    std::map<int64_t, int> finished, executed;
    std::vector<std::set<int64_t>> on(workers);  // the newest incarnation's
    std::vector<int64_t> incarnation(workers, 0), entries(workers, 0);
    std::vector<bool> set_up(workers, false);
    int64_t submitted = 0;
    bool failing = false;
    const auto feed = [&](const ScheduleEvent& event) {
      for (const ScheduleAction& a : schedule.On(event)) {
        switch (a.kind) {
          case Kind::kSetUp:
            ASSERT_EQ(a.incarnation, incarnation[a.worker] + 1);
            incarnation[a.worker] = a.incarnation;
            entries[a.worker] = a.to;
            set_up[a.worker] = false;
            on[a.worker].clear();
            answers.push_back(WorkerSetUp{a.worker, a.incarnation, a.to});
            break;
          case Kind::kLoad:
            ASSERT_TRUE(set_up[a.worker]);
            ASSERT_EQ(a.incarnation, incarnation[a.worker]);
            ASSERT_EQ(a.from, entries[a.worker]);
            entries[a.worker] = a.to;
            answers.push_back(WorkerLoaded{a.worker, a.incarnation, a.to});
            break;
          case Kind::kRun:
            ASSERT_TRUE(set_up[a.worker]);
            ASSERT_EQ(a.incarnation, incarnation[a.worker]);
            ASSERT_TRUE(on[a.worker].insert(a.step).second);
            ASSERT_LE(on[a.worker].size(), static_cast<size_t>(in_flight));
            for (int w = 0; w < workers; ++w) {
              if (w == a.worker || !set_up[w]) continue;
              ASSERT_FALSE(on[w].contains(a.step)) << "on two workers at once";
            }
            ++executed[a.step];
            if (below(20) == 0) {
              answers.push_back(StepReturned{a.worker, a.incarnation, a.step});
            } else {
              answers.push_back(StepDone{a.worker, a.incarnation, a.step});
            }
            if (below(10) == 0) {
              answers.push_back(StepDone{a.worker, a.incarnation, a.step});  // heard twice
            }
            break;
          case Kind::kFinish:
            ++finished[a.step];
            ASSERT_EQ(finished[a.step], 1);
            break;
          case Kind::kCancel:
            ASSERT_TRUE(failing);
            ++finished[a.step];
            ASSERT_EQ(finished[a.step], 1);
            break;
        }
      }
    };
    const auto deliver = [&](size_t i) {
      const ScheduleEvent event = answers[i];
      answers.erase(answers.begin() + static_cast<std::ptrdiff_t>(i));
      if (const auto* up = std::get_if<WorkerSetUp>(&event)) {
        if (up->incarnation == incarnation[up->worker] && !schedule.away(up->worker)) {
          set_up[up->worker] = true;
        }
      }
      if (const auto* done = std::get_if<StepDone>(&event)) {
        if (done->incarnation == incarnation[done->worker]) on[done->worker].erase(done->step);
      }
      if (const auto* back = std::get_if<StepReturned>(&event)) {
        if (back->incarnation == incarnation[back->worker]) on[back->worker].erase(back->step);
      }
      feed(event);
    };
    feed(EntriesAdded{1});
    const bool may_fail = below(4) == 0;
    int64_t total_entries = 1;
    for (int event = 0; event < 400; ++event) {
      switch (below(9)) {
        case 0:
        case 1:
          feed(StepSubmitted{
              submitted++, 1 + static_cast<int64_t>(below(static_cast<uint64_t>(total_entries)))});
          break;
        case 2:
          feed(WorkerTried{static_cast<int>(below(static_cast<uint64_t>(workers)))});
          break;
        case 3: {
          const int w = static_cast<int>(below(static_cast<uint64_t>(workers)));
          const int64_t which = incarnation[w] - static_cast<int64_t>(below(2));
          if (which == incarnation[w]) {
            set_up[w] = false;
            on[w].clear();
          }
          feed(WorkerLost{w, which});
          break;
        }
        case 4:
          if (below(4) == 0) feed(EntriesAdded{++total_entries});
          break;
        case 5: {
          const int server = static_cast<int>(below(2));
          feed(below(2) == 0 ? ScheduleEvent(ServerLost{server})
                             : ScheduleEvent(ServerBack{server}));
          break;
        }
        case 6:
          feed(GateSet{below(2) == 0});
          break;
        default:
          if (!answers.empty()) deliver(below(answers.size()));
          break;
      }
      if (may_fail && event == 200) {
        failing = true;
        feed(JobFailed{Unavailable("gone")});
      }
      if (may_fail && event == 300) {
        feed(ErrorTold{});
        failing = false;
      }
      ASSERT_FALSE(::testing::Test::HasFatalFailure());
    }
    // Quiet: everything comes back and every answer arrives.
    feed(GateSet{false});
    feed(ServerBack{0});
    feed(ServerBack{1});
    for (int round = 0; round < 10000 && !(schedule.idle() && answers.empty()); ++round) {
      for (int w = 0; w < workers; ++w) feed(WorkerTried{w});
      if (!answers.empty()) deliver(below(answers.size()));
      ASSERT_FALSE(::testing::Test::HasFatalFailure());
    }
    ASSERT_TRUE(schedule.idle());
    ASSERT_EQ(static_cast<int64_t>(finished.size()), submitted);
    if (!may_fail) {
      for (int64_t step = 0; step < submitted; ++step) ASSERT_GE(executed[step], 1) << step;
    }
  }
}

}  // namespace
}  // namespace meshtrain::parameter
