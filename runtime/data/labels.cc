#include "runtime/data/labels.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <limits>
#include <string>
#include <type_traits>

#include "runtime/base/check.h"
#include "runtime/base/text.h"
#include "runtime/mesh/element_type.h"

namespace meshtrain::data {
namespace {

using mesh::DType;

std::string Text(double label) {
  char text[32];
  std::snprintf(text, sizeof text, "%.9g", label);
  return text;
}

std::string At(std::string_view file, int64_t example) {
  return std::string(file) + ": example " + std::to_string(example) + ": label ";
}

double Limit(DType type) {  // the first whole number past its last
  return type == DType::kU8 ? 256 : std::ldexp(1, type == DType::kI32 ? 31 : 63);
}

// The place of the first element that is no number from 0 to `classes` - 1; labels.size() if all
// are.
template <typename T>
size_t FirstOutside(std::span<const T> labels, int64_t classes) {
  size_t i = 0;
  if constexpr (mesh::kIsFloatType<T>) {
    const auto last = static_cast<double>(classes - 1);
    const auto in = [&](double label) { return label >= 0 && label <= last; };  // no NaN is
    while (i < labels.size() && in(labels[i])) ++i;
  } else {
    while (i < labels.size() && labels[i] >= 0 && static_cast<int64_t>(labels[i]) < classes) ++i;
  }
  return i;
}

template <typename T>
Status CheckAll(std::span<const T> labels, int64_t classes, std::span<const int64_t> examples,
                std::string_view file) {
  const size_t i = FirstOutside(labels, classes);
  if (i == labels.size()) return OkStatus();
  const size_t per_example = labels.size() / examples.size();
  std::string label;
  if constexpr (mesh::kIsFloatType<T>) {
    label = Text(static_cast<double>(labels[i]));
  } else {
    label = std::to_string(labels[i]);
  }
  return InvalidArgument(At(file, examples[i / per_example]) + label + ", but " +
                         std::to_string(classes) + " classes");
}

}  // namespace

DType LabelType(const std::optional<DType>& labels_as, DType in_file) {
  return labels_as.value_or(in_file == DType::kU8 ? DType::kI32 : in_file);
}

bool MayCut(DType from, DType to) {
  if (IsFloat(to) || from == DType::kBool) return false;
  return IsFloat(from) || Limit(from) > Limit(to);
}

Status CheckKept(DType from, std::span<const std::byte> label, DType to, int64_t example,
                 std::string_view file) {
  if (!MayCut(from, to)) return OkStatus();
  const double limit = Limit(to), least = to == DType::kU8 ? 0 : -limit;
  return mesh::WithElementType(from, [&](auto element) -> Status {
    for (; !label.empty(); label = label.subspan(sizeof element)) {
      MT_CHECK(label.size() >= sizeof element);
      std::memcpy(&element, label.data(), sizeof element);
      const auto value = static_cast<double>(element);
      if (value == std::trunc(value) && value >= least && value < limit) continue;
      std::string label = Text(value);
      if constexpr (std::is_integral_v<decltype(element)>) label = std::to_string(element);
      return InvalidArgument(At(file, example) + label + ", which labels_as: " +
                             std::string(mesh::DTypeName(to)) + " would cut");
    }
    return OkStatus();
  });
}

Status CheckClasses(const mesh::Tensor& labels, int64_t classes, std::span<const int64_t> examples,
                    std::string_view file) {
  if (classes <= 0 || examples.empty() || labels.type().num_elements() == 0) return OkStatus();
  return mesh::WithElementType(labels.type().dtype, [&](auto zero) -> Status {
    using T = decltype(zero);
    if constexpr (std::is_same_v<T, bool>) {
      return OkStatus();
    } else {
      return CheckAll(labels.values<T>(), classes, examples, file);
    }
  });
}

Status CheckSameClasses(std::span<const std::string> train, std::span<const std::string> test,
                        std::string_view train_file, std::string_view test_file) {
  if (train.empty() || test.empty()) return OkStatus();
  const auto [a, b] = std::mismatch(train.begin(), train.end(), test.begin(), test.end());
  if (a == train.end() && b == test.end()) return OkStatus();
  const auto name = [](auto at, auto end) {
    return at == end ? "none" : "`" + Printable(*at) + "`";
  };
  return InvalidArgument(std::string(test_file) + ": expected the classes of " +
                         std::string(train_file) + ", of which number " +
                         std::to_string(a - train.begin()) + " is " + name(a, train.end()) +
                         ", got: " + name(b, test.end()));
}

Status CheckIds(const mesh::Tensor& ids, int64_t rows, std::span<const int64_t> examples,
                std::string_view file) {
  if (examples.empty() || ids.type().num_elements() == 0) return OkStatus();
  const auto check = [&](auto numbers) -> Status {
    const size_t i = FirstOutside(numbers, rows);
    if (i == numbers.size()) return OkStatus();
    return InvalidArgument(std::string(file) + ": example " +
                           std::to_string(examples[i / (numbers.size() / examples.size())]) +
                           ": id " + std::to_string(numbers[i]) + ", but " + std::to_string(rows) +
                           " rows");
  };
  switch (ids.type().dtype) {
    case DType::kU8:
      return check(ids.values<uint8_t>());
    case DType::kI32:
      return check(ids.values<int32_t>());
    case DType::kI64:
      return check(ids.values<int64_t>());
    default:
      return OkStatus();
  }
}

}  // namespace meshtrain::data
