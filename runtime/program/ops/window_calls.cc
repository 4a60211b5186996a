// Windows as functions: padding worked out, means made of sums.
#include <algorithm>

#include "runtime/program/ops.h"
#include "runtime/program/ops/support.h"

namespace meshtrain::program {
namespace {

using namespace ops;  // NOLINT: the families' own helpers

Dims Spatial(const Dims& dims) {
  return dims.size() < 3 ? Dims() : Dims(dims.begin() + 1, dims.end() - 1);
}

Attrs AttrsOf(const Windows& w) {
  return {{"strides", w.strides}, {"dilations", w.dilations}, {"low", w.low}, {"high", w.high}};
}

Value Sliding(std::string_view kind, const Operand& x, const Windows& windows) {
  const Windows w = WithPadding(windows, Spatial(TypeOf(x).dims), windows.sizes);
  Attrs attrs = AttrsOf(w);
  attrs.Set("sizes", w.sizes);
  return Record(kind, {x}, std::move(attrs));
}

}  // namespace

Windows WithPadding(Windows windows, const Dims& over, const Dims& sizes) {
  if (windows.strides.empty()) windows.strides.assign(over.size(), 1);
  if (windows.dilations.empty()) windows.dilations.assign(over.size(), 1);
  if (windows.padding == Padding::kExplicit) return windows;
  windows.low.assign(over.size(), 0);
  windows.high.assign(over.size(), 0);
  // Lists of other lengths and sizes below 1 are for infer to name.
  const auto fits = [&](const Dims& list) {
    return list.size() == over.size() &&
           std::all_of(list.begin(), list.end(), [](int64_t i) { return i >= 1; });
  };
  if (windows.padding == Padding::kValid || !fits(windows.strides) || !fits(windows.dilations) ||
      !fits(sizes)) {
    return windows;
  }
  for (size_t d = 0; d < over.size(); ++d) {
    const int64_t stride = windows.strides[d];
    const int64_t reach = (sizes[d] - 1) * windows.dilations[d] + 1;
    const int64_t positions = (over[d] + stride - 1) / stride;
    const int64_t padding = std::max<int64_t>(0, (positions - 1) * stride + reach - over[d]);
    windows.low[d] = padding / 2;
    windows.high[d] = padding - padding / 2;
  }
  return windows;
}

Value Conv(const Operand& x, const Operand& kernel, const Windows& windows) {
  const Dims over = Spatial(TypeOf(x).dims);
  Dims sizes = TypeOf(kernel).dims;
  sizes.resize(std::min(sizes.size(), over.size()));
  return Record("conv", {x, kernel}, AttrsOf(WithPadding(windows, over, sizes)));
}

Value WindowSum(const Operand& x, const Windows& windows) {
  return Sliding("window_sum", x, windows);
}

Value WindowMax(const Operand& x, const Windows& windows) {
  return Sliding("window_max", x, windows);
}

Value WindowMean(const Operand& x, const Windows& windows) {
  const TensorType type = TypeOf(x);
  // A sum may be beyond what 16 bits hold, where the mean is not.
  if (mesh::IsHalf(type.dtype)) {
    const Operand wide(Cast(x, DType::kF32), x.where());
    return Cast(Operand(WindowMean(wide, windows), x.where()), type.dtype);
  }
  const Value sum = WindowSum(x, windows);
  if (!sum.builder()->status().ok()) return sum;
  const Windows w = WithPadding(windows, Spatial(type.dims), windows.sizes);
  const auto pads = [](const Dims& list) {
    return std::any_of(list.begin(), list.end(), [](int64_t i) { return i > 0; });
  };
  if (!pads(w.low) && !pads(w.high)) {
    int64_t taps = 1;
    for (const int64_t size : w.sizes) taps *= size;
    return Mul(Operand(sum, x.where()), Operand(1.0 / static_cast<double>(taps), x.where()));
  }
  // How many elements each window has, counted by the same windows over ones.
  Dims dims = type.dims;
  dims.front() = dims.back() = 1;
  const Value ones = sum.builder()->Append1(
      "fill", {}, {{"dims", dims}, {"value", 1.0}, {"dtype", DTypeText(type.dtype)}});
  return Div(Operand(sum, x.where()), Operand(WindowSum(ones, w), x.where()));
}

}  // namespace meshtrain::program
