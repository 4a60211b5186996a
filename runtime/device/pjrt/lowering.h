// A plan as StableHLO: one program for all devices of the plan's mesh, device r of it being replica
// r, collectives explicit. Fusion, order and memory are XLA's; what the plan fused is taken apart,
// its buckets stay. Pure.
//
// The program's arguments are the plan's inputs, then its states; its results are the outputs, then
// the states that change (their arguments are donated), then, where the plan guards something, a
// code: 0, or 1 + which of Lowered::guards is not as it must be. Then every state has its entry
// value again.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "runtime/device/pjrt/module.h"
#include "runtime/plan/plan.h"

namespace meshtrain::device::pjrt {

// What an op's row reads and writes: the module, and for each value of the local program its node.
class Lowering {
 public:
  Lowering(const plan::Plan& plan, bool for_cpus)
      : plan_(plan), for_cpus_(for_cpus), nodes_(plan.local().values.size()) {}

  Module& m() { return module_; }
  const plan::Plan& plan() const { return plan_; }
  bool for_cpus() const { return for_cpus_; }
  const mesh::Mesh& mesh() const { return plan_.partitioned.mesh; }
  const mesh::TensorType& type(program::ValueId v) const { return plan_.local().type(v); }

  const Node& Of(program::ValueId v);  // constants that no step holds are written when first used
  // Operand i of an op. Of one that computes something again (program/again.h) it stands behind a
  // barrier, if it is not computed again itself: XLA would take the op for the one that it repeats.
  Node In(const program::Op& op, size_t i);
  void Set(program::ValueId v, Node node);

  // The device's index along mesh axes, first axis slowest: i64[].
  Node IndexAlong(const std::vector<int64_t>& axes);
  // The groups of a collective over these axes.
  Module::Groups GroupsOf(const std::vector<int64_t>& axes) const;
  // Where the device's shard begins in dimension `d` of a value in `layout`: i64[].
  Node OffsetIn(const mesh::Layout& layout, int d, int64_t local_size);

 private:
  const plan::Plan& plan_;
  const bool for_cpus_;
  Module module_;
  std::vector<Node> nodes_;
  std::map<program::ValueId, Node> barriers_;
};

struct Lowered {
  std::string text;
  int64_t replicas = 1;
  std::vector<int> changed;  // states, in the order of their results
  // Names of guarded outputs; after them, "" for the count that must be 0
  // (plan::Plan::zero_output).
  std::vector<std::string> guards;
};

// `for_cpus`: written so that XLA's code for CPUs is fast, which other targets do better by
// themselves. Errors: kUnimplemented naming an op without a row, with its source line.
Result<Lowered> Lower(const plan::Plan& plan, bool for_cpus = false);

}  // namespace meshtrain::device::pjrt
