#include "runtime/sharding/factors.h"

#include <algorithm>

namespace meshtrain::sharding {
namespace {

using program::DimFactors;
using program::Factor;
using program::FactorKind;
using program::FactorTable;

bool DimRepresentable(const DimFactors& dim, const FactorTable& table, const Split& split,
                      const AxisSizes& sizes) {
  if (dim.size() < 2) return true;
  bool complete = true;  // every slower factor is split down to single elements
  for (const int f : dim) {
    const int64_t extent = table.factors[f].size;
    const int64_t parts = sizes.Product(split.factors[f]);
    // A factor that is the whole dimension by its size (its neighbours are 1) is as free as one
    // alone.
    int64_t rest = 1;
    for (const int g : dim) rest *= g == f ? 1 : table.factors[g].size;
    if (rest == 1 && extent > 1) continue;
    if (parts > 1 && (!complete || extent % parts != 0)) return false;
    complete = complete && parts == extent;
  }
  return true;
}

Placement DimsPlacement(const std::vector<DimFactors>& dims, const Split& split) {
  Placement placement;
  for (size_t d = 0; d < dims.size(); ++d) {
    for (const int f : dims[d]) {
      for (const int axis : split.factors[f]) placement.Append(static_cast<int>(d), axis);
    }
  }
  return placement;
}

bool Holds(const std::vector<DimFactors>& dims, int factor) {
  return std::any_of(dims.begin(), dims.end(), [&](const DimFactors& dim) {
    return std::find(dim.begin(), dim.end(), factor) != dim.end();
  });
}

void AddPassing(const Split& split, Placement& placement) {
  for (int a = 0; a < kMaxAxes; ++a) {
    if (split.passing.pending(a)) placement.at[a] = split.passing.at[a];
  }
}

}  // namespace

mesh::Reduction ReductionOf(const Factor& factor) {
  switch (factor.kind) {
    case FactorKind::kMax:
      return mesh::Reduction::kMax;
    case FactorKind::kMin:
      return mesh::Reduction::kMin;
    default:
      return mesh::Reduction::kSum;
  }
}

bool Representable(const FactorTable& table, const Split& split, const AxisSizes& sizes) {
  const auto all = [&](const std::vector<std::vector<DimFactors>>& tensors) {
    for (const std::vector<DimFactors>& dims : tensors) {
      for (const DimFactors& dim : dims) {
        if (!DimRepresentable(dim, table, split, sizes)) return false;
      }
    }
    return true;
  };
  return all(table.operands) && all(table.results);
}

Placement OperandPlacement(const FactorTable& table, const Split& split, int operand) {
  Placement placement = DimsPlacement(table.operands[operand], split);
  if (operand < 32 && (split.passing_operands >> operand & 1) != 0) AddPassing(split, placement);
  return placement;
}

Placement ResultPlacement(const FactorTable& table, const Split& split, int result) {
  Placement placement = DimsPlacement(table.results[result], split);
  for (size_t f = 0; f < split.factors.size(); ++f) {
    if (split.factors[f].empty() || !Reduces(table.factors[f]) ||
        Holds(table.results[result], static_cast<int>(f))) {
      continue;
    }
    for (const int axis : split.factors[f]) {
      placement.at[axis] = Placement::PendingCode(ReductionOf(table.factors[f]));
    }
  }
  AddPassing(split, placement);
  return placement;
}

void AxesToFactors(const DimFactors& dim, const FactorTable& table, const AxisList& axes,
                   const AxisSizes& sizes, std::vector<AxisList>& out) {
  out.assign(dim.size(), {});
  if (dim.size() == 1) {
    out[0] = axes;
    return;
  }
  size_t at = 0;
  int64_t parts = 1;
  for (const int axis : axes) {
    const int64_t n = sizes.size[axis];
    while (at < dim.size() && parts == table.factors[dim[at]].size) {
      ++at;
      parts = 1;
    }
    if (at == dim.size() || table.factors[dim[at]].size % (parts * n) != 0) return;
    out[at].Add(axis);
    parts *= n;
  }
}

}  // namespace meshtrain::sharding
