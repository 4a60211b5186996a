// The table of ops that all table tests share: one row and more for every op, how it is called,
// what it gives, and how its dimensions move. A new op is a row here, and each of these tests it:
//   tests/runtime/program   types and errors, linearity, factors, gradients
//   tests/contract/prover   every split and layout, by the interpreter and on the CPU; some of them
//                           in every type that the op takes
//   tests/contract/backend  each backend (backend_ops.cc) in types of floats; cpu and discrete in
//                           every type that the op takes
//   tests/support           the interpreter's bounds
#pragma once

#include <gtest/gtest.h>

#include <ostream>
#include <string>
#include <vector>

#include "runtime/program/builder.h"
#include "tests/support/interpreter/interpreter.h"

namespace meshtrain::program {

// Which numbers floating-point operands are drawn from: [-1, 1], [0.3, 1.7], [-1.7, -0.3],
// [-400, 400].
enum class Draw : uint8_t { kAny, kPositive, kNegative, kWide };

struct OpCase {
  std::string kind;
  std::vector<std::string> operands;
  Attrs attrs;
  std::string result;  // empty in a row: what the registry infers
  // Factors, then the factors of each dimension of operands and results: "8map 4sum 16map: [0,1]
  // [1,2] -> [0,2]";
  // "-" for a dimension that moves with nothing, "0.1" for two factors. Empty: not compared.
  std::string factors;
  Draw draw = Draw::kAny;
  std::string note;    // what is special
  bool twice = false;  // both operands are the same value
  // Operands of integers that are data, not labels: drawn from all of their type.
  std::vector<int> whole = {};

  std::vector<TensorType> types() const;
  // "operand 0 of f32", "operand 1 of i64", "result of f32".
  std::vector<std::string> element_types() const;
  std::string name() const { return note.empty() ? kind : kind + ", " + note; }
};

std::vector<OpCase> OpCases();        // of every op
std::vector<OpCase> UnevenOpCases();  // some of them: those of op_cases_uneven.cc
std::vector<OpCase> WindowOpCases();  // likewise: those of op_cases_windows.cc
std::vector<OpCase> OrderOpCases();   // likewise: those of op_cases_order.cc

// The row in each element type that its op takes: operands that share a type change together, and
// apart from the others; what the attribute `dtype` says changes by itself.
std::vector<OpCase> InEveryType(const OpCase& row);
// Of these rows, twins in each type of operands and results that their ops take and that no row
// has.
std::vector<OpCase> MissingTypes(const std::vector<OpCase>& rows);
// From every type to every other, of numbers that some cannot hold.
std::vector<OpCase> CastCases();

inline void PrintTo(const OpCase& c, std::ostream* out) { *out << c.name(); }
// Of the tests over a table of them: "matmul_12".
inline std::string OpCaseName(const ::testing::TestParamInfo<OpCase>& info) {
  return info.param.kind + "_" + std::to_string(info.index);
}

// Operands for a case: numbers in its range, bools, labels below 3; whole numbers of data from both
// ends of their type, and small ones. On the grid: multiples of 1/64 up to 2, so that sums of them
// are exact, and whole numbers up to 3.
std::vector<testing::Array> DrawOperands(const OpCase& c, uint64_t seed, bool on_grid = false);

// Records inputs `prefix`0, `prefix`1, ... and the case's op on them, and gives its result;
// `inputs` gets them.
Value RecordCase(const OpCase& c, Builder& b, std::vector<Value>* inputs,
                 const std::string& prefix = "x");

// The case's op on such operands, in real numbers; `attrs` and `result` may be a shard's. An op
// that the interpreter cannot compute on one device (collectives) ends the program.
testing::Array EvaluateCase(const OpCase& c, const Attrs& attrs,
                            const std::vector<testing::Array>& operands, const TensorType& result);

}  // namespace meshtrain::program
