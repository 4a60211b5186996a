// What Verify finds: plans that were right, each spoiled in one way.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <random>

#include "runtime/plan/internal.h"
#include "tests/runtime/sharding/models.h"

namespace meshtrain::plan {
namespace {

using mesh::Layout;
using mesh::Mesh;
using ::testing::HasSubstr;

// The main job's step on four devices that share `batch` and two that share `model`, its
// collectives under way beside other steps.
Plan TrainStep() {
  const Mesh mesh = *Mesh::Parse("batch=4,model=2");
  sharding::Given given;
  given.inputs.insert_or_assign("x", *Layout::BatchSharded(mesh, "batch", 2));
  sharding::GiveLayer(given, "hidden_1", *Layout::Parse("{*, model}", mesh));
  sharding::GiveLayer(given, "hidden_2", *Layout::Parse("{model, *}", mesh));
  const sharding::MlpSizes sizes{.batch = 16, .widths = {28, 20, 12, 10}};
  auto partitioned = sharding::Shard(sharding::MlpTrainStep(sizes), mesh, given);
  EXPECT_TRUE(partitioned.ok()) << partitioned.status().ToString();
  auto plan = MakePlan(*std::move(partitioned),
                       {.overlap = true, .overlap_bucket_bytes = 512, .finite_outputs = {"loss"}});
  EXPECT_TRUE(plan.ok()) << plan.status().ToString();
  return *std::move(plan);
}

int First(const Plan& plan, const std::function<bool(const Step&)>& is) {
  const auto it = std::find_if(plan.steps.begin(), plan.steps.end(), is);
  EXPECT_NE(it, plan.steps.end());
  return static_cast<int>(it - plan.steps.begin());
}

// The first arena value that a later step than the one after its writer reads.
ValueId LongLived(const Plan& plan) {
  for (size_t s = 0; s < plan.steps.size(); ++s) {
    for (const ValueId v : plan.steps[s].writes) {
      if (plan.slots[v].kind != SlotKind::kArena) continue;
      for (size_t r = s + 2; r < plan.steps.size(); ++r) {
        const auto& reads = plan.steps[r].reads;
        if (std::find(reads.begin(), reads.end(), v) != reads.end()) return v;
      }
    }
  }
  ADD_FAILURE() << "no such value";
  return 0;
}

int Writer(const Plan& plan, ValueId v) {
  return First(plan, [&](const Step& s) {
    return std::find(s.writes.begin(), s.writes.end(), v) != s.writes.end();
  });
}

struct Case {
  const char* name;
  std::function<void(Plan&)> spoil;
  const char* message;
};
void PrintTo(const Case& c, std::ostream* out) { *out << c.name; }

bool IsFused(const Step& s) { return s.kind == StepKind::kFused; }
bool IsProduct(const Step& s) { return s.kind == StepKind::kOp; }

const Case kCases[] = {
    {"AStepIsMissing",
     [](Plan& p) {
       p.steps.erase(p.steps.begin() + Writer(p, LongLived(p)));
       for (Step& s : p.steps) s.waits.clear();
     },
     "whose place holds"},
    {"TheLastStepIsMissing", [](Plan& p) { p.steps.pop_back(); }, "is in no step"},
    {"AStepRunsTwice", [](Plan& p) { p.steps.push_back(p.steps[First(p, IsProduct)]); },
     "runs twice"},
    {"AReaderComesBeforeItsWriter",
     [](Plan& p) {
       const int at = Writer(p, LongLived(p));
       std::rotate(p.steps.begin() + at, p.steps.begin() + at + 1, p.steps.end());
     },
     "whose place holds"},
    {"TwoLiveValuesShareAPlace",
     [](Plan& p) {
       const ValueId v = LongLived(p);
       const Step& next = p.steps[Writer(p, v) + 1];
       for (const ValueId w : next.writes) p.slots[w] = p.slots[v];
     },
     "while it reads that"},
    {"APlaceLiesBeyondTheArena", [](Plan& p) { p.slots[LongLived(p)].offset = p.arena_bytes; },
     "inside its buffer"},
    {"APlaceIsTooSmall", [](Plan& p) { p.slots[LongLived(p)].bytes = 1; }, "does not hold"},
    {"AReadIsNotListed", [](Plan& p) { p.steps[First(p, IsProduct)].reads.pop_back(); },
     "other reads"},
    {"AWriteIsNotListed", [](Plan& p) { p.steps[First(p, IsFused)].writes.clear(); },
     "other writes"},
    {"AReadIsListedTwice",
     [](Plan& p) {
       Step& step = p.steps[First(p, IsProduct)];
       step.reads.push_back(step.reads[0]);
     },
     "other reads"},
    {"AReadIsOfNoValue",
     [](Plan& p) { p.steps[First(p, IsProduct)].reads[0] = static_cast<ValueId>(p.slots.size()); },
     "other reads"},
    {"AWriteIsListedTwice",
     [](Plan& p) {
       Step& step = p.steps[First(p, IsFused)];
       step.writes.push_back(step.writes[0]);
     },
     "other writes"},
    {"TwoResultsOfAStepShareAPlace",
     [](Plan& p) {
       const auto in_arena = [&](ValueId v) { return p.slots[v].kind == SlotKind::kArena; };
       const Step& step = p.steps[First(p, [&](const Step& s) {
         return s.writes.size() > 1 && in_arena(s.writes[0]) && in_arena(s.writes[1]);
       })];
       p.slots[step.writes[1]].offset = p.slots[step.writes[0]].offset;
     },
     "places that overlap"},
    {"AnOutputIsNotWritten",
     [](Plan& p) {  // but to a place of its own
       Slot& slot = p.slots[p.local().outputs[0].value];
       slot = {SlotKind::kArena, 0, p.arena_bytes, slot.bytes};
       p.arena_bytes += slot.bytes;
     },
     "output 0 ("},
    {"ACollectiveIsNotWaitedFor",
     [](Plan& p) {
       for (Step& s : p.steps) s.waits.clear();
     },
     "without waiting for step"},
    {"AStepWaitsForNoCollective",
     [](Plan& p) { p.steps.back().waits.push_back(First(p, IsProduct)); }, "no collective"},
    {"TheGuardComesTooLate", [](Plan& p) { p.guard_step = static_cast<int>(p.steps.size()) - 1; },
     "before the guard"},
    {"TheGuardComesTooEarly", [](Plan& p) { p.guard_step = 0; }, "the guard finds nothing whole"},
    {"AnInputIsOverwritten",
     [](Plan& p) { p.slots[LongLived(p)] = p.slots[p.local().inputs[0].value]; },
     "writes to an input"},
    {"AChainWritesBesideTheOperandItReads",
     [](Plan& p) {
       for (const Step& step : p.steps) {
         if (!IsFused(step)) continue;
         for (const ValueId w : step.writes) {
           for (const ValueId r : step.reads) {
             const Slot &from = p.slots[r], &to = p.slots[w];
             if (from.kind != SlotKind::kArena || to.kind != SlotKind::kArena ||
                 from.offset != to.offset || to.bytes < 128) {
               continue;
             }
             p.slots[w].offset += 64;
             return;
           }
         }
       }
       ADD_FAILURE() << "no chain works in place";
     },
     "while it reads that"},
    {"AnOpIsNotInPlaceThoughItsPlaceSaysSo",
     [](Plan& p) {
       const Step& step = p.steps[First(p, [&](const Step& s) {
         return IsProduct(s) && p.slots[s.reads[0]].kind == SlotKind::kArena;
       })];
       p.slots[step.writes[0]] = p.slots[step.reads[0]];
     },
     "while it reads that"},
};

class VerifyTest : public ::testing::TestWithParam<Case> {};
INSTANTIATE_TEST_SUITE_P(Spoiled, VerifyTest, ::testing::ValuesIn(kCases),
                         [](const auto& info) { return info.param.name; });

TEST_P(VerifyTest, ASpoiledPlanIsAnErrorThatShowsThePlan) {
  Plan plan = TrainStep();
  ASSERT_TRUE(Verify(plan, /*overlap=*/true).ok());
  GetParam().spoil(plan);
  const Status status = Verify(plan, /*overlap=*/true);
  EXPECT_EQ(status.code(), StatusCode::kInternal);
  EXPECT_THAT(status.message(), HasSubstr(GetParam().message));
  EXPECT_THAT(status.message(), HasSubstr("this is a bug of ours\nstep 0:"));
  EXPECT_THAT(status.message(), HasSubstr("\nprogram train_step\n"));
}

// Any two steps swapped: either the plan says so, or neither touched what the other needs.
TEST(VerifySwapTest, StepsThatDependOnEachOtherCannotBeSwapped) {
  const Plan good = TrainStep();
  int found = 0;
  for (size_t s = 0; s + 1 < good.steps.size(); ++s) {
    Plan plan = good;
    const std::vector<ValueId>& writes = plan.steps[s].writes;
    const bool depends = std::any_of(
        plan.steps[s + 1].reads.begin(), plan.steps[s + 1].reads.end(),
        [&](ValueId v) { return std::find(writes.begin(), writes.end(), v) != writes.end(); });
    if (!depends) continue;
    ++found;
    std::swap(plan.steps[s], plan.steps[s + 1]);
    EXPECT_EQ(Verify(plan, true).code(), StatusCode::kInternal) << s;
  }
  EXPECT_GT(found, 5);
}

}  // namespace
}  // namespace meshtrain::plan
