#include "tests/support/op_cases/cases.h"

#include <algorithm>
#include <cmath>
#include <random>

#include "runtime/base/check.h"
#include "runtime/program/registry.h"

namespace meshtrain::program {
namespace {

using Ints = std::vector<int64_t>;
using Doubles = std::vector<double>;
using namespace std::string_literals;

void AddElementwise(std::vector<OpCase>& cases) {
  const std::string same = "2map 3map: [0,1] [0,1] -> [0,1]", alone = "2map 3map: [0,1] -> [0,1]";
  for (const char* kind : {"add", "sub", "mul", "maximum", "minimum"}) {
    cases.push_back({kind, {"f32[2,3]", "f32[2,3]"}, {}, "f32[2,3]", same});
    cases.push_back({kind, {"i32[4]", "i32[]"}, {}, "i32[4]", "4map: [0] [] -> [0]"});
    cases.push_back(
        {kind, {"f64[3]", "f64[2,1]"}, {}, "f64[2,3]", "2map 3map: [1] [0,-] -> [0,1]"});
  }
  cases.push_back({"div",
                   {"f32[2,3]", "f32[3]"},
                   {},
                   "f32[2,3]",
                   "2map 3map: [0,1] [1] -> [0,1]",
                   Draw::kPositive});
  cases.push_back({"pow", {"f64[2,3]", "f64[2,3]"}, {}, "f64[2,3]", same, Draw::kPositive});
  cases.push_back(
      {"pow", {"f64[3]", "f64[]"}, {}, "f64[3]", "3map: [0] [] -> [0]", Draw::kPositive});
  for (const char* kind : {"neg", "abs", "sign", "square", "floor", "exp", "expm1", "sin", "cos",
                           "softplus", "erf", "tanh", "sigmoid", "relu", "stop_gradient"}) {
    cases.push_back({kind, {"f32[2,3]"}, {}, "f32[2,3]", alone});
  }
  for (const char* kind : {"sqrt", "rsqrt", "log", "log1p"}) {
    cases.push_back({kind, {"f64[2,3]"}, {}, "f64[2,3]", alone, Draw::kPositive});
  }
  cases.push_back({"neg", {"i64[]"}, {}, "i64[]", ": [] -> []"});
  cases.push_back({"gelu", {"f32[2,3]"}, {}, "f32[2,3]", alone});
  cases.push_back(
      {"gelu", {"f32[1,3]"}, {{"approximate", true}}, "f32[1,3]", "3map: [-,0] -> [-,0]"});
  cases.push_back({"cast", {"f32[2,3]"}, {{"dtype", "f64"s}}, "f64[2,3]", alone});
  cases.push_back({"cast", {"bool[2,3]"}, {{"dtype", "f32"s}}, "f32[2,3]", alone});
  for (const char* kind :
       {"equal", "not_equal", "less", "less_equal", "greater", "greater_equal"}) {
    cases.push_back(
        {kind, {"f32[2,3]", "f32[1,3]"}, {}, "bool[2,3]", "2map 3map: [0,1] [-,1] -> [0,1]"});
  }
  cases.push_back({"equal", {"bool[2,3]", "bool[2,3]"}, {}, "bool[2,3]", same});
  for (const char* kind : {"logical_and", "logical_or"}) {
    cases.push_back({kind, {"bool[2,3]", "bool[2,3]"}, {}, "bool[2,3]", same});
  }
  cases.push_back({"logical_not", {"bool[2,3]"}, {}, "bool[2,3]", alone});
  cases.push_back({"select",
                   {"bool[2,1]", "f32[2,3]", "f32[]"},
                   {},
                   "f32[2,3]",
                   "2map 3map: [0,-] [0,1] [] -> [0,1]"});
  cases.push_back({"sigmoid_cross_entropy", {"f32[2,3]", "f32[2,3]"}, {}, "f32[2,3]", same});
}

void AddLinear(std::vector<OpCase>& cases) {
  const auto flags = [](bool a, bool b) { return Attrs{{"transpose_a", a}, {"transpose_b", b}}; };
  cases.push_back({"matmul",
                   {"f32[8,4]", "f32[4,16]"},
                   {},
                   "f32[8,16]",
                   "8map 4sum 16map: [0,1] [1,2] -> [0,2]"});
  cases.push_back({"matmul",
                   {"f32[4,2]", "f32[4,6]"},
                   flags(true, false),
                   "f32[2,6]",
                   "2map 4sum 6map: [1,0] [1,2] -> [0,2]"});
  cases.push_back({"matmul",
                   {"f32[2,4]", "f32[6,4]"},
                   flags(false, true),
                   "f32[2,6]",
                   "2map 4sum 6map: [0,1] [2,1] -> [0,2]"});
  cases.push_back({"matmul",
                   {"f32[4,2]", "f32[6,4]"},
                   flags(true, true),
                   "f32[2,6]",
                   "2map 4sum 6map: [1,0] [2,1] -> [0,2]"});
  cases.push_back({"matmul",
                   {"f64[3,2,4]", "f64[3,4,2]"},
                   {},
                   "f64[3,2,2]",
                   "3map 2map 4sum 2map: [0,1,2] [0,2,3] -> [0,1,3]"});
  cases.push_back({"matmul",
                   {"f64[3,2,4]", "f64[4,2]"},
                   {},
                   "f64[3,2,2]",
                   "3map 2map 4sum 2map: [0,1,2] [2,3] -> [0,1,3]"});
  cases.push_back({"matmul",
                   {"f64[3,2,4]", "f64[2,4]"},
                   flags(false, true),
                   "f64[3,2,2]",
                   "3map 2map 4sum 2map: [0,1,2] [3,2] -> [0,1,3]"});
  cases.push_back({"matmul",
                   {"f64[3,4,2]", "f64[4,2]"},
                   flags(true, false),
                   "f64[3,2,2]",
                   "3map 2map 4sum 2map: [0,2,1] [2,3] -> [0,1,3]"});
  cases.push_back({"matmul",
                   {"f64[2,4]", "f64[3,4,2]"},
                   {},
                   "f64[3,2,2]",
                   "3map 2map 4sum 2map: [1,2] [0,2,3] -> [0,1,3]"});
  cases.push_back({"matmul",
                   {"f64[3,4,2]", "f64[3,4,5]"},
                   {{"transpose_a", true}, {"transpose_b", false}, {"sum_batch", true}},
                   "f64[2,5]",
                   "3sum 2map 4sum 5map: [0,2,1] [0,2,3] -> [1,3]"});
  cases.push_back(
      {"matmul", {"f64[1,4]", "f64[4,1]"}, {}, "f64[1,1]", "4sum: [-,0] [0,-] -> [-,-]"});
}

void AddShape(std::vector<OpCase>& cases) {
  const auto dims = [](Dims d) { return Attrs{{"dims", std::move(d)}}; };
  cases.push_back({"reshape", {"f32[2,6]"}, dims({12}), "f32[12]", "2map 6map: [0,1] -> [0.1]"});
  cases.push_back({"reshape", {"f32[12]"}, dims({2, 6}), "f32[2,6]", "2map 6map: [0.1] -> [0,1]"});
  cases.push_back(
      {"reshape", {"f32[8,2,2]"}, dims({8, 4}), "f32[8,4]", "8map 2map 2map: [0,1,2] -> [0,1.2]"});
  cases.push_back({"reshape",
                   {"f32[6,4]"},
                   dims({8, 3}),
                   "f32[8,3]",
                   "2map 3whole 4whole 4whole 3whole: [0.1,3] -> [0.2,4]"});
  cases.push_back({"reshape",
                   {"f32[2,3,5]"},
                   dims({3, 2, 5}),
                   "f32[3,2,5]",
                   "2whole 3whole 3whole 2whole 5map: [0,2,4] -> [1,3,4]"});
  cases.push_back({"reshape",
                   {"f32[4,1,3]"},
                   dims({1, 4, 3, 1}),
                   "f32[1,4,3,1]",
                   "4map 3map: [0,-,1] -> [-,0,1,-]"});
  cases.push_back({"reshape", {"f32[]"}, dims({1, 1}), "f32[1,1]", ": [] -> [-,-]"});
  cases.push_back({"reshape",
                   {"f32[0,3]"},
                   dims({3, 0}),
                   "f32[3,0]",
                   "0whole 3whole 3whole 0whole: [0,1] -> [2,3]"});
  cases.push_back({"transpose",
                   {"f32[2,3,4]"},
                   {{"permutation", Ints{2, 0, 1}}},
                   "f32[4,2,3]",
                   "4map 2map 3map: [1,2,0] -> [0,1,2]"});
  cases.push_back({"broadcast_to",
                   {"f32[4,1]"},
                   dims({2, 4, 3}),
                   "f32[2,4,3]",
                   "2map 4map 3map: [1,-] -> [0,1,2]"});
  cases.push_back({"concat",
                   {"f32[2,4]", "f32[3,4]"},
                   {{"axis", int64_t{0}}},
                   "f32[5,4]",
                   "5map 4map: [0,1] [0,1] -> [0,1]"});
  cases.push_back({"concat",
                   {"f64[2]", "f64[1]", "f64[2]"},
                   {{"axis", int64_t{0}}},
                   "f64[5]",
                   "5map: [0] [0] [0] -> [0]"});
  cases.push_back({"slice",
                   {"f32[4,6]"},
                   {{"starts", Ints{0, 2}}, {"sizes", Ints{-1, 3}}},
                   "f32[4,3]",
                   "4map 3map: [0,1] -> [0,1]"});
  cases.push_back({"slice",
                   {"f32[4,6]"},
                   {{"starts", Ints{0, 2}}, {"sizes", Ints{4, -1}}},
                   "f32[4,4]",
                   "4map 4map: [0,1] -> [0,1]"});
  cases.push_back({"pad",
                   {"f32[4,6]"},
                   {{"before", Ints{0, 1}}, {"after", Ints{0, 2}}, {"value", 7.0}},
                   "f32[4,9]",
                   "4map 9map: [0,1] -> [0,1]"});
  cases.push_back({"slice",
                   {"f32[4,6]"},
                   {{"starts", Ints{0, 2}}, {"sizes", Ints{-1, 1}}},
                   "f32[4,1]",
                   "4map 6whole: [0,1] -> [0,-]"});
  cases.push_back(
      {"reverse", {"f32[4,3]"}, {{"axes", Ints{1}}}, "f32[4,3]", "4map 3whole: [0,1] -> [0,1]"});
  cases.push_back(
      {"relayout", {"f32[4,6]"}, {{"specs", "{a, *}"s}}, "f32[4,6]", "4map 6map: [0,1] -> [0,1]"});
}

void AddReduce(std::vector<OpCase>& cases) {
  for (const char* name : {"sum", "max", "min"}) {
    const std::string kind = "reduce_"s + name, f = name;
    cases.push_back({kind,
                     {"f32[2,3,4]"},
                     {{"axes", Ints{1}}},
                     "f32[2,4]",
                     "2map 3" + f + " 4map: [0,1,2] -> [0,2]"});
    cases.push_back({kind,
                     {"f32[2,3,4]"},
                     {{"axes", Ints{0, 2}}, {"keep_dims", true}},
                     "f32[1,3,1]",
                     "2" + f + " 3map 4" + f + ": [0,1,2] -> [-,1,-]"});
    cases.push_back(
        {kind, {"f64[2,3]"}, {{"axes", Ints{0}}}, "f64[3]", "2" + f + " 3map: [0,1] -> [1]"});
    cases.push_back(
        {kind, {"i32[2,1]"}, {{"axes", Ints{0, 1}}}, "i32[]", "2" + f + ": [0,-] -> []"});
  }
  cases.push_back({"argmax",
                   {"f32[2,3,4]"},
                   {{"axis", int64_t{1}}},
                   "i64[2,4]",
                   "2map 3whole 4map: [0,1,2] -> [0,2]"});
  cases.push_back(
      {"count_beyond", {"f32[2,3]"}, {{"limit", 1.5}}, "f32[]", "2sum 3sum: [0,1] -> []"});
  cases.push_back({"count_beyond", {"f64[4,1]"}, {{"limit", 0.0}}, "f32[]", "4sum: [0,-] -> []"});
}

void AddIndex(std::vector<OpCase>& cases) {
  for (const char* kind : {"softmax", "log_softmax"}) {
    cases.push_back(
        {kind, {"f32[2,4,3]"}, {}, "f32[2,4,3]", "2map 4map 3whole: [0,1,2] -> [0,1,2]"});
  }
  cases.push_back({"sparse_softmax_cross_entropy",
                   {"f32[4,3]", "i64[4]"},
                   {},
                   "f32[4]",
                   "4map 3whole: [0,1] [0] -> [0]"});
  cases.push_back({"sparse_softmax_cross_entropy",
                   {"f64[2,2,3]", "i32[2,2]"},
                   {},
                   "f64[2,2]",
                   "2map 2map 3whole: [0,1,2] [0,1] -> [0,1]"});
  cases.push_back({"sparse_softmax_cross_entropy_grad",
                   {"f32[4,3]", "i64[4]", "f32[4]"},
                   {},
                   "f32[4,3]",
                   "4map 3whole: [0,1] [0] [0] -> [0,1]"});
  cases.push_back({"softmax_cross_entropy",
                   {"f32[4,3]", "f32[4,3]"},
                   {},
                   "f32[4]",
                   "4map 3whole: [0,1] [0,1] -> [0]"});
  cases.push_back({"one_hot",
                   {"i32[4]"},
                   {{"depth", int64_t{3}}, {"dtype", "f64"s}},
                   "f64[4,3]",
                   "4map 3whole: [0] -> [0,1]"});
}

void AddGather(std::vector<OpCase>& cases) {
  cases.push_back({"gather",
                   {"f32[5,4]", "i64[3]"},
                   {{"axis", int64_t{0}}},
                   "f32[3,4]",
                   "5sum 4map 3map: [0,1] [2] -> [2,1]"});
  cases.push_back({"gather",
                   {"f32[2,3,4]", "i32[5,2]"},
                   {{"axis", int64_t{1}}},
                   "f32[2,5,2,4]",
                   "2map 3sum 4map 5map 2map: [0,1,2] [3,4] -> [0,3,4,2]"});
  cases.push_back({"scatter_add",
                   {"i64[3]", "f32[3,4]"},
                   {{"axis", int64_t{0}}, {"dims", Ints{5, 4}}},
                   "f32[5,4]",
                   "5map 4map 3sum: [2] [2,1] -> [0,1]"});
  cases.push_back({"scatter_add",
                   {"i32[5,2]", "f32[2,5,2,4]"},
                   {{"axis", int64_t{1}}, {"dims", Ints{2, 3, 4}}},
                   "f32[2,3,4]",
                   "2map 3map 4map 5sum 2sum: [3,4] [0,3,4,2] -> [0,1,2]"});
}

void AddSources(std::vector<OpCase>& cases) {
  cases.push_back({"constant", {}, {{"value", 2.5}}, "f32[]", ": -> []"});
  cases.push_back({"constant",
                   {},
                   {{"value", 2.0}, {"dims", Ints{4}}, {"dtype", "i32"s}},
                   "i32[4]",
                   "4map: -> [0]"});
  cases.push_back({"constant",
                   {},
                   {{"values", Doubles{1, 2, 3, 4}}, {"dims", Ints{2, 2}}},
                   "f32[2,2]",
                   "2whole 2whole: -> [0,1]"});
  cases.push_back({"fill",
                   {},
                   {{"value", 1.0}, {"dims", Ints{4, 1, 2}}, {"dtype", "f64"s}},
                   "f64[4,1,2]",
                   "4map 2map: -> [0,-,1]"});
  cases.push_back({"iota",
                   {},
                   {{"dims", Ints{4, 2}}, {"axis", int64_t{0}}, {"dtype", "i64"s}},
                   "i64[4,2]",
                   "4map 2map: -> [0,1]"});
  cases.push_back({"stateless_uniform",
                   {},
                   {{"dims", Ints{4, 2}}, {"seed", Ints{22, 23}}, {"minval", 0.0}, {"maxval", 1.0}},
                   "f32[4,2]",
                   "4map 2map: -> [0,1]"});
  for (const char* kind : {"stateless_normal", "stateless_truncated_normal"}) {
    cases.push_back({kind,
                     {},
                     {{"dims", Ints{4, 2}},
                      {"seed", Ints{1, 2}},
                      {"mean", 0.0},
                      {"stddev", 1.0},
                      {"dtype", "f64"s}},
                     "f64[4,2]",
                     "4map 2map: -> [0,1]"});
  }
  cases.push_back({"dropout_mask",
                   {"i64[]"},
                   {{"dims", Ints{4, 2}}, {"rate", 0.5}, {"seed", int64_t{3}}},
                   "f32[4,2]",
                   "4map 2map: [] -> [0,1]"});
}

void AddCollectives(std::vector<OpCase>& cases) {
  const auto attrs = [](Attrs more) {
    more.Set("axes", Ints{0});
    more.Set("group", int64_t{4});
    return more;
  };
  const auto n = [](int64_t i) { return i; };
  cases.push_back({"all_reduce", {"f32[3,4]"}, attrs({{"reduction", "sum"s}}), "f32[3,4]", ""});
  cases.push_back(
      {"all_gather", {"f32[3,4]"}, attrs({{"dim", n(0)}, {"size", n(10)}}), "f32[10,4]", ""});
  cases.push_back({"reduce_scatter",
                   {"f32[10,4]"},
                   attrs({{"dim", n(0)}, {"reduction", "max"s}}),
                   "f32[3,4]",
                   ""});
  cases.push_back({"all_to_all",
                   {"f32[3,6]"},
                   attrs({{"split_dim", n(1)}, {"concat_dim", n(0)}, {"size", n(10)}}),
                   "f32[10,2]",
                   ""});
  cases.push_back({"halo",
                   {"f32[3,4]"},
                   attrs({{"dim", n(0)},
                          {"size", n(10)},
                          {"starts", Ints{-1, 2, 5, 8}},
                          {"extent", n(5)},
                          {"value", 0.0}}),
                   "f32[5,4]",
                   ""});
  cases.push_back(
      {"shard_window",
       {"f32[10,4]"},
       attrs({{"dim", n(0)}, {"starts", Ints{-1, 2, 5, 8}}, {"extent", n(5)}, {"value", 0.0}}),
       "f32[5,4]",
       ""});
  cases.push_back({"shard_slice", {"f32[10,4]"}, attrs({{"dim", n(0)}}), "f32[3,4]", ""});
  cases.push_back({"mask_pad",
                   {"f32[3,4]"},
                   attrs({{"dim", n(0)}, {"size", n(10)}, {"value", 0.0}}),
                   "f32[3,4]",
                   ""});
}

}  // namespace

std::vector<TensorType> OpCase::types() const {
  std::vector<TensorType> types;
  for (const std::string& text : operands) types.push_back(*TensorType::Parse(text));
  return types;
}

std::vector<OpCase> OpCases() {
  std::vector<OpCase> cases;
  AddElementwise(cases);
  AddLinear(cases);
  AddShape(cases);
  AddReduce(cases);
  AddIndex(cases);
  AddGather(cases);
  AddSources(cases);
  AddCollectives(cases);
  for (const std::vector<OpCase>& more : {UnevenOpCases(), WindowOpCases(), OrderOpCases()}) {
    cases.insert(cases.end(), more.begin(), more.end());
  }
  for (OpCase& c : cases) {
    if (!c.result.empty()) continue;
    const OpDef* def = Registry::Standard().Find(c.kind);
    MT_CHECK(def != nullptr);
    const auto inferred = def->infer({c.types(), c.attrs});
    MT_CHECK(inferred.ok());
    c.result = (*inferred)[0].ToString();
  }
  return cases;
}

std::vector<testing::Array> DrawOperands(const OpCase& c, uint64_t seed, bool on_grid) {
  std::mt19937_64 random(seed);
  const double low = c.draw == Draw::kPositive   ? 0.3
                     : c.draw == Draw::kNegative ? -1.7
                     : c.draw == Draw::kWide     ? -400
                                                 : -1;
  std::uniform_real_distribution<double> uniform(
      low, c.draw == Draw::kPositive || c.draw == Draw::kNegative ? low + 1.4 : -low);
  const auto number = [&]() -> double {
    if (!on_grid) return uniform(random);
    const auto drawn = static_cast<double>(random() % 128 + 1) / 64;  // (0, 2]
    return c.draw == Draw::kPositive ? drawn : c.draw == Draw::kNegative ? -drawn : 2 * drawn - 2;
  };
  // Off the grid half of them lie at the ends of the type, where sums and products wrap.
  const auto whole = [&](DType dtype) -> testing::Number {
    const auto small = static_cast<testing::Number>(random() % 4);
    const testing::Number signed_small = dtype == DType::kU8 || random() % 2 == 0 ? small : -small;
    if (on_grid || random() % 2 == 0) return signed_small;
    const int bits = dtype == DType::kU8 ? 8 : dtype == DType::kI32 ? 31 : 63;
    return testing::RoundTo(dtype, std::ldexp(testing::Number{1}, bits) + signed_small);
  };
  std::vector<testing::Array> arrays;
  for (const TensorType& type : c.types()) {
    testing::Array a(type);
    const auto at = static_cast<int>(arrays.size());
    const bool data = std::find(c.whole.begin(), c.whole.end(), at) != c.whole.end() &&
                      type.dtype != DType::kBool;
    for (testing::Number& v : a.at) {
      v = data                         ? whole(type.dtype)
          : mesh::IsFloat(type.dtype)  ? number()
          : type.dtype == DType::kBool ? static_cast<double>(random() % 2)
                                       : static_cast<double>(random() % 3);
    }
    arrays.push_back(std::move(a));
  }
  return arrays;
}

Value RecordCase(const OpCase& c, Builder& b, std::vector<Value>* inputs,
                 const std::string& prefix) {
  std::vector<Operand> operands;
  for (const TensorType& type : c.types()) {
    const bool again = c.twice && !inputs->empty();
    if (!again) inputs->push_back(b.Input(prefix + std::to_string(inputs->size()), type));
    operands.emplace_back(inputs->back());
  }
  return b.Append1(c.kind, std::move(operands), c.attrs);
}

testing::Array EvaluateCase(const OpCase& c, const Attrs& attrs,
                            const std::vector<testing::Array>& operands, const TensorType& result) {
  std::vector<const testing::Array*> pointers;
  for (const testing::Array& a : operands) pointers.push_back(&a);
  const Op op{.kind = c.kind, .attrs = attrs};
  const auto results = testing::EvaluateOp(op, pointers, {result}, {.keep = testing::Keep::kReal});
  MT_CHECK(results.ok());
  return (*results)[0];
}

}  // namespace meshtrain::program
