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
// Rounding: a * b + c may be rounded once; x / s by one element is x * (1 / s) (where 1 / s
// overflows, s being denormal, so does the result), and (x * s) * t is x * (s * t).
#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "runtime/device/cpu/fused/chain.h"
#include "runtime/device/cpu/kernel.h"
#include "runtime/device/cpu/kernels.h"

namespace meshtrain::device::cpu {
namespace {

using fused::Chain;
using fused::Node;
using fused::Prologue;
using fused::Source;
using mesh::Dims;
using mesh::DType;
using program::ValueId;

constexpr int64_t kMaxBlock = 2048;  // elements
constexpr int64_t kCacheBytes =
    28672;  // registers and operands of one block, in a first-level cache of 32 KiB
constexpr int64_t kStackBytes = 1024 * 1024;  // hard limit
constexpr int kMaxBases = 256;
constexpr int kMaxPrologue = 64;
// Of a chain that adds columns. Part of the result (the order of adding), so it depends on nothing.
constexpr int64_t kMostParts = 64;
constexpr int64_t kLeastPart = 8192;  // elements

// A place that instructions read or write: `stride` is a tensor's element size, 0 for registers and
// single elements.
struct Base {
  enum Kind : uint8_t { kRegister, kValue, kConstant, kPrologue } kind = kRegister;
  int64_t offset = 0;  // of a register or in the prologue's elements
  ValueId value = -1;
  Element constant;
  int64_t stride = 0;
  bool row = false;  // of a value that has an element for each row
};

struct Load {
  Dims sizes,
      strides;  // of the domain, in elements of the operand; dimensions joined where possible
  ValueId value = -1;
  int64_t width = 4;
};

struct Instruction {
  BlockFn fn = nullptr;            // null: fill or load
  int d = 0, a = 0, b = 0, c = 0;  // bases
  int load = -1;                   // index, or -1: fill d with the element a
  int64_t width = 4;               // of a fill
  bool once = false;               // a fill or load in a piece's first block only: nothing else
                                   // writes its register
  bool row = false;                // of as many elements as the block has rows
  bool spread = false;             // the element that `a` has for a row, to each of the row's
  std::optional<Fold> fold;        // of a's rows
  int sum = -1;                    // of a's columns: its index
  Type type = Type::kF32;          // of a fold
};

// Of columns.
struct Sum {
  ValueId value = -1;
  int64_t columns = 1;
  int64_t offset = 0;  // among those of one part
  Type type = Type::kF32;
};

class FusedKernel final : public Kernel {
 public:
  Status Build(const Making& making, const Chain& chain);
  void Run(const Frame& frame) const override;

 private:
  friend class Emitter;
  // `sums`: those of the part, where columns are added.
  void RunPiece(const Frame& frame, int64_t begin, int64_t end, double* sums) const;
  void AddColumns(const Instruction& i, const std::byte* a, int64_t n, double* sums,
                  bool first) const;
  void AddParts(const Frame& frame) const;
  void RunRows(const Instruction& i, std::byte* d, const std::byte* a, int64_t n) const;
  void RunLoad(const Frame& frame, const Load& load, std::byte* to, int64_t begin, int64_t n) const;

  int64_t n_ = 0;
  int64_t block_ = kMaxBlock;     // whole rows, where rows are folded
  int64_t row_ = 0;               // elements of a row that is folded; 0: none is
  int64_t registers_bytes_ = 0;   // for one block
  int64_t part_ = 0, parts_ = 0;  // elements of a part, and how many, where columns are added
  int64_t columns_ = 0;           // of all sums
  std::vector<Sum> sums_;
  std::vector<Base> bases_;
  std::vector<Load> loads_;
  std::vector<Instruction> prologue_, code_;
};

// Turns nodes into instructions. Registers are slots of 8 bytes an element at most, reused after
// their last reader.
class Emitter {
 public:
  Emitter(const Making& making, const Chain& chain, FusedKernel* out)
      : making_(making),
        chain_(chain),
        out_(out),
        unit_(chain.unit()),
        place_(chain.nodes().size(), -1) {}

