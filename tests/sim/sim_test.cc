// Histories of a job under faults (world.h). MT_SIM_HISTORIES sets how many, MT_TEST_SEED replays
// one with its log.
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>

#include "operator/api/json.h"
#include "tests/sim/world.h"
#include "tests/support/job_builder.h"

namespace meshtrain::sim {
namespace {

constexpr Faults kStorm{.write = 0.06, .watch = 0.15, .chaos = 0.08, .pod = 0.25};

// Every fifth history has jobs that are made again and restored etcds in it.
Faults StormOf(uint64_t seed) {
  Faults faults = kStorm;
  faults.wide = seed % 5 == 4;
  return faults;
}

std::string Report(const World& world) {
  std::string out;
  for (const std::string& line : world.log()) out += line + "\n";
  for (const std::string& line : world.violations()) out += "violated: " + line + "\n";
  return out;
}

World Live(uint64_t seed, bool log) {
  World world(seed, StormOf(seed), RandomJob(seed));
  if (log) world.KeepLog();
  if (seed % 10 == 3) {
    world.RefuseServiceUntil(static_cast<double>(seed % 77), World::Refusal::kNameTaken);
  }
  if (seed % 10 == 6) {
    world.RefuseServiceUntil(static_cast<double>(seed % 77), World::Refusal::kQuota);
  }
  if (seed % 10 == 8) world.HoldNamesUntil(static_cast<double>(seed % 77));
  world.Run(150);
  return world;
}

TEST(SimTest, InvariantsHoldInEveryHistory) {
  if (const char* seed = std::getenv("MT_TEST_SEED")) {
    const World world = Live(std::strtoull(seed, nullptr, 10), true);
    EXPECT_TRUE(world.violations().empty()) << Report(world);
    std::printf("%s%s\n", Report(world).c_str(),
                world.job() != nullptr ? api::ToJson(*world.job()).c_str() : "deleted");
    return;
  }
  const char* given = std::getenv("MT_SIM_HISTORIES");
  const uint64_t histories = given != nullptr ? std::strtoull(given, nullptr, 10) : 3000;
  const char* first_given = std::getenv("MT_SIM_FIRST_SEED");
  const uint64_t first = first_given != nullptr ? std::strtoull(first_given, nullptr, 10) : 1;
  std::map<std::string, int64_t> fired;
  std::map<std::string, int64_t> ends;
  int64_t reconciles = 0, writes = 0;
  int broken = 0;
  uint64_t lived = 0;
  for (; lived < histories && broken < 5; ++lived) {
    const uint64_t seed = first + lived;
    const World world = Live(seed, false);
    for (const auto& [fault, count] : world.fired()) fired[fault] += count;
    ++ends[world.job() == nullptr ? "deleted by its TTL" : world.job()->status.phase];
    reconciles += world.reconciles();
    writes += world.writes();
    if (world.violations().empty()) continue;
    ADD_FAILURE() << "MT_TEST_SEED=" << seed << "\n" << Report(world);
    ++broken;
  }
  std::printf("%llu histories, %lld reconciles, %lld writes\n",
              static_cast<unsigned long long>(lived), static_cast<long long>(reconciles),
              static_cast<long long>(writes));
  for (const auto& [end, count] : ends) {
    std::printf("  %8lld ended: %s\n", static_cast<long long>(count), end.c_str());
  }
  for (const auto& [fault, count] : fired) {
    std::printf("  %8lld fault: %s\n", static_cast<long long>(count), fault.c_str());
  }
  // A fault that never fires tests nothing.
  for (const char* fault : {"watch event dropped",
                            "watch event delayed",
                            "watch event doubled",
                            "watch event out of order",
                            "reconcile on a stale cache",
                            "409",
                            "429",
                            "5xx",
                            "answer lost",
                            "operator dies after a write",
                            "operator dies before a write",
                            "request arrives after its sender died",
                            "another writer changes the job",
                            "leader change",
                            "operator away for minutes",
                            "watch starts again from a list",
                            "node dies",
                            "node vanishes",
                            "node comes back",
                            "pod drained",
                            "pod evicted",
                            "pod deleted by hand, by force",
                            "pod ends with 138",
                            "pod ends with 137",
                            "pod ends with 1",
                            "container restarted in place",
                            "quota",
                            "quota of Services",
                            "name of the Service taken",
                            "user suspends",
                            "user scales",
                            "user scales a suspended job",
                            "clocks differ",
                            "a finalizer holds a pod",
                            "node tainted out-of-service",
                            "names of a former job are released",
                            "the token is deleted",
                            "a pod waits for the token that it mounts",
                            "a probe finds the token missing",
                            "the claim is deleted",
                            "the claim is found to be going away",
                            "a pod waits for the claim that it mounts",
                            "job deleted and made again",
                            "etcd restored to an older revision"}) {
    EXPECT_GT(fired[fault], 0) << fault << " never fired";
  }
}

struct End {
  std::string phase;
  int32_t counted = 0;
  int32_t disruptions = 0;
  int32_t attempt = 0;
  std::vector<std::string> pods;
  friend bool operator==(const End&, const End&) = default;
};
End EndOf(const World& world) {
  const api::JobStatus& status = world.job()->status;
  return {status.phase, status.recovery.counted, status.recovery.disruptions,
          status.recovery.attempt, world.Pods()};
}

// A life that has everything in it: a failure, an eviction, a suspension. Seed 7 reads its own
// writes, 8 does not.
void Script(World* world) {
  world->KillAt(30, "life-worker-1", 138);
  world->EvictAt(80, "life-worker-0");
  world->SuspendAt(130, true);
  world->SuspendAt(160, false);
}

// P3: whichever write the operator dies after, or hears nothing of, the end is the one without the
// accident.
class CrashTest : public ::testing::TestWithParam<uint64_t> {};
TEST_P(CrashTest, DyingAfterAnyWriteOfALifeLeadsToTheSameEnd) {
  const auto job =
      testing_support::MakeJob("life").Chief().Workers(2).Clean(api::kCleanRunning).Build();
  World plain(GetParam(), {.run_seconds = 250}, job);
  plain.KeepLog();
  Script(&plain);
  plain.Run(300);
  ASSERT_TRUE(plain.violations().empty()) << Report(plain);
  const End want = EndOf(plain);
  EXPECT_EQ(want.phase, "Succeeded");
  EXPECT_EQ(want.counted, 1) << Report(plain);
  EXPECT_EQ(want.disruptions, 1);
  EXPECT_EQ(want.attempt, 3) << "the failure, the eviction, the suspension";
  int tried = 0;
  for (int write = 1; write <= plain.writes(); ++write) {
    for (const bool dies : {true, false}) {
      World world(GetParam(),
                  {.crash_after_write = dies ? write : 0,
                   .unanswered_write = dies ? 0 : write,
                   .run_seconds = 250},
                  job);
      world.KeepLog();
      Script(&world);
      world.Run(300);
      EXPECT_TRUE(world.violations().empty()) << "write " << write << "\n" << Report(world);
      EXPECT_EQ(EndOf(world), want) << "write " << write << (dies ? " dies" : " unanswered") << "\n"
                                    << Report(world);
      ++tried;
    }
  }
  std::printf("%d lives of %d writes with one accident each\n", tried, plain.writes());
}
INSTANTIATE_TEST_SUITE_P(Seeds, CrashTest, ::testing::Values(7, 8));

// While the Service is refused there are no pods, and afterwards the job runs as any other,
// whichever write of the time before its operator dies after.
class RefusedServiceTest : public ::testing::TestWithParam<World::Refusal> {};
TEST_P(RefusedServiceTest, LeavesNoPodsAndIsMendedByItself) {
  for (const uint64_t seed : {7, 8}) {
    const auto job =
        testing_support::MakeJob("life").Chief().Workers(2).Clean(api::kCleanRunning).Build();
    World plain(seed, {.run_seconds = 250}, job);
    plain.KeepLog();
    plain.RefuseServiceUntil(60, GetParam());
    plain.Run(300);
    ASSERT_TRUE(plain.violations().empty()) << Report(plain);
    const End want = EndOf(plain);
    EXPECT_EQ(want.phase, "Succeeded") << Report(plain);
    EXPECT_EQ(want.counted + want.disruptions + want.attempt, 0) << Report(plain);
    for (int write = 1; write <= plain.writes(); ++write) {
      for (const bool dies : {true, false}) {
        World world(seed,
                    {.crash_after_write = dies ? write : 0,
                     .unanswered_write = dies ? 0 : write,
                     .run_seconds = 250},
                    job);
        world.KeepLog();
        world.RefuseServiceUntil(60, GetParam());
        world.Run(300);
        EXPECT_TRUE(world.violations().empty()) << "write " << write << "\n" << Report(world);
        EXPECT_EQ(EndOf(world), want)
            << "write " << write << (dies ? " dies" : " unanswered") << "\n"
            << Report(world);
      }
    }
  }
}
INSTANTIATE_TEST_SUITE_P(Refusals, RefusedServiceTest,
                         ::testing::Values(World::Refusal::kNameTaken, World::Refusal::kQuota),
                         [](const auto& info) {
                           return info.param == World::Refusal::kQuota ? "Quota" : "NameTaken";
                         });

// The names of a former job's pods and Service: their release is what is waited for.
TEST(SimTest, PodsAppearWithinASecondOfTheReleaseOfTheirNames) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    for (const double release : {0.5, 37.0, 90.0}) {
      World world(seed, {}, testing_support::MakeJob("life").Chief().Workers(2).Build());
      world.KeepLog();
      world.HoldNamesUntil(release);
      world.Run(100);
      ASSERT_TRUE(world.violations().empty()) << Report(world);
      ASSERT_TRUE(world.first_pod().has_value()) << Report(world);
      EXPECT_GE(*world.first_pod(), release) << Report(world);
      EXPECT_LE(*world.first_pod(), release + 1) << Report(world);
    }
  }
}

