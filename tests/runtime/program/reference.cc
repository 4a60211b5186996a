#include "tests/runtime/program/reference.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <numbers>

#include "runtime/base/check.h"

namespace meshtrain::program {
namespace {

using Index = Dims;

// Calls `body` with every index of `dims`, in row-major order.
void ForEach(const Dims& dims, const std::function<void(const Index&)>& body) {
  if (mesh::NumElements(dims) == 0) return;
  Index index(dims.size(), 0);
  for (;;) {
    body(index);
    size_t d = dims.size();
    while (d > 0 && ++index[d - 1] == dims[d - 1]) index[--d] = 0;
    if (d == 0) return;
  }
}

size_t Flat(const Dims& dims, const Index& index) {
  int64_t at = 0;
  for (size_t d = 0; d < dims.size(); ++d) at = at * dims[d] + index[d];
  return static_cast<size_t>(at);
}

// The element that broadcasting brings to `index`.
double Stretched(const Array& a, const Index& index) {
  Index own(a.dims.size());
  for (size_t d = 0; d < own.size(); ++d) {
    own[d] = a.dims[d] == 1 ? 0 : index[index.size() - own.size() + d];
  }
  return a.v[Flat(a.dims, own)];
}

double Sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

using Scalar = std::function<double(const std::vector<double>&)>;
using Args = const std::vector<double>&;

const std::map<std::string, Scalar>& Scalars() {
  static const std::map<std::string, Scalar> scalars = {
      {"add", [](Args a) { return a[0] + a[1]; }},
      {"sub", [](Args a) { return a[0] - a[1]; }},
      {"mul", [](Args a) { return a[0] * a[1]; }},
      {"div", [](Args a) { return a[0] / a[1]; }},
      {"pow", [](Args a) { return std::pow(a[0], a[1]); }},
      {"maximum", [](Args a) { return std::max(a[0], a[1]); }},
      {"minimum", [](Args a) { return std::min(a[0], a[1]); }},
      {"neg", [](Args a) { return -a[0]; }},
      {"abs", [](Args a) { return std::abs(a[0]); }},
      {"sign", [](Args a) { return a[0] > 0   ? 1.0
                                   : a[0] < 0 ? -1.0
                                              : 0.0; }},
      {"floor", [](Args a) { return std::floor(a[0]); }},
      {"square", [](Args a) { return a[0] * a[0]; }},
      {"sqrt", [](Args a) { return std::sqrt(a[0]); }},
      {"rsqrt", [](Args a) { return 1 / std::sqrt(a[0]); }},
      {"exp", [](Args a) { return std::exp(a[0]); }},
      {"log", [](Args a) { return std::log(a[0]); }},
      {"log1p", [](Args a) { return std::log1p(a[0]); }},
      {"erf", [](Args a) { return std::erf(a[0]); }},
      {"tanh", [](Args a) { return std::tanh(a[0]); }},
      {"sigmoid", [](Args a) { return Sigmoid(a[0]); }},
      {"relu", [](Args a) { return a[0] > 0 ? a[0] : 0.0; }},
      {"stop_gradient", [](Args a) { return a[0]; }},
      {"relayout", [](Args a) { return a[0]; }},
      {"broadcast_to", [](Args a) { return a[0]; }},
      {"equal", [](Args a) { return a[0] == a[1] ? 1.0 : 0.0; }},
      {"not_equal", [](Args a) { return a[0] != a[1] ? 1.0 : 0.0; }},
      {"less", [](Args a) { return a[0] < a[1] ? 1.0 : 0.0; }},
      {"less_equal", [](Args a) { return a[0] <= a[1] ? 1.0 : 0.0; }},
      {"greater", [](Args a) { return a[0] > a[1] ? 1.0 : 0.0; }},
      {"greater_equal", [](Args a) { return a[0] >= a[1] ? 1.0 : 0.0; }},
      {"logical_and", [](Args a) { return a[0] != 0 && a[1] != 0 ? 1.0 : 0.0; }},
      {"logical_or", [](Args a) { return a[0] != 0 || a[1] != 0 ? 1.0 : 0.0; }},
      {"logical_not", [](Args a) { return a[0] != 0 ? 0.0 : 1.0; }},
      {"select", [](Args a) { return a[0] != 0 ? a[1] : a[2]; }},
      {"sigmoid_cross_entropy",
       [](Args a) {
         return std::max(a[0], 0.0) - a[0] * a[1] + std::log1p(std::exp(-std::abs(a[0])));
       }},
  };
  return scalars;
}

double Gelu(double x, bool approximate) {
  const double inner = std::sqrt(2 / std::numbers::pi) * (x + 0.044715 * x * x * x);
  return approximate ? 0.5 * x * (1 + std::tanh(inner))
                     : 0.5 * x * (1 + std::erf(x / std::numbers::sqrt2));
}

// log(softmax) of one row of classes.
std::vector<double> LogSoftmaxRow(const double* row, int64_t classes) {
  const double top = *std::max_element(row, row + classes);
  double sum = 0;
  for (int64_t c = 0; c < classes; ++c) sum += std::exp(row[c] - top);
  std::vector<double> out;
  for (int64_t c = 0; c < classes; ++c) out.push_back(row[c] - top - std::log(sum));
  return out;
}

// The ops over classes, row by row.
bool EvaluateRows(const std::string& kind, const std::vector<Array>& in, Array& out) {
  if (kind.find("softmax") == std::string::npos) return false;
  const int64_t classes = in[0].dims.back();
  for (size_t row = 0; row * classes < in[0].v.size(); ++row) {
    const std::vector<double> log_p = LogSoftmaxRow(&in[0].v[row * classes], classes);
    double dense = 0;
    for (int64_t c = 0; c < classes; ++c) {
      const size_t at = row * classes + c;
      if (kind == "softmax") out.v[at] = std::exp(log_p[c]);
      if (kind == "log_softmax") out.v[at] = log_p[c];
      if (kind == "softmax_cross_entropy") dense -= in[1].v[at] * log_p[c];
      if (kind == "sparse_softmax_cross_entropy_grad") {
        out.v[at] =
            (std::exp(log_p[c]) - (in[1].v[row] == static_cast<double>(c) ? 1 : 0)) * in[2].v[row];
      }
    }
    if (kind == "softmax_cross_entropy") out.v[row] = dense;
    if (kind == "sparse_softmax_cross_entropy") {
      out.v[row] = -log_p[static_cast<size_t>(in[1].v[row])];
    }
  }
  return true;
}

void MatMul(const Attrs& attrs, const std::vector<Array>& in, Array& out) {
  const bool ta = attrs.Bool("transpose_a"), tb = attrs.Bool("transpose_b");
  const size_t batch = out.dims.size() - 2;
  const int64_t inner = in[0].dims[in[0].dims.size() - (ta ? 2 : 1)];
  const auto element = [&](const Array& a, const Index& index, int64_t row, int64_t column) {
    Index own(a.dims.size());
    for (size_t d = 0; d + 2 < own.size(); ++d) own[d] = index[d];
    own[own.size() - 2] = row;
    own[own.size() - 1] = column;
    return a.v[Flat(a.dims, own)];
  };
  ForEach(out.dims, [&](const Index& index) {
    const int64_t m = index[batch], n = index[batch + 1];
    double sum = 0;
    for (int64_t k = 0; k < inner; ++k) {
      sum += (ta ? element(in[0], index, k, m) : element(in[0], index, m, k)) *
             (tb ? element(in[1], index, n, k) : element(in[1], index, k, n));
    }
    out.v[Flat(out.dims, index)] = sum;
  });
}

void Reduce(const std::string& kind, const Attrs& attrs, const Array& in, Array& out) {
  std::vector<bool> reduced(in.dims.size(), false);
  for (const int64_t axis : attrs.Ints("axes")) reduced[axis] = true;
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  std::fill(out.v.begin(), out.v.end(),
            kind == "reduce_sum"   ? 0
            : kind == "reduce_max" ? -kInfinity
                                   : kInfinity);
  ForEach(in.dims, [&](const Index& index) {
    size_t at = 0;  // dimensions of size 1 do not move it
    for (size_t d = 0; d < index.size(); ++d) {
      if (!reduced[d]) at = at * in.dims[d] + index[d];
    }
    const double x = in.v[Flat(in.dims, index)];
    double& y = out.v[at];
    y = kind == "reduce_sum" ? y + x : kind == "reduce_max" ? std::max(y, x) : std::min(y, x);
  });
}

}  // namespace

Array Block(const Array& a, const Dims& starts, const Dims& sizes) {
  Array out{sizes, {}};
  ForEach(sizes, [&](const Index& index) {
    Index from = index;
    for (size_t d = 0; d < from.size(); ++d) from[d] += starts[d];
    out.v.push_back(a.v[Flat(a.dims, from)]);
  });
  return out;
}

Array EvaluateOp(const std::string& kind, const Attrs& attrs, const std::vector<Array>& in,
                 const TensorType& result) {
  Array out{result.dims, std::vector<double>(static_cast<size_t>(result.num_elements()), 0.0)};
  const auto set = [&](const std::function<double(const Index&)>& value) {
    ForEach(out.dims, [&](const Index& index) { out.v[Flat(out.dims, index)] = value(index); });
  };
  if (const auto it = Scalars().find(kind); it != Scalars().end()) {
    set([&](const Index& index) {
      std::vector<double> args;
      for (const Array& a : in) args.push_back(Stretched(a, index));
      return it->second(args);
    });
  } else if (kind == "gelu") {
    set([&](const Index& index) {
      return Gelu(Stretched(in[0], index), attrs.Bool("approximate"));
    });
  } else if (kind == "cast") {
    set([&](const Index& index) {
      const double x = Stretched(in[0], index);
      return mesh::IsFloat(result.dtype)    ? x
             : result.dtype == DType::kBool ? (x != 0 ? 1.0 : 0.0)
                                            : std::trunc(x);
    });
  } else if (kind == "matmul") {
    MatMul(attrs, in, out);
  } else if (kind.starts_with("reduce_")) {
    Reduce(kind, attrs, in[0], out);
  } else if (EvaluateRows(kind, in, out)) {
  } else if (kind == "reshape") {
    out.v = in[0].v;
  } else if (kind == "transpose") {
    const auto permutation = attrs.Ints("permutation");
    set([&](const Index& index) {
      Index from(index.size());
      for (size_t d = 0; d < from.size(); ++d) from[permutation[d]] = index[d];
      return in[0].v[Flat(in[0].dims, from)];
    });
  } else if (kind == "concat") {
    const int64_t axis = attrs.Int("axis");
    set([&](Index index) {
      size_t part = 0;
      while (index[axis] >= in[part].dims[axis]) index[axis] -= in[part++].dims[axis];
      return in[part].v[Flat(in[part].dims, index)];
    });
  } else if (kind == "slice") {
    out = Block(in[0], attrs.Ints("starts"), result.dims);
  } else if (kind == "pad") {
    const Dims before = attrs.Ints("before");
    set([&](Index index) {
      for (size_t d = 0; d < index.size(); ++d) {
        index[d] -= before[d];
        if (index[d] < 0 || index[d] >= in[0].dims[d]) return attrs.Double("value");
      }
      return in[0].v[Flat(in[0].dims, index)];
    });
  } else if (kind == "count_beyond") {
    const double limit = attrs.Double("limit");
    const auto beyond = [&](double x) { return !(std::abs(x) <= limit); };
    const auto count = std::count_if(in[0].v.begin(), in[0].v.end(), beyond);
    set([&](Index) { return static_cast<double>(count); });
  } else if (kind == "argmax") {
    const int64_t axis = attrs.Int("axis");
    set([&](Index index) {
      index.insert(index.begin() + axis, 0);
      int64_t best = 0;
      double top = 0;
      for (int64_t i = 0; i < in[0].dims[axis]; ++i) {
        index[axis] = i;
        const double x = in[0].v[Flat(in[0].dims, index)];
        if (i == 0 || x > top) {
          best = i;
          top = x;
        }
      }
      return static_cast<double>(best);
    });
  } else if (kind == "one_hot") {
    set([&](Index index) {
      const int64_t c = index.back();
      index.pop_back();
      return in[0].v[Flat(in[0].dims, index)] == static_cast<double>(c) ? 1.0 : 0.0;
    });
  } else if (kind == "fill" || (kind == "constant" && attrs.Has("value"))) {
    std::fill(out.v.begin(), out.v.end(), attrs.Double("value"));
  } else if (kind == "constant") {
    out.v = attrs.Doubles("values");
  } else if (kind == "iota") {
    set([&](const Index& index) { return static_cast<double>(index[attrs.Int("axis")]); });
  } else {
    MT_CHECK(!"a kind that the reference does not know");
  }
  return out;
}

std::map<std::string, Array> Evaluate(const Program& program,
                                      const std::map<std::string, Array>& inputs) {
  std::vector<Array> values(program.values.size());
  for (const Port& p : program.inputs) values[p.value] = inputs.at(p.name);
  for (const Op& op : program.ops) {
    std::vector<Array> operands;
    for (const ValueId v : op.operands) operands.push_back(values[v]);
    values[op.results[0]] = EvaluateOp(op.kind, op.attrs, operands, program.type(op.results[0]));
  }
  std::map<std::string, Array> outputs;
  for (const Port& p : program.outputs) outputs[p.name] = values[p.value];
  return outputs;
}

}  // namespace meshtrain::program
