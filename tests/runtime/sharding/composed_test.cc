// Functions that are made of other ops (program/ops/arrange.cc, einsum.cc, elementwise.cc): against
// plain loops over the same numbers, whole and with every dimension split.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <random>

#include "runtime/program/ops.h"
#include "runtime/sharding/sharding.h"
#include "tests/support/interpreter/interpreter.h"

namespace meshtrain::sharding {
namespace {

using program::Builder;
using program::Dims;
using program::DType;
using program::Value;
using testing::Array;
using testing::Number;

const Dims kDims = {4, 7, 3};

// What element `index` of the result is, x being asked by index.
using X = std::function<double(Dims)>;
struct Case {
  std::string name;
  std::function<Value(Value x)> record;
  std::function<double(const X& x, const Dims& index)> want;
};
void PrintTo(const Case& c, std::ostream* out) { *out << c.name; }

double Sum(int64_t from, int64_t to, const std::function<double(int64_t)>& f) {
  double sum = 0;
  for (int64_t i = from; i < to; ++i) sum += f(i);
  return sum;
}

std::vector<Case> Cases() {
  using namespace program;  // NOLINT: the functions under test
  using I = const Dims&;
  return {
      {"SplitsSecond",
       [](Value x) {
         return Split(x, {2, 4, 1}, 1)[1];
       },
       [](const X& x, I i) {
         return x({i[0], i[1] + 2, i[2]});
       }},
      {"Stack",
       [](Value x) {
         return Stack({x, x * 2.0}, 1);
       },
       [](const X& x, I i) {
         return x({i[0], i[2], i[3]}) * (i[1] == 0 ? 1 : 2);
       }},
      {"Tile",
       [](Value x) {
         return Tile(x, {1, 2, 3});
       },
       [](const X& x, I i) {
         return x({i[0], i[1] % 7, i[2] % 3});
       }},
      {"Roll", [](Value x) { return Roll(x, -2, 1); },
       [](const X& x, I i) {
         return x({i[0], (i[1] + 2) % 7, i[2]});
       }},
      {"Reverse",
       [](Value x) {
         return Reverse(x, {-2, 0});
       },
       [](const X& x, I i) {
         return x({3 - i[0], 6 - i[1], i[2]});
       }},
      {"StridedSlice", [](Value x) { return StridedSlice(x, 1, 3, 2, 1); },
       [](const X& x, I i) {
         return x({i[0], 1 + 3 * i[1], i[2]});
       }},
      {"StridedSliceToTheEnd", [](Value x) { return StridedSlice(x, 0, 3, 3, 1); },
       [](const X& x, I i) {
         return x({i[0], 3 * i[1], i[2]});
       }},
      {"CumSum", [](Value x) { return CumSum(x, 1); },
       [](const X& x, I i) {
         return Sum(0, i[1] + 1, [&](int64_t k) { return x({i[0], k, i[2]}); });
       }},
      {"CumSumExclusive", [](Value x) { return CumSum(x, 1, true); },
       [](const X& x, I i) { return Sum(0, i[1], [&](int64_t k) {
                               return x({i[0], k, i[2]});
                             }); }},
      {"CumSumReverse", [](Value x) { return CumSum(x, 0, false, true); },
       [](const X& x, I i) { return Sum(i[0], 4, [&](int64_t k) {
                               return x({k, i[1], i[2]});
                             }); }},
      {"Prod", [](Value x) { return ReduceProd(x, {1}); },
       [](const X& x, I i) {
         double product = 1;
         for (int64_t k = 0; k < 7; ++k) product *= x({i[0], k, i[1]});
         return product;
       }},
      {"Any", [](Value x) { return Cast(ReduceAny(Greater(x, 0.9), {2}), DType::kF64); },
       [](const X& x, I i) {
         return Sum(0, 3, [&](int64_t k) { return x({i[0], i[1], k}) > 0.9; }) > 0 ? 1 : 0;
       }},
      {"All", [](Value x) { return Cast(ReduceAll(Greater(x, -0.5), {1}, true), DType::kF64); },
       [](const X& x, I i) {
         return Sum(0, 7, [&](int64_t k) { return x({i[0], k, i[2]}) > -0.5; }) == 7 ? 1 : 0;
       }},
      {"LogSumExp", [](Value x) { return LogSumExp(x * 300.0, {1}); },
       [](const X& x, I i) {
         double most = -1e300;
         for (int64_t k = 0; k < 7; ++k) most = std::max(most, 300 * x({i[0], k, i[1]}));
         return most + std::log(Sum(0, 7, [&](int64_t k) {
                  return std::exp(300 * x({i[0], k, i[1]}) - most);
                }));
       }},
      {"ArgMin", [](Value x) { return Cast(ArgMin(x, 1), DType::kF64); },
       [](const X& x, I i) {
         int64_t best = 0;
         for (int64_t k = 1; k < 7; ++k) {
           if (x({i[0], k, i[1]}) < x({i[0], best, i[1]})) best = k;
         }
         return static_cast<double>(best);
       }},
      {"SegmentSum",
       [](Value x) {
         return SegmentSum(x, Cast(Floor(Iota({4}, 0, DType::kF64) * 0.5), DType::kI64), 3);
       },
       [](const X& x, I i) {
         return i[0] < 2 ? x({2 * i[0], i[1], i[2]}) + x({2 * i[0] + 1, i[1], i[2]}) : 0.0;
       }},
      {"ScatterAdd",
       [](Value x) {
         return ScatterAdd(x, Iota({2}, 0, DType::kI32), Ones({4, 2, 3}, DType::kF64), 1);
       },
       [](const X& x, I i) { return x(i) + (i[1] < 2 ? 1 : 0); }},
      {"ScatterSet",
       [](Value x) {
         return ScatterSet(x, Cast(Floor(Iota({3}, 0, DType::kF64) * 0.5), DType::kI32),
                           x * 10.0 - Slice(x, {0, 0, 0}, {1, 7, 3}), 2);
       },
       // Ids 0 0 1: the second and the third update are kept.
       [](const X& x, I i) {
         return i[2] == 2 ? x(i) : 10 * x({i[0], i[1], i[2] + 1}) - x({0, i[1], i[2] + 1});
       }},
      {"AddAlong",
       [](Value x) {
         return AddAlong(x, BroadcastTo(Iota({1, 2, 1}, 1, DType::kI32), {4, 2, 3}),
                         Slice(x, {0, 3, 0}, {4, 2, 3}), 1);
       },
       [](const X& x, I i) {
         return x(i) + (i[1] < 2 ? x({i[0], i[1] + 3, i[2]}) : 0);
       }},
      {"TopKValues", [](Value x) { return TopK(x, 3, 1).values; },
       [](const X& x, I i) {
         std::vector<double> row;
         for (int64_t k = 0; k < 7; ++k) row.push_back(x({i[0], k, i[2]}));
         std::sort(row.rbegin(), row.rend());
         return row[i[1]];
       }},
      {"TopKIndices", [](Value x) { return Cast(TopK(x, 2, 0).indices, DType::kF64); },
       [](const X& x, I i) {
         std::vector<int64_t> rows = {0, 1, 2, 3};
         std::sort(rows.begin(), rows.end(), [&](int64_t a, int64_t b) {
           return x({a, i[1], i[2]}) > x({b, i[1], i[2]});
         });
         return static_cast<double>(rows[i[0]]);
       }},
      {"SortOfSorted", [](Value x) { return Sort(Sort(x, 2), 1, true); },
       [](const X& x, I i) {
         std::vector<double> column;
         for (int64_t k = 0; k < 7; ++k) {
           std::vector<double> row = {x({i[0], k, 0}), x({i[0], k, 1}), x({i[0], k, 2})};
           std::sort(row.begin(), row.end());
           column.push_back(row[i[2]]);
         }
         std::sort(column.rbegin(), column.rend());
         return column[i[1]];
       }},
      {"EinsumProduct",
       [](Value x) {
         return Einsum("bij,bkj->kbi", {x, x});
       },
       [](const X& x, I i) {
         return Sum(0, 3, [&](int64_t j) { return x({i[1], i[2], j}) * x({i[1], i[0], j}); });
       }},
      {"EinsumSums",
       [](Value x) {
         return Einsum("bij,bij->b", {x, x});
       },
       [](const X& x, I i) {
         return Sum(0, 7, [&](int64_t k) {
           return Sum(0, 3, [&](int64_t j) { return x({i[0], k, j}) * x({i[0], k, j}); });
         });
       }},
      {"EinsumOfOne", [](Value x) { return Einsum("bij->ji", {x}); },
       [](const X& x, I i) { return Sum(0, 4, [&](int64_t b) {
                               return x({b, i[1], i[0]});
                             }); }},
      {"EinsumOuter",
       [](Value x) {
         return Einsum("bij,bkl->bikjl", {x, x});
       },
       [](const X& x, I i) {
         return x({i[0], i[1], i[3]}) * x({i[0], i[2], i[4]});
       }},
      {"SquaredDifference", [](Value x) { return SquaredDifference(x, 0.5); },
       [](const X& x, I i) { return (x(i) - 0.5) * (x(i) - 0.5); }},
      {"Ceil", [](Value x) { return Ceil(x * 3.0); },
       [](const X& x, I i) { return std::ceil(3 * x(i)); }},
      {"Silu", [](Value x) { return Silu(x); },
       [](const X& x, I i) { return x(i) / (1 + std::exp(-x(i))); }},
      {"Elu", [](Value x) { return Elu(x * 1000.0, 0.5); },
       [](const X& x, I i) { return x(i) > 0 ? 1000 * x(i) : 0.5 * std::expm1(1000 * x(i)); }},
      {"LeakyRelu", [](Value x) { return LeakyRelu(x, 3); },
       [](const X& x, I i) { return x(i) > 0 ? x(i) : 3 * x(i); }},
      {"IsFinite", [](Value x) { return Cast(IsFinite(x / Relu(x)), DType::kF64); },
       [](const X& x, I i) { return x(i) > 0 ? 1 : 0; }},
      {"IsNan", [](Value x) { return Cast(IsNan(Sqrt(x)), DType::kF64); },
       [](const X& x, I i) { return x(i) < 0 ? 1 : 0; }},
  };
}

class ComposedTest : public ::testing::TestWithParam<Case> {};

TEST_P(ComposedTest, IsWhatItSays) {
  const Case& c = GetParam();
  Builder b(c.name);
  const Builder::Scope scope(b);
  b.Output("y", c.record(b.Input("x", {DType::kF64, kDims})));
  const auto program = b.Build();
  ASSERT_TRUE(program.ok()) << program.status().ToString();

  Array x({DType::kF64, kDims});
  std::mt19937_64 random(3);
  for (Number& v : x.at) v = std::uniform_real_distribution<double>(-1, 1)(random);
  const X at = [&](const Dims& i) {
    return static_cast<double>(x.at[(i[0] * 7 + i[1]) * 3 + i[2]]);
  };
  Array want(program->type(program->outputs[0].value));
  Dims index(want.type.dims.size(), 0);
  for (Number& v : want.at) {
    v = c.want(at, index);
    for (size_t d = index.size(); d-- > 0;) {
      if (++index[d] < want.type.dims[d]) break;
      index[d] = 0;
    }
  }
  const testing::StepInput feed{.inputs = {{"x", x}}};
  const auto whole = testing::Interpret(*program, feed);
  ASSERT_TRUE(whole.ok()) << whole.status().ToString();
  EXPECT_LT(Difference(whole->outputs.at("y"), want), 1e-12);
  for (const char* layout : {"{a, *, *}", "{*, a, *}", "{*, *, a}", "{a, b, *}", "{b, a, *}"}) {
    const Mesh mesh = *Mesh::Parse("a=3,b=2");
    const auto split = Shard(*program, mesh, {.inputs = {{"x", *Layout::Parse(layout, mesh)}}});
    ASSERT_TRUE(split.ok()) << layout << ": " << split.status().ToString();
    const auto got = testing::Interpret(*split, feed, 1);
    ASSERT_TRUE(got.ok()) << layout << ": " << got.status().ToString() << split->local.ToString();
    EXPECT_LT(Difference(got->outputs.at("y"), want), 1e-12) << layout;
  }
}

INSTANTIATE_TEST_SUITE_P(Ops, ComposedTest, ::testing::ValuesIn(Cases()),
                         [](const auto& info) { return info.param.name; });

// Of one number, in the neighbourhood of a few.
double Slope(const std::function<Value(Value)>& f, double x, double* by_hand) {
  Builder b("slope");
  const Builder::Scope scope(b);
  const Value in = b.Input("x", {DType::kF64, {3}});
  const Value y = program::ReduceSum(f(in));
  b.Output("y", y);
  b.Output("g", b.Gradient(y, std::vector<Value>{in})[0]);
  const auto program = b.Build();
  EXPECT_TRUE(program.ok()) << program.status().ToString();
  const auto run = [&](double at) {
    const Array a({DType::kF64, {3}}, std::vector<double>{at, 0.7, -1.3});
    return *testing::Interpret(*program, {.inputs = {{"x", a}}}, testing::Keep::kReal);
  };
  constexpr double kStep = 1e-6;
  *by_hand = static_cast<double>(run(x + kStep).outputs.at("y").at[0] -
                                 run(x - kStep).outputs.at("y").at[0]) /
             (2 * kStep);
  return static_cast<double>(run(x).outputs.at("g").at[0]);
}

TEST(ComposedTest, GradientsAreRightWhereTheyAreHard) {
  using namespace program;  // NOLINT: the functions under test
  const auto check = [](const char* what, const std::function<Value(Value)>& f,
                        std::initializer_list<double> at) {
    for (const double x : at) {
      double want = 0;
      const double got = Slope(f, x, &want);
      EXPECT_NEAR(got, want, 1e-5 * (1 + std::abs(want))) << what << " at " << x;
    }
  };
  check("softplus", [](Value x) { return Softplus(x); }, {0, -40, 800, 3});
  check("elu", [](Value x) { return Elu(x); }, {0, -2, 800, 3});
  check("silu", [](Value x) { return Silu(x); }, {0, -2, 800});
  check("leaky_relu", [](Value x) { return LeakyRelu(x, 0.1); }, {-2, 3});
  check("log_sum_exp", [](Value x) { return LogSumExp(x * 400.0) * 0.01; }, {0.69, 0.71, -1});
  check("prod", [](Value x) { return ReduceProd(x); }, {0, 2});
  check("cumsum", [](Value x) { return Square(CumSum(x, 0)); }, {0.5});
  check("strided_slice", [](Value x) { return Square(StridedSlice(x, 0, 2, 2, 0)); }, {0.5});
  check("roll", [](Value x) { return Roll(x, 1, 0) * x; }, {0.5});
  check("reverse", [](Value x) { return Reverse(x, {0}) * x * x; }, {0.5});
  check("gather", [](Value x) { return Square(Gather(x, Iota({2}, 0, DType::kI64))); }, {0.5});
  check("scatter_set",
        [](Value x) {
          const Value ids = Cast(Floor(Iota({3}, 0, DType::kF64) * 0.5), DType::kI64);  // 0 0 1
          return Square(ScatterSet(x, ids, x * Square(x)));
        },
        {0.5, 1.5});
  check("take_along", [](Value x) { return Square(TakeAlong(x, ArgSort(x), 0)) * x; }, {0.5, -2});
  check("add_along", [](Value x) { return Square(AddAlong(x, ArgSort(x), x * x, 0)); }, {0.5});
  check("sort", [](Value x) { return Sort(x) * x; }, {0.5, 2});
  check("top_k", [](Value x) { return Square(TopK(x, 2).values); }, {0.5, 2});
  check("einsum", [](Value x) { return Einsum("i,j->ij", {x, Square(x)}); }, {0.5});
}

// As ops.h writes them down.
TEST(ComposedTest, OrderTakesNansForLargestAndKeepsEqualsAsTheyStood) {
  using namespace program;  // NOLINT: the functions under test
  const double nan = std::nan(""), infinity = HUGE_VAL;
  Builder b("order");
  const Builder::Scope scope(b);
  const Value x = b.Input("x", {DType::kF32, {4}}), zeros = b.Input("zeros", {DType::kF32, {6}});
  for (const bool descending : {false, true}) {
    const std::string way = descending ? "down" : "up";
    b.Output(way, Sort(x, 0, descending));
    b.Output(way + "_from", ArgSort(x, 0, descending));
    b.Output(way + "_zeros", ArgSort(zeros, 0, descending));
  }
  b.Output("two", TopK(x, 2).indices);
  b.Output("two_values", TopK(x, 2).values);
  const testing::StepInput feed{
      .inputs = {{"x", Array({DType::kF32, {4}}, std::vector<double>{3, nan, 1, 3})},
                 {"zeros", Array({DType::kF32, {6}},
                                 std::vector<double>{0.0, nan, -0.0, infinity, nan, -infinity})}}};
  const auto got = testing::Interpret(*b.Build(), feed);
  ASSERT_TRUE(got.ok()) << got.status().ToString();
  const auto expect = [&](const std::string& name, const std::vector<double>& want) {
    const Array& array = got->outputs.at(name);
    EXPECT_EQ(Difference(array, Array(array.type, want)), 0) << name;
  };
  expect("up", {1, 3, 3, nan});
  expect("up_from", {2, 0, 3, 1});
  expect("down", {nan, 3, 3, 1});
  expect("down_from", {1, 0, 3, 2});
  expect("up_zeros", {5, 0, 2, 3, 1, 4});
  expect("down_zeros", {1, 4, 3, 0, 2, 5});
  expect("two", {1, 0});
  expect("two_values", {nan, 3});
}

TEST(ComposedTest, BadCallsNameWhatTheyTake) {
  using namespace program;  // NOLINT: the functions under test
  const auto error = [](const std::function<Value(Value)>& f) {
    Builder b("bad");
    const Builder::Scope scope(b);
    f(b.Input("x", {DType::kF32, {4, 7}}));
    std::string message(b.status().message());
    return message.substr(message.find(": ") + 2);  // after the line
  };
  EXPECT_EQ(error([](Value x) {
              return Split(x, {2, 3}, 1)[0];
            }),
            "split: expected sizes that make up the 7 elements along axis 1 of f32[4,7], got: "
            "[2,3]");
  EXPECT_EQ(error([](Value x) {
              return Tile(x, {1, 0});
            }),
            "tile: expected for each dimension of f32[4,7] at least 1 repeat, got: [1,0]");
  EXPECT_EQ(error([](Value x) { return Roll(x, 1, 2); }),
            "roll: expected an axis in [-2, 2), got: 2");
  EXPECT_EQ(
      error([](Value x) { return StridedSlice(x, 1, 3, 3, 1); }),
      "strided_slice: expected a start, a step of at least 1 and a count of at least 1 inside "
      "the 7 elements along axis 1 of f32[4,7], got: start 1 step 3 count 3");
  EXPECT_EQ(error([](Value x) { return TopK(x, 8).values; }),
            "argsort: expected a count of 1 to the 7 elements along axis 1 of f32[4,7], got: 8");
  EXPECT_EQ(error([](Value x) { return TopK(x, 2, 2).indices; }),
            "argsort: expected an axis in [-2, 2), got: 2");
  EXPECT_EQ(error([](Value x) { return TakeAlong(x, ArgSort(x, 0), 3); }),
            "take_along: expected an axis in [-2, 2), got: 3");
  EXPECT_EQ(error([](Value x) { return ReduceAny(x); }),
            "reduce_any: expected bool, got: f32[4,7]");
  EXPECT_EQ(error([](Value x) { return Einsum("ij,jk->ik", {x}); }),
            "einsum: expected an equation like `ij,jk->ik`, for 1 operand, got: `ij,jk->ik`");
  EXPECT_EQ(error([](Value x) {
              return Einsum("ij,jk->ik", {x, x});
            }),
            "einsum: expected one size for `j`, got: f32[4,7] and f32[4,7]");
}

}  // namespace
}  // namespace meshtrain::sharding
