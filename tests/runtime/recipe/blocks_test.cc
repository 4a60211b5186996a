// Models with fewer of their alike blocks, and `layout: auto`, which is looked for on them.
#include "runtime/recipe/blocks.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <utility>

#include "runtime/recipe/recipe.h"
#include "runtime/sharding/choose.h"

namespace meshtrain::recipe {
namespace {

using ::testing::ElementsAre;

std::string Decoder(int times, const std::string& layout = "layout: auto\n",
                    const std::string& mesh = "batch: 2, model: 4") {
  return "mesh: {" + mesh +
         "}\ndata: {train: {text: {file: a.txt, length: 64}}, batch: 16}\n"
         "loss: {sparse_categorical_crossentropy: {from_logits: true}}\noptimizer: adam\n" +
         layout + R"(model:
  layers:
    - embedding: {name: tokens, input_dim: 256, output_dim: 128}
    - repeat:
        name: blocks
        times: )" +
         std::to_string(times) + R"(
        layers:
          - layer_normalization: {name: ln1}
          - multi_head_attention: {name: attention, num_heads: 4, use_causal_mask: true}
          - add: {name: attended, inputs: [attention, input]}
          - layer_normalization: {name: ln2}
          - dense: {name: up, units: 512, activation: gelu_tanh}
          - dense: {name: down, units: 128}
          - add: {name: fed, inputs: [down, attended]}
    - dense: {name: logits, units: 256}
)";
}

constexpr const char* kColumnsThenRows = R"(layout:
  rules:
    - {match: 'blocks.*(query|key|value|up)\.kernel', spec: [unsharded, model]}
    - {match: 'blocks.*(query|key|value|up)\.bias', spec: [model]}
    - {match: 'blocks.*(output|down)\.kernel', spec: [model, unsharded]}
    - {match: 'logits\.kernel', spec: [unsharded, model]}
    - {match: 'logits\.bias', spec: [model]}
)";

manifest::Program Declare(const std::string& text) {
  auto manifest = ParseManifest(text, "f");
  EXPECT_TRUE(manifest.ok()) << manifest.status().message();
  return manifest.ok() ? std::move(manifest->program) : manifest::Program();
}

Traced Built(const std::string& text) {
  const std::vector<mesh::TensorType> batch = {{mesh::DType::kU8, {16, 64}},
                                               {mesh::DType::kI32, {16, 64}}};
  auto traced = Build(Declare(text), batch);
  EXPECT_TRUE(traced.ok()) << traced.status().message();
  return traced.ok() ? *std::move(traced) : Traced();
}

sharding::Spent SpentBy(const Traced& traced) {
  const sharding::Options options;
  const auto step =
      sharding::Shard(traced.programs.train_step, traced.mesh,
                      {.inputs = traced.layouts.inputs, .states = traced.layouts.states}, options);
  EXPECT_TRUE(step.ok()) << step.status().message();
  return step.ok() ? sharding::PredictSpent(*step, options.cost) : sharding::Spent();
}

TEST(BlocksTest, NumbersOfAPathAreItsBlocks) {
  EXPECT_EQ(PlaceInBlocks("blocks.12.mlp.up.kernel"), "blocks.*.mlp.up.kernel");
  EXPECT_EQ(PlaceInBlocks("optimizer.m.a.0.b.1.c"), "optimizer.m.a.*.b.*.c");
  EXPECT_EQ(PlaceInBlocks("dense_1.kernel"), "dense_1.kernel");
}

TEST(BlocksTest, TheFirstBlocksStayAndWhatIsBehindTakesFromTheLastOfThem) {
  const manifest::Model two = Declare(Decoder(2)).model;
  EXPECT_EQ(WithFewerBlocks(Declare(Decoder(7)).model, 2), two);
  EXPECT_EQ(WithFewerBlocks(two, 2), two);
  EXPECT_THAT(two.layers.back().inputs, ElementsAre("blocks.1.fed"));
  const std::string chain =
      "mesh: {batch: 2}\ndata: {train: {idx: {images: a, labels: b}}, batch: 4}\nloss: mse\n"
      "optimizer: sgd\nmodel: [repeat: {times: 5, layers: [dense: {units: 8}]}, dense: {units: 2}]";
  const manifest::Model shorter = WithFewerBlocks(Declare(chain).model, 3);
  ASSERT_EQ(shorter.layers.size(), 4u);
  EXPECT_EQ(shorter.layers[2].name, "repeat.2.dense");
  EXPECT_EQ(shorter.layers[3].name, "dense");
}

