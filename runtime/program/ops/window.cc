// Ops of windows that slide over spatial dimensions: convolutions, sums and maxima of windows, and
// their gradients, of 1 to 3 spatial dimensions alike.
//
// Three kinds of tensors meet in them, and a row is no more than which of its operands and result
// is which. Types, factors and costs follow from that:
//   elements   [N, S..., C]     what windows slide over
//   positions  [N, O..., F]     one for each place of the window, O from S (registry.h)
//   kernel     [K..., C/G, F]   of G groups; group g takes channels g C/G .. to channels g F/G ..
// Ops without a kernel take each channel for itself: F = C, and `sizes` says K.
//
// Attributes, an entry for each spatial dimension: strides, dilations, low, high (the padding
// before and after). `dims` are the result's dimensions, where operands leave them open.
#include <algorithm>
#include <limits>

#include "runtime/program/limits.h"
#include "runtime/program/ops.h"
#include "runtime/program/ops/families.h"
#include "runtime/program/ops/support.h"

namespace meshtrain::program {
namespace {

using namespace ops;  // NOLINT: the families' own helpers

enum class Role : uint8_t { kElements, kPositions, kKernel };

struct WindowRow {
  int operands = 1;
  Role operand[2] = {};
  Role result = Role::kPositions;
  bool kernel = false;     // one of them is a kernel
  double outside[2] = {};  // what an operand holds outside its dimensions
  double flops = 1;        // for each tap of each position

