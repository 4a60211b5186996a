// Session::Pack and Unpack: a tensor from the shards that devices have, and back.
#include <algorithm>
#include <cstring>
#include <map>
#include <optional>
#include <set>

#include "runtime/collective/communicator.h"
#include "runtime/execute/session.h"

namespace meshtrain::execute {
namespace {

// In the place of a plan's hash, where processes tell each other what they have ("pack").
constexpr uint64_t kPackHash = 0x7061636b;

// What two slices of a tensor have in common: where it begins in the tensor, and its sizes.
Layout::Slice Shared(const Layout::Slice& a, const Layout::Slice& b) {
  Layout::Slice shared = a;
  for (size_t d = 0; d < a.sizes.size(); ++d) {
    const int64_t low = std::max(a.offsets[d], b.offsets[d]);
    const int64_t high = std::min(a.offsets[d] + a.sizes[d], b.offsets[d] + b.sizes[d]);
    shared.offsets[d] = low;
    shared.sizes[d] = std::max<int64_t>(0, high - low);
  }
  return shared;
}

// One for each device of this process, all of one type of element and of the layout's rank.
Status CheckComponents(std::span<const Tensor> components, std::span<const int64_t> ranks,
                       const Layout& layout) {
  if (components.size() != ranks.size() || ranks.empty()) {
    return InvalidArgument("pack: expected one component for each of the " +
                           std::to_string(ranks.size()) +
                           " devices, got: " + std::to_string(components.size()));
  }
  const mesh::DType dtype = components[0].type().dtype;
  for (size_t i = 0; i < ranks.size(); ++i) {
    const TensorType& type = components[i].type();
    if (type.rank() == layout.rank() && type.dtype == dtype) continue;
    return InvalidArgument("pack: component of " + layout.mesh().devices()[ranks[i]].ToString() +
                           ": expected " + std::string(mesh::DTypeName(dtype)) + " of rank " +
                           std::to_string(layout.rank()) + ", got: " + type.ToString());
  }
  return OkStatus();
}

// The whole of shards of these types: an extent is the sum over the shards along its dimension,
// taken at coordinate 0 of the other axes.
mesh::Dims WholeOf(const std::map<int64_t, TensorType>& types, const Layout& layout) {
  mesh::Dims whole(static_cast<size_t>(layout.rank()), 0);
  for (const auto& [rank, type] : types) {
    const std::vector<int64_t> at = layout.mesh().Coordinates(rank);
    for (int d = 0; d < layout.rank(); ++d) {
      bool first_of_others = true;
      for (int a = 0; a < layout.mesh().num_axes(); ++a) {
        const bool along =
            std::find(layout.dim(d).begin(), layout.dim(d).end(), a) != layout.dim(d).end();
        first_of_others = first_of_others && (along || at[static_cast<size_t>(a)] == 0);
      }
      const auto i = static_cast<size_t>(d);
      if (first_of_others) whole[i] += type.dims[i];
    }
  }
  return whole;
}

// Whether what a process runs with is made of what its own devices have. It is not where the slower
// of two axes that split a dimension lies within a process, and where unequal shards end elsewhere
// than the processes' own: the same in every process.
bool StaysAtHome(const Layout& layout, const Layout& run, const mesh::Dims& dims) {
  std::set<int> processes;
  for (const mesh::Device& device : layout.mesh().devices()) processes.insert(device.process);
  for (const int process : processes) {
    for (const int64_t rank : run.mesh().LocalRanks(process)) {
      const Layout::Slice shard = run.SliceOf(rank, dims);
      std::set<mesh::Dims> seen;
      int64_t here = 0;
      for (const int64_t device : layout.mesh().LocalRanks(process)) {
        const Layout::Slice slice = layout.SliceOf(device, dims);
        const int64_t elements = mesh::NumElements(Shared(shard, slice).sizes);
        if (elements > 0 && seen.insert(slice.offsets).second) here += elements;
      }
      if (here < mesh::NumElements(shard.sizes)) return false;
    }
  }
  return true;
}

}  // namespace

Result<std::vector<std::byte>> Session::GatherRows(const Layout& layout, mesh::DType dtype,
                                                   std::span<const std::byte> own) {
  const Mesh& mesh = layout.mesh();
  if (!options_.communicator) {
    return FailedPrecondition("pack: mesh " + mesh.ToString() +
                              ": it spans processes, and this session is joined to none");
  }
  const std::vector<int64_t> ranks = LocalRanks(mesh);
  const size_t row = own.size() / ranks.size();
  std::vector<std::vector<std::byte>> all(
      ranks.size(), std::vector<std::byte>(static_cast<size_t>(mesh.size()) * row));
  std::vector<collective::Participant> local;
  for (size_t i = 0; i < ranks.size(); ++i) {
    local.push_back({.rank = ranks[i], .send = own.data() + i * row, .receive = all[i].data()});
  }
  collective::GroupCall call{.axes = {},
                             .dtype = dtype,
                             .what = "pack in " + layout.ToString() + " on " + mesh.ToString()};
  for (int a = 0; a < mesh.num_axes(); ++a) call.axes.push_back(a);  // by rank, then
  MT_ASSIGN_OR_RETURN(const auto communicator, options_.communicator(mesh, kPackHash));
  MT_RETURN_IF_ERROR(
      communicator->AllGather(call, static_cast<int64_t>(row) / mesh::DTypeBytes(dtype), local));
  return std::move(all[0]);
}

Result<std::map<int64_t, TensorType>> Session::TellComponents(std::span<const Tensor> components,
                                                              const Layout& layout,
                                                              const Status& own) {
  const Mesh& mesh = layout.mesh();
  const std::vector<int64_t> ranks = LocalRanks(mesh);
  // Of each device the type of its elements and the extents; -1s: its process refuses.
  const auto width = static_cast<size_t>(layout.rank()) + 1;
  std::vector<int64_t> told(ranks.size() * width, -1);
  for (size_t i = 0; i < ranks.size() && own.ok(); ++i) {
    told[i * width] = static_cast<int64_t>(components[i].type().dtype);
    std::ranges::copy(components[i].dims(), told.begin() + static_cast<int64_t>(i * width) + 1);
  }
  MT_ASSIGN_OR_RETURN(const std::vector<std::byte> all,
                      GatherRows(layout, mesh::DType::kI64, std::as_bytes(std::span(told))));
  MT_RETURN_IF_ERROR(own);
  std::vector<int64_t> heard(static_cast<size_t>(mesh.size()) * width);
  std::memcpy(heard.data(), all.data(), all.size());
  std::map<int64_t, TensorType> types;
  for (int64_t rank = 0; rank < mesh.size(); ++rank) {
    const int64_t* const row = &heard[static_cast<size_t>(rank) * width];
    if (row[0] < 0) {
      return InvalidArgument("pack: component of " + mesh.devices()[rank].ToString() +
                             ": expected one that its process packs, got: a refusal there");
    }
    types[rank] = {static_cast<mesh::DType>(row[0]), mesh::Dims(row + 1, row + width)};
  }
  return types;
}

// The whole, in every process.
Result<Tensor> Session::JoinComponents(std::span<const Tensor> components, const TensorType& type,
                                       const Layout& layout) {
  MT_ASSIGN_OR_RETURN(const mesh::Dims dims, layout.LocalShape(type.dims));
  const TensorType shard{type.dtype, dims};
  const auto bytes = static_cast<size_t>(shard.num_bytes());
  std::vector<std::byte> own(components.size() * bytes);
  const auto padded = [&](const Tensor& component) {
    Tensor out(shard);
    std::memset(out.mutable_bytes().data(), 0, bytes);
    out.Paste(component, mesh::Dims(dims.size(), 0));
    return out;
  };
  for (size_t i = 0; i < components.size(); ++i) {
    const Tensor one = padded(components[i]);
    std::memcpy(own.data() + i * bytes, one.bytes().data(), bytes);
  }
  MT_ASSIGN_OR_RETURN(const std::vector<std::byte> all, GatherRows(layout, type.dtype, own));
  Tensor whole(type);
  for (int64_t rank = 0; rank < layout.mesh().size(); ++rank) {
    Tensor one(shard);
    std::memcpy(one.mutable_bytes().data(), all.data() + static_cast<size_t>(rank) * bytes, bytes);
    const Layout::Slice slice = layout.SliceOf(rank, type.dims);
    whole.Paste(one.Slice(mesh::Dims(dims.size(), 0), slice.sizes), slice.offsets);
  }
  return whole;
}

Result<DTensor> Session::Pack(std::span<const Tensor> components, const Layout& layout,
                              const std::optional<mesh::Dims>& dims) {
  const Mesh& mesh = layout.mesh();
  const std::vector<int64_t> ranks = LocalRanks(mesh);
  const Status own = CheckComponents(components, ranks, layout);
  const bool all_here = static_cast<int64_t>(ranks.size()) == mesh.size();
  std::map<int64_t, TensorType> types;  // by rank: of those that are known here
  if (all_here || dims || ranks.empty()) {
    MT_RETURN_IF_ERROR(own);
    for (size_t i = 0; i < ranks.size(); ++i) types[ranks[i]] = components[i].type();
  } else {
    MT_ASSIGN_OR_RETURN(types, TellComponents(components, layout, own));
  }
  if (dims && static_cast<int>(dims->size()) != layout.rank()) {
    return InvalidArgument("pack: expected dims of rank " + std::to_string(layout.rank()) +
                           ", got: " + std::to_string(dims->size()));
  }
  const TensorType type{types.begin()->second.dtype, dims ? *dims : WholeOf(types, layout)};
  for (const auto& [rank, got] : types) {
    const TensorType want{type.dtype, layout.SliceOf(rank, type.dims).sizes};
    if (got == want) continue;
    return InvalidArgument("pack: component of " + mesh.devices()[rank].ToString() + ": expected " +
                           want.ToString() + " of " + type.ToString() + " in " + layout.ToString() +
                           ", got: " + got.ToString());
  }
  MT_ASSIGN_OR_RETURN(DTensor packed, Make(type, layout));
  if (!StaysAtHome(layout, packed.run_layout_, type.dims)) {
    MT_ASSIGN_OR_RETURN(const Tensor whole, JoinComponents(components, type, layout));
    MT_RETURN_IF_ERROR(Fill(packed, whole));
    return packed;
  }
  std::vector<Layout::Slice> slices;
  for (const int64_t rank : ranks) slices.push_back(layout.SliceOf(rank, type.dims));
  MT_RETURN_IF_ERROR(FillShards(packed, [&](const Layout::Slice& shard) {
    Tensor out(TensorType{type.dtype, shard.sizes});
    for (size_t i = 0; i < slices.size(); ++i) {
      const auto [low, sizes] = Shared(shard, slices[i]);
      if (mesh::NumElements(sizes) == 0) continue;
      mesh::Dims from(low.size()), to(low.size());
      for (size_t d = 0; d < low.size(); ++d) {
        from[d] = low[d] - slices[i].offsets[d];
        to[d] = low[d] - shard.offsets[d];
      }
      out.Paste(components[i].Slice(from, sizes), to);
    }
    return out;
  }));
  return packed;
}

Result<std::vector<Tensor>> Session::Unpack(const DTensor& value) {
  MT_ASSIGN_OR_RETURN(const Tensor whole, ToHost(value));
  std::vector<Tensor> components;
  for (const int64_t r : LocalRanks(value.layout_.mesh())) {
    const Layout::Slice slice = value.layout_.SliceOf(r, whole.dims());
    components.push_back(whole.Slice(slice.offsets, slice.sizes));
  }
  return components;
}

}  // namespace meshtrain::execute
