#include "runtime/program/registry.h"

#include <gtest/gtest.h>

#include <cmath>
#include <set>

#include "tests/support/op_cases/cases.h"

namespace meshtrain::program {
namespace {

using testing::Array;

using Ints = std::vector<int64_t>;
using namespace std::string_literals;

class RowTest : public ::testing::TestWithParam<OpCase> {};

TEST_P(RowTest, InfersTheResult) {
  const OpCase& c = GetParam();
  const OpDef* def = Registry::Standard().Find(c.kind);
  ASSERT_NE(def, nullptr);
  const auto types = c.types();
  const auto given = static_cast<int>(types.size());
  EXPECT_GE(given, def->min_operands);
  if (def->max_operands >= 0) {
    EXPECT_LE(given, def->max_operands);
  }
  const auto results = def->infer({types, c.attrs});
  ASSERT_TRUE(results.ok()) << results.status().ToString();
  ASSERT_EQ(results->size(), 1u);
  EXPECT_EQ((*results)[0].ToString(), c.result);

  // What a row says about bytes and operations is finite and not negative.
  const Cost cost = CostOf(*def, {types, c.attrs}, *results);
  EXPECT_TRUE(std::isfinite(cost.flops)) << cost.flops;
  EXPECT_GE(cost.flops, 0);
  double bytes = static_cast<double>((*results)[0].num_bytes());
  for (const TensorType& t : types) bytes += static_cast<double>(t.num_bytes());
  EXPECT_EQ(cost.bytes, bytes);
}

TEST_P(RowTest, RefusesUnknownAttributes) {
  const OpCase& c = GetParam();
  Attrs attrs = c.attrs;
  attrs.Set("colour", "red"s);
  const auto types = c.types();
  const auto results = Registry::Standard().Find(c.kind)->infer({types, attrs});
  ASSERT_FALSE(results.ok());
  EXPECT_NE(results.status().message().find("got: `colour`"), std::string::npos)
      << results.status().message();
}

// A row's attributes are looked at before they are used: a text where a number is due is an error,
// not a crash.
TEST_P(RowTest, RefusesAttributesOfAnotherKind) {
  const OpCase& c = GetParam();
  const auto types = c.types();
  for (const auto& [name, value] : c.attrs.items()) {
    Attrs attrs = c.attrs;
    attrs.Set(name, std::holds_alternative<std::string>(value) ? Attr(int64_t{7}) : Attr("seven"s));
    EXPECT_FALSE(Registry::Standard().Find(c.kind)->infer({types, attrs}).ok()) << name;
  }
}

// f(a + b) = f(a) + f(b) in every operand that is linear alone, the others held fast; in all joint
// operands together.
TEST_P(RowTest, IsLinearWhereItSaysSo) {
  const OpCase& c = GetParam();
  const OpDef* def = Registry::Standard().Find(c.kind);
  const auto types = c.types();
  const TensorType result = *TensorType::Parse(c.result);
  std::vector<std::vector<size_t>> together(1);
  for (size_t i = 0; i < types.size(); ++i) {
    if (!mesh::IsFloat(types[i].dtype)) continue;
    const Linearity linearity = LinearityOf(*def, {types, c.attrs}, static_cast<int>(i));
    if (linearity == Linearity::kAlone) together.push_back({i});
    if (linearity == Linearity::kJoint) together[0].push_back(i);
  }
  for (const auto& moving : together) {
    if (moving.empty()) continue;
    const auto a = DrawOperands(c, 1), b = DrawOperands(c, 2);
    auto second = a, sum = a;
    for (const size_t i : moving) {
      second[i] = b[i];
      for (size_t k = 0; k < sum[i].at.size(); ++k) sum[i].at[k] += b[i].at[k];
    }
    const Array fa = EvaluateCase(c, c.attrs, a, result),
                fb = EvaluateCase(c, c.attrs, second, result);
    const Array fs = EvaluateCase(c, c.attrs, sum, result);
    for (size_t k = 0; k < fs.at.size(); ++k) {
      ASSERT_NEAR(fs.at[k], fa.at[k] + fb.at[k], 1e-9) << "operand " << moving[0];
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Ops, RowTest, ::testing::ValuesIn(OpCases()), OpCaseName);

// A sum may be cast part by part where each part's numbers are the wider type's too.
TEST(RegistryTest, ACastToAWiderFloatIsLinear) {
  const OpDef* cast = Registry::Standard().Find("cast");
  const auto linearity = [&](const char* from, const char* to, bool narrow_sums = false) {
    const TensorType types[] = {*TensorType::Parse(from)};
    Attrs attrs = {{"dtype", std::string(to)}};
    if (narrow_sums) attrs.Set("narrow_sums", true);
    return LinearityOf(*cast, {types, attrs}, 0);
  };
  for (const char* from : {"bf16[3]", "f16[3]"}) {
    EXPECT_EQ(linearity(from, "f32"), Linearity::kAlone) << from;
    EXPECT_EQ(linearity(from, "f64"), Linearity::kAlone) << from;
    EXPECT_EQ(linearity(from, "f32", true), Linearity::kNone) << from;
  }
  EXPECT_EQ(linearity("f32[3]", "f64"), Linearity::kAlone);
  EXPECT_EQ(linearity("bf16[3]", "f16"), Linearity::kNone);
  EXPECT_EQ(linearity("f64[3]", "f32"), Linearity::kNone);
  EXPECT_EQ(linearity("f32[3]", "bf16"), Linearity::kNone);
  EXPECT_EQ(linearity("f32[3]", "i32"), Linearity::kNone);
  EXPECT_EQ(linearity("i32[3]", "f32"), Linearity::kNone);
  EXPECT_EQ(linearity("bool[3]", "f32"), Linearity::kNone);
}

TEST(RegistryTest, EveryRowHasACase) {
  std::set<std::string> tested, rows;
  for (const OpCase& c : OpCases()) tested.insert(c.kind);
  for (const OpDef* def : Registry::Standard().All()) rows.insert(def->kind);
  EXPECT_EQ(rows, tested);
}

TEST(RegistryTest, NamesTheNearestOp) {
  EXPECT_EQ(Registry::Standard().Get("matmull").status().message(),
            "expected a registered op, got: `matmull`, did you mean `matmul`?");
}

TEST(RegistryTest, LinearityIsAsListed) {
  using enum Linearity;
  const std::map<std::string, std::vector<Linearity>> want = {
      {"add", {kJoint}},
      {"add_along", {kNone, kAlone}},
      {"broadcast_to", {kAlone}},
      {"cast", {kAlone}},  // to a wider float
      {"concat", {kJoint}},
      {"conv", {kAlone}},
      {"conv_filter_grad", {kAlone}},
      {"conv_input_grad", {kAlone}},
      {"div", {kAlone, kNone}},
      {"gather", {kAlone, kNone}},
      {"matmul", {kAlone}},
      {"mul", {kAlone}},
      {"neg", {kAlone}},
      {"reduce_sum", {kAlone}},
      {"reshape", {kAlone}},
      {"reverse", {kAlone}},
      {"scatter_add", {kNone, kAlone}},
      {"scatter_set", {kJoint, kNone, kJoint}},
      {"select", {kNone, kJoint}},
      {"slice", {kAlone}},
      {"softmax_cross_entropy", {kNone, kAlone}},
      {"sparse_softmax_cross_entropy_grad", {kNone, kNone, kAlone}},
      {"stop_gradient", {kAlone}},
      {"sub", {kJoint}},
      {"take_along", {kAlone, kNone}},
      {"transpose", {kAlone}},
      {"window_max_grad", {kNone, kAlone}},
      {"window_max_pick", {kNone, kAlone}},
      {"window_sum", {kAlone}},
      {"window_sum_grad", {kAlone}},
  };
  std::map<std::string, std::vector<Linearity>> got;
  for (const OpDef* def : Registry::Standard().All()) {
    if (!def->linearity.empty()) got[def->kind] = def->linearity;
    EXPECT_TRUE(!def->moves_data || !def->linearity.empty()) << def->kind;
  }
  EXPECT_EQ(got, want);
}

TEST(RegistryTest, FlagsAreAsListed) {
  std::set<std::string> indexed, pathed, collective;
  for (const OpDef* def : Registry::Standard().All()) {
    if (def->index_dependent) indexed.insert(def->kind);
    if (def->path_dependent) pathed.insert(def->kind);
    if (def->collective) collective.insert(def->kind);
    if (def->kind == "all_reduce" || def->kind == "all_gather") {
      continue;  // programs traced per replica hold them
    }
    if (def->gradient != nullptr) {
      EXPECT_FALSE(def->collective) << def->kind;
      EXPECT_FALSE(def->index_dependent) << def->kind;
    }
  }
  EXPECT_EQ(indexed, (std::set<std::string>{"dropout_mask", "iota", "mask_pad", "shard_slice",
                                            "shard_window", "stateless_normal",
                                            "stateless_truncated_normal", "stateless_uniform"}));
  EXPECT_EQ(pathed, (std::set<std::string>{"dropout_mask"}));
  EXPECT_EQ(collective, (std::set<std::string>{"all_gather", "all_reduce", "all_to_all", "halo",
                                               "reduce_scatter"}));
}

TEST(RegistryTest, CostOfMatMulCountsMultiplyAdds) {
  const OpDef* def = Registry::Standard().Find("matmul");
  const std::vector<TensorType> types = {{DType::kF32, {8, 4}}, {DType::kF32, {4, 16}}};
  const Attrs attrs;
  const auto results = *def->infer({types, attrs});
  EXPECT_EQ(CostOf(*def, {types, attrs}, results).flops, 2.0 * 8 * 4 * 16);
}

struct BadCall {
  std::string kind;
  std::vector<std::string> operands;
  Attrs attrs;
  std::string message;
};

TEST(RegistryTest, BadCallsSayWhatWasExpected) {
  const Ints huge = {int64_t{1} << 40, int64_t{1} << 40};
  const BadCall calls[] = {
      {"add",
       {"f32[2,3]", "f32[4]"},
       {},
       "expected shapes that broadcast, got: f32[2,3] and f32[4]"},
      {"add", {"f32[2]", "f64[2]"}, {}, "expected operands of one dtype, got: f32[2] and f64[2]"},
      {"add", {"bool[2]", "bool[2]"}, {}, "expected numbers, got: bool[2]"},
      {"add", {"f32[2]", "f32[2]"}, {{"axis", int64_t{0}}}, "expected no attribute, got: `axis`"},
      {"mul",
       {"u8[1099511627776,1]", "u8[1099511627776]"},
       {},
       "expected fewer than 2^60 elements, got: [1099511627776,1099511627776]"},
      {"div", {"i32[2]", "i32[2]"}, {}, "expected f32, f64, bf16 or f16, got: i32[2]"},
      {"logical_not", {"f32[2]"}, {}, "expected bool, got: f32[2]"},
      {"select", {"f32[2]", "f32[2]", "f32[2]"}, {}, "expected a condition of bool, got: f32[2]"},
      {"select",
       {"bool[2]", "f32[2]", "f64[2]"},
       {},
       "expected operands of one dtype, got: f32[2] and f64[2]"},
      {"cast", {"f32[2]"}, {}, "expected the attribute `dtype`, got: none"},
      {"cast",
       {"f32[2]"},
       {{"dtype", "float"s}},
       "dtype: expected one of bool u8 i32 i64 f32 f64 bf16 f16, got: float"},
      {"cast",
       {"f32[2]"},
       {{"dtyp", "f32"s}},
       "expected one of the attributes dtype, narrow_sums, got: `dtyp`, did you mean `dtype`?"},
      {"matmul",
       {"f32[2,3]", "f32[4,5]"},
       {},
       "expected as many columns on the left as rows on the right, got: f32[2,3] and f32[4,5]"},
      {"matmul",
       {"f32[2,3]", "f32[3,5]"},
       {{"transpose_b", true}},
       "expected as many columns on the left as rows on the right, got: f32[2,3] and f32[3,5] "
       "(transposed)"},
      {"matmul",
       {"f32[3]", "f32[3,5]"},
       {},
       "expected operands of at least 2 dimensions, got: f32[3] and f32[3,5]"},
      {"matmul",
       {"f32[7,3,2]", "f32[8,3,5]"},
       {{"transpose_a", true}, {"sum_batch", true}},
       "expected equal leading dimensions, or none on one side, got: f32[7,3,2] and f32[8,3,5]"},
      {"matmul",
       {"f32[7,3,2]", "f32[3,5]"},
       {{"transpose_a", true}, {"sum_batch", true}},
       "expected with sum_batch equal leading dimensions, transpose_a and no transpose_b, got: "
       "f32[7,3,2] and f32[3,5]"},
      {"matmul", {"i32[2,3]", "i32[3,5]"}, {}, "expected f32, f64, bf16 or f16, got: i32[2,3]"},
      {"matmul",
       {"f32[7,2,3]", "f32[8,3,5]"},
       {},
       "expected equal leading dimensions, or none on one side, got: f32[7,2,3] and f32[8,3,5]"},
      {"reshape",
       {"f32[2,6]"},
       {{"dims", Ints{5, 2}}},
       "expected dimensions that hold the 12 elements of f32[2,6] (one may be -1), got: [5,2]"},
      {"reshape",
       {"f32[2,6]"},
       {{"dims", Ints{-3, -4}}},
       "expected dimensions that hold the 12 elements of f32[2,6] (one may be -1), got: [-3,-4]"},
      {"transpose",
       {"f32[2,6]"},
       {{"permutation", Ints{0, 0}}},
       "expected a permutation of the dimensions of f32[2,6], got: [0,0]"},
      {"broadcast_to",
       {"f32[2,6]"},
       {{"dims", Ints{6}}},
       "expected dimensions that f32[2,6] stretches to, got: [6]"},
      {"broadcast_to",
       {"f32[1]"},
       {{"dims", huge}},
       "expected fewer than 2^60 elements, got: [1099511627776,1099511627776]"},
      {"concat",
       {"f32[2,6]", "f32[2,5]"},
       {{"axis", int64_t{0}}},
       "expected shapes that differ in dimension 0 only, got: f32[2,6] and f32[2,5]"},
      {"concat",
       {"f32[2]", "f32[2]", "f32[2]"},
       {{"axis", int64_t{1}}},
       "expected an axis in [-1, 1), got: 1"},
      {"slice",
       {"f32[4]"},
       {{"starts", Ints{2}}, {"sizes", Ints{3}}},
       "expected starts and sizes inside f32[4], got: starts [2] sizes [3]"},
      {"slice",
       {"f32[4]"},
       {{"starts", Ints{5}}, {"sizes", Ints{-1}}},
       "expected starts and sizes inside f32[4], got: starts [5] sizes [-1]"},
      {"pad",
       {"f32[4]"},
       {{"before", Ints{-1}}, {"after", Ints{0}}},
       "expected for each dimension of f32[4] at least 0 before and after, got: before [-1] after "
       "[0]"},
      {"relayout",
       {"f32[4,2]"},
       {{"specs", "{batch}"s}},
       "expected one spec for each dimension of f32[4,2], got: {batch}"},
      {"reduce_sum", {"f32[4,2]"}, {{"axes", Ints{-3}}}, "expected an axis in [-2, 2), got: -3"},
      {"reduce_sum", {"f32[4,2]"}, {{"axes", Ints{1, 1}}}, "expected each axis once, got: [1,1]"},
      {"reduce_max", {"bool[4,2]"}, {{"axes", Ints{1}}}, "expected numbers, got: bool[4,2]"},
      {"argmax",
       {"f32[4,0]"},
       {{"axis", int64_t{1}}},
       "expected at least one element along the axis, got: f32[4,0]"},
      {"softmax", {"f32[]"}, {}, "expected a last dimension of at least 1 class, got: f32[]"},
      {"sparse_softmax_cross_entropy",
       {"f32[4,3]", "f32[4]"},
       {},
       "expected labels of i32 or i64, got: f32[4]"},
      {"sparse_softmax_cross_entropy",
       {"f32[4,3]", "i64[3]"},
       {},
       "expected labels of the logits' shape without its last dimension, got: f32[4,3] and i64[3]"},
      {"softmax_cross_entropy",
       {"f32[4,3]", "f32[4,2]"},
       {},
       "expected logits and labels of one type, got: f32[4,3] and f32[4,2]"},
      {"reverse", {"f32[4,2]"}, {{"axes", Ints{1, 1}}}, "expected each axis once, got: [1,1]"},
      {"reverse", {"f32[4,2]"}, {{"axes", Ints{2}}}, "expected an axis in [-2, 2), got: 2"},
      {"gather",
       {"i32[4,2]", "i32[3]"},
       {{"axis", int64_t{0}}},
       "expected f32, f64, bf16 or f16, got: i32[4,2]"},
      {"gather",
       {"f32[4,2]", "f32[3]"},
       {{"axis", int64_t{0}}},
       "expected ids of i32 or i64, got: f32[3]"},
      {"gather",
       {"f32[4,2]", "i32[3]"},
       {{"axis", int64_t{2}}},
       "expected an axis in [-2, 2), got: 2"},
      {"scatter_add",
       {"i32[3]", "f32[2,2]"},
       {{"axis", int64_t{0}}, {"dims", Ints{4, 2}}},
       "expected updates of f32[3,2] for ids of i32[3] along axis 0 of [4,2], got: f32[2,2]"},
      {"scatter_set",
       {"f32[4,2]", "i32[3]", "f32[3,3]"},
       {{"axis", int64_t{0}}},
       "expected updates of f32[3,2] for ids of i32[3] along axis 0 of [4,2], got: f32[3,3]"},
      {"scatter_set",
       {"f32[4,2]", "i32[3]", "f64[3,2]"},
       {{"axis", int64_t{0}}},
       "expected updates of f32[3,2] for ids of i32[3] along axis 0 of [4,2], got: f64[3,2]"},
      {"take_along",
       {"f32[4,2]", "i32[3,3]"},
       {{"axis", int64_t{1}}},
       "expected ids of the dimensions [4,2], but for axis 1, got: i32[3,3]"},
      {"take_along",
       {"f32[4,2]", "i64[4]"},
       {{"axis", int64_t{1}}},
       "expected ids of the dimensions [4,2], but for axis 1, got: i64[4]"},
      {"take_along",
       {"i32[4,2]", "i64[4,2]"},
       {{"axis", int64_t{1}}},
       "expected f32, f64, bf16 or f16, got: i32[4,2]"},
      {"add_along",
       {"i32[4,3]", "f32[4,2]"},
       {{"axis", int64_t{1}}, {"dims", Ints{4, 5}}},
       "expected an update for each id, got: i32[4,3] and f32[4,2]"},
      {"add_along",
       {"f32[4,3]", "f32[4,3]"},
       {{"axis", int64_t{1}}, {"dims", Ints{4, 5}}},
       "expected ids of i32 or i64, got: f32[4,3]"},
      {"sort", {"bool[4]"}, {{"axis", int64_t{0}}}, "expected numbers, got: bool[4]"},
      {"sort", {"f32[]"}, {{"axis", int64_t{-1}}}, "expected an axis in [-0, 0), got: -1"},
      {"argsort",
       {"f32[4,2]"},
       {{"axis", int64_t{1}}, {"count", int64_t{3}}},
       "expected a count of 1 to the 2 elements along axis 1 of f32[4,2], got: 3"},
      {"argsort",
       {"f32[4,2]"},
       {{"axis", int64_t{1}}, {"count", int64_t{0}}},
       "expected a count of 1 to the 2 elements along axis 1 of f32[4,2], got: 0"},
      {"one_hot", {"i32[4]"}, {{"depth", int64_t{0}}}, "expected a depth of at least 1, got: 0"},
      {"constant", {}, {}, "expected either `value` or `values`, got: neither"},
      {"constant",
       {},
       {{"value", 0.5}, {"dtype", "i32"s}},
       "expected a number of type i32, got: 0.5"},
      {"constant",
       {},
       {{"value", std::nan("")}, {"dtype", "i64"s}},
       "expected a number of type i64, got: nan"},
      {"constant",
       {},
       {{"value", int64_t{1}}},
       "attribute `value`: expected a floating-point number, got: 1"},
      {"constant",
       {},
       {{"values", std::vector<double>{1, 2}}, {"dims", Ints{3}}},
       "expected 3 values for f32[3], got: 2"},
      {"fill",
       {},
       {{"value", 300.0}, {"dims", Ints{2}}, {"dtype", "u8"s}},
       "expected a number of type u8, got: 300.0"},
      {"fill",
       {},
       {{"value", 0.0}, {"dims", Ints{2, -1}}},
       "expected dimensions of at least 0, got: [2,-1]"},
      {"stateless_uniform",
       {},
       {{"dims", Ints{2}}, {"seed", Ints{1}}, {"minval", 0.0}, {"maxval", 1.0}},
       "expected a seed of two integers, got: [1]"},
      {"dropout_mask",
       {"i64[]"},
       {{"dims", Ints{2}}, {"rate", 1.0}, {"seed", int64_t{1}}},
       "expected a rate in [0, 1), got: 1.0"},
      {"dropout_mask",
       {"i32[]"},
       {{"dims", Ints{2}}, {"rate", 0.5}, {"seed", int64_t{1}}},
       "expected a step of i64[], got: i32[]"},
      {"all_reduce",
       {"f32[2]"},
       {{"axes", Ints{0}}, {"group", int64_t{0}}, {"reduction", "sum"s}},
       "expected a group of at least 1 device, got: 0"},
      {"all_reduce",
       {"f32[2]"},
       {{"axes", Ints{0}}, {"group", int64_t{2}}, {"reduction", "mean"s}},
       "expected the reduction sum, max or min, got: mean"},
      {"all_gather",
       {"f32[2]"},
       {{"axes", Ints{0}}, {"group", int64_t{4}}, {"dim", int64_t{0}}, {"size", int64_t{10}}},
       "expected in dimension 0 a chunk of 10 elements over 4 devices, got: f32[2]"},
  };
  for (const BadCall& call : calls) {
    const OpDef* def = Registry::Standard().Find(call.kind);
    ASSERT_NE(def, nullptr) << call.kind;
    std::vector<TensorType> types;
    for (const std::string& text : call.operands) types.push_back(*TensorType::Parse(text));
    const auto results = def->infer({types, call.attrs});
    ASSERT_FALSE(results.ok()) << call.kind << ": " << call.message;
    EXPECT_EQ(results.status().code(), StatusCode::kInvalidArgument);
    EXPECT_EQ(results.status().message(), call.message) << call.kind;
  }
}

}  // namespace
}  // namespace meshtrain::program
