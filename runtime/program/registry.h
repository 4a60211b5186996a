// The table of operations. Each row says what an op's result is, how its dimensions move together,
// how its gradient is made and what it costs; everything else (propagation, partial sums,
// partitioning, the plan, the proof) derives from the row. A new op is one row here
// (ops/<family>.cc), one kernel per backend, and one row in the table tests.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/status.h"
#include "runtime/program/program.h"

namespace meshtrain::program {

class Value;
class Builder;

// What an op does along one independent index of its computation.
enum class FactorKind : uint8_t {
  kMap,    // result element i needs operand elements i only: may be split freely
  kSum,    // summed away: splitting it leaves a pending sum
  kMax,    // reduced by max: leaves a pending max
  kMin,    // reduced by min: leaves a pending min
  kWhole,  // needs all of it at once (softmax's classes, sort): must not be split
};

struct Factor {
  int64_t size = 1;
  FactorKind kind = FactorKind::kMap;
  friend bool operator==(const Factor&, const Factor&) = default;
};

// Factors of one dimension, slowest first; their sizes multiply to the dimension's. Empty: the
// dimension is of size 1 or is broadcast, and moves with nothing.
using DimFactors = std::vector<int>;

// A window that slides along a dimension: at position o, tap k < size lies on element
// o * stride + k * dilation - low. What lies outside the dimension is padding.
//   size 3, stride 2, low 1 on 6 elements: position 0 sees -1 0 1, position 1 sees 1 2 3, ...
// Positions and elements differ in number, yet they move together: one factor stands for both.
struct SlidingWindow {
  int factor = 0;
  bool counts_elements = false;  // what the factor counts; else positions
  int64_t size = 1, stride = 1, dilation = 1, low = 0;
  int index = 0;  // its entry in the attributes `low` and `high`
};

// A dimension that does not hold its factor's own indices: an operand's is needed wherever the
// windows of a part reach, a result's is left as far as those reach. Its shards are chunks as ever;
// the blocks are cut out of them (sharding/windows.h).
struct WindowedDim {
  int window = 0;         // in FactorTable::windows
  bool elements = false;  // what the dimension counts; else positions
  bool result = false;    // of a result; else of an operand
  int tensor = 0;
  int dim = 0;
  double outside = 0;  // what an operand's block holds outside the dimension
};

// A dimension along which the op counts by itself, by numbers that an operand carries: where its
// factor is split, an op on shards must know where its own begins. The partitioner then records the
// mesh axes that split the dimension in `axes`, and in `size` its elements on all devices together.
// What pads such an operand is never read.
struct PlacedDim {
  bool result = false;  // of a result; else of an operand
  int tensor = 0;
  int dim = 0;
};

// A factor may be split only where it comes first in every dimension that holds it (or after
// factors that are split down to single elements), and only into equal parts where other factors
// follow it: chunks of a dimension are contiguous. Worked example, matmul [8,4]x[4,16]->[8,16]:
// factors {8 map, 4 sum, 16 map}, operands {{0},{1}} {{1},{2}}, results {{0},{2}}. Reshape
// [2,6]->[12]: factors {2 map, 6 map}, operand {{0},{1}}, result {{0,1}}.
struct FactorTable {
  std::vector<Factor> factors;
  std::vector<std::vector<DimFactors>> operands;  // [operand][dimension]
  std::vector<std::vector<DimFactors>> results;   // [result][dimension]
  std::vector<SlidingWindow> windows;
  std::vector<WindowedDim> windowed;  // their factor stands alone in `operands` or `results`
  std::vector<PlacedDim> placed;      // likewise; of one factor

