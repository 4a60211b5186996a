#include "runtime/program/ops/support.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "runtime/base/text.h"
#include "runtime/program/ops.h"

namespace meshtrain::program::ops {

Status CheckAttrs(const Attrs& attrs, std::initializer_list<AttrRule> rules) {
  static constexpr std::string_view kKinds[] = {"a bool", "an integer", "a floating-point number",
                                                "a text", "integers",   "floating-point numbers"};
  static constexpr AttrRule kPlacement[] = {{"global_dims", AttrKind::kInts},
                                            {"layout", AttrKind::kText}};
  for (const auto& [name, value] : attrs.items()) {
    const AttrRule* found = nullptr;
    for (const AttrRule& rule : rules) found = rule.name == name ? &rule : found;
    for (const AttrRule& rule : kPlacement) {
      found = found == nullptr && rule.name == name ? &rule : found;
    }
    if (found == nullptr) {
      std::vector<std::string> names;
      for (const AttrRule& rule : rules) names.emplace_back(rule.name);
      const std::string wanted =
          names.empty() ? "no attribute" : "one of the attributes " + Join(names, ", ");
      return InvalidArgument("expected " + wanted + ", got: `" + name + "`" +
                             DidYouMean(name, names));
    }
    if (value.index() != static_cast<size_t>(found->kind)) {
      return InvalidArgument("attribute `" + name + "`: expected " +
                             std::string(kKinds[static_cast<size_t>(found->kind)]) +
                             ", got: " + AttrText(value));
    }
  }
  for (const AttrRule& rule : rules) {
    if (rule.required && !attrs.Has(rule.name)) {
      return InvalidArgument("expected the attribute `" + std::string(rule.name) + "`, got: none");
    }
  }
  return OkStatus();
}

Result<DType> DTypeAttr(const Attrs& attrs) { return mesh::ParseDType(attrs.Text("dtype", "f32")); }

std::string DTypeText(DType dtype) { return std::string(mesh::DTypeName(dtype)); }

Status CheckSize(const Dims& dims) {
  int64_t elements = 1;
  for (const int64_t d : dims) {
    if (d < 0) return InvalidArgument("expected dimensions of at least 0, got: " + IntsText(dims));
    if (d > 0 && elements > std::numeric_limits<int64_t>::max() / 8 / d) {
      return InvalidArgument("expected fewer than 2^60 elements, got: " + IntsText(dims));
    }
    elements *= std::max<int64_t>(d, 1);
  }
  return OkStatus();
}

Status CheckNumber(double number, DType dtype) {
  double low = 0, high = 0;
  switch (dtype) {
    case DType::kF32:
    case DType::kF64:
    case DType::kBF16:
    case DType::kF16:
      return OkStatus();
    case DType::kBool:
      high = 1;
      break;
    case DType::kU8:
      high = 255;
      break;
    case DType::kI32:
      low = std::numeric_limits<int32_t>::min();
      high = std::numeric_limits<int32_t>::max();
      break;
    case DType::kI64:  // what a double holds exactly
      low = -0x1p53;
      high = 0x1p53;
      break;
  }
  if (number == std::floor(number) && number >= low && number <= high) return OkStatus();
  return InvalidArgument("expected a number of type " + DTypeText(dtype) +
                         ", got: " + AttrText(number));
}

Result<Dims> DimsAttr(const Attrs& attrs) {
  Dims dims = attrs.Ints("dims");
  MT_RETURN_IF_ERROR(CheckSize(dims));
  return dims;
}

Status CheckAxis(int64_t axis, int rank) {
  if (axis >= 0 && axis < rank) return OkStatus();
  return InvalidArgument("expected an axis in [-" + std::to_string(rank) + ", " +
                         std::to_string(rank) + "), got: " + std::to_string(axis));
}

std::string IntsText(const std::vector<int64_t>& items) { return AttrText(items); }

Status CheckAccepts(const TensorType& type, Accepts accepts) {
  switch (accepts) {
    case Accepts::kFloat:
      if (mesh::IsFloat(type.dtype)) return OkStatus();
      return InvalidArgument("expected f32, f64, bf16 or f16, got: " + type.ToString());
    case Accepts::kNumber:
      if (type.dtype != DType::kBool) return OkStatus();
      return InvalidArgument("expected numbers, got: " + type.ToString());
    case Accepts::kBool:
      if (type.dtype == DType::kBool) return OkStatus();
      return InvalidArgument("expected bool, got: " + type.ToString());
    case Accepts::kAny:
      break;
  }
  return OkStatus();
}

std::string TypesText(std::span<const TensorType> types) {
  std::string text;
  for (size_t i = 0; i < types.size(); ++i) {
    text += (i == 0 ? "" : i + 1 == types.size() ? " and " : ", ") + types[i].ToString();
  }
  return text;
}

Status CheckOneDType(std::span<const TensorType> types) {
  for (const TensorType& t : types) {
    if (t.dtype != types[0].dtype) {
      return InvalidArgument("expected operands of one dtype, got: " + TypesText(types));
    }
  }
  return OkStatus();
}

Result<Dims> BroadcastDims(std::span<const TensorType> types) {
  Dims dims;
  for (const TensorType& t : types) {
    if (t.dims.size() > dims.size()) dims.insert(dims.begin(), t.dims.size() - dims.size(), 1);
    for (size_t k = 1; k <= t.dims.size(); ++k) {
      int64_t& have = dims[dims.size() - k];
      const int64_t d = t.dims[t.dims.size() - k];
      if (have == 1) {
        have = d;
      } else if (d != 1 && d != have) {
        return InvalidArgument("expected shapes that broadcast, got: " + TypesText(types));
      }
    }
  }
  MT_RETURN_IF_ERROR(CheckSize(dims));
  return dims;
}

TableMaker::TableMaker(const OpCall& call, std::span<const TensorType> results) {
  for (const TensorType& t : call.operands) table_.operands.emplace_back(t.dims.size());
  for (const TensorType& t : results) table_.results.emplace_back(t.dims.size());
}

int TableMaker::Add(int64_t size, FactorKind kind) {
  if (size == 1) return -1;
  table_.factors.push_back({size, kind});
  return static_cast<int>(table_.factors.size()) - 1;
}

void TableMaker::OnOperand(size_t operand, size_t dim, int factor) {
  if (factor >= 0) table_.operands[operand][dim].push_back(factor);
}

void TableMaker::OnResult(size_t result, size_t dim, int factor) {
  if (factor >= 0) table_.results[result][dim].push_back(factor);
}

int TableMaker::AddWindow(const SlidingWindow& window) {
  table_.windows.push_back(window);
  return static_cast<int>(table_.windows.size()) - 1;
}

void TableMaker::OnWindow(const WindowedDim& dim) {
  auto& tensors = dim.result ? table_.results : table_.operands;
  tensors[dim.tensor][dim.dim].push_back(table_.windows[dim.window].factor);
  table_.windowed.push_back(dim);
}

void TableMaker::OnPlace(const PlacedDim& dim) {
  const auto& tensors = dim.result ? table_.results : table_.operands;
  if (!tensors[dim.tensor][dim.dim].empty()) table_.placed.push_back(dim);
}

FactorTable AlignedTable(const OpCall& call, std::span<const TensorType> results, int whole_last) {
  TableMaker table(call, results);
  const Dims& dims = results[0].dims;
  for (size_t d = 0; d < dims.size(); ++d) {
    const size_t from_end = dims.size() - d;
    const int factor =
        table.Add(dims[d], from_end <= static_cast<size_t>(whole_last) ? FactorKind::kWhole
                                                                       : FactorKind::kMap);
    table.OnResult(0, d, factor);
    for (size_t i = 0; i < call.operands.size(); ++i) {
      const Dims& operand = call.operands[i].dims;
      if (operand.size() < from_end) continue;
      const size_t at = operand.size() - from_end;
      if (operand[at] == dims[d]) table.OnOperand(i, at, factor);
    }
  }
  return table.Take();
}

FactorTable BroadcastTable(const OpCall& call, std::span<const TensorType> results) {
  return AlignedTable(call, results);
}

Cost ElementCost(const OpCall& call, std::span<const TensorType> results, double per_element) {
  Cost cost;
  int64_t elements = 0;
  const auto add = [&](const TensorType& t) {
    cost.bytes += static_cast<double>(t.num_bytes());
    elements = std::max(elements, t.num_elements());
  };
  for (const TensorType& t : call.operands) add(t);
  for (const TensorType& t : results) add(t);
  cost.flops = per_element * static_cast<double>(elements);
  return cost;
}

TensorType TypeOf(const Operand& operand) {
  if (const Variable* variable = operand.variable(); variable != nullptr && variable->valid()) {
    const Operand operands[] = {operand};
    return {Builder::Of(operands).TypeRead(*variable), variable->type().dims};
  }
  if (operand.value() != nullptr) return operand.value()->type();
  return {DType::kF32, {}};
}

Value ValueOf(const Operand& operand) {
  const Operand operands[] = {operand};
  return Builder::Of(operands).Resolve(operand);
}

Value Record(std::string_view kind, std::vector<Operand> operands, Attrs attrs) {
  Builder& builder = Builder::Of(operands);
  return builder.Append1(kind, std::move(operands), std::move(attrs));
}

int64_t FromStart(int64_t axis, int rank) { return axis < 0 && axis >= -rank ? axis + rank : axis; }

Value SumTo(Value g, const Dims& dims) {
  if (!g.valid() || g.dims() == dims) return g;
  const Dims from = g.dims();
  const size_t extra = from.size() - dims.size();
  std::vector<int64_t> axes;
  for (size_t d = 0; d < from.size(); ++d) {
    if (d < extra || (dims[d - extra] == 1 && from[d] != 1)) {
      axes.push_back(static_cast<int64_t>(d));
    }
  }
  const Value sum = axes.empty() ? g : ReduceSum(g, axes);
  return sum.dims() == dims ? sum : Reshape(sum, dims);
}

}  // namespace meshtrain::program::ops
