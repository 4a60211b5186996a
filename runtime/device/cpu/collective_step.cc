#include "runtime/device/cpu/collective_step.h"

#include <algorithm>
#include <cstring>

namespace meshtrain::device::cpu {
namespace {

using mesh::Dims;
using mesh::TensorType;

// Copies between a tensor and `group` blocks of [.., chunk, ..] that lie one after another. The
// dimension `dim` of the tensor has `size` elements; the last blocks may be short or empty.
std::vector<StridedCopy> Blocks(const Dims& tensor, size_t dim, int64_t chunk, int64_t group,
                                int64_t width, bool to_blocks) {
  Dims block = tensor;
  block[dim] = chunk;
  const Dims tensor_strides = mesh::Strides(tensor), block_strides = mesh::Strides(block);
  const int64_t elements = mesh::NumElements(block);
  std::vector<StridedCopy> copies;
  for (int64_t i = 0; i < group; ++i) {
    Dims sizes = block;
    sizes[dim] = std::clamp<int64_t>(tensor[dim] - i * chunk, 0, chunk);
    const int64_t in_tensor = i * chunk * tensor_strides[dim], in_blocks = i * elements;
    if (to_blocks) {
      copies.emplace_back(sizes, tensor_strides, in_tensor, block_strides, in_blocks, width);
    } else {
      copies.emplace_back(sizes, block_strides, in_blocks, tensor_strides, in_tensor, width);
    }
  }
  return copies;
}

// Blocks along the slowest dimension that has more than one element are the tensor itself.
bool Contiguous(const Dims& tensor, size_t dim, int64_t chunk, int64_t group) {
  if (tensor[dim] != chunk * group) return false;
  return std::all_of(tensor.begin(), tensor.begin() + static_cast<int64_t>(dim),
                     [](int64_t d) { return d == 1; });
}

mesh::Reduction ReductionOf(const program::Op& op) {
  const std::string name = op.attrs.Text("reduction", "sum");
  return name == "max"   ? mesh::Reduction::kMax
         : name == "min" ? mesh::Reduction::kMin
                         : mesh::Reduction::kSum;
}

}  // namespace

Result<CollectiveStep> CollectiveStep::Create(const Making& making, const program::Op& op) {
  CollectiveStep s;
  const TensorType& from = making.local().type(op.operands[0]);
  const TensorType& to = making.local().type(op.results[0]);
  const int64_t width = DTypeBytes(from.dtype);
  s.from_ = op.operands[0];
  s.to_ = op.results[0];
  s.call_.dtype = from.dtype;
  const auto pack = [&](std::vector<StridedCopy> copies) {
    for (StridedCopy& copy : copies) s.packs_.push_back({s.from_, std::move(copy)});
    s.short_blocks_ = true;
  };
  const auto unpack = [&](std::vector<StridedCopy> copies) {
    for (StridedCopy& copy : copies) s.unpacks_.push_back({s.to_, std::move(copy)});
  };
  int64_t group = 1;
  for (const int64_t axis : op.attrs.Ints("axes")) {
    s.call_.axes.push_back(static_cast<int>(axis));
    group *= making.mesh().axis(static_cast<int>(axis)).size;
  }
  s.call_.what = op.kind + " of %" + std::to_string(s.from_);
  if (const std::string where = op.where.ToString(); !where.empty()) s.call_.what += " at " + where;
  s.reduction_ = ReductionOf(op);
  if (op.kind == "all_reduce") {
    s.kind_ = Kind::kAllReduce;
    s.count_ = from.num_elements();
  } else if (op.kind == "all_gather") {
    s.kind_ = Kind::kAllGather;
    s.count_ = from.num_elements();
    const auto dim = static_cast<size_t>(op.attrs.Int("dim"));
    if (!Contiguous(to.dims, dim, from.dims[dim], group)) {
      unpack(Blocks(to.dims, dim, from.dims[dim], group, width, false));
      s.unpack_bytes_ = AlignedBytes(group * from.num_bytes());
    }
  } else if (op.kind == "reduce_scatter") {
    s.kind_ = Kind::kReduceScatter;
    s.count_ = to.num_elements();
    const auto dim = static_cast<size_t>(op.attrs.Int("dim"));
    if (!Contiguous(from.dims, dim, to.dims[dim], group)) {
      pack(Blocks(from.dims, dim, to.dims[dim], group, width, true));
      s.pack_bytes_ = AlignedBytes(group * to.num_bytes());
    }
  } else if (op.kind == "all_to_all") {
    s.kind_ = Kind::kAllToAll;
    const auto split = static_cast<size_t>(op.attrs.Int("split_dim"));
    const auto concat = static_cast<size_t>(op.attrs.Int("concat_dim"));
    Dims block = from.dims;
    block[split] = to.dims[split];
    s.count_ = mesh::NumElements(block);
    if (!Contiguous(from.dims, split, to.dims[split], group)) {
      pack(Blocks(from.dims, split, to.dims[split], group, width, true));
      s.pack_bytes_ = AlignedBytes(group * s.count_ * width);
    }
    if (!Contiguous(to.dims, concat, from.dims[concat], group)) {
      unpack(Blocks(to.dims, concat, from.dims[concat], group, width, false));
      s.unpack_bytes_ = AlignedBytes(group * s.count_ * width);
    }
  } else if (op.kind == "halo") {
    s.halo_ = std::make_unique<HaloStep>(making, op);
  } else {
    return Unimplemented("cpu: no kernel for op `" + op.kind + "`");
  }
  for (const int64_t rank : making.ranks) s.participants_.push_back({.rank = rank});
  return s;
}

CollectiveStep CollectiveStep::Joined(const Making& making, std::span<const int> ops) {
  CollectiveStep s;
  const program::Op& first = making.local().ops[ops[0]];
  const int64_t width = DTypeBytes(making.local().type(first.operands[0]).dtype);
  s.call_.dtype = making.local().type(first.operands[0]).dtype;
  for (const int64_t axis : first.attrs.Ints("axes")) {
    s.call_.axes.push_back(static_cast<int>(axis));
  }
  s.reduction_ = ReductionOf(first);
  s.call_.what = "all_reduce of ";
  for (const int i : ops) {
    const program::Op& op = making.local().ops[i];
    const int64_t elements = making.local().type(op.operands[0]).num_elements();
    if (i != ops[0]) s.call_.what += ", ";
    s.call_.what += "%" + std::to_string(op.operands[0]);
    s.packs_.push_back({op.operands[0], StridedCopy({elements}, {1}, 0, {1}, s.count_, width)});
    s.unpacks_.push_back({op.results[0], StridedCopy({elements}, {1}, s.count_, {1}, 0, width)});
    s.count_ += elements;
  }
  s.pack_bytes_ = s.unpack_bytes_ = AlignedBytes(s.count_ * width);
  for (const int64_t rank : making.ranks) s.participants_.push_back({.rank = rank});
  return s;
}

void CollectiveStep::PackOne(const Frame& frame) const {
  if (halo_ != nullptr) return halo_->Pack(frame);
  if (short_blocks_) std::memset(frame.scratch, 0, pack_bytes_);  // and end in zeros
  for (const Piece& p : packs_) p.copy.Run(frame, frame.at[p.value], frame.scratch);
}

void CollectiveStep::UnpackOne(const Frame& frame) const {
  if (halo_ != nullptr) return halo_->Unpack(frame);
  for (const Piece& p : unpacks_) p.copy.Run(frame, frame.scratch + pack_bytes_, frame.at[p.value]);
}

Status CollectiveStep::Call(collective::Communicator& communicator,
                            const collective::ParallelFor* parallel,
                            std::span<const Frame> frames) {
  if (halo_ != nullptr) {
    call_.parallel = parallel;
    return halo_->Call(communicator, call_, frames);
  }
  for (size_t d = 0; d < frames.size(); ++d) {
    const Frame& f = frames[d];
    participants_[d].send = packs_.empty() ? f.at[from_] : f.scratch;
    participants_[d].receive = unpacks_.empty() ? f.at[to_] : f.scratch + pack_bytes_;
  }
  call_.parallel = parallel;
  switch (kind_) {
    case Kind::kAllReduce:
      return communicator.AllReduce(call_, reduction_, count_, participants_);
    case Kind::kAllGather:
      return communicator.AllGather(call_, count_, participants_);
    case Kind::kReduceScatter:
      return communicator.ReduceScatter(call_, reduction_, count_, participants_);
    case Kind::kAllToAll:
      return communicator.AllToAll(call_, count_, participants_);
  }
  return Internal("no such collective");
}

}  // namespace meshtrain::device::cpu