  Status Emit() {
    const std::vector<Node>& nodes = chain_.nodes();
    left_.resize(nodes.size());
    for (const Node& n : nodes) {
      if (n.dead) continue;
      for (const Source& s : n.in) {
        if (s.kind == Source::kNode) ++left_[s.node];
      }
    }
    for (const Prologue& p : chain_.prologue()) {
      out_->prologue_.push_back({.fn = ActiveKernels().block(p.op, static_cast<Type>(p.dtype), 0),
                                 .d = PrologueBase(static_cast<int>(out_->prologue_.size())),
                                 .a = ElementBase(p.a),
                                 .b = ElementBase(p.b)});
    }
    if (out_->prologue_.size() > kMaxPrologue) {
      return Unimplemented("element-wise chain of too many single elements");
    }
    for (size_t i = 0; i < nodes.size(); ++i) {
      if (nodes[i].dead || (left_[i] == 0 && !nodes[i].stored)) continue;
      MT_RETURN_IF_ERROR(EmitNode(static_cast<int>(i)));
    }
    for (const auto& [reg, value] : late_) {
      const DType dtype = making_.local().type(value).dtype;
      const bool row = out_->bases_[reg].row;
      Instruction store{.fn = ActiveKernels().block(BlockOp::kCopy, static_cast<Type>(dtype), 0),
                        .row = row};
      store.a = reg;
      store.d = ValueBase(value, DTypeBytes(dtype), row);
      out_->code_.push_back(store);
    }
    if (out_->bases_.size() > kMaxBases) {
      return Unimplemented("element-wise chain of too many operands");
    }
    return OkStatus();
  }

  // Registers in units of one block of `width` bytes an element; offsets are per element and scaled
  // by Build.
  int64_t registers() const { return static_cast<int64_t>(free_.size()); }
  // Elements of which blocks are made of whole ones.
  int64_t unit() const { return unit_; }

 private:
  Status EmitNode(int index) {
    const Node& n = chain_.nodes()[index];
    if (n.columns > 0) return EmitSum(n);
    row_ = n.row && !n.fold;
    std::array<int, 3> at{};
    std::vector<int> temporary;
    const Type type = static_cast<Type>(n.cast ? n.dtype : n.in.back().dtype);
    ScalarMask mask = 0;
    for (size_t k = 0; k < n.in.size(); ++k) {
      if (n.in[k].scalar()) mask |= 1u << k;
    }
    BlockFn fn = n.cast ? nullptr : ActiveKernels().block(n.op, type, mask);
    const bool served = fn != nullptr && !n.fold;
    if (n.cast) {
      fn = ActiveKernels().cast(static_cast<Type>(n.in[0].dtype), type);
    } else if (!served) {
      fn = ActiveKernels().block(n.op, type, 0);
    }
    if (fn == nullptr) {
      return Unimplemented("element-wise op of " + std::string(mesh::DTypeName(n.in.back().dtype)) +
                           (n.value >= 0 ? " that gives %" + std::to_string(n.value) : ""));
    }
    for (size_t k = 0; k < n.in.size(); ++k) at[k] = Operand(n.in[k], served, &temporary);
    const int64_t width = DTypeBytes(n.dtype);
    // An operand's register may take the result when nothing reads it any more; loops go forward,
    // so a narrower result may overwrite a wider operand, never the other way round.
    bool narrow = true;
    for (const Source& s : n.in) narrow = narrow && (s.scalar() || DTypeBytes(s.dtype) == width);
    const auto release = [&] {
      for (const Source& s : n.in) {
        if (s.kind == Source::kNode && --left_[s.node] == 0) Free(place_[s.node]);
      }
      for (const int t : temporary) Free(t);
    };
    if (narrow) release();
    int d;
    if (n.stored && !ReadLater(index)) {
      d = ValueBase(n.value, width, n.row);
    } else {
      d = NewRegister();
      out_->bases_[d].row = n.row;
      if (n.stored) late_.emplace_back(d, n.value);
    }
    if (!narrow) release();
    place_[index] = d;
    pinned_.resize(out_->bases_.size());
    if (n.stored) pinned_[d] = true;
    out_->code_.push_back({.fn = n.fold ? nullptr : fn,
                           .d = d,
                           .a = at[0],
                           .b = at[1],
                           .c = at[2],
                           .width = width,
                           .row = n.row && !n.fold,
                           .fold = n.fold,
                           .type = type});
    return OkStatus();
  }

