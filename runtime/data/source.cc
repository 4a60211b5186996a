#include "runtime/data/source.h"

#include <algorithm>

#include "runtime/data/sources/sources.h"

namespace meshtrain::data {

mesh::DType Source::labels_as() const {
  return element().size() > 1 ? element()[1].dtype : mesh::DType::kF32;
}

mesh::TensorType ElementOf(const mesh::TensorType& whole) {
  return {whole.dtype, mesh::Dims(whole.dims.begin() + 1, whole.dims.end())};
}

int64_t Taken(int64_t there, int64_t take) { return take < 0 ? there : std::min(there, take); }

Result<std::unique_ptr<Source>> OpenSource(const SourceSpec& spec) {
  if (const auto* idx = std::get_if<IdxFiles>(&spec.from)) return OpenIdx(*idx, spec.take);
  if (const auto* own = std::get_if<OwnSource>(&spec.from)) return own->open(spec.take);
  return OpenArrays(std::get<Arrays>(spec.from), spec.take);
}

}  // namespace meshtrain::data
