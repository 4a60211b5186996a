// The guide's custom loop: Dense(1) on ([1], [1]), global batch 5 x replicas, kernel L2 1e-4, SGD 0.01, binary cross-entropy
// from logits. Its 210 printed losses come out under every strategy.
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>

#include "runtime/distribute/strategy/dataset.h"
#include "runtime/nn/layers.h"
#include "runtime/nn/model.h"
#include "runtime/train/loss.h"
#include "runtime/train/optimizer.h"
#include "tests/runtime/distribute/strategy/strategy_testing.h"

namespace meshtrain::distribute {
namespace {

using program::Builder;

// The guide's model, its optimizer and its step.
class GuideLoop {
 public:
  explicit GuideLoop(double w0)
      : model_(nn::Dense(1, {.kernel_initializer = nn::Initializer::Constant(w0), .kernel_regularizer = nn::L2(1e-4)})),
        step_("train_step", [this](Value x, Value y) -> Value { return Step(x, y); }) {}

  const ReplicaFunction& step() const { return step_; }
  const std::vector<nn::Parameter>& parameters() const { return model_.parameters(); }

 private:
  Value Step(const Value& x, const Value& y) {
    const Value predictions = model_(x);
    const Value loss = ComputeAverageLoss(loss_.PerExample(y, predictions)) +
                       ScaleRegularizationLoss(RegularizationLoss(model_.parameters()));
    const std::vector<program::Variable> weights(model_.parameters().begin(), model_.parameters().end());
    optimizer_->Apply(model_.parameters(), program::Gradient(loss, weights));
    return loss;
  }

