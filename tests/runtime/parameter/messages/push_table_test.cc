#include "runtime/parameter/messages/push_table.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "tests/runtime/parameter/seed.h"

namespace meshtrain::parameter {
namespace {

using Verdict = PushTable::Verdict;

TEST(PushTableTest, AppliesEachPushOnce) {
  PushTable table;
  EXPECT_EQ(table.Check({.worker = 1, .incarnation = 1, .seq = 0}), Verdict::kNew);
  table.Add({1, 1, 0}, 0);
  EXPECT_EQ(table.Check({1, 1, 0}), Verdict::kSeen);
  EXPECT_EQ(table.Check({1, 1, 1}), Verdict::kNew);
  EXPECT_EQ(table.Check({2, 1, 0}), Verdict::kNew);
}

TEST(PushTableTest, TakesPushesOutOfOrder) {
  PushTable table;
  table.Add({0, 1, 2}, 0);
  EXPECT_EQ(table.Check({0, 1, 1}), Verdict::kNew);
  EXPECT_EQ(table.Check({0, 1, 2}), Verdict::kSeen);
  table.Add({0, 1, 0}, 0);
  table.Add({0, 1, 1}, 0);
  EXPECT_EQ(table.Entries(), (std::vector<PushTable::Entry>{{0, 1, 3, {}}}));
}

TEST(PushTableTest, RefusesAnIncarnationThatHasEnded) {
  PushTable table;
  table.Add({0, 3, 7}, 7);
  EXPECT_EQ(table.Check({0, 2, 100}), Verdict::kStale);
  EXPECT_EQ(table.Check({0, 4, 0}), Verdict::kNew);
  table.Add({0, 4, 0}, 0);
  EXPECT_EQ(table.Check({0, 3, 8}), Verdict::kStale);
}

TEST(PushTableTest, RefusesWhatWasEndedBeforeTheNextCame) {
  PushTable table;
  table.Add({0, 1, 7}, 7);
  table.End(0, 2);
  table.End(1, 0);  // that has not begun
  EXPECT_EQ(table.Check({0, 1, 7}), Verdict::kStale);
  EXPECT_EQ(table.Check({0, 1, 8}), Verdict::kStale);
  EXPECT_EQ(table.Check({0, 2, 0}), Verdict::kNew);
  EXPECT_EQ(table.Entries(), (std::vector<PushTable::Entry>{{0, 2, 0, {}}}));
  table.Add({0, 2, 0}, 0);
  table.End(0, 1);
  table.End(0, 2);
  EXPECT_EQ(table.Check({0, 2, 0}), Verdict::kSeen) << "what has ended, ended";
}

TEST(PushTableTest, TakesWhatWasSettledAsSeen) {
  PushTable table;
  table.Add({0, 1, 5}, 5);  // 0 to 4 were given up or acknowledged
  EXPECT_EQ(table.Check({0, 1, 4}), Verdict::kSeen);
  EXPECT_EQ(table.Entries(), (std::vector<PushTable::Entry>{{0, 1, 6, {}}}));
}

TEST(PushTablePropertyTest, IsExactAndSmallWhateverTheOrder) {
  const uint64_t seed = testing_seed::FromEnvironment();
  for (uint64_t s = seed; s < seed + 100; ++s) {
    SCOPED_TRACE("MT_TEST_SEED=" + std::to_string(s));
    std::mt19937_64 random(s);
    PushTable table;
    std::set<int64_t> applied;
    int64_t next = 0;
    std::set<int64_t> under_way;
    for (int i = 0; i < 400; ++i) {
      // A worker runs at most four pushes ahead of the oldest that is under way.
      while (under_way.empty() || next - *under_way.begin() < 4) under_way.insert(next++);
      auto it = under_way.begin();
      std::advance(it, static_cast<std::ptrdiff_t>(random() % under_way.size()));
      const int64_t seq = *it;
      const PushId id{.worker = 3, .incarnation = 1, .seq = seq};
      ASSERT_EQ(table.Check(id) == Verdict::kSeen, applied.contains(seq));
      if (table.Check(id) == Verdict::kNew) {
        table.Add(id, *under_way.begin());
        applied.insert(seq);
      }
      if (random() % 2 == 0) under_way.erase(it);  // acknowledged; else it is sent again
      const auto entries = table.Entries();
      ASSERT_EQ(entries.size(), 1u);
      ASSERT_LE(entries[0].seqs.size(), 4u);
      ASSERT_EQ(PushTable::FromEntries(entries), table);
    }
  }
}

}  // namespace
}  // namespace meshtrain::parameter
