#include "runtime/sharding/place.h"

#include <algorithm>
#include <utility>

#include "runtime/base/check.h"
#include "runtime/program/limits.h"

namespace meshtrain::sharding {

AxisSizes::AxisSizes(const mesh::Mesh& mesh) : count(mesh.num_axes()) {
  MT_CHECK(count <= kMaxAxes);
  for (int a = 0; a < count; ++a) size[a] = mesh.axis(a).size;
}

bool Place::AnyPending() const {
  return std::any_of(at.begin(), at.end(), [](int8_t code) { return code <= kPendingSum; });
}

bool Place::AnySplit() const {
  return std::any_of(at.begin(), at.end(), [](int8_t code) { return code >= 0; });
}

AxisList Place::AxesOf(int dim) const {
  AxisList axes;
  for (int a = 0; a < kMaxAxes; ++a) {
    if (at[a] != dim) continue;
    axes.axis[order[a]] = static_cast<int8_t>(a);
    ++axes.count;
  }
  return axes;
}

void Place::Append(int dim, int axis) {
  MT_CHECK(at[axis] < 0);
  int8_t next = 0;
  for (int a = 0; a < kMaxAxes; ++a) next = static_cast<int8_t>(next + (at[a] == dim ? 1 : 0));
  at[axis] = static_cast<int8_t>(dim);
  order[axis] = next;
}

Place PlaceOf(const mesh::Layout& layout) {
  Place place;
  const mesh::Mesh& mesh = layout.mesh();
  for (int d = 0; d < layout.rank(); ++d) {
    for (const int axis : layout.dim(d)) {
      if (mesh.axis(axis).size > 1) place.Append(d, axis);
    }
  }
  for (const mesh::Partial& p : layout.partial()) {
    if (mesh.axis(p.axis).size > 1) place.at[p.axis] = Place::PendingCode(p.reduction);
  }
  return place;
}

mesh::Layout LayoutOf(const Place& place, const mesh::Mesh& mesh, int rank) {
  std::vector<mesh::DimSharding> dims(rank);
  std::vector<mesh::Partial> partial;
  for (int d = 0; d < rank; ++d) {
    const AxisList axes = place.AxesOf(d);
    dims[d].assign(axes.begin(), axes.end());
  }
  for (int a = 0; a < mesh.num_axes(); ++a) {
    if (place.pending(a)) partial.push_back({a, Place::ReductionOf(place.at[a])});
  }
  auto layout = mesh::Layout::Create(mesh, std::move(dims), std::move(partial));
  MT_CHECK(layout.ok());
  return *std::move(layout);
}

int64_t LocalElements(const Place& place, std::span<const int64_t> dims, const AxisSizes& sizes) {
  std::array<int64_t, program::kMaxRank> parts{};
  MT_CHECK(dims.size() <= parts.size());
  std::fill_n(parts.begin(), dims.size(), int64_t{1});
  for (int a = 0; a < sizes.count; ++a) {
    if (place.at[a] >= 0) parts[place.at[a]] *= sizes.size[a];
  }
  int64_t n = 1;
  for (size_t d = 0; d < dims.size(); ++d) n *= CeilDiv(dims[d], parts[d]);
  return n;
}

}  // namespace meshtrain::sharding
