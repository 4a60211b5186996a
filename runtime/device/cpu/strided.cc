#include "runtime/device/cpu/strided.h"

#include <algorithm>
#include <cstring>

namespace meshtrain::device::cpu {
namespace {

template <typename T>
void CopyRow(const std::byte* from, int64_t from_stride, std::byte* to, int64_t to_stride,
             int64_t n) {
  for (int64_t i = 0; i < n; ++i) {
    T element;
    std::memcpy(&element, from + i * from_stride, sizeof element);
    std::memcpy(to + i * to_stride, &element, sizeof element);
  }
}

}  // namespace

StridedCopy::StridedCopy(const mesh::Dims& sizes, const mesh::Dims& from_strides,
                         int64_t from_offset, const mesh::Dims& to_strides, int64_t to_offset,
                         int64_t width)
    : from_offset_(from_offset * width), to_offset_(to_offset * width), width_(width) {
  for (size_t d = 0; d < sizes.size(); ++d) {
    if (sizes[d] == 1) continue;
    const int64_t from = from_strides[d] * width, to = to_strides[d] * width;
    if (!sizes_.empty() && from_strides_.back() == from * sizes[d] &&
        to_strides_.back() == to * sizes[d]) {
      sizes_.back() *= sizes[d];
      from_strides_.back() = from;
      to_strides_.back() = to;
    } else {
      sizes_.push_back(sizes[d]);
      from_strides_.push_back(from);
      to_strides_.push_back(to);
    }
  }
  if (sizes_.empty()) {
    sizes_ = {1};
    from_strides_ = to_strides_ = {width};
  }
  rows_ = 1;
  for (size_t d = 0; d + 1 < sizes_.size(); ++d) rows_ *= sizes_[d];
  if (sizes_.back() == 0) rows_ = 0;
}

void StridedCopy::Run(const Frame& frame, const std::byte* from, std::byte* to) const {
  if (rows_ == 0) return;
  from += from_offset_;
  to += to_offset_;
  if (rows_ == 1 && from_strides_[0] == width_ && to_strides_[0] == width_) {
    frame.For(sizes_[0] * width_, kGrain * 8, [&](int64_t begin, int64_t end) {
      std::memcpy(to + begin, from + begin, end - begin);
    });
    return;
  }
  const int64_t grain = std::max<int64_t>(1, kGrain / sizes_.back());
  frame.For(rows_, grain, [&](int64_t begin, int64_t end) { Rows(from, to, begin, end); });
}

void StridedCopy::Rows(const std::byte* from, std::byte* to, int64_t begin, int64_t end) const {
  const size_t inner = sizes_.size() - 1;
  for (int64_t row = begin; row < end; ++row) {
    int64_t rest = row, f = 0, t = 0;
    for (size_t d = inner; d-- > 0;) {
      const int64_t i = rest % sizes_[d];
      rest /= sizes_[d];
      f += i * from_strides_[d];
      t += i * to_strides_[d];
    }
    const int64_t n = sizes_[inner], fs = from_strides_[inner], ts = to_strides_[inner];
    if (fs == width_ && ts == width_) {
      std::memcpy(to + t, from + f, n * width_);
    } else if (width_ == 4) {
      CopyRow<uint32_t>(from + f, fs, to + t, ts, n);
    } else if (width_ == 8) {
      CopyRow<uint64_t>(from + f, fs, to + t, ts, n);
    } else if (width_ == 2) {
      CopyRow<uint16_t>(from + f, fs, to + t, ts, n);
    } else {
      CopyRow<uint8_t>(from + f, fs, to + t, ts, n);
    }
  }
}

}  // namespace meshtrain::device::cpu
