#include "runtime/device/cpu/bounds.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace meshtrain::device::cpu {

using mesh::DType;
using program::Op;
using program::ValueId;

double WithinType(DType dtype, double limit) {
  if (dtype != DType::kF32) return limit;
  const auto narrow =
      static_cast<float>(std::min<double>(limit, std::numeric_limits<float>::max()));
  return narrow > limit ? std::nextafter(narrow, 0.0F) : narrow;
}

Bounds::Bounds(const program::Program& local, int devices) {
  // With more multiplications, or near the smallest numbers, f32's rounding might add more than the
  // bound allows for.
  constexpr int64_t kMostSummands = int64_t{1} << 20;
  constexpr double kLeastLimit = 1e-30;
  for (const Op& count : local.ops) {
    if (count.kind != "count_beyond") continue;
    const ValueId v = count.operands[0];
    const int producer = local.values[v].op;
    if (producer < 0 || local.ops[producer].kind != "matmul") continue;
    const Op& op = local.ops[producer];
    const mesh::TensorType& type = local.type(v);
    const mesh::Dims& a = local.type(op.operands[0]).dims;
    const int64_t k = a[a.size() - (op.attrs.Bool("transpose_a") ? 2 : 1)];
    const int64_t factors =
        local.type(op.operands[0]).num_elements() + local.type(op.operands[1]).num_elements();
    const double asked = WithinType(type.dtype, count.attrs.Double("limit"));
    if (k < 1 || k > kMostSummands || asked < kLeastLimit) continue;
    if (2 * factors > type.num_elements()) continue;
    const double limit = WithinType(type.dtype, std::sqrt(asked / (4 * static_cast<double>(k))));
    const auto [it, added] = products_.try_emplace(
        v, Product{limit, std::vector<uint8_t>(static_cast<size_t>(devices), 0)});
    if (!added) it->second.factor_limit = std::min(it->second.factor_limit, limit);
  }
}

double Bounds::FactorLimit(ValueId v) const {
  const auto found = products_.find(v);
  return found == products_.end() ? 0 : found->second.factor_limit;
}

void Bounds::Mark(int device, ValueId v, bool within) {
  products_.at(v).within[device] = within ? 1 : 0;
}

bool Bounds::Within(int device, ValueId v) const {
  const auto found = products_.find(v);
  return found != products_.end() && found->second.within[device] != 0;
}

}  // namespace meshtrain::device::cpu
