#include "runtime/device/pjrt/ops/rows.h"

namespace meshtrain::device::pjrt {
namespace {

using program::Op;

std::string Combiner(const Op& op) {
  const std::string reduction = op.attrs.Text("reduction", "sum");
  return reduction == "max" ? "maximum" : reduction == "min" ? "minimum" : "add";
}

// Dimension `dim` filled up with zeros to `size`.
Node Filled(Module& m, const Node& a, int64_t dim, int64_t size) {
  Dims before(a.dims.size(), 0), after(a.dims.size(), 0);
  after[dim] = size - a.dims[dim];
  return m.Pad(a, m.Splat(a.element, {}, 0), before, after);
}

// Dimension `dim` cut to `size`.
Node Cut(Module& m, const Node& a, int64_t dim, int64_t size) {
  Dims sizes = a.dims;
  sizes[dim] = size;
  return m.Slice(a, Dims(sizes.size(), 0), sizes);
}

// What has no elements moves nowhere.
bool Empty(Lowering& l, const Op& op) {
  const mesh::TensorType& from = l.type(op.operands[0]);
  const mesh::TensorType& to = l.type(op.results[0]);
  if (from.num_elements() > 0) return false;
  l.Set(op.results[0], l.m().Splat(ElementOf(to.dtype), to.dims, 0));
  return true;
}

void AllReduce(Lowering& l, const Op& op) {
  const Op* one = &op;
  LowerAllReduces(l, {&one, 1});
}

void AllGather(Lowering& l, const Op& op) {
  if (Empty(l, op)) return;
  const int64_t dim = op.attrs.Int("dim");
  const Node whole = l.m().AllGather(l.In(op, 0), dim, l.GroupsOf(op.attrs.Ints("axes")));
  l.Set(op.results[0], Cut(l.m(), whole, dim, op.attrs.Int("size")));
}

// Of numbers of 64 bits on several devices, TPUs know the sum alone.
bool IsWideExtreme(Lowering& l, const Op& op) {
  return Combiner(op) != "add" && mesh::DTypeBytes(l.type(op.operands[0]).dtype) == 8;
}
// Each device gathers what all have, and reduces it.
Node ReducedWhereGathered(Lowering& l, const Op& op, const Node& a) {
  Dims one = a.dims;
  one.insert(one.begin(), 1);
  const Node all = l.m().AllGather(l.m().Reshape(a, one), 0, l.GroupsOf(op.attrs.Ints("axes")));
  const std::string combiner = Combiner(op);
  return l.m().Reduce(combiner, all, {0},
                      Extreme(l.m(), l.type(op.operands[0]).dtype, combiner == "maximum"));
}

// Maxima of floats between devices lose a NaN: NCCL's do, and XLA's on CPUs. So what is reduced is
// whole numbers of 32 bits in the same order, and NaN is what wins. Of halves as f32.
bool IsFloatExtreme(Lowering& l, const Op& op) {
  return Combiner(op) != "add" && mesh::IsFloat(l.type(op.operands[0]).dtype) &&
         !IsWideExtreme(l, op);
}
// Bits of negative numbers the other way round, but for the sign.
Node Turned(Module& m, const Node& bits) {
  const Node sign = m.Binary("shift_right_arithmetic", bits, m.Like(bits, 31));
  return m.Binary("xor", bits, m.Binary("and", sign, m.Like(bits, 0x7fffffff)));
}
Node InOrder(Lowering& l, const Op& op, const Node& a) {
  Module& m = l.m();
  const Node wide = m.Convert(a, "f32");
  const Node order = Turned(m, m.Bits(wide, "i32"));
  const Node wins =
      m.Broadcast(Extreme(m, mesh::DType::kI32, /*least=*/Combiner(op) == "minimum"), a.dims);
  return m.Select(m.Compare("NE", wide, wide), wins, order);
}
Node FromOrder(Lowering& l, const Op& op, const Node& order) {
  Module& m = l.m();
  return m.Convert(m.Bits(Turned(m, order), "f32"), ElementOf(l.type(op.results[0]).dtype));
}

void ReduceScatter(Lowering& l, const Op& op) {
  if (Empty(l, op)) return;
  const int64_t dim = op.attrs.Int("dim"), group = op.attrs.Int("group", 1);
  const int64_t chunk = l.type(op.results[0]).dims[dim];
  const Node a = Filled(l.m(), l.In(op, 0), dim, chunk * group);
  if (IsWideExtreme(l, op)) {
    const Node place = l.IndexAlong(op.attrs.Ints("axes"));
    const Node start =
        l.m().Binary("multiply", place, l.m().Whole("i64", {}, static_cast<uint64_t>(chunk)));
    l.Set(op.results[0], l.m().DynamicSlice(ReducedWhereGathered(l, op, a), dim, start, chunk));
    return;
  }
  const bool in_order = IsFloatExtreme(l, op);
  const Node part = l.m().ReduceScatter(Combiner(op), in_order ? InOrder(l, op, a) : a, dim,
                                        l.GroupsOf(op.attrs.Ints("axes")));
  l.Set(op.results[0], in_order ? FromOrder(l, op, part) : part);
}

void AllToAll(Lowering& l, const Op& op) {
  if (Empty(l, op)) return;
  const int64_t split = op.attrs.Int("split_dim"), concat = op.attrs.Int("concat_dim");
  const int64_t chunk = l.type(op.results[0]).dims[split];
  const Node a = Filled(l.m(), l.In(op, 0), split, chunk * op.attrs.Int("group", 1));
  const Node moved = l.m().AllToAll(a, split, concat, l.GroupsOf(op.attrs.Ints("axes")));
  l.Set(op.results[0], Cut(l.m(), moved, concat, op.attrs.Int("size")));
}

}  // namespace

void LowerAllReduces(Lowering& l, std::span<const Op* const> ops) {
  // Those that may be one instruction: of one element type and one reduction.
  struct Alike {
    std::vector<const Op*> ops;
    std::vector<Node> values;
  };
  std::map<std::pair<std::string, std::string>, Alike> all;
  for (const Op* op : ops) {
    if (Empty(l, *op)) continue;
    if (IsWideExtreme(l, *op)) {
      l.Set(op->results[0], ReducedWhereGathered(l, *op, l.In(*op, 0)));
      continue;
    }
    Node value = l.In(*op, 0);
    if (IsFloatExtreme(l, *op)) value = InOrder(l, *op, value);
    Alike& alike = all[{value.element, Combiner(*op)}];
    alike.ops.push_back(op);
    alike.values.push_back(std::move(value));
  }
  for (const auto& [key, alike] : all) {
    const std::vector<Node> results =
        l.m().AllReduce(key.second, alike.values, l.GroupsOf(alike.ops[0]->attrs.Ints("axes")));
    for (size_t i = 0; i < results.size(); ++i) {
      const Op& op = *alike.ops[i];
      l.Set(op.results[0], IsFloatExtreme(l, op) ? FromOrder(l, op, results[i]) : results[i]);
    }
  }
}

void AddCollective(Rows& rows) {
  rows["all_reduce"] = AllReduce;
  rows["all_gather"] = AllGather;
  rows["reduce_scatter"] = ReduceScatter;
  rows["all_to_all"] = AllToAll;
}

}  // namespace meshtrain::device::pjrt
