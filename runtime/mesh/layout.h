// How one tensor lies on a mesh: for each dimension the mesh axes that split it, and the axes over
// which the value is still a pending reduction. Text: `{batch, *}`, two axes on one dimension
// `{batch+model, *}` (first axis slowest), pending sum over an axis `{*, *} sum(batch)`, a scalar
// `{}`.
//
// Kept true: an axis appears at most once, in a dimension or among the partial ones. An axis of the
// mesh that does not appear holds copies. Uneven shards: a dimension of D elements over n shards is
// stored in chunks of ceil(D/n), of which shard k holds the valid extent min(chunk, max(0, D -
// k*chunk)), at its start. Worked example: f32[10,4] under `{batch, *}` on batch=4: local shape
// [3,4]; rank 3 holds row 9 alone. A Layout is a value. Threads: reading one from several is safe.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "runtime/mesh/mesh.h"

namespace meshtrain::mesh {

// DTensor's spelling of a dimension that no axis splits.
inline constexpr char UNSHARDED[] = "unsharded";

enum class Reduction : uint8_t { kSum, kMax, kMin };
std::string_view ReductionName(Reduction reduction);  // "sum", "max", "min"

struct Partial {
  int axis = 0;
  Reduction reduction = Reduction::kSum;
  friend auto operator<=>(const Partial&, const Partial&) = default;
};

// Mesh axes, slowest first; empty: not split.
using DimSharding = std::vector<int>;

class Layout {
 public:
  // A scalar on one device.
  Layout() = default;
  // The axes by index. Errors: kInvalidArgument when an axis is unknown or used twice.
  static Result<Layout> Create(Mesh mesh, std::vector<DimSharding> dims,
                               std::vector<Partial> partial = {});
  // The axes by name, one spec per dimension: UNSHARDED (or "" or "*"), "batch", "batch+model".
  // Errors: kInvalidArgument naming an axis that the mesh has not, or that is used twice.
  static Result<Layout> FromSpecs(const std::vector<std::string>& specs, const Mesh& mesh);
  static Layout Replicated(const Mesh& mesh, int rank);
  // Dimension 0 over `axis`, the others whole. Errors: kInvalidArgument for a rank below 1 or an
  // axis that the mesh has not.
  static Result<Layout> BatchSharded(const Mesh& mesh, std::string_view axis, int rank);
  // The text above. Errors: kInvalidArgument quoting a text of another form, or as FromSpecs.
  static Result<Layout> Parse(std::string_view text, const Mesh& mesh);
  std::string ToString() const;

  const Mesh& mesh() const { return mesh_; }
  int rank() const { return static_cast<int>(dims_.size()); }
  const std::vector<DimSharding>& dims() const { return dims_; }
  const DimSharding& dim(int d) const { return dims_[d]; }
  const std::vector<Partial>& partial() const { return partial_; }  // ordered by axis
  std::vector<std::string> specs() const;  // "unsharded", "batch", "batch+model"

  bool IsReplicated() const;  // nothing split, nothing pending
  bool IsPartial() const { return !partial_.empty(); }
  bool Uses(int axis) const;  // splits a dimension or is pending
  // The dimension that `axis` splits, or -1.
  int DimOf(int axis) const;

  // Of the next three, a dimension or axis that is not there, or an axis that is not free, ends the
  // program (MT_CHECK).
  // The layout without the given dimensions: weight_layout.Delete({0}) is the bias's.
  Layout Delete(const std::vector<int>& dims) const;
  Layout WithDim(int d, const DimSharding& axes) const;
  Layout WithPartial(const std::vector<Partial>& partial) const;
  // Axes of size 1 dropped: two layouts that hold the same bytes compare equal after this.
  Layout Canonical() const;

  int64_t NumShards(int d) const;      // product of the axis sizes on dimension d
  std::vector<int64_t> Shape() const;  // shards per dimension
  // True when every shard of `global`, of the same rank, holds the same number of elements.
  bool IsEven(const Dims& global) const;
  // What each device stores: ceil(D/n) per dimension. Errors: kInvalidArgument when the ranks
  // differ.
  Result<Dims> LocalShape(const Dims& global) const;

  struct Slice {
    Dims offsets;  // in the global tensor
    Dims sizes;    // valid extent, at the start of the local storage
    friend bool operator==(const Slice&, const Slice&) = default;
  };
  // What device `device_rank` of the mesh holds of a tensor of `global` dimensions (of the same
  // rank).
  Slice SliceOf(int64_t device_rank, const Dims& global) const;

  friend bool operator==(const Layout&, const Layout&) = default;

 private:
  Mesh mesh_;
  std::vector<DimSharding> dims_;
  std::vector<Partial> partial_;
};

// "layout [batch] has 1 entry, but `hidden_1.kernel` has rank 2", or OK.
Status CheckRank(std::span<const std::string> specs, std::string_view path, int rank);

}  // namespace meshtrain::mesh
