#include "runtime/data/source.h"

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>
#include <utility>

#include "runtime/base/check.h"
#include "runtime/data/sources/sources.h"
#include "runtime/mesh/element_type.h"

namespace meshtrain::data {

std::vector<std::string> ComponentNames(size_t count) {
  std::vector<std::string> names = {"x", "y"};
  names.resize(std::min(count, names.size()));
  while (names.size() < count) names.push_back("component_" + std::to_string(names.size()));
  return names;
}

mesh::TensorType ElementOf(const mesh::TensorType& whole) {
  return {whole.dtype, mesh::Dims(whole.dims.begin() + 1, whole.dims.end())};
}

int64_t MaxBytesInMemory() { return ::sysconf(_SC_PHYS_PAGES) / 2 * ::sysconf(_SC_PAGE_SIZE); }

void LoadedElements::Set(std::span<const int64_t> elements) {
  all_.assign(elements.begin(), elements.end());
  std::sort(all_.begin(), all_.end());
  all_.erase(std::unique(all_.begin(), all_.end()), all_.end());
}

size_t LoadedElements::PlaceOf(int64_t element) const {
  const auto at = std::lower_bound(all_.begin(), all_.end(), element);
  MT_CHECK(at != all_.end() && *at == element);
  return static_cast<size_t>(at - all_.begin());
}

std::optional<mesh::DType> LabelsAs(const Options& options) {
  const auto type = mesh::ParseDType(options.Text("labels_as"));
  return type.ok() ? std::optional(*type) : std::nullopt;
}

int64_t Taken(int64_t there, int64_t take) { return take < 0 ? there : std::min(there, take); }

namespace {

// Every nth of another source's.
class PartOfSource final : public Source {
 public:
  PartOfSource(std::unique_ptr<Source> whole, int64_t first, int64_t every)
      : whole_(std::move(whole)), first_(first), every_(every) {}

  int64_t size() const override { return (whole_->size() - 1 - first_) / every_ + 1; }
  const std::vector<mesh::TensorType>& element() const override { return whole_->element(); }
  std::vector<std::string> names() const override { return whole_->names(); }
  Status Load(std::span<const int64_t> elements) override {
    loaded_.clear();
    for (const int64_t element : elements) loaded_.push_back(At(element));
    return whole_->Load(loaded_);
  }
  std::span<const std::byte> Row(int component, int64_t index) const override {
    return whole_->Row(component, At(index));
  }
  std::string file(int component) const override { return whole_->file(component); }
  int64_t ExampleOf(int64_t element) const override { return whole_->ExampleOf(At(element)); }
  std::vector<std::string> classes() const override { return whole_->classes(); }
  std::optional<mesh::DType> labels_as() const override { return whole_->labels_as(); }

 private:
  int64_t At(int64_t element) const { return first_ + element * every_; }

  const std::unique_ptr<Source> whole_;
  const int64_t first_, every_;
  std::vector<int64_t> loaded_;
};

Result<std::unique_ptr<Source>> OpenWhole(const SourceSpec& spec) {
  if (const auto* idx = std::get_if<IdxFiles>(&spec.from)) return OpenIdx(*idx, spec.take);
  if (const auto* npy = std::get_if<NpyFiles>(&spec.from)) return OpenNpy(*npy, spec.take);
  if (const auto* folder = std::get_if<ImageFolder>(&spec.from)) {
    return OpenImageFolder(*folder, spec.take, spec.cached);
  }
  if (const auto* text = std::get_if<TextFile>(&spec.from)) return OpenText(*text, spec.take);
  if (const auto* own = std::get_if<OwnSource>(&spec.from)) return own->open(spec.take);
  return OpenArrays(std::get<MemoryArrays>(spec.from), spec.take);
}

Status CheckNames(const Source& source) {
  std::vector<std::string> names = source.names();
  std::sort(names.begin(), names.end());
  const auto twice = std::adjacent_find(names.begin(), names.end());
  if (names.size() == source.element().size() && twice == names.end()) return OkStatus();
  return InvalidArgument(
      "data: expected one name for each of " + std::to_string(source.element().size()) +
      " components, got: " +
      (twice == names.end() ? std::to_string(names.size()) + " names" : "`" + *twice + "` twice"));
}

// The first of the numbers, of type `dtype`, that is not finite.
std::optional<double> NotFiniteOf(std::span<const std::byte> row, mesh::DType dtype) {
  return mesh::WithElementType(dtype, [&](auto element) -> std::optional<double> {
    for (; !row.empty(); row = row.subspan(sizeof element)) {
      std::memcpy(&element, row.data(), sizeof element);
      const auto number = static_cast<double>(element);
      if (!std::isfinite(number)) return number;
    }
    return std::nullopt;
  });
}

}  // namespace

Status CheckFinite(const Source& source, std::span<const int64_t> elements) {
  for (size_t c = 0; c < source.element().size(); ++c) {
    const mesh::DType dtype = source.element()[c].dtype;
    if (!mesh::IsFloat(dtype)) continue;
    const int component = static_cast<int>(c);
    for (const int64_t element : elements) {
      const auto number = NotFiniteOf(source.Row(component, element), dtype);
      if (!number) continue;
      return InvalidArgument(source.file(component) + ", component `" + source.names()[c] +
                             "`: example " + std::to_string(source.ExampleOf(element)) +
                             ": expected finite numbers, got: " +
                             (std::isnan(*number) ? "nan"
                              : *number > 0       ? "inf"
                                                  : "-inf"));
    }
  }
  return OkStatus();
}

Result<std::unique_ptr<Source>> OpenSource(const SourceSpec& spec) {
  if (spec.first < 0 || spec.every < 1) {
    return InvalidArgument("data: expected elements from number 0 on, every first or later, got: " +
                           std::to_string(spec.first) + ", every " + std::to_string(spec.every));
  }
  MT_ASSIGN_OR_RETURN(std::unique_ptr<Source> whole, OpenWhole(spec));
  MT_RETURN_IF_ERROR(CheckNames(*whole));
  if (spec.first == 0 && spec.every == 1) return whole;
  if (spec.first >= whole->size()) {
    return InvalidArgument("data: expected an element for each of " + std::to_string(spec.every) +
                           " parts, got: " + std::to_string(whole->size()));
  }
  return std::unique_ptr<Source>(
      std::make_unique<PartOfSource>(std::move(whole), spec.first, spec.every));
}

}  // namespace meshtrain::data
