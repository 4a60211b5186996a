// The graph of a program's ops while they are merged into steps. A node is a set of ops that run at
// one point of the plan; it comes after every node whose values one of its ops reads.
//
// Kept true: the graph has no cycle, so every op is in the order that it gives. A position is kept
// for each node, by which every node stands after all that it depends on; a merge that would close
// a cycle is found by looking only at what stands between the two nodes, and after one that does
// not only what stands between them moves (as in Pearce and Kelly, "A dynamic topological sort
// algorithm for directed acyclic graphs", JEA 2007).
#pragma once

#include <cstdint>
#include <vector>

#include "runtime/program/program.h"

namespace meshtrain::plan {

class StepGraph {
 public:
  // One node for each op. `after[op]`: ops that run before `op` although it reads nothing of
  // theirs; they may be recorded after it. With them the graph must have no cycle (MT_CHECK).
  // `local` outlives the graph.
  StepGraph(const program::Program& local, std::vector<std::vector<int>> after);

  int NodeOf(int op) const { return node_of_[op]; }
  // Ascending.
  const std::vector<int>& Ops(int node) const { return ops_[node]; }

  // Merges two nodes unless a path leads from one to the other through a third, which would become
  // a cycle. Returns whether they are one node now; that node is `into`.
  bool Merge(int into, int from);

  // The nodes in an order that respects dependencies and otherwise follows the last recorded op of
  // each; with `eager`, nodes that communicate come as soon as they can. What is beyond a limit is
  // counted while the values are at hand, unless that would be to wait for other devices.
  std::vector<int> Order(bool eager) const;

 private:
  // Calls visit(node) for each node that `node` comes after, itself left out; some more than once.
  template <typename Visit>
  void ForEachBefore(int node, const Visit& visit) const;

  const program::Program& local_;
  const std::vector<std::vector<int>> after_;
  std::vector<int> node_of_;           // per op
  std::vector<std::vector<int>> ops_;  // per node; empty: merged into another
  std::vector<int> position_;          // per node
  std::vector<int> at_;                // per position: its node, or -1
  std::vector<int> seen_;              // per node: the last search that met it
  int search_ = 0;
};

}  // namespace meshtrain::plan
