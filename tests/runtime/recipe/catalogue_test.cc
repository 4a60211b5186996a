// The manifest's rows and what they name.
#include "runtime/manifest/catalogue/catalogue.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

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

}  // namespace
}  // namespace meshtrain::recipe