// A job that is deleted and made again under its name starts as any other once the former one's
// pods have ended, and nothing of the former counts for it, whichever write of all that its
// operator dies after or hears nothing of.
TEST(SimTest, AJobMadeAgainWhileItsFormerSelfIsDyingIsANewJob) {
  const auto job = testing_support::MakeJob("life")
                       .Chief()
                       .Workers(2)
                       .Program(testing_support::kProgram)
                       .Build();
  for (const uint64_t seed : {7, 8}) {
    const auto live = [&](Faults faults) {
      faults.run_seconds = 150;
      World world(seed, faults, job);
      world.KeepLog();
      world.KillAt(20, "life-worker-1", 138);
      world.MakeAgainAt(40, 0.5);
      world.KillAt(90, "life-worker-0", 138);
      world.Run(200);
      return world;
    };
    const World plain = live({});
    ASSERT_TRUE(plain.violations().empty()) << Report(plain);
    const End want = EndOf(plain);
    EXPECT_EQ(want.phase, "Succeeded") << Report(plain);
    EXPECT_EQ(want.counted, 1) << "the former job's failure is not its own\n" << Report(plain);
    for (int write = 1; write <= plain.writes(); ++write) {
      for (const bool dies : {true, false}) {
        const World world =
            live({.crash_after_write = dies ? write : 0, .unanswered_write = dies ? 0 : write});
        EXPECT_TRUE(world.violations().empty()) << "write " << write << "\n" << Report(world);
        EXPECT_EQ(EndOf(world).phase, want.phase) << "write " << write << "\n" << Report(world);
        EXPECT_LE(EndOf(world).counted, 1) << "write " << write << "\n" << Report(world);
      }
    }
  }
}

