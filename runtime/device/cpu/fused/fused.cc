// Chains of element-wise ops as small programs over blocks that stay in the first-level cache.
//
// A chain's ops become nodes (BlockOp, operands); pairs that occur often become one node (chain.h);
// then every node becomes one instruction, and a loop over blocks runs the instructions one after
// the other on a few registers of one block each. Operands: another node, a whole tensor, one
// element (constant or known at run time), or a tensor that is broadcast, which a load brings into
// a register. What concerns single elements only is computed once per piece, before the blocks.
//
// A chain that folds rows works on blocks of whole rows. Some of its nodes then have one element
// for each row: their registers hold so many, and where an op wants such a value for each element
// of the row, an instruction spreads it over a register of its own. A chain that adds columns runs
// in parts that do not depend on the threads; each part adds its blocks, and in the end the parts'
// sums are added in order.
//
// Rounding: a * b + c may be rounded once; of constants s and t, x / s is x * (1 / s), and
// (x * s) * t is x * (s * t), where 1 / s or s * t is a normal number.
#include <algorithm>
#include <array>
#include <cstring>
#include <memory>
#include <vector>

#include "runtime/device/cpu/fused/chain.h"
#include "runtime/device/cpu/fused/code.h"
#include "runtime/device/cpu/kernel.h"
#include "runtime/device/cpu/kernels.h"

namespace meshtrain::device::cpu {
namespace {

using fused::Base;
using fused::Chain;
using fused::Code;
using fused::Instruction;
using fused::Load;
using fused::Node;
using fused::Place;
using fused::Source;
using fused::Sum;
using mesh::Dims;
using mesh::DType;
using program::ValueId;

constexpr int64_t kMaxBlock = 2048;  // elements
constexpr int64_t kCacheBytes =
    28672;  // registers and operands of one block, in a first-level cache of 32 KiB
// Of chains that add columns: rows of a block, where they leave most of a second-level cache of 512
// KiB to others.
constexpr int64_t kRowsOfSums = 8;
constexpr int64_t kSecondCacheBytes = 196608;
constexpr int64_t kStackBytes = 1024 * 1024;  // hard limit
// Of a chain that adds columns. Part of the result (the order of adding), so it depends on nothing.
constexpr int64_t kMostParts = 64;
constexpr int64_t kLeastPart = 8192;  // elements

class FusedKernel final : public Kernel {
 public:
  Status Build(const Making& making, const Chain& chain);
  void Run(const Frame& frame) const override;

 private:
  // `sums`: those of the part, where columns are added.
  void RunPiece(const Frame& frame, int64_t begin, int64_t end, double* sums) const;
  void AddColumns(const Instruction& i, const std::byte* a, int64_t n, double* sums,
                  bool first) const;
  void RunRows(const Instruction& i, std::byte* d, const std::byte* a, int64_t n) const;
  void RunLoad(const Frame& frame, const Load& load, std::byte* to, int64_t begin, int64_t n) const;

