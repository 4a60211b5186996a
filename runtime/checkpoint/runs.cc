#include "runtime/checkpoint/runs.h"

#include <algorithm>

#include "runtime/base/check.h"

namespace meshtrain::checkpoint {

using mesh::Dims;

Box Intersection(const Box& a, const Box& b) {
  MT_CHECK(a.offsets.size() == b.offsets.size());
  Box out;
  for (size_t d = 0; d < a.offsets.size(); ++d) {
    const int64_t begin = std::max(a.offsets[d], b.offsets[d]);
    const int64_t end = std::min(a.offsets[d] + a.sizes[d], b.offsets[d] + b.sizes[d]);
    out.offsets.push_back(begin);
    out.sizes.push_back(std::max<int64_t>(0, end - begin));
  }
  return out;
}

bool IsInside(const Box& box, const Dims& dims) {
  if (box.offsets.size() != dims.size() || box.sizes.size() != dims.size()) return false;
  for (size_t d = 0; d < dims.size(); ++d) {
    if (box.offsets[d] < 0 || box.sizes[d] < 0 || box.offsets[d] > dims[d] - box.sizes[d]) {
      return false;
    }
  }
  return true;
}

std::vector<Run> CopyRuns(const Box& from, const Box& to, int64_t element_bytes) {
  const Box shared = Intersection(from, to);
  std::vector<Run> runs;
  if (shared.num_elements() == 0) return runs;
  const Dims from_strides = mesh::Strides(from.sizes);
  const Dims to_strides = mesh::Strides(to.sizes);
  // Trailing dimensions that are whole in both, and the one before them, make one run.
  size_t inner = shared.sizes.size();
  int64_t length = 1;
  while (inner > 0) {
    --inner;
    length *= shared.sizes[inner];
    if (shared.sizes[inner] != from.sizes[inner] || shared.sizes[inner] != to.sizes[inner]) break;
  }
  Dims index(shared.sizes.size(), 0);
  for (;;) {
    Run run{0, 0, length * element_bytes};
    for (size_t d = 0; d < index.size(); ++d) {
      const int64_t at = shared.offsets[d] + index[d];
      run.from += (at - from.offsets[d]) * from_strides[d] * element_bytes;
      run.to += (at - to.offsets[d]) * to_strides[d] * element_bytes;
    }
    runs.push_back(run);
    size_t d = inner;
    for (;; --d) {
      if (d == 0) return runs;
      if (++index[d - 1] < shared.sizes[d - 1]) break;
      index[d - 1] = 0;
    }
  }
}

}  // namespace meshtrain::checkpoint
