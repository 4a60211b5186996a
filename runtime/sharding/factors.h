// Layouts seen through an op's factor table. A factor (registry.h) is one independent index of the
// op's computation; an op is split by giving mesh axes to factors, and the layouts of its operands
// and results follow from that.
//
//   matmul [8,4] x [4,16], factors m=8 (map), k=4 (sum), n=16 (map), split m:{batch} k:{model}
//   -> operand 0 {batch, model}, operand 1 {model, *}, result {batch, *} sum(model)
//
// A dimension of several factors f0 x f1 (f0 slowest) can be split only as far as its shards stay
// contiguous: f1 only when f0 is split completely, and every factor evenly. A factor that is a
// dimension by itself may be uneven.
#pragma once

#include <span>
#include <vector>

#include "runtime/program/registry.h"
#include "runtime/sharding/placement.h"

namespace meshtrain::sharding {

// Which axes split each factor, and which pending reductions go through the op untouched.
struct Split {
  std::vector<AxisList> factors;
  Placement passing;              // only its pending entries count
  uint32_t passing_operands = 0;  // bit i: operand i is the one (one of those) that is pending

  bool Passes() const { return passing_operands != 0; }
};

// True when every dimension that holds more than one factor keeps contiguous, equal shards.
bool Representable(const program::FactorTable& table, const Split& split, const AxisSizes& sizes);

// What the op needs operand i to be.
Placement OperandPlacement(const program::FactorTable& table, const Split& split, int operand);
// What it makes of result r: reducing factors that are split leave the result pending.
Placement ResultPlacement(const program::FactorTable& table, const Split& split, int result);

// Gives the axes of one dimension to its factors, slowest first, as far as they fit; `out` has one
// list per factor of `dim`. {batch+model} on a dimension of factors [4, 6], batch=4, model=2 ->
// {batch}, {model}.
void AxesToFactors(const program::DimFactors& dim, const program::FactorTable& table,
                   const AxisList& axes, const AxisSizes& sizes, std::vector<AxisList>& out);

// True for factors that may be split at all.
inline bool Splittable(const program::Factor& factor) {
  return factor.kind != program::FactorKind::kWhole;
}
// True for factors that a reduction removes.
inline bool Reduces(const program::Factor& factor) {
  return factor.kind == program::FactorKind::kSum || factor.kind == program::FactorKind::kMax ||
         factor.kind == program::FactorKind::kMin;
}
// The reduction that a split reducing factor leaves pending.
mesh::Reduction ReductionOf(const program::Factor& factor);

}  // namespace meshtrain::sharding
