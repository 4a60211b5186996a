// A slow evaluator in double precision, written from the ops' definitions and from nothing of the
// runtime: what rows say (linearity, factors, gradients) is checked against it.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "runtime/program/program.h"

namespace meshtrain::program {

struct Array {
  Dims dims;
  std::vector<double> v;  // row-major; bools are 0 and 1
};

// One op of one result. Dies on kinds it does not know (random numbers, collectives).
Array EvaluateOp(const std::string& kind, const Attrs& attrs, const std::vector<Array>& operands,
                 const TensorType& result);

// The outputs of a program, by name.
std::map<std::string, Array> Evaluate(const Program& program,
                                      const std::map<std::string, Array>& inputs);

// The elements whose indices lie in [starts, starts + sizes).
Array Block(const Array& a, const Dims& starts, const Dims& sizes);

}  // namespace meshtrain::program
