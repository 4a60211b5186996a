#include "runtime/mesh/tensor.h"

#include <new>

#include "runtime/base/check.h"
#include "runtime/mesh/element_type.h"

namespace meshtrain::mesh {
namespace {

constexpr size_t kAlignment = 64;

// Calls copy(offset in whole, offset in block, bytes) for each run of `sizes` that is contiguous in
// both.
template <typename Copy>
void ForEachRun(const TensorType& whole, const Dims& offsets, const Dims& sizes, Copy copy) {
  const int rank = whole.rank();
  MT_CHECK(static_cast<int>(offsets.size()) == rank && static_cast<int>(sizes.size()) == rank);
  for (int d = 0; d < rank; ++d) {
    MT_CHECK(offsets[d] >= 0 && sizes[d] >= 0 && offsets[d] + sizes[d] <= whole.dims[d]);
  }
  if (NumElements(sizes) == 0) return;
  const int64_t item = DTypeBytes(whole.dtype);
  const Dims strides = Strides(whole.dims);
  // Trailing dimensions taken whole, and the first one before them, make one run.
  int inner = rank;
  int64_t run = 1;
  while (inner > 0) {
    --inner;
    run *= sizes[inner];
    if (sizes[inner] != whole.dims[inner]) break;
  }
  Dims index(sizes.size(), 0);
  int64_t block_offset = 0;
  for (;;) {
    int64_t whole_offset = 0;
    for (int d = 0; d < rank; ++d) whole_offset += (offsets[d] + index[d]) * strides[d];
    copy(whole_offset * item, block_offset * item, run * item);
    block_offset += run;
    int d = inner - 1;
    for (; d >= 0; --d) {
      if (++index[d] < sizes[d]) break;
      index[d] = 0;
    }
    if (d < 0) return;
  }
}

}  // namespace

void Tensor::Expect(bool true_of_the_caller) { MT_CHECK(true_of_the_caller); }

Tensor::Tensor(TensorType type) : type_(std::move(type)) {
  const size_t bytes =
      (static_cast<size_t>(type_.num_bytes()) + kAlignment - 1) / kAlignment * kAlignment;
  // By `new`, whose handler says that there is no memory (base/out_of_memory.h).
  constexpr std::align_val_t kAlign{kAlignment};
  auto* p = static_cast<std::byte*>(::operator new(bytes == 0 ? kAlignment : bytes, kAlign));
  data_ = std::shared_ptr<std::byte>(p, [](std::byte* q) { ::operator delete(q, kAlign); });
}

double Tensor::Item() const {
  MT_CHECK(type_.num_elements() == 1);
  return WithElementType(
      type_.dtype, [&](auto zero) { return static_cast<double>(values<decltype(zero)>()[0]); });
}

Tensor Tensor::Slice(const Dims& offsets, const Dims& sizes) const {
  Tensor block(TensorType{type_.dtype, sizes});
  ForEachRun(type_, offsets, sizes, [&](int64_t from, int64_t to, int64_t n) {
    std::memcpy(block.data_.get() + to, data_.get() + from, static_cast<size_t>(n));
  });
  return block;
}

void Tensor::Paste(const Tensor& block, const Dims& offsets) {
  MT_CHECK(block.type().dtype == type_.dtype);
  ForEachRun(type_, offsets, block.dims(), [&](int64_t to, int64_t from, int64_t n) {
    std::memcpy(data_.get() + to, block.data_.get() + from, static_cast<size_t>(n));
  });
}

namespace {

// By the bits: an exponent of ones only.
template <typename Bits>
int64_t CountExponent(std::span<const std::byte> bytes, Bits ones) {
  int64_t count = 0;
  for (size_t at = 0; at < bytes.size(); at += sizeof(Bits)) {
    Bits bits;
    std::memcpy(&bits, bytes.data() + at, sizeof bits);
    count += (bits & ones) == ones ? 1 : 0;
  }
  return count;
}

}  // namespace

int64_t CountNotFinite(const Tensor& tensor) {
  switch (tensor.type().dtype) {
    case DType::kF32:
      return CountExponent(tensor.bytes(), uint32_t{0x7f800000});
    case DType::kF64:
      return CountExponent(tensor.bytes(), uint64_t{0x7ff0000000000000});
    case DType::kBF16:
      return CountExponent(tensor.bytes(), uint16_t{0x7f80});
    case DType::kF16:
      return CountExponent(tensor.bytes(), uint16_t{0x7c00});
    default:
      return 0;
  }
}

}  // namespace meshtrain::mesh
