#include "runtime/plan/step_graph.h"

#include <algorithm>
#include <functional>
#include <queue>
#include <utility>

#include "runtime/base/check.h"
#include "runtime/plan/plan.h"

namespace meshtrain::plan {
namespace {

using Item = std::pair<int, int>;  // key, node
using SmallestFirst = std::priority_queue<Item, std::vector<Item>, std::greater<>>;

}  // namespace

StepGraph::StepGraph(const program::Program& local, std::vector<std::vector<int>> after)
    : local_(local),
      after_(std::move(after)),
      node_of_(local.ops.size()),
      ops_(local.ops.size()),
      position_(local.ops.size(), 0),
      seen_(local.ops.size(), 0) {
  MT_CHECK(after_.size() == local.ops.size());
  for (size_t i = 0; i < ops_.size(); ++i) {
    node_of_[i] = static_cast<int>(i);
    ops_[i] = {static_cast<int>(i)};
  }
  at_ = Order(/*eager=*/false);
  MT_CHECK(at_.size() == ops_.size());
  for (size_t p = 0; p < at_.size(); ++p) position_[at_[p]] = static_cast<int>(p);
}

template <typename Visit>
void StepGraph::ForEachBefore(int node, const Visit& visit) const {
  for (const int op : ops_[node]) {
    for (const ValueId v : local_.ops[op].operands) {
      const int producer = local_.values[v].op;
      if (producer >= 0 && node_of_[producer] != node) visit(node_of_[producer]);
    }
    for (const int before : after_[op]) {
      if (node_of_[before] != node) visit(node_of_[before]);
    }
  }
}

bool StepGraph::Merge(int into, int from) {
  if (into == from) return true;
  int first = into, last = from;
  if (position_[first] > position_[last]) std::swap(first, last);
  const int begin = position_[first], end = position_[last];

  // What `last` depends on and stands after `first`. Those nearest to `first` are looked at before
  // others: where there is a path, they are on it or near it.
  ++search_;
  std::vector<int> between;
  SmallestFirst open;
  const auto meet = [&](int n) {
    if (position_[n] <= begin || seen_[n] == search_) return;
    seen_[n] = search_;
    between.push_back(n);
    open.push({position_[n], n});
  };
  ForEachBefore(last, meet);
  bool reached = false;
  while (!open.empty() && !reached) {
    const int n = open.top().second;
    open.pop();
    ForEachBefore(n, [&](int m) {
      reached = reached || m == first;
      meet(m);
    });
  }
  if (reached) return false;

  std::vector<int>& ops = ops_[into];
  for (const int op : ops_[from]) node_of_[op] = into;
  const auto middle = static_cast<std::ptrdiff_t>(ops.size());
  ops.insert(ops.end(), ops_[from].begin(), ops_[from].end());
  std::inplace_merge(ops.begin(), ops.begin() + middle, ops.end());
  ops_[from].clear();

  // What `last` depends on, then the two, then what is left of those that stood between them: none
  // of these is needed by `last`, and they may need `first`.
  std::sort(between.begin(), between.end(),
            [&](int a, int b) { return position_[a] < position_[b]; });
  std::vector<int> rest;
  for (int p = begin + 1; p < end; ++p) {
    if (at_[p] >= 0 && seen_[at_[p]] != search_) rest.push_back(at_[p]);
  }
  int p = begin;
  const auto place = [&](int n) {
    at_[p] = n;
    position_[n] = p++;
  };
  for (const int n : between) place(n);
  place(into);
  for (const int n : rest) place(n);
  for (; p <= end; ++p) at_[p] = -1;
  return true;
}

std::vector<int> StepGraph::Order(bool eager) const {
  const auto key = [&](int n) {
    const program::Op& first = local_.ops[ops_[n].front()];
    if (eager && Communicates(first)) return -1;
    if (first.kind == "count_beyond") {
      // Before the all-reduce of the same value, which then leaves its result in its place.
      const int producer = local_.values[first.operands[0]].op;
      if (producer >= 0 && !Communicates(local_.ops[producer])) return eager ? -2 : producer;
    }
    return ops_[n].back();
  };
  std::vector<int> waiting(ops_.size(), 0);
  std::vector<std::vector<int>> users(ops_.size());
  for (size_t n = 0; n < ops_.size(); ++n) {
    ForEachBefore(static_cast<int>(n), [&](int before) {
      users[before].push_back(static_cast<int>(n));
      ++waiting[n];
    });
  }
  SmallestFirst ready;
  for (size_t n = 0; n < ops_.size(); ++n) {
    if (!ops_[n].empty() && waiting[n] == 0) {
      ready.push({key(static_cast<int>(n)), static_cast<int>(n)});
    }
  }
  std::vector<int> order;
  while (!ready.empty()) {
    const int n = ready.top().second;
    ready.pop();
    order.push_back(n);
    for (const int user : users[n]) {
      if (--waiting[user] == 0) ready.push({key(user), user});
    }
  }
  return order;
}

}  // namespace meshtrain::plan
