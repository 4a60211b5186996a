#include "runtime/data/npy.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <optional>
#include <utility>

#include "runtime/base/check.h"
#include "runtime/base/text.h"
#include "runtime/mesh/cast.h"
#include "runtime/mesh/shape.h"

namespace meshtrain::data {
namespace {

static_assert(std::endian::native == std::endian::little, "elements are read as they lie");

using mesh::DType;
using mesh::Tensor;
using mesh::TensorType;

constexpr std::string_view kMagic = "\x93NUMPY";
constexpr size_t kAlign = 64;  // of the elements, as numpy writes them
constexpr int kMaxRank = 32;

// A letter for the byte order, which one byte does not have; then kind and width.
constexpr std::pair<DType, std::string_view> kTypes[] = {
    {DType::kBool, "|b1"}, {DType::kU8, "|u1"},  {DType::kI32, "<i4"}, {DType::kI64, "<i8"},
    {DType::kF32, "<f4"},  {DType::kF64, "<f8"}, {DType::kF16, "<f2"}};

// What stands behind 'key': in a header, without the spaces before it.
std::optional<std::string_view> After(std::string_view header, std::string_view key) {
  for (const char quote : {'\'', '"'}) {
    const std::string quoted = quote + std::string(key) + quote;
    const size_t at = header.find(quoted);
    if (at == std::string_view::npos) continue;
    std::string_view rest = Trim(header.substr(at + quoted.size()));
    if (!rest.starts_with(':')) continue;
    return Trim(rest.substr(1));
  }
  return std::nullopt;
}

// "(3, 4)", "(3,)" and "()" at the beginning of `text`.
std::optional<mesh::Dims> ParseShape(std::string_view text) {
  const size_t end = text.find(')');
  if (!text.starts_with('(') || end == std::string_view::npos) return std::nullopt;
  mesh::Dims dims;
  for (const std::string& part : Split(text.substr(1, end - 1), ',')) {
    const std::string_view number = Trim(part);
    if (number.empty()) continue;
    const std::optional<int64_t> dim = ParseInt(number);
    if (!dim || *dim < 0) return std::nullopt;
    dims.push_back(*dim);
  }
  return dims;
}

}  // namespace

Result<NpyHead> ParseNpyHead(std::string_view front, int64_t file_bytes, const std::string& file) {
  const auto damaged = [&](const std::string& what) { return DataLoss(file + ": " + what); };
  if (!front.starts_with(kMagic) || front.size() < 10) {
    return damaged("byte 0: expected a .npy file, got: other bytes");
  }
  const auto byte = [&](size_t at) { return static_cast<size_t>(static_cast<uint8_t>(front[at])); };
  const size_t version = byte(6);
  if (version < 1 || version > 3) {
    return damaged("byte 6: expected version 1, 2 or 3 of .npy, got: " + std::to_string(version));
  }
  const size_t begin = version == 1 ? 10 : 12;
  if (front.size() < begin) return damaged("expected a header, got: the file's end");
  size_t length = byte(8) | byte(9) << 8;
  if (version > 1) length |= byte(10) << 16 | byte(11) << 24;
  if (static_cast<int64_t>(begin + length) > file_bytes) {
    return damaged("byte 8: expected a header of " + std::to_string(length) +
                   " bytes, got: " + std::to_string(file_bytes - static_cast<int64_t>(begin)));
  }
  if (static_cast<int64_t>(begin + length) > kMaxNpyHead) {
    return InvalidArgument(file + ": byte 8: expected a header of at most " +
                           std::to_string(kMaxNpyHead) + " bytes, got: " + std::to_string(length));
  }
  MT_CHECK(begin + length <= front.size());
  const std::string_view header = front.substr(begin, length);
  const auto descr = After(header, "descr");
  const auto order = After(header, "fortran_order");
  const auto shape = After(header, "shape");
  const std::optional<mesh::Dims> dims = shape ? ParseShape(*shape) : std::nullopt;
  if (!descr || !order || !dims) {
    return damaged(
        "byte " + std::to_string(begin) +
        ": expected a header with descr, fortran_order and shape, got: " + Excerpt(header));
  }
  std::optional<DType> dtype;
  for (const auto& [type, name] : kTypes) {
    // One byte may be written with any order.
    const bool one = name[0] == '|';
    if (descr->size() > 4 && (*descr)[0] == (*descr)[4] && descr->substr(2, 2) == name.substr(1) &&
        ((*descr)[1] == name[0] || (one && (*descr)[1] != '>') || (!one && (*descr)[1] == '='))) {
      dtype = type;
    }
  }
  if (!dtype) {
    const std::string_view got = descr->substr(0, descr->find(','));
    return InvalidArgument(
        file + ": byte " + std::to_string(begin) +
        ": expected elements of <f4, <f8, <f2, <i4, <i8, |u1 or |b1, got: " + Excerpt(got) +
        (got.starts_with("'|O") ? " (Python objects, pickled)" : ""));
  }
  if (!order->starts_with("False")) {
    return InvalidArgument(file + ": byte " + std::to_string(begin) +
                           ": expected elements in C order (numpy.ascontiguousarray), got: "
                           "Fortran order");
  }
  if (dims->size() > kMaxRank) {
    return damaged("expected at most " + std::to_string(kMaxRank) +
                   " dimensions, got: " + std::to_string(dims->size()));
  }
  // Their product may not overflow.
  const auto first = static_cast<int64_t>(begin + length);
  const int64_t there = file_bytes - first;
  int64_t left = there / mesh::DTypeBytes(*dtype);
  for (const int64_t dim : *dims) left = dim == 0 ? 0 : left / dim;
  const bool empty = std::find(dims->begin(), dims->end(), 0) != dims->end();
  TensorType type{*dtype, *dims};
  if ((!empty && left < 1) || there != type.num_bytes()) {
    return damaged("byte " + std::to_string(first) +
                   ": expected the elements of an array of shape " +
                   std::string(shape->substr(0, shape->find(')') + 1)) +
                   ", got: " + std::to_string(there) + " bytes");
  }
  return NpyHead{std::move(type), first};
}

Result<Tensor> ParseNpy(std::string_view bytes, const std::string& file) {
  const auto size = static_cast<int64_t>(bytes.size());
  MT_ASSIGN_OR_RETURN(const NpyHead head, ParseNpyHead(bytes, size, file));
  Tensor out(head.type);
  const std::string_view elements = bytes.substr(static_cast<size_t>(head.begin));
  if (!elements.empty()) std::memcpy(out.mutable_bytes().data(), elements.data(), elements.size());
  return out;
}

std::string FormatNpy(const Tensor& tensor) {
  // numpy has no bf16; f32 holds the same numbers.
  if (tensor.type().dtype == DType::kBF16) return FormatNpy(mesh::CastTensor(tensor, DType::kF32));
  std::string descr;
  for (const auto& [type, name] : kTypes) {
    if (type == tensor.type().dtype) descr = name;
  }
  std::string shape;
  for (const int64_t dim : tensor.dims()) shape += std::to_string(dim) + ", ";
  if (tensor.dims().size() > 1) shape.resize(shape.size() - 2);
  if (tensor.dims().size() == 1) shape.resize(shape.size() - 1);
  std::string header =
      "{'descr': '" + descr + "', 'fortran_order': False, 'shape': (" + shape + "), }";
  const size_t used = kMagic.size() + 4 + header.size() + 1;
  header.append((kAlign - used % kAlign) % kAlign, ' ');
  header += '\n';
  std::string out(kMagic);
  out += '\x01';
  out += '\0';
  out += static_cast<char>(header.size() & 0xff);
  out += static_cast<char>(header.size() >> 8);
  out += header;
  out.append(reinterpret_cast<const char*>(tensor.bytes().data()), tensor.bytes().size());
  return out;
}

}  // namespace meshtrain::data
