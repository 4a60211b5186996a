#include "runtime/collective/reduce.h"

#include <type_traits>

#include "runtime/mesh/element_type.h"
#include "runtime/mesh/tensor.h"

namespace meshtrain::collective {
namespace {

using mesh::DType;
using mesh::Reduction;

// Integers wrap.
struct Sum {
  template <typename T>
  static T Apply(T a, T b) {
    if constexpr (std::is_integral_v<T>) {
      using Unsigned = std::make_unsigned_t<T>;
      return static_cast<T>(static_cast<Unsigned>(a) + static_cast<Unsigned>(b));
    } else {
      return static_cast<T>(a + b);
    }
  }
};
struct OrderedSum {
  template <typename T>
  static T Apply(T a, T b) {
    const T sum = Sum::Apply(a, b);
    if constexpr (mesh::kIsFloatType<T>) {
      return sum == sum ? sum : a != a ? a : b != b ? b : sum;
    }
    return sum;
  }
};
struct Max {
  template <typename T>
  static T Apply(T a, T b) {
    return (b > a || (b != b && a == a)) ? b : a;
  }
};
struct Min {
  template <typename T>
  static T Apply(T a, T b) {
    return (b < a || (b != b && a == a)) ? b : a;
  }
};

template <typename T, typename R>
void Loop(std::byte* to_bytes, const std::byte* left_bytes, const std::byte* right_bytes,
          int64_t n) {
  T* to = reinterpret_cast<T*>(to_bytes);
  const T* left = reinterpret_cast<const T*>(left_bytes);
  const T* right = reinterpret_cast<const T*>(right_bytes);
#pragma GCC ivdep
  for (int64_t i = 0; i < n; ++i) to[i] = R::template Apply<T>(left[i], right[i]);
}

template <typename T, typename S>
ReduceFn Of(Reduction reduction) {
  switch (reduction) {
    case Reduction::kSum:
      return Loop<T, S>;
    case Reduction::kMax:
      return Loop<T, Max>;
    case Reduction::kMin:
      return Loop<T, Min>;
  }
  return nullptr;
}

template <typename S>
ReduceFn Find(DType dtype, Reduction reduction) {
  return mesh::WithElementType(dtype, [&](auto zero) -> ReduceFn {
    using T = decltype(zero);
    if constexpr (std::is_same_v<T, bool>) {
      return reduction == Reduction::kSum ? nullptr : Of<uint8_t, S>(reduction);
    } else {
      return Of<T, S>(reduction);
    }
  });
}

}  // namespace

ReduceFn FindReduce(DType dtype, Reduction reduction) { return Find<Sum>(dtype, reduction); }
ReduceFn FindOrderedReduce(DType dtype, Reduction reduction) {
  return Find<OrderedSum>(dtype, reduction);
}

}  // namespace meshtrain::collective
