#include "runtime/train/programs.h"

#include <gtest/gtest.h>

#include <cmath>

#include "runtime/nn/model.h"
#include "tests/support/interpreter/interpreter.h"

namespace meshtrain::train {
namespace {

using meshtrain::testing::Array;
using meshtrain::testing::Interpret;
using meshtrain::testing::StepInput;
using program::Builder;

const TensorType kX{DType::kF64, {4, 3}};
const TensorType kY{DType::kI32, {4}};

Recipe SmallRecipe() {
  Recipe recipe;
  recipe.model = std::make_shared<nn::Sequential>(nn::Dense(2));
  recipe.heads[0].loss = losses::SparseCategoricalCrossentropy({.from_logits = true});
  recipe.optimizer = Sgd({.common = {.learning_rate = 0.1}});
  recipe.heads[0].metrics = {metrics::Accuracy()};
  return recipe;
}

// Scores of two inputs: a model that takes `left` and `right`.
Recipe PairRecipe() {
  const nn::Symbol left = nn::Input(), right = nn::Input();
  const nn::Symbol both =
      nn::Apply(nn::Make<nn::Concatenate>(), std::vector<nn::Symbol>{left, right});
  Recipe recipe = SmallRecipe();
  recipe.model = std::make_shared<nn::Functional>(std::vector<nn::Symbol>{left, right},
                                                  nn::Apply(nn::Make<nn::Dense>(2), both));
  recipe.components = {"kind", "left", "right"};
  recipe.heads[0].labels = "kind";
  return recipe;
}

std::vector<std::string> Names(const std::vector<Parameter>& parameters) {
  std::vector<std::string> names;
  for (const Parameter& parameter : parameters) names.push_back(parameter.name());
  return names;
}

TEST(ProgramsTest, ABatchHasAnyNumberOfNamedComponents) {
  const TensorType right{DType::kF64, {4, 5}};
  const std::vector<TensorType> types = {kY, kX, right};
  const auto programs = BuildPrograms(PairRecipe(), types);
  ASSERT_TRUE(programs.ok()) << programs.status().message();
  EXPECT_EQ(programs->components, (std::vector<std::string>{"kind", "left", "right"}));
  EXPECT_EQ(programs->parameters[0].type().ToString(), "f64[8,2]");  // both, side by side
  ASSERT_EQ(programs->train_step.inputs.size(), 3u);
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(programs->train_step.inputs[i].name, programs->components[i]);
    EXPECT_EQ(programs->train_step.type(programs->train_step.inputs[i].value), types[i]);
  }
  // The model takes what `inputs` names, in that order.
  Recipe swapped = PairRecipe();
  swapped.inputs = {"right", "left"};
  const auto other = BuildPrograms(swapped, types);
  ASSERT_TRUE(other.ok());
  EXPECT_NE(other->train_step.ToString(), programs->train_step.ToString());