  Status EmitSum(const Node& n) {
    const Source& s = n.in[0];
    row_ = false;
    std::vector<int> temporary;
    const int a = Operand(s, /*scalars_served=*/false, &temporary);
    if (s.kind == Source::kNode && --left_[s.node] == 0) Free(place_[s.node]);
    for (const int t : temporary) Free(t);
    const auto type = static_cast<Type>(n.dtype);
    out_->code_.push_back({.a = a, .sum = static_cast<int>(out_->sums_.size()), .type = type});
    out_->sums_.push_back({n.value, n.columns, out_->columns_, type});
    out_->columns_ += n.columns;
    return OkStatus();
  }

  // Does the place of node `index`'s value hold an operand that a later node reads?
  bool ReadLater(int index) const {
    const std::vector<Node>& nodes = chain_.nodes();
    const plan::Slot& mine = making_.plan.slots[nodes[index].value];
    for (size_t j = static_cast<size_t>(index) + 1; j < nodes.size(); ++j) {
      if (nodes[j].dead) continue;
      for (const Source& s : nodes[j].in) {
        if (s.value < 0) continue;
        const plan::Slot& other = making_.plan.slots[s.value];
        if (other.kind == mine.kind && other.index == mine.index &&
            other.offset < mine.offset + mine.bytes && mine.offset < other.offset + other.bytes) {
          return true;
        }
      }
    }
    return false;
  }

  int Operand(const Source& s, bool scalars_served, std::vector<int>* temporary) {
    switch (s.kind) {
      case Source::kNode: {
        if (!s.of_row) return place_[s.node];
        const int d = NewRegister();
        out_->code_.push_back(
            {.d = d, .a = place_[s.node], .width = DTypeBytes(s.dtype), .spread = true});
        temporary->push_back(d);
        return d;
      }
      case Source::kFull:
        return ValueBase(s.value, DTypeBytes(s.dtype), row_);
      case Source::kElement:
      case Source::kConstant:
      case Source::kPrologue: {
        const int base = ElementBase(s);
        if (scalars_served) return base;
        const int d = OwnRegister();
        out_->code_.push_back({.d = d, .a = base, .width = DTypeBytes(s.dtype), .once = true});
        return d;
      }
      case Source::kBroadcast: {
        if (const auto it = kept_.find(s.value); it != kept_.end()) return it->second;
        const int load = LoadOf(s);
        const bool once = SameInEachBlock(out_->loads_[load]);
        const int d = once ? OwnRegister() : NewRegister();
        out_->code_.push_back({.d = d, .load = load, .once = once});
        if (once) {
          kept_[s.value] = d;
        } else {
          temporary->push_back(d);
        }
        return d;
      }
    }
    return -1;
  }

  int ElementBase(const Source& s) {
    if (s.kind == Source::kElement) return ValueBase(s.value, 0, false);
    if (s.kind == Source::kPrologue) return PrologueBase(s.node);
    return NewBase({.kind = Base::kConstant, .constant = s.constant});
  }

  int PrologueBase(int index) { return NewBase({.kind = Base::kPrologue, .offset = index * 8}); }

