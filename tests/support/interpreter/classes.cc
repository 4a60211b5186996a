// Ops over classes, row by row: softmax, cross-entropies.
#include <algorithm>

#include "runtime/base/check.h"
#include "tests/support/interpreter/parts.h"

namespace meshtrain::testing::interpreter {
namespace {

// One row of logits, and what a backend may be wrong by where it takes the largest away first, adds
// the exponentials in any order and goes through their logarithm.
struct Row {
  double top = 0;
  // log(sum(exp)), of more digits than the rounding of many terms takes.
  Number log_sum = 0;
  double error = 0;     // of a logit, the largest
  double relative = 0;  // of the sum of exponentials, in halves of an ulp
  double reach = 0;     // the largest distance from the top

  Row(const Array& x, int64_t begin, int64_t classes, bool bounded) {
    top = -std::numeric_limits<double>::infinity();
    for (int64_t c = 0; c < classes; ++c) {
      const auto v = static_cast<double>(x.at[begin + c]);
      top = std::isnan(v) || std::isnan(top) ? kNaN : std::max(top, v);
    }
    Number sum = 0;
    for (int64_t c = 0; c < classes; ++c) {
      const auto v = static_cast<double>(x.at[begin + c]);
      sum += std::exp(v - top);
      reach = std::max(reach, top - v);
      if (bounded) error = std::max(error, x.error[begin + c]);
    }
    log_sum = top + std::log(sum);
    relative = reach + 6 + SumUnits(x.type.dtype, classes);
  }
  Number LogP(double x) const { return x - log_sum; }
  // How far log(p) of a logit may be off, rounding included: (x - top) - log(sum), so that what the
  // logits have in common costs nothing.
  double LogError(double x, double own, double unit) const {
    return own + error +
           unit *
               static_cast<double>(2 * std::abs(x - top) + relative + 5 * std::abs(log_sum - top));
  }
  // How far p may be off.
  double Error(double p, double unit) const {
    const double by_logits = p * std::expm1(2 * error);
    return by_logits + (p + by_logits) * unit * (relative + reach + 9);
  }
};

Array Softmax(bool log, const Array& x, const TensorType& type, Keep keep) {
  Array out(type);
  const bool bounded = keep == Keep::kBounded;
  if (bounded) StartBounds(out);
  const double unit = 1.01 * UnitOf(type.dtype);
  const int64_t classes = type.dims.back();
  for (int64_t begin = 0; begin < type.num_elements(); begin += classes) {
    const Row row(x, begin, classes, bounded);
    for (int64_t i = begin; i < begin + classes; ++i) {
      const auto v = static_cast<double>(x.at[i]);
      const Number log_p = row.LogP(v);
      out.at[i] = static_cast<double>(log ? log_p : std::exp(log_p));
      if (!bounded) continue;
      out.error[i] = log ? row.LogError(v, x.error[i], unit)
                         : row.Error(static_cast<double>(out.at[i]), unit) + 0x1p-126;
      CloseBound(out, i);
    }
  }
  return out;
}

// -sum_c labels_c log_softmax(logits)_c, linear in the labels.
Array Dense(const Array& x, const Array& labels, const TensorType& type, Keep keep) {
  Array out(type);
  const bool bounded = keep == Keep::kBounded;
  if (bounded) StartBounds(out);
  const double unit = 1.01 * UnitOf(type.dtype);
  const int64_t classes = x.type.dims.back();
  for (int64_t r = 0; r < type.num_elements(); ++r) {
    const Row row(x, r * classes, classes, bounded);
    double loss = 0, error = 0, mass = 0;
    for (int64_t i = r * classes; i < (r + 1) * classes; ++i) {
      const auto v = static_cast<double>(x.at[i]);
      const auto log_p = static_cast<double>(row.LogP(v));
      loss -= static_cast<double>(labels.at[i]) * log_p;
      if (!bounded) continue;
      const double log_error = row.LogError(v, x.error[i], unit);
      error += labels.mass[i] * log_error + labels.error[i] * std::abs(log_p);
      mass += labels.mass[i] * (std::abs(log_p) + log_error);
    }
    out.at[r] = loss;
    if (!bounded) continue;
    out.mass[r] = mass;
    out.error[r] = error + unit * static_cast<double>(classes + 2 + labels.parts) * mass;
    CloseBound(out, r);
  }
  out.parts = PartsOf(labels.parts, classes);
  return out;
}

// log sum_c exp(x_c) - x_label, and its gradient (softmax(x)_c - [c == label]) dloss. NaN for a
// label outside.
Array Sparse(bool gradient, const Operands& x, const TensorType& type, Keep keep) {
  Array out(type);
  const bool bounded = keep == Keep::kBounded;
  if (bounded) StartBounds(out);
  const double unit = 1.01 * UnitOf(type.dtype);
  const int64_t classes = x[0]->type.dims.back();
  const int64_t rows = x[1]->type.num_elements();
  if (bounded && gradient) out.parts = x[2]->parts;
  for (int64_t r = 0; r < rows; ++r) {
    const Row row(*x[0], r * classes, classes, bounded);
    const Number label = x[1]->at[r];
    const bool outside = !(label >= 0 && label < static_cast<Number>(classes));
    const bool open = bounded && x[1]->error[r] != 0;
    const int64_t at = r * classes + (outside ? 0 : static_cast<int64_t>(label));
    if (!gradient) {
      const auto v = static_cast<double>(x[0]->at[at]);
      out.at[r] = outside ? kNaN : static_cast<double>(-row.LogP(v));
      if (!bounded) continue;
      out.error[r] = open ? kUnknown : row.LogError(v, x[0]->error[at], unit);
      CloseBound(out, r);
      continue;
    }
    const auto g = static_cast<double>(x[2]->at[r]);
    for (int64_t i = r * classes; i < (r + 1) * classes; ++i) {
      const auto p = static_cast<double>(std::exp(row.LogP(static_cast<double>(x[0]->at[i]))));
      const double hot = i == at ? 1 : 0;
      out.at[i] = outside ? kNaN : (p - hot) * g;
      if (!bounded) continue;
      const double factor_error = row.Error(p, unit) + 2 * unit + 0x1p-126;
      const double factor = std::abs(p - hot) + factor_error;
      out.mass[i] = (p + hot + factor_error) * x[2]->mass[r];
      out.error[i] = open ? kUnknown
                          : factor_error * x[2]->mass[r] + factor * x[2]->error[r] +
                                static_cast<double>(2 + out.parts) * unit * out.mass[i];
      CloseBound(out, i);
    }
  }
  return out;
}

}  // namespace

std::optional<Array> Classes(const Op& op, const Operands& x, const TensorType& type, Keep keep) {
  if (op.kind == "softmax" || op.kind == "log_softmax") {
    return Softmax(op.kind == "log_softmax", *x[0], type, keep);
  }
  if (op.kind == "softmax_cross_entropy") return Dense(*x[0], *x[1], type, keep);
  if (op.kind == "sparse_softmax_cross_entropy") return Sparse(false, x, type, keep);
  if (op.kind == "sparse_softmax_cross_entropy_grad") return Sparse(true, x, type, keep);
  return std::nullopt;
}

}  // namespace meshtrain::testing::interpreter
