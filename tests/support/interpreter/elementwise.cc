// Element-wise ops by their definitions: on doubles, and on integers where an op takes them.
#include <algorithm>
#include <map>
#include <numbers>

#include "runtime/base/check.h"
#include "tests/support/interpreter/parts.h"

namespace meshtrain::testing::interpreter {
namespace {

using Reals = const double*;
using Wholes = const int64_t*;

// How the bounds of operands reach the result, where neither the ends of their intervals say it nor
// a factor.
using SpreadFn = double (*)(Reals x, Reals error);
// What half an ulp of a backend's result is relative to, where it is not the result itself.
using SizeFn = double (*)(Reals x, Reals error);

// What a pending sum may pass through keeps the sizes of its parts.
enum class Linear : uint8_t { kNo, kSum, kProduct, kQuotient, kFirst };
enum class GridRule : uint8_t { kNone, kLeast, kProduct, kSquare, kWhole };

struct Rule {
  double (*real)(Reals x) = nullptr;
  int64_t (*whole)(Wholes x) = nullptr;  // null: not of integers
  // What a backend's result may be wrong by, in halves of an ulp; 0: it is exact. Those of curves
  // are what tests/runtime/device/kernels_test.cc measures, twice, and one.
  double units = 1;
  double units_by_a_plugin = 0;  // where more: ByAPlugin
  Linear linear = Linear::kNo;
  GridRule grid = GridRule::kNone;
  SpreadFn spread = nullptr;
  SizeFn size = nullptr;
};

double Max(double a, double b) { return std::isnan(a) || std::isnan(b) ? kNaN : std::max(a, b); }
double Min(double a, double b) { return std::isnan(a) || std::isnan(b) ? kNaN : std::min(a, b); }

double Sigmoid(double x) {
  return x >= 0 ? 1 / (1 + std::exp(-x)) : std::exp(x) / (1 + std::exp(x));
}
double Softplus(double x) { return std::max(x, 0.0) + std::log1p(std::exp(-std::abs(x))); }
double Gelu(double x) { return 0.5 * x * (1 + std::erf(x / std::numbers::sqrt2)); }
double GeluTanh(double x) {
  return 0.5 * x * (1 + std::tanh(std::sqrt(2 / std::numbers::pi) * (x + 0.044715 * x * x * x)));
}
// Integers wrap around.
int64_t Wrapped(uint64_t x) { return static_cast<int64_t>(x); }
uint64_t U(int64_t x) { return static_cast<uint64_t>(x); }
int64_t Negative(int64_t x) { return Wrapped(0 - U(x)); }

// Whether equal operands are told from different ones: 0, or 1 for "either".
double SpreadOfEqual(Reals x, Reals e) {
  if (e[0] == 0 && e[1] == 0) return 0;
  return std::abs(x[0] - x[1]) > e[0] + e[1] ? 0 : 1;
}
double SameSpread(Reals, Reals e) { return e[0]; }

std::map<std::string, Rule> MakeRules() {
  std::map<std::string, Rule> rules;
  const auto exact = [&](const char* kind, double (*real)(Reals), int64_t (*whole)(Wholes),
                         GridRule grid, Linear linear = Linear::kNo, SpreadFn spread = nullptr) {
    rules[kind] = {
        .real = real, .whole = whole, .units = 0, .linear = linear, .grid = grid, .spread = spread};
  };
  const auto curve = [&](const char* kind, double units, double (*real)(Reals)) {
    rules[kind] = {.real = real, .units = units};
  };
  rules["add"] = {.real = [](Reals x) { return x[0] + x[1]; },
                  .whole = [](Wholes x) { return Wrapped(U(x[0]) + U(x[1])); },
                  .linear = Linear::kSum,
                  .grid = GridRule::kLeast};
  rules["sub"] = {.real = [](Reals x) { return x[0] - x[1]; },
                  .whole = [](Wholes x) { return Wrapped(U(x[0]) - U(x[1])); },
                  .linear = Linear::kSum,
                  .grid = GridRule::kLeast};
  rules["mul"] = {.real = [](Reals x) { return x[0] * x[1]; },
                  .whole = [](Wholes x) { return Wrapped(U(x[0]) * U(x[1])); },
                  .linear = Linear::kProduct,
                  .grid = GridRule::kProduct};
  rules["square"] = {.real = [](Reals x) { return x[0] * x[0]; },
                     .whole = [](Wholes x) { return Wrapped(U(x[0]) * U(x[0])); },
                     .grid = GridRule::kSquare,
                     .spread = [](Reals x, Reals e) { return (2 * std::abs(x[0]) + e[0]) * e[0]; }};
  // A backend may multiply by the rounded reciprocal.
  rules["div"] = {.real = [](Reals x) { return x[0] / x[1]; },
                  .units = 2.1,
                  .linear = Linear::kQuotient,
                  .spread =
                      [](Reals x, Reals e) {
                        const double least = std::abs(x[1]) - e[1];
                        if (!(least > 0)) return e[0] == 0 && e[1] == 0 ? 0 : kUnknown;
                        return (e[0] + std::abs(x[0] / x[1]) * e[1]) / least;
                      }};
  rules["pow"] = {.real = [](Reals x) { return std::pow(x[0], x[1]); },
                  .units = 4,
                  .spread =
                      [](Reals x, Reals e) {
                        if (e[0] == 0 && e[1] == 0) return 0.0;
                        if (!(x[0] - e[0] > 0)) return kUnknown;
                        double most = 0;  // monotone in each operand for each other
                        for (const double a : {x[0] - e[0], x[0] + e[0]}) {
                          for (const double b : {x[1] - e[1], x[1] + e[1]}) {
                            most = std::max(most, std::abs(std::pow(a, b) - std::pow(x[0], x[1])));
                          }
                        }
                        return most;
                      }};
  exact(
      "maximum", [](Reals x) { return Max(x[0], x[1]); },
      [](Wholes x) { return std::max(x[0], x[1]); }, GridRule::kLeast);
  exact(
      "minimum", [](Reals x) { return Min(x[0], x[1]); },
      [](Wholes x) { return std::min(x[0], x[1]); }, GridRule::kLeast);
  exact(
      "neg", [](Reals x) { return -x[0]; }, [](Wholes x) { return Negative(x[0]); },
      GridRule::kLeast, Linear::kFirst);
  exact(
      "abs", [](Reals x) { return std::abs(x[0]); },
      [](Wholes x) { return x[0] < 0 ? Negative(x[0]) : x[0]; }, GridRule::kLeast, Linear::kNo,
      SameSpread);
  exact(
      "sign", [](Reals x) { return x[0] > 0   ? 1.0
                                   : x[0] < 0 ? -1.0
                                              : x[0]; },
      [](Wholes x) { return int64_t{x[0] > 0} - int64_t{x[0] < 0}; }, GridRule::kWhole);
  exact(
      "floor", [](Reals x) { return std::floor(x[0]); }, nullptr, GridRule::kWhole);
  exact(
      "relu", [](Reals x) { return std::isnan(x[0]) ? x[0] : std::max(x[0], 0.0); }, nullptr,
      GridRule::kLeast);
  curve("sqrt", 1, [](Reals x) { return std::sqrt(x[0]); });
  rules["sqrt"].units_by_a_plugin = 3;
  curve("rsqrt", 4, [](Reals x) { return 1 / std::sqrt(x[0]); });
  curve("exp", 5, [](Reals x) { return std::exp(x[0]); });
  curve("log", 5, [](Reals x) { return std::log(x[0]); });
  curve("log1p", 5, [](Reals x) { return std::log1p(x[0]); });
  curve("expm1", 5, [](Reals x) { return std::expm1(x[0]); });
  rules["expm1"].units_by_a_plugin = 8;  // XLA's is a tanh(x / 2) times an exp(x) + 1 near zero
  curve("softplus", 7, [](Reals x) { return Softplus(x[0]); });
  // Their slopes are at most 1; near their zeros what is rounded is a part of the argument.
  const SpreadFn wave_spread = [](Reals, Reals e) { return e[0]; };
  const SizeFn wave_size = [](Reals x, Reals e) { return 1 + 0.01 * (std::abs(x[0]) + e[0]); };
  rules["sin"] = {.real = [](Reals x) { return std::sin(x[0]); },
                  .units = 5,
                  .spread = wave_spread,
                  .size = wave_size};
  rules["cos"] = {.real = [](Reals x) { return std::cos(x[0]); },
                  .units = 5,
                  .spread = wave_spread,
                  .size = wave_size};
  curve("erf", 5, [](Reals x) { return std::erf(x[0]); });
  curve("tanh", 7, [](Reals x) { return std::tanh(x[0]); });
  curve("sigmoid", 9, [](Reals x) { return Sigmoid(x[0]); });
  // 1 + erf and 1 + tanh cancel: what is lost is a part of x. Slopes are at most 1.13.
  const SpreadFn gelu_spread = [](Reals, Reals e) { return 1.13 * e[0]; };
  const SizeFn gelu_size = [](Reals x, Reals e) { return std::abs(x[0]) + e[0]; };
  rules["gelu"] = {.real = [](Reals x) { return Gelu(x[0]); },
                   .units = 10,
                   .spread = gelu_spread,
                   .size = gelu_size};
  rules["gelu, approximate"] = {.real = [](Reals x) { return GeluTanh(x[0]); },
                                .units = 20,
                                .spread = gelu_spread,
                                .size = gelu_size};
  for (const char* kind : {"stop_gradient", "relayout", "broadcast_to"}) {
    exact(
        kind, [](Reals x) { return x[0]; }, [](Wholes x) { return x[0]; }, GridRule::kLeast,
        Linear::kFirst);
  }
  const auto decides = [&](const char* kind, double (*real)(Reals), int64_t (*whole)(Wholes),
                           SpreadFn spread = nullptr) {
    exact(kind, real, whole, GridRule::kNone, Linear::kNo, spread);
  };
#define MT_DECIDES(kind, op, spread)                      \
  decides(                                                \
      kind, [](Reals x) { return double(x[0] op x[1]); }, \
      [](Wholes x) { return int64_t(x[0] op x[1]); }, spread)
  MT_DECIDES("equal", ==, SpreadOfEqual);
  MT_DECIDES("not_equal", !=, SpreadOfEqual);
  MT_DECIDES("less", <, nullptr);
  MT_DECIDES("less_equal", <=, nullptr);
  MT_DECIDES("greater", >, nullptr);
  MT_DECIDES("greater_equal", >=, nullptr);
#undef MT_DECIDES
  decides(
      "logical_and", [](Reals x) { return double(x[0] > 0 && x[1] > 0); },
      [](Wholes x) { return int64_t(x[0] != 0 && x[1] != 0); });
  decides(
      "logical_or", [](Reals x) { return double(x[0] > 0 || x[1] > 0); },
      [](Wholes x) { return int64_t(x[0] != 0 || x[1] != 0); });
  decides(
      "logical_not", [](Reals x) { return double(!(x[0] > 0)); },
      [](Wholes x) { return int64_t(x[0] == 0); });
  // max(x, 0) - x z + log(1 + exp(-|x|)), with slopes sigmoid(x) - z by x and -x by z.
  rules["sigmoid_cross_entropy"] = {
      .real =
          [](Reals x) {
            return std::max(x[0], 0.0) - x[0] * x[1] + std::log1p(std::exp(-std::abs(x[0])));
          },
      .units = 8,
      .spread = [](Reals x,
                   Reals e) { return e[0] * (1 + std::abs(x[1]) + e[1]) + e[1] * std::abs(x[0]); },
      .size = [](Reals x,
                 Reals e) { return (std::abs(x[0]) + e[0]) * (1 + std::abs(x[1]) + e[1]) + 1; }};
  return rules;
}

const std::map<std::string, Rule>& Rules() {
  static const std::map<std::string, Rule> rules = MakeRules();
  return rules;
}

// The most that a function which rises or falls in each operand strays over their intervals: it is
// at corners.
double CornerSpread(const Rule& rule, Reals x, Reals e, size_t n, double value) {
  double most = 0;
  double corner[4];
  for (unsigned k = 0; k < 1u << n; ++k) {
    for (size_t i = 0; i < n; ++i) {
      // The ends are doubles, which may fall short of them.
      const double reach = e[i] == 0 ? 0 : e[i] + std::abs(x[i]) * 0x1p-52;
      corner[i] = (k >> i & 1) != 0 ? x[i] + reach : x[i] - reach;
    }
    const double off = std::abs(rule.real(corner) - value);
    if (!(off <= most)) most = std::isnan(off) ? kUnknown : off;
  }
  return rule.units > 0 ? most + std::abs(value) * 0x1p-51 : most;
}

double GridOfResult(GridRule rule, const Operands& x) {
  double least = 1, product = 1;
  for (const Array* a : x) {
    least = std::min(least, a->grid);
    product *= a->grid;
  }
  switch (rule) {
    case GridRule::kNone:
      return 0;
    case GridRule::kLeast:
      return least;
    case GridRule::kProduct:
      return product;
    case GridRule::kSquare:
      return x[0]->grid * x[0]->grid;
    case GridRule::kWhole:
      return 1;
  }
  return 0;
}

double MassOfResult(const Rule& rule, const double* mass, Reals x, Reals e) {
  switch (rule.linear) {
    case Linear::kNo:
      return 0;  // what was pending is reduced first: CloseBound takes the result's own size
    case Linear::kSum:
      return mass[0] + mass[1];
    case Linear::kProduct:
      return mass[0] * mass[1];
    case Linear::kQuotient:
      return mass[0] / (std::abs(x[1]) - e[1]);
    case Linear::kFirst:
      return mass[0];
  }
  return 0;
}

int64_t PartsOfResult(const Rule& rule, const Operands& x) {
  switch (rule.linear) {
    case Linear::kNo:
      return 1;
    case Linear::kSum:
    case Linear::kProduct:
      return std::max(x[0]->parts, x[1]->parts);
    case Linear::kQuotient:
    case Linear::kFirst:
      return x[0]->parts;
  }
  return 1;
}

std::vector<Dims> StepsOf(const Operands& x, const Dims& dims) {
  std::vector<Dims> steps;
  for (const Array* a : x) steps.push_back(BroadcastSteps(a->type.dims, dims));
  return steps;
}

Array Apply(const Rule& rule, const Operands& x, const TensorType& type, Keep keep) {
  const size_t n = x.size();
  MT_CHECK(n <= 4);
  Array out(type);
  const bool of_floats = mesh::IsFloat(x[0]->type.dtype);
  const bool bounded = keep == Keep::kBounded;
  const double units = IsByAPlugin() ? std::max(rule.units, rule.units_by_a_plugin) : rule.units;
  if (bounded) StartBounds(out);
  if (!out.mass.empty()) {
    out.grid = GridOfResult(rule.grid, x);
    out.parts = PartsOfResult(rule, x);
  }
  Walk(type.dims, StepsOf(x, type.dims), [&](int64_t at, const int64_t* from) {
    double real[4] = {}, error[4] = {}, mass[4] = {};
    int64_t whole[4] = {};
    bool exact = true, known = true;
    for (size_t i = 0; i < n; ++i) {
      const Number v = x[i]->at[from[i]];
      real[i] = static_cast<double>(v);
      if (!of_floats) whole[i] = static_cast<int64_t>(v);
      if (!bounded) continue;
      error[i] = x[i]->error[from[i]];
      if (!x[i]->mass.empty()) mass[i] = x[i]->mass[from[i]];
      exact = exact && error[i] == 0;
      known = known && error[i] != kUnknown;
    }
    out.at[at] = of_floats ? static_cast<Number>(rule.real(real))
                           : RoundTo(type.dtype, static_cast<Number>(rule.whole(whole)));
    if (!bounded) return;
    const auto value = static_cast<double>(out.at[at]);
    if (!known) {
      out.error[at] = kUnknown;
    } else if (!exact) {
      out.error[at] = rule.spread != nullptr ? rule.spread(real, error)
                                             : CornerSpread(rule, real, error, n, value);
    }
    if (!out.mass.empty()) {
      const double size = std::abs(value) + out.error[at];
      out.mass[at] = std::max(size, MassOfResult(rule, mass, real, error));
      const double relative_to = rule.size != nullptr ? rule.size(real, error) : out.mass[at];
      if (units > 0) AddRounding(out, at, units, relative_to, exact);
    }
    CloseBound(out, at);
  });
  return out;
}

// where condition a else b; a condition that is open gives an interval that holds both.
Array Select(const Operands& x, const TensorType& type, Keep keep) {
  Array out(type);
  const bool bounded = keep == Keep::kBounded;
  if (bounded) StartBounds(out);
  if (!out.mass.empty()) {
    out.grid = std::min(x[1]->grid, x[2]->grid);
    out.parts = std::max(x[1]->parts, x[2]->parts);
  }
  Walk(type.dims, StepsOf(x, type.dims), [&](int64_t at, const int64_t* from) {
    const int chosen = x[0]->at[from[0]] != 0 ? 1 : 2, other = 3 - chosen;
    out.at[at] = x[chosen]->at[from[chosen]];
    if (!bounded) return;
    out.error[at] = x[chosen]->error[from[chosen]];
    if (x[0]->error[from[0]] != 0) {
      const Number apart = std::abs(x[other]->at[from[other]] - out.at[at]);
      out.error[at] = std::isfinite(apart)
                          ? std::max(out.error[at], static_cast<double>(apart) * (1 + 0x1p-50) +
                                                        x[other]->error[from[other]])
                          : kUnknown;
    }
    if (!out.mass.empty()) out.mass[at] = std::max(x[1]->mass[from[1]], x[2]->mass[from[2]]);
    CloseBound(out, at);
  });
  return out;
}

// Towards zero, and to the type's ends, from floats to integers; whole numbers wrap around.
Number Casted(Number v, DType from, DType to) {
  if (mesh::IsHalf(to)) return v;  // rounded once, afterwards
  if (mesh::IsFloat(to)) return static_cast<double>(v);
  if (to == DType::kBool) return v != 0 ? 1 : 0;
  if (!mesh::IsFloat(from) || !std::isfinite(v)) return RoundTo(to, v);
  const Number whole = std::trunc(v);
  switch (to) {
    case DType::kU8:
      return std::clamp<Number>(whole, 0, 255);
    case DType::kI32:
      return std::clamp<Number>(whole, std::numeric_limits<int32_t>::min(),
                                std::numeric_limits<int32_t>::max());
    default:
      return std::clamp<Number>(whole, static_cast<Number>(std::numeric_limits<int64_t>::min()),
                                static_cast<Number>(std::numeric_limits<int64_t>::max()));
  }
}

Array Cast(const Array& x, const TensorType& type, Keep keep) {
  Array out(type);
  const DType from = x.type.dtype, to = type.dtype;
  const bool bounded = keep == Keep::kBounded;
  if (bounded) StartBounds(out);
  const bool from_float = mesh::IsFloat(from), to_float = mesh::IsFloat(to);
  if (to_float) out.grid = from_float ? x.grid : 1;
  const bool widens =
      from == to || (from_float && to == DType::kF64) || (mesh::IsHalf(from) && to == DType::kF32);
  if (from_float && widens) out.parts = x.parts;
  for (size_t i = 0; i < x.at.size(); ++i) {
    out.at[i] = Casted(x.at[i], from, to);
    if (!bounded) continue;
    const double error = x.error[i];
    if (!(error <= 0x1p52)) {
      out.error[i] = to == DType::kBool ? 1 : kUnknown;
    } else if (error > 0) {
      for (const Number end : {x.at[i] - error, x.at[i] + error, Number{0}}) {
        if (end == 0 && std::abs(x.at[i]) > error) continue;
        const Number off = std::abs(Casted(end, from, to) - out.at[i]);
        out.error[i] = std::max(out.error[i], static_cast<double>(off));
      }
      // An integer's neighbours are not its ends once it has wrapped.
      if (!from_float && !to_float && to != DType::kBool && Casted(x.at[i], from, to) != x.at[i]) {
        out.error[i] = kUnknown;
      }
      // A bool in between is 1 whatever its ends are.
      if (to == DType::kBool && std::abs(x.at[i]) <= error) out.error[i] = 1;
    }
    if (to_float) {
      out.mass[i] = std::max(static_cast<double>(std::abs(out.at[i])) + out.error[i],
                             from_float ? x.mass[i] : 0.0);
      if (!widens) AddRounding(out, i, 1, out.mass[i], error == 0);
    }
    CloseBound(out, i);
  }
  return out;
}

}  // namespace

Dims BroadcastSteps(const Dims& operand, const Dims& dims) {
  Dims steps(dims.size(), 0);
  int64_t step = 1;
  for (size_t k = 1; k <= operand.size(); ++k) {
    const int64_t size = operand[operand.size() - k];
    if (size != 1) steps[dims.size() - k] = step;
    step *= size;
  }
  return steps;
}

std::optional<Array> Elementwise(const Op& op, const Operands& x, const TensorType& type,
                                 Keep keep) {
  if (op.kind == "select") return Select(x, type, keep);
  if (op.kind == "cast") return Cast(*x[0], type, keep);
  const bool approximate = op.kind == "gelu" && op.attrs.Bool("approximate");
  const auto rule = Rules().find(approximate ? "gelu, approximate" : op.kind);
  if (rule == Rules().end()) return std::nullopt;
  return Apply(rule->second, x, type, keep);
}

}  // namespace meshtrain::testing::interpreter
