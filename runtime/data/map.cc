#include "runtime/data/map.h"

#include <cmath>
#include <cstring>
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

template <typename T>
Tensor NormalizeTensor(const Tensor& x, const Normalize& by) {
  if (by.mean.size() == 1 && by.deviation.size() == 1) {
    const T mean = static_cast<T>(by.mean[0]), deviation = static_cast<T>(by.deviation[0]);
    return Elementwise<T>(x, [=](T v) { return (v - mean) / deviation; });
  }
  const auto channels = static_cast<size_t>(x.dims().back());
  const auto of_channels = [channels](const std::vector<double>& given) {
    std::vector<T> all(given.begin(), given.end());
    all.resize(channels, all[0]);
    return all;
  };
  const std::vector<T> mean = of_channels(by.mean), deviation = of_channels(by.deviation);
  size_t c = channels - 1;
  return Elementwise<T>(x, [&](T v) {
    c = c + 1 == channels ? 0 : c + 1;
    return (v - mean[c]) / deviation[c];
  });
}

bool TellsChannels(const MapOp& op) {
  const auto* n = std::get_if<Normalize>(&op);
  return n != nullptr && (n->mean.size() > 1 || n->deviation.size() > 1);
}

Status CheckEach(const std::string& what, const std::vector<double>& numbers, int64_t channels) {
  if (numbers.size() != 1 && static_cast<int64_t>(numbers.size()) != channels) {
    return InvalidArgument("expected one " + what + ", or one for each channel (" +
                           std::to_string(channels) + "), got: " + std::to_string(numbers.size()));
  }
  for (const double number : numbers) {
    if (std::isfinite(number) && (what == "mean" || number > 0)) continue;
    return InvalidArgument("expected a " + what +
                           (what == "mean" ? " that is finite, got: " : " above 0, got: ") +
                           std::to_string(number));
  }
  return OkStatus();
}

}  // namespace

std::string_view NameOf(const MapOp& op) {
  struct {
    std::string_view operator()(const Scale&) const { return "scale"; }
    std::string_view operator()(const Normalize&) const { return "normalize"; }
    std::string_view operator()(const Cast&) const { return "cast"; }
    std::string_view operator()(const RandomFlip&) const { return "random_flip"; }
    std::string_view operator()(const RandomCrop&) const { return "random_crop"; }
    std::string_view operator()(const CenterCrop&) const { return "center_crop"; }
  } const name;
  return std::visit(name, op);
}

Status CheckNumbers(const MapOp& op, int64_t channels) {
  if (const auto* scale = std::get_if<Scale>(&op);
      scale != nullptr && !std::isfinite(scale->factor)) {
    return InvalidArgument("expected a finite factor, got: " + std::to_string(scale->factor));
  }
  if (const auto* n = std::get_if<Normalize>(&op)) {
    MT_RETURN_IF_ERROR(CheckEach("mean", n->mean, channels));
    MT_RETURN_IF_ERROR(CheckEach("deviation", n->deviation, channels));
  }
  return OkStatus();
}

Tensor ApplyMap(const MapOp& op, const Tensor& x) {
  if (const auto* cast = std::get_if<Cast>(&op)) return mesh::CastTensor(x, cast->to);
  const Tensor v = mesh::CastTensor(x, FloatFor(x.type().dtype));
  const bool wide = v.type().dtype == DType::kF64;
  if (const auto* scale = std::get_if<Scale>(&op)) {
    return wide ? ScaleTensor<double>(v, scale->factor) : ScaleTensor<float>(v, scale->factor);
  }
  const auto& n = std::get<Normalize>(op);
  return wide ? NormalizeTensor<double>(v, n) : NormalizeTensor<float>(v, n);
}

Result<MapChain> MapChain::Create(std::vector<MapOp> ops, DType input, int64_t channels) {
  MapChain chain;
  chain.input_ = input;
  chain.output_ = input;
  for (const MapOp& op : ops) {
    MT_RETURN_IF_ERROR(CheckNumbers(op, channels).At("map: " + std::string(NameOf(op))));
    if (TellsChannels(op)) chain.channels_ = channels;
    chain.output_ = OutputOf(op, chain.output_);
  }
  chain.ops_ = std::move(ops);
  if (input == DType::kU8) {
    chain.table_ = Tensor(TensorType{DType::kU8, {256, chain.channels_}});
    const auto all = chain.table_.mutable_values<uint8_t>();
    for (size_t i = 0; i < all.size(); ++i) {
      all[i] = static_cast<uint8_t>(i / static_cast<size_t>(chain.channels_));
    }
    for (const MapOp& op : chain.ops_) chain.table_ = ApplyMap(op, chain.table_);
  }
  return chain;
}

void MapChain::Run(std::span<const std::byte> in, std::span<std::byte> out) const {
  const int64_t count = static_cast<int64_t>(in.size()) / mesh::DTypeBytes(input_);
  MT_CHECK(static_cast<int64_t>(out.size()) == count * mesh::DTypeBytes(output_));
  MT_CHECK(count % channels_ == 0);
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
      if (channels_ == 1) {
        for (int64_t i = 0; i < count; ++i) to[i] = table[from[i]];
        return;
      }
      for (int64_t i = 0; i < count; i += channels_) {
        for (int64_t c = 0; c < channels_; ++c) to[i + c] = table[from[i + c] * channels_ + c];
      }
    });
    return;
  }
  Tensor x(TensorType{input_, {count / channels_, channels_}});
  std::memcpy(x.mutable_bytes().data(), in.data(), in.size());
  for (const MapOp& op : ops_) x = ApplyMap(op, x);
  std::memcpy(out.data(), x.bytes().data(), out.size());
}

}  // namespace meshtrain::data
