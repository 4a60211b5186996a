// Tensors that are there already.
#include <string>
#include <utility>

#include "runtime/data/sources/sources.h"

namespace meshtrain::data {
namespace {

using mesh::Tensor;
using mesh::TensorType;

class ArraySource final : public Source {
 public:
  ArraySource(const MemoryArrays& arrays, int64_t size) : arrays_(arrays), size_(size) {
    for (const Tensor& c : arrays_.components) element_.push_back(ElementOf(c.type()));
  }
  int64_t size() const override { return size_; }
  const std::vector<TensorType>& element() const override { return element_; }
  std::vector<std::string> names() const override {
    return arrays_.names.empty() ? Source::names() : arrays_.names;
  }
  Status Load(std::span<const int64_t>) override { return OkStatus(); }
  std::span<const std::byte> Row(int component, int64_t index) const override {
    const auto bytes = static_cast<size_t>(element_[component].num_bytes());
    return arrays_.components[component].bytes().subspan(static_cast<size_t>(index) * bytes, bytes);
  }
  std::string file(int /*component*/) const override {
    return arrays_.file.empty() ? "data" : arrays_.file;
  }

 private:
  const MemoryArrays arrays_;
  std::vector<TensorType> element_;
  int64_t size_;
};

}  // namespace

Result<std::unique_ptr<Source>> OpenArrays(const MemoryArrays& arrays, int64_t take) {
  if (arrays.components.empty()) {
    return InvalidArgument("data: arrays: expected at least one tensor, got: none");
  }
  if (!arrays.names.empty() && arrays.names.size() != arrays.components.size()) {
    return InvalidArgument("data: arrays: expected a name for each of " +
                           std::to_string(arrays.components.size()) +
                           " components, got: " + std::to_string(arrays.names.size()));
  }
  for (size_t c = 0; c < arrays.components.size(); ++c) {
    const TensorType& type = arrays.components[c].type();
    if (type.rank() < 1 || type.dims[0] != arrays.components[0].dims()[0]) {
      return InvalidArgument("data: arrays: component " + std::to_string(c) +
                             ": expected as many elements as component 0 (" +
                             arrays.components[0].type().ToString() + "), got: " + type.ToString());
    }
  }
  const int64_t size = Taken(arrays.components[0].dims()[0], take);
  if (size == 0) return InvalidArgument("data: arrays: expected at least one element, got: 0");
  return std::unique_ptr<Source>(std::make_unique<ArraySource>(arrays, size));
}

}  // namespace meshtrain::data
