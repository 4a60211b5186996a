// How bounds are kept; see interpreter.h.
#include <algorithm>

#include "tests/support/interpreter/parts.h"

namespace meshtrain::testing {
namespace interpreter {

namespace {
thread_local int by_a_plugin = 0;  // of ByAPlugin that live
}  // namespace

double UnitOf(DType dtype) { return mesh::UnitRoundoff(dtype); }

namespace {

// What a rounding may change where the relative bound says nothing. Numbers below f16's smallest
// are right results of many ops (softmax), and rounded to a multiple of it; those of the other
// types are out of reach, and a backend may take its denormal ones for 0.
double SmallestOf(DType dtype) {
  if (dtype == DType::kF64) return 0x1p-1022;
  return dtype == DType::kF16 ? 0x1p-24 : 0x1p-126;
}

}  // namespace

bool IsByAPlugin() { return by_a_plugin > 0; }

double SumUnits(DType dtype, int64_t n) {
  const auto terms = static_cast<double>(n);
  if (IsByAPlugin()) return terms;
  return std::min(terms, dtype == DType::kF64 ? 32 + terms / 16 : 32);
}

int64_t PartsOf(int64_t parts, int64_t terms) {
  constexpr int64_t kDevices = 16;  // as SumUnits counts them
  return std::clamp<int64_t>(parts * std::min(terms, kDevices), 1, kDevices);
}

double LargestOf(DType dtype) {
  switch (dtype) {
    case DType::kBool:
      return 1;
    case DType::kU8:
      return 255;
    case DType::kI32:
      return std::numeric_limits<int32_t>::max();
    case DType::kI64:
      return 0x1p52;  // below the largest: doubles stand for it where errors are counted
    default:
      return mesh::LargestFinite(dtype);
  }
}

double GridOf(const std::vector<Number>& values) {
  double grid = 1;
  for (const Number v : values) {
    if (!std::isfinite(v)) return 0;
    auto x = static_cast<double>(v);
    if (x == 0 || std::fmod(x, grid) == 0) continue;
    int exponent = 0;
    const double mantissa = std::frexp(x, &exponent);  // [0.5, 1), 53 bits
    const auto bits = static_cast<int64_t>(std::ldexp(std::abs(mantissa), 53));
    grid = std::min(grid, std::ldexp(static_cast<double>(bits & -bits), exponent - 53));
  }
  return grid;
}

bool OnGrid(DType dtype, double grid, double mass) {
  // Far from denormal numbers, which a backend may take for 0.
  return grid >= (dtype == DType::kF16 ? 0x1p-14 : 0x1p-100) && mass <= grid / UnitOf(dtype);
}

void StartBounds(Array& out) {
  out.error.assign(out.at.size(), 0);
  if (mesh::IsFloat(out.type.dtype)) out.mass.assign(out.at.size(), 0);
  out.grid = 0;
}

void CloseBound(Array& out, size_t i) {
  const auto size = static_cast<double>(std::abs(out.at[i]));
  double& error = out.error[i];
  const DType dtype = out.type.dtype;
  if (!mesh::IsFloat(dtype)) {
    if (error == 0) return;
    // Either of two; a number that may have wrapped around is any.
    if (dtype == DType::kBool) {
      error = 1;
    } else if (!(size + error <= LargestOf(dtype)) || (dtype == DType::kU8 && size < error)) {
      error = kUnknown;
    }
    return;
  }
  if (dtype == DType::kF16 && error > 0) error += SmallestOf(dtype);
  if (!(size + error <= LargestOf(dtype))) error = kUnknown;
  out.mass[i] = std::max(out.mass[i], size + error);
  // Parts that are not finite make nonsense of the whole.
  if (!(out.mass[i] <= LargestOf(dtype))) error = kUnknown;
}

void AddRounding(Array& out, size_t i, double units, double size, bool operands_exact) {
  const DType dtype = out.type.dtype;
  if (operands_exact && OnGrid(dtype, out.grid, out.mass[i])) return;
  units += static_cast<double>(out.parts - 1);
  // The interpreter rounds too, to doubles.
  if (dtype == DType::kF64) units += 2;
  double relative = units * UnitOf(dtype);
  if (mesh::IsHalf(dtype)) {
    // Computed in f32, rounded at the end; of a sum, once more for each device that holds a part.
    constexpr double kParts = 17;
    relative = std::min(units, kParts) * UnitOf(dtype) + units * UnitOf(DType::kF32);
  }
  out.error[i] += 1.01 * relative * size + SmallestOf(dtype);
}

Array Moved(const Array& x, const TensorType& type, const std::vector<int64_t>& from, Number fill,
            Keep keep) {
  Array out(type);
  for (size_t i = 0; i < from.size(); ++i) out.at[i] = from[i] < 0 ? fill : x.at[from[i]];
  if (keep != Keep::kBounded) return out;
  StartBounds(out);
  for (size_t i = 0; i < from.size(); ++i) {
    if (from[i] >= 0) out.error[i] = x.error[from[i]];
    if (out.mass.empty()) continue;
    out.mass[i] = from[i] < 0 ? static_cast<double>(std::abs(fill)) : x.mass[from[i]];
  }
  if (mesh::IsFloat(type.dtype)) {
    const bool fills = std::find(from.begin(), from.end(), -1) != from.end();
    out.grid = fills ? std::min(x.grid, GridOf({fill})) : x.grid;
    out.parts = x.parts;
  }
  return out;
}

}  // namespace interpreter

ByAPlugin::ByAPlugin() { ++interpreter::by_a_plugin; }
ByAPlugin::~ByAPlugin() { --interpreter::by_a_plugin; }

Array Given(Array array, int64_t pending_parts) {
  interpreter::StartBounds(array);
  array.grid = mesh::IsFloat(array.type.dtype) ? interpreter::GridOf(array.at) : 0;
  for (size_t i = 0; i < array.at.size(); ++i) {
    if (!array.mass.empty()) {
      // Each of the others is at most 2 and is taken from the one that holds the rest.
      array.mass[i] =
          static_cast<double>(std::abs(array.at[i])) + 4.0 * static_cast<double>(pending_parts - 1);
    }
    // Nothing but in types of so few digits that sums of some of the parts are no numbers of them.
    if (pending_parts > 1 && !array.mass.empty()) {
      interpreter::AddRounding(array, i, static_cast<double>(pending_parts - 1), array.mass[i],
                               /*operands_exact=*/true);
    }
    interpreter::CloseBound(array, i);
  }
  array.parts = interpreter::PartsOf(pending_parts, 1);
  return array;
}

}  // namespace meshtrain::testing
