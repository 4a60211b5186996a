// Element-wise maps over host tensors.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "runtime/base/status.h"
#include "runtime/data/spec.h"
#include "runtime/mesh/tensor.h"

namespace meshtrain::data {

// The value of one op, which works value by value (scale, normalize, cast); what each computes is
// said in spec.h.
mesh::Tensor ApplyMap(const MapOp& op, const mesh::Tensor& x);

// A chain of such ops, compiled for one input type: u8 in becomes a table of 256 results, bit-equal
// to the ops in turn. Immutable, so any thread may use it.
class MapChain {
 public:
  // Errors: kInvalidArgument for a deviation of zero or a factor that is not finite.
  static Result<MapChain> Create(std::vector<MapOp> ops, mesh::DType input);

  mesh::DType input() const { return input_; }
  mesh::DType output() const { return output_; }
  // in.size()/bytes(input) elements; out is as many elements of the output type.
  void Run(std::span<const std::byte> in, std::span<std::byte> out) const;

 private:
  std::vector<MapOp> ops_;
  mesh::DType input_ = mesh::DType::kU8;
  mesh::DType output_ = mesh::DType::kU8;
  mesh::Tensor table_;  // 256 elements of the output type, for u8 in
};

}  // namespace meshtrain::data
