// What a value of a program may be at most, so that no pass after it has to ask.
#pragma once

#include <cstdint>

#include "runtime/base/status.h"
#include "runtime/mesh/shape.h"

namespace meshtrain::program {

inline constexpr int kMaxRank = 32;
// Bytes of a value. Sums of all values' bytes, padding included, stay within an int64_t.
inline constexpr int64_t kMaxBytes = int64_t{1} << 50;

// Errors: kInvalidArgument for a negative dimension, for more than kMaxRank dimensions, and for
// more than kMaxBytes.
Status CheckLimits(const mesh::TensorType& type);

}  // namespace meshtrain::program
