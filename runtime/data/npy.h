// numpy's array files (.npy): "\x93NUMPY", a version, the header's length, the header as a Python
// dictionary {'descr': '<f4', 'fortran_order': False, 'shape': (3, 4), }, then the elements row by
// row. Format: numpy, "NPY format", versions 1.0 to 3.0.
//
// Read are the element types that Meshtrain has, little-endian and in C order; the rest is an error
// that says what it is. Pure.
#pragma once

#include <string>
#include <string_view>

#include "runtime/base/status.h"
#include "runtime/mesh/tensor.h"

namespace meshtrain::data {

// `file`: what errors call it. Errors: kDataLoss for bytes that are no .npy file or are cut off,
// kInvalidArgument for an element type or an order that is not read here.
Result<mesh::Tensor> ParseNpy(std::string_view bytes, const std::string& file);
// The bytes of a file of version 1.0; of bf16, which numpy has not, as f32.
std::string FormatNpy(const mesh::Tensor& tensor);

}  // namespace meshtrain::data
