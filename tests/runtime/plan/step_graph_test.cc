// Merging against a plain search over the whole graph.
#include "runtime/plan/step_graph.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <functional>
#include <random>
#include <set>

#include "runtime/program/builder.h"
#include "runtime/program/ops.h"

namespace meshtrain::plan {
namespace {

using program::Builder;
using program::DType;
using program::Value;

// Which op reads which, and which op is merged with which, without any order kept.
class PlainGraph {
 public:
  PlainGraph(const program::Program& local, const std::vector<std::vector<int>>& after)
      : before_(local.ops.size()), node_of_(local.ops.size()) {
    for (size_t i = 0; i < local.ops.size(); ++i) {
      node_of_[i] = static_cast<int>(i);
      for (const auto v : local.ops[i].operands) {
        if (local.values[v].op >= 0) before_[i].push_back(local.values[v].op);
      }
      before_[i].insert(before_[i].end(), after[i].begin(), after[i].end());
    }
  }

  bool Merge(int into, int from) {
    std::vector<int> merged = node_of_;
    std::replace(merged.begin(), merged.end(), from, into);
    if (HasCycle(merged)) return false;
    node_of_ = merged;
    return true;
  }
  int NodeOf(int op) const { return node_of_[op]; }
  const std::vector<std::vector<int>>& before() const { return before_; }

 private:
  bool HasCycle(const std::vector<int>& node_of) const {
    std::vector<std::set<int>> edges(node_of.size());
    for (size_t op = 0; op < node_of.size(); ++op) {
      for (const int b : before_[op]) {
        if (node_of[b] != node_of[op]) edges[node_of[op]].insert(node_of[b]);
      }
    }
    std::vector<int> state(node_of.size(), 0);  // 1: on the path, 2: done
    const std::function<bool(int)> visit = [&](int n) {
      if (state[n] == 2) return false;
      if (state[n] == 1) return true;
      state[n] = 1;
      for (const int m : edges[n]) {
        if (visit(m)) return true;
      }
      state[n] = 2;
      return false;
    };
    for (const int n : node_of) {
      if (visit(n)) return true;
    }
    return false;
  }

  std::vector<std::vector<int>> before_;
  std::vector<int> node_of_;
};

TEST(StepGraphTest, MergesAreRefusedExactlyWhereTheyCloseACycle) {
  const char* given = std::getenv("MT_TEST_SEED");
  const uint32_t base = given != nullptr ? static_cast<uint32_t>(std::atoi(given)) : 1;
  const int count = given != nullptr ? 1 : 200;
  int refused = 0, merged = 0;
  for (uint32_t seed = base; seed < base + static_cast<uint32_t>(count); ++seed) {
    SCOPED_TRACE("MT_TEST_SEED=" + std::to_string(seed));
    std::mt19937 random(seed);
    const auto pick = [&](size_t n) { return static_cast<int>(random() % n); };
    Builder b("random");
    Builder::Scope scope(b);
    std::vector<Value> values = {b.Input("x", {DType::kF32, {4}})};
    for (int i = 0, ops = 5 + pick(30); i < ops; ++i) {
      values.push_back(values[pick(values.size())] + values[pick(values.size())]);
    }
    b.Output("y", values.back());
    auto program = b.Build();
    ASSERT_TRUE(program.ok());
    const auto ops = static_cast<int>(program->ops.size());
    // An op may have to wait for one that was recorded after it, where that does not need it.
    std::vector<std::vector<int>> after(ops);
    for (int i = 0; i < ops; i += 1 + pick(6)) {
      const int later = pick(ops);
      PlainGraph trial(*program, after);
      auto more = after;
      more[i].push_back(later);
      if (later != i && PlainGraph(*program, more).Merge(i, i)) after = more;
    }
    StepGraph graph(*program, after);
    PlainGraph plain(*program, after);
    for (int i = 0; i < 60; ++i) {
      const int into = plain.NodeOf(pick(ops)), from = plain.NodeOf(pick(ops));
      const bool want = plain.Merge(into, from);
      ASSERT_EQ(graph.Merge(into, from), want) << "merge " << i;
      (want ? merged : refused) += into != from;
      for (int op = 0; op < ops; ++op) ASSERT_EQ(graph.NodeOf(op), plain.NodeOf(op));
    }
    // Every op once, after what it needs.
    std::vector<int> place(ops, -1);
    int next = 0;
    for (const int node : graph.Order(pick(2) == 0)) {
      for (const int op : graph.Ops(node)) {
        EXPECT_EQ(place[op], -1);
        place[op] = next;
      }
      ++next;
    }
    for (int op = 0; op < ops; ++op) {
      ASSERT_GE(place[op], 0);
      for (const int before : plain.before()[op]) {
        if (graph.NodeOf(before) != graph.NodeOf(op)) {
          EXPECT_LT(place[before], place[op]) << before << " before " << op;
        }
      }
    }
  }
  if (given == nullptr) {
    EXPECT_GT(refused, 500);
    EXPECT_GT(merged, 500);
  }
}

}  // namespace
}  // namespace meshtrain::plan
