// Boxes inside row-major tensors, as runs of bytes. Pure.
#pragma once

#include <cstdint>
#include <vector>

#include "runtime/mesh/shape.h"

namespace meshtrain::checkpoint {

// The part [offsets, offsets + sizes) of a larger tensor.
struct Box {
  mesh::Dims offsets;
  mesh::Dims sizes;
  int64_t num_elements() const { return mesh::NumElements(sizes); }
  friend bool operator==(const Box&, const Box&) = default;
};

// What both hold; zero elements when nothing.
Box Intersection(const Box& a, const Box& b);
// True when 0 <= offsets and offsets + sizes <= dims, rank for rank.
bool IsInside(const Box& box, const mesh::Dims& dims);

// `bytes` bytes, `from` bytes into one tensor and `to` bytes into the other.
struct Run {
  int64_t from = 0;
  int64_t to = 0;
  int64_t bytes = 0;
  friend bool operator==(const Run&, const Run&) = default;
};

// How to copy what boxes `from` and `to` share, from a row-major tensor that holds exactly `from`
// into one that holds exactly `to`. The longest runs contiguous in both, by rising `from` and `to`.
// from [0,0]+[4,6], to [1,2]+[2,3], 4 bytes an element -> {32, 0, 12}, {56, 12, 12}
std::vector<Run> CopyRuns(const Box& from, const Box& to, int64_t element_bytes);

}  // namespace meshtrain::checkpoint
