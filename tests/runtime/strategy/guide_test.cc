// The guide's custom loop: Dense(1) on ([1], [1]), global batch 5 x replicas, kernel L2 1e-4, SGD
// 0.01, binary cross-entropy from logits. Its 210 printed losses come out under every strategy.
#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>

#include "runtime/plan/plan.h"
#include "runtime/strategy/dataset.h"
#include "tests/runtime/strategy/strategy_testing.h"

namespace meshtrain::strategy {
namespace {

// ([1.], [1.]) x n
Result<DistributedDataset> Ones(ReplicaStrategy& strategy, int64_t n, int64_t per_replica) {
  const mesh::Tensor ones = Floats({n, 1}, std::vector<float>(static_cast<size_t>(n), 1));
  return strategy.DistributeArrays({ones, ones}, per_replica * strategy.num_replicas_in_sync());
}

class GuideTest : public ::testing::TestWithParam<StrategyCase> {};
INSTANTIATE_TEST_SUITE_P(Strategies, GuideTest, ::testing::ValuesIn(AllStrategies()),
                         [](const auto& info) { return info.param.name; });

TEST_P(GuideTest, Prints210Losses) {
  const Guide& guide = GuideNumbers();
  ASSERT_EQ(guide.losses.size(), 210u);
  ForReplicas(GetParam(), [&](ReplicaStrategy& strategy) -> Status {
    const auto scope = strategy.Scope();
    const GuideLoop loop(guide.w0);
    // The guide's 1,000 examples make 200 steps with one replica; more replicas get as many more.
    MT_ASSIGN_OR_RETURN(DistributedDataset dataset,
                        Ones(strategy, 1000 * strategy.num_replicas_in_sync(), 5));
    MT_WANT(dataset.steps_per_epoch() == 200);
    std::vector<double> losses;
    DistributedIterator pass = dataset.Iterate();
    for (;;) {
      MT_ASSIGN_OR_RETURN(const auto batch, pass.Next());
      if (!batch) break;
      MT_ASSIGN_OR_RETURN(const double loss, loop.Step(strategy, *batch));
      losses.push_back(loss);
    }
    MT_WANT(losses.size() == 200);
    DistributedIterator ten = dataset.Iterate(10);
    for (int i = 0; i < 10; ++i) {
      MT_ASSIGN_OR_RETURN(const auto batch, ten.Next());
      MT_WANT(batch.has_value());
      MT_ASSIGN_OR_RETURN(const double loss, loop.Step(strategy, *batch));
      losses.push_back(loss);
    }
    MT_ASSIGN_OR_RETURN(const auto end, ten.Next());
    MT_WANT(!end.has_value());
    MT_RETURN_IF_ERROR(CheckGuideLosses(losses));
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
  std::atomic<bool> compared = false;
  ForReplicas(GetParam(), [&](ReplicaStrategy& strategy) -> Status {
    // TensorFlow was run with one replica (200 steps of 5) and with two, also as two processes (100
    // steps of 10).
    const int64_t replicas = strategy.num_replicas_in_sync();
    if (replicas > 2) return OkStatus();
    compared = true;
    const auto& want =
        replicas == 1 ? json.at("loops").at("loop_OneDevice") : json.at("multi_worker_loop").at(0);
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
      MT_ASSIGN_OR_RETURN(last, loop.Step(strategy, *batch));
    }
    MT_WANT(steps == want.at("steps"));
    MT_ASSIGN_OR_RETURN(const mesh::Tensor w, strategy.Read(loop.parameters()[0]));
    MT_ASSIGN_OR_RETURN(const mesh::Tensor b, strategy.Read(loop.parameters()[1]));
    MT_WANT(std::abs(last - want.at("last_loss").get<double>()) <= 1e-6);
    MT_WANT(std::abs(w.Item() - want.at("w").get<double>()) <= 1e-6);
    MT_WANT(std::abs(b.Item() - want.at("b").get<double>()) <= 1e-6);
    return OkStatus();
  });
  if (!compared) GTEST_SKIP() << "TensorFlow was run with one replica and with two";
}

TEST_P(GuideTest, CopiesStayEqualBitForBit) {
  ForReplicas(GetParam(), [&](ReplicaStrategy& strategy) -> Status {
    const auto scope = strategy.Scope();
    const GuideLoop loop(0.3);
    MT_ASSIGN_OR_RETURN(DistributedDataset dataset, Ones(strategy, 100, 3));
    DistributedIterator twenty = dataset.Iterate(20);
    for (int i = 0; i < 20; ++i) {
      MT_ASSIGN_OR_RETURN(const auto batch, twenty.Next());
      MT_ASSIGN_OR_RETURN(const double loss, loop.Step(strategy, *batch));
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
}  // namespace meshtrain::strategy
