// Layers that a text has once and a model several times.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "runtime/base/text.h"
#include "runtime/recipe/recipe.h"

namespace meshtrain::recipe {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// A program with this model, on two devices over `model`.
std::string WithModel(const std::string& model, const std::string& layout = "{}",
                      const std::string& mesh = "batch: 2") {
  return "mesh: {" + mesh +
         "}\ndata: {train: {text: {file: a.txt, length: 8}}, batch: 4}\n"
         "loss: {sparse_categorical_crossentropy: {from_logits: true}}\noptimizer: sgd\nlayout: " +
         layout + "\nmodel:\n" + model;
}

constexpr std::string_view kBlocks = R"(
  layers:
    - embedding: {name: tokens, input_dim: 256, output_dim: 8}
    - repeat:
        name: blocks
        times: 3
        layers:
          - layer_normalization: {name: ln}
          - multi_head_attention: {name: attention, num_heads: 4, use_causal_mask: true}
          - add: {name: sum, inputs: [attention, input]}
    - dense: {name: logits, units: 256}
)";

const std::vector<mesh::TensorType> kBatch = {{mesh::DType::kU8, {4, 8}},
                                              {mesh::DType::kI32, {4, 8}}};

std::string With(std::string_view from, const std::string& to) {
  std::string text(kBlocks);
  const size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return at == std::string::npos ? text : text.replace(at, from.size(), to);
}

TEST(RepeatTest, EachCopyHasItsOwnWeightsAndTakesWhatTheOneBeforeGives) {
  const auto manifest = ParseManifest(WithModel(std::string(kBlocks)), "f");
  ASSERT_TRUE(manifest.ok()) << manifest.status().message();
  const manifest::Model& model = manifest->program.model;
  ASSERT_EQ(model.layers.size(), 11u);
  EXPECT_EQ(model.layers[1].name, "blocks.0.ln");
  EXPECT_THAT(model.layers[1].inputs, ElementsAre("tokens"));
  EXPECT_EQ(model.layers[8].name, "blocks.2.attention");
  EXPECT_THAT(model.layers[8].inputs, ElementsAre("blocks.2.ln"));
  EXPECT_THAT(model.layers[9].inputs, ElementsAre("blocks.2.attention", "blocks.1.sum"));
  EXPECT_THAT(model.layers[10].inputs, ElementsAre("blocks.2.sum"));
  EXPECT_EQ(model.output, "logits");
  const auto traced = Build(manifest->program, kBatch);
  ASSERT_TRUE(traced.ok()) << traced.status().message();
  std::vector<std::string> paths;
  for (const auto& weight : traced->programs.parameters) paths.push_back(weight.name());
  EXPECT_EQ(paths.size(), 1u + 3 * 10 + 2);
  EXPECT_THAT(paths, ::testing::Contains("blocks.2.attention.query.kernel"));
  // What it writes reads as the same.
  manifest::Problems problems("again");
  const auto documents = manifest::ParseDocuments(
      manifest::ToYaml(manifest::WriteProgram(manifest->program)), "again");
  ASSERT_TRUE(documents.ok());
  EXPECT_TRUE(manifest::ReadProgram(problems, documents->front(), "program") == manifest->program);
  EXPECT_TRUE(problems.empty()) << problems.ToStatus().message();
}

TEST(RepeatTest, RepetitionsStandInEachOtherAndInChains) {
  const auto nested = ParseManifest(WithModel(R"(
  layers:
    - embedding: {name: tokens, input_dim: 256, output_dim: 8}
    - repeat:
        times: 2
        layers:
          - dense: {name: up, units: 8}
          - repeat: {name: twice, times: 2, layers: [dense: {name: more, units: 8, inputs: input}]}
          - add: {name: sum, inputs: [twice, input, tokens]}
        output: sum
    - dense: {units: 256, inputs: [repeat]}
)"),
                                    "f");
  ASSERT_TRUE(nested.ok()) << nested.status().message();
  const auto& layers = nested->program.model.layers;
  ASSERT_EQ(layers.size(), 10u);
  EXPECT_EQ(layers[7].name, "repeat.1.twice.1.more");
  EXPECT_THAT(layers[7].inputs, ElementsAre("repeat.1.twice.0.more"));
  EXPECT_THAT(layers[6].inputs, ElementsAre("repeat.1.up"));
  EXPECT_THAT(layers[8].inputs, ElementsAre("repeat.1.twice.1.more", "repeat.0.sum", "tokens"));
  EXPECT_THAT(layers[9].inputs, ElementsAre("repeat.1.sum"));

  const auto chain = ParseManifest(
      WithModel("  [embedding: {input_dim: 256, output_dim: 8}, repeat: {times: 2, layers: "
                "[dense: {units: 8}, dense: {units: 8}]}, dense: {units: 256}]"),
      "f");
  ASSERT_TRUE(chain.ok()) << chain.status().message();
  std::vector<std::string> names;
  for (const auto& layer : chain->program.model.layers) names.push_back(layer.name);
  EXPECT_THAT(names, ElementsAre("embedding", "repeat.0.dense", "repeat.0.dense_1",
                                 "repeat.1.dense", "repeat.1.dense_1", "dense"));
  const auto traced = Build(chain->program, kBatch);
  EXPECT_TRUE(traced.ok()) << traced.status().message();
}

