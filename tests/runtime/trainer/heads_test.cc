// A Model of several outputs (CompileOptions::heads) under every strategy: the numbers of one
// device, and predictions by the outputs' names.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "runtime/nn/layers.h"
#include "runtime/nn/model.h"
#include "runtime/strategy/dataset.h"
#include "runtime/trainer/model.h"
#include "tests/runtime/strategy/strategy_testing.h"

namespace meshtrain::trainer {
namespace {

using mesh::DType;
using mesh::Tensor;
using ::testing::HasSubstr;

// No number of replicas divides them, nor the last batch of 6.
constexpr int64_t kExamples = 22, kFeatures = 6, kBatch = 8;

// x, digit, odd: in f64, so that what is left of a difference is rounding.
data::MemoryArrays Examples() {
  Tensor x(mesh::TensorType{DType::kF64, {kExamples, kFeatures}});
  Tensor digit(mesh::TensorType{DType::kI32, {kExamples}});
  Tensor odd(mesh::TensorType{DType::kF64, {kExamples}});
  for (int64_t i = 0; i < kExamples * kFeatures; ++i) {
    x.mutable_values<double>()[static_cast<size_t>(i)] = std::sin(static_cast<double>(i * i));
  }
  for (int64_t i = 0; i < kExamples; ++i) {
    const auto at = static_cast<size_t>(i);
    digit.mutable_values<int32_t>()[at] = static_cast<int32_t>(i * i % 4);
    odd.mutable_values<double>()[at] = static_cast<double>(i * i % 2);
  }
  return {.components = {x, digit, odd}, .names = {"x", "digit", "odd"}};
}

data::PipelineSpec SpecOf(data::MemoryArrays arrays) {
  return {.source = {.from = std::move(arrays)}, .stages = {data::BatchStage{kBatch}}};
}

std::shared_ptr<nn::Layer> TwoOutputs() {
  const nn::Symbol x = nn::Input();
  const nn::Symbol wide =
      nn::Apply(nn::Make<nn::Dense>(8, nn::DenseOptions{.name = "wide",
                                                        .activation = nn::ActivationKind::kTanh,
                                                        .kernel_regularizer = nn::L2(0.01)}),
                x);
  return std::make_shared<nn::Functional>(
      std::vector<nn::Symbol>{x},
      std::vector<nn::NamedSymbol>{
          {"digit", nn::Apply(nn::Make<nn::Dense>(4, nn::DenseOptions{.name = "digit"}), wide)},
          {"parity", nn::Apply(nn::Make<nn::Dense>(1, nn::DenseOptions{.name = "parity"}), wide)}});
}

CompileOptions Options() {
  const train::losses::CrossentropyOptions logits{.from_logits = true};
  return {.optimizer = train::Adam({.common = {.learning_rate = 0.05, .global_clipnorm = 0.2}}),
          .heads = {{.output = "digit",
                     .labels = "digit",
                     .loss = train::losses::SparseCategoricalCrossentropy(logits),
                     .metrics = {train::metrics::Accuracy(), train::metrics::Perplexity()}},
                    {.output = "parity",
                     .labels = "odd",
                     .loss = train::losses::BinaryCrossentropy(logits),
                     .weight = 0.3,
                     .metrics = {train::metrics::Auc()}}}};
}

const char* const kFigures[] = {"loss",        "digit_loss", "digit_accuracy", "digit_perplexity",
                                "parity_loss", "parity_auc"};

struct Fitted {
  std::map<std::string, std::vector<double>> figures;  // of epochs, validations and an evaluation
  Tensor kernel;
  Model::NamedTensors predicted;
};

// Batches of 8, 8 and 6 examples. `own`: each worker of parameter servers reads the data itself.
Result<Fitted> FitTwo(strategy::Strategy& strategy, int64_t parts = 1, bool own = false) {
  const auto layer = TwoOutputs();
  Model model(layer, strategy);
  CompileOptions options = Options();
  options.accumulate = parts;
  MT_RETURN_IF_ERROR(model.Compile(std::move(options)));
  MT_ASSIGN_OR_RETURN(const auto data, data::Pipeline::Create(SpecOf(Examples())));
  MT_ASSIGN_OR_RETURN(const auto validation, data::Pipeline::Create(SpecOf(Examples())));
  const FitOptions fit{.epochs = 3, .validation = validation.get()};
  auto history = own ? model.Fit(NamedData{"two", SpecOf(Examples())}, fit) : model.Fit(*data, fit);
  MT_RETURN_IF_ERROR(history.status());
  MT_ASSIGN_OR_RETURN(const train::Scalars evaluated, model.Evaluate(*validation));
  Fitted out;
  for (const std::string figure : kFigures) {
    std::vector<double>& all = out.figures[figure] = history->Of(figure);
    MT_WANT(all.size() == 3);
    for (const double validated : history->Of("val_" + figure)) all.push_back(validated);
    MT_WANT(all.size() == 6);
    MT_WANT(train::FindScalar(evaluated, figure).has_value());
    all.push_back(*train::FindScalar(evaluated, figure));
  }
  MT_WANT(evaluated.size() == std::size(kFigures));
  MT_ASSIGN_OR_RETURN(out.kernel, strategy.Read(layer->parameters()[0]));
  MT_ASSIGN_OR_RETURN(out.predicted, model.PredictOutputs(*data));
  return out;
}

Status Near(const Tensor& got, const Tensor& want) {
  MT_WANT(got.type() == want.type());
  const auto a = got.values<double>(), b = want.values<double>();
  for (size_t i = 0; i < a.size(); ++i) MT_WANT(std::abs(a[i] - b[i]) < 1e-10);
  return OkStatus();
}

Status Same(const Fitted& got, const Fitted& want) {
  for (const auto& [name, figures] : want.figures) {
    for (size_t i = 0; i < figures.size(); ++i) {
      // Accuracies and losses' sums of perplexity are of f32 and f64.
      const double apart = std::abs(got.figures.at(name)[i] - figures[i]);
      if (apart < (name.ends_with("accuracy") ? 1e-6 : 1e-10)) continue;
      return Internal(name + " " + std::to_string(i) + ": " + std::to_string(apart) + " apart");
    }
  }
  MT_RETURN_IF_ERROR(Near(got.kernel, want.kernel));
  MT_WANT(got.predicted.size() == 2);
  for (const auto& [name, tensor] : want.predicted) {
    MT_RETURN_IF_ERROR(Near(got.predicted.at(name), tensor).At(name));
  }
  return OkStatus();
}

const Fitted& OnOneDevice() {
  static const Fitted kFitted = FitTwo(*strategy::Strategy::OneDevice("cpu:0").value()).value();
  return kFitted;
}

class HeadsTest : public ::testing::TestWithParam<strategy::StrategyCase> {};
INSTANTIATE_TEST_SUITE_P(Strategies, HeadsTest, ::testing::ValuesIn(strategy::ModelStrategies()),
                         [](const auto& info) { return info.param.name; });

TEST_P(HeadsTest, GiveTheNumbersOfOneDevice) {
  const Fitted& want = OnOneDevice();
  ASSERT_LT(want.figures.at("loss")[2], want.figures.at("loss")[0]);
  EXPECT_EQ(want.predicted.at("digit").type(), (mesh::TensorType{DType::kF64, {kExamples, 4}}));
  EXPECT_EQ(want.predicted.at("parity").type(), (mesh::TensorType{DType::kF64, {kExamples, 1}}));
  for (const int64_t parts : {1, 3}) {
    strategy::ForStrategy(GetParam(), [&](strategy::Strategy& strategy) -> Status {
      MT_ASSIGN_OR_RETURN(const Fitted got, FitTwo(strategy, parts));
      return Same(got, want).At(std::to_string(parts) + " parts");
    });
  }
}

TEST(HeadsDataTest, AWorkerReadsItsDataItself) {
  strategy::ForStrategy(strategy::ParameterServers(1), [&](strategy::Strategy& strategy) -> Status {
    MT_ASSIGN_OR_RETURN(const Fitted got, FitTwo(strategy, 1, /*own=*/true));
    return Same(got, OnOneDevice());
  });
}

TEST(HeadsMeshTest, OnEveryMesh) {
  for (const char* text : {"batch=2", "batch=2,model=2", "model=4"}) {
    for (const bool isolated : {false, true}) {
      const mesh::Mesh mesh = mesh::Mesh::Parse(text).value();
      nn::LayoutMap layouts;
      if (mesh.FindAxis("model")) {
        ASSERT_TRUE(layouts.Add("wide.kernel", {mesh::UNSHARDED, "model"}).ok());
        ASSERT_TRUE(layouts.Add("wide.bias", {"model"}).ok());
        ASSERT_TRUE(layouts.Add("digit.kernel", {mesh::UNSHARDED, "model"}).ok());
        ASSERT_TRUE(layouts.Add("parity.kernel", {"model", mesh::UNSHARDED}).ok());
      }
      const auto strategy =
          strategy::Strategy::Mesh(
              {.mesh = mesh, .layouts = std::move(layouts), .common = {.isolated = isolated}})
              .value();
      for (const int64_t parts : {1, 2}) {
        const auto got = FitTwo(*strategy, parts);
        ASSERT_TRUE(got.ok()) << text << isolated << ": " << got.status().ToString();
        const Status same = Same(*got, OnOneDevice());
        EXPECT_TRUE(same.ok()) << text << isolated << ": " << same.message();
      }
    }
  }
}

class HeadsModelTest : public ::testing::Test {
 protected:
  const std::unique_ptr<strategy::ReplicaStrategy> strategy_ =
      strategy::Strategy::Default().value();
  Model model_{TwoOutputs(), *strategy_};
  const Tensor x_ = Examples().components[0];
};

TEST_F(HeadsModelTest, PredictionsOfSeveralOutputsAreAskedForByName) {
  const std::string refused = "predict: expected a model of one output (";
  const auto data = data::Pipeline::Create(SpecOf(Examples())).value();
  EXPECT_EQ(model_.Predict(x_, 5).status().message(),
            refused + "PredictOutputs gives all), got: digit, parity");
  EXPECT_THAT(model_.Predict(*data).status().message(), HasSubstr("PredictOutputs gives all"));
  EXPECT_EQ(model_.PredictOnBatch(x_).status().message(),
            refused + "PredictOutputsOnBatch gives all), got: digit, parity");
  const auto all = model_.PredictOutputs(x_, 5), at_once = model_.PredictOutputsOnBatch({&x_, 1});
  ASSERT_TRUE(all.ok() && at_once.ok()) << all.status().ToString();
  ASSERT_EQ(all->size(), 2u);
  for (const auto& [name, tensor] : *all) {
    EXPECT_TRUE(Near(tensor, at_once->at(name)).ok()) << name;
  }
  Model one(std::make_shared<nn::Sequential>(nn::Dense(3)), *strategy_);
  const auto only = one.PredictOutputs(x_, 5);
  ASSERT_TRUE(only.ok() && only->contains(""));
  EXPECT_TRUE(Near(only->at(""), one.Predict(x_, 5).value()).ok());
}

TEST_F(HeadsModelTest, AModelIsCompiledWithHeadsOrWithALoss) {
  for (const auto& add : std::vector<std::function<void(CompileOptions&)>>{
           [](CompileOptions& o) { o.loss = train::losses::MeanSquaredError(); },
           [](CompileOptions& o) { o.metrics = {train::metrics::Accuracy()}; },
           [](CompileOptions& o) { o.labels = "odd"; }}) {
    CompileOptions options = Options();
    add(options);
    EXPECT_THAT(model_.Compile(options).message(), HasSubstr("compile: expected either heads"));
  }
  CompileOptions one = Options();
  one.heads.pop_back();
  ASSERT_TRUE(model_.Compile(one).ok());
  const auto data = data::Pipeline::Create(SpecOf(Examples())).value();
  EXPECT_THAT(model_.Fit(*data).status().message(),
              HasSubstr("heads: expected one for each of the model's outputs, `digit`, `parity`, "
                        "got: none of `parity`"));
}

// Of each head the labels are looked at, from a pipeline as from anywhere.
TEST_F(HeadsModelTest, LabelsOfEachHeadAreLookedAt) {
  ASSERT_TRUE(model_.Compile(Options()).ok());
  for (const size_t component : {1u, 2u}) {
    data::MemoryArrays arrays = Examples();
    Tensor& labels = arrays.components[component];
    if (component == 1) labels.mutable_values<int32_t>()[9] = 4;
    if (component == 2) labels.mutable_values<double>()[9] = 3;
    const std::string what = component == 1 ? "label 4, but 4 classes" : "label 3, but 2 classes";
    const auto data = data::Pipeline::Create(SpecOf(arrays)).value();
    EXPECT_THAT(model_.Fit(*data).status().message(), HasSubstr("example 9: " + what));
    const auto source = data::Pipeline::Create(SpecOf(arrays)).value();
    strategy::PipelineBatches batches(*source);
    EXPECT_THAT(model_.Fit(batches, source->BatchTypes(kBatch)).status().message(),
                HasSubstr("batch 1: example 1: " + what));
  }
}

}  // namespace
}  // namespace meshtrain::trainer