  int LoadOf(const Source& s) {
    const Dims& domain = chain_.domain();
    const Dims& dims = making_.local().type(s.value).dims;
    const Dims strides = mesh::Strides(dims);
    Load load{.value = s.value, .width = DTypeBytes(s.dtype)};
    for (size_t d = 0; d < domain.size(); ++d) {
      if (domain[d] == 1) continue;
      const size_t missing = domain.size() - dims.size();
      const int64_t stride = d < missing || dims[d - missing] == 1 ? 0 : strides[d - missing];
      if (!load.sizes.empty() && load.strides.back() == stride * domain[d]) {
        load.sizes.back() *= domain[d];
        load.strides.back() = stride;
      } else {
        load.sizes.push_back(domain[d]);
        load.strides.push_back(stride);
      }
    }
    out_->loads_.push_back(std::move(load));
    return static_cast<int>(out_->loads_.size()) - 1;
  }

  // Whether the load is of a row that is the same for all rows, few enough elements for blocks to
  // be made of whole ones: what unit() is then.
  bool SameInEachBlock(const Load& load) {
    constexpr int64_t kMostElements = 512;
    const bool same = load.sizes.size() == 2 && load.strides[0] == 0 && load.strides[1] == 1 &&
                      load.sizes[1] <= kMostElements;
    if (same) unit_ = std::max(unit_, load.sizes[1]);
    return same;
  }

  int NewBase(Base base) {
    out_->bases_.push_back(base);
    return static_cast<int>(out_->bases_.size()) - 1;
  }

  int ValueBase(ValueId v, int64_t stride, bool row) {
    for (size_t i = 0; i < out_->bases_.size(); ++i) {
      const Base& b = out_->bases_[i];
      if (b.kind == Base::kValue && b.value == v && b.stride == stride && b.row == row) {
        return static_cast<int>(i);
      }
    }
    return NewBase({.kind = Base::kValue, .value = v, .stride = stride, .row = row});
  }

  // A register that nothing else in the chain writes, before or after: what the first block leaves
  // in it is there for the blocks that follow.
  int OwnRegister() {
    free_.push_back(false);
    const int d =
        NewBase({.kind = Base::kRegister, .offset = static_cast<int64_t>(free_.size()) - 1});
    pinned_.resize(out_->bases_.size());
    pinned_[d] = true;
    return d;
  }

  int NewRegister() {
    size_t r = 0;
    while (r < free_.size() && !free_[r]) ++r;
    if (r == free_.size()) free_.push_back(true);
    free_[r] = false;
    return NewBase({.kind = Base::kRegister, .offset = static_cast<int64_t>(r)});
  }

  void Free(int base) {
    if (out_->bases_[base].kind != Base::kRegister) return;
    if (static_cast<size_t>(base) < pinned_.size() && pinned_[base]) return;
    free_[out_->bases_[base].offset] = true;
  }