  // The operand of that role; -1: none.
  constexpr int Of(Role role) const {
    for (int i = 0; i < operands; ++i) {
      if (operand[i] == role) return i;
    }
    return -1;
  }
  constexpr bool has_dims() const {
    return result == Role::kKernel || (result == Role::kElements && Of(Role::kElements) < 0);
  }
};

constexpr double kLowest = -std::numeric_limits<double>::infinity();
constexpr WindowRow kConv = {.operands = 2,
                             .operand = {Role::kElements, Role::kKernel},
                             .result = Role::kPositions,
                             .kernel = true,
                             .flops = 2};
constexpr WindowRow kConvInputGrad = {.operands = 2,
                                      .operand = {Role::kPositions, Role::kKernel},
                                      .result = Role::kElements,
                                      .kernel = true,
                                      .flops = 2};
constexpr WindowRow kConvFilterGrad = {.operands = 2,
                                       .operand = {Role::kElements, Role::kPositions},
                                       .result = Role::kKernel,
                                       .kernel = true,
                                       .flops = 2};
constexpr WindowRow kWindowSum = {.operand = {Role::kElements}, .result = Role::kPositions};
constexpr WindowRow kWindowSumGrad = {.operand = {Role::kPositions}, .result = Role::kElements};
constexpr WindowRow kWindowMax = {
    .operand = {Role::kElements}, .result = Role::kPositions, .outside = {kLowest}};
constexpr WindowRow kWindowMaxGrad = {.operands = 2,
                                      .operand = {Role::kElements, Role::kPositions},
                                      .result = Role::kElements,
                                      .outside = {kLowest}};
constexpr WindowRow kWindowMaxPick = {.operands = 2,
                                      .operand = {Role::kElements, Role::kElements},
                                      .result = Role::kPositions,
                                      .outside = {kLowest}};

// --- types

Status CheckSpatial(const Attrs& attrs, std::string_view name, size_t spatial, int64_t least) {
  constexpr int64_t kMost = int64_t{1} << 31;
  const std::vector<int64_t> items = attrs.Ints(name);
  const bool fits = items.size() == spatial && std::all_of(items.begin(), items.end(), [&](auto i) {
                      return i >= least && i < kMost;
                    });
  if (fits) return OkStatus();
  return InvalidArgument("expected " + std::string(name) + " of at least " + std::to_string(least) +
                         ", one for each of " + std::to_string(spatial) +
                         " spatial dimensions, got: " + IntsText(items));
}

// Kernel, elements and positions fit each other, as far as windows go: gives the positions.
Result<Dims> Positions(const Attrs& attrs, const Dims& elements, std::span<const int64_t> sizes) {
  const std::vector<int64_t> strides = attrs.Ints("strides"), dilations = attrs.Ints("dilations");
  const std::vector<int64_t> low = attrs.Ints("low"), high = attrs.Ints("high");
  Dims positions;
  for (size_t d = 0; d < sizes.size(); ++d) {
    const int64_t reach = (sizes[d] - 1) * dilations[d] + 1;
    const int64_t room = elements[d + 1] + low[d] + high[d] - reach;
    if (room < 0) {
      return InvalidArgument(
          "expected a window that fits into the padded dimension, got: " + std::to_string(reach) +
          " elements in " + std::to_string(room + reach) + " of spatial dimension " +
          std::to_string(d));
    }
    positions.push_back(room / strides[d] + 1);
  }
  return positions;
}

Result<Types> InferWindow(const WindowRow& row, const OpCall& call) {
  const Attrs& attrs = call.attrs;
  if (row.kernel && row.has_dims()) {
    MT_RETURN_IF_ERROR(CheckAttrs(attrs, {{"strides", AttrKind::kInts},
                                          {"dilations", AttrKind::kInts},
                                          {"low", AttrKind::kInts},
                                          {"high", AttrKind::kInts},
                                          {"dims", AttrKind::kInts}}));
  } else if (row.kernel) {
    MT_RETURN_IF_ERROR(CheckAttrs(attrs, {{"strides", AttrKind::kInts},
                                          {"dilations", AttrKind::kInts},
                                          {"low", AttrKind::kInts},
                                          {"high", AttrKind::kInts}}));
  } else if (row.has_dims()) {
    MT_RETURN_IF_ERROR(CheckAttrs(attrs, {{"sizes", AttrKind::kInts},
                                          {"strides", AttrKind::kInts},
                                          {"dilations", AttrKind::kInts},
                                          {"low", AttrKind::kInts},
                                          {"high", AttrKind::kInts},
                                          {"dims", AttrKind::kInts}}));
  } else {
    MT_RETURN_IF_ERROR(CheckAttrs(attrs, {{"sizes", AttrKind::kInts},
                                          {"strides", AttrKind::kInts},
                                          {"dilations", AttrKind::kInts},
                                          {"low", AttrKind::kInts},
                                          {"high", AttrKind::kInts}}));
  }
  MT_RETURN_IF_ERROR(CheckOneDType(call.operands));
  MT_RETURN_IF_ERROR(CheckAccepts(call.operands[0], Accepts::kFloat));
  const int rank = call.operands[0].rank();
  for (const TensorType& type : call.operands) {
    if (rank >= 3 && rank <= 5 && type.rank() == rank) continue;
    return InvalidArgument(
        "expected operands of one rank with 1 to 3 spatial dimensions, [N, S..., C], got: " +
        TypesText(call.operands));
  }
  const size_t spatial = rank - 2;
  for (const char* name : {"strides", "dilations"}) {
    MT_RETURN_IF_ERROR(CheckSpatial(attrs, name, spatial, 1));
  }
  for (const char* name : {"low", "high"}) {
    MT_RETURN_IF_ERROR(CheckSpatial(attrs, name, spatial, 0));
  }
  if (!row.kernel) MT_RETURN_IF_ERROR(CheckSpatial(attrs, "sizes", spatial, 1));

  const DType dtype = call.operands[0].dtype;
  const auto dims_of = [&](Role role) -> Result<Dims> {
    if (const int i = row.Of(role); i >= 0) return call.operands[i].dims;
    MT_ASSIGN_OR_RETURN(Dims dims, DimsAttr(attrs));
    if (static_cast<int>(dims.size()) == rank) return dims;
    return InvalidArgument("expected `dims` of " + std::to_string(rank) +
                           " dimensions, got: " + IntsText(dims));
  };
  MT_ASSIGN_OR_RETURN(const Dims elements, dims_of(Role::kElements));
  const int64_t channels = elements.back();
  Dims kernel = attrs.Ints("sizes");
  int64_t features = channels;
  if (row.kernel) {
    MT_ASSIGN_OR_RETURN(kernel, dims_of(Role::kKernel));
    const int64_t of_group = kernel[spatial];
    features = kernel[spatial + 1];
    if (of_group < 1 || channels % of_group != 0 || channels == 0 ||
        features % (channels / of_group) != 0) {
      return InvalidArgument(
          "expected a kernel [K..., C/G, F] whose groups G divide C and F, got: " +
          TensorType{dtype, kernel}.ToString() + " for " + TensorType{dtype, elements}.ToString());
    }
    for (size_t d = 0; d < spatial; ++d) {
      if (kernel[d] < 1) {
        return InvalidArgument("expected a kernel of at least 1 tap, got: " +
                               TensorType{dtype, kernel}.ToString());
      }
    }
  }
  MT_ASSIGN_OR_RETURN(Dims positions,
                      Positions(attrs, elements, std::span(kernel).subspan(0, spatial)));
  positions.insert(positions.begin(), elements[0]);
  positions.push_back(features);
  MT_RETURN_IF_ERROR(CheckSize(positions));
  for (int i = 0; i < row.operands; ++i) {
    const Dims& want = row.operand[i] == Role::kPositions  ? positions
                       : row.operand[i] == Role::kElements ? elements
                                                           : kernel;
    if (call.operands[i].dims == want) continue;
    return InvalidArgument("operand " + std::to_string(i) + ": expected " +
                           TensorType{dtype, want}.ToString() +
                           ", got: " + call.operands[i].ToString());
  }
  return Types{{dtype, row.result == Role::kPositions  ? positions
                       : row.result == Role::kElements ? elements
                                                       : kernel}};
}

// --- factors

// The dimensions of one call, by role.
struct Shapes {
  Dims elements, positions, kernel;  // a kernel has its sizes at least

