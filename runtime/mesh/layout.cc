#include "runtime/mesh/layout.h"

#include <algorithm>

#include "runtime/base/check.h"
#include "runtime/base/text.h"

namespace meshtrain::mesh {
namespace {

constexpr std::string_view kReductionNames[] = {"sum", "max", "min"};

Result<DimSharding> ParseSpec(std::string_view spec, const Mesh& mesh) {
  DimSharding axes;
  spec = Trim(spec);
  if (spec.empty() || spec == "*" || spec == UNSHARDED) return axes;
  for (const std::string& name : Split(spec, '+')) {
    MT_ASSIGN_OR_RETURN(const int axis, mesh.AxisIndex(Trim(name)));
    axes.push_back(axis);
  }
  return axes;
}

std::string SpecText(const DimSharding& axes, const Mesh& mesh, std::string_view unsharded) {
  if (axes.empty()) return std::string(unsharded);
  std::string text;
  for (const int axis : axes) {
    if (!text.empty()) text += '+';
    text += mesh.axis(axis).name;
  }
  return text;
}

}  // namespace

std::string_view ReductionName(Reduction reduction) {
  return kReductionNames[static_cast<int>(reduction)];
}

Result<Layout> Layout::Create(Mesh mesh, std::vector<DimSharding> dims,
                              std::vector<Partial> partial) {
  std::vector<bool> used(mesh.num_axes(), false);
  const auto take = [&](int axis) -> Status {
    if (axis < 0 || axis >= mesh.num_axes()) {
      return InvalidArgument("layout: mesh " + mesh.ToString() + " has no axis number " +
                             std::to_string(axis));
    }
    if (used[axis]) {
      return InvalidArgument("layout: axis `" + mesh.axis(axis).name + "` is used twice");
    }
    used[axis] = true;
    return OkStatus();
  };
  for (const DimSharding& axes : dims) {
    for (const int axis : axes) MT_RETURN_IF_ERROR(take(axis));
  }
  for (const Partial& p : partial) MT_RETURN_IF_ERROR(take(p.axis));
  std::sort(partial.begin(), partial.end());
  Layout layout;
  layout.mesh_ = std::move(mesh);
  layout.dims_ = std::move(dims);
  layout.partial_ = std::move(partial);
  return layout;
}

Result<Layout> Layout::FromSpecs(const std::vector<std::string>& specs, const Mesh& mesh) {
  std::vector<DimSharding> dims;
  for (const std::string& spec : specs) {
    MT_ASSIGN_OR_RETURN(DimSharding axes, ParseSpec(spec, mesh));
    dims.push_back(std::move(axes));
  }
  return Create(mesh, std::move(dims));
}

Layout Layout::Replicated(const Mesh& mesh, int rank) {
  Layout layout;
  layout.mesh_ = mesh;
  layout.dims_.resize(rank);
  return layout;
}

Result<Layout> Layout::BatchSharded(const Mesh& mesh, std::string_view axis, int rank) {
  if (rank < 1) {
    return InvalidArgument("layout: a batch-sharded tensor has at least one dimension, got rank: " +
                           std::to_string(rank));
  }
  MT_ASSIGN_OR_RETURN(const int index, mesh.AxisIndex(axis));
  return Replicated(mesh, rank).WithDim(0, {index});
}

Result<Layout> Layout::Parse(std::string_view text, const Mesh& mesh) {
  const auto bad = [&] {
    return InvalidArgument(
        "layout: expected a text like `{batch, *}` or `{*, *} sum(batch)`, got: " +
        std::string(text));
  };
  std::string_view rest = Trim(text);
  const size_t close = rest.find('}');
  if (rest.empty() || rest[0] != '{' || close == std::string_view::npos) return bad();
  std::vector<DimSharding> dims;
  const std::string_view inner = Trim(rest.substr(1, close - 1));
  if (!inner.empty()) {
    for (const std::string& spec : Split(inner, ',')) {
      if (Trim(spec).empty()) return bad();
      MT_ASSIGN_OR_RETURN(DimSharding axes, ParseSpec(spec, mesh));
      dims.push_back(std::move(axes));
    }
  }
  rest = Trim(rest.substr(close + 1));
  std::vector<Partial> partial;
  while (!rest.empty()) {
    const size_t open = rest.find('(');
    const size_t end = rest.find(')');
    if (open == std::string_view::npos || end == std::string_view::npos || end < open) return bad();
    const auto at =
        std::find(std::begin(kReductionNames), std::end(kReductionNames), rest.substr(0, open));
    if (at == std::end(kReductionNames)) return bad();
    for (const std::string& name : Split(rest.substr(open + 1, end - open - 1), ',')) {
      MT_ASSIGN_OR_RETURN(const int axis, mesh.AxisIndex(Trim(name)));
      partial.push_back({axis, static_cast<Reduction>(at - std::begin(kReductionNames))});
    }
    rest = Trim(rest.substr(end + 1));
  }
  return Create(mesh, std::move(dims), std::move(partial));
}

std::string Layout::ToString() const {
  std::string text = "{";
  for (int d = 0; d < rank(); ++d) {
    if (d > 0) text += ", ";
    text += SpecText(dims_[d], mesh_, "*");
  }
  text += '}';
  for (const Reduction reduction : {Reduction::kSum, Reduction::kMax, Reduction::kMin}) {
    std::string names;
    for (const Partial& p : partial_) {
      if (p.reduction != reduction) continue;
      if (!names.empty()) names += ',';
      names += mesh_.axis(p.axis).name;
    }
    if (!names.empty()) text += " " + std::string(ReductionName(reduction)) + "(" + names + ")";
  }
  return text;
}

std::vector<std::string> Layout::specs() const {
  std::vector<std::string> specs;
  for (const DimSharding& axes : dims_) specs.push_back(SpecText(axes, mesh_, UNSHARDED));
  return specs;
}

bool Layout::IsReplicated() const {
  return partial_.empty() &&
         std::all_of(dims_.begin(), dims_.end(), [](const auto& d) { return d.empty(); });
}

int Layout::DimOf(int axis) const {
  for (int d = 0; d < rank(); ++d) {
    if (std::find(dims_[d].begin(), dims_[d].end(), axis) != dims_[d].end()) return d;
  }
  return -1;
}

bool Layout::Uses(int axis) const {
  return DimOf(axis) >= 0 || std::any_of(partial_.begin(), partial_.end(),
                                         [&](const Partial& p) { return p.axis == axis; });
}

Layout Layout::Delete(const std::vector<int>& dims) const {
  for (const int d : dims) MT_CHECK(d >= 0 && d < rank());
  Layout layout = *this;
  layout.dims_.clear();
  for (int d = 0; d < rank(); ++d) {
    if (std::find(dims.begin(), dims.end(), d) == dims.end()) layout.dims_.push_back(dims_[d]);
  }
  return layout;
}

Layout Layout::WithDim(int d, const DimSharding& axes) const {
  MT_CHECK(d >= 0 && d < rank());
  Layout layout = *this;
  layout.dims_[d].clear();
  for (const int axis : axes) {
    MT_CHECK(axis >= 0 && axis < mesh_.num_axes() && !layout.Uses(axis));
    layout.dims_[d].push_back(axis);
  }
  return layout;
}

Layout Layout::WithPartial(const std::vector<Partial>& partial) const {
  Layout layout = *this;
  layout.partial_.clear();
  for (const Partial& p : partial) {
    MT_CHECK(p.axis >= 0 && p.axis < mesh_.num_axes() && !layout.Uses(p.axis));
    layout.partial_.push_back(p);
  }
  std::sort(layout.partial_.begin(), layout.partial_.end());
  return layout;
}

Layout Layout::Canonical() const {
  Layout layout = *this;
  const auto trivial = [&](int axis) { return mesh_.axis(axis).size == 1; };
  for (DimSharding& axes : layout.dims_) std::erase_if(axes, trivial);
  std::erase_if(layout.partial_, [&](const Partial& p) { return trivial(p.axis); });
  return layout;
}

int64_t Layout::NumShards(int d) const {
  int64_t n = 1;
  for (const int axis : dims_[d]) n *= mesh_.axis(axis).size;
  return n;
}

std::vector<int64_t> Layout::Shape() const {
  std::vector<int64_t> shape;
  for (int d = 0; d < rank(); ++d) shape.push_back(NumShards(d));
  return shape;
}

bool Layout::IsEven(const Dims& global) const {
  MT_CHECK(static_cast<int>(global.size()) == rank());
  for (int d = 0; d < rank(); ++d) {
    if (global[d] % NumShards(d) != 0) return false;
  }
  return true;
}

Result<Dims> Layout::LocalShape(const Dims& global) const {
  if (static_cast<int>(global.size()) != rank()) {
    return InvalidArgument("layout " + ToString() + ": expected a tensor of rank " +
                           std::to_string(rank()) + ", got: " + std::to_string(global.size()));
  }
  Dims local(global.size());
  for (int d = 0; d < rank(); ++d) local[d] = (global[d] + NumShards(d) - 1) / NumShards(d);
  return local;
}

Layout::Slice Layout::SliceOf(int64_t device_rank, const Dims& global) const {
  MT_CHECK(static_cast<int>(global.size()) == rank());
  const std::vector<int64_t> coordinates = mesh_.Coordinates(device_rank);
  Slice slice{Dims(global.size()), Dims(global.size())};
  for (int d = 0; d < rank(); ++d) {
    int64_t shard = 0;
    for (const int axis : dims_[d]) shard = shard * mesh_.axis(axis).size + coordinates[axis];
    const int64_t shards = NumShards(d);
    const int64_t chunk = (global[d] + shards - 1) / shards;
    slice.offsets[d] = std::min(shard * chunk, global[d]);
    slice.sizes[d] = std::min(chunk, global[d] - slice.offsets[d]);
  }
  return slice;
}

Status CheckRank(std::span<const std::string> specs, std::string_view path, int rank) {
  if (static_cast<int>(specs.size()) == rank) return OkStatus();
  return InvalidArgument("layout [" + Join(specs, ", ") + "] has " + std::to_string(specs.size()) +
                         (specs.size() == 1 ? " entry" : " entries") + ", but `" +
                         std::string(path) + "` has rank " + std::to_string(rank));
}

}  // namespace meshtrain::mesh
