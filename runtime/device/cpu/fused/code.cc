#include "runtime/device/cpu/fused/code.h"

#include <algorithm>
#include <array>
#include <map>
#include <string>
#include <utility>

#include "runtime/device/cpu/fused/runs.h"

namespace meshtrain::device::cpu::fused {
namespace {

// Turns nodes into instructions. Registers are slots of 8 bytes an element at most, reused after
// their last reader.
class Emitter {
 public:
  Emitter(const Making& making, const Chain& chain)
      : making_(making), chain_(chain), place_(chain.nodes().size(), -1) {
    out_.unit = chain.unit();
  }

  Result<Code> Emit() {
    const std::vector<Node>& nodes = chain_.nodes();
    left_.resize(nodes.size());
    for (const Node& n : nodes) {
      if (n.dead) continue;
      for (const Source& s : n.in) {
        if (s.kind == Source::kNode) ++left_[s.node];
      }
    }
    for (size_t i = 0; i < nodes.size(); ++i) {
      if (nodes[i].dead || (left_[i] == 0 && !nodes[i].stored)) continue;
      MT_RETURN_IF_ERROR(EmitNode(static_cast<int>(i)));
    }
    for (const auto& [reg, value] : late_) {
      const DType dtype = making_.local().type(value).dtype;
      const bool row = out_.bases[reg].row;
      const auto type = static_cast<Type>(dtype);
      Instruction store{.fn = ActiveKernels().block(BlockOp::kCopy, type, 0),
                        .op = BlockOp::kCopy,
                        .row = row,
                        .type = type};
      store.operands = 1;
      store.a = reg;
      store.d = ValueBase(value, DTypeBytes(dtype), row);
      out_.block.push_back(store);
    }
    out_.registers = out_.apart = static_cast<int64_t>(free_.size());
    return std::move(out_);
  }

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
      out_.bases[d].row = n.row;
      if (n.stored) late_.emplace_back(d, n.value);
    }
    if (!narrow) release();
    place_[index] = d;
    pinned_.resize(out_.bases.size());
    if (n.stored) pinned_[d] = true;
    out_.block.push_back({.fn = n.fold ? nullptr : fn,
                          .op = n.cast || n.fold ? BlockOp::kCount : n.op,
                          .scalars = served ? mask : 0,
                          .d = d,
                          .a = at[0],
                          .b = at[1],
                          .c = at[2],
                          .operands = static_cast<int>(n.in.size()),
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
    out_.block.push_back(
        {.a = a, .operands = 1, .sum = static_cast<int>(out_.sums.size()), .type = type});
    out_.sums.push_back({n.value, n.columns, out_.columns, type});
    out_.columns += n.columns;
    return OkStatus();
  }

  // Does the place of node `index`'s value hold an operand that a later node reads?
  bool ReadLater(int index) const {
    const std::vector<Node>& nodes = chain_.nodes();
    const plan::Slot& mine = making_.plan.slots[nodes[index].value];
    for (size_t j = static_cast<size_t>(index) + 1; j < nodes.size(); ++j) {
      if (nodes[j].dead) continue;
      for (const Source& s : nodes[j].in) {
        if (s.value < 0 || s.kind == Source::kNode) continue;
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
        out_.block.push_back({.d = d,
                              .a = place_[s.node],
                              .operands = 1,
                              .width = DTypeBytes(s.dtype),
                              .spread = true});
        temporary->push_back(d);
        return d;
      }
      case Source::kFull:
        return ValueBase(s.value, DTypeBytes(s.dtype), row_);
      case Source::kElement:
      case Source::kConstant: {
        const int base = ElementBase(s);
        if (scalars_served) return base;
        const int64_t width = DTypeBytes(s.dtype);
        const auto [filled, fresh] = filled_.try_emplace({base, width}, -1);
        if (fresh) {
          filled->second = OwnRegister();
          out_.block.push_back(
              {.d = filled->second, .a = base, .operands = 1, .width = width, .once = true});
        }
        return filled->second;
      }
      case Source::kBroadcast: {
        if (const auto it = kept_.find(s.value); it != kept_.end()) return it->second;
        const int load = LoadOf(s);
        const bool once = SameInEachBlock(out_.loads[load]);
        const int d = once ? OwnRegister() : NewRegister();
        out_.block.push_back({.d = d, .load = load, .once = once});
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
    for (size_t i = 0; i < out_.bases.size(); ++i) {
      const Base& b = out_.bases[i];
      if (b.kind == Base::kConstant && std::ranges::equal(b.constant.bytes, s.constant.bytes)) {
        return static_cast<int>(i);
      }
    }
    return NewBase({.kind = Base::kConstant, .constant = s.constant});
  }

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
    out_.loads.push_back(std::move(load));
    return static_cast<int>(out_.loads.size()) - 1;
  }

  // Whether the load is of a row that is the same for all rows, few enough elements for blocks to
  // be made of whole ones: what Code::unit is then.
  bool SameInEachBlock(const Load& load) {
    constexpr int64_t kMostElements = 512;
    const bool same = load.sizes.size() == 2 && load.strides[0] == 0 && load.strides[1] == 1 &&
                      load.sizes[1] <= kMostElements;
    if (same) out_.unit = std::max(out_.unit, load.sizes[1]);
    return same;
  }

  int NewBase(Base base) {
    out_.bases.push_back(base);
    return static_cast<int>(out_.bases.size()) - 1;
  }

  int ValueBase(ValueId v, int64_t stride, bool row) {
    for (size_t i = 0; i < out_.bases.size(); ++i) {
      const Base& b = out_.bases[i];
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
    pinned_.resize(out_.bases.size());
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
    if (out_.bases[base].kind != Base::kRegister) return;
    if (static_cast<size_t>(base) < pinned_.size() && pinned_[base]) return;
    free_[out_.bases[base].offset] = true;
  }

  const Making& making_;
  const Chain& chain_;
  Code out_;
  bool row_ = false;             // the node being emitted is of rows, and so are its operands
  std::vector<int> place_;       // per node: the base that holds it
  std::vector<int> left_;        // per node: readers to come
  std::vector<bool> free_;       // per register
  std::vector<bool> pinned_;     // per base: its register is never reused
  std::map<ValueId, int> kept_;  // the base of what is loaded in the first block only
  // The register that is filled with the element at a base, by its width.
  std::map<std::pair<int, int64_t>, int> filled_;
  std::vector<std::pair<int, ValueId>> late_;  // stores at the end of the block
};

}  // namespace

Result<Code> MakeCode(const Making& making, const Chain& chain) {
  // Elements from which on code of its own pays: a few vectors.
  constexpr int64_t kWorthwhile = 64;
  MT_ASSIGN_OR_RETURN(Code code, Emitter(making, chain).Emit());
  if (mesh::NumElements(chain.domain()) >= kWorthwhile) JoinRuns(&code);
  return code;
}

}  // namespace meshtrain::device::cpu::fused
