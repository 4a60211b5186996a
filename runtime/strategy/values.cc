#include "runtime/strategy/values.h"

#include <algorithm>
#include <string>
#include <type_traits>

#include "runtime/base/check.h"
#include "runtime/mesh/element_type.h"
#include "runtime/mesh/half.h"

namespace meshtrain::strategy {

using mesh::DType;
using mesh::Tensor;
using mesh::TensorType;

namespace {

// body(T{}) for the element type. Errors: kInvalidArgument for bools, which have no sum.
template <typename Body>
Status ForNumbers(DType dtype, const Body& body) {
  return mesh::WithElementType(dtype, [&](auto zero) -> Status {
    if constexpr (std::is_same_v<decltype(zero), bool>) {
      return InvalidArgument("reduce: expected numbers, got: " +
                             std::string(mesh::DTypeName(dtype)));
    } else {
      return body(zero);
    }
  });
}

// What sums of the element type are added in.
template <typename T>
using SumType = std::conditional_t<mesh::kIsFloatType<T>, double, T>;
DType SumTypeOf(DType dtype) { return mesh::IsFloat(dtype) ? DType::kF64 : dtype; }

}  // namespace

std::pair<int64_t, int64_t> RowsOf(int64_t examples, int64_t replicas, int64_t replica) {
  MT_CHECK(examples >= 0 && replicas > 0 && replica >= 0 && replica < replicas);
  const int64_t chunk = examples / replicas + (examples % replicas != 0 ? 1 : 0);
  const int64_t begin = std::min(examples, replica * chunk);
  return {begin, std::min(examples, begin + chunk)};
}

Tensor Rows(const Tensor& x, int64_t begin, int64_t end) {
  mesh::Dims offsets(x.dims().size(), 0), sizes = x.dims();
  offsets[0] = begin;
  sizes[0] = end - begin;
  if (sizes == x.dims()) return x;
  if (mesh::NumElements(sizes) == 0) return Tensor(TensorType{x.type().dtype, std::move(sizes)});
  return x.Slice(offsets, sizes);
}

Result<PerReplicaBatch> SplitBatch(std::span<const Tensor> components, int64_t replicas,
                                   int64_t first, int64_t count) {
  PerReplicaBatch batch;
  batch.replicas.resize(static_cast<size_t>(count));
  for (const Tensor& x : components) {
    if (x.type().rank() == 0) {
      return InvalidArgument("batch: expected components [N, ...], got: " + x.type().ToString());
    }
    if (batch.global_size >= 0 && x.dims()[0] != batch.global_size) {
      return InvalidArgument("batch: expected " + std::to_string(batch.global_size) +
                             " examples in each component, got: " + x.type().ToString());
    }
    batch.global_size = x.dims()[0];
    for (int64_t r = 0; r < count; ++r) {
      const auto [begin, end] = RowsOf(batch.global_size, replicas, first + r);
      batch.replicas[static_cast<size_t>(r)].push_back(Rows(x, begin, end));
    }
  }
  return batch;
}

Status OfDifferentTypes(const Tensor& a, const Tensor& b) {
  return InvalidArgument("reduce: expected values of one type on all replicas, got: " +
                         a.type().ToString() + " and " + b.type().ToString());
}

Result<Tensor> AddAll(std::span<const Tensor> values) {
  if (values.empty()) return InvalidArgument("reduce: expected at least one value, got: none");
  for (const Tensor& v : values) {
    if (v.type() != values[0].type()) return OfDifferentTypes(values[0], v);
  }
  const DType dtype = values[0].type().dtype;
  Tensor sum(TensorType{SumTypeOf(dtype), values[0].dims()});
  MT_RETURN_IF_ERROR(ForNumbers(dtype, [&](auto zero) {
    using T = decltype(zero);
    using S = SumType<T>;
    const std::span<S> out = sum.mutable_values<S>();
    std::ranges::copy(values[0].values<T>(), out.begin());
    for (const Tensor& v : values.subspan(1)) {
      const std::span<const T> in = v.values<T>();
      for (size_t i = 0; i < out.size(); ++i) out[i] = static_cast<S>(out[i] + S{in[i]});
    }
    return OkStatus();
  }));
  return sum;
}

Result<Tensor> SumAlong(const Tensor& x, int64_t axis) {
  const int rank = x.type().rank();
  const int64_t at = axis < 0 ? axis + rank : axis;
  if (at < 0 || at >= rank) {
    return InvalidArgument("reduce: expected an axis of " + x.type().ToString() +
                           ", got: " + std::to_string(axis));
  }
  int64_t outer = 1, inner = 1;
  for (int64_t d = 0; d < at; ++d) outer *= x.dims()[static_cast<size_t>(d)];
  for (int64_t d = at + 1; d < rank; ++d) inner *= x.dims()[static_cast<size_t>(d)];
  const int64_t fold = x.dims()[static_cast<size_t>(at)];
  mesh::Dims dims = x.dims();
  dims.erase(dims.begin() + at);
  Tensor sum(TensorType{SumTypeOf(x.type().dtype), std::move(dims)});
  MT_RETURN_IF_ERROR(ForNumbers(x.type().dtype, [&](auto zero) {
    using T = decltype(zero);
    using S = SumType<T>;
    const std::span<S> out = sum.mutable_values<S>();
    const std::span<const T> in = x.values<T>();
    std::ranges::fill(out, S{0});
    for (int64_t o = 0; o < outer; ++o) {
      for (int64_t f = 0; f < fold; ++f) {
        for (int64_t i = 0; i < inner; ++i) {
          S& to = out[static_cast<size_t>(o * inner + i)];
          to = static_cast<S>(to + S{in[static_cast<size_t>((o * fold + f) * inner + i)]});
        }
      }
    }
    return OkStatus();
  }));
  return sum;
}

Result<Tensor> DivideBy(const Tensor& x, double divisor) {
  if (!mesh::IsFloat(x.type().dtype)) {
    return InvalidArgument("reduce: a mean takes f32, f64, bf16 or f16, got: " +
                           x.type().ToString());
  }
  Tensor out = Widened(x);
  for (double& value : out.mutable_values<double>()) value /= divisor;
  return RoundedTo(x.type().dtype, out);
}

Tensor Widened(const Tensor& x) {
  if (SumTypeOf(x.type().dtype) == x.type().dtype) return x;
  Tensor wide(TensorType{DType::kF64, x.dims()});
  mesh::WithElementType(x.type().dtype, [&](auto zero) {
    std::ranges::copy(x.values<decltype(zero)>(), wide.mutable_values<double>().begin());
  });
  return wide;
}

Tensor RoundedTo(DType dtype, const Tensor& x) {
  if (x.type().dtype == dtype || x.type().dtype != DType::kF64) return x;
  Tensor rounded(TensorType{dtype, x.dims()});
  mesh::WithElementType(dtype, [&](auto zero) {
    using T = decltype(zero);
    std::ranges::transform(x.values<double>(), rounded.mutable_values<T>().begin(),
                           [](double value) { return static_cast<T>(value); });
  });
  return rounded;
}

}  // namespace meshtrain::strategy
