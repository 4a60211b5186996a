// Ops that cut tensors and put them together: concat, slice, pad;
// and reverse. Element o of the result is element
// o - low of an operand, so a split result needs of the operand what a window of one tap sees: a
// block of its shards, which need not be gathered (sharding/windows.h). Slices and pads say "all of
// it" (start 0 and size -1, pad 0 and 0) of every dimension that they leave whole.
#include <algorithm>

#include "runtime/program/ops.h"
#include "runtime/program/ops/families.h"
#include "runtime/program/ops/support.h"

namespace meshtrain::program {
namespace {

using namespace ops;  // NOLINT: the families' own helpers

// --- concat {axis, overlaid}: with `overlaid`, as the partitioner writes it where the axis is
// split, each part stands in its place of the result already, between zeros

// Factors of the dimension `d` that operand `i` and the result have in common: element o of the
// result is the operand's element o - low. Where that is more than the same element, the operand is
// needed as a window of one tap sees it.
void OnShifted(TableMaker& table, size_t i, size_t d, int factor, int64_t low, double outside) {
  const int window = table.AddWindow({.factor = factor, .low = low, .index = static_cast<int>(d)});
  table.OnWindow({.window = window,
                  .elements = true,
                  .result = false,
                  .tensor = static_cast<int>(i),
                  .dim = static_cast<int>(d),
                  .outside = outside});
}
// A dimension of no elements, or of one in the result, is needed whole.
bool Shifts(int64_t from, int64_t to) { return from > 0 && to > 1; }

Result<Types> InferConcat(const OpCall& call) {
  MT_RETURN_IF_ERROR(
      CheckAttrs(call.attrs, {{"axis", AttrKind::kInt}, {"overlaid", AttrKind::kBool, false}}));
  MT_RETURN_IF_ERROR(CheckOneDType(call.operands));
  TensorType type = call.operands[0];
  const int64_t axis = call.attrs.Int("axis");
  MT_RETURN_IF_ERROR(CheckAxis(axis, type.rank()));
  if (call.attrs.Bool("overlaid")) {
    for (const TensorType& t : call.operands) {
      if (t == type) continue;
      return InvalidArgument("expected overlaid parts of one type, got: " +
                             TypesText(call.operands));
    }
    return Types{std::move(type)};
  }
  for (const TensorType& t : call.operands.subspan(1)) {
    bool fits = t.rank() == type.rank();
    for (int d = 0; fits && d < t.rank(); ++d) fits = d == axis || t.dims[d] == type.dims[d];
    if (!fits) {
      return InvalidArgument("expected shapes that differ in dimension " + std::to_string(axis) +
                             " only, got: " + TypesText(call.operands));
    }
    type.dims[axis] += t.dims[axis];
    MT_RETURN_IF_ERROR(CheckSize(type.dims));
  }
  return Types{std::move(type)};
}

FactorTable ConcatTable(const OpCall& call, std::span<const TensorType> results) {
  TableMaker table(call, results);
  const auto axis = static_cast<size_t>(call.attrs.Int("axis"));
  const bool overlaid = call.attrs.Bool("overlaid");
  for (size_t d = 0; d < results[0].dims.size(); ++d) {
    const bool along = d == axis && !overlaid;
    const int64_t size = results[0].dims[d];
    const bool shifts =
        along && std::all_of(call.operands.begin(), call.operands.end(),
                             [&](const TensorType& t) { return Shifts(t.dims[d], size); });
    const bool alone = along && call.operands.size() == 1;
    const int f =
        table.Add(size, along && !shifts && !alone ? FactorKind::kWhole : FactorKind::kMap);
    table.OnResult(0, d, f);
    int64_t before = 0;
    for (size_t i = 0; i < call.operands.size(); ++i) {
      const int64_t part = call.operands[i].dims[d];
      if (!along || alone) {
        table.OnOperand(i, d, f);
      } else if (shifts) {
        OnShifted(table, i, d, f, before, 0);
      } else {
        table.OnOperand(i, d, table.Add(part, FactorKind::kWhole));
      }
      before += part;
    }
  }
  return table.Take();
}

std::vector<Value> ConcatGradient(Builder&, const Op& op, Span operands, Span, Span cotangents) {
  const int64_t axis = op.attrs.Int("axis");
  std::vector<Value> gradients;
  Dims starts(operands[0].dims().size(), 0);
  for (const Value& part : operands) {
    gradients.push_back(Slice(cotangents[0], starts, part.dims()));
    starts[axis] += part.dims()[axis];
  }
  return gradients;
}

// --- slice {starts, sizes}: size -1 takes everything from the start on

Result<Types> InferSlice(const OpCall& call) {
  MT_RETURN_IF_ERROR(
      CheckAttrs(call.attrs, {{"starts", AttrKind::kInts}, {"sizes", AttrKind::kInts}}));
  const TensorType& a = call.operands[0];
  const Dims starts = call.attrs.Ints("starts"), sizes = call.attrs.Ints("sizes");
  bool fits = starts.size() == a.dims.size() && sizes.size() == a.dims.size();
  Dims dims = sizes;
  for (size_t d = 0; fits && d < dims.size(); ++d) {
    if (dims[d] == -1 && starts[d] >= 0) dims[d] = a.dims[d] - starts[d];
    fits = starts[d] >= 0 && starts[d] <= a.dims[d] && dims[d] >= 0 &&
           dims[d] <= a.dims[d] - starts[d];
  }
  if (!fits) {
    return InvalidArgument("expected starts and sizes inside " + a.ToString() + ", got: starts " +
                           IntsText(starts) + " sizes " + IntsText(sizes));
  }
  return Types{{a.dtype, std::move(dims)}};
}

FactorTable SliceTable(const OpCall& call, std::span<const TensorType> results) {
  TableMaker table(call, results);
  const Dims starts = call.attrs.Ints("starts"), sizes = call.attrs.Ints("sizes");
  for (size_t d = 0; d < starts.size(); ++d) {
    const bool all = starts[d] == 0 && sizes[d] == -1;
    const int64_t from = call.operands[0].dims[d], to = results[0].dims[d];
    if (!all && Shifts(from, to)) {
      const int f = table.Add(to, FactorKind::kMap);
      table.OnResult(0, d, f);
      OnShifted(table, 0, d, f, -starts[d], 0);
      continue;
    }
    const int f = table.Add(from, all ? FactorKind::kMap : FactorKind::kWhole);
    table.OnOperand(0, d, f);
    table.OnResult(0, d, all ? f : table.Add(to, FactorKind::kWhole));
  }
  return table.Take();
}

std::vector<Value> SliceGradient(Builder&, const Op& op, Span operands, Span results,
                                 Span cotangents) {
  const Dims before = op.attrs.Ints("starts");
  Dims after = operands[0].dims();
  for (size_t d = 0; d < after.size(); ++d) after[d] -= before[d] + results[0].dims()[d];
  return {Pad(cotangents[0], before, after)};
}

// --- pad {before, after, value}

Result<Types> InferPad(const OpCall& call) {
  MT_RETURN_IF_ERROR(CheckAttrs(call.attrs, {{"before", AttrKind::kInts},
                                             {"after", AttrKind::kInts},
                                             {"value", AttrKind::kDouble, false}}));
  const TensorType& a = call.operands[0];
  if (call.attrs.Has("value")) MT_RETURN_IF_ERROR(CheckNumber(call.attrs.Double("value"), a.dtype));
  const Dims before = call.attrs.Ints("before"), after = call.attrs.Ints("after");
  bool fits = before.size() == a.dims.size() && after.size() == a.dims.size();
  Dims dims = a.dims;
  for (size_t d = 0; fits && d < dims.size(); ++d) {
    constexpr int64_t kMost = int64_t{1} << 60;
    fits = before[d] >= 0 && after[d] >= 0 && before[d] < kMost && after[d] < kMost;
    if (fits) dims[d] += before[d] + after[d];
  }
  if (!fits) {
    return InvalidArgument("expected for each dimension of " + a.ToString() +
                           " at least 0 before and after, got: before " + IntsText(before) +
                           " after " + IntsText(after));
  }
  MT_RETURN_IF_ERROR(CheckSize(dims));
  return Types{{a.dtype, std::move(dims)}};
}

FactorTable PadTable(const OpCall& call, std::span<const TensorType> results) {
  TableMaker table(call, results);
  const Dims before = call.attrs.Ints("before"), after = call.attrs.Ints("after");
  for (size_t d = 0; d < before.size(); ++d) {
    const bool all = before[d] == 0 && after[d] == 0;
    const int64_t from = call.operands[0].dims[d], to = results[0].dims[d];
    if (!all && Shifts(from, to)) {
      const int f = table.Add(to, FactorKind::kMap);
      table.OnResult(0, d, f);
      OnShifted(table, 0, d, f, before[d], call.attrs.Double("value"));
      continue;
    }
    const int f = table.Add(from, all ? FactorKind::kMap : FactorKind::kWhole);
    table.OnOperand(0, d, f);
    table.OnResult(0, d, all ? f : table.Add(to, FactorKind::kWhole));
  }
  return table.Take();
}

std::vector<Value> PadGradient(Builder&, const Op& op, Span operands, Span, Span cotangents) {
  return {Slice(cotangents[0], op.attrs.Ints("before"), operands[0].dims())};
}

// --- reverse {axes}: a shard would need the one across from it, so reversed dimensions are whole

Result<Types> InferReverse(const OpCall& call) {
  MT_RETURN_IF_ERROR(CheckAttrs(call.attrs, {{"axes", AttrKind::kInts}}));
  const TensorType& a = call.operands[0];
  std::vector<int64_t> axes = call.attrs.Ints("axes");
  for (const int64_t axis : axes) MT_RETURN_IF_ERROR(CheckAxis(axis, a.rank()));
  std::sort(axes.begin(), axes.end());
  if (std::adjacent_find(axes.begin(), axes.end()) != axes.end()) {
    return InvalidArgument("expected each axis once, got: " + IntsText(call.attrs.Ints("axes")));
  }
  return Types{a};
}

FactorTable ReverseTable(const OpCall& call, std::span<const TensorType> results) {
  TableMaker table(call, results);
  const std::vector<int64_t> axes = call.attrs.Ints("axes");
  for (size_t d = 0; d < results[0].dims.size(); ++d) {
    const bool whole = std::find(axes.begin(), axes.end(), static_cast<int64_t>(d)) != axes.end();
    const int f = table.Add(results[0].dims[d], whole ? FactorKind::kWhole : FactorKind::kMap);
    table.OnOperand(0, d, f);
    table.OnResult(0, d, f);
  }
  return table.Take();
}

std::vector<Value> ReverseGradient(Builder&, const Op& op, Span, Span, Span cotangents) {
  return {Record("reverse", {cotangents[0]}, op.attrs)};
}

void SetEntry(Attrs& attrs, std::string_view name, int index, int64_t value) {
  std::vector<int64_t> items = attrs.Ints(name);
  items[index] = value;
  attrs.Set(std::string(name), std::move(items));
}

OpDef Row(std::string kind, decltype(OpDef::infer) infer, decltype(OpDef::factors) factors,
          decltype(OpDef::gradient) gradient) {
  OpDef row;
  row.kind = std::move(kind);
  row.min_operands = row.max_operands = 1;
  row.infer = infer;
  row.factors = factors;
  row.gradient = gradient;
  return row;
}

}  // namespace

void RegisterCutOps(Registry& registry) {
  // A block is what they would have made of the dimension.
  OpDef slice = Row("slice", InferSlice, SliceTable, SliceGradient);
  slice.moves_data = true;
  slice.linearity = {Linearity::kAlone};
  slice.on_blocks = [](Attrs& attrs, int index) {
    SetEntry(attrs, "starts", index, 0);
    SetEntry(attrs, "sizes", index, -1);
  };
  registry.Add(std::move(slice));
  OpDef concat = Row("concat", InferConcat, ConcatTable, ConcatGradient);
  concat.moves_data = true;
  concat.linearity = {Linearity::kJoint};
  concat.max_operands = -1;
  concat.on_blocks = [](Attrs& attrs, int) { attrs.Set("overlaid", true); };
  registry.Add(std::move(concat));
  // Not linear unless the value is 0, which a row's list cannot tell: a pending sum is reduced
  // first.
  OpDef pad = Row("pad", InferPad, PadTable, PadGradient);
  pad.on_blocks = [](Attrs& attrs, int index) {
    SetEntry(attrs, "before", index, 0);
    SetEntry(attrs, "after", index, 0);
  };
  registry.Add(std::move(pad));
  OpDef reverse = Row("reverse", InferReverse, ReverseTable, ReverseGradient);
  reverse.moves_data = true;
  reverse.linearity = {Linearity::kAlone};
  registry.Add(std::move(reverse));
}

Value Concat(const std::vector<Operand>& parts, int64_t axis) {
  const int rank = parts.empty() ? 0 : TypeOf(parts[0]).rank();
  return Record("concat", parts, {{"axis", FromStart(axis, rank)}});
}

Value Slice(const Operand& a, Dims starts, Dims sizes) {
  const Dims dims = TypeOf(a).dims;
  for (size_t d = 0; d < dims.size() && d < starts.size() && d < sizes.size(); ++d) {
    if (starts[d] == 0 && sizes[d] == dims[d]) sizes[d] = -1;
  }
  return Record("slice", {a}, {{"starts", std::move(starts)}, {"sizes", std::move(sizes)}});
}

Value Pad(const Operand& a, Dims before, Dims after, double value) {
  return Record("pad", {a},
                {{"before", std::move(before)}, {"after", std::move(after)}, {"value", value}});
}

}  // namespace meshtrain::program
