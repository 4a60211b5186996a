#include "runtime/nn/layout_map.h"

#include <gtest/gtest.h>

#include "runtime/nn/model.h"

namespace meshtrain::nn {
namespace {

using program::Builder;
using program::DType;

const LayoutSpecs kColumns = {"unsharded", "model"};
const LayoutSpecs kRows = {"model", "unsharded"};

Parameter Weight(std::string path, program::Dims dims) {
  return Parameter(std::move(path), TensorType{DType::kF32, std::move(dims)}, Initializer::Zeros());
}

TEST(LayoutMapTest, KeysMatchFromTheStartOfThePath) {
  LayoutMap map;
  ASSERT_TRUE(map.Add("feature.*kernel", kColumns).ok());
  struct Case {
    std::string path;
    bool matches;
  };
  for (const Case& c : {Case{"feature.kernel", true}, Case{"feature_2.kernel", true},
                        Case{"feature.kernel_2", true}, Case{"my_feature.kernel", false},
                        Case{"feature.bias", false}, Case{"kernel", false}}) {
    EXPECT_EQ(map.Find(c.path).has_value(), c.matches) << c.path;
  }
}

TEST(LayoutMapTest, TheFirstKeyThatMatchesWins) {
  LayoutMap map;
  ASSERT_TRUE(map.Add("feature_2", kRows).ok());
  ASSERT_TRUE(map.Add("feature", kColumns).ok());
  EXPECT_EQ(map.specs(*map.Find("feature_2.kernel")), kRows);
  EXPECT_EQ(map.specs(*map.Find("feature.kernel")), kColumns);
}

TEST(LayoutMapTest, RefusesAKeyTwiceAndWhatIsNoExpression) {
  LayoutMap map;
  ASSERT_TRUE(map.Add("a", kRows).ok());
  EXPECT_EQ(map.Add("a", kColumns).message(), "layout key `a` is there already");
  EXPECT_EQ(map.Add("a(", kColumns).message(),
            "layout key `a(` is not a regular expression: missing ): a(");
}

TEST(LayoutMapTest, ApplyGivesLayoutsOnlyWhereThereAreNone) {
  LayoutMap map;
  ASSERT_TRUE(map.Add("hidden.*kernel", kColumns).ok());
  std::vector<Parameter> weights = {Weight("hidden_1.kernel", {4, 6}), Weight("hidden_1.bias", {6}),
                                    Parameter("hidden_2.kernel", TensorType{DType::kF32, {6, 6}},
                                              Initializer::Zeros(), {.layout = kRows})};
  ASSERT_TRUE(map.Apply(weights).ok());
  EXPECT_EQ(weights[0].layout(), kColumns);
  EXPECT_EQ(weights[1].layout(), std::nullopt);
  EXPECT_EQ(weights[2].layout(), kRows);
}

TEST(LayoutMapTest, ARuleThatMatchesNothingNamesNearPaths) {
  LayoutMap map;
  ASSERT_TRUE(map.Add("hiden_1.*kernel", kColumns).ok());
  std::vector<Parameter> weights = {Weight("hidden_1.kernel", {4, 6}), Weight("hidden_1.bias", {6}),
                                    Weight("logits.kernel", {6, 2})};
  EXPECT_EQ(map.Apply(weights).message(),
            "layout rule `hiden_1.*kernel` matches no parameter (rules match from the start of a "
            "path); near: "
            "hidden_1.kernel");
  LayoutMap unanchored;
  ASSERT_TRUE(unanchored.Add("kernel", kColumns).ok());
  EXPECT_EQ(
      unanchored.Apply(weights).message(),
      "layout rule `kernel` matches no parameter (rules match from the start of a path); near: "
      "hidden_1.kernel, logits.kernel");
}

TEST(LayoutMapTest, ARuleBehindAnotherThatTakesAllItsPathsIsAnError) {
  LayoutMap map;
  ASSERT_TRUE(map.Add(".*kernel", kColumns).ok());
  ASSERT_TRUE(map.Add("logits", kRows).ok());
  std::vector<Parameter> weights = {Weight("logits.kernel", {6, 2})};
  EXPECT_EQ(map.Apply(weights).message(),
            "layout rule `logits` is never used: `logits.kernel` matches `.*kernel` first");
}

TEST(LayoutMapTest, ARuleOfAnotherRankNamesTheWeight) {
  LayoutMap map;
  ASSERT_TRUE(map.Add("logits", kColumns).ok());
  std::vector<Parameter> weights = {Weight("logits.kernel", {6, 2}), Weight("logits.bias", {2})};
  EXPECT_EQ(map.Apply(weights).message(),
            "layout rule `logits`: layout [unsharded, model] has 2 entries, but `logits.bias` has "
            "rank 1");
}

class TwoFeatures : public Layer {
 public:
  Dense feature{3, {.name = "feature"}};
  Dense feature_2{2, {.name = "feature_2"}};

 protected:
  Value Call(const Value& x) override { return feature_2(feature(x)); }
};

// The same three kinds of model as the Keras tutorial.
TEST(LayoutMapTest, AScopeReachesSequentialFunctionalAndComposedModels) {
  LayoutMap map;
  ASSERT_TRUE(map.Add("feature.*kernel", kColumns).ok());
  ASSERT_TRUE(map.Add("feature.*bias", LayoutSpecs{"model"}).ok());

  std::vector<std::shared_ptr<Layer>> models;
  models.push_back(
      std::make_shared<Sequential>(Dense(3, {.name = "feature"}), Dense(2, {.name = "feature_2"})));
  const Symbol x = Input();
  models.push_back(std::make_shared<Functional>(
      std::vector<Symbol>{x}, Apply(Make<Dense>(2, DenseOptions{.name = "feature_2"}),
                                    Apply(Make<Dense>(3, DenseOptions{.name = "feature"}), x))));
  models.push_back(std::make_shared<TwoFeatures>());

  for (const auto& model : models) {
    Builder b("model");
    Builder::Scope scope(b);
    {
      LayoutMap::Scope layouts(map);
      b.Output("y", (*model)(b.Input("x", {DType::kF32, {8, 4}})));
    }
    ASSERT_TRUE(b.Build().ok());
    ASSERT_EQ(model->parameters().size(), 4u) << model->kind();
    EXPECT_EQ(model->parameters()[0].name(), "feature.kernel");
    EXPECT_EQ(model->parameters()[0].layout(), kColumns);
    EXPECT_EQ(model->parameters()[1].name(), "feature.bias");
    EXPECT_EQ(model->parameters()[1].layout(), LayoutSpecs{"model"});
    EXPECT_EQ(model->parameters()[2].name(), "feature_2.kernel");
    EXPECT_EQ(model->parameters()[2].layout(), kColumns);
    EXPECT_EQ(model->parameters()[3].name(), "feature_2.bias");
    EXPECT_EQ(model->parameters()[3].layout(), LayoutSpecs{"model"});
  }
  EXPECT_EQ(LayoutMap::Current(), nullptr);
}

}  // namespace
}  // namespace meshtrain::nn
