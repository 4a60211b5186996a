// `train.recompute`: the plan of a step that keeps less for the way back.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "runtime/program/again.h"
#include "runtime/recipe/step_plan.h"

namespace meshtrain::recipe {
namespace {

using ::testing::HasSubstr;

// Eight blocks of three dense layers of 64 on 512 examples: 128 KiB each of what they give.
std::string Text(const std::string& mesh, const std::string& train) {
  return "program:\n  mesh: {" + mesh +
         "}\n"
         "  data: {train: {idx: {images: a.gz, labels: b.gz}}, batch: 512}\n"
         "  model:\n"
         "    - flatten\n"
         "    - repeat:\n"
         "        name: blocks\n"
         "        times: 8\n"
         "        layers:\n"
         "          - dense: {name: one, units: 64, activation: tanh}\n"
         "          - dense: {name: two, units: 64, activation: tanh}\n"
         "          - dense: {name: three, units: 64, activation: tanh}\n"
         "    - dense: {name: logits, units: 10}\n"
         "  loss: {sparse_categorical_crossentropy: {from_logits: true}}\n"
         "  optimizer: sgd\n"
         "  train: {" +
         train + "}\n";
}

Result<plan::Plan> PlanOf(const std::string& text) {
  MT_ASSIGN_OR_RETURN(const manifest::Manifest read, ParseManifest(text, "job.yaml"));
  MT_ASSIGN_OR_RETURN(const Declared declared, Declared::Create(read.program));
  const int64_t batch = read.program.data.batch;
  return StepPlanOf(read.program, declared,
                    {{mesh::DType::kF32, {batch, 8, 8}}, {mesh::DType::kI32, {batch}}});
}

TEST(RecomputePlanTest, HoldsABlocksValuesAtATimeAndWhatLeadsIntoBlocks) {
  for (const char* mesh : {"", "batch: 4", "batch: 2, model: 2"}) {
    std::string layout;
    if (std::string(mesh).find("model") != std::string::npos) {
      layout =
          "  layout: {rules: [{match: '.*one.kernel', spec: [unsharded, model]}, "
          "{match: '.*two.kernel', spec: [model, unsharded]}]}\n";
    }
    const auto kept = PlanOf(Text(mesh, "epochs: 1") + layout);
    const auto again = PlanOf(Text(mesh, "recompute: ['blocks\\.\\d+']") + layout);
    ASSERT_TRUE(kept.ok()) << kept.status().message();
    ASSERT_TRUE(again.ok()) << again.status().message();
    // Of 24 values 8 that lead into blocks stay, and 3 of the block at hand.
    EXPECT_LT(again->arena_bytes, kept->arena_bytes * 0.7) << mesh;
    EXPECT_EQ(again->state_bytes, kept->state_bytes);
    // A third more: of the way there, the way back and the way there again.
    EXPECT_GT(again->flops, kept->flops * 1.1) << mesh;
    EXPECT_LT(again->flops, kept->flops * 1.4) << mesh;

    // What is repeated stands behind all that comes first, and never in one chain with it.
    bool back = false;
    for (const plan::Step& step : again->steps) {
      bool repeats = false, first = false;
      for (const int i : step.ops) {
        const program::Op& op = again->local().ops[i];
        (program::IsAgain(op) ? repeats : first) = true;
        if (op.kind == "sparse_softmax_cross_entropy") back = true;
      }
      EXPECT_TRUE(!repeats || back) << mesh << ": before the loss";
    }
    EXPECT_TRUE(back);
  }
}

TEST(RecomputePlanTest, RulesOfNoLayerAreRefusedWhereTheyStand) {
  const auto message = [](const std::string& rules) {
    return PlanOf(Text("", "recompute: " + rules)).status().message();
  };
  EXPECT_EQ(message("[block_0]"),
            "job.yaml:16:22: program.train.recompute: `block_0` matches no layer (rules match from "
            "the start of a path); near: flatten, blocks.0.one, blocks.0.two");
  EXPECT_THAT(message("['(']"),
              HasSubstr("program.train.recompute: `(` is not a regular expression"));
  EXPECT_THAT(message("[blocks, blocks]"), HasSubstr("`blocks` is there already"));
}

}  // namespace
}  // namespace meshtrain::recipe
