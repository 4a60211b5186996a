// The main job's training step on its meshes: expected layouts and collectives as text, and the
// unsharded numbers.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "runtime/program/registry.h"
#include "tests/runtime/sharding/models.h"

namespace meshtrain::sharding {
namespace {

// The smallest MLP whose widths 2, 3 and 8 divide unevenly here and there.
MlpSizes Small(int64_t batch) {
  return {.batch = batch, .widths = {6, 7, 4, 3}, .dtype = program::DType::kF64};
}

Given BatchGiven(const Mesh& mesh) {
  Given given;
  given.inputs.insert_or_assign("x", *Layout::BatchSharded(mesh, "batch", 2));
  return given;
}

TEST(MlpTest, DataParallelReducesEachGradientOnce) {
  const Mesh mesh = *Mesh::Parse("batch=8");
  const auto p = Shard(MlpTrainStep(), mesh, BatchGiven(mesh));
  ASSERT_TRUE(p.ok()) << p.status().ToString();
  EXPECT_EQ(MovesText(*p),
            "all_reduce f32[] {} sum(batch) -> {}\n"  // loss
            "all_reduce f32[] {} sum(batch) -> {}\n"  // accuracy
            "all_reduce f32[784,700] {*, *} sum(batch) -> {*, *}\n"
            "all_reduce f32[700] {*} sum(batch) -> {*}\n"
            "all_reduce f32[700,500] {*, *} sum(batch) -> {*, *}\n"
            "all_reduce f32[500] {*} sum(batch) -> {*}\n"
            "all_reduce f32[500,10] {*, *} sum(batch) -> {*, *}\n"
            "all_reduce f32[10] {*} sum(batch) -> {*}\n");
  EXPECT_EQ(p->input_layouts[0].ToString(), "{batch, *}");
  EXPECT_EQ(p->input_layouts[1].ToString(), "{batch}");  // nobody said so: it follows from x
  EXPECT_TRUE(program::Validate(p->local).ok());
  const Reshard& gradient = p->reshards[2];
  EXPECT_THAT(
      gradient.value,
      ::testing::MatchesRegex("%[0-9]+ f32.784,700. of matmul \\(hidden_1\\) at models.cc:[0-9]+"));
  EXPECT_THAT(gradient.reason,
              ::testing::MatchesRegex("input 1 of mul \\(adam\\) at models.cc:[0-9]+"));
  EXPECT_EQ(gradient.bytes_per_device, int64_t{784} * 700 * 4 * 2 * 7 / 8);
}

TEST(MlpTest, TwoAxesShardTheHiddenLayerAsMegatronDoes) {
  const Mesh mesh = *Mesh::Parse("batch=4,model=2");
  Given given = BatchGiven(mesh);
  GiveLayer(given, "hidden_1", *Layout::Parse("{*, model}", mesh));
  GiveLayer(given, "hidden_2", *Layout::Parse("{model, *}", mesh));
  const auto p = Shard(MlpTrainStep(), mesh, given);
  ASSERT_TRUE(p.ok()) << p.status().ToString();
  EXPECT_EQ(
      MovesText(*p),
      "all_reduce f32[128,500] {batch, *} sum(model) -> {batch, *}\n"  // the one of the model axis
      "all_reduce f32[] {} sum(batch) -> {}\n"
      "all_reduce f32[] {} sum(batch) -> {}\n"
      "all_reduce f32[784,700] {*, model} sum(batch) -> {*, model}\n"
      "all_reduce f32[700] {model} sum(batch) -> {model}\n"
      "all_reduce f32[700,500] {model, *} sum(batch) -> {model, *}\n"
      "all_reduce f32[500] {*} sum(batch) -> {*}\n"
      "all_reduce f32[500,10] {*, *} sum(batch) -> {*, *}\n"
      "all_reduce f32[10] {*} sum(batch) -> {*}\n");
}

TEST(MlpTest, OneDeviceNeedsNothing) {
  const Mesh mesh = *Mesh::Parse("batch=1");
  const program::Program program = MlpTrainStep();
  const auto p = Shard(program, mesh, BatchGiven(mesh));
  ASSERT_TRUE(p.ok()) << p.status().ToString();
  EXPECT_EQ(MovesText(*p), "");
  EXPECT_EQ(program::HashProgram(p->local), program::HashProgram(program));
  EXPECT_EQ(p->input_layouts[0].ToString(), "{batch, *}");  // as given
}

TEST(MlpTest, ShardedStatesAreGatheredOrActivationsMovedWhicheverIsLess) {
  const Mesh mesh = *Mesh::Parse("batch=8");
  // Batch 128: activations are smaller than the weights, so they move.
  Given given = BatchGiven(mesh);
  GiveLayer(given, "hidden_1", *Layout::Parse("{batch, *}", mesh));
  const auto few = Shard(MlpTrainStep(), mesh, given);
  ASSERT_TRUE(few.ok()) << few.status().ToString();
  EXPECT_THAT(MovesText(*few),
              ::testing::HasSubstr("all_to_all f32[128,784] {batch, *} -> {*, batch}\n"));
  EXPECT_THAT(MovesText(*few), ::testing::Not(::testing::HasSubstr("all_gather f32[784,700]")));
  // Batch 16384: the weight is the small operand.
  const auto many = Shard(MlpTrainStep({.batch = 16384}), mesh, given);
  ASSERT_TRUE(many.ok()) << many.status().ToString();
  EXPECT_THAT(MovesText(*many),
              ::testing::HasSubstr("all_gather f32[784,700] {batch, *} -> {*, *}\n"));
  EXPECT_THAT(
      MovesText(*many),
      ::testing::HasSubstr("reduce_scatter f32[784,700] {*, *} sum(batch) -> {batch, *}\n"));
}

struct Case {
  std::string mesh;
  int64_t batch;
  std::string hidden_1 = "";
  std::string hidden_2 = "";
  std::string logits = "";
};

void PrintTo(const Case& c, std::ostream* out) { *out << "batch " << c.batch << " on " << c.mesh; }

class MlpOnMeshTest : public ::testing::TestWithParam<Case> {};

TEST_P(MlpOnMeshTest, GivesTheUnshardedNumbers) {
  const Case& c = GetParam();
  const Mesh mesh = *Mesh::Parse(c.mesh);
  Given given;
  if (mesh.FindAxis("batch")) given = BatchGiven(mesh);
  if (!c.hidden_1.empty()) GiveLayer(given, "hidden_1", *Layout::Parse(c.hidden_1, mesh));
  if (!c.hidden_2.empty()) GiveLayer(given, "hidden_2", *Layout::Parse(c.hidden_2, mesh));
  if (!c.logits.empty()) GiveLayer(given, "logits", *Layout::Parse(c.logits, mesh));
  const program::Program program = MlpTrainStep(Small(c.batch));
  const auto partitioned = Shard(program, mesh, given);
  ASSERT_TRUE(partitioned.ok()) << partitioned.status().ToString();
  EXPECT_TRUE(program::Validate(partitioned->local).ok())
      << program::Validate(partitioned->local).ToString();
  const auto difference = DifferenceFromUnsharded(program, *partitioned);
  ASSERT_TRUE(difference.ok()) << difference.status().ToString();
  EXPECT_LT(*difference, 1e-12) << MovesText(*partitioned);
}

INSTANTIATE_TEST_SUITE_P(
    Meshes, MlpOnMeshTest,
    ::testing::ValuesIn(std::vector<Case>{
        {"batch=1", 8},
        {"batch=8", 8},
        {"batch=8", 12},  // storage 2, valid 2 2 2 2 2 2 0 0
        {"batch=8", 5},   // three devices idle
        {"batch=8", 1},
        {"batch=3", 8},
        {"batch=4,model=2", 8, "{*, model}", "{model, *}"},
        {"batch=4,model=2", 6, "{*, model}", "{model, *}"},  // 7 over 2 too
        {"batch=2,model=3", 7, "{*, model}", "{model, *}", "{*, model}"},
        {"batch=2,model=3", 8, "{model, *}", "{*, model}", "{model, *}"},
        {"model=8", 8, "{*, model}", "{model, *}"},
        {"model=4", 4, "{model, *}", "{model, *}", "{model, *}"},
        {"batch=4", 8, "{batch, *}", "{batch, *}",
         "{batch, *}"},  // states sharded over the batch axis
        {"batch=4", 6, "{*, batch}", "{batch, *}", "{*, batch}"},
        {"batch=2,model=2", 8, "{batch+model, *}", "{model+batch, *}", "{model, batch}"},
        {"batch=2,model=2,extra=2", 6, "{extra, model}", "{model, extra+batch}"},
    }),
    [](const auto& info) { return "Case" + std::to_string(info.index); });

TEST(MlpTest, SameArgumentsGiveTheSameBytes) {
  const Mesh mesh = *Mesh::Parse("batch=4,model=2");
  Given given = BatchGiven(mesh);
  GiveLayer(given, "hidden_1", *Layout::Parse("{*, model}", mesh));
  const auto a = Shard(MlpTrainStep(), mesh, given);
  const auto b = Shard(MlpTrainStep(), mesh, given);
  ASSERT_TRUE(a.ok() && b.ok());
  EXPECT_EQ(a->local.ToString(), b->local.ToString());
}

}  // namespace
}  // namespace meshtrain::sharding
