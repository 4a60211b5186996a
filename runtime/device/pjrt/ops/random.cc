// Random numbers: Philox 4x32-10 by an element's place in the whole tensor, as cpu/philox.h has it.
// Each element computes the group of four words that it is in, and takes its own. In words of 32
// bits, which is all that a TPU has: what is wider there are many instructions, and slow to
// compile.
#include <array>
#include <bit>
#include <numbers>

#include "runtime/device/cpu/philox.h"
#include "runtime/device/pjrt/ops/rows.h"
#include "runtime/program/again.h"

namespace meshtrain::device::pjrt {
namespace {

using program::Op;
using Words = std::array<Node, 4>;

// Scalars of ui32: the stream's key, and the upper half of where its counter begins.
struct Stream {
  Node key0, key1, counter2, counter3;
};

Node U32(Module& m, uint32_t value) { return m.Whole("ui32", {}, value); }
// By an integer of a's own type.
Node By(Module& m, std::string_view op, const Node& a, uint64_t value) {
  return m.Binary(op, a, m.Whole(a.element, a.dims, value));
}
Node Is(Module& m, const Node& a, uint64_t value) {
  return m.Compare("EQ", a, m.Whole(a.element, a.dims, value));
}

Stream StreamOf(Module& m, const cpu::PhiloxKey& key) {
  return {U32(m, key.key[0]), U32(m, key.key[1]), U32(m, key.counter[2]), U32(m, key.counter[3])};
}

// Of ui64.
Node Low(Module& m, const Node& a) { return m.Convert(By(m, "and", a, 0xFFFFFFFFu), "ui32"); }
Node High(Module& m, const Node& a) {
  return m.Convert(By(m, "shift_right_logical", a, 32), "ui32");
}

// The upper word of a * by, from products of halves (schoolbook).
Node UpperOfProduct(Module& m, const Node& a, uint32_t by) {
  const auto low = [&](const Node& x) { return By(m, "and", x, 0xFFFFu); };
  const auto high = [&](const Node& x) { return By(m, "shift_right_logical", x, 16); };
  const Node al = low(a), ah = high(a);
  const Node ll = By(m, "multiply", al, by & 0xFFFFu), lh = By(m, "multiply", al, by >> 16),
             hl = By(m, "multiply", ah, by & 0xFFFFu), hh = By(m, "multiply", ah, by >> 16);
  const Node carry = high(m.Binary("add", m.Binary("add", high(ll), low(lh)), low(hl)));
  return m.Binary("add", m.Binary("add", hh, high(lh)), m.Binary("add", high(hl), carry));
}

// Ten rounds (Salmon et al., SC'11, section 3.3).
Words Philox(Module& m, Node key0, Node key1, Words c) {
  constexpr uint32_t kBy0 = 0xD2511F53u, kBy1 = 0xCD9E8D57u;
  const Dims& dims = c[0].dims;
  const auto mix = [&](const Node& a, const Node& b, const Node& key) {
    return m.Binary("xor", m.Binary("xor", a, b), m.Broadcast(key, dims));
  };
  for (int round = 0; round < 10; ++round) {
    if (round > 0) {
      key0 = m.Binary("add", key0, U32(m, 0x9E3779B9u));
      key1 = m.Binary("add", key1, U32(m, 0xBB67AE85u));
    }
    const Node upper0 = UpperOfProduct(m, c[0], kBy0), upper1 = UpperOfProduct(m, c[2], kBy1);
    c = {mix(upper1, c[1], key0), By(m, "multiply", c[2], kBy1), mix(upper0, c[3], key1),
         By(m, "multiply", c[0], kBy0)};
  }
  return c;
}

// The words of group `group` (ui32 or ui64) of the stream.
Words GroupOf(Module& m, const Stream& s, const Node& group) {
  const bool wide = group.element == "ui64";
  return Philox(
      m, s.key0, s.key1,
      {wide ? Low(m, group) : group, wide ? High(m, group) : m.Whole("ui32", group.dims, 0),
       m.Broadcast(s.counter2, group.dims), m.Broadcast(s.counter3, group.dims)});
}

// Each element's index in the whole tensor, in the narrower type that holds `times` as many.
Node Places(Lowering& l, const Op& op, const Dims& local, uint64_t times = 1) {
  Module& m = l.m();
  const bool split = op.attrs.Has("layout");
  const Dims global = split ? op.attrs.Ints("global_dims") : local;
  const bool wide = static_cast<uint64_t>(mesh::NumElements(global)) > (uint64_t{1} << 31) / times;
  const std::string element = wide ? "ui64" : "ui32";
  const Dims strides = mesh::Strides(global);
  Node sum = m.Whole(element, local, 0);
  for (int64_t d = 0; d < static_cast<int64_t>(local.size()); ++d) {
    Node at = m.Iota(element, local, d);
    if (split) {
      const auto layout = mesh::Layout::Parse(op.attrs.Text("layout"), l.mesh());
      const Node offset = m.Convert(l.OffsetIn(*layout, static_cast<int>(d), local[d]), element);
      at = m.Binary("add", at, m.Broadcast(offset, local));
    }
    sum = m.Binary("add", sum, By(m, "multiply", at, static_cast<uint64_t>(strides[d])));
  }
  return sum;
}

// The group of a place, and where in it; a group has a power of two of them.
Node GroupAt(Module& m, const Node& places, uint64_t in_group) {
  return By(m, "shift_right_logical", places, std::countr_zero(in_group));
}
Node LaneAt(Module& m, const Node& places, uint64_t in_group) {
  return By(m, "and", places, in_group - 1);
}

// The low bits as mantissa of a number in [1, 2), less 1.
Node ToFloat(Module& m, const Node& word) {
  const Node mantissa = m.Binary("and", word, m.Whole("ui32", word.dims, 0x7FFFFFu));
  const Node bits = m.Binary("or", mantissa, m.Whole("ui32", word.dims, 0x3F800000u));
  const Node number = m.Bits(bits, "f32");
  return m.Binary("subtract", number, m.Like(number, 1));
}
Node ToDouble(Module& m, const Node& high, const Node& low) {
  const Node top = m.Convert(m.Binary("and", high, m.Whole("ui32", high.dims, 0xFFFFFu)), "ui64");
  const Node mantissa = m.Binary("or", By(m, "shift_left", top, 32), m.Convert(low, "ui64"));
  const Node number = m.Bits(By(m, "or", mantissa, uint64_t{1023} << 52), "f64");
  return m.Binary("subtract", number, m.Like(number, 1));
}

// A number in [0, 1) for each place.
Node Unit(Module& m, const Stream& s, const Node& places, const std::string& element) {
  if (element == "f32") {
    const Words w = GroupOf(m, s, GroupAt(m, places, 4));
    const Node lane = LaneAt(m, places, 4);
    const Node low = m.Select(Is(m, lane, 0), w[0], w[1]),
               high = m.Select(Is(m, lane, 2), w[2], w[3]);
    const Node first = m.Compare("LT", lane, m.Whole(lane.element, lane.dims, 2));
    return ToFloat(m, m.Select(first, low, high));
  }
  const Words w = GroupOf(m, s, GroupAt(m, places, 2));
  const Node first = Is(m, LaneAt(m, places, 2), 0);
  return ToDouble(m, m.Select(first, w[0], w[2]), m.Select(first, w[1], w[3]));
}

// Box-Muller's two numbers from u1 and u2 in [0, 1).
struct Two {
  Node sine, cosine;
};
Two BoxMuller(Module& m, const Node& u1, const Node& u2) {
  const Node radius =
      m.Unary("sqrt", m.Binary("multiply", m.Like(u1, -2),
                               m.Unary("log", m.Binary("maximum", u1, m.Like(u1, 1.0e-7f)))));
  const Node wide = m.Convert(u2, "f64");
  const Node angle =
      m.Convert(m.Binary("multiply", wide, m.Like(wide, 2 * std::numbers::pi)), u1.element);
  return {m.Binary("multiply", m.Unary("sine", angle), radius),
          m.Binary("multiply", m.Unary("cosine", angle), radius)};
}
Two DoubleTwo(Module& m, const Words& w) {
  Node u1 = ToDouble(m, w[0], w[1]);
  u1 = m.Binary("maximum", u1, m.Like(u1, 1.0e-7));
  const Node u2 = ToDouble(m, w[2], w[3]);
  const Node radius = m.Unary("sqrt", m.Binary("multiply", m.Like(u1, -2), m.Unary("log", u1)));
  const Node angle = m.Binary("multiply", u2, m.Like(u2, 2 * std::numbers::pi));
  return {m.Binary("multiply", m.Unary("sine", angle), radius),
          m.Binary("multiply", m.Unary("cosine", angle), radius)};
}

// The normal numbers of one group.
std::vector<Node> Normals(Module& m, const Words& w, const std::string& element) {
  if (element == "f64") {
    const Two two = DoubleTwo(m, w);
    return {two.sine, two.cosine};
  }
  const Two a = BoxMuller(m, ToFloat(m, w[0]), ToFloat(m, w[1]));
  const Two b = BoxMuller(m, ToFloat(m, w[2]), ToFloat(m, w[3]));
  return {a.sine, a.cosine, b.sine, b.cosine};
}

uint64_t InGroup(const std::string& element) { return element == "f32" ? 4 : 2; }

// numbers * scale + shift.
Node Scaled(Module& m, const Node& numbers, double scale, double shift) {
  return m.Binary("add", m.Binary("multiply", numbers, m.Like(numbers, scale)),
                  m.Like(numbers, shift));
}

Stream StreamOf(Lowering& l, const Op& op) {
  const std::vector<int64_t> seed = op.attrs.Ints("seed");
  return StreamOf(l.m(), cpu::PhiloxFromSeed(seed[0], seed[1]));
}

void Uniform(Lowering& l, const Op& op) {
  Module& m = l.m();
  const mesh::TensorType& type = l.type(op.results[0]);
  const Node unit = Unit(m, StreamOf(l, op), Places(l, op, type.dims), ElementOf(type.dtype));
  const double low = op.attrs.Double("minval"), high = op.attrs.Double("maxval");
  const double scale = type.dtype == mesh::DType::kF32
                           ? static_cast<float>(high) - static_cast<float>(low)
                           : high - low;
  l.Set(op.results[0], Scaled(m, unit, scale, low));
}

void Normal(Lowering& l, const Op& op) {
  Module& m = l.m();
  const mesh::TensorType& type = l.type(op.results[0]);
  const std::string element = ElementOf(type.dtype);
  const uint64_t count = InGroup(element);
  const Node places = Places(l, op, type.dims);
  const std::vector<Node> numbers =
      Normals(m, GroupOf(m, StreamOf(l, op), GroupAt(m, places, count)), element);
  const Node lane = LaneAt(m, places, count);
  Node chosen = numbers[count - 1];
  for (uint64_t k = count - 1; k-- > 0;) chosen = m.Select(Is(m, lane, k), numbers[k], chosen);
  l.Set(op.results[0], Scaled(m, chosen, op.attrs.Double("stddev"), op.attrs.Double("mean")));
}

// Draw after draw, until each place has its group's k-th number within two standard deviations.
// TensorFlow keeps 256 samples in reserve for each number.
void TruncatedNormal(Lowering& l, const Op& op) {
  Module& m = l.m();
  const mesh::TensorType& type = l.type(op.results[0]);
  const std::string element = ElementOf(type.dtype);
  const uint64_t count = InGroup(element), reserved = count * 256 / 4;  // groups of each group
  const std::vector<int64_t> seed = op.attrs.Ints("seed");
  const cpu::PhiloxKey key = cpu::PhiloxFromSeed(seed[0], seed[1]);
  const Node places = Places(l, op, type.dims, reserved / count);
  const Node next = By(m, "multiply", GroupAt(m, places, count), reserved);
  const Node wanted = m.Convert(LaneAt(m, places, count), "ui32");
  const std::vector<Node> end = m.While(
      {next, wanted, m.Whole("ui32", type.dims, 0), m.Splat(element, type.dims, 0)},
      [](Module& in, const std::vector<Node>& v) {
        std::vector<int64_t> all;
        for (int64_t d = 0; d < v[2].rank(); ++d) all.push_back(d);
        return in.Reduce("or", in.Compare("LE", v[2], v[1]), all, in.Splat("i1", {}, 0));
      },
      [&](Module& in, const std::vector<Node>& v) -> std::vector<Node> {
        Node have = v[2], result = v[3];
        for (const Node& x : Normals(in, GroupOf(in, StreamOf(in, key), v[0]), element)) {
          const Node keep = in.Compare("LT", in.Unary("abs", x), in.Like(x, 2));
          const Node take = in.Binary("and", keep, in.Compare("EQ", have, v[1]));
          result = in.Select(take, x, result);
          have = in.Binary("add", have, in.Convert(keep, "ui32"));
        }
        return {By(in, "add", v[0], 1), v[1], have, result};
      });
  l.Set(op.results[0], Scaled(m, end[3], op.attrs.Double("stddev"), op.attrs.Double("mean")));
}

// The stream that cpu::DropoutKey keys: its second seed is the step.
void DropoutMask(Lowering& l, const Op& op) {
  Module& m = l.m();
  const mesh::TensorType& type = l.type(op.results[0]);
  const std::string element = ElementOf(type.dtype);
  const auto seed =
      static_cast<uint64_t>(cpu::DropoutSeed(op.attrs.Int("seed"), program::PathDrawn(op)));
  const Node step = m.Convert(l.In(op, 0), "ui64");
  const Words mixed =
      Philox(m, U32(m, cpu::kScramble.key[0]), U32(m, cpu::kScramble.key[1]),
             {U32(m, static_cast<uint32_t>(seed)), U32(m, static_cast<uint32_t>(seed >> 32)),
              Low(m, step), High(m, step)});
  const Stream stream{mixed[0], mixed[1], mixed[2], mixed[3]};
  const Node unit = Unit(m, stream, Places(l, op, type.dims), "f32");
  const double rate = op.attrs.Double("rate");
  const Node kept = m.Compare("GE", unit, m.Like(unit, rate));
  l.Set(op.results[0], m.Select(kept, m.Splat(element, type.dims, 1.0 / (1.0 - rate)),
                                m.Splat(element, type.dims, 0)));
}

}  // namespace

void AddRandom(Rows& rows) {
  rows["stateless_uniform"] = Uniform;
  rows["stateless_normal"] = Normal;
  rows["stateless_truncated_normal"] = TruncatedNormal;
  rows["dropout_mask"] = DropoutMask;
}

}  // namespace meshtrain::device::pjrt