  const Making& making_;
  const Chain& chain_;
  FusedKernel* out_;
  int64_t unit_;
  bool row_ = false;             // the node being emitted is of rows, and so are its operands
  std::vector<int> place_;       // per node: the base that holds it
  std::vector<int> left_;        // per node: readers to come
  std::vector<bool> free_;       // per register
  std::vector<bool> pinned_;     // per base: its register is never reused
  std::map<ValueId, int> kept_;  // the base of what is loaded in the first block only
  std::vector<std::pair<int, ValueId>> late_;  // stores at the end of the block
};

Status FusedKernel::Build(const Making& making, const Chain& chain) {
  n_ = mesh::NumElements(chain.domain());
  row_ = chain.row();
  Emitter emitter(making, chain, this);
  MT_RETURN_IF_ERROR(emitter.Emit());
  int64_t width = 1;
  for (const Node& n : chain.nodes()) {
    width = std::max(width, DTypeBytes(n.dtype));
    for (const Source& s : n.in) width = std::max(width, DTypeBytes(s.dtype));
  }
  const int64_t registers = std::max<int64_t>(1, emitter.registers());
  int64_t streams = registers * width;  // bytes that one element takes in the cache
  for (const Base& b : bases_) streams += b.kind == Base::kValue ? b.stride : 0;
  while (block_ > 64 && streams * block_ > kCacheBytes) block_ /= 2;
  const int64_t unit = emitter.unit();
  block_ = std::max<int64_t>(1, block_ / unit) * unit;
  registers_bytes_ = registers * width * block_;
  if (registers_bytes_ > kStackBytes) {
    return Unimplemented("element-wise chain with too many values alive at once");
  }
  for (Base& b : bases_) {
    if (b.kind == Base::kRegister) b.offset *= width * block_;
  }
  if (sums_.empty()) return OkStatus();
  const int64_t least = std::max(kLeastPart, (n_ + kMostParts - 1) / kMostParts);
  part_ = (least + block_ - 1) / block_ * block_;
  parts_ = (n_ + part_ - 1) / part_;
  scratch_bytes_ = parts_ * columns_ * static_cast<int64_t>(sizeof(double));
  return OkStatus();
}

void FusedKernel::Run(const Frame& frame) const {
  if (sums_.empty()) {
    const int64_t grain = (kGrain + block_ - 1) / block_ * block_;
    frame.For(n_, grain, [&](int64_t begin, int64_t end) { RunPiece(frame, begin, end, nullptr); });
    return;
  }
  auto* sums = reinterpret_cast<double*>(frame.scratch);
  frame.For(parts_, std::max<int64_t>(1, kGrain / part_), [&](int64_t begin, int64_t end) {
    for (int64_t p = begin; p < end; ++p) {
      RunPiece(frame, p * part_, std::min(n_, (p + 1) * part_), sums + p * columns_);
    }
  });
  AddParts(frame);
}

// Overwrites the sums of the first part.
void FusedKernel::AddParts(const Frame& frame) const {
  auto* sums = reinterpret_cast<double*>(frame.scratch);
  for (int64_t p = 1; p < parts_; ++p) {
    for (int64_t j = 0; j < columns_; ++j) sums[j] += sums[p * columns_ + j];
  }
  for (const Sum& s : sums_) {
    const double* from = sums + s.offset;
    if (s.type == Type::kF64) {
      std::copy_n(from, s.columns, frame.As<double>(s.value));
    } else {
      auto* to = frame.As<float>(s.value);
      for (int64_t j = 0; j < s.columns; ++j) to[j] = static_cast<float>(from[j]);
    }
  }
}

void FusedKernel::AddColumns(const Instruction& i, const std::byte* a, int64_t n, double* sums,
                             bool first) const {
  const Sum& s = sums_[i.sum];
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
  alignas(8) std::byte elements[kMaxPrologue * 8];
  struct At {
    std::byte* p;
    int64_t stride;
  };
  std::array<At, kMaxBases> at;
  for (size_t i = 0; i < bases_.size(); ++i) {
    const Base& b = bases_[i];
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
      case Base::kPrologue:
        at[i] = {elements + b.offset, 0};
        break;
    }
  }
  for (const Instruction& i : prologue_) i.fn(at[i.d].p, at[i.a].p, at[i.b].p, at[i.b].p, 1);
  bool first = true;
  for (int64_t from = begin; from < end; from += block_) {
    const int64_t n = std::min(block_, end - from);
    for (const Instruction& i : code_) {
      if (i.fn != nullptr) {
        i.fn(at[i.d].p, at[i.a].p, at[i.b].p, at[i.c].p, i.row ? n / row_ : n);
      } else if (i.sum >= 0) {
        AddColumns(i, at[i.a].p, n, sums, first);
      } else if (i.fold || i.spread) {
        RunRows(i, at[i.d].p, at[i.a].p, n);
      } else if (i.once && !first) {
        continue;
      } else if (i.load >= 0) {
        RunLoad(frame, loads_[i.load], at[i.d].p, from, n);
      } else {
        ActiveKernels().fill(at[i.d].p, at[i.a].p, i.width, n);
      }
    }
    for (size_t i = 0; i < bases_.size(); ++i) {
      at[i].p += (bases_[i].row ? block_ / row_ : block_) * at[i].stride;
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
