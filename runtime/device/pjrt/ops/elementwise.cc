#include <cmath>
#include <numbers>

#include "runtime/device/pjrt/ops/rows.h"

namespace meshtrain::device::pjrt {
namespace {

using program::Op;

// The operand as the result's shape.
Node Operand(Lowering& l, const Op& op, size_t i) {
  return l.m().Broadcast(l.In(op, i), l.type(op.results[0]).dims);
}

bool IsUnsigned(const Node& a) { return a.element.starts_with("u"); }
bool IsFloat(const Node& a) { return IsFloatElement(a.element); }

template <auto kBody>
void Unary(Lowering& l, const Op& op) {
  l.Set(op.results[0], kBody(l.m(), l.In(op, 0)));
}

template <auto kBody>
void Binary(Lowering& l, const Op& op) {
  l.Set(op.results[0], kBody(l.m(), Operand(l, op, 0), Operand(l, op, 1)));
}

// Names as template arguments.
template <size_t N>
struct Text {
  char text[N];
  constexpr Text(const char (&from)[N]) {  // NOLINT: implicit
    for (size_t i = 0; i < N; ++i) text[i] = from[i];
  }
};
template <Text kName>
void Named1(Lowering& l, const Op& op) {
  l.Set(op.results[0], l.m().Unary(kName.text, l.In(op, 0)));
}
template <Text kName>
void Named2(Lowering& l, const Op& op) {
  l.Set(op.results[0], l.m().Binary(kName.text, Operand(l, op, 0), Operand(l, op, 1)));
}
template <Text kDirection>
void Compared(Lowering& l, const Op& op) {
  l.Set(op.results[0], l.m().Compare(kDirection.text, Operand(l, op, 0), Operand(l, op, 1)));
}

Node Abs(Module& m, const Node& a) { return IsUnsigned(a) ? a : m.Unary("abs", a); }

// XLA's of f32 stops short of 1, and gelu would have a tail; from 4 on it rounds to 1.
Node Erf(Module& m, const Node& a) {
  const Node erf =
      m.Line("chlo.erf " + a.name + " : " + a.type() + " -> " + a.type(), a.element, a.dims);
  if (a.element == "f64") return erf;
  const Node whole = m.Compare("GE", m.Unary("abs", a), m.Like(a, 4));
  return m.Select(whole, m.Unary("sign", a), erf);
}

Node Sign(Module& m, const Node& a) {
  if (!IsUnsigned(a)) return m.Unary("sign", a);
  return m.Convert(m.Compare("GT", a, m.Like(a, 0)), a.element);
}

Node Negative(Module& m, const Node& a) {
  return IsFloat(a) ? m.Unary("negate", a) : m.Binary("subtract", m.Like(a, 0), a);
}

// max(x, 0) + log(1 + e^-|x|)
Node Softplus(Module& m, const Node& x) {
  const Node tail = m.Unary("log_plus_one", m.Unary("exponential", Negative(m, m.Unary("abs", x))));
  return m.Binary("add", m.Binary("maximum", x, m.Like(x, 0)), tail);
}

Node Square(Module& m, const Node& a) { return m.Binary("multiply", a, a); }

Node Relu(Module& m, const Node& a) { return m.Binary("maximum", a, m.Like(a, 0)); }

void Gelu(Lowering& l, const Op& op) {
  Module& m = l.m();
  const Node x = l.In(op, 0), half = m.Like(x, 0.5), one = m.Like(x, 1);
  Node p;
  if (op.attrs.Bool("approximate")) {
    const Node cube = m.Binary("multiply", x, Square(m, x));
    const Node inner = m.Binary("add", x, m.Binary("multiply", m.Like(x, 0.044715), cube));
    p = m.Unary("tanh", m.Binary("multiply", m.Like(x, std::sqrt(2 / std::numbers::pi)), inner));
  } else {
    p = Erf(m, m.Binary("multiply", x, m.Like(x, 1 / std::numbers::sqrt2)));
  }
  l.Set(op.results[0],
        m.Binary("multiply", m.Binary("multiply", half, x), m.Binary("add", one, p)));
}

// mesh::OddFloat: an f32 from which bf16 or f16 is what one rounding of `a` gives. XLA's way to
// bf16 leads through an f32 to nearest, on some processors that to f16 too.
Node OddFloat(Module& m, const Node& a) {
  // Behind a barrier, or XLA may leave out the way there and back.
  const Node narrow = m.Barrier(m.Convert(a, "f32"));
  const Node back = m.Convert(narrow, "f64");
  const auto one = [&](const Node& where) { return m.Convert(where, "ui32"); };
  const Node away = m.Compare("GT", m.Unary("abs", back), m.Unary("abs", a));
  const Node cut = m.Binary("and", m.Compare("NE", back, a), m.Compare("EQ", a, a));
  const Node toward = m.Binary("subtract", m.Bits(narrow, "ui32"), one(away));
  return m.Bits(m.Binary("or", toward, one(cut)), "f32");
}
// The same of whole numbers: from 2^24 on, where an f32 does not hold all, as many bits are cut off
// as leave 11 to 24.
Node OddWhole(Module& m, const Node& a) {
  const Node size = m.Unary("abs", a), none = m.Like(a, 0);
  const auto power = [&](int64_t bits) { return m.Whole(a.element, a.dims, uint64_t{1} << bits); };
  Node last = none;  // the last bit that is kept; 0: all are
  for (const int64_t bits : {24, 38, 52}) {
    if (bits > 31 && a.element == "i32") break;
    last = m.Select(m.Compare("GE", size, power(bits)), power(bits - 10), last);
  }
  const Node below =
      m.Select(m.Compare("EQ", last, none), none, m.Binary("subtract", last, m.Like(a, 1)));
  const Node rest = m.Binary("and", a, below);
  return m.Select(m.Compare("EQ", rest, none), a,
                  m.Binary("or", m.Binary("subtract", a, rest), last));
}

// A float becomes true where it is not 0, NaN included.
void Cast(Lowering& l, const Op& op) {
  Module& m = l.m();
  const Node a = l.In(op, 0);
  const std::string element = ElementOf(l.type(op.results[0]).dtype);
  if (element == "i1" && a.element != "i1") {
    return l.Set(op.results[0], m.Compare("NE", a, m.Like(a, 0)));
  }
  if (IsHalfElement(element) && a.element == "f64") {
    return l.Set(op.results[0], m.Convert(OddFloat(m, a), element));
  }
  if (element == "bf16" && (a.element == "i64" || a.element == "i32")) {
    return l.Set(op.results[0], m.Convert(OddWhole(m, a), element));
  }
  l.Set(op.results[0], m.Convert(a, element));
}

void Select(Lowering& l, const Op& op) {
  l.Set(op.results[0], l.m().Select(Operand(l, op, 0), Operand(l, op, 1), Operand(l, op, 2)));
}

// max(x, 0) - x z + log(1 + exp(-|x|))
Node SigmoidCrossEntropy(Module& m, const Node& x, const Node& z) {
  const Node tail = m.Unary("log_plus_one", m.Unary("exponential", Negative(m, m.Unary("abs", x))));
  return m.Binary("add", m.Binary("subtract", Relu(m, x), m.Binary("multiply", x, z)), tail);
}

void Same(Lowering& l, const Op& op) { l.Set(op.results[0], l.In(op, 0)); }

}  // namespace

void AddElementwise(Rows& rows) {
  rows["add"] = Named2<"add">;
  rows["sub"] = Named2<"subtract">;
  rows["mul"] = Named2<"multiply">;
  rows["div"] = Named2<"divide">;
  rows["pow"] = Named2<"power">;
  rows["maximum"] = Named2<"maximum">;
  rows["minimum"] = Named2<"minimum">;
  rows["neg"] = Unary<Negative>;
  rows["abs"] = Unary<Abs>;
  rows["sign"] = Unary<Sign>;
  rows["floor"] = Named1<"floor">;
  rows["square"] = Unary<Square>;
  rows["sqrt"] = Named1<"sqrt">;
  rows["rsqrt"] = Named1<"rsqrt">;
  rows["exp"] = Named1<"exponential">;
  rows["log"] = Named1<"log">;
  rows["log1p"] = Named1<"log_plus_one">;
  rows["expm1"] = Named1<"exponential_minus_one">;
  rows["sin"] = Named1<"sine">;
  rows["cos"] = Named1<"cosine">;
  rows["softplus"] = Unary<Softplus>;
  rows["erf"] = Unary<Erf>;
  rows["tanh"] = Named1<"tanh">;
  rows["sigmoid"] = Named1<"logistic">;
  rows["relu"] = Unary<Relu>;
  rows["gelu"] = Gelu;
  rows["cast"] = Cast;
  rows["stop_gradient"] = Same;
  rows["relayout"] = Same;
  rows["equal"] = Compared<"EQ">;
  rows["not_equal"] = Compared<"NE">;
  rows["less"] = Compared<"LT">;
  rows["less_equal"] = Compared<"LE">;
  rows["greater"] = Compared<"GT">;
  rows["greater_equal"] = Compared<"GE">;
  rows["logical_and"] = Named2<"and">;
  rows["logical_or"] = Named2<"or">;
  rows["logical_not"] = Named1<"not">;
  rows["select"] = Select;
  rows["sigmoid_cross_entropy"] = Binary<SigmoidCrossEntropy>;
}

}  // namespace meshtrain::device::pjrt
