// Layers that join inputs element by element, and those that only move values: results and
// refusals.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "runtime/nn/model.h"
#include "runtime/program/ops.h"
#include "tests/support/interpreter/interpreter.h"

namespace meshtrain::nn {
namespace {

using program::Builder;
using program::DType;
using program::Program;
using testing::Array;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::Number;

Result<Array> Made(Layer& layer, const std::vector<Array>& inputs) {
  Builder b("layer");
  const Builder::Scope scope(b);
  testing::StepInput feed;
  std::vector<Value> values;
  for (const Array& input : inputs) {
    const std::string name = "x" + std::to_string(values.size());
    values.push_back(b.Input(name, input.type));
    feed.inputs[name] = input;
  }
  b.Output("y", layer(values));
  MT_ASSIGN_OR_RETURN(const Program program, b.Build());
  MT_ASSIGN_OR_RETURN(const testing::StepResult result, testing::Interpret(program, feed));
  return result.outputs.at("y");
}

Array Of(mesh::Dims dims, std::vector<double> numbers) {
  return Array({DType::kF64, std::move(dims)}, numbers);
}

TEST(MergeTest, GivesOneOfItsInputsElementByElement) {
  const std::vector<Array> three = {Of({2, 1}, {1, -2}), Of({2, 1}, {4, 3}), Of({2, 1}, {-8, 5})};
  const auto merged = [](MergeKind kind, const std::vector<Array>& inputs) {
    Merge layer(kind);
    return Made(layer, inputs).value().at;
  };
  EXPECT_THAT(merged(MergeKind::kAdd, three), ElementsAre(-3, 6));
  EXPECT_THAT(merged(MergeKind::kMultiply, three), ElementsAre(-32, -30));
  EXPECT_THAT(merged(MergeKind::kAverage, three), ElementsAre(-1, 2));
  EXPECT_THAT(merged(MergeKind::kMaximum, three), ElementsAre(4, 5));
  EXPECT_THAT(merged(MergeKind::kMinimum, three), ElementsAre(-8, -2));
  EXPECT_THAT(merged(MergeKind::kSubtract, {three[0], three[1]}), ElementsAre(-3, -5));
}

TEST(MergeTest, RefusesOtherTypesAndCounts) {
  Multiply product("product");
  EXPECT_THAT(Made(product, {Of({2}, {1, 2}), Of({1}, {1})}).status().message(),
              HasSubstr("product: multiply takes inputs of one type, got: f64[2] and f64[1]"));
  Merge subtract(MergeKind::kSubtract, "less");
  EXPECT_THAT(Made(subtract, {Of({1}, {1})}).status().message(),
              HasSubstr("less: subtract takes two inputs, got: 1"));
}

TEST(PermuteTest, OrdersTheDimensionsOfEachExample) {
  Permute turned({2, 1});
  const Array y = Made(turned, {Of({1, 2, 3}, {1, 2, 3, 4, 5, 6})}).value();
  EXPECT_EQ(y.type.ToString(), "f64[1,3,2]");
  EXPECT_THAT(y.at, ElementsAre(1, 4, 2, 5, 3, 6));
  for (const std::vector<int64_t>& dims : {std::vector<int64_t>{1, 1}, {0, 1}, {1}, {1, 2, 3}}) {
    Permute wrong(dims, "it");
    EXPECT_THAT(Made(wrong, {Of({1, 2, 1}, {1, 2})}).status().message(),
                HasSubstr("it: dims must name each dimension of an example once, from 1 to 2 of "
                          "f64[1,2,1], got: "));
  }
}

TEST(RepeatVectorTest, SetsAnExampleBesideItself) {
  RepeatVector twice(2);
  const Array y = Made(twice, {Of({2, 2}, {1, 2, 3, 4})}).value();
  EXPECT_EQ(y.type.ToString(), "f64[2,2,2]");
  EXPECT_THAT(y.at, ElementsAre(1, 2, 1, 2, 3, 4, 3, 4));
  EXPECT_THAT(Made(twice, {Of({2}, {1, 2})}).status().message(),
              HasSubstr("repeat_vector takes [N, D], got: f64[2]"));
  RepeatVector never(0);
  EXPECT_THAT(Made(never, {Of({1, 1}, {1})}).status().message(),
              HasSubstr("n must be at least 1, got: 0"));
}

}  // namespace
}  // namespace meshtrain::nn
