// numpy's array files (.npy): "\x93NUMPY", a version, the header's length, the header as a Python
// dictionary {'descr': '<f4', 'fortran_order': False, 'shape': (3, 4), }, then the elements row by
// row. Format: numpy, "NPY format", versions 1.0 to 3.0.
//
// Read are the element types that Meshtrain has, little-endian and in C order; the rest is an error
// that says what it is. Pure.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "runtime/base/status.h"
#include "runtime/mesh/tensor.h"

namespace meshtrain::data {

// What stands before the elements.
struct NpyHead {
  mesh::TensorType type;
  int64_t begin = 0;  // the byte of the first element
};
// The longest head that is read.
inline constexpr int64_t kMaxNpyHead = 64 << 10;

// Of a file of `file_bytes` that begins with `front`: all of it, or at least kMaxNpyHead bytes.
// `file`: what errors call it. Errors: kDataLoss for bytes that are no .npy file or more or fewer
// than the head promises, kInvalidArgument for an element type or an order that is not read here.
Result<NpyHead> ParseNpyHead(std::string_view front, int64_t file_bytes, const std::string& file);
// The whole array. Errors: the same.
Result<mesh::Tensor> ParseNpy(std::string_view bytes, const std::string& file);
// The bytes of a file of version 1.0; of bf16, which numpy has not, as f32.
std::string FormatNpy(const mesh::Tensor& tensor);

}  // namespace meshtrain::data
