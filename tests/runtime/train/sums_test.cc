// Metrics that are sums over examples and what they come to, against counting by their definitions,
// Keras' numbers, and themselves under other layouts.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <map>
#include <sstream>

#include "runtime/nn/model.h"
#include "runtime/sharding/sharding.h"
#include "runtime/train/programs.h"
#include "tests/support/interpreter/interpreter.h"

namespace meshtrain::train {
namespace {

using meshtrain::testing::Array;
using meshtrain::testing::Interpret;
using meshtrain::testing::Number;
using meshtrain::testing::StepInput;
using program::Builder;
using program::DType;

constexpr int64_t kClasses = 4;

std::map<std::string, std::vector<double>> ReadKeras() {
  std::map<std::string, std::vector<double>> arrays;
  std::ifstream file(std::string(MT_TESTDATA) + "/metrics/keras.txt");
  std::string name;
  size_t count = 0;
  while (file >> name >> count) {
    std::vector<double>& numbers = arrays[name];
    numbers.resize(count);
    for (double& number : numbers) file >> number;
  }
  return arrays;
}
const std::map<std::string, std::vector<double>>& Keras() {
  static const auto kArrays = ReadKeras();
  return kArrays;
}

// What a batch has: `p` with labels `y` of 0 or 1, and `logits` with numbers of classes `k`.
StepInput Examples(int64_t from, int64_t size) {
  StepInput feed;
  const auto add = [&](const char* name, DType dtype, int64_t width) {
    const std::vector<double>& all = Keras().at(name);
    const mesh::Dims dims = width == 1 ? mesh::Dims{size} : mesh::Dims{size, width};
    const auto begin = all.begin() + from * width;
    feed.inputs[name] = Array({dtype, dims}, std::vector<Number>(begin, begin + size * width));
  };
  add("p", DType::kF32, 1);
  add("y", DType::kI32, 1);
  add("logits", DType::kF32, kClasses);
  add("k", DType::kI32, 1);
  return feed;
}
StepInput AllExamples() { return Examples(0, static_cast<int64_t>(Keras().at("k").size())); }

const Loss kBinary = losses::BinaryCrossentropy();
const Loss kOfClasses = losses::SparseCategoricalCrossentropy({.from_logits = true});

// Those of `y` and `p`, then those of `k` and `logits`.
std::vector<Metric> Binary() {
  return {metrics::Precision(),
          metrics::Precision("precision_30", {.threshold = 0.3}),
          metrics::Recall(),
          metrics::Recall("recall_30", {.threshold = 0.3}),
          metrics::Auc(),
          metrics::Auc("auc_21", {.num_thresholds = 21}),
          metrics::Auc("pr_auc", {.curve = metrics::Curve::kPrecisionRecall})};
}
std::vector<Metric> OfClasses() {
  return {metrics::Precision("precision_of_2", {.class_id = 2}),
          metrics::Recall("recall_of_2", {.class_id = 2}),
          metrics::Recall("recall_of_2_30", {.threshold = 0.3, .class_id = 2}),
          metrics::Auc("auc_of_2", {.class_id = 2}),
          metrics::SparseTopKCategoricalAccuracy("top_2", 2),
          metrics::Perplexity()};
}

Result<program::Program> Trace(int64_t size) {
  Builder b("metrics");
  const Builder::Scope scope(b);
  const Value p = b.Input("p", {DType::kF32, {size}}), y = b.Input("y", {DType::kI32, {size}});
  const Value logits = b.Input("logits", {DType::kF32, {size, kClasses}});
  const Value k = b.Input("k", {DType::kI32, {size}});
  for (const Metric& metric : Binary()) b.Output(metric.name, metric.of_batch(y, p, kBinary));
  for (const Metric& metric : OfClasses()) {
    b.Output(metric.name, metric.of_batch(k, logits, kOfClasses));
  }
  return b.Build();
}

std::vector<FigureSums> Summed() {
  std::vector<FigureSums> summed;
  for (const auto& metrics : {Binary(), OfClasses()}) {
    for (const Metric& m : metrics) {
      if (m.finish == nullptr) continue;
      summed.push_back({m.name, std::vector<double>(static_cast<size_t>(m.sums)), m.finish});
    }
  }
  return summed;
}

BatchFigures Figures(const meshtrain::testing::Arrays& outputs, int64_t examples) {
  BatchFigures figures{.means = {}, .examples = examples};
  for (const auto& [name, value] : outputs) {
    const Status added = figures.Add(name, meshtrain::testing::ToTensor(value), Summed());
    EXPECT_TRUE(added.ok()) << added.ToString();
  }
  return figures;
}

// --- by the definitions

double PerplexityByDefinition() {
  const auto &k = Keras().at("k"), &logits = Keras().at("logits");
  double sum = 0;
  for (size_t i = 0; i < k.size(); ++i) {
    double all = 0;
    for (int64_t c = 0; c < kClasses; ++c) all += std::exp(logits[i * kClasses + c]);
    sum += std::log(all) - logits[i * kClasses + static_cast<size_t>(k[i])];
  }
  return std::exp(sum / static_cast<double>(k.size()));
}

struct Counts {
  double tp = 0, fp = 0, fn = 0, tn = 0;
};
Counts CountAbove(double threshold) {
  const auto &y = Keras().at("y"), &p = Keras().at("p");
  Counts counts;
  for (size_t i = 0; i < y.size(); ++i) {
    const bool said = p[i] > threshold;
    (y[i] > 0 ? (said ? counts.tp : counts.fn) : (said ? counts.fp : counts.tn)) += 1;
  }
  return counts;
}

double RocByDefinition(int64_t thresholds) {
  double area = 0, x = 0, height = 0;
  for (int64_t i = thresholds - 1; i >= 0; --i) {
    const bool end = i == 0 || i == thresholds - 1;
    const double at = static_cast<double>(i) / static_cast<double>(thresholds - 1);
    const Counts c = CountAbove(end ? at + (i == 0 ? -1e-7 : 1e-7) : at);
    const double next_x = c.fp / (c.fp + c.tn), next = c.tp / (c.tp + c.fn);
    area += (next_x - x) * (next + height) / 2;
    x = next_x;
    height = next;
  }
  return area;
}

// The integral of precision over recall in small steps, between points where both counts are
// linear.
double PrecisionRecallByDefinition(int64_t thresholds) {
  double area = 0;
  Counts before;
  constexpr int kSteps = 20000;
  for (int64_t i = thresholds - 1; i >= 0; --i) {
    const Counts c =
        CountAbove(i == 0 ? -1e-7 : static_cast<double>(i) / static_cast<double>(thresholds - 1));
    const double more = (c.tp - before.tp) / kSteps, false_more = (c.fp - before.fp) / kSteps;
    for (int s = 0; s < kSteps && more > 0; ++s) {
      const double tp = before.tp + (s + 0.5) * more, fp = before.fp + (s + 0.5) * false_more;
      area += tp / (tp + fp) * more;
    }
    before = c;
  }
  return area / (before.tp + before.fn);
}

TEST(SumsTest, UnevenBatchesComeToWhatTheDefinitionsSayOfAllExamples) {
  FigureTotals totals;
  int64_t at = 0;
  for (const double size : Keras().at("sizes")) {
    const auto n = static_cast<int64_t>(size);
    const auto program = Trace(n);
    ASSERT_TRUE(program.ok()) << program.status().ToString();
    const auto made = Interpret(*program, Examples(at, n));
    ASSERT_TRUE(made.ok()) << made.status().ToString();
    totals.Add(Figures(made->outputs, n));
    at += n;
  }
  const Scalars figures = totals.Means();
  const auto of = [&](const char* name) { return FindScalar(figures, name).value_or(-1); };
  const Counts half = CountAbove(0.5), third = CountAbove(0.3);
  EXPECT_EQ(of("precision"), half.tp / (half.tp + half.fp));
  EXPECT_EQ(of("recall"), half.tp / (half.tp + half.fn));
  EXPECT_EQ(of("precision_30"), third.tp / (third.tp + third.fp));
  EXPECT_EQ(of("recall_30"), third.tp / (third.tp + third.fn));
  EXPECT_NEAR(of("auc"), RocByDefinition(200), 1e-12);
  EXPECT_NEAR(of("auc_21"), RocByDefinition(21), 1e-12);
  EXPECT_NEAR(of("pr_auc"), PrecisionRecallByDefinition(200), 1e-8);
  EXPECT_NEAR(of("perplexity"), PerplexityByDefinition(), 1e-6);
  int compared = 0;
  for (const auto& [name, value] : figures) {
    EXPECT_NEAR(value, Keras().at(name).at(0), 1e-6) << name;
    ++compared;
  }
  EXPECT_EQ(compared, 13);
}

TEST(SumsTest, LayoutsGiveTheSameSums) {
  const StepInput feed = AllExamples();
  const int64_t size = feed.inputs.at("k").type.dims[0];
  const auto program = Trace(size);
  ASSERT_TRUE(program.ok()) << program.status().ToString();
  const auto whole = Interpret(*program, feed);
  ASSERT_TRUE(whole.ok()) << whole.status().ToString();
  struct Case {
    const char *mesh, *rows, *logits;
  };
  for (const Case& c : {Case{"batch=3", "{batch}", "{batch, *}"},  // 200 examples: uneven
                        Case{"model=3", "{*}", "{*, model}"},      // 4 classes: uneven
                        Case{"batch=2,model=2", "{batch}", "{batch, model}"}}) {
    const mesh::Mesh mesh = *mesh::Mesh::Parse(c.mesh);
    sharding::Given given;
    for (const char* name : {"p", "y", "k"}) {
      given.inputs.insert_or_assign(name, *mesh::Layout::Parse(c.rows, mesh));
    }
    given.inputs.insert_or_assign("logits", *mesh::Layout::Parse(c.logits, mesh));
    const auto partitioned = sharding::Shard(*program, mesh, given);
    ASSERT_TRUE(partitioned.ok()) << partitioned.status().ToString();
    for (const program::Op& op : partitioned->local.ops) {
      EXPECT_NE(op.kind, "all_gather") << c.mesh << ": only counts and sums travel";
    }
    const auto got = Interpret(*partitioned, feed, 1);
    ASSERT_TRUE(got.ok()) << got.status().ToString();
    for (const auto& [name, want] : whole->outputs) {
      const std::vector<Number>& have = got->outputs.at(name).at;
      ASSERT_EQ(have.size(), want.at.size());
      for (size_t i = 0; i < have.size(); ++i) {
        // Counts are whole; losses are of f32, and rounded otherwise where classes are split.
        const double share = c.logits == std::string("{batch, *}") ? 1e-12 : 1e-8;
        const double tolerance = name == "perplexity" ? share * static_cast<double>(want.at[i]) : 0;
        EXPECT_NEAR(static_cast<double>(have[i]), static_cast<double>(want.at[i]), tolerance)
            << c.mesh << " " << name << "[" << i << "]";
      }
    }
  }
}

TEST(SumsTest, APredictionThatIsNoNumberIsSeen) {
  StepInput feed = AllExamples();
  feed.inputs.at("p").at[3] = std::nanl("");
  feed.inputs.at("logits").at[7] = std::nanl("");
  const auto program = Trace(feed.inputs.at("k").type.dims[0]);
  const auto made = Interpret(*program, feed);
  ASSERT_TRUE(made.ok()) << made.status().ToString();
  for (const auto& [name, value] : Figures(made->outputs, 1).means) {
    if (name == "top_2") continue;  // not right
    EXPECT_TRUE(std::isnan(value)) << name << " " << value;
  }
}

double Of(const Metric& metric, const std::vector<double>& sums) { return metric.finish(sums); }

TEST(SumsTest, WhatHasNoExamplesIsZeroAndWhatIsTooLargeEnds) {
  EXPECT_EQ(Of(metrics::Precision(), {5, 0, 2, 0}), 0) << "nothing was said to be positive";
  EXPECT_EQ(Of(metrics::Recall(), {5, 1, 0, 0}), 0) << "nothing is positive";
  EXPECT_EQ(Of(metrics::Precision(), {0, 1, 0, 3}), 0.75);
  EXPECT_EQ(Of(metrics::Recall(), {0, 0, 1, 3}), 0.75);
  const Metric roc = metrics::Auc("it", {.num_thresholds = 3});
  EXPECT_EQ(Of(roc, {2, 1, 0, 0}), 0);
  EXPECT_EQ(Of(roc, {0, 0, 2, 1}), 0);
  EXPECT_EQ(Of(roc, {4, 0, 0, 4}), 1);
  EXPECT_EQ(Of(roc, {0, 4, 4, 0}), 0);
  EXPECT_EQ(Of(roc, {3, 3, 3, 3}), 0.5);
  const Metric pr =
      metrics::Auc("it", {.curve = metrics::Curve::kPrecisionRecall, .num_thresholds = 3});
  EXPECT_EQ(Of(pr, {4, 0, 0, 4}), 1);
  EXPECT_EQ(Of(pr, {3, 3, 3, 3}), 0.5);
  EXPECT_EQ(Of(pr, {3, 3, 0, 0}), 0);
  EXPECT_TRUE(std::isfinite(Of(metrics::Perplexity(), {1e6, 1})));
  EXPECT_DOUBLE_EQ(Of(metrics::Perplexity(), {6, 3}), std::exp(2.0));
}

TEST(SumsTest, LogitsSayWhatProbabilitiesDo) {
  Builder b("logits");
  const Builder::Scope scope(b);
  const Value y = b.Input("y", {DType::kI32, {4}}), x = b.Input("x", {DType::kF32, {4, 1}});
  const Loss loss = losses::BinaryCrossentropy({.from_logits = true});
  b.Output("half", metrics::Precision().of_batch(y, x, loss));
  b.Output("most", metrics::Precision("it", {.threshold = 0.75}).of_batch(y, x, loss));
  const auto program = b.Build();
  ASSERT_TRUE(program.ok()) << program.status().ToString();
  StepInput feed;
  feed.inputs["y"] = Array({DType::kI32, {4}}, std::vector<Number>{1, 0, 1, 0});
  // 0.73, 0.27, 0.82 and 0.5
  feed.inputs["x"] = Array({DType::kF32, {4, 1}}, std::vector<Number>{1, -1, 1.5, 0});
  const auto made = Interpret(*program, feed);
  ASSERT_TRUE(made.ok()) << made.status().ToString();
  // True negatives, false positives, false negatives, true positives.
  EXPECT_EQ(made->outputs.at("half").at, (std::vector<Number>{2, 0, 0, 2}));
  EXPECT_EQ(made->outputs.at("most").at, (std::vector<Number>{2, 0, 1, 1}));
}

// One-hot labels say what their numbers do, logits what the probabilities of their softmax do.
TEST(SumsTest, EveryLossOfClassesComesToTheSameSums) {
  for (const bool from_logits : {true, false}) {
    Builder b("one_hot");
    const Builder::Scope scope(b);
    StepInput feed = AllExamples();
    const int64_t size = feed.inputs.at("k").type.dims[0];
    const Value k = b.Input("k", {DType::kI32, {size}});
    const Value one_hot = program::OneHot(k, kClasses, DType::kF32);
    Value p = b.Input("logits", {DType::kF32, {size, kClasses}});
    if (!from_logits) p = program::Softmax(p);
    const Loss loss = losses::CategoricalCrossentropy({.from_logits = from_logits});
    for (const Metric& m : OfClasses()) {
      if (m.name != "top_2") b.Output(m.name, m.of_batch(one_hot, p, loss));
    }
    const auto program = b.Build(), sparse = Trace(size);
    ASSERT_TRUE(program.ok()) << program.status().ToString();
    for (const char* other : {"p", "y"}) feed.inputs.erase(other);
    const auto made = Interpret(*program, feed), want = Interpret(*sparse, AllExamples());
    ASSERT_TRUE(made.ok()) << made.status().ToString();
    ASSERT_TRUE(want.ok()) << want.status().ToString();
    const Scalars figures = Figures(want->outputs, size).means;
    for (const auto& [name, value] : Figures(made->outputs, size).means) {
      EXPECT_NEAR(value, FindScalar(figures, name).value_or(-1), 1e-5) << name;
    }
    EXPECT_EQ(made->outputs.size(), OfClasses().size() - 1);
  }
}

std::string MistakeOf(const Metric& metric, const Loss& loss, const mesh::Dims& predictions) {
  Builder b("metric");
  const Builder::Scope scope(b);
  const Value y = b.Input("y", {DType::kI32, {8}}), p = b.Input("p", {DType::kF32, predictions});
  metric.of_batch(y, p, loss);
  return std::string(b.status().message());
}

TEST(SumsTest, WhatALossCannotTellApartIsAMistake) {
  using ::testing::StartsWith;
  EXPECT_THAT(MistakeOf(metrics::Precision(), kOfClasses, {8, 4}),
              StartsWith("precision: expected `class`, the number of the class that is looked for, "
                         "where there are several, got: sparse_categorical_crossentropy of "
                         "predictions f32[8,4]"));
  // Logits are no probabilities, so nothing is counted without a class.
  EXPECT_THAT(MistakeOf(metrics::Precision(),
                        losses::CategoricalCrossentropy({.from_logits = true}), {8, 4}),
              StartsWith("precision: expected `class`, the number of the class that is looked for, "
                         "where there are several, got: categorical_crossentropy"));
  EXPECT_THAT(
      MistakeOf(metrics::Auc("area", {.class_id = 4}), kOfClasses, {8, 4}),
      StartsWith("area: expected `class` from 0 to 3, a class of predictions f32[8,4], got: 4"));
  EXPECT_THAT(
      MistakeOf(metrics::Recall("it", {.class_id = 1}), kBinary, {8, 1}),
      StartsWith("it: expected a loss of classes of which one is right, beside `class`, got: "
                 "binary_crossentropy"));
  EXPECT_THAT(MistakeOf(metrics::Perplexity(), kBinary, {8, 1}),
              StartsWith("perplexity: expected a loss of classes of which one is right, got: "
                         "binary_crossentropy"));
}

// --- in a step

const program::TensorType kSmallX{DType::kF64, {4, 2}}, kSmallY{DType::kI32, {4}};

Recipe SmallRecipe() {
  Recipe recipe;
  recipe.model = std::make_shared<nn::Sequential>(nn::Dense(2, {.use_bias = false}));
  recipe.heads[0].loss = losses::SparseCategoricalCrossentropy({.from_logits = true});
  recipe.optimizer = Sgd({.common = {.learning_rate = 0.1}});
  return recipe;
}

// Of four examples three are right, by so much as their logits are apart.
StepInput SmallInput() {
  StepInput in;
  in.inputs["x"] = {kSmallX, std::vector<Number>{3, 1, 2, -1, 0, 1, -2, 2}};
  in.inputs["y"] = {kSmallY, std::vector<Number>{0, 1, 1, 1}};
  in.states["dense.kernel"] = {{DType::kF64, {2, 2}}, std::vector<Number>{1, 0, 0, 1}};
  return in;
}

// Sums add up over the parts of a batch, and what a loss recorded is not recorded again.
TEST(SumsTest, SumsOfMetricsAreThoseOfTheBatchWhateverItsParts) {
  const StepInput in = SmallInput();
  // Logits x: losses by hand.
  double loss = 0;
  for (const double gap : {2.0, -3.0, 1.0, 4.0}) loss += std::log1p(std::exp(-gap));
  for (const int64_t parts : {1, 3}) {
    Recipe recipe = SmallRecipe();
    recipe.accumulate = parts;
    recipe.heads[0].metrics = {metrics::Perplexity(), metrics::Recall("recall", {.class_id = 1})};
    const auto programs = BuildPrograms(recipe, kSmallX, kSmallY);
    ASSERT_TRUE(programs.ok()) << programs.status().message();
    EXPECT_EQ(programs->summed, (std::vector<FigureSums>{
                                    {"perplexity", {0, 0}, recipe.heads[0].metrics[0].finish},
                                    {"recall", {0, 0, 0, 0}, recipe.heads[0].metrics[1].finish}}));
    int64_t losses = 0;
    for (const program::Op& op : programs->eval_step.ops) {
      losses += op.kind == "sparse_softmax_cross_entropy" ? 1 : 0;
    }
    EXPECT_EQ(losses, parts);
    for (const program::Program& step : {programs->train_step, programs->eval_step}) {
      const auto out = Interpret(step, in);
      ASSERT_TRUE(out.ok()) << out.status().message();
      const auto& sums = out->outputs.at("perplexity").at;
      EXPECT_NEAR(sums[0], loss, 1e-12);
      EXPECT_EQ(sums[1], 4);
      EXPECT_EQ(out->outputs.at("recall").at, (std::vector<Number>{1, 0, 1, 2}));
    }
  }
}

TEST(SumsTest, AMetricThatCannotBeRecordedIsNamed) {
  Recipe recipe = SmallRecipe();
  recipe.heads[0].metrics = {metrics::Auc("area")};
  const std::string mistake = BuildPrograms(recipe, kSmallX, kSmallY).status().message();
  EXPECT_EQ(mistake.find("area: expected `class`, the number"), 0u) << mistake;
  recipe.heads[0].metrics[0].place = "job.yaml:9:13: program.metrics[0]";
  EXPECT_EQ(BuildPrograms(recipe, kSmallX, kSmallY).status().message(),
            recipe.heads[0].metrics[0].place + ": " + mistake);
  recipe.heads[0].metrics = {
      {.name = "odd",
       .of_batch = [](const Value&, const Value& p, const Loss&) { return program::ReduceSum(p); },
       .sums = 2,
       .finish = metrics::Perplexity().finish}};
  EXPECT_EQ(BuildPrograms(recipe, kSmallX, kSmallY).status(),
            InvalidArgument("odd: expected sums f64[2], got: f64[]"));
}

}  // namespace
}  // namespace meshtrain::train
