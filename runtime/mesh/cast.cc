#include "runtime/mesh/cast.h"

#include <cmath>
#include <limits>
#include <type_traits>
#include <utility>

#include "runtime/mesh/element_type.h"

namespace meshtrain::mesh {
namespace {

template <typename To, typename From>
To CastTo(From x) {
  if constexpr (std::is_same_v<To, bool>) {
    return x != From{};
  } else if constexpr (std::is_integral_v<To> && kIsFloatType<From>) {
    if (std::isnan(x)) return 0;
    // The limits as floats may round up past the type, hence >=.
    if (x >= static_cast<From>(std::numeric_limits<To>::max())) {
      return std::numeric_limits<To>::max();
    }
    if (x <= static_cast<From>(std::numeric_limits<To>::min())) {
      return std::numeric_limits<To>::min();
    }
    return static_cast<To>(x);
  } else if constexpr (std::is_integral_v<To> && std::is_integral_v<From> &&
                       !std::is_same_v<From, bool>) {
    if (std::in_range<To>(x)) return static_cast<To>(x);
    return std::cmp_less(x, 0) ? std::numeric_limits<To>::min() : std::numeric_limits<To>::max();
  } else {
    return static_cast<To>(x);
  }
}

}  // namespace

Tensor CastTensor(const Tensor& x, DType to) {
  if (x.type().dtype == to) return x;
  Tensor y(TensorType{to, x.dims()});
  WithElementType(x.type().dtype, [&](auto from) {
    WithElementType(to, [&](auto target) {
      using From = decltype(from);
      using To = decltype(target);
      const auto in = x.values<From>();
      const auto out = y.mutable_values<To>();
      for (size_t i = 0; i < in.size(); ++i) out[i] = CastTo<To>(in[i]);
    });
  });
  return y;
}

}  // namespace meshtrain::mesh
