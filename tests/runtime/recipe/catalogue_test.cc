// The manifest's rows and what they name.
#include "runtime/manifest/catalogue/catalogue.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "runtime/manifest/fields/fields.h"
#include "runtime/recipe/recipe.h"

namespace meshtrain::recipe {
namespace {

// What can be chosen by name can be made.
TEST(CatalogueTest, EveryNameIsKnownToItsFolder) {
  for (const auto& entry : manifest::Optimizers().entries) {
    const auto made = MakeOptimizer({.kind = std::string(entry.name)});
    ASSERT_NE(made, nullptr);
    EXPECT_EQ(made->kind(), entry.name);
  }
  for (const auto& entry : manifest::Layers().entries) {
    manifest::Layer layer{.kind = std::string(entry.name), .name = "it"};
    const auto made = MakeLayer(layer);
    ASSERT_NE(made, nullptr);
    EXPECT_EQ(made->kind(), entry.name);
  }
  for (const auto& entry : manifest::Losses().entries) {
    const train::Loss made = LossOf({.kind = std::string(entry.name)});
    ASSERT_NE(made.function, nullptr);
    // Some have a short name beside their own.
    const bool same = made.function->name() == entry.name;
    EXPECT_TRUE(same || entry.about == fmt::format("As {}.", made.function->name())) << entry.name;
  }
  for (const auto& entry : manifest::Metrics().entries) {
    const train::Metric made = MetricOf({.kind = std::string(entry.name)});
    EXPECT_NE(made.of_batch, nullptr);
    EXPECT_EQ(made.name, entry.name);
  }
  for (const auto& entry : manifest::Sources().entries) {
    const data::SourceOptions made = SourceOf({.kind = std::string(entry.name)});
    EXPECT_EQ(std::holds_alternative<data::TextFile>(made), entry.name == "text");
    EXPECT_EQ(std::holds_alternative<data::IdxFiles>(made), entry.name == "idx");
    EXPECT_EQ(std::holds_alternative<data::NpyFiles>(made), entry.name == "npy");
    EXPECT_EQ(std::holds_alternative<data::ImageFolder>(made), entry.name == "image_folder");
  }
  std::vector<std::string_view> fields = {"program", "strategy", "checkpoint"};
  for (const auto& field : manifest::ProgramFields()) fields.push_back(field.name);
  EXPECT_THAT(manifest::BuiltInProgramFieldNames(), ::testing::UnorderedElementsAreArray(fields));
  for (const auto& entry : manifest::Layers().entries) {
    for (const auto& option : entry.options) {
      if (option.name != "activation") continue;
      EXPECT_EQ(option.words, nn::ActivationNames());
    }
  }
  EXPECT_EQ(manifest::kLabelName, train::kLabelName);
  for (const auto& entry : manifest::Sources().entries) {
    EXPECT_EQ(entry.components,
              (std::vector{std::string(train::kInputName), std::string(train::kLabelName)}));
  }
}

// Each weight of each layer takes a layout of its own: WEIGHT_layout.
TEST(CatalogueTest, EveryWeightOfEveryLayerTakesALayout) {
  int weights = 0;
  for (const auto& entry : manifest::Layers().entries) {
    if (!entry.weights) continue;
    for (const auto& [weight, rank] : entry.weights({})) {
      std::string option = weight + "_layout";
      std::replace(option.begin(), option.end(), '.', '_');
      const auto field = std::find_if(entry.options.begin(), entry.options.end(),
                                      [&](const auto& field) { return field.name == option; });
      EXPECT_NE(field, entry.options.end()) << entry.name << "." << option;
      ++weights;
    }
  }
  EXPECT_GT(weights, 30);
}

// A weight's own option goes before the rules, and its slots lie as it does.
TEST(CatalogueTest, LayersGiveLayoutsToTheirWeights) {
  const std::string text = R"(
mesh: {batch: 2, model: 2}
data: {train: {npy: {images: x.npy, labels: y.npy}}, batch: 8}
loss: {sparse_categorical_crossentropy: {from_logits: true}}
optimizer: adam
layout: {rules: [{match: '.*gamma', spec: [batch]}]}
model:
  - conv_2d_transpose: {name: up, filters: 4, kernel_size: [3], padding: same, bias_layout: [model],
      kernel_layout: [unsharded, unsharded, model, unsharded]}
  - depthwise_conv_2d: {name: each, kernel_size: [3], padding: same, bias_layout: [model],
      kernel_layout: [unsharded, unsharded, model, unsharded]}
  - batch_normalization: {name: batch, gamma_layout: [model], beta_layout: [model],
      moving_mean_layout: [model], moving_variance_layout: [model]}
  - group_normalization: {name: group, groups: 2, gamma_layout: [model], beta_layout: [model]}
  - layer_normalization: {name: layer, gamma_layout: [model], beta_layout: [model]}
  - rms_normalization: {name: rms, scale_layout: [model]}
  - reshape: {dims: [16, 4]}
  - multi_head_attention: {name: attention, num_heads: 2,
      query_kernel_layout: [unsharded, model], query_bias_layout: [model],
      key_kernel_layout: [unsharded, model], key_bias_layout: [model],
      value_kernel_layout: [unsharded, model], value_bias_layout: [model],
      output_kernel_layout: [model, unsharded], output_bias_layout: [model]}
  - flatten
  - dense: {name: logits, units: 3, kernel_layout: [model, unsharded], bias_layout: [unsharded]}
)";
  const std::vector<mesh::TensorType> batch = {{mesh::DType::kF32, {8, 4, 4, 2}},
                                               {mesh::DType::kI32, {8}}};
  const auto read = ParseManifest(text, "job.yaml");
  ASSERT_TRUE(read.ok()) << read.status().message();
  const auto traced = Build(read->program, batch);
  ASSERT_TRUE(traced.ok()) << traced.status().message();
  EXPECT_EQ(traced->programs.parameters.size(), 2u + 2 + 4 + 2 + 2 + 1 + 8 + 2);
  for (const nn::Parameter& weight : traced->programs.parameters) {
    const mesh::Layout& layout = traced->layouts.states.at(weight.name());
    EXPECT_EQ(layout.Uses(*traced->mesh.FindAxis("model")), weight.name() != "logits.bias")
        << weight.name();
    const auto slot = traced->layouts.states.find("optimizer.m." + weight.name());
    if (slot != traced->layouts.states.end()) {
      EXPECT_EQ(slot->second, layout) << weight.name();
    }
  }
  // What is wrong with one is told at the layer.
  const std::string wrong = "gamma_layout: [model], beta_layout: [model]}\n  - layer";
  std::string other = text;
  other.replace(other.find(wrong), wrong.size(),
                "gamma_layout: [modle], beta_layout: [model, model]}\n  - layer");
  const auto refused = ParseManifest(other, "job.yaml");
  ASSERT_FALSE(refused.ok());
  const std::string message = refused.status().message();
  EXPECT_NE(message.find("gamma_layout: unknown mesh axis `modle`, did you mean `model`"),
            std::string::npos)
      << message;
  EXPECT_NE(message.find("group.beta"), std::string::npos) << message;
}

}  // namespace
}  // namespace meshtrain::recipe