  Shapes(const WindowRow& row, const OpCall& call, std::span<const TensorType> results) {
    const auto put = [&](Role role, const Dims& dims) {
      (role == Role::kElements ? elements : role == Role::kPositions ? positions : kernel) = dims;
    };
    if (!row.kernel) kernel = call.attrs.Ints("sizes");
    for (int i = 0; i < row.operands; ++i) put(row.operand[i], call.operands[i].dims);
    put(row.result, results[0].dims);
  }
};

FactorTable TableOf(const WindowRow& row, const OpCall& call, std::span<const TensorType> results) {
  TableMaker table(call, results);
  const Shapes shapes(row, call, results);
  const size_t spatial = shapes.elements.size() - 2;
  const auto on = [&](Role role, size_t dim, int factor) {
    for (int i = 0; i < row.operands; ++i) {
      if (row.operand[i] == role) table.OnOperand(i, dim, factor);
    }
    if (row.result == role) table.OnResult(0, dim, factor);
  };
  // What the result does not hold is summed.
  const auto kind = [&](std::initializer_list<Role> held_by) {
    return std::find(held_by.begin(), held_by.end(), row.result) != held_by.end()
               ? FactorKind::kMap
               : FactorKind::kSum;
  };

  const int n = table.Add(shapes.elements[0], kind({Role::kElements, Role::kPositions}));
  on(Role::kElements, 0, n);
  on(Role::kPositions, 0, n);

  const std::vector<int64_t> strides = call.attrs.Ints("strides");
  const std::vector<int64_t> dilations = call.attrs.Ints("dilations");
  const std::vector<int64_t> low = call.attrs.Ints("low"), high = call.attrs.Ints("high");
  for (size_t d = 0; d < spatial; ++d) {
    const bool counts_elements = row.result == Role::kElements;
    const int64_t of_elements = shapes.elements[d + 1], of_positions = shapes.positions[d + 1];
    if (row.kernel) on(Role::kKernel, d, table.Add(shapes.kernel[d], FactorKind::kWhole));
    const Role own = counts_elements ? Role::kElements : Role::kPositions;
    const Role other = counts_elements ? Role::kPositions : Role::kElements;
    const int f = table.Add(counts_elements ? of_elements : of_positions,
                            kind({Role::kElements, Role::kPositions}));
    if (f < 0) {
      on(other, d + 1, table.Add(counts_elements ? of_positions : of_elements, FactorKind::kWhole));
      continue;
    }
    const bool plain = shapes.kernel[d] == 1 && strides[d] == 1 && low[d] == 0 && high[d] == 0;
    if (plain) {
      on(own, d + 1, f);
      on(other, d + 1, f);
      continue;
    }
    const int window = table.AddWindow({.factor = f,
                                        .counts_elements = counts_elements,
                                        .size = shapes.kernel[d],
                                        .stride = strides[d],
                                        .dilation = dilations[d],
                                        .low = low[d],
                                        .index = static_cast<int>(d)});
    for (int i = 0; i < row.operands; ++i) {
      if (row.operand[i] == Role::kKernel) continue;
      const bool elements = row.operand[i] == Role::kElements;
      if (!counts_elements && !elements) {
        table.OnOperand(i, d + 1, f);
      } else {
        table.OnWindow({.window = window,
                        .elements = elements,
                        .result = false,
                        .tensor = i,
                        .dim = static_cast<int>(d) + 1,
                        .outside = row.outside[i]});
      }
    }
    if (counts_elements) {
      table.OnWindow(
          {.window = window, .elements = true, .result = true, .dim = static_cast<int>(d) + 1});
    } else if (row.result == Role::kPositions) {
      table.OnResult(0, d + 1, f);
    }
  }

  if (!row.kernel) {
    const int c = table.Add(shapes.elements.back(), FactorKind::kMap);
    on(Role::kElements, spatial + 1, c);
    on(Role::kPositions, spatial + 1, c);
    return table.Take();
  }
  const int64_t of_group = shapes.kernel[spatial];
  const int64_t groups = shapes.elements.back() / of_group;
  const int g = table.Add(groups, FactorKind::kMap);
  const int in = table.Add(of_group, kind({Role::kElements, Role::kKernel}));
  const int out =
      table.Add(shapes.positions.back() / groups, kind({Role::kPositions, Role::kKernel}));
  on(Role::kElements, spatial + 1, g);
  on(Role::kElements, spatial + 1, in);
  on(Role::kPositions, spatial + 1, g);
  on(Role::kPositions, spatial + 1, out);
  on(Role::kKernel, spatial, in);
  on(Role::kKernel, spatial + 1, g);
  on(Role::kKernel, spatial + 1, out);
  return table.Take();
}

Cost CostOfRow(const WindowRow& row, const OpCall& call, std::span<const TensorType> results) {
  Cost cost = ElementCost(call, results, 0);
  const Shapes shapes(row, call, results);
  const size_t spatial = shapes.elements.size() - 2;
  double taps = row.flops;
  for (size_t d = 0; d < spatial; ++d) taps *= static_cast<double>(shapes.kernel[d]);
  if (row.kernel) taps *= static_cast<double>(shapes.kernel[spatial]);
  cost.flops = taps * static_cast<double>(mesh::NumElements(shapes.positions));
  return cost;
}

// --- gradients

Attrs With(const Attrs& attrs, Dims dims) {
  Attrs more = attrs;
  more.Set("dims", std::move(dims));
  return more;
}
Attrs Without(const Attrs& attrs) {
  Attrs fewer = attrs;
  fewer.Erase("dims");
  return fewer;
}

// The three products of convolution are each other's gradients.
std::vector<Value> ConvGradient(Builder& b, const Op& op, Span operands, Span, Span cotangents) {
  const Value x = operands[0], kernel = operands[1], g = cotangents[0];
  return {b.Append1("conv_input_grad", {g, kernel}, With(op.attrs, x.dims())),
          b.Append1("conv_filter_grad", {x, g}, With(op.attrs, kernel.dims()))};
}
std::vector<Value> ConvInputGradGradient(Builder& b, const Op& op, Span operands, Span,
                                         Span cotangents) {
  const Value dy = operands[0], kernel = operands[1], g = cotangents[0];
  return {b.Append1("conv", {g, kernel}, Without(op.attrs)),
          b.Append1("conv_filter_grad", {g, dy}, With(op.attrs, kernel.dims()))};
}
std::vector<Value> ConvFilterGradGradient(Builder& b, const Op& op, Span operands, Span,
                                          Span cotangents) {
  const Value x = operands[0], dy = operands[1], g = cotangents[0];
  return {b.Append1("conv_input_grad", {dy, g}, With(op.attrs, x.dims())),
          b.Append1("conv", {x, g}, Without(op.attrs))};
}

std::vector<Value> WindowSumGradient(Builder& b, const Op& op, Span operands, Span,
                                     Span cotangents) {
  return {b.Append1("window_sum_grad", {cotangents[0]}, With(op.attrs, operands[0].dims()))};
}
std::vector<Value> WindowSumGradGradient(Builder& b, const Op& op, Span, Span, Span cotangents) {
  return {b.Append1("window_sum", {cotangents[0]}, Without(op.attrs))};
}

std::vector<Value> WindowMaxGradient(Builder& b, const Op& op, Span operands, Span,
                                     Span cotangents) {
  return {b.Append1("window_max_grad", {operands[0], cotangents[0]}, op.attrs)};
}
// Which element is a window's largest does not change with it, but where two are equal.
std::vector<Value> WindowMaxGradGradient(Builder& b, const Op& op, Span operands, Span,
                                         Span cotangents) {
  return {Value(), b.Append1("window_max_pick", {operands[0], cotangents[0]}, op.attrs)};
}
std::vector<Value> WindowMaxPickGradient(Builder& b, const Op& op, Span operands, Span,
                                         Span cotangents) {
  return {Value(), b.Append1("window_max_grad", {operands[0], cotangents[0]}, op.attrs)};
}

template <const WindowRow& kRow>
OpDef Row(std::string kind, std::vector<Linearity> linearity, decltype(OpDef::gradient) gradient) {
  OpDef row;
  row.kind = std::move(kind);
  row.min_operands = row.max_operands = kRow.operands;
  row.infer = [](const OpCall& call) { return InferWindow(kRow, call); };
  row.factors = [](const OpCall& call, std::span<const TensorType> results) {
    return TableOf(kRow, call, results);
  };
  row.linearity = std::move(linearity);
  row.gradient = gradient;
  row.cost = [](const OpCall& call, std::span<const TensorType> results) {
    return CostOfRow(kRow, call, results);
  };
  return row;
}

}  // namespace

void RegisterWindowOps(Registry& registry) {
  using enum Linearity;
  registry.Add(Row<kConv>("conv", {kAlone}, ConvGradient));
  registry.Add(Row<kConvInputGrad>("conv_input_grad", {kAlone}, ConvInputGradGradient));
  registry.Add(Row<kConvFilterGrad>("conv_filter_grad", {kAlone}, ConvFilterGradGradient));
  registry.Add(Row<kWindowSum>("window_sum", {kAlone}, WindowSumGradient));
  registry.Add(Row<kWindowSumGrad>("window_sum_grad", {kAlone}, WindowSumGradGradient));
  registry.Add(Row<kWindowMax>("window_max", {}, WindowMaxGradient));
  registry.Add(Row<kWindowMaxGrad>("window_max_grad", {kNone, kAlone}, WindowMaxGradGradient));
  registry.Add(Row<kWindowMaxPick>("window_max_pick", {kNone, kAlone}, WindowMaxPickGradient));
}

}  // namespace meshtrain::program