  // Null where the dimension holds its factors' own indices.
  const WindowedDim* Windowed(bool result, int tensor, int dim) const;
};

// How a pending sum may pass from an operand to the results instead of being reduced first.
//   kNone    the op is not linear in this operand: reduce first
//   kAlone   linear in this operand when no other operand is pending (mul, matmul, div's numerator)
//   kJoint   linear in all kJoint operands together: they must be pending alike (add, concat,
//            select's branches)
enum class Linearity : uint8_t { kNone, kAlone, kJoint };

struct Cost {
  double flops = 0;  // floating-point operations
  double bytes = 0;  // read and written once
};

// The shapes and attributes one op is called with.
struct OpCall {
  std::span<const TensorType> operands;
  const Attrs& attrs;
};

struct OpDef {
  std::string kind;
  int min_operands = 0;
  int max_operands = 0;  // -1: any number

  // The results' types. Errors: kInvalidArgument, without the op's name (the builder adds it).
  Result<std::vector<TensorType>> (*infer)(const OpCall& call) = nullptr;

  // `results` are what infer gave.
  FactorTable (*factors)(const OpCall& call, std::span<const TensorType> results) = nullptr;

  // Per operand; a shorter list repeats its last entry; empty: kNone.
  std::vector<Linearity> linearity;
  // Of a row whose types or attributes decide: whether `linearity` holds for this call. Null:
  // always.
  bool (*linear)(const OpCall& call) = nullptr;
  // True when results are the operand's elements moved, not changed (transpose, reshape, slice):
  // any pending reduction passes.
  bool moves_data = false;
  // One result element depends on the operands' elements at the same (broadcast) index only: may be
  // fused.
  bool elementwise = false;
  // The result depends on global indices (iota, random numbers): the partitioner records where a
  // shard stands, in the attributes `global_dims` and `layout`.
  bool index_dependent = false;
  // The result depends on the op's path (random numbers without a seed).
  bool path_dependent = false;

  // Cotangents of the operands, given those of the results (an invalid Value: no cotangent). Null:
  // not differentiable, the op stops gradients. An operand that has no gradient gets an invalid
  // Value.
  std::vector<Value> (*gradient)(Builder& b, const Op& op, std::span<const Value> operands,
                                 std::span<const Value> results,
                                 std::span<const Value> cotangents) = nullptr;

  Cost (*cost)(const OpCall& call,
               std::span<const TensorType> results) = nullptr;  // null: bytes only

  // Of a row with windows: what its attributes become on blocks of entry `index` of them
  // (SlidingWindow::index). Null: `low` and `high` take the blocks' padding.
  void (*on_blocks)(Attrs& attrs, int index) = nullptr;

  // The same results by ops that may be split along the dimensions that this one needs whole;
  // recorded in its stead where a layout splits one of them (Builder::Expanded). Null: there are
  // none, and such a dimension is gathered.
  std::vector<Value> (*expand)(Builder& b, const Op& op, std::span<const Value> operands) = nullptr;

  // Of an element-wise op: what each element is, for the page of operations.
  std::string formula;

  // True for ops between devices, which only partitioned programs hold.
  bool collective = false;
};

// Linearity of operand i of a call.
Linearity LinearityOf(const OpDef& def, const OpCall& call, int operand);
// The op's cost, by its row or by its bytes.
Cost CostOf(const OpDef& def, const OpCall& call, std::span<const TensorType> results);

class Registry {
 public:
  // All rows. Built on first use, never changed afterwards; thread-safe.
  static const Registry& Standard();

  // Null when there is no such op.
  const OpDef* Find(std::string_view kind) const;
  // Errors: kInvalidArgument with the nearest name.
  Result<const OpDef*> Get(std::string_view kind) const;
  // In the order of their names.
  std::vector<const OpDef*> All() const;

  // Used by ops/*.cc while the table is made. A second row of one kind is a broken invariant.
  void Add(OpDef def);

 private:
  std::map<std::string, OpDef, std::less<>> rows_;
};

// Conventions of attributes that the partitioner overwrites with the local ones: `dims` carries the
// result's dimensions; `low` and `high` the padding of windows, an entry for each.

}  // namespace meshtrain::program
