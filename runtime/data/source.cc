#include "runtime/data/source.h"

#include <algorithm>
#include <string>

#include "runtime/data/sources/sources.h"

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

int64_t Taken(int64_t there, int64_t take) { return take < 0 ? there : std::min(there, take); }

Result<std::unique_ptr<Source>> OpenSource(const SourceSpec& spec) {
  if (const auto* idx = std::get_if<IdxFiles>(&spec.from)) return OpenIdx(*idx, spec.take);
  if (const auto* text = std::get_if<TextFile>(&spec.from)) return OpenText(*text, spec.take);
  if (const auto* own = std::get_if<OwnSource>(&spec.from)) return own->open(spec.take);
  return OpenArrays(std::get<MemoryArrays>(spec.from), spec.take);
}

}  // namespace meshtrain::data
