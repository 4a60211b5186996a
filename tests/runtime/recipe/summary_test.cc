#include "runtime/recipe/summary.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace meshtrain::recipe {
namespace {

using manifest::Program;

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::Pair;

Program Read(const std::string& layers) {
  const auto manifest = ParseManifest(
      "program:\n"
      "  seed: 7\n"
      "  data: {train: {idx: {images: a.gz, labels: b.gz}}, batch: 128}\n"
      "  model:\n" +
          layers +
          "  loss: {sparse_categorical_crossentropy: {from_logits: true}}\n"
          "  optimizer: {sgd: {learning_rate: 0.05, momentum: 0.9}}\n",
      "job.yaml");
  EXPECT_TRUE(manifest.ok()) << manifest.status().message();
  return manifest.ok() ? manifest->program : Program{};
}

TEST(SummaryTest, SaysWhatIsTrained) {
  const Program program = Read(
      "    - flatten\n"
      "    - dense: {units: 700, activation: relu}\n"
      "    - dropout: {rate: 0.2}\n"
      "    - activation: {activation: tanh}\n"
      "    - dense: {units: 10}\n");
  const Result<Traced> traced =
      Build(program, {{mesh::DType::kF32, {128, 28, 28}}, {mesh::DType::kI32, {128}}});
  ASSERT_TRUE(traced.ok()) << traced.status().message();
  EXPECT_THAT(
      Summary(program, traced->programs.parameters),
      ElementsAre(Pair("model", "flatten, dense 700 relu, dropout 0.2, activation tanh, dense 10"),
                  Pair("parameters", std::to_string(784 * 700 + 700 + 700 * 10 + 10)),
                  Pair("optimizer", "sgd, learning rate 0.05"), Pair("batch", "128 examples"),
                  Pair("seed", "7")));
}

TEST(SummaryTest, ADeepModelIsCut) {
  std::string layers = "    - flatten\n";
  for (int i = 0; i < 30; ++i) layers += "    - dense: {units: 10}\n";
  EXPECT_THAT(Summary(Read(layers), {}),
              Contains(Pair("model", EndsWith("dense 10 and 19 more layers"))));
}

}  // namespace
}  // namespace meshtrain::recipe
