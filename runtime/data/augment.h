// Flips and crops of images: values change their places, none is changed.
//
// What is drawn for an example follows from the seed, the pass and the example's number in its data
// set, by Philox: an example's image is the same in whatever batch, process or run it comes, and
// another one in each pass. Immutable, so any thread may use it.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "runtime/base/status.h"
#include "runtime/data/spec.h"
#include "runtime/mesh/shape.h"

namespace meshtrain::data {

// Whether this is a flip or a crop; the other operations work value by value.
bool MovesValues(const MapOp& op);

class Augmentation {
 public:
  // `op` moves values. Of images [height, width] or [height, width, channels]. `stream`: ops of one
  // seed that are to draw independently of each other have different ones. Errors:
  // kInvalidArgument for another rank, and a crop that does not fit.
  static Result<Augmentation> Create(const MapOp& op, const mesh::TensorType& image, uint64_t seed,
                                     uint32_t stream);

  const mesh::TensorType& output() const { return output_; }
  // `in` is the image of example `example` of the data set, in run `pass` through it.
  void Run(int64_t example, int64_t pass, std::span<const std::byte> in,
           std::span<std::byte> out) const;

 private:
  // Where the values of an output come from: rows and columns from `top` and `left` on, which may
  // lie outside of the image, where zeros are.
  struct Move {
    int64_t top = 0, left = 0;
    bool mirror_rows = false, mirror_columns = false;
  };
  Move Draw(int64_t example, int64_t pass) const;

  MapOp op_;
  std::array<uint32_t, 2> key_{};
  mesh::TensorType input_, output_;
  int64_t pixel_bytes_ = 1;
};

}  // namespace meshtrain::data
