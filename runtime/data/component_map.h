// What the map stages of a pipeline do to one component of a batch. Immutable, so any thread may
// use it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "runtime/base/status.h"
#include "runtime/data/augment.h"
#include "runtime/data/element.h"
#include "runtime/data/map.h"
#include "runtime/data/spec.h"
#include "runtime/mesh/tensor.h"

namespace meshtrain::data {

// An op with the seed of its stage, and its place in a manifest (MapStage::places).
struct SeededOp {
  MapOp op;
  uint64_t seed = 0;
  std::string place = {};
};

// An example of a batch: `example` as Source::ExampleOf, and the bytes of the component as the
// source has them; none where nobody uses them.
struct MapInput {
  int64_t example = 0;
  int64_t pass = 0;
  std::span<const std::byte> bytes;
};

class ComponentMap {
 public:
  // Of elements of this type. Errors: CheckNumbers' and Augmentation's, with the op's place, which
  // are then of Origin::kManifest, or its name.
  static Result<ComponentMap> Create(const std::vector<SeededOp>& ops, mesh::TensorType element);

  // One element's, as it comes out.
  const mesh::TensorType& output() const { return output_; }
  // All of a batch, one behind the other; zeros in the place of those without bytes.
  mesh::Tensor Run(std::span<const MapInput> batch) const;

 private:
  // A chain takes and gives elements of one shape.
  struct Step {
    std::variant<MapChain, Augmentation> does;
    mesh::TensorType output;  // one element's
  };

  mesh::TensorType input_, output_;
  std::vector<Step> steps_;
};

// [size, ...] of elements.
mesh::TensorType BatchOf(const mesh::TensorType& element, int64_t size);

}  // namespace meshtrain::data
