#include "worker/outputs.h"

#include <fmt/format.h>

#include <cmath>
#include <iterator>
#include <type_traits>
#include <utility>

#include "runtime/base/check.h"
#include "runtime/data/npy.h"
#include "runtime/mesh/element_type.h"

namespace meshtrain::worker {
namespace {

using mesh::Tensor;

struct Writer {
  const Tensor& tensor;
  const OutputFormat format;
  std::string out;

  template <typename T>
  void Number(int64_t at) {
    const auto value = +tensor.values<T>()[static_cast<size_t>(at)];  // of a half, its f32
    if constexpr (mesh::kIsFloatType<T>) {
      if (format == OutputFormat::kJsonLines && !std::isfinite(value)) {
        out += "null";
        return;
      }
    }
    if constexpr (std::is_same_v<T, bool>) {
      out += format == OutputFormat::kCsv ? (value ? "1" : "0") : (value ? "true" : "false");
    } else {
      fmt::format_to(std::back_inserter(out), "{}", value);
    }
  }
  void Element(int64_t at) {
    mesh::WithElementType(tensor.type().dtype, [&](auto zero) { Number<decltype(zero)>(at); });
  }
  // The part of dimensions [dim, rank) that begins at element `at`; the element behind it.
  int64_t Nested(size_t dim, int64_t at) {
    if (dim == tensor.dims().size()) {
      Element(at);
      return at + 1;
    }
    out += '[';
    for (int64_t i = 0; i < tensor.dims()[dim]; ++i) {
      if (i > 0) out += ',';
      at = Nested(dim + 1, at);
    }
    out += ']';
    return at;
  }
};

}  // namespace

std::optional<OutputFormat> ParseOutputFormat(std::string_view name) {
  if (name == "npy") return OutputFormat::kNpy;
  if (name == "csv") return OutputFormat::kCsv;
  if (name == "jsonl") return OutputFormat::kJsonLines;
  return std::nullopt;
}

std::optional<OutputFormat> OutputFormatOf(std::string_view path) {
  const size_t dot = path.rfind('.');
  if (dot == std::string_view::npos) return std::nullopt;
  const std::string_view ending = path.substr(dot + 1);
  return ParseOutputFormat(ending == "json" ? "jsonl" : ending);
}

std::string FileOfOutput(const std::string& path, const std::string& name) {
  if (name.empty()) return path;
  const size_t slash = path.rfind('/'), dot = path.rfind('.');
  const size_t begin = slash == std::string::npos ? 0 : slash + 1;
  const bool ends = dot != std::string::npos && dot > begin;
  return path.substr(0, ends ? dot : path.size()) + "." + name + (ends ? path.substr(dot) : "");
}

std::string FormatOutputs(const Tensor& predictions, OutputFormat format) {
  if (format == OutputFormat::kNpy) return data::FormatNpy(predictions);
  MT_CHECK(!predictions.dims().empty());
  const int64_t examples = predictions.dims()[0];
  const int64_t each = examples == 0 ? 0 : predictions.type().num_elements() / examples;
  Writer writer{.tensor = predictions, .format = format, .out = {}};
  for (int64_t example = 0; example < examples; ++example) {
    if (format == OutputFormat::kJsonLines) {
      writer.Nested(1, example * each);
    } else {
      for (int64_t i = 0; i < each; ++i) {
        if (i > 0) writer.out += ',';
        writer.Element(example * each + i);
      }
    }
    writer.out += '\n';
  }
  return std::move(writer.out);
}

}  // namespace meshtrain::worker