  nn::Sequential model_;
  std::unique_ptr<train::Optimizer> optimizer_ = train::Sgd();
  train::Loss loss_{.kind = train::LossKind::kBinaryCrossentropy, .from_logits = true};
  ReplicaFunction step_;
};

// ([1.], [1.]) x n
Result<DistributedDataset> Ones(Strategy& strategy, int64_t n, int64_t per_replica) {
  const mesh::Tensor ones = Floats({n, 1}, std::vector<float>(static_cast<size_t>(n), 1));
  return strategy.DistributeArrays({ones, ones}, per_replica * strategy.num_replicas_in_sync());
}

Result<double> Step(Strategy& strategy, const GuideLoop& loop, const PerReplicaBatch& batch) {
  MT_ASSIGN_OR_RETURN(const std::vector<PerReplica> losses, strategy.Run(loop.step(), batch));
  MT_ASSIGN_OR_RETURN(const mesh::Tensor loss, strategy.Reduce(ReduceOp::kSum, losses[0]));
  return loss.Item();
}

class GuideTest : public testing::TestWithParam<StrategyCase> {};
INSTANTIATE_TEST_SUITE_P(Strategies, GuideTest, testing::ValuesIn(AllStrategies()),
                         [](const auto& info) { return info.param.name; });

TEST_P(GuideTest, Prints210Losses) {
  const Guide& guide = GuideNumbers();
  ASSERT_EQ(guide.losses.size(), 210u);
  ForStrategy(GetParam(), [&](Strategy& strategy) -> Status {
    const auto scope = strategy.Scope();
    const GuideLoop loop(guide.w0);
    // The guide's 1,000 examples make 200 steps with one replica; more replicas get as many more.
    MT_ASSIGN_OR_RETURN(DistributedDataset dataset, Ones(strategy, 1000 * strategy.num_replicas_in_sync(), 5));
    MT_WANT(dataset.steps_per_epoch() == 200);
    std::vector<double> losses;
    DistributedIterator pass = dataset.Iterate();
    for (;;) {
      MT_ASSIGN_OR_RETURN(const auto batch, pass.Next());
      if (!batch) break;
      MT_ASSIGN_OR_RETURN(const double loss, Step(strategy, loop, *batch));
      losses.push_back(loss);
    }
    MT_WANT(losses.size() == 200);
    DistributedIterator ten = dataset.Iterate(10);
    for (int i = 0; i < 10; ++i) {
      MT_ASSIGN_OR_RETURN(const auto batch, ten.Next());
      MT_WANT(batch.has_value());
      MT_ASSIGN_OR_RETURN(const double loss, Step(strategy, loop, *batch));
      losses.push_back(loss);
    }
    MT_ASSIGN_OR_RETURN(const auto end, ten.Next());
    MT_WANT(!end.has_value());
    for (size_t i = 0; i < losses.size(); ++i) {
      if (std::abs(losses[i] - guide.losses[i]) <= 1e-6) continue;
      return Internal("step " + std::to_string(i) + ": expected " + std::to_string(guide.losses[i]) + ", got: " +
                      std::to_string(losses[i]));
    }
    // One trace for all replicas and steps: an uneven batch would have made more.
    MT_WANT(strategy.last_plan(loop.step()) != nullptr);
    const bool communicates = strategy.num_replicas_in_sync() > 1;
    MT_WANT(strategy.last_plan(loop.step())->Collectives().empty() == !communicates);
    return OkStatus();
  });
}

TEST_P(GuideTest, EndsWithTensorFlowsWeights) {
  std::ifstream file(MT_TESTDATA "/guide/tf_strategies.json");
  const nlohmann::json json = nlohmann::json::parse(file);
  ForStrategy(GetParam(), [&](Strategy& strategy) -> Status {
    // TensorFlow was run with one replica (200 steps of 5) and with two, also as two processes (100 steps of 10).
    const int64_t replicas = strategy.num_replicas_in_sync();
    if (replicas > 2) return OkStatus();
    const auto& want = replicas == 1 ? json.at("loops").at("loop_OneDevice") : json.at("multi_worker_loop").at(0);
    MT_WANT(want.at("global_batch") == 5 * replicas);
    const auto scope = strategy.Scope();
    const GuideLoop loop(GuideNumbers().w0);
    MT_ASSIGN_OR_RETURN(DistributedDataset dataset, Ones(strategy, 1000, 5));
    DistributedIterator pass = dataset.Iterate();
    int64_t steps = 0;
    double last = 0;
    for (;; ++steps) {
      MT_ASSIGN_OR_RETURN(const auto batch, pass.Next());
      if (!batch) break;
      MT_ASSIGN_OR_RETURN(last, Step(strategy, loop, *batch));
    }
    MT_WANT(steps == want.at("steps"));
    MT_ASSIGN_OR_RETURN(const mesh::Tensor w, strategy.Read(loop.parameters()[0]));
    MT_ASSIGN_OR_RETURN(const mesh::Tensor b, strategy.Read(loop.parameters()[1]));
    MT_WANT(std::abs(last - want.at("last_loss").get<double>()) <= 1e-6);
    MT_WANT(std::abs(w.Item() - want.at("w").get<double>()) <= 1e-6);
    MT_WANT(std::abs(b.Item() - want.at("b").get<double>()) <= 1e-6);
    return OkStatus();
  });
}

TEST_P(GuideTest, CopiesStayEqualBitForBit) {
  ForStrategy(GetParam(), [&](Strategy& strategy) -> Status {
    const auto scope = strategy.Scope();
    const GuideLoop loop(0.3);
    MT_ASSIGN_OR_RETURN(DistributedDataset dataset, Ones(strategy, 100, 3));
    DistributedIterator twenty = dataset.Iterate(20);
    for (int i = 0; i < 20; ++i) {
      MT_ASSIGN_OR_RETURN(const auto batch, twenty.Next());
      MT_ASSIGN_OR_RETURN(const double loss, Step(strategy, loop, *batch));
      MT_WANT(std::isfinite(loss));
    }
    const bool one = strategy.name() == "CentralStorageStrategy";
    for (const nn::Parameter& p : loop.parameters()) {
      MT_ASSIGN_OR_RETURN(const std::vector<mesh::Tensor> copies, strategy.LocalResults(p));
      MT_WANT(static_cast<int64_t>(copies.size()) == (one ? 1 : strategy.local_replicas()));
      for (const mesh::Tensor& copy : copies) MT_WANT(FloatsOf(copy) == FloatsOf(copies[0]));
    }
    return OkStatus();
  });
}

}  // namespace
}  // namespace meshtrain::distribute
