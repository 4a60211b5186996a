// A source: points (x, y) and how high a wave stands there, sin(x) * cos(y).
#include <algorithm>
#include <cmath>

#include "runtime/data/source.h"
#include "runtime/recipe/rows.h"

namespace meshtrain::samples {
namespace {

using manifest::option::Int;
using mesh::DType;

class Waves final : public data::Source {
 public:
  explicit Waves(int64_t size) : size_(size) {}
  int64_t size() const override { return size_; }
  const std::vector<mesh::TensorType>& element() const override { return element_; }
  Status Load(std::span<const int64_t> elements) override {
    const int64_t end = *std::max_element(elements.begin(), elements.end()) + 1;
    for (auto i = static_cast<int64_t>(heights_.size()); i < end; ++i) {
      const auto x = static_cast<float>(i % 17) / 17, y = static_cast<float>(i % 23) / 23;
      points_.insert(points_.end(), {x, y});
      heights_.push_back(std::sin(6 * x) * std::cos(6 * y));
    }
    return OkStatus();
  }
  std::span<const std::byte> Row(int component, int64_t index) const override {
    const auto i = static_cast<size_t>(index);
    if (component == 0) return std::as_bytes(std::span(points_).subspan(2 * i, 2));
    return std::as_bytes(std::span(heights_).subspan(i, 1));
  }
  std::string file(int /*component*/) const override { return "waves"; }

 private:
  const int64_t size_;
  const std::vector<mesh::TensorType> element_ = {{DType::kF32, {2}}, {DType::kF32, {1}}};
  std::vector<float> points_, heights_;
};

}  // namespace

recipe::SourceRow WavesRow() {
  return {{.name = "waves",
           .about = "Points and how high a wave stands there.",
           .options = {manifest::field::Required(
               Int("points", {.least = 1}, {.about = "How many points.", .sample = "64"}))}},
          [](const choice::Options& options) -> data::SourceOptions {
            return data::OwnSource{"waves",
                                   [points = options.Int("points", 1)](
                                       int64_t take) -> Result<std::unique_ptr<data::Source>> {
                                     return std::unique_ptr<data::Source>(std::make_unique<Waves>(
                                         take < 0 ? points : std::min(points, take)));
                                   }};
          }};
}

}  // namespace meshtrain::samples
