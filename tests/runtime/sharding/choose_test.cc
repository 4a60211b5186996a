// `layout: auto`: what the search finds is faster than what it began with, as fast as what people
// choose by hand, and computes the same numbers.
#include "runtime/sharding/choose.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/runtime/sharding/models.h"

namespace meshtrain::sharding {
namespace {

using ::testing::HasSubstr;

// Weights with their slots, by layer.
std::vector<StateGroup> Groups(const MlpSizes& sizes) {
  std::vector<StateGroup> groups;
  for (const std::string& layer : MlpLayers(sizes)) {
    for (const char* weight : {".kernel", ".bias"}) {
      const std::string name = layer + weight;
      groups.push_back({name, name + ".m", name + ".v"});
    }
  }
  return groups;
}

Given Inputs(const Mesh& mesh) {
  Given given;
  if (mesh.FindAxis("batch")) {
    given.inputs.insert_or_assign("x", *Layout::BatchSharded(mesh, "batch", 2));
  }
  return given;
}

Spent SpentOn(const Program& program, const Mesh& mesh, const Given& given,
              const Options& options = {}) {
  return PredictSpent(*Shard(program, mesh, given, options), options.cost);
}
double Seconds(const Program& program, const Mesh& mesh, const Given& given,
               const Options& options = {}) {
  return SpentOn(program, mesh, given, options).seconds;
}

TEST(ChooseTest, FindsWhatIsAsFastAsMegatronsLayouts) {
  const Program step = MlpTrainStep();
  for (const char* text : {"batch=4,model=2", "model=8", "batch=2,model=4"}) {
    SCOPED_TRACE(text);
    const Mesh mesh = *Mesh::Parse(text);
    const auto chosen = ChooseStateLayouts(step, mesh, Inputs(mesh), Groups({}));
    ASSERT_TRUE(chosen.ok()) << chosen.status().ToString();
    EXPECT_EQ(chosen->size(), 18u);
    for (const std::string& layer : MlpLayers({})) {
      EXPECT_EQ(chosen->at(layer + ".kernel"), chosen->at(layer + ".kernel.m"));
      EXPECT_EQ(chosen->at(layer + ".bias"), chosen->at(layer + ".bias.v"));
    }
    Given by_cost = Inputs(mesh);
    by_cost.states = *chosen;
    Given by_hand = Inputs(mesh);
    GiveLayer(by_hand, "hidden_1", *Layout::Parse("{*, model}", mesh));
    GiveLayer(by_hand, "hidden_2", *Layout::Parse("{model, *}", mesh));
    const Spent found = SpentOn(step, mesh, by_cost), wanted = SpentOn(step, mesh, by_hand);
    EXPECT_LT(found.seconds, Seconds(step, mesh, Inputs(mesh)));
    EXPECT_LE(found.seconds, wanted.seconds);
    // The logits, which nobody splits by hand, may cost a little.
    EXPECT_LE(found.sent_bytes, 1.03 * wanted.sent_bytes);
    EXPECT_LE(found.flops, wanted.flops);
    EXPECT_TRUE(CheckAxesUsed(mesh, by_cost).ok());
    EXPECT_EQ(*ChooseStateLayouts(step, mesh, Inputs(mesh), Groups({})), *chosen);
  }
}

TEST(ChooseTest, ComputesTheSameNumbers) {
  const MlpSizes sizes{.batch = 8, .widths = {8, 12, 4, 4}, .dtype = program::DType::kF64};
  const Program step = MlpTrainStep(sizes);
  const Mesh mesh = *Mesh::Parse("batch=2,model=2");
  // Work is dear and links cost nothing: so small a model is split too.
  Options options;
  options.cost = {.flops_per_second = 1e6,
                  .memory_bytes_per_second = 1e6,
                  .link_bytes_per_second = 1e12,
                  .collective_latency_seconds = 1e-12};
  Given given = Inputs(mesh);
  const auto chosen = ChooseStateLayouts(step, mesh, given, Groups(sizes), options);
  ASSERT_TRUE(chosen.ok()) << chosen.status().ToString();
  given.states = *chosen;
  EXPECT_TRUE(CheckAxesUsed(mesh, given).ok());
  const auto partitioned = Shard(step, mesh, given, options);
  ASSERT_TRUE(partitioned.ok()) << partitioned.status().ToString();
  EXPECT_LT(*DifferenceFromUnsharded(step, *partitioned), 1e-12);
}

TEST(ChooseTest, WhatDoesNotPayStaysReplicated) {
  const MlpSizes sizes{.batch = 8, .widths = {8, 12, 4, 4}};
  const Mesh mesh = *Mesh::Parse("batch=2,model=2");
  Options options;
  options.cost.collective_latency_seconds = 1;
  const auto chosen =
      ChooseStateLayouts(MlpTrainStep(sizes), mesh, Inputs(mesh), Groups(sizes), options);
  ASSERT_TRUE(chosen.ok()) << chosen.status().ToString();
  for (const auto& [name, layout] : *chosen) EXPECT_FALSE(layout.Uses(1)) << name;
}

TEST(ChooseTest, NamesWhatDoesNotFit) {
  const Mesh mesh = *Mesh::Parse("model=2");
  const Program step = MlpTrainStep();
  const std::vector<StateGroup> unknown = {{"hidden_7.kernel"}};
  EXPECT_THAT(ChooseStateLayouts(step, mesh, {}, unknown).status().message(),
              HasSubstr("expected a state of the program, got: `hidden_7.kernel`"));
  const std::vector<StateGroup> unequal = {{"hidden_1.kernel", "hidden_1.bias"}};
  EXPECT_THAT(ChooseStateLayouts(step, mesh, {}, unequal).status().message(),
              HasSubstr("`hidden_1.bias`: expected the dimensions of `hidden_1.kernel`"));
}

}  // namespace
}  // namespace meshtrain::sharding
