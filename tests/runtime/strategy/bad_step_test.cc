// A gradient that is not finite on one replica changes no variable of any, under every strategy.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "runtime/nn/layers.h"
#include "runtime/nn/model.h"
#include "runtime/program/ops.h"
#include "runtime/trainer/model.h"
#include "tests/runtime/strategy/strategy_testing.h"

namespace meshtrain::strategy {
namespace {

using mesh::DType;
using mesh::Tensor;
using ::testing::HasSubstr;

// The loss of an example of kLarge under a weight of kWeight is about 1e20; its gradient overflows.
constexpr float kWeight = 1e-21f;
constexpr float kLarge = 1e31f;

Tensor Ones(int64_t n) { return Floats({n, 1}, std::vector<float>(static_cast<size_t>(n), 1)); }
// Only the last example is bad, and with it the last replica.
Tensor OnesButTheLast(int64_t n) {
  std::vector<float> x(static_cast<size_t>(n), 1);
  x.back() = kLarge;
  return Floats({n, 1}, x);
}

class BadStepLoopTest : public ::testing::TestWithParam<StrategyCase> {};
INSTANTIATE_TEST_SUITE_P(Strategies, BadStepLoopTest, ::testing::ValuesIn(AllStrategies()),
                         [](const auto& info) { return info.param.name; });

TEST_P(BadStepLoopTest, AGradientThatIsNotFiniteChangesNothingAndTheLoopGoesOn) {
  for (const bool momentum : {false, true}) {
    ForReplicas(GetParam(), [&](ReplicaStrategy& strategy) -> Status {
      const auto scope = strategy.Scope();
      const nn::Parameter w("w", {DType::kF32, {1}}, nn::Initializer::Constant(kWeight));
      const auto optimizer =
          train::Sgd({.common = {.learning_rate = 0.1}, .momentum = momentum ? 0.9 : 0});
      const ReplicaFunction step("step", [&](Value x, Value y) -> Value {
        const Value loss = ComputeAverageLoss(program::ReduceSum(program::Square(x * w - y), {1}));
        optimizer->Minimize(loss, std::vector<nn::Parameter>{w});
        return loss;
      });
      const int64_t n = 2 * strategy.num_replicas_in_sync();
      const auto run = [&](const Tensor& x) -> Status {
        MT_ASSIGN_OR_RETURN(const auto batch,
                            strategy.DistributeBatch(std::vector<Tensor>{x, Ones(n)}));
        return strategy.Run(step, batch).status();
      };
      const auto all_are = [&](float want) -> Status {
        MT_ASSIGN_OR_RETURN(const std::vector<Tensor> copies, strategy.LocalResults(w));
        for (const Tensor& copy : copies) MT_WANT(FloatsOf(copy)[0] == want);
        return OkStatus();
      };
      for (int i = 0; i < 3; ++i) {  // more than once: nothing is torn
        const Status bad = run(OnesButTheLast(n));
        if (bad.code() != StatusCode::kAborted) return Internal("got: " + bad.ToString());
        if (bad.message().find("first not finite: mul at bad_step_test.cc:") == std::string::npos ||
            bad.message().find("then in the gradient of `w`") == std::string::npos) {
          return Internal(bad.message());
        }
        MT_RETURN_IF_ERROR(all_are(kWeight));
      }
      MT_RETURN_IF_ERROR(run(Ones(n)));
      return all_are(0.2f);
    });
  }
}

class BadStepModelTest : public ::testing::TestWithParam<StrategyCase> {};
INSTANTIATE_TEST_SUITE_P(Strategies, BadStepModelTest, ::testing::ValuesIn(ModelStrategies()),
                         [](const auto& info) { return info.param.name; });

TEST_P(BadStepModelTest, FitEndsNamesTheVariableAndLeavesTheWeights) {
  ForStrategy(GetParam(), [&](Strategy& strategy) -> Status {
    const auto scope = strategy.Scope();
    trainer::Model model(std::make_shared<nn::Sequential>(
        nn::Dense(1, {.kernel_initializer = nn::Initializer::Constant(kWeight)})));
    MT_RETURN_IF_ERROR(
        model.Compile({.loss = train::losses::MeanSquaredError(), .optimizer = train::Adam({})}));
    const int64_t n = 12;
    MT_ASSIGN_OR_RETURN(const trainer::History history,
                        model.Fit(trainer::Arrays{OnesButTheLast(n), Ones(n), n}, {.epochs = 2}));
    MT_WANT(history.end == train::FitEnd::kNotFinite);
    for (const char* part : {"step 1: ", "first not finite: matmul (dense", "kernel"}) {
      if (history.message.find(part) == std::string::npos) return Internal(history.message);
    }
    const auto weight = [&]() -> Result<float> {
      MT_ASSIGN_OR_RETURN(const Tensor w, strategy.Read(model.parameters()[0]));
      return FloatsOf(w)[0];
    };
    MT_ASSIGN_OR_RETURN(const float kept, weight());
    MT_WANT(kept == kWeight);
    MT_ASSIGN_OR_RETURN(const trainer::History good,
                        model.Fit(trainer::Arrays{Ones(n), Ones(n), n}));
    MT_WANT(good.end == train::FitEnd::kFinished);
    // Adam's first step, so its slots and its count were left as well.
    MT_ASSIGN_OR_RETURN(const float stepped, weight());
    MT_WANT(stepped > 0.00099f && stepped < 0.00101f);
    return OkStatus();
  });
}

}  // namespace
}  // namespace meshtrain::strategy
