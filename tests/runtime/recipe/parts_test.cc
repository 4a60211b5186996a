// `train.accumulate`: what the plan of a step in parts is, and what is refused.
#include "runtime/program/parts.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "runtime/base/text.h"
#include "runtime/recipe/step_plan.h"
#include "runtime/recipe/summary.h"

namespace meshtrain::recipe {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::Pair;

// Batch normalisation's averages go from part to part, and two of its layers are alike.
std::string Text(const std::string& mesh, int64_t parts, const std::string& more = "") {
  return "program:\n  mesh: {" + mesh +
         "}\n"
         "  data:\n"
         "    train: {idx: {images: a.gz, labels: b.gz}}\n"
         "    batch: 256\n" +
         more +
         "  model:\n"
         "    - flatten\n"
         "    - dense: {units: 64, activation: relu}\n"
         "    - batch_normalization\n"
         "    - dense: {units: 64, activation: relu}\n"
         "    - batch_normalization\n"
         "    - dense: {units: 10}\n"
         "  loss: {sparse_categorical_crossentropy: {from_logits: true}}\n"
         "  optimizer: adam\n"
         "  metrics: [accuracy]\n"
         "  train: {accumulate: " +
         std::to_string(parts) + "}\n";
}

// Two kernels of 64 x 64 and one of 64 x 10 with their biases, and four vectors of 64.
constexpr int64_t kGradientBytes = 4 * (2 * (64 * 64 + 64) + 64 * 10 + 10 + 4 * 64);

std::string Replaced(std::string text, std::string_view from, std::string_view to) {
  const size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return text.replace(at, from.size(), to);
}

Result<plan::Plan> PlanOf(const std::string& text) {
  MT_ASSIGN_OR_RETURN(const manifest::Manifest read, ParseManifest(text, "job.yaml"));
  MT_ASSIGN_OR_RETURN(const Declared declared, Declared::Create(read.program));
  const int64_t batch = read.program.data.batch;
  return StepPlanOf(read.program, declared,
                    {{mesh::DType::kF32, {batch, 8, 8}}, {mesh::DType::kI32, {batch}}});
}

std::string Refused(const std::string& text) {
  const auto plan = PlanOf(text);
  return plan.ok() ? "" : plan.status().message();
}

TEST(PartsPlanTest, APartIsOverBeforeTheNextOneBegins) {
  for (const char* mesh : {"", "batch: 4", "batch: 2, model: 1"}) {
    const auto whole = PlanOf(Text(mesh, 1)), parts = PlanOf(Text(mesh, 8));
    ASSERT_TRUE(whole.ok()) << whole.status().message();
    ASSERT_TRUE(parts.ok()) << parts.status().message();
    int64_t newest = 0, seen = 0;
    for (const plan::Step& step : parts->steps) {
      int64_t least = 0, most = 0;
      for (const int i : step.ops) {
        const int64_t part = program::PartOf(parts->local().ops[i]);
        if (part == 0) continue;
        least = least == 0 ? part : std::min(least, part);
        most = std::max(most, part);
      }
      if (most == 0) continue;
      const program::Op& op = parts->local().ops[step.ops.front()];
      EXPECT_EQ(least, most) << mesh << ": a chain of several parts, from " << op.kind << " of "
                             << op.path;
      EXPECT_GE(least, newest) << mesh << ": back in an earlier part: " << op.kind << " of "
                               << op.path;
      newest = std::max(newest, most);
      ++seen;
    }
    EXPECT_EQ(newest, 8);
    EXPECT_GT(seen, 8 * 10);
    // An eighth of the values, and the weights' gradients, the sums of them and what adds the two.
    EXPECT_LT(parts->arena_bytes, whole->arena_bytes / 8 + 3 * kGradientBytes) << mesh;
    EXPECT_EQ(parts->state_bytes, whole->state_bytes);
    EXPECT_NEAR(parts->flops / whole->flops, 1, 0.05);
  }
}

// The weights' gradients are added up where they lie, as parts of sums that no device has whole,
// and devices add them up once for the batch.
TEST(PartsPlanTest, GradientsTravelOnceForTheBatch) {
  const std::string dense =
      Replaced(Replaced(Text("batch: 4", 1), "    - batch_normalization\n", ""),
               "    - batch_normalization\n", "");
  // Figures are scalars; each part has its own.
  const auto gradients = [](const plan::Plan& plan) {
    std::vector<int64_t> bytes;
    for (const program::Op& op : plan.local().ops) {
      const program::TensorType& type = plan.local().type(op.results[0]);
      if (plan::Communicates(op) && type.rank() > 0) bytes.push_back(type.num_bytes());
    }
    return bytes;
  };
  const auto whole = PlanOf(dense);
  const auto parts = PlanOf(Replaced(dense, "accumulate: 1", "accumulate: 8"));
  ASSERT_TRUE(whole.ok()) << whole.status().message();
  ASSERT_TRUE(parts.ok()) << parts.status().message();
  const std::vector<int64_t> want = {4 * 64 * 64, 4 * 64, 4 * 64 * 64, 4 * 64, 4 * 64 * 10, 4 * 10};
  EXPECT_THAT(gradients(*whole), ::testing::UnorderedElementsAreArray(want));
  EXPECT_THAT(gradients(*parts), ::testing::UnorderedElementsAreArray(want));

  // In f32 where layers compute in 16 bits, unless the fewer bytes are asked for: then each part's
  // sum is made before it is f32.
  const std::string half = Replaced(dense, "batch: 256", "batch: 4096") + "  precision: bf16\n";
  const auto wide = PlanOf(Replaced(half, "accumulate: 1", "accumulate: 8"));
  ASSERT_TRUE(wide.ok()) << wide.status().message();
  EXPECT_THAT(gradients(*wide), ::testing::UnorderedElementsAreArray(want));
  for (const int parts_of_batch : {1, 8}) {
    const auto narrow = PlanOf(Replaced(
        half, "accumulate: 1", fmt::format("accumulate: {}, reduce_dtype: bf16", parts_of_batch)));
    ASSERT_TRUE(narrow.ok()) << narrow.status().message();
    std::vector<int64_t> each;
    for (int i = 0; i < parts_of_batch; ++i) {
      for (const int64_t bytes : want) each.push_back(bytes / 2);
    }
    EXPECT_THAT(gradients(*narrow), ::testing::UnorderedElementsAreArray(each)) << parts_of_batch;
  }
}

TEST(PartsPlanTest, TheReportSaysWhatTheSumsTake) {
  const auto plan = PlanOf(Text("batch: 4", 8));
  ASSERT_TRUE(plan.ok()) << plan.status().message();
  EXPECT_THAT(plan->Report(), HasSubstr("parts        8 of a batch, one after the other; sums of "
                                        "gradients " +
                                        HumanBytes(kGradientBytes) + " a device, of the arena\n"));
  EXPECT_THAT(PlanOf(Text("batch: 4", 1))->Report(), ::testing::Not(HasSubstr("parts  ")));
  const auto read = ParseManifest(Text("batch: 4", 8), "job.yaml");
  EXPECT_THAT(Summary(read->program, {}), Contains(Pair("batch", "256 examples, in 8 parts")));
}

// Layouts that cost decides are those of one part's batch, and of all batches.
TEST(PartsPlanTest, AnAutomaticLayoutIsThatOfAPart) {
  const auto states = [](int64_t batch, int64_t parts) {
    std::string text = Replaced(Text("batch: 2, model: 4", parts), "batch: 256",
                                "batch: " + std::to_string(batch) + "\n  layout: auto");
    text = Replaced(text, "units: 64, activation: relu", "units: 2048, activation: relu");
    const auto read = ParseManifest(text, "job.yaml");
    EXPECT_TRUE(read.ok()) << read.status().message();
    const auto traced =
        Build(read->program, {{mesh::DType::kF32, {batch, 8, 8}}, {mesh::DType::kI32, {batch}}});
    EXPECT_TRUE(traced.ok()) << traced.status().message();
    std::map<std::string, std::string> layouts;
    if (!traced.ok()) return layouts;
    for (const auto& [name, layout] : traced->layouts.states) layouts[name] = layout.ToString();
    return layouts;
  };
  const auto parts = states(256, 4);
  EXPECT_THAT(parts, Contains(Pair("dense.kernel", HasSubstr("model"))));
  EXPECT_EQ(parts, states(64, 1));
}

TEST(PartsPlanTest, PredictionsComeInBatchesOfAPartsSize) {
  const auto read = ParseManifest(Text("", 3), "job.yaml");
  ASSERT_TRUE(read.ok()) << read.status().message();
  const data::PipelineSpec spec = PredictPipeline(read->program, {});
  ASSERT_FALSE(spec.stages.empty());
  const auto* const batch = std::get_if<data::BatchStage>(&spec.stages.back());
  ASSERT_NE(batch, nullptr);
  EXPECT_EQ(batch->size, 86);
}

TEST(PartsPlanTest, WhatCannotBeCutIsRefusedByItsName) {
  EXPECT_EQ(Refused(Text("", 0)),
            "job.yaml:16:23: program.train.accumulate: expected a whole number of at least 1 and "
            "of at most 64, got: 0");
  EXPECT_EQ(Refused(Text("batch: 8", 64)),
            "job.yaml:16:23: program.train.accumulate: expected parts of data.batch, 256, each of "
            "a multiple of 8, the size of axis `batch` (or data.uneven: true), got: 64 parts");
  EXPECT_EQ(Refused(Replaced(Text("", 5), "batch: 256", "batch: 4")),
            "job.yaml:16:23: program.train.accumulate: expected at most data.batch, 4, parts of at "
            "least one example, got: 5");
  EXPECT_EQ(Refused(Text("batch: 8", 3, "    uneven: true\n")), "");
}

}  // namespace
}  // namespace meshtrain::recipe
