// Copies between blocks of two dense tensors.
#pragma once

#include <cstddef>
#include <cstdint>

#include "runtime/device/cpu/kernel.h"
#include "runtime/mesh/shape.h"

namespace meshtrain::device::cpu {

// Element (i0, i1, ...) of `sizes` goes from from[offset + sum i_d stride_d] to to[...].
// Neighbouring dimensions that lie next to each other on both sides are joined when it is made.
class StridedCopy {
 public:
  StridedCopy() = default;
  StridedCopy(const mesh::Dims& sizes, const mesh::Dims& from_strides, int64_t from_offset,
              const mesh::Dims& to_strides, int64_t to_offset, int64_t width);
  void Run(const Frame& frame, const std::byte* from, std::byte* to) const;

 private:
  void Rows(const std::byte* from, std::byte* to, int64_t begin, int64_t end) const;

  mesh::Dims sizes_, from_strides_, to_strides_;  // bytes; the last one is the inner loop
  int64_t from_offset_ = 0, to_offset_ = 0;       // bytes
  int64_t width_ = 1;
  int64_t rows_ = 0;  // product of all sizes but the last
};

}  // namespace meshtrain::device::cpu
