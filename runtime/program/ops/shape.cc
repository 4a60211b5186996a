// Ops that give elements another shape. What they say of a dimension must stay right when the
// partitioner shrinks it: result shapes come from the attribute `dims`, which it overwrites, or
// from the operands.
#include <algorithm>
#include <numeric>

#include "runtime/program/ops.h"
#include "runtime/program/ops/families.h"
#include "runtime/program/ops/support.h"

namespace meshtrain::program {
namespace {

using namespace ops;  // NOLINT: the families' own helpers

// --- reshape {dims}

Result<Types> InferReshape(const OpCall& call) {
  MT_RETURN_IF_ERROR(CheckAttrs(call.attrs, {{"dims", AttrKind::kInts}}));
  const TensorType& a = call.operands[0];
  const Dims dims = call.attrs.Ints("dims");
  if (!CheckSize(dims).ok() || mesh::NumElements(dims) != a.num_elements()) {
    return InvalidArgument("expected dimensions that hold the " + std::to_string(a.num_elements()) +
                           " elements of " + a.ToString() +
                           " (one may be -1), got: " + IntsText(dims));
  }
  return Types{{a.dtype, dims}};
}

// A walk along dimensions from the slowest, `left` elements of the current one still to be told
// apart.
struct Walk {
  const Dims& dims;
  size_t d = 0;
  int64_t left = 1;