// An etcd that is set back knows less than the operator does; what it has is what counts.
TEST(SimTest, AnOlderRevisionIsWhatCounts) {
  const auto job = testing_support::MakeJob("life")
                       .Chief()
                       .Workers(2)
                       .Program(testing_support::kProgram)
                       .Build();
  int back = 0;
  for (uint64_t seed = 1; seed <= 40; ++seed) {
    for (const double ago : {1.0, 15.0, 39.0}) {
      World world(seed, {.run_seconds = 90}, job);
      world.KeepLog();
      world.KillAt(20, "life-worker-1", 138);
      world.EvictAt(30, "life-worker-0");
      world.RestoreAt(40, ago);
      world.Run(150);
      ASSERT_TRUE(world.violations().empty()) << seed << "\n" << Report(world);
      ASSERT_EQ(EndOf(world).phase, "Succeeded") << seed << "\n" << Report(world);
      back += world.fired().contains("etcd restored to an older revision");
    }
  }
  EXPECT_EQ(back, 120);
}

// A claim that is deleted stays as long as pods mount it: all of them restart together with a new
// one.
TEST(SimTest, AClaimThatSomebodyDeletedIsMadeAgainWhenAPodIs) {
  const auto job = testing_support::MakeJob("life")
                       .Chief()
                       .Workers(2)
                       .With([](api::TrainingJob& j) {
                         j.spec.checkpoint = api::Checkpoint{
                             .path = "/c", .volume_claim_template = R"({"spec":{}})"};
                       })
                       .Build();
  World world(7, {.run_seconds = 90}, job);
  world.KeepLog();
  world.DeleteClaimAt(20);
  world.KillAt(30, "life-worker-1", 138);
  world.Run(150);
  ASSERT_TRUE(world.violations().empty()) << Report(world);
  EXPECT_EQ(EndOf(world).phase, "Succeeded");
  EXPECT_EQ(EndOf(world).attempt, 2) << "the failure, and the loss\n" << Report(world);
}

