// SetRandomSeed: what draws where nobody names a seed, through the one header of programs.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "runtime/meshtrain.h"
#include "runtime/parameter/chief/coordinator.h"
#include "tests/runtime/strategy/strategy_testing.h"

namespace meshtrain::trainer {
namespace {

class RandomSeedTest : public ::testing::Test {
 protected:
  // Other tests of this program have the seed that they found.
  ~RandomSeedTest() override { SetRandomSeed(before_); }

 private:
  const int64_t before_ = RandomSeed();
};

std::shared_ptr<nn::Sequential> TwoLayers() {
  return std::make_shared<nn::Sequential>(nn::Dense(6, {.name = "wide"}),
                                          nn::Dense(4, {.name = "narrow"}));
}

// The first values of the weights under `strategy`, one after the other.
Result<std::vector<float>> FirstWeights(Strategy& strategy) {
  Model model(TwoLayers(), strategy);
  MT_RETURN_IF_ERROR(
      model.Compile({.loss = train::losses::MeanSquaredError(), .optimizer = train::Sgd()}));
  const Tensor x(TensorType{DType::kF32, {8, 5}});
  MT_RETURN_IF_ERROR(model.Predict(x, 8).status());
  std::vector<float> all;
  for (const nn::Parameter& weight : model.parameters()) {
    MT_ASSIGN_OR_RETURN(const Tensor value, strategy.Read(weight));
    const std::vector<float> values = strategy::FloatsOf(value);
    all.insert(all.end(), values.begin(), values.end());
  }
  MT_WANT(all.size() == 5 * 6 + 6 + 6 * 4 + 4);
  return all;
}

std::unique_ptr<MeshStrategy> OnMesh(const std::string& text, StrategyOptions common = {}) {
  nn::LayoutMap layouts;
  const Mesh mesh = Mesh::Parse(text).value();
  if (mesh.FindAxis("model")) {
    EXPECT_TRUE(layouts.Add("wide.kernel", {UNSHARDED, "model"}).ok());
    EXPECT_TRUE(layouts.Add("narrow.kernel", {"model", UNSHARDED}).ok());
  }
  return Strategy::Mesh({.mesh = mesh, .layouts = layouts, .common = std::move(common)}).value();
}

TEST_F(RandomSeedTest, WeightsBeginAlikeInEveryRunAndLayout) {
  SetRandomSeed(1);
  const std::vector<float> want = FirstWeights(*OnMesh("")).value();
  for (const char* mesh : {"", "batch=4", "model=2", "batch=2,model=2"}) {
    for (const bool isolated : {false, true}) {
      EXPECT_EQ(FirstWeights(*OnMesh(mesh, {.isolated = isolated})).value(), want)
          << mesh << isolated;
    }
  }
  EXPECT_EQ(FirstWeights(*Strategy::Mirrored({.count = 3}).value()).value(), want);
  SetRandomSeed(2);
  EXPECT_NE(FirstWeights(*OnMesh("")).value(), want);
  SetRandomSeed(1);
  EXPECT_EQ(FirstWeights(*OnMesh("")).value(), want);
}

TEST_F(RandomSeedTest, ProcessesBeginAlike) {
  const auto weights = [](int64_t seed) {
    SetRandomSeed(seed);
    std::vector<std::vector<float>> seen(2);
    const auto ends = strategy::RunProcesses(2, [&](strategy::FakeProcess& self) -> Status {
      MT_ASSIGN_OR_RETURN(const auto made,
                          Strategy::MultiWorkerMirrored({.process = self.process,
                                                         .processes = self.processes,
                                                         .communicator = self.communicator,
                                                         .devices_per_worker = 2}));
      MT_ASSIGN_OR_RETURN(seen[static_cast<size_t>(self.process)], FirstWeights(*made));
      return OkStatus();
    });
    for (const Status& end : ends) EXPECT_TRUE(end.ok()) << end.ToString();
    EXPECT_EQ(seen[0], seen[1]);
    EXPECT_EQ(seen[0], FirstWeights(*OnMesh("")).value());
    return seen[0];
  };
  EXPECT_NE(weights(1), weights(2));
}

// The thread's own strategy is older than the second seed.
TEST_F(RandomSeedTest, TheThreadsOwnStrategyFollowsIt) {
  SetRandomSeed(1);
  const std::vector<float> one = FirstWeights(GetStrategy()).value();
  SetRandomSeed(2);
  EXPECT_NE(FirstWeights(GetStrategy()).value(), one);
  SetRandomSeed(1);
  EXPECT_EQ(FirstWeights(GetStrategy()).value(), one);
}

TEST_F(RandomSeedTest, ASeedThatOptionsNameWins) {
  SetRandomSeed(1);
  const std::vector<float> five = FirstWeights(*OnMesh("", {.seed = 5})).value();
  EXPECT_NE(five, FirstWeights(*OnMesh("")).value());
  SetRandomSeed(2);
  EXPECT_EQ(FirstWeights(*OnMesh("", {.seed = 5})).value(), five);
  SetRandomSeed(5);
  EXPECT_EQ(FirstWeights(*OnMesh("")).value(), five);
  EXPECT_EQ(parameter::CoordinatorOptions{}.seed, 5) << "the chief's, of values on servers";
}

// What a model with a dropout loses in its first step, all else alike.
double LossWithDropout(std::optional<int64_t> own = {}) {
  const auto strategy = OnMesh("", {.seed = 5});
  Model model(std::make_shared<nn::Sequential>(nn::Dense(64), nn::Dropout(0.5), nn::Dense(1)),
              *strategy);
  CompileOptions options{.loss = train::losses::MeanSquaredError(), .optimizer = train::Sgd()};
  if (own) options.seed = *own;
  EXPECT_TRUE(model.Compile(std::move(options)).ok());
  const Tensor x = strategy::Floats({4, 2}, {1, 2, 3, 4, 5, 6, 7, 8});
  const Tensor y = strategy::Floats({4, 1}, {1, 2, 3, 4});
  return model.Fit(Arrays{x, y, 4}).value().Of("loss").at(0);
}

TEST_F(RandomSeedTest, DropoutDrawsFromIt) {
  SetRandomSeed(1);
  const double one = LossWithDropout();
  EXPECT_EQ(LossWithDropout(), one);
  SetRandomSeed(2);
  EXPECT_NE(LossWithDropout(), one);
  EXPECT_EQ(LossWithDropout(1), one);
}

TEST_F(RandomSeedTest, FunctionsDrawFromIt) {
  const auto kept = [](int64_t seed) -> Result<std::vector<float>> {
    SetRandomSeed(seed);
    const auto strategy = OnMesh("batch=2");
    const auto scope = strategy->Scope();
    MT_ASSIGN_OR_RETURN(Session * session, strategy->session());
    const nn::Parameter step("step", {DType::kI64, {}}, nn::Initializer::Zeros(),
                             {.trainable = false});
    nn::Dropout dropout(0.5);
    Function drop(*session, "drop", {"x"}, [&](Value x) -> Outputs {
      const nn::ContextScope training({.training = true, .step = step});
      return {{"y", dropout(x)}};
    });
    MT_ASSIGN_OR_RETURN(const Layout layout, Layout::BatchSharded(strategy->mesh(), "batch", 1));
    MT_ASSIGN_OR_RETURN(
        const auto x,
        session->CopyToMesh(strategy::Floats({64}, std::vector<float>(64, 1)), layout));
    MT_ASSIGN_OR_RETURN(const auto results, drop(x));
    MT_ASSIGN_OR_RETURN(const Tensor y, results["y"].Whole());
    return strategy::FloatsOf(y);
  };
  const std::vector<float> one = kept(1).value();
  EXPECT_EQ(kept(1).value(), one);
  EXPECT_NE(kept(2).value(), one);
}

}  // namespace
}  // namespace meshtrain::trainer
