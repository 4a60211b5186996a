// Einstein's sums of one or two operands, as transposes and one matrix product.
#include <algorithm>
#include <map>

#include "runtime/program/ops.h"
#include "runtime/program/ops/support.h"

namespace meshtrain::program {
namespace {

using namespace ops;  // NOLINT: the families' own helpers

bool Has(const std::string& labels, char label) { return labels.find(label) != std::string::npos; }

// "bij,bjk->bik": what each operand's dimensions are called, and the result's.
struct Equation {
  std::vector<std::string> operands;
  std::string result;
};

Result<Equation> Parse(const std::string& text, size_t operands) {
  const auto bad = [&](const std::string& why) {
    return InvalidArgument("expected an equation like `ij,jk->ik`, " + why + ", got: `" + text +
                           "`");
  };
  Equation e;
  const size_t arrow = text.find("->");
  if (arrow == std::string::npos) return bad("with `->`");
  e.operands.emplace_back();
  for (const char c : text.substr(0, arrow)) {
    if (c == ',') {
      e.operands.emplace_back();
    } else if (c != ' ') {
      e.operands.back() += c;
    }
  }
  for (const char c : text.substr(arrow + 2)) {
    if (c != ' ') e.result += c;
  }
  if (e.operands.size() != operands) {
    return bad("for " + std::to_string(operands) + (operands == 1 ? " operand" : " operands"));
  }
  std::vector<std::string> all = e.operands;
  all.push_back(e.result);
  for (const std::string& labels : all) {
    for (size_t i = 0; i < labels.size(); ++i) {
      const bool letter =
          (labels[i] >= 'a' && labels[i] <= 'z') || (labels[i] >= 'A' && labels[i] <= 'Z');
      if (!letter) return bad("of letters");
      if (labels.find(labels[i], i + 1) != std::string::npos) {
        return bad("each letter once in an operand");
      }
    }
  }
  for (const char c : e.result) {
    const bool known = std::any_of(e.operands.begin(), e.operands.end(),
                                   [&](const std::string& labels) { return Has(labels, c); });
    if (!known) return bad("whose result takes letters of the operands");
  }
  return e;
}

// The size of each letter.
Result<std::map<char, int64_t>> SizesOf(const Equation& e, const std::vector<TensorType>& types) {
  std::map<char, int64_t> sizes;
  for (size_t i = 0; i < types.size(); ++i) {
    if (types[i].dims.size() != e.operands[i].size()) {
      return InvalidArgument("expected an operand of " + std::to_string(e.operands[i].size()) +
                             " dimensions for `" + e.operands[i] +
                             "`, got: " + types[i].ToString());
    }
    for (size_t d = 0; d < types[i].dims.size(); ++d) {
      const auto [it, is_new] = sizes.emplace(e.operands[i][d], types[i].dims[d]);
      if (is_new || it->second == types[i].dims[d]) continue;
      return InvalidArgument("expected one size for `" + std::string(1, e.operands[i][d]) +
                             "`, got: " + TypesText(types));
    }
  }
  return sizes;
}

// `v`, of dimensions `from`, with its dimensions in the order `to`.
Value Ordered(Value v, const std::string& from, const std::string& to) {
  if (from == to) return v;
  std::vector<int64_t> permutation;
  for (const char c : to) permutation.push_back(static_cast<int64_t>(from.find(c)));
  return Transpose(v, permutation);
}

// Without the dimensions that `keeps` refuses: summed.
template <typename Keeps>
Value Summed(Value v, std::string* labels, const Keeps& keeps) {
  std::vector<int64_t> axes;
  std::string left;
  for (size_t d = 0; d < labels->size(); ++d) {
    if (keeps((*labels)[d])) {
      left += (*labels)[d];
    } else {
      axes.push_back(static_cast<int64_t>(d));
    }
  }
  *labels = left;
  return axes.empty() ? v : ReduceSum(v, axes);
}

}  // namespace

Value Einsum(const std::string& equation, const std::vector<Operand>& operands) {
  Builder& b = Builder::Of(operands);
  const auto fail = [&](const Status& error) {
    b.Fail(error.At("einsum"),
           operands.empty() ? std::source_location::current() : operands[0].where());
    return Value(&b, kNoValue);
  };
  if (operands.empty() || operands.size() > 2) {
    return fail(
        InvalidArgument("expected one or two operands, got: " + std::to_string(operands.size())));
  }
  auto parsed = Parse(equation, operands.size());
  if (!parsed.ok()) return fail(parsed.status());
  Equation e = *std::move(parsed);
  std::vector<TensorType> types;
  std::vector<Value> values;
  for (const Operand& operand : operands) {
    types.push_back(TypeOf(operand));
    // A variable's newest value; a number has no dimensions to name.
    values.push_back(operand.variable() != nullptr ? b.Read(*operand.variable())
                     : operand.value() != nullptr  ? *operand.value()
                                                   : Value(&b, kNoValue));
    if (operand.is_number() || !b.status().ok()) {
      return fail(InvalidArgument("expected values with dimensions, got: a number"));
    }
  }
  const auto sizes_of = SizesOf(e, types);
  if (!sizes_of.ok()) return fail(sizes_of.status());
  std::map<char, int64_t> sizes = *sizes_of;

  if (values.size() == 1) {
    const Value v = Summed(values[0], &e.operands[0], [&](char c) { return Has(e.result, c); });
    return Ordered(v, e.operands[0], e.result);
  }
  // What one operand alone has and the result lacks is summed first.
  for (const int i : {0, 1}) {
    const std::string other = e.operands[1 - i];
    values[i] = Summed(values[i], &e.operands[i],
                       [&](char c) { return Has(e.result, c) || Has(other, c); });
  }
  std::string batch, left, summed, right;
  for (const char c : e.operands[0]) {
    (!Has(e.operands[1], c) ? left : Has(e.result, c) ? batch : summed) += c;
  }
  for (const char c : e.operands[1]) {
    if (!Has(e.operands[0], c)) right += c;
  }
  const auto product = [&](const std::string& labels) {
    int64_t size = 1;
    for (const char c : labels) size *= sizes[c];
    return size;
  };
  const auto dims_of = [&](const std::string& labels) {
    Dims dims;
    for (const char c : labels) dims.push_back(sizes[c]);
    return dims;
  };
  Dims lead = dims_of(batch);
  const auto matrices = [&](Value v, const std::string& from, const std::string& rows,
                            const std::string& columns) {
    Dims dims = lead;
    dims.push_back(product(rows));
    dims.push_back(product(columns));
    const Value ordered = Ordered(v, from, batch + rows + columns);
    return ordered.dims() == dims ? ordered : Reshape(ordered, dims);
  };
  const Value y = MatMul(matrices(values[0], e.operands[0], left, summed),
                         matrices(values[1], e.operands[1], summed, right));
  const std::string made = batch + left + right;
  const Dims dims = dims_of(made);
  return Ordered(y.dims() == dims ? y : Reshape(y, dims), made, e.result);
}

}  // namespace meshtrain::program
