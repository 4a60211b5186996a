#include "runtime/sharding/placement.h"

#include <algorithm>
#include <utility>

#include "runtime/base/check.h"
#include "runtime/program/limits.h"

namespace meshtrain::sharding {

AxisSizes::AxisSizes(const mesh::Mesh& mesh) : count(mesh.num_axes()) {
  MT_CHECK(count <= kMaxAxes);
  for (int a = 0; a < count; ++a) size[a] = mesh.axis(a).size;
}

bool Placement::AnyPending() const {
  return std::any_of(at.begin(), at.end(), [](int8_t code) { return code <= kPendingSum; });
}

bool Placement::AnySplit() const {
  return std::any_of(at.begin(), at.end(), [](int8_t code) { return code >= 0; });
}

AxisList Placement::AxesOf(int dim) const {
  AxisList axes;
  for (int a = 0; a < kMaxAxes; ++a) {
    if (at[a] != dim) continue;
    axes.axis[order[a]] = static_cast<int8_t>(a);
    ++axes.count;
  }
  return axes;
}

void Placement::Append(int dim, int axis) {
  MT_CHECK(at[axis] < 0);
  int8_t next = 0;
  for (int a = 0; a < kMaxAxes; ++a) next = static_cast<int8_t>(next + (at[a] == dim ? 1 : 0));
  at[axis] = static_cast<int8_t>(dim);
  order[axis] = next;
}

Placement PlacementOf(const mesh::Layout& layout) {
  Placement placement;
  const mesh::Mesh& mesh = layout.mesh();
  for (int d = 0; d < layout.rank(); ++d) {
    for (const int axis : layout.dim(d)) {
      if (mesh.axis(axis).size > 1) placement.Append(d, axis);
    }
  }
  for (const mesh::Partial& p : layout.partial()) {
    if (mesh.axis(p.axis).size > 1) placement.at[p.axis] = Placement::PendingCode(p.reduction);
  }
  return placement;
}

mesh::Layout LayoutOf(const Placement& placement, const mesh::Mesh& mesh, int rank) {
  std::vector<mesh::DimSharding> dims(rank);
  std::vector<mesh::Partial> partial;
  for (int d = 0; d < rank; ++d) {
    const AxisList axes = placement.AxesOf(d);
    dims[d].assign(axes.begin(), axes.end());
  }
  for (int a = 0; a < mesh.num_axes(); ++a) {
    if (placement.pending(a)) partial.push_back({a, Placement::ReductionOf(placement.at[a])});
  }
  auto layout = mesh::Layout::Create(mesh, std::move(dims), std::move(partial));
  MT_CHECK(layout.ok());
  return *std::move(layout);
}

int64_t LocalElements(const Placement& placement, std::span<const int64_t> dims,
                      const AxisSizes& sizes) {
  std::array<int64_t, program::kMaxRank> parts{};
  MT_CHECK(dims.size() <= parts.size());
  std::fill_n(parts.begin(), dims.size(), int64_t{1});
  for (int a = 0; a < sizes.count; ++a) {
    if (placement.at[a] >= 0) parts[placement.at[a]] *= sizes.size[a];
  }
  int64_t n = 1;
  for (size_t d = 0; d < dims.size(); ++d) n *= CeilDiv(dims[d], parts[d]);
  return n;
}

}  // namespace meshtrain::sharding
