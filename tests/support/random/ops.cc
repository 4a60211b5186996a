// How calls of each op are drawn: operands, and attributes of every kind.
#include <algorithm>
#include <numeric>

#include "tests/support/random/drawer.h"

namespace meshtrain::testing::random {
namespace {

using Known = Drawer::Known;
using Ints = std::vector<int64_t>;
using MaybeCall = std::optional<Call>;

bool IsFloat(const Known& v) { return mesh::IsFloat(v.value.dtype()); }
bool IsNumber(const Known& v) { return v.value.dtype() != DType::kBool; }
std::string Name(DType dtype) { return std::string(mesh::DTypeName(dtype)); }

Value SomeFloat(Drawer& d) { return d.SomeOr(IsFloat, {d.FloatDType(), d.SomeDims()}, "x"); }
// Floats of at least one dimension.
Value SomeRows(Drawer& d) {
  Dims dims = d.SomeDims();
  if (dims.empty()) dims.push_back(3);
  return d.SomeOr([](const Known& v) { return IsFloat(v) && v.value.rank() >= 1; },
                  {d.FloatDType(), dims}, d.Chance(0.5) ? "x" : "wide");
}
Value SomeOfRank(Drawer& d, int least) {
  Dims dims = d.SomeDims();
  while (static_cast<int>(dims.size()) < least) dims.push_back(1 + static_cast<int64_t>(d.Pick(5)));
  return d.SomeOr([&](const Known& v) { return v.value.rank() >= least; }, {d.AnyDType(), dims},
                  "x");
}

// --- the domains of functions

template <int kLeastPercent>
MaybeCall Positive(Drawer& d) {
  const Value a = d.SomeOr(
      [](const Known& v) { return IsFloat(v) && v.low > kLeastPercent / 100.0 && v.high < 1e4; },
      {d.FloatDType(), d.SomeDims()}, "positive");
  return Call{{a}, {}};
}

MaybeCall Exp(Drawer& d) {
  const Value a = d.SomeOr([](const Known& v) { return IsFloat(v) && v.high < 6 && v.low > -40; },
                           {d.FloatDType(), d.SomeDims()}, d.Chance(0.5) ? "x" : "wide");
  return Call{{a}, {}};
}

MaybeCall Div(Drawer& d) {
  const Value a = SomeFloat(d);
  const Value b = d.SomeOr(
      [&](const Known& v) {
        return v.value.type() == a.type() && (v.low > 0.05 || v.high < -0.05);
      },
      {a.dtype(), d.Chance(0.3) ? Dims{} : a.dims()}, d.Chance(0.5) ? "positive" : "wide");
  return Call{{a, b}, {}};
}

MaybeCall Pow(Drawer& d) {
  const Value a = d.SomeOr([](const Known& v) { return IsFloat(v) && v.low > 0.01 && v.high < 8; },
                           {d.FloatDType(), d.SomeDims()}, "positive");
  const Value b = d.SomeOr(
      [&](const Known& v) { return v.value.type() == a.type() && v.low > -4 && v.high < 4; },
      {a.dtype(), d.Chance(0.5) ? Dims{} : a.dims()}, "x");
  return Call{{a, b}, {}};
}

MaybeCall Gelu(Drawer& d) { return Call{{SomeFloat(d)}, {{"approximate", d.Chance(0.5)}}}; }

MaybeCall Cast(Drawer& d) {
  const Value a = d.Any();
  static const std::vector<DType> whole = {DType::kI32, DType::kI64, DType::kU8};
  const bool decided = a.dtype() == DType::kBool;
  return Call{{a}, {{"dtype", Name(decided && d.Chance(0.5) ? d.OneOf(whole) : d.AnyDType())}}};
}

MaybeCall Select(Drawer& d) {
  const Value a = d.Any();
  const Value b = d.Beside(a);
  const auto fits = [&](const Known& v) {
    return v.value.dtype() == DType::kBool &&
           (v.value.dims() == a.dims() || v.value.rank() == 0 ||
            (v.value.rank() == 1 && a.rank() >= 1 && v.value.dims()[0] == a.dims().back()));
  };
  const Value condition = d.SomeOr(fits, {DType::kBool, a.dims()}, "x");
  return Call{{condition, a, b}, {}};
}

MaybeCall Alike(Drawer& d) {
  const Value a = d.SomeOr([](const Known& v) { return IsFloat(v) && v.high < 40 && v.low > -40; },
                           {d.FloatDType(), d.SomeDims()}, "x");
  const Value b =
      d.SomeOr([&](const Known& v) { return v.value.type() == a.type(); }, a.type(), "positive");
  return Call{{a, b}, {}};
}

MaybeCall Logic2(Drawer& d) {
  const Value a = d.SomeOr([](const Known& v) { return v.value.dtype() == DType::kBool; },
                           {DType::kBool, d.SomeDims()}, "x");
  return Call{{a, d.Beside(a)}, {}};
}

// --- products

// [..., k, m] and [..., k, n] -> [m, n].
MaybeCall MatMulOfAllRows(Drawer& d) {
  const Value a =
      d.SomeOr([](const Known& v) { return IsFloat(v) && v.value.rank() == 3; },
               {d.FloatDType(),
                {static_cast<int64_t>(1 + d.Pick(4)), static_cast<int64_t>(1 + d.Pick(8)), 3}},
               "x");
  Dims dims = a.dims();
  dims.back() = static_cast<int64_t>(1 + d.Pick(8));
  const Value b = d.SomeOr(
      [&](const Known& v) {
        Dims other = v.value.dims();
        if (v.value.dtype() != a.dtype() || other.size() != 3) return false;
        other.back() = dims.back();
        return other == dims;
      },
      {a.dtype(), dims}, "x");
  if (mesh::NumElements(a.dims()) * b.dims().back() > 2'000'000) return {};
  return Call{{a, b}, {{"transpose_a", true}, {"sum_batch", true}}};
}

MaybeCall MatMul(Drawer& d) {
  if (d.Chance(0.12)) return MatMulOfAllRows(d);
  const auto matrix = [](const Known& v) {
    return IsFloat(v) && v.value.rank() >= 2 && v.value.rank() <= 3;
  };
  const auto size = [&] { return static_cast<int64_t>(1 + d.Pick(d.Chance(0.2) ? 40 : 8)); };
  const auto batched = [&](const Known& v) { return matrix(v) && v.value.rank() == 3; };
  const bool batch_first = d.Chance(0.4);
  const Value a = batch_first ? d.SomeOr(batched, {d.FloatDType(), {size(), size(), size()}}, "x")
                              : d.SomeOr(matrix, {d.FloatDType(), {size(), size()}},
                                         d.Chance(0.5) ? "x" : "wide");
  const bool ta = d.Chance(0.4), tb = d.Chance(0.4);
  const Dims left = a.dims();
  const Dims batch(left.begin(), left.end() - 2);
  const int64_t m = left[batch.size() + (ta ? 1 : 0)];
  const int64_t k = left[batch.size() + (ta ? 0 : 1)];
  const auto columns_of = [&](const Dims& dims) -> int64_t {
    if (dims.size() < 2) return -1;
    const int64_t rows = dims[dims.size() - (tb ? 1 : 2)], n = dims[dims.size() - (tb ? 2 : 1)];
    const Dims lead(dims.begin(), dims.end() - 2);
    return rows == k && (lead.empty() || batch.empty() || lead == batch) ? n : -1;
  };
  const int64_t n = size();
  // A batch by one matrix for all of it.
  const bool one = d.Chance(0.4);
  Dims dims = tb ? Dims{n, k} : Dims{k, n};
  if (!one && d.Chance(0.5)) {
    if (!batch.empty())
      dims.insert(dims.begin(), batch[0]);
    else if (d.Chance(0.3))
      dims.insert(dims.begin(), 2);
  }
  const Value b = d.SomeOr(
      [&](const Known& v) {
        return v.value.dtype() == a.dtype() && v.value.rank() <= (one ? 2 : 3) &&
               columns_of(v.value.dims()) > 0;
      },
      {a.dtype(), dims}, d.Chance(0.5) ? "x" : "wide");
  // Products are what costs the interpreter most.
  const int64_t columns = columns_of(b.dims());
  const int64_t lead =
      std::max<int64_t>({1, batch.empty() ? 1 : batch[0], b.rank() == 3 ? b.dims()[0] : 1});
  if (columns < 1 || lead * m * k * columns > 2'000'000) return {};
  return Call{{a, b}, {{"transpose_a", ta}, {"transpose_b", tb}}};
}

// --- shape

MaybeCall Reshape(Drawer& d) {
  const Value a = d.Any();
  // The sizes' prime parts, dealt to new dimensions; sometimes a size of 1 among them.
  Dims dims(d.Pick(3) + 1, 1);
  Dims parts;
  for (int64_t size : a.dims()) {
    if (d.Chance(0.4)) {
      parts.push_back(size);
      continue;
    }
    for (int64_t p = 2; p * p <= size; ++p) {
      for (; size % p == 0; size /= p) parts.push_back(p);
    }
    parts.push_back(size);
  }
  // Mostly in their order, which keeps dimensions in sight of each other.
  size_t at = 0;
  for (const int64_t part : parts) {
    if (d.Chance(0.2)) at = d.Pick(dims.size());
    if (at + 1 < dims.size() && d.Chance(0.5)) ++at;
    dims[at] *= part;
  }
  if (d.Chance(0.2)) dims.insert(dims.begin() + static_cast<int64_t>(d.Pick(dims.size() + 1)), 1);
  return Call{{a}, {{"dims", dims}}};
}

MaybeCall Transpose(Drawer& d) {
  const Value a = SomeOfRank(d, 2);
  Ints permutation(a.rank());
  std::iota(permutation.begin(), permutation.end(), 0);
  for (size_t i = permutation.size(); i > 1; --i) {
    std::swap(permutation[i - 1], permutation[d.Pick(i)]);
  }
  return Call{{a}, {{"permutation", permutation}}};
}

MaybeCall BroadcastTo(Drawer& d) {
  const Value a = d.Any();
  Dims dims = a.dims();
  for (int64_t& size : dims) {
    if (size == 1 && d.Chance(0.7)) size = static_cast<int64_t>(1 + d.Pick(9));
  }
  if (d.Chance(0.5)) dims.insert(dims.begin(), static_cast<int64_t>(1 + d.Pick(7)));
  return Call{{a}, {{"dims", dims}}};
}

MaybeCall Concat(Drawer& d) {
  const Value a = SomeOfRank(d, 1);
  const auto axis = static_cast<int64_t>(d.Pick(a.rank()));
  Call call{{a}, {{"axis", axis}}};
  for (size_t more = d.Pick(3) + 1; more > 0; --more) {
    Dims dims = a.dims();
    dims[axis] = static_cast<int64_t>(1 + d.Pick(5));
    const auto fits = [&](const Known& v) {
      if (v.value.dtype() != a.dtype() || v.value.rank() != a.rank()) return false;
      Dims other = v.value.dims();
      other[axis] = a.dims()[axis];
      return other == a.dims();
    };
    call.operands.push_back(d.SomeOr(fits, {a.dtype(), dims}, "x"));
  }
  return call;
}

MaybeCall Slice(Drawer& d) {
  const Value a = SomeOfRank(d, 1);
  Ints starts, sizes;
  for (const int64_t size : a.dims()) {
    const int64_t start = d.Chance(0.5) || size == 0 ? 0 : static_cast<int64_t>(d.Pick(size));
    starts.push_back(start);
    sizes.push_back(d.Chance(0.5) ? -1 : static_cast<int64_t>(1 + d.Pick(size - start)));
  }
  return Call{{a}, {{"starts", starts}, {"sizes", sizes}}};
}

MaybeCall Reverse(Drawer& d) {
  const Value a = SomeOfRank(d, 1);
  Ints axes;
  for (int i = 0; i < a.rank(); ++i) {
    if (d.Chance(0.5)) axes.push_back(i);
  }
  return Call{{a}, {{"axes", axes}}};
}

MaybeCall Pad(Drawer& d) {
  const Value a = SomeOfRank(d, 1);
  Ints before, after;
  for (int i = 0; i < a.rank(); ++i) {
    const bool all = d.Chance(0.5);
    before.push_back(all ? 0 : static_cast<int64_t>(d.Pick(3)));
    after.push_back(all ? 0 : static_cast<int64_t>(d.Pick(4)));
  }
  return Call{{a}, {{"before", before}, {"after", after}, {"value", d.NumberOf(a.dtype())}}};
}

MaybeCall Relayout(Drawer& d) {
  const Value a = SomeOfRank(d, 1);
  std::vector<std::string> axes = d.options().axes;
  std::vector<std::string> specs(a.rank(), "*");
  for (const std::string& axis : axes) {
    if (d.Chance(0.5)) continue;
    std::string& spec = specs[d.Pick(specs.size())];
    spec = spec == "*" ? axis : spec + "+" + axis;
  }
  std::string text;
  for (const std::string& spec : specs) text += (text.empty() ? "{" : ", ") + spec;
  return Call{{a}, {{"specs", text + "}"}}};
}

// --- reductions

// `kSign`: that of all numbers, often. A wrong number among them, as what pads a shard may be,
// shows in the largest where all others are below 0, in the smallest where they are above.
template <int kSign>
MaybeCall Reduce(Drawer& d) {
  Dims dims = d.SomeDims();
  const bool one_sign = kSign != 0 && d.Chance(0.5);
  const auto fits = [&](const Known& v) {
    return IsNumber(v) && (!one_sign || (kSign < 0 ? v.high < 0 : v.low > 0));
  };
  const char* const numbers = !one_sign ? "x" : kSign < 0 ? "negative" : "positive";
  const Value a = d.SomeOr(fits, {d.FloatDType(), dims}, numbers);
  Ints axes;
  for (int i = 0; i < a.rank(); ++i) {
    if (d.Chance(0.55)) axes.push_back(i);
  }
  return Call{{a}, {{"axes", axes}, {"keep_dims", d.Chance(0.4)}}};
}

MaybeCall ArgMax(Drawer& d) {
  Dims dims = d.SomeDims();
  if (dims.empty()) dims.push_back(5);
  const Value a = d.SomeOr([](const Known& v) { return IsNumber(v) && v.value.rank() >= 1; },
                           {d.FloatDType(), dims}, d.Chance(0.5) ? "wide" : "x");
  return Call{{a}, {{"axis", static_cast<int64_t>(d.Pick(a.rank()))}}};
}

MaybeCall CountBeyond(Drawer& d) {
  const Value a = d.SomeOr(IsFloat, {d.FloatDType(), d.SomeDims()}, "x");
  return Call{{a}, {{"limit", d.Chance(0.5) ? 0.75 : 1e30}}};
}

// --- classes

Value Logits(Drawer& d) {
  Dims dims = d.SomeDims(2);
  dims.push_back(static_cast<int64_t>(3 + d.Pick(10)));
  return d.SomeOr(
      [](const Known& v) {
        return IsFloat(v) && v.value.rank() >= 1 && v.value.dims().back() >= 3 &&
               v.value.dims().back() <= 2000 && v.high < 60 && v.low > -60;
      },
      {d.FloatDType(), dims}, d.Chance(0.5) ? "x" : "wide");
}
Dims WithoutLast(Dims dims) {
  dims.pop_back();
  return dims;
}
Value Labels(Drawer& d, const Dims& dims, double classes) {
  const DType dtype = d.Chance(0.5) ? DType::kI32 : DType::kI64;
  return d.SomeOr(
      [&](const Known& v) {
        return (v.value.dtype() == DType::kI32 || v.value.dtype() == DType::kI64) &&
               v.value.dims() == dims && v.low >= 0 && v.high < classes;
      },
      {dtype, dims}, "labels");
}

MaybeCall Softmax(Drawer& d) { return Call{{d.Chance(0.7) ? Logits(d) : SomeRows(d)}, {}}; }
MaybeCall Dense(Drawer& d) {
  const Value a = Logits(d);
  return Call{{a, d.SomeOr([&](const Known& v) { return v.value.type() == a.type(); }, a.type(),
                           "positive")},
              {}};
}
MaybeCall Sparse(Drawer& d) {
  const Value a = Logits(d);
  return Call{{a, Labels(d, WithoutLast(a.dims()), static_cast<double>(a.dims().back()))}, {}};
}
MaybeCall SparseGrad(Drawer& d) {
  MaybeCall call = Sparse(d);
  const Value a = call->operands[0];
  const TensorType type{a.dtype(), WithoutLast(a.dims())};
  call->operands.push_back(
      d.SomeOr([&](const Known& v) { return v.value.type() == type; }, type, "x"));
  return call;
}
MaybeCall OneHot(Drawer& d) {
  const Dims dims = d.SomeDims(2);
  const Value a = d.SomeOr(
      [](const Known& v) {
        return v.value.dtype() == DType::kI32 || v.value.dtype() == DType::kI64;
      },
      {d.Chance(0.5) ? DType::kI32 : DType::kI64, dims}, d.Chance(0.7) ? "labels" : "n");
  return Call{{a}, {{"depth", static_cast<int64_t>(1 + d.Pick(6))}, {"dtype", Name(d.AnyDType())}}};
}

// --- sources

MaybeCall Constant(Drawer& d) {
  const DType dtype = d.AnyDType();
  if (d.Chance(0.5)) {
    const Dims dims = d.Chance(0.5) ? Dims{} : d.SomeDims();
    return Call{{}, {{"value", d.NumberOf(dtype)}, {"dims", dims}, {"dtype", Name(dtype)}}};
  }
  Dims dims = {static_cast<int64_t>(1 + d.Pick(6)), static_cast<int64_t>(1 + d.Pick(4))};
  std::vector<double> values(dims[0] * dims[1]);
  for (double& v : values) v = d.NumberOf(dtype);
  return Call{{}, {{"values", values}, {"dims", dims}, {"dtype", Name(dtype)}}};
}
MaybeCall Fill(Drawer& d) {
  const DType dtype = d.AnyDType();
  return Call{{}, {{"value", d.NumberOf(dtype)}, {"dims", d.SomeDims()}, {"dtype", Name(dtype)}}};
}
MaybeCall Iota(Drawer& d) {
  Dims dims = d.SomeDims();
  if (dims.empty()) dims.push_back(7);
  const DType dtype = d.AnyDType();
  return Call{{},
              {{"axis", static_cast<int64_t>(d.Pick(dims.size()))},
               {"dims", dims},
               {"dtype", Name(dtype == DType::kBool ? DType::kI64 : dtype)}}};
}
Ints SeedOf(Drawer& d) { return {static_cast<int64_t>(d.Bits()), static_cast<int64_t>(d.Bits())}; }
MaybeCall Uniform(Drawer& d) {
  const double low = d.Chance(0.5) ? 0 : -1.5;
  return Call{{},
              {{"dims", d.SomeDims()},
               {"dtype", Name(d.FloatDType())},
               {"seed", SeedOf(d)},
               {"minval", low},
               {"maxval", d.Chance(0.5) ? 1.0 : 2.25}}};
}
MaybeCall Normal(Drawer& d) {
  return Call{{},
              {{"dims", d.SomeDims()},
               {"dtype", Name(d.FloatDType())},
               {"seed", SeedOf(d)},
               {"mean", d.Chance(0.5) ? 0.0 : 0.5},
               {"stddev", d.Chance(0.5) ? 1.0 : 0.3}}};
}
MaybeCall DropoutMask(Drawer& d) {
  const Value step = d.SomeOr(
      [](const Known& v) {
        return v.value.type() == TensorType{DType::kI64, {}};
      },
      {DType::kI64, {}}, "n");
  return Call{{step},
              {{"dims", d.SomeDims()},
               {"dtype", Name(d.FloatDType())},
               {"rate", d.Chance(0.2) ? 0.0 : 0.375},
               {"seed", static_cast<int64_t>(d.Bits())}}};
}

}  // namespace

Recipe RecipeOf(const std::string& kind) {
  static const std::map<std::string, Recipe> recipes = {
      {"argmax", ArgMax},
      {"broadcast_to", BroadcastTo},
      {"cast", Cast},
      {"concat", Concat},
      {"constant", Constant},
      {"count_beyond", CountBeyond},
      {"div", Div},
      {"dropout_mask", DropoutMask},
      {"exp", Exp},
      {"expm1", Exp},
      {"fill", Fill},
      {"gelu", Gelu},
      {"iota", Iota},
      {"log", Positive<1>},
      {"log1p", Positive<0>},
      {"log_softmax", Softmax},
      {"logical_and", Logic2},
      {"logical_or", Logic2},
      {"matmul", MatMul},
      {"one_hot", OneHot},
      {"pad", Pad},
      {"pow", Pow},
      {"reduce_max", Reduce<-1>},
      {"reduce_min", Reduce<1>},
      {"reduce_sum", Reduce<0>},
      {"relayout", Relayout},
      {"reshape", Reshape},
      {"reverse", Reverse},
      {"rsqrt", Positive<1>},
      {"select", Select},
      {"sigmoid_cross_entropy", Alike},
      {"slice", Slice},
      {"softmax", Softmax},
      {"softmax_cross_entropy", Dense},
      {"sparse_softmax_cross_entropy", Sparse},
      {"sparse_softmax_cross_entropy_grad", SparseGrad},
      {"sqrt", Positive<1>},
      {"stateless_normal", Normal},
      {"stateless_truncated_normal", Normal},
      {"stateless_uniform", Uniform},
      {"transpose", Transpose},
  };
  const auto it = recipes.find(kind);
  if (it != recipes.end()) return it->second;
  const Recipe by_numbers = GatherRecipeOf(kind);
  return by_numbers != nullptr ? by_numbers : WindowRecipeOf(kind);
}

}  // namespace meshtrain::testing::random
