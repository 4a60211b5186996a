#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "runtime/base/file.h"
#include "runtime/base/text.h"
#include "runtime/recipe/recipe.h"

namespace meshtrain::recipe {
namespace {

using manifest::LayoutSpecs;
using manifest::Model;
using manifest::ParseDocuments;
using manifest::Program;
using ::testing::HasSubstr;

// Line 1 is `program:`; each test replaces one line.
const char* const kGood[] = {
    "program:",                                                                    // 1
    "  mesh: {batch: 4, model: 2}",                                                // 2
    "  data:",                                                                     // 3
    "    train: {idx: {images: a.gz, labels: b.gz}, take: 5000}",                  // 4
    "    map: [{scale: 0.5}]",                                                     // 5
    "    batch: 128",                                                              // 6
    "  model:",                                                                    // 7
    "    - flatten",                                                               // 8
    "    - dense: {name: hidden_1, units: 700, activation: relu}",                 // 9
    "    - dense: {units: 10}",                                                    // 10
    "  loss: {sparse_categorical_crossentropy: {from_logits: true}}",              // 11
    "  optimizer: {adam: {learning_rate: 0.001, epsilon: 1.0e-7}}",                // 12
    "  metrics: [accuracy]",                                                       // 13
    "  layout: {rules: [{match: 'hidden_1.*kernel', spec: [unsharded, model]}]}",  // 14
    "  train: {epochs: 3}",                                                        // 15
};

// The good text with line `n` (from 1) replaced; 0: nothing.
std::string With(int n, std::string_view line) {
  std::string text;
  int at = 0;
  for (const char* good : kGood) {
    text += std::string(++at == n ? line : std::string_view(good)) + "\n";
  }
  return text;
}

TEST(ParseTest, ReadsEveryField) {
  const auto manifest = ParseManifest(With(0, ""), "job.yaml");
  ASSERT_TRUE(manifest.ok()) << manifest.status().message();
  const Program& p = manifest->program;
  EXPECT_EQ(p.mesh, (std::vector<mesh::Axis>{{"batch", 4}, {"model", 2}}));
  EXPECT_EQ(p.data.train.from.kind, "idx");
  EXPECT_EQ(p.data.train.from.options.Text("labels"), "b.gz");
  EXPECT_EQ(p.data.train.take, 5000);
  EXPECT_EQ(p.data.map.at(0).options.Number("scale", 0), 0.5);
  EXPECT_EQ(p.data.batch, 128);
  ASSERT_EQ(p.model.layers.size(), 3u);
  EXPECT_EQ(p.model.layers[0].name, "flatten");
  EXPECT_EQ(p.model.layers[1].name, "hidden_1");
  EXPECT_EQ(p.model.layers[1].options.Int("units", 0), 700);
  EXPECT_EQ(p.model.layers[1].options.Text("activation"), "relu");
  EXPECT_EQ(p.model.layers[2].name, "dense");
  EXPECT_TRUE(p.loss.options.Bool("from_logits", false));
  EXPECT_EQ(p.optimizer.kind, "adam");
  EXPECT_EQ(p.optimizer.options.Number("epsilon", 0), 1e-7);
  ASSERT_EQ(p.metrics.size(), 1u);
  EXPECT_EQ(p.layout.rules.at(0).specs, (LayoutSpecs{"unsharded", "model"}));
  EXPECT_EQ(p.train.epochs, 3);
}

struct Case {
  std::string name;
  int line;
  std::string text;
  std::string want;  // the whole message
};
void PrintTo(const Case& c, std::ostream* out) { *out << c.name; }

class ParseErrorTest : public ::testing::TestWithParam<Case> {};

TEST_P(ParseErrorTest, SaysWhereAndWhatWouldBeRight) {
  const auto manifest = ParseManifest(With(GetParam().line, GetParam().text), "job.yaml");
  ASSERT_FALSE(manifest.ok());
  EXPECT_EQ(manifest.status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(manifest.status().message(), GetParam().want);
}

const Case kCases[] = {
    {"UnknownOption", 10, "    - dense: {unit: 10, units: 3}",
     "job.yaml:10:15: program.model[2].dense: unknown option `unit`, did you mean `units`?"},
    {"MissingOption", 10, "    - dense",
     "job.yaml:10:7: program.model[2].dense: `units` is missing"},
    {"UnknownLayer", 10, "    - dens: {units: 10}",
     "job.yaml:10:7: program.model[2]: unknown layer `dens`, did you mean `dense`?"},
    {"LayerLikeNothing", 10, "    - transformer",
     "job.yaml:10:7: program.model[2]: unknown layer `transformer`; known: dense, flatten, "
     "reshape, activation, "
     "dropout, permute, repeat_vector, add, subtract, multiply, average, maximum, minimum, "
     "concatenate, embedding, position_embedding, multi_head_attention, "
     "conv_1d, conv_2d, conv_3d, max_pooling_1d, "
     "max_pooling_2d, "
     "max_pooling_3d, average_pooling_1d, average_pooling_2d, average_pooling_3d, "
     "global_max_pooling_1d, global_max_pooling_2d, global_max_pooling_3d, "
     "global_average_pooling_1d, global_average_pooling_2d, global_average_pooling_3d, "
     "batch_normalization, layer_normalization, group_normalization, rms_normalization, "
     "conv_1d_transpose, conv_2d_transpose, conv_3d_transpose, depthwise_conv_1d, "
     "depthwise_conv_2d, repeat"},
    {"OptionsNotIndented", 10, "    - dense:\n      units: 10",
     "job.yaml:10:7: program.model[2]: expected one layer, got: a map of 2 keys (options of "
     "`dense` are indented below "
     "it)"},
    {"UnknownActivation", 10, "    - dense: {units: 10, activation: rleu}",
     "job.yaml:10:38: program.model[2].dense.activation: expected one of linear, relu, gelu, "
     "sigmoid, tanh, softmax, gelu_tanh, silu, elu, leaky_relu, softplus, "
     "got: rleu, did you mean `relu`?"},
    {"UnitsOfZero", 10, "    - dense: {units: 0}",
     "job.yaml:10:22: program.model[2].dense.units: expected a whole number of at least 1, got: 0"},
    {"UnitsInQuotes", 10, "    - dense: {units: \"10\"}",
     "job.yaml:10:22: program.model[2].dense.units: expected a whole number of at least 1, got: "
     "\"10\""},
    {"NameTwice", 10, "    - dense: {name: hidden_1, units: 10}",
     "job.yaml:10:21: program.model[2].dense.name: another layer is named `hidden_1` already"},
    {"NameWithAnEmptyPart", 10, "    - dense: {name: a..b, units: 10}",
     "job.yaml:10:21: program.model[2].dense.name: expected letters, digits and _, not a digit "
     "first, or several of those with dots between, got: a..b"},
    {"NameThatBeginsWithANumber", 10, "    - dense: {name: 0.b, units: 10}",
     "job.yaml:10:21: program.model[2].dense.name: expected letters, digits and _, not a digit "
     "first, or several of those with dots between, got: 0.b"},
    {"DropoutOfOne", 10, "    - dropout: {rate: 1.0}",
     "job.yaml:10:23: program.model[2].dropout.rate: expected a number of at least 0 and below 1, "
     "got: 1.0"},
    {"SeedOfOneNumber", 10,
     "    - dense: {units: 10, kernel_initializer: {xavier_uniform: {seed: [22]}}}",
     "job.yaml:10:70: program.model[2].dense.kernel_initializer.xavier_uniform.seed: expected two "
     "whole numbers, "
     "[22, 23], got: a list"},
    {"UnknownInitializer", 10, "    - dense: {units: 10, kernel_initializer: glorot_unifrom}",
     "job.yaml:10:46: program.model[2].dense.kernel_initializer: unknown initializer "
     "`glorot_unifrom`, did you mean "
     "`glorot_uniform`?"},
    {"AddInAList", 10, "    - add",
     "job.yaml:10:7: program.model[2].add: takes several inputs: write the model as `layers:` with "
     "`inputs:`"},
    {"UnknownField", 15, "  trian: {epochs: 3}",
     "job.yaml:15:3: program: unknown field `trian`, did you mean `train`?"},
    {"MissingField", 11, "", "job.yaml:2:3: program: `loss` is missing"},
    {"UnknownLoss", 11, "  loss: sparse_categorical_crossentrop",
     "job.yaml:11:9: program.loss: unknown loss `sparse_categorical_crossentrop`, did you mean "
     "`sparse_categorical_crossentropy`?"},
    {"UnknownOptimizer", 12, "  optimizer: adm",
     "job.yaml:12:14: program.optimizer: unknown optimizer `adm`, did you mean `adam`?"},
    {"OptionOfAnotherOptimizer", 12, "  optimizer: {sgd: {beta_1: 0.9}}",
     "job.yaml:12:21: program.optimizer.sgd: unknown option `beta_1`; known: learning_rate, "
     "clipnorm, "
     "global_clipnorm, clipvalue, weight_decay, exclude_from_weight_decay, momentum, nesterov"},
    {"ExclusionOfNothing", 12,
     "  optimizer: {sgd: {weight_decay: 0.1, exclude_from_weight_decay: [bais]}}",
     "job.yaml:12:15: program.optimizer.sgd.exclude_from_weight_decay: expected parts of the "
     "weights' paths, got: `bais`, which none contains"},
    {"UnknownMetric", 13, "  metrics: [acuracy]",
     "job.yaml:13:13: program.metrics[0]: unknown metric `acuracy`, did you mean `accuracy`?"},
    {"UnknownOptionOfAMetric", 13, "  metrics: [recall: {clas: 1}]",
     "job.yaml:13:22: program.metrics[0].recall: unknown option `clas`, did you mean `class`?"},
    {"MetricTwice", 13, "  metrics: [accuracy, recall: {class: 1, name: accuracy}]",
     "job.yaml:13:23: program.metrics[1]: metric `accuracy` is here twice (`name` tells them "
     "apart)"},
    {"MetricOfAFigureThatIsThere", 13, "  metrics: [recall: {class: 1, name: loss}]",
     "job.yaml:13:13: program.metrics[0].recall.name: expected a name that is not taken, got: "
     "loss"},
    {"NameOfAMetric", 13, "  metrics: [recall: {class: 1, name: val_1}]",
     "job.yaml:13:13: program.metrics[0].recall.name: expected small letters, digits and _, with "
     "no val_ or test_ before them, got: val_1"},
    {"MetricWithoutItsClass", 13, "  metrics: [accuracy, auc]",
     "job.yaml:13:23: program.metrics[1].auc.class: expected the number of the class that is "
     "looked for, with sparse_categorical_crossentropy, got: none"},
    {"ThresholdOfAMetric", 13, "  metrics: [precision: {class: 1, threshold: 2}]",
     "job.yaml:13:46: program.metrics[0].precision.threshold: expected a number of at least 0 and "
     "of at most 1, "
     "got: 2"},
    {"AxisOfSizeZero", 2, "  mesh: {batch: 0, model: 2}",
     "job.yaml:2:17: program.mesh.batch: expected a size of at least 1, got: 0"},
    {"BadAxisName", 2, "  mesh: {ba tch: 4, model: 2}",
     "job.yaml:2:9: program.mesh: expected an axis name of letters, digits and _, got: `ba tch`"},
    {"AxisThatNothingUses", 2, "  mesh: {batch: 4, model: 2, spare: 2}",
     "job.yaml:2:3: program.mesh: axis `spare` of size 2 splits nothing: no layout rule and no "
     "input uses it"},
    {"NoAxisNamedBatch", 2, "  mesh: {data: 4, model: 2}",
     "job.yaml:2:3: program.mesh: axis `data` of size 4 splits nothing: no layout rule and no "
     "input uses it (inputs "
     "are split over an axis named `batch`, or as layout.inputs says)"},
    {"TooFewDevices", 2, "  mesh: {batch: 4, model: 2}\n  devices: {kind: cpu, count: 4}",
     "job.yaml:2:3: program.mesh: mesh batch=4,model=2 needs 8 devices, got: 1 process with 4 "
     "devices"},
    {"BatchNotDivided", 6, "    batch: 130",
     "job.yaml:6:12: program.data.batch: expected a multiple of 4, the size of axis `batch` (or "
     "data.uneven: true), "
     "got: 130"},
    {"BatchMissing", 6, "", "job.yaml:4:5: program.data: `batch` is missing"},
    {"RuleOfAnotherRank", 14, "  layout: {rules: [{match: 'hidden_1', spec: [unsharded, model]}]}",
     "job.yaml:14:20: program.layout.rules[0]: layout [unsharded, model] has 2 entries, but "
     "`hidden_1.bias` has rank "
     "1"},
    {"RuleThatMatchesNothing", 14,
     "  layout: {rules: [{match: 'hidden_2.*kernel', spec: [unsharded, model]}]}",
     "job.yaml:14:20: program.layout.rules[0]: layout rule `hidden_2.*kernel` matches no parameter "
     "(rules match from "
     "the "
     "start of a path); near: hidden_1.kernel"},
    {"RuleWithAnUnknownAxis", 14,
     "  layout: {rules: [{match: 'hidden_1.*kernel', spec: [model, modle]}]}",
     "job.yaml:14:20: program.layout.rules[0]: unknown mesh axis `modle`, did you mean `model`?"},
    {"RepeatForEver", 5, "    repeat: true",
     "job.yaml:15:3: program.train: data.repeat is for ever, so `steps_per_epoch` must say where "
     "an epoch ends"},
    {"SumsOfHalvesOfAnotherType", 15, "  train: {reduce_dtype: f16}\n  precision: bf16",
     "job.yaml:15:25: program.train.reduce_dtype: expected f32 or program.precision's bf16, got: "
     "f16"},
    {"SumsOfHalvesWithoutAny", 15, "  train: {reduce_dtype: bf16}",
     "job.yaml:15:25: program.train.reduce_dtype: expected f32, in which the model computes "
     "(precision), got: bf16"},
    {"KeyTwice", 15, "  metrics: [accuracy]", "job.yaml:15:3: key `metrics` is here twice"},
    {"NotYaml", 15, "  train: {epochs: 3", "job.yaml:16:1: end of map flow not found"},
    {"SeveralAtOnce", 9, "    - dense: {name: hidden_1, units: -1, activaton: relu}",
     "job.yaml:9:38: program.model[1].dense.units: expected a whole number of at least 1, got: -1\n"
     "job.yaml:9:42: program.model[1].dense: unknown option `activaton`, did you mean "
     "`activation`?"},
};

INSTANTIATE_TEST_SUITE_P(Errors, ParseErrorTest, ::testing::ValuesIn(kCases),
                         [](const auto& info) { return info.param.name; });

TEST(ParseTest, UnevenAllowsABatchThatTheAxisDoesNotDivide) {
  EXPECT_TRUE(ParseManifest(With(6, "    batch: 130\n    uneven: true"), "job.yaml").ok());
}

TEST(ParseTest, AMeshMustFitTheProcessesAndTheDevicesGiven) {
  const std::string text = With(0, "");
  EXPECT_TRUE(ParseManifest(text, "f", {.processes = 4}).ok());
  EXPECT_EQ(ParseManifest(text, "f", {.processes = 3}).status().message(),
            "f:2:3: program.mesh: mesh batch=4,model=2 needs 8 devices, which 3 processes cannot "
            "share evenly");
  EXPECT_EQ(ParseManifest(text, "f", {.processes = 2, .max_devices = 2}).status().message(),
            "f:2:3: program.mesh: mesh batch=4,model=2 needs 8 devices, 4 in each process, got: 2");
}

TEST(ParseTest, TheOrderOfTheMeshMayBeSaid) {
  const auto manifest =
      ParseManifest(With(2, "  mesh: {batch: 4, model: 2}\n  mesh_order: [model, batch]"), "f");
  ASSERT_TRUE(manifest.ok()) << manifest.status().message();
  EXPECT_EQ(manifest->program.mesh, (std::vector<mesh::Axis>{{"model", 2}, {"batch", 4}}));
  for (const char* order :
       {"[batch]", "[batch, batch]", "[batch, modle]", "[batch, model, model]"}) {
    const auto wrong = ParseManifest(
        With(2, "  mesh: {batch: 4, model: 2}\n  mesh_order: " + std::string(order)), "f");
    EXPECT_NE(wrong.status().message().find(
                  "mesh_order: expected each axis of `mesh` once (batch, model), got: batch"),
              std::string::npos)
        << wrong.status().message();
  }
}

TEST(ParseTest, JsonIsReadTheSame) {
  const std::string json =
      "{\n\t\"mesh\": {\"batch\": 8},\n\t\"data\": {\"train\": {\"idx\": {\"images\": "
      "\"a\\u002egz\", \"labels\": "
      "\"b\"}}, "
      "\"batch\": 1.28e2},\n\t\"model\": [\"flatten\", {\"dense\": {\"units\": 10}}],\n"
      "\t\"loss\": {\"mse\": {}},\n\t\"optimizer\": \"sgd\",\n\t\"seed\": 3\n}\n";
  const auto manifest = ParseManifest(json, "job.json");
  ASSERT_TRUE(manifest.ok()) << manifest.status().message();
  EXPECT_EQ(manifest->program.seed, 3);
  EXPECT_EQ(manifest->program.data.batch, 128);
  EXPECT_EQ(std::get<data::IdxFiles>(TrainPipeline(manifest->program).source.from).images, "a.gz");
  EXPECT_EQ(LossOf(manifest->program.loss).function->name(), "mean_squared_error");
}

TEST(ParseTest, StagesComeInTheOrderOfTfData) {
  const auto manifest = ParseManifest(With(6,
                                           "    batch: 128\n    prefetch: 2\n    shuffle: {buffer: "
                                           "100, seed: 1}\n    drop_remainder: true"),
                                      "f");
  ASSERT_TRUE(manifest.ok()) << manifest.status().message();
  const data::PipelineSpec train = TrainPipeline(manifest->program);
  ASSERT_EQ(train.stages.size(), 5u);
  EXPECT_TRUE(std::holds_alternative<data::MapStage>(train.stages[0]));
  EXPECT_TRUE(std::holds_alternative<data::CacheStage>(train.stages[1]));
  EXPECT_EQ(std::get<data::ShuffleStage>(train.stages[2]).buffer, 100);
  EXPECT_TRUE(std::get<data::BatchStage>(train.stages[3]).drop_remainder);
  EXPECT_EQ(std::get<data::PrefetchStage>(train.stages[4]).depth, 2);
  // Evaluation sees every example.
  Program with_test = manifest->program;
  with_test.data.test = with_test.data.train;
  const data::PipelineSpec test = TestPipeline(with_test);
  ASSERT_EQ(test.stages.size(), 4u);
  EXPECT_FALSE(std::get<data::BatchStage>(test.stages[2]).drop_remainder);
}

TEST(ParseTest, AFunctionalModelNamesItsInputs) {
  std::string text;
  for (const char* line : kGood) {
    if (std::string_view(line).starts_with("    - ")) continue;
    text += std::string(line) + "\n";
    if (std::string_view(line) != "  model:") continue;
    text +=
        "    layers:\n    - flatten: {name: flat, inputs: x}\n    - dense: {name: hidden_1, units: "
        "4}\n"
        "    - dense: {name: b, units: 4, inputs: [flat]}\n    - add: {inputs: [hidden_1, b]}\n";
  }
  const auto manifest = ParseManifest(text, "f");
  ASSERT_TRUE(manifest.ok()) << manifest.status().message();
  const Model& model = manifest->program.model;
  EXPECT_TRUE(model.functional);
  EXPECT_EQ(model.layers.at(1).inputs, (std::vector<std::string>{"flat"}));
  EXPECT_EQ(model.output, "add");

  std::string wrong = text;
  wrong.replace(wrong.find("[flat]"), 6, "[falt]");
  EXPECT_EQ(ParseManifest(wrong, "f").status().message(),
            "f:11:34: program.model.layers[2].dense.inputs: no layer before this one is named "
            "`falt`, did you mean "
            "`flat`?");
  wrong = text;
  wrong.replace(wrong.find("[hidden_1, b]"), 13, "[hidden_1, hidden_1]");
  EXPECT_EQ(ParseManifest(wrong, "f").status().message(),
            "f:11:7: program.model.layers[2].dense: layer `b` does not reach the output `add`");
}

// Attention may have a mask beside its sequence; what takes one input is given one.
TEST(ParseTest, AttentionMayHaveAMaskForASecondInput) {
  const auto read = [](const std::string& layer) {
    std::string text;
    for (const char* line : kGood) {
      if (std::string_view(line).starts_with("    - ")) continue;
      text += std::string(line) + "\n";
      if (std::string_view(line) != "  model:") continue;
      text += "    layers:\n    - flatten: {name: seen, inputs: x}\n    - " + layer + "\n";
    }
    return ParseManifest(text, "f");
  };
  const auto masked =
      read("multi_head_attention: {name: hidden_1, num_heads: 2, inputs: [x, seen]}");
  ASSERT_TRUE(masked.ok()) << masked.status().message();
  EXPECT_EQ(masked->program.model.layers.at(1).inputs, (std::vector<std::string>{"x", "seen"}));
  EXPECT_THAT(read("multi_head_attention: {name: hidden_1, num_heads: 2, inputs: [x, seen, seen]}")
                  .status()
                  .message(),
              HasSubstr("multi_head_attention.inputs: expected one name or two, got: "));
  EXPECT_THAT(read("dense: {name: hidden_1, units: 2, inputs: [x, seen]}").status().message(),
              HasSubstr("dense.inputs: expected one name, got: "));
}

TEST(ParseTest, AJobIsFoundAmongOtherDocuments) {
  std::string program;
  for (const std::string& line : Split(With(0, ""), '\n')) program += "  " + line + "\n";
  const std::string text =
      "apiVersion: v1\nkind: ConfigMap\n---\napiVersion: meshtrain.dev/v1\nkind: "
      "TrainingJob\nmetadata: {name: mlp, "
      "namespace: lab}\nspec:\n  strategy: Mesh\n  replicaSpecs: {chief: {replicas: 1}, worker: "
      "{replicas: 3}}\n"
      "  checkpoint: {path: /ckpt, everySteps: 10, resume: Never, volumeClaimTemplate: {}}\n" +
      program;
  const auto manifest = ParseManifest(text, "job.yaml");
  ASSERT_TRUE(manifest.ok()) << manifest.status().message();
  EXPECT_EQ(manifest->name, "mlp");
  EXPECT_EQ(manifest->name_space, "lab");
  EXPECT_EQ(manifest->strategy, "Mesh");
  EXPECT_EQ(manifest->replicas.at("worker"), 3);
  EXPECT_EQ(manifest->checkpoint.every_steps, 10);
  EXPECT_FALSE(manifest->checkpoint.resume);

  EXPECT_EQ(
      ParseManifest("kind: TrainingJob\nspec: {replicaSpecs: {}}", "job.yaml").status(),
      NotFound("job.yaml:2:7: spec: `program` is missing: this job runs an image of its own"));
  EXPECT_EQ(ParseManifest("kind: Pod", "p").status().message(),
            "p:1:7: kind: expected TrainingJob, got: Pod");
  EXPECT_EQ(ParseManifest("", "e").status().message(),
            "e: expected a TrainingJob or a program, got: an empty text");
}

TEST(ParseTest, TheExamplesAreGood) {
  for (const char* name : {"mnist-mlp.yaml", "mnist-mlp-model-parallel.yaml"}) {
    const auto text = ReadFile(std::string(MT_TESTDATA) + "/../../deploy/examples/" + name);
    ASSERT_TRUE(text.ok()) << text.status().message();
    const auto manifest = ParseManifest(*text, name);
    EXPECT_TRUE(manifest.ok()) << manifest.status().message();
  }
}

// --- the tree behind it

TEST(DocumentTest, AnAliasBombIsAnError) {
  std::string text = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n";
  for (int i = 1; i < 9; ++i) {
    const std::string before = "*a" + std::to_string(i - 1);
    text += "a" + std::to_string(i) + ": &a" + std::to_string(i) + " [" + before;
    for (int k = 0; k < 9; ++k) text += ", " + before;
    text += "]\n";
  }
  const auto documents = ParseDocuments(text, "bomb.yaml");
  EXPECT_EQ(documents.status().code(), StatusCode::kInvalidArgument);
  EXPECT_NE(documents.status().message().find("more than 200000 values (aliases counted in full)"),
            std::string::npos)
      << documents.status().message();
}

TEST(DocumentTest, DepthAndSizeAreBounded) {
  EXPECT_EQ(
      ParseDocuments(std::string(100, '[') + std::string(100, ']'), "deep").status().message(),
      "deep:1:65: nested deeper than 64");
  EXPECT_EQ(ParseDocuments("a: b", "long", {.bytes = 3}).status().message(),
            "long: expected at most 3 B, got: 4 B");
}

TEST(DocumentTest, AliasesMergeKeysAndTags) {
  const auto documents = ParseDocuments("a: &x {k: 1}\nb: *x\nc: !!str 5\n", "f");
  ASSERT_TRUE(documents.ok()) << documents.status().message();
  EXPECT_EQ((*documents)[0].Find("b")->Find("k")->AsInt(), 1);
  EXPECT_EQ((*documents)[0].Find("c")->AsInt(), std::nullopt);
  EXPECT_EQ(ParseDocuments("a: &x {k: 1}\nb: {<<: *x}\n", "f").status().message(),
            "f:2:5: merge keys (<<) are not read");
  EXPECT_EQ(ParseDocuments("a: !!binary 5", "f").status().message(),
            "f:1:4: tags are not read, got: tag:yaml.org,2002:binary");
  EXPECT_EQ(ParseDocuments("a: &x [*x]", "f").status().code(), StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace meshtrain::recipe