  int64_t n_ = 0;
  int64_t block_ = kMaxBlock;     // whole rows, where rows are folded
  int64_t row_ = 0;               // elements of a row that is folded; 0: none is
  int64_t registers_bytes_ = 0;   // for one block
  int64_t part_ = 0, parts_ = 0;  // elements of a part, and how many, where columns are added
  Code code_;
};

Status FusedKernel::Build(const Making& making, const Chain& chain) {
  n_ = mesh::NumElements(chain.domain());
  row_ = chain.row();
  MT_ASSIGN_OR_RETURN(code_, fused::MakeCode(making, chain));
  int64_t width = 1;
  for (const Node& n : chain.nodes()) {
    width = std::max(width, DTypeBytes(n.dtype));
    for (const Source& s : n.in) width = std::max(width, DTypeBytes(s.dtype));
  }
  // The block is part of the order in which columns are added: not a matter of runs then.
  const bool adds = !code_.sums.empty();
  int64_t streams =
      (adds ? code_.apart : code_.registers) * width;  // bytes of an element in the cache
  for (const Base& b : code_.bases) streams += b.kind == Base::kValue ? b.stride : 0;
  while (block_ > 64 && streams * block_ > kCacheBytes) block_ /= 2;
  // Sums of a few rows at a time are mostly taken up and put down again.
  const int64_t rows = kRowsOfSums * code_.unit;
  if (adds && rows > block_ && streams * rows <= kSecondCacheBytes) block_ = rows;
  block_ = std::max<int64_t>(1, block_ / code_.unit) * code_.unit;
  registers_bytes_ = code_.registers * width * block_;
  if (registers_bytes_ > kStackBytes) {
    return Unimplemented("element-wise chain with too many values alive at once");
  }
  for (Base& b : code_.bases) {
    if (b.kind == Base::kRegister) b.offset *= width * block_;
  }
  if (code_.sums.empty()) return OkStatus();
  const int64_t least = std::max(kLeastPart, (n_ + kMostParts - 1) / kMostParts);
  part_ = (least + block_ - 1) / block_ * block_;
  parts_ = (n_ + part_ - 1) / part_;
  scratch_bytes_ = parts_ * code_.columns * static_cast<int64_t>(sizeof(double));
  return OkStatus();
}

void FusedKernel::Run(const Frame& frame) const {
  if (code_.sums.empty()) {
    const int64_t grain = (kGrain + block_ - 1) / block_ * block_;
    frame.For(n_, grain, [&](int64_t begin, int64_t end) { RunPiece(frame, begin, end, nullptr); });
    return;
  }
  auto* sums = reinterpret_cast<double*>(frame.scratch);
  frame.For(parts_, std::max<int64_t>(1, kGrain / part_), [&](int64_t begin, int64_t end) {
    for (int64_t p = begin; p < end; ++p) {
      RunPiece(frame, p * part_, std::min(n_, (p + 1) * part_), sums + p * code_.columns);
    }
  });
  for (const Sum& s : code_.sums) {
    AddParts(s.type, sums + s.offset, parts_, code_.columns, s.columns, frame.at[s.value]);
  }
}

void FusedKernel::AddColumns(const Instruction& i, const std::byte* a, int64_t n, double* sums,
                             bool first) const {
  const Sum& s = code_.sums[i.sum];
  const Kernels& k = ActiveKernels();
  if (s.columns > 1) {
    k.sum_rows(s.type, sums + s.offset, a, n / s.columns, s.columns, s.columns, first);
    return;
  }
  double sum = 0;
  k.sum_row(s.type, &sum, a, n);
  sums[s.offset] = first ? sum : sums[s.offset] + sum;
}

void FusedKernel::RunPiece(const Frame& frame, int64_t begin, int64_t end, double* sums) const {
  alignas(64) std::byte registers[kStackBytes];
  // Most chains have few.
  std::array<Place, 256> few;
  std::vector<Place> many(code_.bases.size() > few.size() ? code_.bases.size() : 0);
  Place* const at = many.empty() ? few.data() : many.data();
  for (size_t i = 0; i < code_.bases.size(); ++i) {
    const Base& b = code_.bases[i];
    switch (b.kind) {
      case Base::kRegister:
        at[i] = {registers + b.offset, 0};
        break;
      case Base::kValue:
        at[i] = {frame.at[b.value] + (b.row ? begin / row_ : begin) * b.stride, b.stride};
        break;
      case Base::kConstant:
        at[i] = {const_cast<std::byte*>(b.constant.bytes), 0};
        break;
    }
  }
  bool first = true;
  for (int64_t from = begin; from < end; from += block_) {
    const int64_t n = std::min(block_, end - from);
    for (const Instruction& i : code_.block) {
      if (i.run >= 0) {
        (*code_.runs[i.run])(at, i.row ? n / row_ : n);
      } else if (i.fn != nullptr) {
        i.fn(at[i.d].p, at[i.a].p, at[i.b].p, at[i.c].p, i.row ? n / row_ : n);
      } else if (i.sum >= 0) {
        AddColumns(i, at[i.a].p, n, sums, first);
      } else if (i.fold || i.spread) {
        RunRows(i, at[i.d].p, at[i.a].p, n);
      } else if (i.once && !first) {
        continue;
      } else if (i.load >= 0) {
        RunLoad(frame, code_.loads[i.load], at[i.d].p, from, n);
      } else {
        ActiveKernels().fill(at[i.d].p, at[i.a].p, i.width, n);
      }
    }
    for (size_t i = 0; i < code_.bases.size(); ++i) {
      at[i].p += (code_.bases[i].row ? block_ / row_ : block_) * at[i].stride;
    }
    first = false;
  }
}

void FusedKernel::RunRows(const Instruction& i, std::byte* d, const std::byte* a, int64_t n) const {
  const Kernels& k = ActiveKernels();
  const int64_t rows = n / row_;
  for (int64_t r = 0; r < rows; ++r) {
    if (i.fold) {
      k.fold_row(*i.fold, i.type, d + r * i.width, a + r * row_ * i.width, row_);
    } else {
      k.fill(d + r * row_ * i.width, a + r * i.width, i.width, row_);
    }
  }
}

void FusedKernel::RunLoad(const Frame& frame, const Load& load, std::byte* to, int64_t begin,
                          int64_t n) const {
  const std::byte* value = frame.at[load.value];
  const size_t inner = load.sizes.size() - 1;
  const int64_t extent = load.sizes[inner];
  for (int64_t done = 0; done < n;) {
    // The row of the domain that element begin + done stands in, and how far that row goes.
    const int64_t index = begin + done;
    const int64_t column = index % extent;
    const int64_t count = std::min(extent - column, n - done);
    int64_t rest = index / extent, offset = column * load.strides[inner];
    for (size_t d = inner; d-- > 0;) {
      offset += rest % load.sizes[d] * load.strides[d];
      rest /= load.sizes[d];
    }
    if (load.strides[inner] == 0) {
      ActiveKernels().fill(to + done * load.width, value + offset * load.width, load.width, count);
    } else {
      std::memcpy(to + done * load.width, value + offset * load.width, count * load.width);
    }
    done += count;
  }
}

}  // namespace

Result<KernelPtr> MakeFusedKernel(const Making& making, std::span<const int> ops) {
  for (const int op : ops) {
    MT_RETURN_IF_ERROR(CheckWidened(making, making.local().ops[op]));
    if (!IsFused(making.local().ops[op])) {
      return Unimplemented("cpu: no element-wise kernel for op `" + making.local().ops[op].kind +
                           "`");
    }
  }
  auto kernel = std::make_unique<FusedKernel>();
  MT_RETURN_IF_ERROR(kernel->Build(making, Chain(making, ops)).At("cpu"));
  return KernelPtr(std::move(kernel));
}

}  // namespace meshtrain::device::cpu
