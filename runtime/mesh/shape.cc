#include "runtime/mesh/shape.h"

#include <algorithm>
#include <limits>

#include "runtime/base/check.h"
#include "runtime/base/text.h"

namespace meshtrain::mesh {
namespace {

struct DTypeRow {
  DType dtype;
  std::string_view name;
  int64_t bytes;
};
constexpr DTypeRow kDTypes[] = {{DType::kBool, "bool", 1}, {DType::kU8, "u8", 1},
                                {DType::kI32, "i32", 4},   {DType::kI64, "i64", 8},
                                {DType::kF32, "f32", 4},   {DType::kF64, "f64", 8},
                                {DType::kBF16, "bf16", 2}, {DType::kF16, "f16", 2}};

const DTypeRow& Row(DType dtype) { return kDTypes[static_cast<int>(dtype)]; }

}  // namespace

std::string_view DTypeName(DType dtype) { return Row(dtype).name; }
int64_t DTypeBytes(DType dtype) { return Row(dtype).bytes; }

Result<DType> ParseDType(std::string_view name) {
  for (const DTypeRow& row : kDTypes) {
    if (row.name == name) return row.dtype;
  }
  return InvalidArgument("dtype: expected one of bool u8 i32 i64 f32 f64 bf16 f16, got: " +
                         Excerpt(name));
}

double LargestFinite(DType dtype) {
  switch (dtype) {
    case DType::kBF16:
      return 0x1.fep127;
    case DType::kF16:
      return 65504;
    case DType::kF32:
      return std::numeric_limits<float>::max();
    default:
      return std::numeric_limits<double>::max();
  }
}

double UnitRoundoff(DType dtype) {
  switch (dtype) {
    case DType::kBF16:
      return 0x1p-8;
    case DType::kF16:
      return 0x1p-11;
    case DType::kF32:
      return 0x1p-24;
    default:
      return 0x1p-53;
  }
}

int64_t NumElements(const Dims& dims) {
  int64_t n = 1;
  for (const int64_t d : dims) n *= d;
  return n;
}

Dims Strides(const Dims& dims) {
  Dims strides(dims.size(), 1);
  for (size_t i = dims.size(); i-- > 1;) strides[i - 1] = strides[i] * dims[i];
  return strides;
}

std::string TensorType::ToString() const {
  std::string text(DTypeName(dtype));
  text += '[';
  for (size_t i = 0; i < dims.size(); ++i) {
    if (i > 0) text += ',';
    text += std::to_string(dims[i]);
  }
  return text + ']';
}

Result<TensorType> TensorType::Parse(std::string_view text) {
  const auto bad = [&] {
    return InvalidArgument("tensor type: expected a text like f32[8,16], got: " + Excerpt(text));
  };
  const size_t open = text.find('[');
  if (open == std::string_view::npos || text.back() != ']') return bad();
  TensorType type;
  MT_ASSIGN_OR_RETURN(type.dtype, ParseDType(text.substr(0, open)));
  const std::string_view inner = text.substr(open + 1, text.size() - open - 2);
  if (inner.empty()) return type;
  int64_t elements = 1;
  for (const std::string& part : Split(inner, ',')) {
    const auto d = ParseInt(part);
    if (!d || *d < 0) return bad();
    if (*d > 0 && elements > std::numeric_limits<int64_t>::max() / 8 / *d) return bad();
    elements *= std::max<int64_t>(*d, 1);
    type.dims.push_back(*d);
  }
  return type;
}

}  // namespace meshtrain::mesh
