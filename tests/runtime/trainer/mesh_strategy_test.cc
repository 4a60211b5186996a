// A Model under Strategy::Mesh: layouts of the user's own, and nothing else of what it computes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "runtime/base/text.h"
#include "runtime/mesh/layout.h"
#include "runtime/nn/layers.h"
#include "runtime/nn/model.h"
#include "runtime/plan/plan.h"
#include "runtime/strategy/strategy.h"
#include "runtime/trainer/model.h"
#include "tests/runtime/strategy/strategy_testing.h"
#include "tests/support/temp_folder.h"

namespace meshtrain::trainer {
namespace {

using mesh::Mesh;
using mesh::Tensor;
using strategy::MeshStrategy;
using strategy::Strategy;
using ::testing::HasSubstr;

std::unique_ptr<MeshStrategy> OnMesh(const std::string& text, bool isolated = false) {
  nn::LayoutMap layouts;
  const Mesh mesh = Mesh::Parse(text).value();
  if (mesh.FindAxis("model")) {
    EXPECT_TRUE(layouts.Add("wide.kernel", {mesh::UNSHARDED, "model"}).ok());
    EXPECT_TRUE(layouts.Add("wide.bias", {"model"}).ok());
    EXPECT_TRUE(layouts.Add("narrow.kernel", {"model", mesh::UNSHARDED}).ok());
  }
  return Strategy::Mesh({.mesh = mesh,
                         .layouts = std::move(layouts),
                         .common = {.seed = 5, .isolated = isolated}})
      .value();
}

std::unique_ptr<Model> TwoLayers(Strategy& strategy) {
  auto model = std::make_unique<Model>(
      std::make_shared<nn::Sequential>(
          nn::Dense(16, {.name = "wide", .activation = nn::ActivationKind::kTanh}),
          nn::Dense(1, {.name = "narrow"})),
      strategy);
  EXPECT_TRUE(model
                  ->Compile({.loss = train::losses::MeanSquaredError(),
                             .optimizer = train::Adam({.common = {.learning_rate = 0.05}})})
                  .ok());
  return model;
}

// x [24, 3], y its row sums: deterministic and not trivial.
Arrays Data() {
  std::vector<float> x, y;
  for (int i = 0; i < 24; ++i) {
    float sum = 0;
    for (int j = 0; j < 3; ++j) {
      x.push_back(static_cast<float>((i * 7 + j * 5) % 11) / 11);
      sum += x.back();
    }
    y.push_back(sum);
  }
  return {strategy::Floats({24, 3}, std::move(x)), strategy::Floats({24, 1}, std::move(y)), 8};
}

std::vector<double> LossesOn(const std::string& mesh, bool isolated) {
  const auto strategy = OnMesh(mesh, isolated);
  const auto model = TwoLayers(*strategy);
  const auto history = model->Fit(Data(), {.epochs = 4});
  EXPECT_TRUE(history.ok()) << history.status().ToString();
  return history.ok() ? history->Of("loss") : std::vector<double>();
}

TEST(MeshStrategyTest, EveryMeshGivesTheLossesOfOneDevice) {
  const std::vector<double> want = LossesOn("", false);
  ASSERT_EQ(want.size(), 4u);
  EXPECT_LT(want.back(), want.front());
  for (const char* mesh : {"batch=2", "model=4", "batch=2,model=2"}) {
    for (const bool isolated : {false, true}) {
      const std::vector<double> got = LossesOn(mesh, isolated);
      EXPECT_THAT(got, ::testing::Pointwise(::testing::DoubleNear(1e-5), want)) << mesh << isolated;
    }
  }
}

TEST(MeshStrategyTest, WeightsAndTheirSlotsLieAsTheRulesSay) {
  const auto strategy = OnMesh("batch=2,model=2");
  EXPECT_EQ(strategy->name(), "MeshStrategy");
  EXPECT_EQ(strategy->num_replicas_in_sync(), 2);
  EXPECT_EQ(strategy->batch_axis(), "batch");
  const auto model = TwoLayers(*strategy);
  ASSERT_TRUE(model->Fit(Data()).ok());
  execute::Session* const session = strategy->session().value();
  std::map<std::string, std::string> layouts;
  for (const nn::Parameter& p : model->parameters()) {
    layouts[p.name()] = session->LayoutOf(p).value().ToString();
  }
  EXPECT_EQ(layouts["wide.kernel"], "{*, model}");
  EXPECT_EQ(layouts["wide.bias"], "{model}");
  EXPECT_EQ(layouts["narrow.kernel"], "{model, *}");
  EXPECT_EQ(layouts["narrow.bias"], "{*}");
  EXPECT_THAT(model->plan()->Report(), HasSubstr("optimizer.m.wide.kernel"));
}

TEST(MeshStrategyTest, ASummarySaysLayersWeightsAndWhereTheyLie) {
  const auto strategy = OnMesh("batch=2,model=2");
  const auto model = TwoLayers(*strategy);
  EXPECT_EQ(model->Summary().status().code(), StatusCode::kFailedPrecondition);
  ASSERT_TRUE(model->Fit(Data()).ok());
  const auto summary = model->Summary();
  ASSERT_TRUE(summary.ok()) << summary.status().ToString();
  const plan::Plan& plan = *model->plan();
  // What is said of the kernels' scratch, which the plan does not know, must make up the whole.
  const size_t at = summary->rfind(", kernels' scratch ");
  ASSERT_NE(at, std::string::npos) << *summary;
  const int64_t scratch = std::stoll(summary->substr(at + 19));  // some bytes
  EXPECT_EQ(*summary,
            "layer   output     parameters\n"
            "wide    f32[8,16]  64\n"
            "narrow  f32[8,1]   17\n"
            "weight         type       layout      a device\n"
            "wide.kernel    f32[3,16]  {*, model}  96 B\n"
            "wide.bias      f32[16]    {model}     32 B\n"
            "narrow.kernel  f32[16,1]  {model, *}  32 B\n"
            "narrow.bias    f32[1]     {*}         4 B\n"
            "81 parameters, of which 81 are trained\n"
            "mesh batch=2,model=2: a training step holds at most " +
                HumanBytes(plan.peak_bytes + scratch) + " a device: states " +
                HumanBytes(plan.state_bytes) + ", inputs " + HumanBytes(plan.input_bytes) +
                ", outputs " + HumanBytes(plan.output_bytes) + ", arena " +
                HumanBytes(plan.arena_bytes) + ", kernels' scratch " + HumanBytes(scratch) + "\n");
}

TEST(MeshStrategyTest, SavedOnOneMeshItGoesOnOnAnother) {
  const testing_folder::TempFolder folder;
  const auto straight = OnMesh("");
  const auto whole = TwoLayers(*straight);
  const std::vector<double> want = whole->Fit(Data(), {.epochs = 3}).value().Of("loss");

  const auto first = OnMesh("batch=2,model=2");
  const auto begun = TwoLayers(*first);
  ASSERT_TRUE(begun->Fit(Data(), {.epochs = 2}).ok());
  const auto saved = begun->Save(folder.path());
  ASSERT_TRUE(saved.ok()) << saved.status().ToString();
  EXPECT_THAT(*saved, HasSubstr("ckpt-00000006"));

  for (const char* mesh : {"", "model=2", "batch=4"}) {
    const auto second = OnMesh(mesh);
    const auto resumed = TwoLayers(*second);
    ASSERT_TRUE(resumed->Restore(folder.path()).ok());
    EXPECT_EQ(resumed->steps(), 6);
    const auto history = resumed->Fit(Data());
    ASSERT_TRUE(history.ok()) << history.status().ToString();
    EXPECT_NEAR(history->Of("loss")[0], want[2], 1e-5) << mesh;
  }
}

TEST(MeshStrategyTest, VariablesAreReadAndAssignedWhole) {
  const auto strategy = OnMesh("model=2");
  const auto scope = strategy->Scope();
  const nn::Parameter v("wide.bias", {mesh::DType::kF32, {4}}, nn::Initializer::Ones());
  EXPECT_EQ(strategy::FloatsOf(strategy->Read(v).value()), (std::vector<float>{1, 1, 1, 1}));
  EXPECT_EQ(strategy->session().value()->LayoutOf(v).value().ToString(), "{model}");
  ASSERT_TRUE(strategy->Assign(v, strategy::Floats({4}, {1, 2, 3, 4})).ok());
  EXPECT_EQ(strategy::FloatsOf(strategy->Read(v).value()), (std::vector<float>{1, 2, 3, 4}));
  EXPECT_THAT(strategy->Assign(v, strategy::Floats({2}, {1, 2})).message(),
              HasSubstr("variable `wide.bias`: expected f32[4], got: f32[2]"));
}

TEST(MeshStrategyTest, ARuleThatDoesNotFitIsNamed) {
  nn::LayoutMap layouts;
  ASSERT_TRUE(layouts.Add("wide.kernel", {"nowhere", mesh::UNSHARDED}).ok());
  const auto strategy =
      Strategy::Mesh({.mesh = Mesh::Parse("batch=2").value(), .layouts = std::move(layouts)})
          .value();
  const auto model = TwoLayers(*strategy);
  const Status status = model->Fit(Data()).status();
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(status.message(), HasSubstr("wide.kernel"));
  EXPECT_THAT(status.message(), HasSubstr("nowhere"));
}

TEST(MeshStrategyTest, AMeshOfSeveralProcessesNeedsTheirTeam) {
  const Mesh two = Mesh::Create({{"batch", 2}}, {{.process = 0}, {.process = 1}}).value();
  EXPECT_THAT(Strategy::Mesh({.mesh = two}).status().message(),
              HasSubstr("expected a team of the 2 processes of its mesh batch=2, got: none"));
}

}  // namespace
}  // namespace meshtrain::trainer
