// Ops that make values out of nothing, by the index of an element in the whole tensor.
#include "runtime/base/check.h"
#include "runtime/program/again.h"
#include "tests/support/interpreter/parts.h"

namespace meshtrain::testing::interpreter {
namespace {

// Elements made from their index in the whole tensor; padding of an uneven shard gets NaN.
template <typename F>
Array FromIndex(const Op& op, const TensorType& type, const Standpoint& here, const F& f) {
  Dims global = type.dims;
  Dims offsets(type.dims.size(), 0);
  Dims valid = type.dims;
  if (op.attrs.Has("layout")) {
    MT_CHECK(here.mesh != nullptr);
    global = op.attrs.Ints("global_dims");
    const auto layout = mesh::Layout::Parse(op.attrs.Text("layout"), *here.mesh);
    MT_CHECK(layout.ok());
    const mesh::Layout::Slice slice = layout->SliceOf(here.rank, global);
    offsets = slice.offsets;
    valid = slice.sizes;
  }
  Array out(type);
  ForEach(type.dims, [&](const Dims& index, int64_t at) {
    Dims whole = index;
    bool inside = true;
    for (size_t d = 0; d < whole.size(); ++d) {
      inside = inside && index[d] < valid[d];
      whole[d] += offsets[d];
    }
    out.at[at] = inside ? static_cast<Number>(f(whole, Position(whole, global))) : kNaN;
  });
  return out;
}

// Bounds of a result that is right to `units` halves of an ulp of |element| + `size`; `exact`: its
// elements are numbers of the type as they stand.
Array WithBounds(Array out, Keep keep, bool exact, double units = 0, double size = 0) {
  if (keep != Keep::kBounded) return out;
  StartBounds(out);
  if (mesh::IsFloat(out.type.dtype) && exact) out.grid = GridOf(out.at);
  for (size_t i = 0; i < out.at.size(); ++i) {
    const auto v = static_cast<double>(std::abs(out.at[i]));
    if (!out.mass.empty()) {
      out.mass[i] = v;
      if (!exact) AddRounding(out, i, units, v + size, false);
    }
    CloseBound(out, i);
  }
  return out;
}

uint64_t Fnv1a(const std::string& text) {
  uint64_t hash = 0xcbf29ce484222325;
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  return hash;
}

Array DropoutMask(const Op& op, const Array& step, const TensorType& type, const Standpoint& here) {
  const uint64_t seed =
      static_cast<uint64_t>(op.attrs.Int("seed")) ^ Fnv1a(std::string(program::PathDrawn(op)));
  const RandomKey key = KeyOfSeed(static_cast<int64_t>(seed), static_cast<int64_t>(step.at[0]));
  const auto rate = static_cast<float>(op.attrs.Double("rate"));
  Array out = WithBounds(FromIndex(op, type, here,
                                   [&](const Dims&, int64_t i) {
                                     return UniformAt(key, DType::kF32, i) >= rate
                                                ? 1 / (1 - op.attrs.Double("rate"))
                                                : 0.0;
                                   }),
                         here.keep, false, 3);
  if (here.keep == Keep::kBounded && step.error[0] != 0) {
    out.error.assign(out.error.size(), kUnknown);
  }
  return out;
}

Array Random(const Op& op, const TensorType& type, const Standpoint& here) {
  const DType dtype = type.dtype;
  const std::vector<int64_t> seed = op.attrs.Ints("seed");
  const RandomKey key = KeyOfSeed(seed[0], seed[1]);
  const auto rounded = [&](double v) { return static_cast<double>(RoundTo(dtype, v)); };
  if (op.kind == "stateless_uniform") {
    const double low = rounded(op.attrs.Double("minval"));
    const double scale = rounded(rounded(op.attrs.Double("maxval")) - low);
    Array out = FromIndex(op, type, here, [&](const Dims&, int64_t i) {
      return rounded(UniformAt(key, dtype, i) * scale) + low;
    });
    return WithBounds(std::move(out), here.keep, low == 0 && scale == 1, 3,
                      std::abs(low) + std::abs(scale));
  }
  const double mean = rounded(op.attrs.Double("mean"));
  const double stddev = rounded(op.attrs.Double("stddev"));
  const bool truncated = op.kind == "stateless_truncated_normal";
  Array out = FromIndex(op, type, here, [&](const Dims&, int64_t i) {
    const double normal = truncated ? TruncatedNormalAt(key, dtype, i) : NormalAt(key, dtype, i);
    return rounded(normal * stddev) + mean;
  });
  return WithBounds(std::move(out), here.keep, false, 8, std::abs(mean) + std::abs(stddev));
}

}  // namespace

std::optional<Array> Sources(const Op& op, const Operands& x, const TensorType& type,
                             const Standpoint& here) {
  if (op.kind == "constant" || op.kind == "fill") {
    Array out(type);
    if (op.attrs.Has("values")) {
      const std::vector<double> values = op.attrs.Doubles("values");
      out.at.assign(values.begin(), values.end());
    } else {
      out.at.assign(out.at.size(), op.attrs.Double("value"));
    }
    // The number is the type's nearest, however little is rounded elsewhere.
    for (Number& v : out.at) {
      if (here.keep != Keep::kReal) v = RoundTo(type.dtype, v);
    }
    return WithBounds(std::move(out), here.keep, true);
  }
  if (op.kind == "iota") {
    const auto axis = static_cast<size_t>(op.attrs.Int("axis"));
    Array out = FromIndex(op, type, here, [&](const Dims& index, int64_t) {
      return RoundTo(type.dtype, static_cast<Number>(index[axis]));
    });
    return WithBounds(std::move(out), here.keep, true);
  }
  if (op.kind == "dropout_mask") return DropoutMask(op, *x[0], type, here);
  if (op.kind == "stateless_uniform" || op.kind == "stateless_normal" ||
      op.kind == "stateless_truncated_normal") {
    return Random(op, type, here);
  }
  return std::nullopt;
}

}  // namespace meshtrain::testing::interpreter