// Each invariant is broken by a decision that is spoilt in the way that it forbids.
struct Spoilt {
  const char* name;
  const char* broken;  // part of what is told
  Decide decide;
};
reconcile::Action Doing(reconcile::Write write) {
  return {.phase = reconcile::Phase::kRemove, .write = std::move(write), .why = "spoilt"};
}
const Spoilt kSpoilt[] = {
    {"ForceAnywhere", "P1: ",
     [](const auto& job, const auto& seen, TimePoint now) {
       reconcile::Outcome out = reconcile::Reconcile(job, seen, now);
       for (reconcile::Action& action : out.actions) {
         auto* gone = std::get_if<reconcile::DeletePod>(&action.write);
         if (gone != nullptr) gone->grace_seconds = 0;
       }
       return out;
     }},
    {"RunAgain", "P2: ",
     [](const auto& job, const auto& seen, TimePoint now) {
       reconcile::Outcome out = reconcile::Reconcile(job, seen, now);
       if (api::IsTrue(job.status, api::ConditionType::kSucceeded)) {
         const TaskId task{cluster::Role::kWorker, 0};
         out.actions.push_back(Doing(reconcile::CreatePod{
             .name = cluster::PodName(job.metadata.name, task), .task = task}));
       }
       return out;
     }},
    {"NeverTheFirstWorker", "P3: the job never ended",
     [](const auto& job, const auto& seen, TimePoint now) {
       reconcile::Outcome out = reconcile::Reconcile(job, seen, now);
       std::erase_if(out.actions, [](const reconcile::Action& action) {
         const auto* pod = std::get_if<reconcile::CreatePod>(&action.write);
         return pod != nullptr && pod->task == TaskId{cluster::Role::kWorker, 0};
       });
       return out;
     }},
    {"DeletesTheHealthy", "P4: ",
     [](const auto& job, const auto& seen, TimePoint now) {
       reconcile::Outcome out = reconcile::Reconcile(job, seen, now);
       for (const auto& pod : seen.pods) {
         const bool ours = pod.controller_uid == job.metadata.uid && !pod.delete_requested;
         if (ours && out.actions.empty()) {
           out.actions.push_back(Doing(reconcile::DeletePod{.name = pod.name, .uid = pod.uid}));
         }
       }
       return out;
     }},
    {"AsksForDeletionsAgain", "P5: ",
     [](const auto& job, const auto& seen, TimePoint now) {
       reconcile::Outcome out = reconcile::Reconcile(job, seen, now);
       for (const auto& pod : seen.pods) {
         if (pod.controller_uid == job.metadata.uid && pod.delete_requested) {
           out.actions.insert(out.actions.begin(),
                              Doing(reconcile::DeletePod{.name = pod.name, .uid = pod.uid}));
         }
       }
       return out;
     }},
    {"ForgetsClusters", "P6: ",
     [](const auto& job, reconcile::Observed seen, TimePoint now) {
       for (auto& pod : seen.pods) pod.cluster.clear();
       return reconcile::Reconcile(job, seen, now);
     }},
    {"ANewTokenForOneProcess", "P7: ",
     [](const auto& job, const auto& seen, TimePoint now) {
       reconcile::Outcome out = reconcile::Reconcile(job, seen, now);
       for (reconcile::Action& action : out.actions) {
         auto* secret = std::get_if<reconcile::CreateSecret>(&action.write);
         if (secret != nullptr) secret->probe = false;
       }
       return out;
     }},
    {"TouchesAFormerJobsPods", "P9: ",
     [](const auto& job, const auto& seen, TimePoint now) {
       reconcile::Outcome out = reconcile::Reconcile(job, seen, now);
       for (const auto& pod : seen.pods) {
         if (pod.controller_uid == job.metadata.uid || pod.controller_uid.empty()) continue;
         out.actions.insert(out.actions.begin(),
                            Doing(reconcile::DeletePod{.name = pod.name, .uid = pod.uid}));
       }
       return out;
     }},
    {"ForgetsRestartsInPlace", "RESTARTS fell",
     [](api::TrainingJob job, const auto& seen, TimePoint now) {
       job.status.recovery.in_place = {};
       job.status.recovery.in_place_by_role.clear();
       return reconcile::Reconcile(job, seen, now);
     }},
    {"CountsTwice", "processes failed",
     [](const auto& job, const auto& seen, TimePoint now) {
       reconcile::Outcome out = reconcile::Reconcile(job, seen, now);
       for (reconcile::Action& action : out.actions) {
         auto* patch = std::get_if<reconcile::PatchStatus>(&action.write);
         if (patch != nullptr) patch->status.recovery.counted += patch->status.recovery.counted;
       }
       return out;
     }},
    {"PodsBeforeTheService", "before the job's Service",
     [](const auto& job, const auto& seen, TimePoint now) {
       reconcile::Outcome out = reconcile::Reconcile(job, seen, now);
       std::erase_if(out.actions, [](const reconcile::Action& action) {
         return std::holds_alternative<reconcile::CreateService>(action.write);
       });
       return out;
     }},
};
class SpoiltTest : public ::testing::TestWithParam<Spoilt> {};
TEST_P(SpoiltTest, BreaksItsInvariant) {
  for (uint64_t seed = 1; seed <= 300; ++seed) {
    World world(seed, StormOf(seed), RandomJob(seed), GetParam().decide);
    world.Run(150);
    for (const std::string& line : world.violations()) {
      if (line.find(GetParam().broken) != std::string::npos) return;
    }
  }
  FAIL() << "no history of 300 told: " << GetParam().broken;
}
INSTANTIATE_TEST_SUITE_P(Decisions, SpoiltTest, ::testing::ValuesIn(kSpoilt),
                         [](const auto& info) { return info.param.name; });