TEST(RepeatTest, AMistakeIsToldOnceWithItsPlace) {
  const auto mistake = [](const std::string& model) {
    return ParseManifest(WithModel(model), "f").status().message();
  };
  EXPECT_EQ(mistake(With("[attention, input]", "[attentino, input]")),
            "f:16:30: program.model.layers[1].repeat.layers[2].add.inputs: no layer before this "
            "one is named `attentino`, did you mean `attention`?");
  EXPECT_THAT(mistake(With("times: 3", "times: 0")),
              HasSubstr("repeat.times: expected a whole number of at least 1, got: 0"));
  EXPECT_THAT(mistake(With("times: 3", "times: 100000000")),
              HasSubstr("repeat.times: expected at most 20000 layers in all"));
  EXPECT_THAT(mistake(With("        times: 3\n", "")), HasSubstr("`times` is missing"));
  EXPECT_THAT(mistake(With("times: 3", "times: 3\n        output: summ")),
              HasSubstr("repeat.output: expected the name of a layer of `layers`"));
  EXPECT_THAT(mistake(With("name: ln}", "name: tokens}")),
              HasSubstr("`tokens` is a name from before the block"));
  EXPECT_THAT(mistake(With("inputs: [attention, input]", "inputs: [input]")),
              HasSubstr("layer `blocks.2.attention` does not reach the output `logits`"));
  EXPECT_THAT(mistake(With("name: ln}", "name: 0.ln}")),
              HasSubstr("expected letters, digits and _, not a digit first"));
  EXPECT_THAT(mistake(With("- repeat:", "- repaet:")),
              HasSubstr("unknown layer `repaet`, did you mean `repeat`?"));
  EXPECT_THAT(mistake("  [repeat]\n"), HasSubstr("expected `repeat: {times: N, layers: [...]}`"));
  const std::string error = mistake(With("num_heads: 4", "num_heads: 4, heads: 2"));
  EXPECT_THAT(error, HasSubstr("unknown option `heads`"));
  EXPECT_EQ(Split(error, '\n').size(), 1u) << error;
}

// Each name is one layer, also one that the text does not have: a second layer of that name would
// be left out of a graph.
TEST(RepeatTest, ANameThatARepetitionWritesOutIsTakenOnce) {
  const auto mistake = [](const std::string& model) {
    return ParseManifest(WithModel(model), "f").status().message();
  };
  const std::string layers =
      "\n    - embedding: {name: tokens, input_dim: 256, output_dim: 8}\n"
      "    - dense: {name: b.1.d, units: 8}\n"
      "    - repeat: {name: b, times: 2, layers: [dense: {name: d, units: 8}]}\n"
      "    - dense: {units: 256}\n";
  EXPECT_EQ(mistake("  layers:" + layers),
            "f:10:44: program.model.layers[2].repeat.layers[0].dense: another layer is named "
            "`b.1.d`, as this one is where it is written out");
  EXPECT_EQ(mistake(layers),
            "f:10:44: program.model[2].repeat.layers[0].dense: another layer is named `b.1.d`, as "
            "this one is where it is written out");
  EXPECT_THAT(mistake("  [embedding: {input_dim: 256, output_dim: 8}, repeat: {name: b, times: 2, "
                      "layers: [repeat: {name: c, times: 2, layers: [dense: {name: d, units: 8}]}]}"
                      ", repeat: {name: b.0.c, times: 2, layers: [dense: {name: d, units: 8}]}]"),
              HasSubstr("program.model[2].repeat.layers[0].dense: another layer is named "
                        "`b.0.c.0.d`, as this one is where it is written out"));

  // A model that no text stands for.
  auto manifest = ParseManifest(WithModel(std::string(kBlocks)), "f");
  ASSERT_TRUE(manifest.ok()) << manifest.status().message();
  manifest->program.model.layers[4].name = manifest->program.model.layers[1].name;
  EXPECT_THAT(Build(manifest->program, kBatch).status().message(),
              HasSubstr("layers[1].repeat.layers[0].layer_normalization: what comes before it is "
                        "named `blocks.0.ln` already"));
}

TEST(RepeatTest, HeadsThatTheirAxisDoesNotDivideAreRefusedWithTheWeight) {
  const std::string layout =
      "{rules: [{match: 'blocks.*(query|key|value).kernel', spec: [unsharded, model]}]}";
  const auto read = [&](const std::string& mesh) {
    const auto manifest = ParseManifest(WithModel(std::string(kBlocks), layout, mesh), "f");
    EXPECT_TRUE(manifest.ok()) << manifest.status().message();
    return Build(manifest->program, kBatch).status();
  };
  EXPECT_TRUE(read("batch: 2, model: 4").ok()) << read("batch: 2, model: 4").message();
  EXPECT_THAT(read("batch: 1, model: 8").message(),
              HasSubstr("blocks.0.attention.query.kernel: expected axes that divide its 4 heads, "
                        "got: {*, model} of mesh batch=1,model=8"));
}

// Where the examples are split over it, an axis only stores a weight in parts.
TEST(RepeatTest, WeightsMayBeStoredInPartsThatCutHeads) {
  const auto manifest = ParseManifest(
      WithModel(With("num_heads: 4", "num_heads: 2"),
                "{rules: [{match: 'blocks.*kernel', spec: [unsharded, batch]}]}", "batch: 4"),
      "f");
  ASSERT_TRUE(manifest.ok()) << manifest.status().message();
  const auto built = Build(manifest->program, kBatch);
  EXPECT_TRUE(built.ok()) << built.status().message();
}

}  // namespace
}  // namespace meshtrain::recipe