  const auto error = [&](auto change, std::vector<TensorType> of) {
    Recipe recipe = PairRecipe();
    change(recipe);
    return std::string(BuildPrograms(recipe, of).status().message());
  };
  EXPECT_EQ(error([](Recipe& r) { r.heads[0].labels = "kint"; }, types),
            "labels: expected one of the batch's components, kind, left, right, got: kint");
  EXPECT_EQ(error([](Recipe& r) { r.inputs = {"lefd"}; }, types),
            "inputs: expected one of the batch's components, kind, left, right, got: lefd");
  EXPECT_EQ(error([](Recipe&) {}, {kY, kX}),
            "expected batches of kind, left, right, got: 2 components");
  EXPECT_EQ(error([](Recipe& r) { r.components = {"kind"}; }, {kY}),
            "inputs: expected a component beside the labels, `kind`, got: none");
}

TEST(ProgramsTest, HaveTheInputsOutputsAndUpdatesThatTheHeaderSays) {
  const auto programs = BuildPrograms(SmallRecipe(), kX, kY);
  ASSERT_TRUE(programs.ok()) << programs.status().message();
  for (const Program* p : {&programs->train_step, &programs->eval_step}) {
    ASSERT_EQ(p->inputs.size(), 2u);
    EXPECT_EQ(p->inputs[0].name, "x");
    EXPECT_EQ(p->inputs[1].name, "y");
    ASSERT_EQ(p->outputs.size(), 2u);
    EXPECT_EQ(p->outputs[0].name, "loss");
    EXPECT_EQ(p->outputs[1].name, "accuracy");
  }
  for (const program::State& state : programs->train_step.states) {
    EXPECT_NE(state.entry, state.exit) << state.name;
  }
  for (const program::State& state : programs->eval_step.states) {
    EXPECT_EQ(state.entry, state.exit) << state.name;
  }
  EXPECT_TRUE(programs->init.inputs.empty());
  for (const program::State& state : programs->init.states) {
    EXPECT_NE(state.entry, state.exit) << state.name;
  }
  EXPECT_EQ(Names(programs->States()), (std::vector<std::string>{"dense.kernel", "dense.bias"}));
  EXPECT_EQ(programs->Summary(),
            "dense.kernel  f64[3,2]  replicated\n"
            "dense.bias    f64[2]  replicated\n"
            "8 parameters\n");
}

TEST(ProgramsTest, SayWhatLabelsMustBe) {
  const auto of = [](Loss loss, const TensorType& labels, int64_t units = 2) {
    Recipe recipe = SmallRecipe();
    recipe.model = std::make_shared<nn::Sequential>(nn::Dense(units));
    recipe.heads[0].loss = std::move(loss);
    recipe.heads[0].metrics.clear();
    return BuildPrograms(recipe, kX, labels);
  };
  const TensorType wide{DType::kF64, {4, 2}}, column{DType::kF64, {4, 1}}, row{DType::kF64, {4}};
  using Classes = std::map<std::string, int64_t>;
  EXPECT_EQ(of(losses::SparseCategoricalCrossentropy(), kY)->classes, (Classes{{"y", 2}}));
  EXPECT_EQ(of(losses::SparseCategoricalCrossentropy(), {DType::kU8, {4}}, 7)->classes,
            (Classes{{"y", 7}}));
  EXPECT_EQ(of(losses::BinaryCrossentropy(), row, 1)->classes, (Classes{{"y", 2}}));
  EXPECT_EQ(of(losses::CategoricalCrossentropy(), wide)->classes, Classes());
  EXPECT_EQ(of(losses::MeanSquaredError(), column, 1)->classes, Classes());

  const auto refusal = [&](Loss loss, const TensorType& labels, int64_t units = 2) {
    return of(std::move(loss), labels, units).status();
  };
  EXPECT_EQ(refusal(losses::SparseCategoricalCrossentropy(), row),
            InvalidArgument("sparse_categorical_crossentropy takes class numbers (u8, i32, i64), "
                            "got: labels f64[4]"));
  EXPECT_EQ(refusal(losses::SparseCategoricalCrossentropy(), {DType::kI32, {4, 1}}),
            InvalidArgument("sparse_categorical_crossentropy of predictions f64[4,2] takes labels "
                            "i32[4], got: labels i32[4,1]"));
  // As many examples as predictions of one: each label would be spread over all predictions.
  EXPECT_EQ(refusal(losses::MeanAbsoluteError(), row, 4),
            InvalidArgument("mean_absolute_error of predictions f64[4,4] takes labels f64[4,4], "
                            "got: labels f64[4]"));
}

StepInput SmallInput() {
  StepInput in;
  in.inputs["x"] = {kX, {1, 0, 2, -1, 1, 0, 0.5, 0.5, 0.5, 2, -2, 1}};
  in.inputs["y"] = {kY, {0, 1, 1, 0}};
  in.states["dense.kernel"] = {{DType::kF64, {3, 2}}, {0.1, -0.2, 0.3, 0.4, -0.5, 0.6}};
  in.states["dense.bias"] = {{DType::kF64, {2}}, {0.05, -0.05}};
  return in;
}

// Mean loss and accuracy of SmallInput, and the sum over examples of the gradient by the logits, by
// hand.
struct Reference {
  double loss = 0;
  double accuracy = 0;
  double kernel_gradient[3][2] = {};
};
Reference ByHand(const StepInput& in) {
  Reference r;
  const auto& x = in.inputs.at("x").at;
  const auto& k = in.states.at("dense.kernel").at;
  const auto& b = in.states.at("dense.bias").at;
  for (int n = 0; n < 4; ++n) {
    meshtrain::testing::Number z[2] = {b[0], b[1]};
    for (int i = 0; i < 3; ++i) {
      for (int c = 0; c < 2; ++c) z[c] += x[n * 3 + i] * k[i * 2 + c];
    }
    const int label = static_cast<int>(in.inputs.at("y").at[n]);
    const auto total = static_cast<double>(std::exp(z[0]) + std::exp(z[1]));
    r.loss += (std::log(total) - z[label]) / 4;
    r.accuracy += ((z[1] > z[0]) == (label == 1)) / 4.0;
    for (int c = 0; c < 2; ++c) {
      const auto g = static_cast<double>(std::exp(z[c])) / total - (c == label);
      for (int i = 0; i < 3; ++i) r.kernel_gradient[i][c] += x[n * 3 + i] * g;
    }
  }
  return r;
}

TEST(ProgramsTest, AStepIsWhatTheFormulasSay) {
  const auto programs = BuildPrograms(SmallRecipe(), kX, kY);
  ASSERT_TRUE(programs.ok()) << programs.status().message();
  const StepInput in = SmallInput();
  const Reference want = ByHand(in);
  const auto out = Interpret(programs->train_step, in);
  ASSERT_TRUE(out.ok()) << out.status().message();
  EXPECT_NEAR(out->outputs.at("loss").at[0], want.loss, 1e-12);
  EXPECT_NEAR(out->outputs.at("accuracy").at[0], want.accuracy, 1e-6);
  for (int i = 0; i < 6; ++i) {
    EXPECT_NEAR(out->states.at("dense.kernel").at[i],
                in.states.at("dense.kernel").at[i] - 0.1 * want.kernel_gradient[i / 2][i % 2] / 4,
                1e-12);
  }
  const auto eval = Interpret(programs->eval_step, in);
  ASSERT_TRUE(eval.ok()) << eval.status().message();
  EXPECT_EQ(eval->outputs.at("loss").at, out->outputs.at("loss").at);
  EXPECT_EQ(eval->states.at("dense.kernel").at, in.states.at("dense.kernel").at);
}

// The gradient is of the sum; only the report divides by the batch's size.
TEST(ProgramsTest, ASummedLossReportsItsMean) {
  Recipe recipe = SmallRecipe();
  recipe.heads[0].loss.reduction = LossReduction::kSum;
  const auto programs = BuildPrograms(recipe, kX, kY);
  ASSERT_TRUE(programs.ok()) << programs.status().message();
  const StepInput in = SmallInput();
  const Reference want = ByHand(in);
  const auto out = Interpret(programs->train_step, in);
  ASSERT_TRUE(out.ok()) << out.status().message();
  EXPECT_NEAR(out->outputs.at("loss").at[0], want.loss, 1e-12);
  EXPECT_NEAR(out->states.at("dense.kernel").at[0],
              in.states.at("dense.kernel").at[0] - 0.1 * want.kernel_gradient[0][0], 1e-12);
}

TEST(ProgramsTest, ARegularizerAddsToTheLossAndItsGradient) {
  Recipe recipe = SmallRecipe();
  recipe.model =
      std::make_shared<nn::Sequential>(nn::Dense(2, {.kernel_regularizer = nn::L2(0.01)}));
  const auto programs = BuildPrograms(recipe, kX, kY);
  ASSERT_TRUE(programs.ok()) << programs.status().message();
  const StepInput in = SmallInput();
  const Reference want = ByHand(in);
  double squares = 0;
  for (const auto w : in.states.at("dense.kernel").at) squares += static_cast<double>(w * w);
  const auto out = Interpret(programs->train_step, in);
  ASSERT_TRUE(out.ok()) << out.status().message();
  EXPECT_NEAR(out->outputs.at("loss").at[0], want.loss + 0.01 * squares, 1e-12);
  const auto w0 = static_cast<double>(in.states.at("dense.kernel").at[0]);
  EXPECT_NEAR(out->states.at("dense.kernel").at[0],
              w0 - 0.1 * (want.kernel_gradient[0][0] / 4 + 2 * 0.01 * w0), 1e-12);
}

TEST(ProgramsTest, DropoutCountsStepsInAStateOfItsOwn) {
  Recipe recipe = SmallRecipe();
  recipe.model = std::make_shared<nn::Sequential>(nn::Dropout(0.5), nn::Dense(2));
  const auto programs = BuildPrograms(recipe, kX, kY);
  ASSERT_TRUE(programs.ok()) << programs.status().message();
  EXPECT_EQ(Names(programs->slots), (std::vector<std::string>{"step"}));
  StepInput in = SmallInput();
  in.states["step"] = {{DType::kI64, {}}, {7}};
  const auto out = Interpret(programs->train_step, in);
  ASSERT_TRUE(out.ok()) << out.status().message();
  EXPECT_EQ(out->states.at("step").at[0], 8);
  for (const program::State& state : programs->eval_step.states) EXPECT_NE(state.name, "step");
}

// What data is checked for, before any device sees it.
TEST(ProgramsTest, SayOfEachInputOfIdsHowManyThereAre) {
  const TensorType ids{DType::kI32, {4, 3}};
  Value (*const models[])(const Value&) = {
      [](const Value& x) {
        return program::Gather(program::Ones({7}), program::Transpose(x, {1, 0}));
      },
      [](const Value& x) {
        return program::TakeAlong(program::Ones({4, 7}), x, 1);
      },
      [](const Value& x) {
        return program::AddAlong(program::Ones({4, 7}), x, program::Ones({4, 3}), 1);
      },
      [](const Value& x) {
        return program::ScatterSet(program::Ones({7, 2}), x, program::Ones({4, 3, 2}));
      },
      [](const Value& x) {
        return program::SegmentSum(program::Ones({4, 3, 2}), x, 7);
      },
      // Of its own numbers, not the input's.
      [](const Value& x) { return program::Gather(program::Ones({7}), x + 1.0); },
  };
  class OfModel final : public nn::Layer {
   public:
    explicit OfModel(Value (*model)(const Value&)) : model_(model) {}

   protected:
    Value Call(const Value& x) override {
      return program::BroadcastTo(program::ReduceSum(model_(x)), {4, 2});
    }

   private:
    Value (*model_)(const Value&);
  };
  std::vector<std::map<std::string, int64_t>> got;
  for (const auto& model : models) {
    Recipe recipe = SmallRecipe();
    recipe.model = std::make_shared<OfModel>(model);
    const auto programs = BuildPrograms(recipe, ids, kY);
    ASSERT_TRUE(programs.ok()) << programs.status().message();
    got.push_back(programs->rows);
  }
  const std::map<std::string, int64_t> seven = {{"x", 7}};
  EXPECT_EQ(got,
            (std::vector<std::map<std::string, int64_t>>{seven, seven, seven, seven, seven, {}}));
}

TEST(ProgramsTest, ARuleThatMatchesNothingIsAnError) {
  Recipe recipe = SmallRecipe();
  ASSERT_TRUE(recipe.layouts.Add("hidden", nn::LayoutSpecs{"unsharded", "model"}).ok());
  EXPECT_EQ(BuildPrograms(recipe, kX, kY).status().message(),
            "layout rule `hidden` matches no parameter (rules match from the start of a path); "
            "near: dense.kernel, "
            "dense.bias");
}

TEST(SharedUpdateTest, LargeSlotsAreSplitOverTheBatchWhereTheirWeightIsNot) {
  const mesh::Mesh mesh = mesh::Mesh::Create({{"batch", 4}, {"model", 2}}).value();
  const auto layout = [&](const std::vector<std::string>& specs) {
    return mesh::Layout::FromSpecs(specs, mesh).value();
  };
  const auto shared = [&](const std::vector<std::string>& specs, mesh::Dims dims,
                          const std::vector<std::string>& batch) {
    return SharedUpdateLayout(layout(specs), {DType::kF32, std::move(dims)}, layout(batch))
        .ToString();
  };
  const std::vector<std::string> batch = {"batch", "unsharded"};
  EXPECT_EQ(shared({"unsharded", "unsharded"}, {784, 700}, batch), "{batch, *}");
  EXPECT_EQ(shared({"unsharded", "model"}, {784, 700}, batch), "{batch, model}");
  EXPECT_EQ(shared({"unsharded", "unsharded"}, {784, 700}, {"batch+model", "unsharded"}),
            "{batch+model, *}");
  EXPECT_EQ(shared({"unsharded", "model"}, {784, 700}, {"batch+model", "unsharded"}),
            "{batch, model}");
  // Left as they are: split already, uneven, small, scalars, and where nothing splits the batch.
  EXPECT_EQ(shared({"model", "unsharded"}, {784, 700}, batch), "{model, *}");
  EXPECT_EQ(shared({"unsharded", "unsharded"}, {783, 700}, batch), "{*, *}");
  EXPECT_EQ(shared({"unsharded"}, {16380}, batch), "{*}");
  EXPECT_EQ(shared({"unsharded"}, {16384}, batch), "{batch}");
  EXPECT_EQ(shared({}, {}, batch), "{}");
  EXPECT_EQ(shared({"unsharded", "unsharded"}, {784, 700}, {"unsharded", "batch"}), "{*, *}");
}

TEST(ProgramsTest, TheFirstErrorOfTheTraceComesBack) {
  Recipe recipe = SmallRecipe();
  const auto programs = BuildPrograms(recipe, {DType::kU8, {4, 3}}, kY);
  ASSERT_FALSE(programs.ok());
  EXPECT_NE(programs.status().message().find("dense: dense takes floats"), std::string::npos)
      << programs.status().message();
}

// --- losses and metrics against their definitions

struct LossCase {
  std::string name;
  Loss loss;
  TensorType label_type;
  std::vector<double> labels;
  std::vector<double> predictions;  // [2, 3]
  double want;                      // the mean
};

TEST(LossTest, FollowKerasDefinitions) {
  const double p[] = {0.2, 0.3, 0.5, 0.7, 0.1, 0.2};
  const std::vector<double> probabilities(p, p + 6);
  const TensorType like{DType::kF64, {2, 3}};
  const auto bce = [&](const std::vector<double>& y) {
    double sum = 0;
    for (int i = 0; i < 6; ++i) sum -= y[i] * std::log(p[i]) + (1 - y[i]) * std::log(1 - p[i]);
    return sum / 6;
  };
  const std::vector<double> targets = {0, 1, 0, 1, 0, 1};
  std::vector<double> logits(6);
  for (int i = 0; i < 6; ++i) logits[i] = std::log(p[i] / (1 - p[i]));
  double mse = 0, mae = 0;
  for (int i = 0; i < 6; ++i) {
    mse += (p[i] - targets[i]) * (p[i] - targets[i]) / 6;
    mae += std::abs(p[i] - targets[i]) / 6;
  }
  const LossCase cases[] = {
      {"sparse",
       losses::SparseCategoricalCrossentropy(),
       {DType::kI64, {2}},
       {2, 0},
       probabilities,
       -(std::log(0.5) + std::log(0.7)) / 2},
      {"categorical",
       losses::CategoricalCrossentropy(),
       like,
       {0, 0, 1, 1, 0, 0},
       probabilities,
       -(std::log(0.5) + std::log(0.7)) / 2},
      {"binary", losses::BinaryCrossentropy(), like, targets, probabilities, bce(targets)},
      {"binary_logits", losses::BinaryCrossentropy({.from_logits = true}), like, targets, logits,
       bce(targets)},
      {"mse", losses::MeanSquaredError(), like, targets, probabilities, mse},
      {"mae", losses::MeanAbsoluteError(), like, targets, probabilities, mae},
      {"integers as labels",
       losses::MeanSquaredError(),
       {DType::kI32, {2, 3}},
       targets,
       probabilities,
       mse},
  };
  for (const LossCase& c : cases) {
    Builder b("loss");
    Builder::Scope scope(b);
    const Value y = b.Input("y", c.label_type);
    const Value predictions = b.Input("p", like);
    const Value each = c.loss.PerExample(y, predictions);
    EXPECT_EQ(each.dims(), (program::Dims{2})) << c.name;
    b.Output("loss", program::ReduceMean(each));
    const auto program = b.Build();
    ASSERT_TRUE(program.ok()) << c.name << ": " << program.status().message();
    const auto out = Interpret(
        *program, {.inputs = {{"y", {c.label_type, c.labels}}, {"p", {like, c.predictions}}}});
    ASSERT_TRUE(out.ok()) << c.name << ": " << out.status().message();
    EXPECT_NEAR(out->outputs.at("loss").at[0], c.want, 1e-9) << c.name;
  }
}

TEST(MetricTest, AccuracyIsResolvedByTheLoss) {
  const TensorType like{DType::kF32, {4, 1}};
  struct MetricCase {
    std::string name;
    Loss loss;
    TensorType label_type, prediction_type;
    std::vector<double> labels, predictions;
    double want;
  };
  const MetricCase cases[] = {
      {"classes",
       losses::SparseCategoricalCrossentropy(),
       {DType::kI32, {2}},
       {DType::kF32, {2, 3}},
       {2, 1},
       {0, 1, 5, 1, 0, 0},
       0.5},
      {"one hot",
       losses::CategoricalCrossentropy(),
       {DType::kF32, {2, 3}},
       {DType::kF32, {2, 3}},
       {0, 0, 1, 1, 0, 0},
       {0, 1, 5, 1, 0, 0},
       1},
      {"probabilities",
       losses::BinaryCrossentropy(),
       {DType::kI32, {4}},
       like,
       {0, 1, 1, 0},
       {0.4, 0.6, 0.3, 0.5},
       0.75},
      {"logits",
       losses::BinaryCrossentropy({.from_logits = true}),
       {DType::kI32, {4}},
       like,
       {0, 1, 1, 0},
       {-1, 0.2, 0.3, 0.4},
       0.75},
  };
  for (const MetricCase& c : cases) {
    Builder b("metric");
    Builder::Scope scope(b);
    b.Output("m", metrics::Accuracy().of_batch(b.Input("y", c.label_type),
                                               b.Input("p", c.prediction_type), c.loss));
    const auto program = b.Build();
    ASSERT_TRUE(program.ok()) << c.name << ": " << program.status().message();
    const auto out = Interpret(*program, {.inputs = {{"y", {c.label_type, c.labels}},
                                                     {"p", {c.prediction_type, c.predictions}}}});
    ASSERT_TRUE(out.ok()) << c.name << ": " << out.status().message();
    EXPECT_EQ(out->outputs.at("m").at[0], c.want) << c.name;
  }
}

}  // namespace
}  // namespace meshtrain::train
