// Element-wise maps over host tensors.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "runtime/base/status.h"
#include "runtime/data/spec.h"
#include "runtime/mesh/tensor.h"

namespace meshtrain::data {

// "random_crop", as a manifest spells it.
std::string_view NameOf(const MapOp& op);

// Whether the numbers of an op that works value by value make sense of elements whose last
// dimension is `channels`; 1 of scalars. Error: kInvalidArgument for a deviation of zero, a factor
// that is not finite, and numbers that are neither one nor `channels`.
Status CheckNumbers(const MapOp& op, int64_t channels);

// The value of one op, which works value by value (scale, normalize, cast); what each computes is
// said in spec.h. The last dimension of `x` is that of an element.
mesh::Tensor ApplyMap(const MapOp& op, const mesh::Tensor& x);

// A chain of such ops, compiled for one input type: u8 in becomes a table of 256 results (for each
// channel, where an op tells them apart), bit-equal to the ops in turn. Immutable, so any thread
// may use it.
class MapChain {
 public:
  // `channels`: the size of an element's last dimension; 1 of scalars. Errors: CheckNumbers'.
  static Result<MapChain> Create(std::vector<MapOp> ops, mesh::DType input, int64_t channels);

  mesh::DType input() const { return input_; }
  mesh::DType output() const { return output_; }
  // Whole elements; in.size()/bytes(input) values, and out is as many values of the output type.
  void Run(std::span<const std::byte> in, std::span<std::byte> out) const;

 private:
  std::vector<MapOp> ops_;
  mesh::DType input_ = mesh::DType::kU8;
  mesh::DType output_ = mesh::DType::kU8;
  int64_t channels_ = 1;  // 1 where no op tells them apart
  mesh::Tensor table_;    // for u8 in: [256, channels_] of the output type
};

}  // namespace meshtrain::data
