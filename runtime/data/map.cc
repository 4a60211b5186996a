#include "runtime/data/map.h"

#include <cmath>
#include <cstring>
#include <numeric>
#include <string>

#include "runtime/base/check.h"
#include "runtime/mesh/cast.h"
#include "runtime/mesh/element_type.h"

namespace meshtrain::data {
namespace {

using mesh::DType;
using mesh::Tensor;
using mesh::TensorType;

// What halves hold is scaled as f32 is.
DType FloatFor(DType in) { return in == DType::kF64 ? DType::kF64 : DType::kF32; }

template <typename T, typename F>
Tensor Elementwise(const Tensor& x, F f) {
  Tensor y(TensorType{mesh::DTypeOf<T>::value, x.dims()});
  const auto in = x.values<T>();
  const auto out = y.mutable_values<T>();
  for (size_t i = 0; i < in.size(); ++i) out[i] = f(in[i]);
  return y;
}

template <typename T>
Tensor ScaleTensor(const Tensor& x, double factor) {
  const double whole = std::nearbyint(1 / factor);
  if (factor != 0 && std::abs(whole) >= 1 && 1 / whole == factor) {
    const T divisor = static_cast<T>(whole);
    return Elementwise<T>(x, [divisor](T v) { return v / divisor; });
  }
  const T by = static_cast<T>(factor);
  return Elementwise<T>(x, [by](T v) { return v * by; });
}

DType OutputOf(const MapOp& op, DType in) {
  if (const auto* cast = std::get_if<Cast>(&op)) return cast->to;
  return FloatFor(in);
}

Status Check(const MapOp& op) {
  if (const auto* scale = std::get_if<Scale>(&op);
      scale != nullptr && !std::isfinite(scale->factor)) {
    return InvalidArgument("map: scale: expected a finite factor, got: " +
                           std::to_string(scale->factor));
  }
  if (const auto* n = std::get_if<Normalize>(&op)) {
    if (!std::isfinite(n->mean)) {
      return InvalidArgument("map: normalize: expected a finite mean, got: " +
                             std::to_string(n->mean));
    }
    if (!std::isfinite(n->deviation) || n->deviation <= 0) {
      return InvalidArgument("map: normalize: expected a deviation above 0, got: " +
                             std::to_string(n->deviation));
    }
  }
  return OkStatus();
}

}  // namespace

Tensor ApplyMap(const MapOp& op, const Tensor& x) {
  if (const auto* cast = std::get_if<Cast>(&op)) return mesh::CastTensor(x, cast->to);
  const Tensor v = mesh::CastTensor(x, FloatFor(x.type().dtype));
  const bool wide = v.type().dtype == DType::kF64;
  if (const auto* scale = std::get_if<Scale>(&op)) {
    return wide ? ScaleTensor<double>(v, scale->factor) : ScaleTensor<float>(v, scale->factor);
  }
  const auto& n = std::get<Normalize>(op);
  if (wide) return Elementwise<double>(v, [&](double e) { return (e - n.mean) / n.deviation; });
  const auto mean = static_cast<float>(n.mean);
  const auto deviation = static_cast<float>(n.deviation);
  return Elementwise<float>(v, [=](float e) { return (e - mean) / deviation; });
}

Result<MapChain> MapChain::Create(std::vector<MapOp> ops, DType input) {
  MapChain chain;
  chain.input_ = input;
  chain.output_ = input;
  for (const MapOp& op : ops) {
    MT_RETURN_IF_ERROR(Check(op));
    chain.output_ = OutputOf(op, chain.output_);
  }
  chain.ops_ = std::move(ops);
  if (input == DType::kU8) {
    std::vector<uint8_t> all(256);
    std::iota(all.begin(), all.end(), uint8_t{0});
    chain.table_ = Tensor::Of<uint8_t>({256}, all);
    for (const MapOp& op : chain.ops_) chain.table_ = ApplyMap(op, chain.table_);
  }
  return chain;
}

void MapChain::Run(std::span<const std::byte> in, std::span<std::byte> out) const {
  const int64_t count = static_cast<int64_t>(in.size()) / mesh::DTypeBytes(input_);
  MT_CHECK(static_cast<int64_t>(out.size()) == count * mesh::DTypeBytes(output_));
  if (in.empty()) return;
  if (ops_.empty()) {
    std::memcpy(out.data(), in.data(), in.size());
    return;
  }
  if (input_ == DType::kU8) {
    const auto* from = reinterpret_cast<const uint8_t*>(in.data());
    mesh::WithElementType(output_, [&](auto target) {
      using To = decltype(target);
      const To* table = table_.values<To>().data();
      auto* to = reinterpret_cast<To*>(out.data());
      for (int64_t i = 0; i < count; ++i) to[i] = table[from[i]];
    });
    return;
  }
  Tensor x(TensorType{input_, {count}});
  std::memcpy(x.mutable_bytes().data(), in.data(), in.size());
  for (const MapOp& op : ops_) x = ApplyMap(op, x);
  std::memcpy(out.data(), x.bytes().data(), out.size());
}

}  // namespace meshtrain::data
