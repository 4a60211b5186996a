// One row and more for every op: how it is called, what it gives, and how its dimensions move.
#pragma once

#include <ostream>
#include <string>
#include <vector>

#include "runtime/program/program.h"
#include "tests/runtime/program/reference.h"

namespace meshtrain::program {

struct OpCase {
  std::string kind;
  std::vector<std::string> operands;
  Attrs attrs;
  std::string result;
  // Factors, then the factors of each dimension of operands and results: "8map 4sum 16map: [0,1]
  // [1,2] -> [0,2]";
  // "-" for a dimension that moves with nothing, "0.1" for two factors.
  std::string factors;
  // Operands are drawn from [0.3, 1.7] instead of [-1, 1].
  bool positive = false;

  std::vector<TensorType> types() const;
};

std::vector<OpCase> OpCases();
inline void PrintTo(const OpCase& c, std::ostream* out) { *out << c.kind; }

// Operands for a case: numbers in its range, bools, labels below 3.
std::vector<Array> DrawOperands(const OpCase& c, uint64_t seed);

}  // namespace meshtrain::program