TEST(BlocksTest, BlocksThatAreNotAlikeAllStay) {
  const manifest::Model model = Declare(Decoder(4)).model;
  constexpr size_t kInBlock = 7;
  manifest::Model other = model;
  other.layers[1 + 3 * kInBlock + 4].options = other.layers[1 + 3 * kInBlock + 5].options;
  EXPECT_EQ(WithFewerBlocks(other, 2), other);
  other = model;  // a link over a block
  other.layers[1 + 3 * kInBlock + 2].inputs[1] = "blocks.1.fed";
  EXPECT_EQ(WithFewerBlocks(other, 2), other);
  other = model;  // a block in the middle is asked for
  other.layers.back().inputs = {"blocks.2.fed"};
  EXPECT_EQ(WithFewerBlocks(other, 2), other);
  other = model;  // not one after another
  std::swap(other.layers[1 + kInBlock], other.layers[1 + 2 * kInBlock]);
  EXPECT_EQ(WithFewerBlocks(other, 2), other);
}

TEST(BlocksTest, AutomaticLayoutsAreNoWorseThanColumnsThenRowsAndEqualInAllBlocks) {
  for (const char* mesh : {"batch: 2, model: 4", "batch: 2, model: 2, rows: 2"}) {
    SCOPED_TRACE(mesh);
    const Traced many = Built(Decoder(6, "layout: auto\n", mesh));
    const Traced few = Built(Decoder(2, "layout: auto\n", mesh));
    for (const auto& [name, layout] : many.layouts.states) {
      std::string in_first = name;
      for (const char* block : {".1.", ".2.", ".3.", ".4.", ".5."}) {
        const size_t at = in_first.find(std::string("blocks") + block);
        if (at != std::string::npos) in_first.replace(at + 6, 3, ".0.");
      }
      EXPECT_EQ(layout, few.layouts.states.at(in_first)) << name;
    }
    const bool two = std::string(mesh).find("rows") == std::string::npos;
    const Traced by_hand = Built(Decoder(6, kColumnsThenRows, two ? mesh : "batch: 2, model: 4"));
    const sharding::Spent found = SpentBy(many), wanted = SpentBy(by_hand);
    EXPECT_LE(found.seconds, wanted.seconds);
    // Looked for on two blocks, where what is saved beside them may make up for some kilobytes.
    EXPECT_LE(found.sent_bytes, 1.01 * wanted.sent_bytes);
    EXPECT_LE(found.flops, wanted.flops);
  }
}

TEST(BlocksTest, BlocksThatChangeTheirShapeAreLookedAtWhole) {
  // What is behind three strides has another weight, or another reshape, than behind two; and what
  // a block adds to its input makes each block's weights larger than the last's.
  const std::string shrinks = R"(
    - reshape: {name: rows, inputs: [x], dims: [32, 1]}
    - conv_1d: {name: stem, inputs: [rows], filters: 16, kernel_size: [3], padding: same}
    - repeat:
        name: blocks
        inputs: [stem]
        times: 3
        layers:
          - conv_1d: {name: c, inputs: [input], filters: 16, kernel_size: [3], strides: [2], padding: same}
)";
  const std::string grows = R"(
    - dense: {name: stem, inputs: [x], units: 64}
    - repeat:
        name: blocks
        inputs: [stem]
        times: 4
        layers:
          - dense: {name: grow, inputs: [input], units: 64, activation: relu}
          - concatenate: {name: cat, inputs: [input, grow]}
)";
  const std::string flat[] = {
      "    - flatten: {name: flat, inputs: [blocks]}\n",
      "    - reshape: {name: flat, inputs: [blocks], dims: [64]}\n",
      "    - activation: {name: flat, inputs: [blocks], activation: relu}\n"};
  for (const std::string& layers : {shrinks + flat[0], shrinks + flat[1], grows + flat[2]}) {
    const std::string text =
        "mesh: {batch: 2, model: 2}\n"
        "data: {train: {npy: {images: x.npy, labels: y.npy}}, batch: 8}\n"
        "loss: {sparse_categorical_crossentropy: {from_logits: true}}\noptimizer: adam\n"
        "layout: auto\nmodel:\n  output: logits\n  layers:" +
        layers +
        "    - dense: {name: wide, inputs: [flat], units: 2048}\n"
        "    - dense: {name: logits, inputs: [wide], units: 10}\n";
    SCOPED_TRACE(text);
    const auto traced =
        Build(Declare(text), {{mesh::DType::kF32, {8, 32}}, {mesh::DType::kI32, {8}}});
    ASSERT_TRUE(traced.ok()) << traced.status().message();
    for (const nn::Parameter& weight : traced->programs.parameters) {
      EXPECT_TRUE(traced->layouts.states.contains(weight.name())) << weight.name();
    }
  }
}

}  // namespace
}  // namespace meshtrain::recipe
