// `outputs` of a manifest: a graph that ends with several layers, each with a loss of its own.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "runtime/manifest/node.h"
#include "runtime/recipe/loop.h"
#include "runtime/recipe/recipe.h"

namespace meshtrain::recipe {
namespace {

using mesh::DType;
using mesh::TensorType;
using ::testing::HasSubstr;

const std::vector<std::string> kGood = {
    "data:",                                                                          // 1
    "  train: {npy: {images: x.npy, labels: d.npy, more: {odd: o.npy}}}",             // 2
    "  test: {npy: {images: x2.npy, labels: d2.npy, more: {odd: o2.npy}}}",           // 3
    "  batch: 8",                                                                     // 4
    "model:",                                                                         // 5
    "  layers:",                                                                      // 6
    "  - dense: {name: trunk, units: 5, inputs: x, kernel_regularizer: {l2: 0.01}}",  // 7
    "  - dense: {name: digit, units: 4}",                                             // 8
    "  - dense: {name: parity, units: 1, inputs: trunk}",                             // 9
    "outputs:",                                                                       // 10
    "- layer: digit",                                                                 // 11
    "  loss: {sparse_categorical_crossentropy: {from_logits: true}}",                 // 12
    "  metrics: [accuracy, perplexity]",                                              // 13
    "- layer: parity",                                                                // 14
    "  labels: odd",                                                                  // 15
    "  loss: {binary_crossentropy: {from_logits: true}}",                             // 16
    "  weight: 0.3",                                                                  // 17
    "  metrics: [auc: {name: area}]",                                                 // 18
    "optimizer: adam",                                                                // 19
};

// The good text with line `n` (from 1) replaced; 0: nothing.
std::string With(size_t n, const std::string& line) {
  std::string text;
  for (size_t i = 0; i < kGood.size(); ++i) text += (i + 1 == n ? line : kGood[i]) + "\n";
  return text;
}
std::string Mistake(size_t n, const std::string& line) {
  return ParseManifest(With(n, line), "job.yaml").status().message();
}

std::vector<TensorType> TypesOf(int64_t examples) {
  return {{DType::kF32, {examples, 3}}, {DType::kI64, {examples}}, {DType::kU8, {examples}}};
}

TEST(OutputsTest, TheManifestAndTheLibraryAreOneProgram) {
  const auto manifest = ParseManifest(With(0, ""), "job.yaml");
  ASSERT_TRUE(manifest.ok()) << manifest.status().message();
  const auto built = Build(manifest->program, TypesOf(8));
  ASSERT_TRUE(built.ok()) << built.status().message();

  const nn::Symbol x = nn::Input();
  const nn::Symbol trunk = nn::Apply(
      nn::Make<nn::Dense>(5, nn::DenseOptions{.name = "trunk", .kernel_regularizer = nn::L2(0.01)}),
      x);
  train::Recipe recipe;
  recipe.components = {"x", "y", "odd"};
  recipe.model = std::make_shared<nn::Functional>(
      std::vector<nn::Symbol>{x},
      std::vector<nn::NamedSymbol>{
          {"digit", nn::Apply(nn::Make<nn::Dense>(4, nn::DenseOptions{.name = "digit"}), trunk)},
          {"parity",
           nn::Apply(nn::Make<nn::Dense>(1, nn::DenseOptions{.name = "parity"}), trunk)}});
  recipe.heads = {{.output = "digit",
                   .loss = train::losses::SparseCategoricalCrossentropy({.from_logits = true}),
                   .metrics = {train::metrics::Accuracy(), train::metrics::Perplexity()}},
                  {.output = "parity",
                   .labels = "odd",
                   .loss = train::losses::BinaryCrossentropy({.from_logits = true}),
                   .weight = 0.3,
                   .metrics = {train::metrics::Auc("area")}}};
  recipe.optimizer = train::Adam();
  const auto programs = train::BuildPrograms(recipe, TypesOf(8));
  ASSERT_TRUE(programs.ok()) << programs.status().message();
  EXPECT_EQ(HashProgram(built->programs.train_step), HashProgram(programs->train_step));
  EXPECT_EQ(HashProgram(built->programs.eval_step), HashProgram(programs->eval_step));
  // What the two call a figure is one rule, written on both sides.
  const std::vector<manifest::Output> outputs = manifest::Outputs(manifest->program);
  ASSERT_EQ(outputs.size(), recipe.heads.size());
  for (size_t i = 0; i < outputs.size(); ++i) {
    EXPECT_EQ(FigureName(outputs[i], "loss"), recipe.heads[i].FigureName("loss"));
  }
  EXPECT_EQ(FigureName(manifest::Output{}, "loss"), train::Head{}.FigureName("loss"));
}

TEST(OutputsTest, AreWrittenAsTheyAreRead) {
  const auto manifest = ParseManifest(With(0, ""), "job.yaml");
  ASSERT_TRUE(manifest.ok()) << manifest.status().message();
  const std::string written = ToYaml(manifest::WriteProgram(manifest->program));
  const auto again = ParseManifest(written, "job.yaml");
  ASSERT_TRUE(again.ok()) << again.status().message() << "\nin\n" << written;
  EXPECT_TRUE(again->program == manifest->program);
  ASSERT_EQ(again->program.outputs.size(), 2u);
  EXPECT_EQ(again->program.outputs[1].labels, "odd");
  EXPECT_EQ(again->program.outputs[1].weight, 0.3);
}

struct Case {
  std::string name;
  size_t line;
  std::string text;
  std::string want;  // how the message begins
};
void PrintTo(const Case& c, std::ostream* out) { *out << c.name; }

const Case kCases[] = {
    {"LossBeside", 19, "optimizer: adam\nloss: mse",
     "job.yaml:20:1: program.loss: expected none beside `outputs`, each of which has its own"},
    {"MetricsBeside", 19, "optimizer: adam\nmetrics: [accuracy]",
     "job.yaml:20:1: program.metrics: expected none beside `outputs`, each of which has its own"},
    {"OutputBeside", 9, kGood[8] + "\n  output: digit",
     "job.yaml:10:11: program.model.output: expected none beside `outputs`, which name the layers "
     "that the model ends with, got: digit"},
    {"UnknownLayer", 11, "- layer: digits",
     "job.yaml:11:3: program.outputs[0].layer: no layer of the model is named `digits`, did you "
     "mean `digit`?"},
    {"NoLayer", 11, "- weight: 1", "job.yaml:11:3: program.outputs[0]: `layer` is missing"},
    {"NoLoss", 16, "  # none", "job.yaml:14:3: program.outputs[1]: `loss` is missing"},
    {"UnknownLoss", 16, "  loss: binary",
     "job.yaml:16:9: program.outputs[1].loss: unknown loss `binary`; known: "},
    {"UnknownLabels", 15, "  labels: od",
     "job.yaml:14:3: program.outputs[1].labels: no component of the data is named `od`, did you "
     "mean `odd`?"},
    {"NegativeWeight", 17, "  weight: -0.5",
     "job.yaml:17:11: program.outputs[1].weight: expected a number of at least 0, got: -0.5"},
    {"UnknownField", 17, "  weigth: 0.5",
     "job.yaml:17:3: program.outputs[1]: unknown field `weigth`, did you mean `weight`?"},
    {"UnknownMetric", 13, "  metrics: [acuracy]",
     "job.yaml:13:13: program.outputs[0].metrics[0]: unknown metric `acuracy`, did you mean "
     "`accuracy`?"},
    {"AClassOfWhich", 13, "  metrics: [recall]",
     "job.yaml:13:13: program.outputs[0].metrics[0].recall.class: expected the number of the class "
     "that is looked for, with sparse_categorical_crossentropy, got: none"},
    {"TwiceALayer", 14, "- layer: digit",
     "job.yaml:9:5: program.model.layers[2].dense: layer `parity` does not reach any of the "
     "outputs "
     "`digit`, `digit`\n"
     "job.yaml:14:3: program.outputs[1].layer: expected outputs whose figures have names of their "
     "own, got: `digit_loss` twice"},
    {"NothingToReach", 9, kGood[8] + "\n  - dense: {name: idle, units: 2, inputs: trunk}",
     "job.yaml:10:5: program.model.layers[3].dense: layer `idle` does not reach any of the outputs "
     "`digit`, `parity`"},
    {"LabelsAreNoInput", 9, "  - dense: {name: parity, units: 1, inputs: odd}",
     "job.yaml:9:37: program.model.layers[2].dense.inputs: no layer before this one is named "
     "`odd`; "
     "known: x, trunk, digit"},
    {"Monitor", 19, "optimizer: adam\ntrain: {early_stopping: {monitor: val_digit_acuracy}}",
     "job.yaml:20:25: program.train.early_stopping.monitor: unknown figure `val_digit_acuracy`, "
     "did "
     "you mean `val_digit_accuracy`?"},
};

class OutputsErrorTest : public ::testing::TestWithParam<Case> {};
INSTANTIATE_TEST_SUITE_P(Errors, OutputsErrorTest, ::testing::ValuesIn(kCases),
                         [](const auto& info) { return info.param.name; });

TEST_P(OutputsErrorTest, SaysWhereAndWhatWouldBeRight) {
  EXPECT_THAT(Mistake(GetParam().line, GetParam().text), ::testing::StartsWith(GetParam().want));
}

TEST(OutputsTest, StandInAGraph) {
  const std::string chain =
      "data: {train: {idx: {images: a, labels: b}}, batch: 4}\n"
      "model: [dense: {name: digit, units: 3}]\n"
      "outputs: [{layer: digit, loss: mse}]\n"
      "optimizer: sgd\n";
  EXPECT_EQ(ParseManifest(chain, "job.yaml").status().message(),
            "job.yaml:3:11: program.outputs[0].layer: expected a model that is a graph, `layers:` "
            "with `inputs:`, got: a list");
  const auto mistake = [](const std::string& outputs) {
    return ParseManifest(
               "data: {train: {idx: {images: a, labels: b}}, batch: 4}\n"
               "model: {layers: [dense: {name: test_it, units: 3}, dense: {name: Wide, units: "
               "3}]}\n"
               "outputs: " +
                   outputs + "\noptimizer: sgd\n",
               "job.yaml")
        .status()
        .message();
  };
  EXPECT_EQ(mistake("[]"),
            "job.yaml:3:10: program.outputs: expected a list of outputs, got: a list");
  EXPECT_EQ(mistake("digit"),
            "job.yaml:3:10: program.outputs: expected a list of outputs, got: digit");
  for (const char* name : {"test_it", "Wide"}) {
    EXPECT_THAT(
        mistake(std::string("[{layer: Wide, loss: mse}, {layer: ") + name + ", loss: mse}]"),
        HasSubstr("expected a layer whose name is of small letters, digits and _, with no "
                  "val_ or test_ before them (its figures are called after it), got: " +
                  std::string(name)));
  }
  // Without either.
  EXPECT_EQ(mistake("~"), "job.yaml:1:1: program: `loss` is missing");
}

TEST(OutputsTest, ATextIsWrittenByOneOutput) {
  const std::string text =
      "data: {train: {text: {file: t.txt, length: 8, alphabet: ab}}, batch: 4}\n"
      "model: {layers: [embedding: {name: a, input_dim: 2, output_dim: 2}, dense: {name: b, units: "
      "2}]}\n"
      "outputs: [{layer: a, loss: mse}, {layer: b, loss: mse}]\n"
      "optimizer: sgd\n"
      "generate: {prompt: ab}\n";
  EXPECT_EQ(
      ParseManifest(text, "job.yaml").status().message(),
      "job.yaml:5:1: program.generate: expected a model of one output, which writes the text, "
      "got: `outputs`");
}

TEST(OutputsTest, StoppingKnowsTheFiguresOfEach) {
  const auto larger = [](const std::string& monitor) {
    const auto manifest = ParseManifest(
        With(19, "optimizer: adam\ntrain: {epochs: 9, early_stopping: {monitor: " + monitor + "}}"),
        "job.yaml");
    EXPECT_TRUE(manifest.ok()) << manifest.status().message();
    std::string_view figure = monitor;
    if (figure.starts_with("val_")) figure.remove_prefix(4);
    auto early = EarlyStoppingOf(manifest->program).value();
    // The second epoch is better where larger is.
    for (int64_t epoch = 1; epoch <= 2 && !early.WantsStop(); ++epoch) {
      const train::Scalars figures = {{std::string(figure), static_cast<double>(epoch)}};
      const train::EpochInfo info{
          .epoch = epoch, .epochs = 9, .step = epoch, .train = figures, .validation = figures};
      EXPECT_TRUE(early.OnEpochEnd(info, {.step = epoch, .epoch = epoch}).ok());
    }
    return early.best()->step == 2;
  };
  EXPECT_TRUE(larger("val_digit_accuracy"));
  EXPECT_TRUE(larger("parity_area"));
  EXPECT_FALSE(larger("val_digit_loss"));
  EXPECT_FALSE(larger("digit_perplexity"));
  EXPECT_FALSE(larger("loss"));
}

TEST(OutputsTest, LabelsThatDoNotFitAreRefusedAtTheirOutput) {
  const auto manifest = ParseManifest(With(0, ""), "job.yaml");
  ASSERT_TRUE(manifest.ok()) << manifest.status().message();
  std::vector<TensorType> types = TypesOf(8);
  types[1] = {DType::kF32, {8}};
  EXPECT_EQ(
      Build(manifest->program, types).status().message(),
      "job.yaml:11:3: program.outputs[0].loss: sparse_categorical_crossentropy takes class "
      "numbers (u8, i32, i64), got: labels f32[8] (labels_as: i32 takes whole numbers as class "
      "numbers)");
  types = TypesOf(8);
  types[2] = {DType::kU8, {8, 3}};
  EXPECT_THAT(Build(manifest->program, types).status().message(),
              HasSubstr("job.yaml:14:3: program.outputs[1]: binary_crossentropy of predictions "
                        "f32[8,1] takes labels u8[8,1], got: labels u8[8,3]"));
  const auto metric = ParseManifest(With(18, "  metrics: [categorical_accuracy]"), "job.yaml");
  ASSERT_TRUE(metric.ok());
  EXPECT_THAT(Build(metric->program, TypesOf(8)).status().message(),
              HasSubstr("program.outputs[1].metrics[0]: categorical_accuracy: expected labels"));
}

// Inputs are split, weights follow their rules, and `layout: auto` finds layouts.
TEST(OutputsTest, LieOnAMesh) {
  for (const std::string& layout :
       {std::string("{rules: [{match: 'trunk.kernel', spec: [unsharded, model]}]}"),
        std::string("auto")}) {
    std::string text = With(7, "  - dense: {name: trunk, units: 4096, inputs: x}");
    text += "mesh: {batch: 2, model: 2}\nlayout: " + layout + "\n";
    const auto manifest = ParseManifest(text, "job.yaml");
    ASSERT_TRUE(manifest.ok()) << manifest.status().message();
    std::vector<TensorType> types = TypesOf(8);
    types[0].dims[1] = 4096;
    const auto traced = Build(manifest->program, types);
    ASSERT_TRUE(traced.ok()) << traced.status().message();
    EXPECT_EQ(traced->layouts.inputs.at("odd").ToString(), "{batch}");
    EXPECT_THAT(traced->layouts.states.at("trunk.kernel").ToString(), HasSubstr("model"));
  }
}

TEST(OutputsTest, PredictionsAreOfEach) {
  const auto manifest = ParseManifest(With(0, ""), "job.yaml");
  ASSERT_TRUE(manifest.ok());
  const auto declared = Declared::Create(manifest->program);
  ASSERT_TRUE(declared.ok()) << declared.status().message();
  const auto traced = declared->TracePrediction(TypesOf(8)[0]);
  ASSERT_TRUE(traced.ok()) << traced.status().message();
  ASSERT_EQ(traced->prediction.program.outputs.size(), 2u);
  EXPECT_EQ(traced->prediction.program.outputs[0].name, "digit");
  EXPECT_EQ(traced->prediction.program.outputs[1].name, "parity");
}

}  // namespace
}  // namespace meshtrain::recipe
