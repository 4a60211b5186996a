// Which examples are positive and which are said to be: what precision, recall and areas under
// curves count. All record ops; mistakes are the builder's.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "runtime/program/ops.h"
#include "runtime/train/loss.h"

namespace meshtrain::train {

// Of every example, and of every position or feature of it.
struct Judged {
  Value positive;     // bool: what the labels say
  Value probability;  // f64: of being positive, by the predictions
  Value said;         // bool: that the class is predicted by the largest number; none: no class
};
// `class_id`: the class that is positive, of a loss of classes of which one is right; nothing:
// labels and predictions are of 0 and 1. `metric`: what errors call it. Nothing valid after a
// mistake.
Judged Judge(const std::string& metric, std::optional<int64_t> class_id, const Value& labels,
             const Value& predictions, const Loss& loss);

// How many examples each number from 0 to `bins` - 1 has, f64[bins]; exact up to 2^53. `numbers`:
// of a float type, whole; NaN everywhere where one of them is NaN.
Value CountEach(const Value& numbers, int64_t bins);

}  // namespace meshtrain::train
