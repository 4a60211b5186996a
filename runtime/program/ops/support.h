// What the registry's rows share: checks of attributes and types, factor tables, gradients. Private
// to ops/.
#pragma once

#include <initializer_list>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/program/builder.h"
#include "runtime/program/registry.h"

namespace meshtrain::program::ops {

using Types = std::vector<TensorType>;
using Span = std::span<const Value>;

// --- attributes

// In the order of Attr's alternatives.
enum class AttrKind : uint8_t { kBool, kInt, kDouble, kText, kInts, kDoubles };

struct AttrRule {
  std::string_view name;
  AttrKind kind;
  bool required = true;
};

// Every attribute is one of `rules` and of its kind, and the required ones are there; after that
// the getters of Attrs cannot fail. What the partitioner adds (`global_dims`, `layout`) is always
// welcome.
Status CheckAttrs(const Attrs& attrs, std::initializer_list<AttrRule> rules);
// The attribute `dtype`, f32 when it is absent.
Result<DType> DTypeAttr(const Attrs& attrs);
std::string DTypeText(DType dtype);
// The number is one of `dtype`, so that no backend has to round, wrap or saturate it.
Status CheckNumber(double number, DType dtype);
// No dimension is negative, and the bytes of such a tensor can be counted.
Status CheckSize(const Dims& dims);
// The attribute `dims`, checked so.
Result<Dims> DimsAttr(const Attrs& attrs);
// `axis` counts from 0 and lies in [0, rank).
Status CheckAxis(int64_t axis, int rank);
std::string IntsText(const std::vector<int64_t>& items);  // "[1,2]"

// --- types

enum class Accepts : uint8_t { kFloat, kNumber, kBool, kAny };  // kNumber: everything but bool
Status CheckAccepts(const TensorType& type, Accepts accepts);
std::string TypesText(std::span<const TensorType> types);  // "f32[2] and i32[3]"
// Errors: "expected operands of one dtype, got: ...".
Status CheckOneDType(std::span<const TensorType> types);
// NumPy's rule. Errors: "expected shapes that broadcast, got: ...".
Result<Dims> BroadcastDims(std::span<const TensorType> types);

// --- factor tables

// Starts with an empty list for every dimension of every operand and result.
class TableMaker {
 public:
  TableMaker(const OpCall& call, std::span<const TensorType> results);
  // A new factor, or -1 for size 1, which moves with nothing.
  int Add(int64_t size, FactorKind kind);
  // Appends a factor to a dimension; -1 appends nothing.
  void OnOperand(size_t operand, size_t dim, int factor);
  void OnResult(size_t result, size_t dim, int factor);
  // The window's number; its factor is there.
  int AddWindow(const SlidingWindow& window);
  // A dimension that moves with the window's factor through it.
  void OnWindow(const WindowedDim& dim);
  // A dimension, of one factor, that numbers count along; of size 1 it is nowhere else.
  void OnPlace(const PlacedDim& dim);
  FactorTable Take() { return std::move(table_); }

 private:
  FactorTable table_;
};

// One factor per dimension of result 0, and operands aligned with it at the end, as broadcasting
// does: a dimension that an operand lacks or holds once has no factor there. Dimensions from the
// end by `whole_last` are kWhole.
FactorTable AlignedTable(const OpCall& call, std::span<const TensorType> results,
                         int whole_last = 0);
// The same, as a row's `factors`.
FactorTable BroadcastTable(const OpCall& call, std::span<const TensorType> results);

// --- cost

// `per_element` operations for each element of the largest of operands and results.
Cost ElementCost(const OpCall& call, std::span<const TensorType> results, double per_element);
template <int kFlops>
Cost CostPerElement(const OpCall& call, std::span<const TensorType> results) {
  return ElementCost(call, results, kFlops);
}

// --- recording

// The type that an operand will have where an op reads it; f32[] for a number.
TensorType TypeOf(const Operand& operand);
// What such an op reads.
Value ValueOf(const Operand& operand);
Value Record(std::string_view kind, std::vector<Operand> operands, Attrs attrs = {});
// `axis` counted from the end when it is negative. What is out of range stays so, for infer to
// name.
int64_t FromStart(int64_t axis, int rank);

// --- gradients

// Undoes broadcasting: sums `g` over the dimensions in which `dims` was stretched.
Value SumTo(Value g, const Dims& dims);

// Gradients as small functions: UnaryGradient<[](Value x, Value y, Value g) { return g * y; }>.
template <auto kFunction>
std::vector<Value> UnaryGradient(Builder&, const Op&, Span operands, Span results,
                                 Span cotangents) {
  return {kFunction(operands[0], results[0], cotangents[0])};
}
struct Pair {
  Value a, b;
};
// ... of two operands that were broadcast: what the function gives is summed back to their shapes.
template <auto kFunction>
std::vector<Value> BinaryGradient(Builder&, const Op&, Span operands, Span results,
                                  Span cotangents) {
  const Pair g = kFunction(operands[0], operands[1], results[0], cotangents[0]);
  return {SumTo(g.a, operands[0].dims()), SumTo(g.b, operands[1].dims())};
}

}  // namespace meshtrain::program::ops
