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
  std::map<ValueId, double> asked;  // the least that is asked about each
  for (const Op& count : local.ops) {
    if (count.kind != "count_beyond") continue;
    const ValueId v = count.operands[0];
    const double limit = WithinType(local.type(v).dtype, count.attrs.Double("limit"));
    const auto [it, added] = asked.try_emplace(v, limit);
    if (!added) it->second = std::min(it->second, limit);
  }
  for (const auto& [v, limit] : asked) {
    const int producer = local.values[v].op;
    if (producer < 0 || local.ops[producer].kind != "matmul") continue;
    const Op& op = local.ops[producer];
    const mesh::TensorType &a = local.type(op.operands[0]), &b = local.type(op.operands[1]);
    int64_t k = a.dims[a.dims.size() - (op.attrs.Bool("transpose_a") ? 2 : 1)];
    if (op.attrs.Bool("sum_batch")) k = a.num_elements() / std::max<int64_t>(1, a.dims.back());
    if (k < 1 || k > kMostSummands || limit < kLeastLimit) continue;
    if (2 * (a.num_elements() + b.num_elements()) > local.type(v).num_elements()) continue;
    const double factor_limit = std::sqrt(limit / (4 * static_cast<double>(k)));
    products_[v] = {WithinType(a.dtype, factor_limit),
                    std::vector<uint8_t>(static_cast<size_t>(devices), 0)};
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
