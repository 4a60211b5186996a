// A source of three components, which a model takes by name: two numbers, and their difference.
#include "runtime/data/spec.h"
#include "runtime/mesh/tensor.h"
#include "runtime/recipe/rows.h"

namespace meshtrain::samples {
namespace {

data::SourceOptions MakePairs(const choice::Options& options) {
  const int64_t count = options.Int("pairs", 1);
  std::vector<float> left, right, difference;
  for (int64_t i = 0; i < count; ++i) {
    left.push_back(static_cast<float>(i % 5));
    right.push_back(static_cast<float>(i % 3));
    difference.push_back(left.back() - right.back());
  }
  const auto column = [count](const std::vector<float>& values) {
    return mesh::Tensor::Of<float>({count, 1}, values);
  };
  return data::MemoryArrays{.components = {column(left), column(right), column(difference)},
                            .names = {"left", "right", "y"}};
}

}  // namespace

recipe::SourceRow PairsRow() {
  return {{.name = "pairs",
           .about = "Two numbers, `left` and `right`, and their difference, `y`.",
           .options = {manifest::field::Required(manifest::option::Int(
               "pairs", {.least = 1}, {.about = "How many pairs.", .sample = "64"}))},
           .components = {"left", "right", "y"}},
          MakePairs};
}

}  // namespace meshtrain::samples
