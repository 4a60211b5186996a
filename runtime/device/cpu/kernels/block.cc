// Element-wise loops over blocks, and the table of this instruction set.
#include "runtime/device/cpu/kernels/math.h"
#include "runtime/device/cpu/kernels/parts.h"

namespace meshtrain::device::cpu::MT_ISA {
namespace {

// Loops load an element, or the one scalar.
template <typename T, bool kScalar>
struct In {
  const T* p;
  T s;
  explicit In(const void* at) : p(static_cast<const T*>(at)), s(kScalar ? *p : T{}) {}
  T operator[](int64_t i) const { return kScalar ? s : p[i]; }
};

// "d may be any of the operands": iterations are independent either way.
#define MT_LOOP _Pragma("GCC ivdep") for (int64_t i = 0; i < n; ++i)

template <typename F, typename T, typename D>
void Unary(void* d, const void* a, const void*, const void*, int64_t n) {
  const T* x = static_cast<const T*>(a);
  D* y = static_cast<D*>(d);
  MT_LOOP y[i] = static_cast<D>(F::Apply(x[i]));
}

template <typename F, typename T, typename D, bool kA, bool kB>
void Binary(void* d, const void* a, const void* b, const void*, int64_t n) {
  const In<T, kA> x(a);
  const In<T, kB> y(b);
  D* z = static_cast<D*>(d);
  MT_LOOP z[i] = static_cast<D>(F::Apply(x[i], y[i]));
}

template <typename F, typename T, bool kB, bool kC>
void Ternary(void* d, const void* a, const void* b, const void* c, int64_t n) {
  const In<T, false> x(a);
  const In<T, kB> y(b);
  const In<T, kC> w(c);
  T* z = static_cast<T*>(d);
  MT_LOOP z[i] = F::Apply(x[i], y[i], w[i]);
}

template <typename T, bool kB, bool kC>
void SelectLoop(void* d, const void* a, const void* b, const void* c, int64_t n) {
  const uint8_t* x = static_cast<const uint8_t*>(a);
  const In<T, kB> y(b);
  const In<T, kC> w(c);
  T* z = static_cast<T*>(d);
  MT_LOOP {
    const T yes = y[i], no = w[i];
    z[i] = x[i] != 0 ? yes : no;
  }
}

// Whole numbers wrap around; done on unsigned ones, where that is defined.
template <typename T>
struct Wrap {
  using type = T;
};
template <>
struct Wrap<int32_t> {
  using type = uint32_t;
};
template <>
struct Wrap<int64_t> {
  using type = uint64_t;
};
template <>
struct Wrap<uint8_t> {
  using type = uint32_t;
};

#define MT_WRAPPING(Name, expression)                       \
  struct Name {                                             \
    template <typename T>                                   \
    static T Apply(T a, T b) {                              \
      using W = typename Wrap<T>::type;                     \
      const W x = static_cast<W>(a), y = static_cast<W>(b); \
      return static_cast<T>(expression);                    \
    }                                                       \
  };
MT_WRAPPING(Add, x + y)
MT_WRAPPING(Sub, x - y)
MT_WRAPPING(Mul, x* y)
#undef MT_WRAPPING

#define MT_FUNCTION2(Name, Result, expression) \
  struct Name {                                \
    template <typename T>                      \
    static Result Apply(T a, T b) {            \
      return expression;                       \
    }                                          \
  };
MT_FUNCTION2(Div, T, a / b)
MT_FUNCTION2(Power, T, Pow(a, b))
MT_FUNCTION2(Maximum, T, ((a >= b || a != a) ? a : b))  // NaN wins, whichever side it is on
MT_FUNCTION2(Minimum, T, ((a <= b || a != a) ? a : b))
MT_FUNCTION2(Equal, bool, a == b)
MT_FUNCTION2(NotEqual, bool, a != b)
MT_FUNCTION2(Less, bool, a < b)
MT_FUNCTION2(LessEqual, bool, a <= b)
MT_FUNCTION2(Greater, bool, a > b)
MT_FUNCTION2(GreaterEqual, bool, a >= b)
MT_FUNCTION2(And, bool, ((a != 0) & (b != 0)))
MT_FUNCTION2(Or, bool, ((a != 0) | (b != 0)))
MT_FUNCTION2(SquareMul, T, a* a* b)
MT_FUNCTION2(SqrtAdd, T, Sqrt(a) + b)
#undef MT_FUNCTION2

#define MT_FUNCTION1(Name, Result, expression) \
  struct Name {                                \
    template <typename T>                      \
    static Result Apply(T a) {                 \
      return expression;                       \
    }                                          \
  };
MT_FUNCTION1(Neg, T, Sub::Apply(T(0), a))
MT_FUNCTION1(NegFloat, T, -a)
MT_FUNCTION1(Abs, T, (a < T(0) ? Sub::Apply(T(0), a) : a))
MT_FUNCTION1(AbsFloat, T, (a < T(0) ? -a : a + T(0)))  // + 0 turns -0 into 0
MT_FUNCTION1(Sign, T, T(T(a > T(0)) - T(a < T(0))))
MT_FUNCTION1(SignFloat, T, (a != a ? a : T(a > T(0)) - T(a < T(0))))
MT_FUNCTION1(FloorOf, T, Floor(a))
MT_FUNCTION1(Square, T, Mul::Apply(a, a))
MT_FUNCTION1(SqrtOf, T, Sqrt(a))
MT_FUNCTION1(Rsqrt, T, T(1) / Sqrt(a))
MT_FUNCTION1(ExpOf, T, Exp(a))
MT_FUNCTION1(LogOf, T, Log(a))
MT_FUNCTION1(Log1pOf, T, Log1p(a))
MT_FUNCTION1(Expm1Of, T, Expm1(a))
MT_FUNCTION1(SinOf, T, Sin(a))
MT_FUNCTION1(CosOf, T, Cos(a))
// e^-|x| cannot overflow; NaN stays.
MT_FUNCTION1(Softplus, T, (a > T(0) ? a : T(0)) + Log1p(Exp(a > T(0) ? -a : a)))
MT_FUNCTION1(ErfOf, T, Erf(a))
MT_FUNCTION1(TanhOf, T, Tanh(a))
MT_FUNCTION1(Sigmoid, T, Logistic(a))
MT_FUNCTION1(Relu, T, (a <= T(0) ? T(0) : a))  // keeps NaN
MT_FUNCTION1(Not, bool, a == 0)
MT_FUNCTION1(Same, T, a)
#undef MT_FUNCTION1

#define MT_FUNCTION3(Name, expression) \
  struct Name {                        \
    template <typename T>              \
    static T Apply(T a, T b, T c) {    \
      return expression;               \
    }                                  \
  };
MT_FUNCTION3(MulAdd, a* b + c)
MT_FUNCTION3(MulSub, a* b - c)
MT_FUNCTION3(NegMulAdd, c - a * b)
MT_FUNCTION3(MulSqrtAdd, Sqrt(a* b) + c)
MT_FUNCTION3(MulDiv, a* b / c)
MT_FUNCTION3(KeepWhere, b*(a > c ? T(1) : T(0)))
#undef MT_FUNCTION3

// One factor for all: 1 / s, or, where digits of s or of that are missing, 1 / (s f) and a power of
// two f before it.
template <typename T>
void DivideBy(void* d, const void* a, const void* b, const void*, int64_t n) {
  constexpr T kLarge = sizeof(T) == sizeof(float) ? T(0x1p64F) : T(0x1p512);
  const T s = *static_cast<const T*>(b);
  const T size = s < 0 ? -s : s;
  const T factor = size < 1 / kLarge ? kLarge : size > kLarge ? 1 / kLarge : 1;
  const T inverse = 1 / (s * factor);
  const T* x = static_cast<const T*>(a);
  T* y = static_cast<T*>(d);
  MT_LOOP y[i] = x[i] * factor * inverse;
}

template <typename F, typename T, typename D = T>
BlockFn TwoFor(ScalarMask scalars) {
  switch (scalars) {
    case 0:
      return Binary<F, T, D, false, false>;
    case 1:
      return Binary<F, T, D, true, false>;
    case 2:
      return Binary<F, T, D, false, true>;
    default:
      return nullptr;
  }
}

template <typename F, typename T>
BlockFn ThreeFor(ScalarMask scalars) {
  switch (scalars) {
    case 0:
      return Ternary<F, T, false, false>;
    case 2:
      return Ternary<F, T, true, false>;
    case 4:
      return Ternary<F, T, false, true>;
    case 6:
      return Ternary<F, T, true, true>;
    default:
      return nullptr;
  }
}

template <typename T>
BlockFn SelectFor(ScalarMask scalars) {
  switch (scalars) {
    case 0:
      return SelectLoop<T, false, false>;
    case 2:
      return SelectLoop<T, true, false>;
    case 4:
      return SelectLoop<T, false, true>;
    case 6:
      return SelectLoop<T, true, true>;
    default:
      return nullptr;
  }
}

template <typename T>
BlockFn ForFloat(BlockOp op, ScalarMask s) {
  switch (op) {
    case BlockOp::kAdd:
      return TwoFor<Add, T>(s);
    case BlockOp::kSub:
      return TwoFor<Sub, T>(s);
    case BlockOp::kMul:
      return TwoFor<Mul, T>(s);
    case BlockOp::kDiv:
      return s == 2 ? DivideBy<T> : TwoFor<Div, T>(s);
    case BlockOp::kPow:
      return TwoFor<Power, T>(s);
    case BlockOp::kMaximum:
      return TwoFor<Maximum, T>(s);
    case BlockOp::kMinimum:
      return TwoFor<Minimum, T>(s);
    case BlockOp::kEqual:
      return TwoFor<Equal, T, bool>(s);
    case BlockOp::kNotEqual:
      return TwoFor<NotEqual, T, bool>(s);
    case BlockOp::kLess:
      return TwoFor<Less, T, bool>(s);
    case BlockOp::kLessEqual:
      return TwoFor<LessEqual, T, bool>(s);
    case BlockOp::kGreater:
      return TwoFor<Greater, T, bool>(s);
    case BlockOp::kGreaterEqual:
      return TwoFor<GreaterEqual, T, bool>(s);
    case BlockOp::kSquareMul:
      return TwoFor<SquareMul, T>(s);
    case BlockOp::kSqrtAdd:
      return TwoFor<SqrtAdd, T>(s);
    case BlockOp::kMulAdd:
      return ThreeFor<MulAdd, T>(s);
    case BlockOp::kMulSub:
      return ThreeFor<MulSub, T>(s);
    case BlockOp::kNegMulAdd:
      return ThreeFor<NegMulAdd, T>(s);
    case BlockOp::kMulSqrtAdd:
      return ThreeFor<MulSqrtAdd, T>(s);
    case BlockOp::kMulDiv:
      return ThreeFor<MulDiv, T>(s);
    case BlockOp::kKeepWhere:
      return ThreeFor<KeepWhere, T>(s);
    case BlockOp::kSelect:
      return SelectFor<T>(s);
    default:
      break;
  }
  if (s != 0) return nullptr;
  switch (op) {
    case BlockOp::kNeg:
      return Unary<NegFloat, T, T>;
    case BlockOp::kAbs:
      return Unary<AbsFloat, T, T>;
    case BlockOp::kSign:
      return Unary<SignFloat, T, T>;
    case BlockOp::kFloor:
      return Unary<FloorOf, T, T>;
    case BlockOp::kSquare:
      return Unary<Square, T, T>;
    case BlockOp::kSqrt:
      return Unary<SqrtOf, T, T>;
    case BlockOp::kRsqrt:
      return Unary<Rsqrt, T, T>;
    case BlockOp::kExp:
      return Unary<ExpOf, T, T>;
    case BlockOp::kLog:
      return Unary<LogOf, T, T>;
    case BlockOp::kLog1p:
      return Unary<Log1pOf, T, T>;
    case BlockOp::kExpm1:
      return Unary<Expm1Of, T, T>;
    case BlockOp::kSin:
      return Unary<SinOf, T, T>;
    case BlockOp::kCos:
      return Unary<CosOf, T, T>;
    case BlockOp::kSoftplus:
      return Unary<Softplus, T, T>;
    case BlockOp::kErf:
      return Unary<ErfOf, T, T>;
    case BlockOp::kTanh:
      return Unary<TanhOf, T, T>;
    case BlockOp::kSigmoid:
      return Unary<Sigmoid, T, T>;
    case BlockOp::kRelu:
      return Unary<Relu, T, T>;
    case BlockOp::kCopy:
      return Unary<Same, T, T>;
    default:
      return nullptr;
  }
}

template <typename T>
BlockFn ForInt(BlockOp op, ScalarMask s) {
  if (op == BlockOp::kSelect) return SelectFor<T>(s);
  if (s != 0) return nullptr;
  switch (op) {
    case BlockOp::kAdd:
      return Binary<Add, T, T, false, false>;
    case BlockOp::kSub:
      return Binary<Sub, T, T, false, false>;
    case BlockOp::kMul:
      return Binary<Mul, T, T, false, false>;
    case BlockOp::kMaximum:
      return Binary<Maximum, T, T, false, false>;
    case BlockOp::kMinimum:
      return Binary<Minimum, T, T, false, false>;
    case BlockOp::kEqual:
      return Binary<Equal, T, bool, false, false>;
    case BlockOp::kNotEqual:
      return Binary<NotEqual, T, bool, false, false>;
    case BlockOp::kLess:
      return Binary<Less, T, bool, false, false>;
    case BlockOp::kLessEqual:
      return Binary<LessEqual, T, bool, false, false>;
    case BlockOp::kGreater:
      return Binary<Greater, T, bool, false, false>;
    case BlockOp::kGreaterEqual:
      return Binary<GreaterEqual, T, bool, false, false>;
    case BlockOp::kNeg:
      return Unary<Neg, T, T>;
    case BlockOp::kAbs:
      return Unary<Abs, T, T>;
    case BlockOp::kSign:
      return Unary<Sign, T, T>;
    case BlockOp::kSquare:
      return Unary<Square, T, T>;
    case BlockOp::kCopy:
      return Unary<Same, T, T>;
    default:
      return nullptr;
  }
}

BlockFn ForBool(BlockOp op, ScalarMask s) {
  if (op == BlockOp::kSelect) return SelectFor<uint8_t>(s);
  if (s != 0) return nullptr;
  switch (op) {
    case BlockOp::kAnd:
      return Binary<And, uint8_t, bool, false, false>;
    case BlockOp::kOr:
      return Binary<Or, uint8_t, bool, false, false>;
    case BlockOp::kNot:
      return Unary<Not, uint8_t, bool>;
    case BlockOp::kEqual:
      return Binary<Equal, uint8_t, bool, false, false>;
    case BlockOp::kNotEqual:
      return Binary<NotEqual, uint8_t, bool, false, false>;
    case BlockOp::kCopy:
      return Unary<Same, uint8_t, uint8_t>;
    default:
      return nullptr;
  }
}

// bf16 and f16 are moved by their bits.
BlockFn ForHalf(BlockOp op, ScalarMask s) {
  if (op == BlockOp::kSelect) return SelectFor<uint16_t>(s);
  if (op == BlockOp::kCopy && s == 0) return Unary<Same, uint16_t, uint16_t>;
  return nullptr;
}

template <typename T>
void FillAs(void* d, const void* element, int64_t n) {
  const T v = *static_cast<const T*>(element);
  T* y = static_cast<T*>(d);
  MT_LOOP y[i] = v;
}

}  // namespace

BlockFn FindBlock(BlockOp op, Type type, ScalarMask scalars) {
  switch (type) {
    case Type::kBool:
      return ForBool(op, scalars);
    case Type::kU8:
      return ForInt<uint8_t>(op, scalars);
    case Type::kI32:
      return ForInt<int32_t>(op, scalars);
    case Type::kI64:
      return ForInt<int64_t>(op, scalars);
    case Type::kF32:
      return ForFloat<float>(op, scalars);
    case Type::kF64:
      return ForFloat<double>(op, scalars);
    case Type::kBF16:
    case Type::kF16:
      return ForHalf(op, scalars);
  }
  return nullptr;
}

void Fill(void* d, const void* element, int64_t width, int64_t n) {
  if (width == 1) return FillAs<uint8_t>(d, element, n);
  if (width == 2) return FillAs<uint16_t>(d, element, n);
  if (width == 4) return FillAs<uint32_t>(d, element, n);
  return FillAs<uint64_t>(d, element, n);
}

#define MT_NAME_INNER(x) #x
#define MT_NAME(x) MT_NAME_INNER(x)

extern const Kernels kTable;
const Kernels kTable = {
    .name = MT_NAME(MT_ISA),
    .block = FindBlock,
    .cast = FindCast,
    .fill = Fill,
    .fold_rows = FoldRows,
    .fold_row = FoldRow,
    .sum_rows = SumRows,
    .sum_row = SumRow,
    .count_beyond = CountBeyond,
    .softmax = Softmax,
    .sparse_xent = SparseXent,
    .sparse_xent_grad = SparseXentGrad,
    .window_sum = WindowSum,
    .window_max = WindowMax,
    .window_pick = WindowPick,
    .window_max_grad = WindowMaxGrad,
    .gemm_f64 = GemmF64,
    .philox = Philox,
    .uniform_f32 = UniformF32,
};

}  // namespace meshtrain::device::cpu::MT_ISA