// creations + status writes <= pods + 6 over the life of a job that nothing happens to.
TEST(SimTest, AQuietLifeIsCheap) {
  const auto job = testing_support::MakeJob("life").Chief().Workers(2).Build();
  World world(7, {}, job);
  world.KeepLog();
  world.Run(60);
  ASSERT_TRUE(world.violations().empty()) << Report(world);
  EXPECT_EQ(world.job()->status.phase, "Succeeded");
  EXPECT_LE(world.writes(), 3 + 6) << Report(world);
}

// Seeds that once broke an invariant, by what they showed. A change of the simulation makes other
// histories of them, so that each also has a unit test for what it showed.
struct Found {
  const char* name;
  uint64_t seed;
};
class FoundTest : public ::testing::TestWithParam<Found> {};
TEST_P(FoundTest, StaysFixed) {
  const World world = Live(GetParam().seed, true);
  EXPECT_TRUE(world.violations().empty()) << Report(world);
}
const Found kFound[] = {
    // The incident was closed, and opened again, while a pod on a dead node still seemed to run:
    // counted four times.
    {"IncidentClosedBeforeThePodOnADeadNodeWasGone", 511952},
    // After a resume, a pod from before the suspension, still in the cache, was counted a second
    // time.
    {"FailureFromBeforeASuspensionCountedAgain", 711102},
    // The operator's cache lacked its own Succeeded while the pods went: it made them again (now
    // rule 2 of
    // reconcile.h).
    {"RunAgainByAnOperatorThatMissedItsOwnSuccess", 1038752},
    // A pod that was on a dead node when the job was scaled down and up again: its restarts in
    // place were counted twice.
    {"RestartsInPlaceCountedAgainAfterScaling", 1755},
    // The word that a pod starts slowly was written and its answer lost, so that nobody asked for
    // the token that it waited for.
    {"ALostTokenAskedForOnceOnly", 3016042},
    {"ALostTokenAskedForOnceOnlyB", 3017201},
    {"ALostTokenAskedForOnceOnlyC", 3031518},
    {"ALostTokenAskedForOnceOnlyD", 3038667},
    // How long a pod had been starting was told by the clock of a leader before, an hour ahead.
    {"ASlowStartByAnotherLeadersClock", 3013968},
};
INSTANTIATE_TEST_SUITE_P(Seeds, FoundTest, ::testing::ValuesIn(kFound),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace meshtrain::sim
