// A layout in 16 bytes: what the planner compares, copies and searches over. One entry per mesh
// axis instead of one list per dimension, so that equality is a memory comparison and nothing is
// allocated.
//
// Kept true: axes of size 1 are never mentioned (a Placement is canonical); `order` is 0 where `at`
// is not a dimension.
#pragma once

#include <array>
#include <cstdint>
#include <span>

#include "runtime/base/check.h"
#include "runtime/mesh/layout.h"

namespace meshtrain::sharding {

inline constexpr int kMaxAxes = 8;  // Mesh's own bound

// A few mesh axes, slowest first.
struct AxisList {
  int8_t count = 0;
  std::array<int8_t, kMaxAxes> axis = {};

  bool empty() const { return count == 0; }
  void Add(int a) {
    MT_CHECK(count < kMaxAxes);
    axis[count++] = static_cast<int8_t>(a);
  }
  bool Has(int a) const {
    for (int i = 0; i < count; ++i) {
      if (axis[i] == a) return true;
    }
    return false;
  }
  const int8_t* begin() const { return axis.data(); }
  const int8_t* end() const { return axis.data() + count; }
  friend bool operator==(const AxisList& a, const AxisList& b) {
    if (a.count != b.count) return false;
    for (int i = 0; i < a.count; ++i) {
      if (a.axis[i] != b.axis[i]) return false;
    }
    return true;
  }
};

// The sizes of a mesh's axes.
struct AxisSizes {
  int count = 0;
  std::array<int64_t, kMaxAxes> size = {};

  explicit AxisSizes(const mesh::Mesh& mesh);
  int64_t Product(const AxisList& axes) const {
    int64_t n = 1;
    for (const int a : axes) n *= size[a];
    return n;
  }
};

struct Placement {
  // What an axis does: >= 0 splits that dimension; else one of these.
  static constexpr int8_t kCopies = -1;
  static constexpr int8_t kPendingSum = -2;
  static constexpr int8_t kPendingMax = -3;
  static constexpr int8_t kPendingMin = -4;

  std::array<int8_t, kMaxAxes> at = {-1, -1, -1, -1, -1, -1, -1, -1};
  std::array<int8_t, kMaxAxes> order = {};  // its place among the axes of its dimension, 0 slowest

  static int8_t PendingCode(mesh::Reduction r) {
    return static_cast<int8_t>(kPendingSum - static_cast<int>(r));
  }
  static mesh::Reduction ReductionOf(int8_t code) {
    return static_cast<mesh::Reduction>(kPendingSum - code);
  }

  bool pending(int axis) const { return at[axis] <= kPendingSum; }
  bool AnyPending() const;
  bool AnySplit() const;
  bool Copies() const { return !AnyPending() && !AnySplit(); }
  // The axes of dimension `dim`, slowest first.
  AxisList AxesOf(int dim) const;
  // Makes `axis` the fastest one of dimension `dim`.
  void Append(int dim, int axis);
  void Clear(int axis) {
    at[axis] = kCopies;
    order[axis] = 0;
  }

  friend bool operator==(const Placement&, const Placement&) = default;
};

Placement PlacementOf(const mesh::Layout& layout);
mesh::Layout LayoutOf(const Placement& placement, const mesh::Mesh& mesh, int rank);

inline int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Elements that one device stores.
int64_t LocalElements(const Placement& placement, std::span<const int64_t> dims,
                      const AxisSizes& sizes);
// Stored extent of one dimension.
inline int64_t LocalExtent(const Placement& placement, int dim, int64_t extent,
                           const AxisSizes& sizes) {
  return CeilDiv(extent, sizes.Product(placement.AxesOf(dim)));
}
// True when every device's shard of dimension `dim` is full.
inline bool EvenDim(const Placement& placement, int dim, int64_t extent, const AxisSizes& sizes) {
  return extent % sizes.Product(placement.AxesOf(dim)) == 0;
}

}  // namespace meshtrain::sharding
