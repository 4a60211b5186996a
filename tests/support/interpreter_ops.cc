// Every op that is no collective, by its definition.
#include <algorithm>
#include <bit>
#include <cmath>
#include <functional>
#include <limits>
#include <numbers>

#include "runtime/base/check.h"
#include "tests/support/interpreter.h"

namespace meshtrain::testing {
namespace {

using mesh::Dims;
using mesh::DType;
using mesh::TensorType;
using program::Attrs;
using program::Op;
using Operands = std::vector<const Array*>;

const double kNaN = std::numeric_limits<double>::quiet_NaN();

// Calls f(index, position) for every index of `dims` in row-major order.
void ForEach(const Dims& dims, const std::function<void(const Dims&, int64_t)>& f) {
  const int64_t n = mesh::NumElements(dims);
  Dims index(dims.size(), 0);
  for (int64_t i = 0; i < n; ++i) {
    f(index, i);
    for (size_t d = dims.size(); d-- > 0;) {
      if (++index[d] < dims[d]) break;
      index[d] = 0;
    }
  }
}

int64_t Position(const Dims& index, const Dims& dims) {
  int64_t at = 0;
  for (size_t d = 0; d < dims.size(); ++d) at = at * dims[d] + index[d];
  return at;
}

// The position in `dims` of the element that broadcasting puts at `index`.
int64_t BroadcastPosition(const Dims& index, const Dims& dims) {
  int64_t at = 0;
  const size_t skip = index.size() - dims.size();
  for (size_t d = 0; d < dims.size(); ++d) at = at * dims[d] + (dims[d] == 1 ? 0 : index[skip + d]);
  return at;
}

using Scalar = std::function<double(const double*, const Attrs&)>;

double Max(double a, double b) { return std::isnan(a) || std::isnan(b) ? kNaN : std::max(a, b); }
double Min(double a, double b) { return std::isnan(a) || std::isnan(b) ? kNaN : std::min(a, b); }

double SigmoidOf(double x) {
  return x >= 0 ? 1 / (1 + std::exp(-x)) : std::exp(x) / (1 + std::exp(x));
}

double Gelu(double x, const Attrs& attrs) {
  if (attrs.Bool("approximate")) {
    return 0.5 * x * (1 + std::tanh(std::sqrt(2 / std::numbers::pi) * (x + 0.044715 * x * x * x)));
  }
  return 0.5 * x * (1 + std::erf(x / std::numbers::sqrt2));
}

const std::map<std::string, Scalar>& Elementwise() {
  static const std::map<std::string, Scalar> table = {
      {"add", [](const double* x, const Attrs&) { return x[0] + x[1]; }},
      {"sub", [](const double* x, const Attrs&) { return x[0] - x[1]; }},
      {"mul", [](const double* x, const Attrs&) { return x[0] * x[1]; }},
      {"div", [](const double* x, const Attrs&) { return x[0] / x[1]; }},
      {"pow", [](const double* x, const Attrs&) { return std::pow(x[0], x[1]); }},
      {"maximum", [](const double* x, const Attrs&) { return Max(x[0], x[1]); }},
      {"minimum", [](const double* x, const Attrs&) { return Min(x[0], x[1]); }},
      {"neg", [](const double* x, const Attrs&) { return -x[0]; }},
      {"abs", [](const double* x, const Attrs&) { return std::abs(x[0]); }},
      {"sign",
       [](const double* x, const Attrs&) { return x[0] > 0   ? 1.0
                                                  : x[0] < 0 ? -1.0
                                                             : x[0]; }},
      {"floor", [](const double* x, const Attrs&) { return std::floor(x[0]); }},
      {"square", [](const double* x, const Attrs&) { return x[0] * x[0]; }},
      {"sqrt", [](const double* x, const Attrs&) { return std::sqrt(x[0]); }},
      {"rsqrt", [](const double* x, const Attrs&) { return 1 / std::sqrt(x[0]); }},
      {"exp", [](const double* x, const Attrs&) { return std::exp(x[0]); }},
      {"log", [](const double* x, const Attrs&) { return std::log(x[0]); }},
      {"log1p", [](const double* x, const Attrs&) { return std::log1p(x[0]); }},
      {"erf", [](const double* x, const Attrs&) { return std::erf(x[0]); }},
      {"tanh", [](const double* x, const Attrs&) { return std::tanh(x[0]); }},
      {"sigmoid", [](const double* x, const Attrs&) { return SigmoidOf(x[0]); }},
      {"relu",
       [](const double* x, const Attrs&) { return std::isnan(x[0]) ? x[0] : std::max(x[0], 0.0); }},
      {"gelu", [](const double* x, const Attrs& attrs) { return Gelu(x[0], attrs); }},
      {"cast", [](const double* x, const Attrs&) { return x[0]; }},
      {"stop_gradient", [](const double* x, const Attrs&) { return x[0]; }},
      {"relayout", [](const double* x, const Attrs&) { return x[0]; }},
      {"broadcast_to", [](const double* x, const Attrs&) { return x[0]; }},
      {"equal", [](const double* x, const Attrs&) { return double(x[0] == x[1]); }},
      {"not_equal", [](const double* x, const Attrs&) { return double(x[0] != x[1]); }},
      {"less", [](const double* x, const Attrs&) { return double(x[0] < x[1]); }},
      {"less_equal", [](const double* x, const Attrs&) { return double(x[0] <= x[1]); }},
      {"greater", [](const double* x, const Attrs&) { return double(x[0] > x[1]); }},
      {"greater_equal", [](const double* x, const Attrs&) { return double(x[0] >= x[1]); }},
      {"logical_and", [](const double* x, const Attrs&) { return double(x[0] != 0 && x[1] != 0); }},
      {"logical_or", [](const double* x, const Attrs&) { return double(x[0] != 0 || x[1] != 0); }},
      {"logical_not", [](const double* x, const Attrs&) { return double(x[0] == 0); }},
      {"select", [](const double* x, const Attrs&) { return x[0] != 0 ? x[1] : x[2]; }},
      {"sigmoid_cross_entropy",
       [](const double* x, const Attrs&) {
         return std::max(x[0], 0.0) - x[0] * x[1] + std::log1p(std::exp(-std::abs(x[0])));
       }},
  };
  return table;
}

Array MatMul(const Attrs& attrs, const Operands& x, const TensorType& type) {
  Array out{type, std::vector<double>(type.num_elements())};
  const bool ta = attrs.Bool("transpose_a");
  const bool tb = attrs.Bool("transpose_b");
  const Dims& a = x[0]->type.dims;
  const Dims& b = x[1]->type.dims;
  const size_t rank = type.dims.size();
  const int64_t k = a[a.size() - (ta ? 2 : 1)];
  ForEach(type.dims, [&](const Dims& index, int64_t at) {
    const int64_t row = index[rank - 2];
    const int64_t column = index[rank - 1];
    Dims ia(index.begin(), index.begin() + static_cast<int64_t>(a.size() > 2 ? rank - 2 : 0));
    Dims ib(index.begin(), index.begin() + static_cast<int64_t>(b.size() > 2 ? rank - 2 : 0));
    ia.resize(a.size());
    ib.resize(b.size());
    double sum = 0;
    for (int64_t i = 0; i < k; ++i) {
      ia[a.size() - 2] = ta ? i : row;
      ia[a.size() - 1] = ta ? row : i;
      ib[b.size() - 2] = tb ? column : i;
      ib[b.size() - 1] = tb ? i : column;
      sum += x[0]->at[Position(ia, a)] * x[1]->at[Position(ib, b)];
    }
    out.at[at] = sum;
  });
  return out;
}

Array Reduce(const Op& op, const Array& x, const TensorType& type) {
  const bool sum = op.kind == "reduce_sum";
  const bool max = op.kind == "reduce_max";
  const double infinity = std::numeric_limits<double>::infinity();
  Array out{type, std::vector<double>(type.num_elements(), sum ? 0 : max ? -infinity : infinity)};
  std::vector<bool> reduced(x.type.dims.size(), false);
  for (const int64_t a : op.attrs.Ints("axes")) reduced[a] = true;
  ForEach(x.type.dims, [&](const Dims& index, int64_t at) {
    int64_t to = 0;  // the kept dimensions, row-major, whether or not the reduced ones stay as 1
    for (size_t d = 0; d < index.size(); ++d) {
      if (!reduced[d]) to = to * x.type.dims[d] + index[d];
    }
    double& y = out.at[to];
    y = sum ? y + x.at[at] : max ? Max(y, x.at[at]) : Min(y, x.at[at]);
  });
  return out;
}

Array ArgMax(const Op& op, const Array& x, const TensorType& type) {
  Array out{type, std::vector<double>(type.num_elements(), 0)};
  std::vector<double> best(type.num_elements(), -std::numeric_limits<double>::infinity());
  const auto axis = static_cast<size_t>(op.attrs.Int("axis"));
  ForEach(x.type.dims, [&](const Dims& index, int64_t at) {
    Dims rest = index;
    rest.erase(rest.begin() + static_cast<int64_t>(axis));
    const int64_t to = Position(rest, type.dims);
    if (x.at[at] > best[to]) {
      best[to] = x.at[at];
      out.at[to] = static_cast<double>(index[axis]);
    }
  });
  return out;
}

// log(sum(exp)) of a row.
double LogSum(const double* row, int64_t classes) {
  double top = -std::numeric_limits<double>::infinity();
  for (int64_t c = 0; c < classes; ++c) top = Max(top, row[c]);
  double sum = 0;
  for (int64_t c = 0; c < classes; ++c) sum += std::exp(row[c] - top);
  return top + std::log(sum);
}

Array Classes(const Op& op, const Operands& x, const TensorType& type) {
  Array out{type, std::vector<double>(type.num_elements(), 0)};
  const int64_t classes = x[0]->type.dims.back();
  const int64_t rows = x[0]->type.num_elements() / classes;
  for (int64_t r = 0; r < rows; ++r) {
    const double* row = x[0]->at.data() + r * classes;
    const double log_sum = LogSum(row, classes);
    if (op.kind == "softmax" || op.kind == "log_softmax") {
      for (int64_t c = 0; c < classes; ++c) {
        const double log_p = row[c] - log_sum;
        out.at[r * classes + c] = op.kind == "softmax" ? std::exp(log_p) : log_p;
      }
    } else if (op.kind == "softmax_cross_entropy") {
      for (int64_t c = 0; c < classes; ++c) {
        out.at[r] -= x[1]->at[r * classes + c] * (row[c] - log_sum);
      }
    } else {
      const double label = x[1]->at[r];
      const bool outside = label < 0 || label >= static_cast<double>(classes);
      if (op.kind == "sparse_softmax_cross_entropy") {
        out.at[r] = outside ? kNaN : log_sum - row[static_cast<int64_t>(label)];
      } else {
        for (int64_t c = 0; c < classes; ++c) {
          const double hot = static_cast<double>(c) == label ? 1 : 0;
          out.at[r * classes + c] =
              outside ? kNaN : (std::exp(row[c] - log_sum) - hot) * x[2]->at[r];
        }
      }
    }
  }
  return out;
}

Array OneHot(const Array& labels, const TensorType& type) {
  Array out{type, std::vector<double>(type.num_elements(), 0)};
  const int64_t depth = type.dims.back();
  for (size_t i = 0; i < labels.at.size(); ++i) {
    const double label = labels.at[i];
    if (label >= 0 && label < static_cast<double>(depth)) {
      out.at[i * depth + static_cast<int64_t>(label)] = 1;
    }
  }
  return out;
}

Array Transpose(const Op& op, const Array& x, const TensorType& type) {
  Array out{type, std::vector<double>(type.num_elements())};
  const std::vector<int64_t> permutation = op.attrs.Ints("permutation");
  ForEach(type.dims, [&](const Dims& index, int64_t at) {
    Dims from(index.size());
    for (size_t d = 0; d < index.size(); ++d) from[permutation[d]] = index[d];
    out.at[at] = x.at[Position(from, x.type.dims)];
  });
  return out;
}

Array Concat(const Op& op, const Operands& x, const TensorType& type) {
  Array out{type, std::vector<double>(type.num_elements())};
  const auto axis = static_cast<size_t>(op.attrs.Int("axis"));
  int64_t start = 0;
  for (const Array* part : x) {
    ForEach(part->type.dims, [&](const Dims& index, int64_t at) {
      Dims to = index;
      to[axis] += start;
      out.at[Position(to, type.dims)] = part->at[at];
    });
    start += part->type.dims[axis];
  }
  return out;
}

// Elements made from their index in the whole tensor; padding of an uneven shard gets NaN.
Array FromIndex(const Op& op, const TensorType& type, const Standpoint& here,
                const std::function<double(const Dims&, int64_t)>& f) {
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
  Array out{type, std::vector<double>(type.num_elements())};
  ForEach(type.dims, [&](const Dims& index, int64_t at) {
    Dims whole = index;
    bool inside = true;
    for (size_t d = 0; d < whole.size(); ++d) {
      inside = inside && index[d] < valid[d];
      whole[d] += offsets[d];
    }
    out.at[at] = inside ? f(whole, Position(whole, global)) : kNaN;
  });
  return out;
}

uint64_t Fnv1a(const std::string& text) {
  uint64_t hash = 0xcbf29ce484222325;
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  return hash;
}

Array Random(const Op& op, const Operands& x, const TensorType& type, const Standpoint& here) {
  const DType dtype = type.dtype;
  if (op.kind == "dropout_mask") {
    const uint64_t seed = static_cast<uint64_t>(op.attrs.Int("seed")) ^ Fnv1a(op.path);
    const RandomKey key = KeyOfSeed(static_cast<int64_t>(seed), static_cast<int64_t>(x[0]->at[0]));
    const auto rate = static_cast<float>(op.attrs.Double("rate"));
    return FromIndex(op, type, here, [&](const Dims&, int64_t i) {
      return UniformAt(key, DType::kF32, i) >= rate ? 1 / (1 - op.attrs.Double("rate")) : 0.0;
    });
  }
  const std::vector<int64_t> seed = op.attrs.Ints("seed");
  const RandomKey key = KeyOfSeed(seed[0], seed[1]);
  if (op.kind == "stateless_uniform") {
    const double low = RoundTo(dtype, op.attrs.Double("minval"));
    const double scale = RoundTo(dtype, RoundTo(dtype, op.attrs.Double("maxval")) - low);
    return FromIndex(op, type, here, [&](const Dims&, int64_t i) {
      return RoundTo(dtype, UniformAt(key, dtype, i) * scale) + low;
    });
  }
  const double mean = RoundTo(dtype, op.attrs.Double("mean"));
  const double stddev = RoundTo(dtype, op.attrs.Double("stddev"));
  const bool truncated = op.kind == "stateless_truncated_normal";
  return FromIndex(op, type, here, [&](const Dims&, int64_t i) {
    const double normal = truncated ? TruncatedNormalAt(key, dtype, i) : NormalAt(key, dtype, i);
    return RoundTo(dtype, normal * stddev) + mean;
  });
}

Array MaskPad(const Op& op, const Array& x, const TensorType& type, const Standpoint& here) {
  MT_CHECK(here.mesh != nullptr);
  const std::vector<int64_t> coordinates = here.mesh->Coordinates(here.rank);
  int64_t shard = 0;
  for (const int64_t a : op.attrs.Ints("axes")) {
    shard = shard * here.mesh->axis(static_cast<int>(a)).size + coordinates[a];
  }
  const auto dim = static_cast<size_t>(op.attrs.Int("dim"));
  const int64_t start = shard * type.dims[dim];
  Array out = x;
  ForEach(type.dims, [&](const Dims& index, int64_t at) {
    if (start + index[dim] >= op.attrs.Int("size")) out.at[at] = op.attrs.Double("value");
  });
  return out;
}

Array ShardSlice(const Op& op, const Array& x, const TensorType& type, const Standpoint& here) {
  MT_CHECK(here.mesh != nullptr);
  const std::vector<int64_t> coordinates = here.mesh->Coordinates(here.rank);
  int64_t shard = 0;
  for (const int64_t a : op.attrs.Ints("axes")) {
    shard = shard * here.mesh->axis(static_cast<int>(a)).size + coordinates[a];
  }
  Dims shift(type.dims.size(), 0);
  const auto dim = static_cast<size_t>(op.attrs.Int("dim"));
  shift[dim] = shard * type.dims[dim];
  return Window(x, type, shift, kNaN);
}

}  // namespace

Array Window(const Array& x, const TensorType& type, const Dims& shift, double fill) {
  Array out{type, std::vector<double>(type.num_elements())};
  ForEach(type.dims, [&](const Dims& index, int64_t at) {
    Dims from = index;
    bool inside = true;
    for (size_t d = 0; d < from.size(); ++d) {
      from[d] += shift[d];
      inside = inside && from[d] >= 0 && from[d] < x.type.dims[d];
    }
    out.at[at] = inside ? x.at[Position(from, x.type.dims)] : fill;
  });
  return out;
}

double RoundTo(DType dtype, double value) {
  switch (dtype) {
    case DType::kF64:
      return value;
    case DType::kF32:
      return static_cast<double>(static_cast<float>(value));
    case DType::kBool:
      return value != 0 ? 1 : 0;
    default:
      break;
  }
  // What a NaN becomes as an integer is undefined; an odd number shows where it is relied upon.
  if (std::isnan(value)) return 113;
  const double whole = std::trunc(value);
  if (dtype == DType::kU8) {
    return static_cast<double>(static_cast<uint8_t>(static_cast<int64_t>(whole)));
  }
  return whole;
}

Result<std::vector<Array>> EvaluateOp(const Op& op, const Operands& x,
                                      const std::vector<TensorType>& types,
                                      const Standpoint& here) {
  MT_CHECK(types.size() == 1);
  const TensorType& type = types[0];
  Array out{type, std::vector<double>(type.num_elements())};
  const auto in = [&](std::initializer_list<const char*> kinds) {
    return std::any_of(kinds.begin(), kinds.end(),
                       [&](const char* kind) { return op.kind == kind; });
  };
  if (const auto scalar = Elementwise().find(op.kind); scalar != Elementwise().end()) {
    double values[4] = {};
    ForEach(type.dims, [&](const Dims& index, int64_t at) {
      for (size_t i = 0; i < x.size(); ++i) {
        values[i] = x[i]->at[BroadcastPosition(index, x[i]->type.dims)];
      }
      out.at[at] = scalar->second(values, op.attrs);
    });
  } else if (op.kind == "constant" || op.kind == "fill") {
    if (op.attrs.Has("values")) {
      out.at = op.attrs.Doubles("values");
    } else {
      std::fill(out.at.begin(), out.at.end(), op.attrs.Double("value"));
    }
  } else if (op.kind == "reshape") {
    out.at = x[0]->at;
  } else if (op.kind == "matmul") {
    out = MatMul(op.attrs, x, type);
  } else if (in({"reduce_sum", "reduce_max", "reduce_min"})) {
    out = Reduce(op, *x[0], type);
  } else if (op.kind == "count_beyond") {
    const double limit = op.attrs.Double("limit");
    const auto beyond = [&](double v) { return !(std::abs(v) <= limit); };
    out.at = {static_cast<double>(std::count_if(x[0]->at.begin(), x[0]->at.end(), beyond))};
  } else if (op.kind == "argmax") {
    out = ArgMax(op, *x[0], type);
  } else if (in({"softmax", "log_softmax", "softmax_cross_entropy", "sparse_softmax_cross_entropy",
                 "sparse_softmax_cross_entropy_grad"})) {
    out = Classes(op, x, type);
  } else if (op.kind == "one_hot") {
    out = OneHot(*x[0], type);
  } else if (op.kind == "transpose") {
    out = Transpose(op, *x[0], type);
  } else if (op.kind == "concat") {
    out = Concat(op, x, type);
  } else if (op.kind == "slice") {
    out = Window(*x[0], type, op.attrs.Ints("starts"), 0);
  } else if (op.kind == "pad") {
    Dims shift = op.attrs.Ints("before");
    for (int64_t& s : shift) s = -s;
    out = Window(*x[0], type, shift, op.attrs.Double("value"));
  } else if (op.kind == "iota") {
    const auto axis = static_cast<size_t>(op.attrs.Int("axis"));
    out = FromIndex(op, type, here,
                    [&](const Dims& index, int64_t) { return static_cast<double>(index[axis]); });
  } else if (in({"stateless_uniform", "stateless_normal", "stateless_truncated_normal",
                 "dropout_mask"})) {
    out = Random(op, x, type, here);
  } else if (op.kind == "mask_pad") {
    out = MaskPad(op, *x[0], type, here);
  } else if (op.kind == "shard_slice") {
    out = ShardSlice(op, *x[0], type, here);
  } else {
    return Unimplemented("interpreter: expected an op that it knows, got: `" + op.kind + "`");
  }
  for (double& v : out.at) v = RoundTo(type.dtype, v);
  return std::vector<Array>{std::move(out)};
}

}  // namespace meshtrain::testing
