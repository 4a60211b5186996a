// A dense tensor in host memory: what sources read, checkpoints hold and callers feed and fetch.
#pragma once

#include <cstddef>
#include <cstring>
#include <memory>
#include <span>
#include <vector>

#include "runtime/mesh/shape.h"

namespace meshtrain::mesh {

struct BFloat16;  // half.h
struct Float16;

template <typename T>
struct DTypeOf;
template <>
struct DTypeOf<bool> {
  static constexpr DType value = DType::kBool;
};
template <>
struct DTypeOf<uint8_t> {
  static constexpr DType value = DType::kU8;
};
template <>
struct DTypeOf<int32_t> {
  static constexpr DType value = DType::kI32;
};
template <>
struct DTypeOf<int64_t> {
  static constexpr DType value = DType::kI64;
};
template <>
struct DTypeOf<float> {
  static constexpr DType value = DType::kF32;
};
template <>
struct DTypeOf<double> {
  static constexpr DType value = DType::kF64;
};
template <>
struct DTypeOf<BFloat16> {
  static constexpr DType value = DType::kBF16;
};
template <>
struct DTypeOf<Float16> {
  static constexpr DType value = DType::kF16;
};

// Kept true: bytes() is type().num_bytes() long and 64-byte aligned. Copies share the bytes; they
// are written only through mutable_bytes(), by whoever made the tensor, before it is handed on.
class Tensor {
 public:
  Tensor() : Tensor(TensorType{DType::kF32, {0}}) {}
  // Uninitialised bytes.
  explicit Tensor(TensorType type);
  template <typename T>
  static Tensor Of(Dims dims, std::span<const T> values) {
    Tensor t(TensorType{DTypeOf<T>::value, std::move(dims)});
    Expect(static_cast<int64_t>(values.size()) == t.type_.num_elements());
    if (!values.empty()) std::memcpy(t.data_.get(), values.data(), values.size_bytes());
    return t;
  }
  template <typename T>
  static Tensor Scalar(T value) {
    return Of<T>({}, std::span<const T>(&value, 1));
  }

  const TensorType& type() const { return type_; }
  const Dims& dims() const { return type_.dims; }
  std::span<const std::byte> bytes() const {
    return {data_.get(), static_cast<size_t>(type_.num_bytes())};
  }
  std::span<std::byte> mutable_bytes() {
    return {data_.get(), static_cast<size_t>(type_.num_bytes())};
  }

  // T must be the element type.
  template <typename T>
  std::span<const T> values() const {
    Expect(DTypeOf<T>::value == type_.dtype);
    return {reinterpret_cast<const T*>(data_.get()), static_cast<size_t>(type_.num_elements())};
  }
  template <typename T>
  std::span<T> mutable_values() {
    Expect(DTypeOf<T>::value == type_.dtype);
    return {reinterpret_cast<T*>(data_.get()), static_cast<size_t>(type_.num_elements())};
  }
  // The one element of a one-element tensor of any type, as a double.
  double Item() const;

  // The block of `sizes` elements that starts at `offsets`, per dimension; both must lie inside.
  Tensor Slice(const Dims& offsets, const Dims& sizes) const;
  // Writes `block` at `offsets`. The inverse of Slice.
  void Paste(const Tensor& block, const Dims& offsets);

 private:
  static void Expect(bool true_of_the_caller);  // else the program ends (MT_CHECK)

  TensorType type_;
  std::shared_ptr<std::byte> data_;
};

// How many elements are NaN or infinite; 0 for integers and booleans.
int64_t CountNotFinite(const Tensor& tensor);

}  // namespace meshtrain::mesh
