// Compile, Fit, Evaluate, Predict under every strategy, with the numbers of the Keras example.
#include "runtime/trainer/model.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "runtime/nn/layers.h"
#include "runtime/nn/model.h"
#include "runtime/program/ops.h"
#include "runtime/strategy/dataset.h"
#include "runtime/train/callbacks.h"
#include "runtime/trainer/progress_bar.h"
#include "runtime/trainer/tensorboard.h"
#include "tests/runtime/strategy/strategy_testing.h"

namespace meshtrain::trainer {
namespace {

using mesh::DType;
using mesh::Tensor;
using program::Value;
using ::testing::HasSubstr;

Tensor Ones(int64_t n) {
  return strategy::Floats({n, 1}, std::vector<float>(static_cast<size_t>(n), 1));
}

std::shared_ptr<nn::Layer> DenseOne(double w0, double l2) {
  nn::DenseOptions options{.kernel_initializer = nn::Initializer::Constant(w0)};
  if (l2 != 0) options.kernel_regularizer = nn::L2(l2);
  return std::make_shared<nn::Sequential>(nn::Dense(1, options));
}

CompileOptions Mse(double learning_rate) {
  return {.loss = train::losses::MeanSquaredError(),
          .optimizer = train::Sgd({.common = {.learning_rate = learning_rate}})};
}

class ModelTest : public ::testing::TestWithParam<strategy::StrategyCase> {};
INSTANTIATE_TEST_SUITE_P(Strategies, ModelTest, ::testing::ValuesIn(strategy::ModelStrategies()),
                         [](const auto& info) { return info.param.name; });

class ModelAndLoopTest : public ::testing::TestWithParam<strategy::StrategyCase> {};
INSTANTIATE_TEST_SUITE_P(Strategies, ModelAndLoopTest,
                         ::testing::ValuesIn(strategy::AllStrategies()),
                         [](const auto& info) { return info.param.name; });

bool Near(const std::vector<double>& got, const std::vector<double>& want, double tolerance) {
  if (got.size() != want.size()) return false;
  for (size_t i = 0; i < got.size(); ++i) {
    if (!(std::abs(got[i] - want[i]) <= tolerance)) return false;
  }
  return true;
}

// The Keras example: Dense(1), kernel L2 1e-4, mse, SGD 0.01, ([1], [1]) x 100 in batches of 10.
TEST_P(ModelTest, FitEvaluateFitGivesTheTutorialsFigures) {
  const strategy::Guide& guide = strategy::GuideNumbers();
  strategy::ForStrategy(GetParam(), [&](strategy::Strategy& strategy) -> Status {
    const auto scope = strategy.Scope();
    Model model(DenseOne(guide.fit_w0, 1e-4));
    MT_RETURN_IF_ERROR(model.Compile(Mse(0.01)));
    MT_ASSIGN_OR_RETURN(const auto data, strategy::ArraysPipeline({Ones(100), Ones(100)}, 10));
    MT_ASSIGN_OR_RETURN(const History first, model.Fit(*data, {.epochs = 2}));
    MT_ASSIGN_OR_RETURN(const train::Scalars evaluated, model.Evaluate(*data));
    MT_ASSIGN_OR_RETURN(const History second,
                        model.Fit(Arrays{Ones(100), Ones(100), 10}, {.epochs = 2}));
    MT_WANT(model.steps() == 40);

    // Ours: the mean over each epoch's examples.
    std::vector<double> ours = first.Of("loss");
    ours.push_back(train::FindScalar(evaluated, "loss").value());
    for (const double loss : second.Of("loss")) ours.push_back(loss);
    MT_WANT(Near(ours, guide.fit, 1e-6));

    // Keras': what its progress bar makes of them; the tutorial prints four digits, cut or rounded.
    std::vector<double> bar;
    for (const train::Scalars& s : first.keras_bar) {
      bar.push_back(train::FindScalar(s, "loss").value());
    }
    bar.push_back(ours[2]);
    for (const train::Scalars& s : second.keras_bar) {
      bar.push_back(train::FindScalar(s, "loss").value());
    }
    MT_WANT(Near(bar, guide.fit_bar, 1e-6));
    MT_WANT(Near(bar, guide.fit_printed, 1e-4));
    return OkStatus();
  });
}

TEST_P(ModelTest, FitsAsTensorFlowDid) {
  std::ifstream file(MT_TESTDATA "/guide/tf_strategies.json");
  const nlohmann::json fit = nlohmann::json::parse(file).at("fit");
  strategy::ForStrategy(GetParam(), [&](strategy::Strategy& strategy) -> Status {
    Model model(DenseOne(fit.at("w0"), 1e-4), strategy);
    MT_RETURN_IF_ERROR(model.Compile(Mse(0.01)));
    const Arrays ones{Ones(100), Ones(100), 10};
    MT_ASSIGN_OR_RETURN(const History first, model.Fit(ones, {.epochs = 2}));
    MT_WANT(Near(first.Of("loss"), fit.at("loss").get<std::vector<double>>(), 1e-6));
    MT_ASSIGN_OR_RETURN(const train::Scalars evaluated, model.Evaluate(ones));
    MT_WANT(std::abs(train::FindScalar(evaluated, "loss").value() -
                     fit.at("evaluate").get<double>()) <= 1e-6);
    MT_ASSIGN_OR_RETURN(const History second, model.Fit(ones, {.epochs = 2}));
    MT_WANT(Near(second.Of("loss"), fit.at("loss_numpy").get<std::vector<double>>(), 1e-6));
    return OkStatus();
  });
}

TEST_P(ModelTest, FiveEpochsOfTenStepsDriveTheLossToZeroAndPredictGivesOne) {
  strategy::ForStrategy(GetParam(), [&](strategy::Strategy& strategy) -> Status {
    const auto scope = strategy.Scope();
    Model model(DenseOne(0.194, 0));
    MT_RETURN_IF_ERROR(model.Compile(Mse(0.1)));
    MT_ASSIGN_OR_RETURN(const auto data, strategy::ArraysPipeline({Ones(70), Ones(70)},
                                                                  10));  // passes of seven steps
    MT_ASSIGN_OR_RETURN(const History history,
                        model.Fit(*data, {.epochs = 5, .steps_per_epoch = 10}));
    MT_WANT(model.steps() == 50);
    const std::vector<double> losses = history.Of("loss");
    MT_WANT(losses.size() == 5 && losses[4] < 1e-6);
    for (size_t i = 1; i < losses.size(); ++i) MT_WANT(losses[i] < losses[i - 1]);
    MT_ASSIGN_OR_RETURN(const Tensor ones, model.Predict(Ones(7), 4));
    MT_WANT(ones.dims() == (mesh::Dims{7, 1}));
    for (const float p : strategy::FloatsOf(ones)) MT_WANT(std::abs(p - 1) < 1e-6);
    return OkStatus();
  });
}

TEST_P(ModelTest, TakesSeveralInputsByTheirNames) {
  // left - right, of data whose components stand in another order than the model takes them.
  constexpr int64_t kExamples = 32;
  std::vector<float> left, right, difference;
  for (int64_t i = 0; i < kExamples; ++i) {
    left.push_back(static_cast<float>(i % 5));
    right.push_back(static_cast<float>(i % 3));
    difference.push_back(left.back() - right.back());
  }
  const std::vector<Tensor> components = {strategy::Floats({kExamples, 1}, right),
                                          strategy::Floats({kExamples, 1}, difference),
                                          strategy::Floats({kExamples, 1}, left)};
  strategy::ForStrategy(GetParam(), [&](strategy::Strategy& strategy) -> Status {
    const auto scope = strategy.Scope();
    const nn::Symbol a = nn::Input(), b = nn::Input();
    const auto weight = [](double w0) {
      return nn::Make<nn::Dense>(
          1, nn::DenseOptions{.kernel_initializer = nn::Initializer::Constant(w0)});
    };
    Model model(std::make_shared<nn::Functional>(
        std::vector<nn::Symbol>{a, b},
        nn::Apply(nn::Make<nn::Add>(),
                  std::vector<nn::Symbol>{nn::Apply(weight(0.5), a), nn::Apply(weight(0), b)})));
    CompileOptions options = Mse(0.05);
    options.labels = "difference";
    options.inputs = {"left", "right"};
    MT_RETURN_IF_ERROR(model.Compile(options));
    MT_ASSIGN_OR_RETURN(const auto data,
                        strategy::ArraysPipeline(components, 8, {"right", "difference", "left"}));
    MT_ASSIGN_OR_RETURN(const History history, model.Fit(*data, {.epochs = 60}));
    MT_WANT(history.Of("loss").back() < 0.01);
    // Predictions need no labels.
    MT_ASSIGN_OR_RETURN(
        const auto unlabelled,
        strategy::ArraysPipeline({components[2], components[0]}, 8, {"left", "right"}));
    MT_ASSIGN_OR_RETURN(const Tensor predicted, model.Predict(*unlabelled));
    for (int64_t i = 0; i < kExamples; ++i) {
      MT_WANT(std::abs(strategy::FloatsOf(predicted)[i] - difference[i]) < 0.3);
    }
    const Status other = model.Fit(Arrays{components[0], components[1], 8}).status();
    MT_WANT(other.message() == "model: expected data of right, difference, left, got: x, y");
    return OkStatus();
  });
}

TEST_P(ModelTest, ACallbackSavesTheStepAtHand) {
  std::string folder = (std::filesystem::temp_directory_path() / "model-callback-XXXXXX").string();
  ASSERT_NE(::mkdtemp(folder.data()), nullptr);
  strategy::ForStrategy(GetParam(), [&](strategy::Strategy& strategy) -> Status {
    Model model(DenseOne(0.2, 0), strategy);
    MT_RETURN_IF_ERROR(model.Compile(Mse(0.1)));
    train::FunctionCallback save;
    std::vector<int64_t> steps;
    std::vector<float> weights;
    save.on_epoch_end = [&](const train::EpochInfo&) -> Status {
      steps.push_back(model.steps());
      MT_ASSIGN_OR_RETURN(const Tensor w, strategy.Read(model.parameters()[0]));
      weights.push_back(strategy::FloatsOf(w)[0]);
      return model.Save(folder).status();
    };
    MT_RETURN_IF_ERROR(
        model.Fit(Arrays{Ones(30), Ones(30), 10}, {.epochs = 2, .callbacks = {&save}}).status());
    MT_WANT(steps == (std::vector<int64_t>{3, 6}));
    if (!strategy.chief()) return OkStatus();
    for (const char* name : {"ckpt-00000003", "ckpt-00000006"}) {
      MT_WANT(std::filesystem::exists(folder + "/" + name));
    }
    // The newest is that of the second epoch.
    const auto other = strategy::Strategy::OneDevice("cpu:0").value();
    Model again(DenseOne(0, 0), *other);
    MT_RETURN_IF_ERROR(again.Restore(folder));
    MT_RETURN_IF_ERROR(again.Build(Ones(1).type()));
    MT_WANT(again.steps() == 6);
    MT_WANT(strategy::FloatsOf(other->Read(again.parameters()[0]).value())[0] == weights[1]);
    return OkStatus();
  });
  std::filesystem::remove_all(folder);
}

// --- batches that do not divide, metrics, validation

std::vector<Tensor> Examples(int64_t n) {
  Tensor x(mesh::TensorType{DType::kF32, {n, 4}}), y(mesh::TensorType{DType::kI32, {n}});
  for (int64_t i = 0; i < n * 4; ++i) {
    x.mutable_values<float>()[static_cast<size_t>(i)] = std::sin(static_cast<float>(i));
  }
  for (int64_t i = 0; i < n; ++i) {
    y.mutable_values<int32_t>()[static_cast<size_t>(i)] = static_cast<int32_t>(i * i % 3);
  }
  return {x, y};
}

std::shared_ptr<nn::Layer> Classifier() {
  return std::make_shared<nn::Sequential>(nn::Dense(5, {.activation = nn::ActivationKind::kTanh}),
                                          nn::Dense(3));
}

Result<History> FitExamples(Model& model, int64_t batch) {
  MT_RETURN_IF_ERROR(
      model.Compile({.loss = train::losses::SparseCategoricalCrossentropy({.from_logits = true}),
                     .optimizer = train::Adam({.common = {.learning_rate = 0.05}}),
                     .metrics = {train::metrics::Accuracy()}}));
  MT_ASSIGN_OR_RETURN(const auto data, strategy::ArraysPipeline(Examples(11), batch));
  MT_ASSIGN_OR_RETURN(const auto validation, strategy::ArraysPipeline(Examples(5), 3));
  return model.Fit(*data, {.epochs = 3, .validation = validation.get()});
}

TEST_P(ModelTest, UnevenBatchesGiveTheNumbersOfOneDevice) {
  const auto one = strategy::Strategy::OneDevice("cpu:0").value();
  for (const int64_t batch : {1, 4, 7}) {
    Model reference(Classifier(), *one);
    const History want = FitExamples(reference, batch).value();
    ASSERT_EQ(want.Of("val_loss").size(), 3u);
    strategy::ForStrategy(GetParam(), [&](strategy::Strategy& strategy) -> Status {
      Model model(Classifier(), strategy);
      MT_ASSIGN_OR_RETURN(const History got, FitExamples(model, batch));
      for (const char* name : {"loss", "accuracy", "val_loss", "val_accuracy"}) {
        MT_WANT(Near(got.Of(name), want.Of(name), 2e-5));
      }
      return OkStatus();
    });
  }
}

// The losses and hits of a classifier that predicts x itself, in f64.
std::vector<double> MeansOverExamples(const std::vector<Tensor>& data) {
  const int64_t n = data[0].dims()[0], classes = data[0].dims()[1];
  double loss = 0, hits = 0;
  for (int64_t i = 0; i < n; ++i) {
    const float* x = data[0].values<float>().data() + i * classes;
    const int32_t y = data[1].values<int32_t>()[static_cast<size_t>(i)];
    double sum = 0;
    for (int64_t c = 0; c < classes; ++c) sum += std::exp(static_cast<double>(x[c]));
    loss += std::log(sum) - static_cast<double>(x[y]);
    hits += std::max_element(x, x + classes) - x == y ? 1 : 0;
  }
  return {loss / static_cast<double>(n), hits / static_cast<double>(n)};
}

// Weights that never change: each epoch's figures, validation's and Evaluate's are those of the
// examples, whatever batches and replicas they come in. Of three replicas, the last batch of one
// leaves two without an example.
TEST_P(ModelTest, FiguresAreMeansOverExamplesWhateverTheBatches) {
  const std::vector<Tensor> data = Examples(13);
  const std::vector<double> want = MeansOverExamples(data);
  for (const int64_t batch : {5, 6, 13}) {
    strategy::ForStrategy(GetParam(), [&](strategy::Strategy& strategy) -> Status {
      const auto layer = std::make_shared<nn::Sequential>(nn::Dense(4, {.use_bias = false}));
      Model model(layer, strategy);
      MT_RETURN_IF_ERROR(model.Build(mesh::TensorType{DType::kF32, {batch, 4}}));
      const Tensor same =
          strategy::Floats({4, 4}, {1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1});
      MT_RETURN_IF_ERROR(strategy.Assign(model.parameters()[0], same));
      // Whether the gradient is of a mean or of a sum, the figure is the mean.
      const auto reduction = batch == 6 ? train::LossReduction::kSum : train::LossReduction::kMean;
      MT_RETURN_IF_ERROR(model.Compile({.loss = train::losses::SparseCategoricalCrossentropy(
                                            {.from_logits = true, .reduction = reduction}),
                                        .optimizer = train::Sgd({.common = {.learning_rate = 0}}),
                                        .metrics = {train::metrics::Accuracy()}}));
      MT_ASSIGN_OR_RETURN(const auto train, strategy::ArraysPipeline(data, batch));
      MT_ASSIGN_OR_RETURN(const auto validation, strategy::ArraysPipeline(data, batch));
      MT_ASSIGN_OR_RETURN(const History history,
                          model.Fit(*train, {.epochs = 2, .validation = validation.get()}));
      MT_ASSIGN_OR_RETURN(const train::Scalars evaluated, model.Evaluate(*validation));
      const std::vector<double> loss(2, want[0]), accuracy(2, want[1]);
      MT_WANT(Near(history.Of("loss"), loss, 1e-6));
      MT_WANT(Near(history.Of("accuracy"), accuracy, 1e-7));
      MT_WANT(Near(history.Of("val_loss"), loss, 1e-6));
      MT_WANT(Near(history.Of("val_accuracy"), accuracy, 1e-7));
      MT_WANT(Near({evaluated[0].second, evaluated[1].second}, want, 1e-6));
      // Data that whoever runs a step reads for itself.
      NamedData own{"own", {.source = {.from = data::MemoryArrays{data}}}};
      own.spec.stages = {data::BatchStage{batch}};
      MT_ASSIGN_OR_RETURN(const History read, model.Fit(own, {.epochs = 1}));
      // Of several workers each goes through all examples, in its own time.
      if (GetParam().name == "ParameterServer3") return OkStatus();
      MT_WANT(Near(read.Of("loss"), {want[0]}, 1e-6));
      MT_WANT(Near(read.Of("accuracy"), {want[1]}, 1e-7));
      return OkStatus();
    });
  }
}

TEST_P(ModelTest, ALabelOutsideTheClassesEndsEveryWayToFeedIt) {
  strategy::ForStrategy(GetParam(), [](strategy::Strategy& strategy) -> Status {
    std::vector<Tensor> good = Examples(11), bad = Examples(11);
    bad[1].mutable_values<int32_t>()[8] = 3;
    const std::string want = "example 8: label 3, but 3 classes";
    const auto model_of = [&]() -> Result<std::unique_ptr<Model>> {
      auto model = std::make_unique<Model>(Classifier(), strategy);
      MT_RETURN_IF_ERROR(model->Compile(
          {.loss = train::losses::SparseCategoricalCrossentropy({.from_logits = true}),
           .optimizer = train::Sgd()}));
      return model;
    };
    MT_ASSIGN_OR_RETURN(const auto model, model_of());
    MT_ASSIGN_OR_RETURN(const auto train, strategy::ArraysPipeline(good, 4));
    MT_ASSIGN_OR_RETURN(const auto data, strategy::ArraysPipeline(bad, 4));
    const Status evaluated = model->Evaluate(*data).status();
    MT_WANT(evaluated == InvalidArgument("data: " + want));
    MT_ASSIGN_OR_RETURN(const auto again, strategy::ArraysPipeline(bad, 4));
    const Status validated = model->Fit(*train, {.validation = again.get()}).status();
    MT_WANT(validated == InvalidArgument("validation: data: " + want));
    const Status fitted = model->Fit(Arrays{bad[0], bad[1], 4}).status();
    MT_WANT(fitted == InvalidArgument("data: " + want));
    // Batches from anywhere have no file: the example is the batch's.
    MT_ASSIGN_OR_RETURN(const auto unchecked, strategy::ArraysPipeline(bad, 4));
    strategy::PipelineBatches batches(*unchecked);
    const Status from_batches = model->Fit(batches, unchecked->BatchTypes(4)).status();
    MT_WANT(from_batches == InvalidArgument("batch 2: example 0: label 3, but 3 classes"));
    // Of data that whoever runs a step reads for itself; a worker's bad data is no bad step.
    NamedData own{"own", {.source = {.from = data::MemoryArrays{bad, "own.idx"}}}};
    own.spec.stages = {data::BatchStage{4}};
    // Whoever of three workers takes most of the 27 steps goes through its data more than once.
    const Status read = model->Fit(own, {.epochs = 9}).status();
    MT_WANT(read.message().ends_with("own.idx: " + want));
    MT_WANT(read.code() == StatusCode::kInvalidArgument);
    MT_WANT(read.origin() == Origin::kInput);
    return OkStatus();
  });
}

TEST_P(ModelTest, AnIdOutsideItsTableEndsEveryWayToFeedIt) {
  strategy::ForStrategy(GetParam(), [](strategy::Strategy& strategy) -> Status {
    const auto of = [](int64_t id) {
      Tensor ids = Tensor::Of<int64_t>({11, 2}, std::vector<int64_t>(22, 4));
      ids.mutable_values<int64_t>()[17] = id;
      return std::vector<Tensor>{ids, Ones(11)};
    };
    Model model(std::make_shared<nn::Sequential>(nn::Embedding(5, 3), nn::Flatten(), nn::Dense(1)),
                strategy);
    MT_RETURN_IF_ERROR(model.Compile(Mse(0.01)));
    const std::string want = "example 8: id 5, but 5 rows";
    MT_WANT(model.Predict(of(5)[0], 4).status() ==
            InvalidArgument("predict: example 0: id 5, but 5 rows"));  // of the batch's
    MT_WANT(model.Predict(of(4)[0], 4).ok());
    MT_ASSIGN_OR_RETURN(const auto data, strategy::ArraysPipeline(of(5), 4));
    const Status evaluated = model.Evaluate(*data).status();
    MT_WANT(evaluated == InvalidArgument("data, component `x`: " + want));
    const Status fitted = model.Fit(Arrays{of(5)[0], of(5)[1], 4}).status();
    MT_WANT(fitted == InvalidArgument("data, component `x`: " + want));
    NamedData own{"own", {.source = {.from = data::MemoryArrays{of(5), "own.idx"}}}};
    own.spec.stages = {data::BatchStage{4}};
    const Status read = model.Fit(own, {.epochs = 9}).status();
    MT_WANT(read.message().ends_with("own.idx, component `x`: " + want));
    MT_WANT(read.origin() == Origin::kInput);
    return OkStatus();
  });
}

TEST_P(ModelAndLoopTest, FitAndACustomLoopShareTheVariables) {
  strategy::ForReplicas(GetParam(), [](strategy::ReplicaStrategy& strategy) -> Status {
    const auto scope = strategy.Scope();
    const auto layer = DenseOne(0, 0);
    Model model(layer);
    MT_RETURN_IF_ERROR(model.Compile(Mse(0.1)));
    MT_RETURN_IF_ERROR(model.Fit(Arrays{Ones(8), Ones(8), 8}).status());  // w = b = 0.2
    const auto sgd = train::Sgd({.common = {.learning_rate = 0.1}});
    const strategy::ReplicaFunction step("step", [&](Value x, Value y) {
      const Value loss =
          strategy::ComputeAverageLoss(program::ReduceSum(program::Square((*layer)(x)-y), {1}));
      sgd->Minimize(loss, layer->parameters());
    });
    const std::vector<Tensor> batch = {Ones(4), Ones(4)};
    MT_ASSIGN_OR_RETURN(const strategy::PerReplicaBatch pieces, strategy.DistributeBatch(batch));
    MT_RETURN_IF_ERROR(strategy.Run(step, pieces).status());
    MT_ASSIGN_OR_RETURN(const Tensor after_loop, strategy.Read(layer->parameters()[0]));
    MT_WANT(std::abs(after_loop.Item() - 0.32) <= 1e-6);  // 0.2 + 0.1 * 2 * (1 - 0.4)
    MT_RETURN_IF_ERROR(model.Fit(Arrays{Ones(8), Ones(8), 8}).status());
    MT_ASSIGN_OR_RETURN(const Tensor after_fit, strategy.Read(layer->parameters()[0]));
    MT_WANT(std::abs(after_fit.Item() - 0.392) <= 1e-6);  // 0.32 + 0.1 * 2 * (1 - 0.64)
    MT_ASSIGN_OR_RETURN(const Tensor predicted, model.Predict(Ones(1)));
    MT_WANT(std::abs(predicted.Item() - 0.784) <= 1e-6);
    return OkStatus();
  });
}

TEST(ModelOnceTest, RefusesWhatItCannotTrain) {
  Model bare(DenseOne(0, 0));
  EXPECT_EQ(bare.Fit(Arrays{Ones(4), Ones(4)}).status().code(), StatusCode::kFailedPrecondition);
  EXPECT_EQ(bare.Compile({}).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(bare.Save("/nowhere").status().code(), StatusCode::kFailedPrecondition);
  ASSERT_TRUE(bare.Compile(Mse(0.1)).ok());
  const auto lonely = strategy::ArraysPipeline({Ones(4)}, 2).value();
  EXPECT_THAT(bare.Fit(*lonely).status().message(),
              HasSubstr("labels: expected one of the batch's components, x, got: y"));
  // Two columns into a kernel made for one.
  ASSERT_TRUE(bare.Fit(Arrays{Ones(4), Ones(4)}).ok());
  EXPECT_EQ(bare.Predict(strategy::Floats({2, 2}, {1, 2, 3, 4})).status().code(),
            StatusCode::kInvalidArgument);
}

TEST(ModelOnceTest, ALossThatIsNotFiniteEndsFitAndLeavesTheWeights) {
  const auto strategy = strategy::Strategy::Mirrored({.count = 2}).value();
  Model model(DenseOne(0.5, 0), *strategy);
  ASSERT_TRUE(model.Compile(Mse(0.1)).ok());
  Tensor x = strategy::Floats({4, 1}, {1, 1, std::numeric_limits<float>::infinity(), 1});
  const auto history = model.Fit(Arrays{x, Ones(4), 2}, {.epochs = 2});
  ASSERT_TRUE(history.ok()) << history.status().ToString();
  EXPECT_EQ(history->end, train::FitEnd::kNotFinite);
  EXPECT_THAT(history->message, HasSubstr("step 2: output `loss` is not finite; first not finite: "
                                          "input x, then in the gradient of"));
  const float w = strategy::FloatsOf(strategy->Read(model.parameters()[0]).value())[0];
  EXPECT_NEAR(w, 0.6, 1e-6);  // of the first step alone
}

TEST_P(ModelTest, OnlyTheChiefDrawsALineAndWritesSummaries) {
  std::string folder = (std::filesystem::temp_directory_path() / "strategy-events-XXXXXX").string();
  ASSERT_NE(::mkdtemp(folder.data()), nullptr);
  strategy::ForStrategy(GetParam(), [&](strategy::Strategy& strategy) -> Status {
    const std::string own = folder + "/" + std::to_string(strategy.process());
    std::string out;
    const auto scope = strategy.Scope();
    ProgressBar bar(strategy, {.terminal = false}, [&](std::string_view text) { out += text; });
    TensorBoard board(own);
    Model model(DenseOne(0, 0));
    MT_RETURN_IF_ERROR(model.Compile(Mse(0.1)));
    MT_ASSIGN_OR_RETURN(const auto validation, strategy::ArraysPipeline({Ones(2), Ones(2)}, 2));
    MT_RETURN_IF_ERROR(
        model
            .Fit(Arrays{Ones(4), Ones(4), 2},
                 {.epochs = 2, .validation = validation.get(), .callbacks = {&bar, &board}})
            .status());
    MT_WANT(out.empty() == !strategy.chief());
    MT_WANT(std::filesystem::exists(own) == strategy.chief());
    if (!strategy.chief()) return OkStatus();
    // A record for each step, and for each epoch's validation; first in each file the version.
    for (const auto& [run, records] : {std::pair("train", 4), std::pair("validation", 2)}) {
      std::string bytes;
      for (const auto& file : std::filesystem::directory_iterator(own + "/" + run)) {
        std::ifstream in(file.path(), std::ios::binary);
        bytes.append(std::istreambuf_iterator<char>(in), {});
      }
      int found = 0;
      for (size_t at = bytes.find("loss"); at != std::string::npos;
           at = bytes.find("loss", at + 1)) {
        ++found;
      }
      MT_WANT(bytes.find("brain.Event") != std::string::npos);
      MT_WANT(found == records);
    }
    return OkStatus();
  });
  std::filesystem::remove_all(folder);
}

TEST(ModelOnceTest, TheProgressLineIsKeras) {
  std::string out;
  ProgressBar bar(strategy::GetStrategy(), {.terminal = false},
                  [&](std::string_view text) { out += text; });
  Model model(DenseOne(0, 0));
  ASSERT_TRUE(model.Compile(Mse(0.1)).ok());
  const auto validation = strategy::ArraysPipeline({Ones(2), Ones(2)}, 2).value();
  ASSERT_TRUE(model
                  .Fit(Arrays{Ones(4), Ones(4), 2},
                       {.epochs = 2, .validation = validation.get(), .callbacks = {&bar}})
                  .ok());
  EXPECT_THAT(out, HasSubstr("epoch 1/2  step 2/2"));
  EXPECT_THAT(out, HasSubstr("epoch 2/2  step 2/2"));
  EXPECT_THAT(out, HasSubstr("val_loss"));
}

}  // namespace
}  // namespace meshtrain::trainer