  explicit Walk(const Dims& of) : dims(of), left(of.empty() ? 1 : of[0]) { SkipDone(); }
  bool done() const { return d >= dims.size(); }
  void Take(int64_t part) {
    left /= part;
    SkipDone();
  }
  void SkipDone() {
    while (!done() && left == 1) {
      ++d;
      if (!done()) left = dims[d];
    }
  }
};

// From the slowest dimension on, both sides are cut by their greatest common part: [2,6] -> [12]
// gives {2 map, 6 map}. Where they have none ([3,4] -> [4,3] after a common 1), everything up to
// the next common boundary is needed whole.
//
// A factor may be split only where it comes first in every dimension that holds it (or after
// factors that are split down to single elements), and, when other factors follow it in a
// dimension, only into equal parts: chunks of a dimension are contiguous. Then the local reshape is
// this op again, with local `dims`.
FactorTable ReshapeTable(const OpCall& call, std::span<const TensorType> results) {
  TableMaker table(call, results);
  const Dims& from = call.operands[0].dims;
  const Dims& to = results[0].dims;
  if (mesh::NumElements(from) == 0) {
    for (size_t d = 0; d < from.size(); ++d) {
      table.OnOperand(0, d, table.Add(from[d], FactorKind::kWhole));
    }
    for (size_t d = 0; d < to.size(); ++d) {
      table.OnResult(0, d, table.Add(to[d], FactorKind::kWhole));
    }
    return table.Take();
  }
  Walk a(from), b(to);
  const auto take_whole_a = [&] {
    const int64_t part = a.left;
    table.OnOperand(0, a.d, table.Add(part, FactorKind::kWhole));
    a.Take(part);
    return part;
  };
  const auto take_whole_b = [&] {
    const int64_t part = b.left;
    table.OnResult(0, b.d, table.Add(part, FactorKind::kWhole));
    b.Take(part);
    return part;
  };
  while (!a.done()) {
    const int64_t common = std::gcd(a.left, b.left);
    if (common > 1) {
      const int f = table.Add(common, FactorKind::kMap);
      table.OnOperand(0, a.d, f);
      table.OnResult(0, b.d, f);
      a.Take(common);
      b.Take(common);
      continue;
    }
    int64_t of_a = take_whole_a(), of_b = take_whole_b();
    while (of_a != of_b) {
      if (of_a < of_b) {
        of_a *= take_whole_a();
      } else {
        of_b *= take_whole_b();
      }
    }
  }
  return table.Take();
}

std::vector<Value> ReshapeGradient(Builder&, const Op&, Span operands, Span, Span cotangents) {
  return {Reshape(cotangents[0], operands[0].dims())};
}

// --- transpose {permutation}: result dimension d is operand dimension permutation[d]

Result<Types> InferTranspose(const OpCall& call) {
  MT_RETURN_IF_ERROR(CheckAttrs(call.attrs, {{"permutation", AttrKind::kInts}}));
  const TensorType& a = call.operands[0];
  const std::vector<int64_t> permutation = call.attrs.Ints("permutation");
  std::vector<int64_t> sorted = permutation, all(a.dims.size());
  std::sort(sorted.begin(), sorted.end());
  std::iota(all.begin(), all.end(), 0);
  if (sorted != all) {
    return InvalidArgument("expected a permutation of the dimensions of " + a.ToString() +
                           ", got: " + IntsText(permutation));
  }
  Dims dims;
  for (const int64_t d : permutation) dims.push_back(a.dims[d]);
  return Types{{a.dtype, std::move(dims)}};
}

FactorTable TransposeTable(const OpCall& call, std::span<const TensorType> results) {
  TableMaker table(call, results);
  const std::vector<int64_t> permutation = call.attrs.Ints("permutation");
  for (size_t d = 0; d < permutation.size(); ++d) {
    const int f = table.Add(results[0].dims[d], FactorKind::kMap);
    table.OnOperand(0, permutation[d], f);
    table.OnResult(0, d, f);
  }
  return table.Take();
}

std::vector<Value> TransposeGradient(Builder&, const Op& op, Span, Span, Span cotangents) {
  const std::vector<int64_t> permutation = op.attrs.Ints("permutation");
  std::vector<int64_t> inverse(permutation.size());
  for (size_t d = 0; d < permutation.size(); ++d) inverse[permutation[d]] = static_cast<int64_t>(d);
  return {Transpose(cotangents[0], inverse)};
}

// --- broadcast_to {dims}

Result<Types> InferBroadcastTo(const OpCall& call) {
  MT_RETURN_IF_ERROR(CheckAttrs(call.attrs, {{"dims", AttrKind::kInts}}));
  MT_ASSIGN_OR_RETURN(Dims dims, DimsAttr(call.attrs));
  const TensorType& a = call.operands[0];
  bool fits = a.dims.size() <= dims.size();
  for (size_t k = 1; fits && k <= a.dims.size(); ++k) {
    const int64_t d = a.dims[a.dims.size() - k];
    fits = d == 1 || d == dims[dims.size() - k];
  }
  if (!fits) {
    return InvalidArgument("expected dimensions that " + a.ToString() +
                           " stretches to, got: " + IntsText(dims));
  }
  return Types{{a.dtype, std::move(dims)}};
}

std::vector<Value> BroadcastToGradient(Builder&, const Op&, Span operands, Span, Span cotangents) {
  return {SumTo(cotangents[0], operands[0].dims())};
}

// --- relayout {specs}: the identity; `specs` is a layout's text, "{batch, *}"

Result<Types> InferRelayout(const OpCall& call) {
  MT_RETURN_IF_ERROR(CheckAttrs(call.attrs, {{"specs", AttrKind::kText}}));
  const TensorType& a = call.operands[0];
  const std::string specs = call.attrs.Text("specs");
  const bool braces = specs.size() >= 2 && specs.front() == '{' && specs.back() == '}';
  const auto given = specs == "{}" ? 0 : std::count(specs.begin(), specs.end(), ',') + 1;
  if (!braces || given != a.rank()) {
    return InvalidArgument("expected one spec for each dimension of " + a.ToString() +
                           ", got: " + specs);
  }
  return Types{a};
}

std::vector<Value> RelayoutGradient(Builder&, const Op&, Span, Span, Span cotangents) {
  return {cotangents[0]};
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

OpDef Moves(OpDef row, Linearity linearity) {
  row.moves_data = true;
  row.linearity = {linearity};
  return row;
}

}  // namespace

void RegisterShapeOps(Registry& registry) {
  constexpr auto kAlone = Linearity::kAlone;
  registry.Add(Moves(Row("reshape", InferReshape, ReshapeTable, ReshapeGradient), kAlone));
  registry.Add(Moves(Row("transpose", InferTranspose, TransposeTable, TransposeGradient), kAlone));
  registry.Add(
      Moves(Row("broadcast_to", InferBroadcastTo, BroadcastTable, BroadcastToGradient), kAlone));
  // The specs hold no pending reduction, so none passes.
  registry.Add(Row("relayout", InferRelayout, BroadcastTable, RelayoutGradient));
}

Value Reshape(const Operand& a, Dims dims) {
  const int64_t elements = TypeOf(a).num_elements();
  if (std::count(dims.begin(), dims.end(), -1) == 1) {
    Dims others = dims;
    std::erase(others, -1);
    const int64_t known = CheckSize(others).ok() ? mesh::NumElements(others) : 0;
    if (known > 0 && elements % known == 0) {
      std::replace(dims.begin(), dims.end(), int64_t{-1}, elements / known);
    }
  }
  return Record("reshape", {a}, {{"dims", std::move(dims)}});
}

Value Transpose(const Operand& a, std::vector<int64_t> permutation) {
  return Record("transpose", {a}, {{"permutation", std::move(permutation)}});
}

Value BroadcastTo(const Operand& a, Dims dims) {
  return Record("broadcast_to", {a}, {{"dims", std::move(dims)}});
}

Value ExpandDims(const Operand& a, int64_t axis) {
  Dims dims = TypeOf(a).dims;
  const int rank = static_cast<int>(dims.size());
  const int64_t at = FromStart(axis, rank + 1);
  if (at < 0 || at > rank) {
    const Operand operands[] = {a};
    Builder& builder = Builder::Of(operands);
    builder.Fail(CheckAxis(at, rank + 1).At("expand_dims"), a.where());
    return Value(&builder, kNoValue);
  }
  dims.insert(dims.begin() + at, 1);
  return Reshape(a, std::move(dims));
}

Value Squeeze(const Operand& a, std::vector<int64_t> axes) {
  const Dims dims = TypeOf(a).dims;
  const int rank = static_cast<int>(dims.size());
  std::vector<bool> drop(dims.size(), false);
  for (const int64_t axis : axes) {
    const int64_t at = FromStart(axis, rank);
    if (at < 0 || at >= rank || dims[at] != 1) {
      const Operand operands[] = {a};
      Builder& builder = Builder::Of(operands);
      builder.Fail(InvalidArgument("squeeze: expected axes of size 1 of " + TypeOf(a).ToString() +
                                   ", got: " + IntsText(axes)),
                   a.where());
      return Value(&builder, kNoValue);
    }
    drop[at] = true;
  }
  Dims kept;
  for (size_t d = 0; d < dims.size(); ++d) {
    if (!drop[d]) kept.push_back(dims[d]);
  }
  return Reshape(a, std::move(kept));
}

Value Relayout(const Operand& a, std::vector<std::string> specs) {
  std::string text = "{";
  for (size_t d = 0; d < specs.size(); ++d) {
    const bool whole = specs[d].empty() || specs[d] == "unsharded";
    text += (d > 0 ? ", " : "") + (whole ? "*" : specs[d]);
  }
  return Record("relayout", {a}, {{"specs", text + "}"}});
}

}  // namespace meshtrain::program
