// Loops from one element type to another.
#include "runtime/device/cpu/kernels/parts.h"
#include "runtime/mesh/half_bits.h"

namespace meshtrain::device::cpu::MT_ISA {
namespace {

// An operand may be the result: loops go forward.
#define MT_LOOP _Pragma("GCC ivdep") for (int64_t i = 0; i < n; ++i)

template <typename F, typename T, typename D>
void Unary(void* d, const void* a, const void*, const void*, int64_t n) {
  const T* x = static_cast<const T*>(a);
  D* y = static_cast<D*>(d);
  MT_LOOP y[i] = F::Apply(x[i]);
}

// From float to whole numbers: towards zero; NaN and what does not fit give the type's limits or 0
// (as XLA).
template <typename From, typename To>
struct Convert {
  static To Apply(From x) {
    if constexpr ((From(0.5) != From(0)) && (To(0.5) == To(0))) {
      constexpr To kTop = To(-1) < To(0) ? To(~(uint64_t{1} << (sizeof(To) * 8 - 1))) : To(-1);
      constexpr To kBottom = To(-1) < To(0) ? To(uint64_t{1} << (sizeof(To) * 8 - 1)) : To(0);
      if (x != x) return To(0);
      if (x >= static_cast<From>(kTop)) return kTop;
      if (x <= static_cast<From>(kBottom)) return kBottom;
      return static_cast<To>(x);
    } else {
      return static_cast<To>(x);
    }
  }
};
template <typename From>
struct Convert<From, bool> {
  static bool Apply(From x) { return x != From(0); }
};

struct Bf16 {
  static float Wide(uint16_t bits) { return mesh::FloatOfBf16(bits); }
  static uint16_t Rounded(float number) { return mesh::Bf16OfFloat(number); }
};
struct F16 {
  static float Wide(uint16_t bits) { return mesh::FloatOfF16(bits); }
  static uint16_t Rounded(float number) { return mesh::F16OfFloat(number); }
};

float BeforeHalf(float number) { return number; }
float BeforeHalf(double number) { return mesh::OddFloat(number); }
float BeforeHalf(uint8_t number) { return number; }
float BeforeHalf(int32_t number) { return mesh::OddFloat(static_cast<double>(number)); }
float BeforeHalf(int64_t number) { return mesh::OddFloat(number); }

template <typename From, typename Half>
void Narrow(void* d, const void* a, const void*, const void*, int64_t n) {
  const From* x = static_cast<const From*>(a);
  uint16_t* y = static_cast<uint16_t*>(d);
  MT_LOOP y[i] = Half::Rounded(BeforeHalf(x[i]));
}

template <typename Half, typename To>
void Widen(void* d, const void* a, const void*, const void*, int64_t n) {
  const uint16_t* x = static_cast<const uint16_t*>(a);
  To* y = static_cast<To*>(d);
  MT_LOOP y[i] = Convert<float, To>::Apply(Half::Wide(x[i]));
}

template <typename Half, typename To>
void Other(void* d, const void* a, const void*, const void*, int64_t n) {
  const uint16_t* x = static_cast<const uint16_t*>(a);
  uint16_t* y = static_cast<uint16_t*>(d);
  MT_LOOP y[i] = To::Rounded(Half::Wide(x[i]));
}

template <typename Half>
BlockFn CastFromHalf(Type to) {
  switch (to) {
    case Type::kBool:
      return Widen<Half, bool>;
    case Type::kU8:
      return Widen<Half, uint8_t>;
    case Type::kI32:
      return Widen<Half, int32_t>;
    case Type::kI64:
      return Widen<Half, int64_t>;
    case Type::kF32:
      return Widen<Half, float>;
    case Type::kF64:
      return Widen<Half, double>;
    case Type::kBF16:
      return Other<Half, Bf16>;
    case Type::kF16:
      return Other<Half, F16>;
  }
  return nullptr;
}

template <typename From>
BlockFn CastFrom(Type to) {
  switch (to) {
    case Type::kBool:
      return Unary<Convert<From, bool>, From, bool>;
    case Type::kU8:
      return Unary<Convert<From, uint8_t>, From, uint8_t>;
    case Type::kI32:
      return Unary<Convert<From, int32_t>, From, int32_t>;
    case Type::kI64:
      return Unary<Convert<From, int64_t>, From, int64_t>;
    case Type::kF32:
      return Unary<Convert<From, float>, From, float>;
    case Type::kF64:
      return Unary<Convert<From, double>, From, double>;
    case Type::kBF16:
      return Narrow<From, Bf16>;
    case Type::kF16:
      return Narrow<From, F16>;
  }
  return nullptr;
}

}  // namespace

BlockFn FindCast(Type from, Type to) {
  switch (from) {
    case Type::kBool:
      return CastFrom<uint8_t>(to);
    case Type::kU8:
      return CastFrom<uint8_t>(to);
    case Type::kI32:
      return CastFrom<int32_t>(to);
    case Type::kI64:
      return CastFrom<int64_t>(to);
    case Type::kF32:
      return CastFrom<float>(to);
    case Type::kF64:
      return CastFrom<double>(to);
    case Type::kBF16:
      return CastFromHalf<Bf16>(to);
    case Type::kF16:
      return CastFromHalf<F16>(to);
  }
  return nullptr;
}

}  // namespace meshtrain::device::cpu::MT_ISA
