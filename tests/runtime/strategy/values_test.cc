// How batches are cut, and what Reduce computes: pure.
#include "runtime/strategy/values.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>
#include <random>

#include "runtime/mesh/half.h"
#include "runtime/strategy/dataset.h"
#include "tests/runtime/strategy/strategy_testing.h"

namespace meshtrain::strategy {
namespace {

using mesh::DType;
using mesh::Tensor;

nlohmann::json TensorFlow() {
  std::ifstream file(MT_TESTDATA "/guide/tf_strategies.json");
  return nlohmann::json::parse(file);
}

// The numbers 0 .. n-1.
Tensor Range(int64_t n) {
  Tensor x(mesh::TensorType{DType::kI64, {n}});
  for (int64_t i = 0; i < n; ++i) x.mutable_values<int64_t>()[static_cast<size_t>(i)] = i;
  return x;
}

// What the replicas of a process see of a pass: [step][replica][example].
nlohmann::json Pass(int64_t n, int64_t batch, int64_t replicas, int64_t first, int64_t count) {
  DistributedDataset dataset(ArraysPipeline({Range(n)}, batch).value(), replicas, first, count);
  nlohmann::json steps = nlohmann::json::array();
  DistributedIterator pass = dataset.Iterate();
  for (;;) {
    const auto next = pass.Next().value();
    if (!next) return steps;
    nlohmann::json step = nlohmann::json::array();
    for (const auto& components : next->replicas) {
      const auto values = components[0].values<int64_t>();
      step.push_back(std::vector<int64_t>(values.begin(), values.end()));
    }
    steps.push_back(step);
  }
}

TEST(ValuesTest, BatchesAreCutAsTensorFlowCutsThem) {
  const nlohmann::json json = TensorFlow();
  int cases = 0;
  for (const auto& [name, want] : json.at("batch_cuts").items()) {
    int replicas = 0, n = 0, batch = 0;
    ASSERT_EQ(std::sscanf(name.c_str(), "replicas=%d n=%d batch=%d", &replicas, &n, &batch), 3)
        << name;
    EXPECT_EQ(Pass(n, batch, replicas, 0, replicas), want) << name;
    ++cases;
  }
  EXPECT_EQ(cases, 10);
}

TEST(ValuesTest, EachProcessKeepsItsPartAsTensorFlowsWorkersDo) {
  const nlohmann::json want = TensorFlow().at("multi_worker_data_range18_batch4");
  ASSERT_EQ(want.size(), 2u);
  for (int64_t worker = 0; worker < 2; ++worker) {
    EXPECT_EQ(Pass(18, 4, 2, worker, 1), want[static_cast<size_t>(worker)]);
  }
}

TEST(ValuesTest, CutsCoverTheBatchInOrder) {
  const char* given = std::getenv("MT_TEST_SEED");
  const uint64_t seed =
      given != nullptr ? std::strtoull(given, nullptr, 10) : std::random_device()();
  SCOPED_TRACE("MT_TEST_SEED=" + std::to_string(seed));
  std::mt19937_64 draw(seed);
  for (int i = 0; i < 2000; ++i) {
    const auto n = static_cast<int64_t>(draw() % 100),
               replicas = static_cast<int64_t>(1 + draw() % 12);
    int64_t at = 0;
    for (int64_t r = 0; r < replicas; ++r) {
      const auto [begin, end] = RowsOf(n, replicas, r);
      ASSERT_EQ(begin, at);
      ASSERT_LE(begin, end);
      ASSERT_LE(end - begin, (n + replicas - 1) / replicas);
      at = end;
    }
    ASSERT_EQ(at, n);
  }
}

TEST(ValuesTest, ComponentsOfABatchAgree) {
  const std::vector<Tensor> uneven = {Range(4), Range(5)};
  EXPECT_EQ(SplitBatch(uneven, 2, 0, 2).status().code(), StatusCode::kInvalidArgument);
  const std::vector<Tensor> scalar = {Tensor::Scalar(1.0f)};
  EXPECT_EQ(SplitBatch(scalar, 2, 0, 2).status().code(), StatusCode::kInvalidArgument);
  const std::vector<Tensor> pair = {Floats({3, 2}, {1, 2, 3, 4, 5, 6}), Range(3)};
  const PerReplicaBatch batch = SplitBatch(pair, 2, 1, 1).value();
  EXPECT_EQ(batch.global_size, 3);
  ASSERT_EQ(batch.replicas.size(), 1u);
  EXPECT_EQ(FloatsOf(batch.replicas[0][0]), (std::vector<float>{5, 6}));
  EXPECT_EQ(batch.replicas[0][1].values<int64_t>()[0], 2);
}

std::vector<float> Rounded(const Tensor& x) { return FloatsOf(RoundedTo(DType::kF32, x)); }

TEST(ValuesTest, SumsAndMeans) {
  const std::vector<Tensor> two = {Floats({2}, {1, 2}), Floats({2}, {10, 20})};
  EXPECT_EQ(Rounded(AddAll(two).value()), (std::vector<float>{11, 22}));
  const std::vector<Tensor> other = {Floats({2}, {1, 2}), Floats({1}, {10})};
  EXPECT_EQ(AddAll(other).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(AddAll({}).status().code(), StatusCode::kInvalidArgument);
  const std::vector<Tensor> flags = {Tensor::Scalar(true)};
  EXPECT_EQ(AddAll(flags).status().code(), StatusCode::kInvalidArgument);

  const Tensor x = Floats({2, 3}, {1, 2, 3, 4, 5, 6});
  EXPECT_EQ(Rounded(SumAlong(x, 0).value()), (std::vector<float>{5, 7, 9}));
  EXPECT_EQ(Rounded(SumAlong(x, -1).value()), (std::vector<float>{6, 15}));
  EXPECT_EQ(Rounded(SumAlong(Floats({0, 2}, {}), 0).value()), (std::vector<float>{0, 0}));
  EXPECT_EQ(SumAlong(x, 2).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(FloatsOf(DivideBy(x, 2).value()), (std::vector<float>{.5, 1, 1.5, 2, 2.5, 3}));
  EXPECT_EQ(DivideBy(Range(2), 2).status().code(), StatusCode::kInvalidArgument);
}

template <typename T>
Tensor All(DType dtype, int64_t n, double value) {
  Tensor x(mesh::TensorType{dtype, {n}});
  std::ranges::fill(x.mutable_values<T>(), static_cast<T>(value));
  return x;
}

// Added in their own type, 5,000 ones of bf16 would be 256 and the tenths off by half a percent.
TEST(ReduceTest, ManyNumbersAreRoundedOnce) {
  for (const StrategyCase& c : AllStrategies()) {
    SCOPED_TRACE(c.name);
    ForReplicas(c, [&](ReplicaStrategy& strategy) -> Status {
      const auto replicas = static_cast<double>(strategy.num_replicas_in_sync());
      const auto reduce = [&](ReduceOp op, const Tensor& x, std::optional<int64_t> axis) {
        const auto local = static_cast<size_t>(strategy.local_replicas());
        return strategy.Reduce(op, PerReplica{std::vector<Tensor>(local, x)}, axis);
      };
      const Tensor ones = All<mesh::BFloat16>(DType::kBF16, 5000, 1),
                   half = All<mesh::Float16>(DType::kF16, 5000, 0.5),
                   tenths = All<float>(DType::kF32, 1'000'000, 0.1F);
      for (const auto& [x, value] :
           {std::pair(ones, 1.0), std::pair(half, 0.5), std::pair(tenths, double{0.1F})}) {
        const DType dtype = x.type().dtype;
        MT_ASSIGN_OR_RETURN(const Tensor sum, reduce(ReduceOp::kSum, x, 0));
        MT_ASSIGN_OR_RETURN(const Tensor mean, reduce(ReduceOp::kMean, x, 0));
        MT_WANT(sum.type() == (mesh::TensorType{dtype, {}}));
        const double exact = value * static_cast<double>(x.dims()[0]) * replicas;
        MT_WANT(std::abs(sum.Item() - exact) <= exact / (dtype == DType::kF32 ? 1e7 : 256));
        MT_WANT(mean.Item() == value);
      }
      // Over the replicas alone.
      MT_ASSIGN_OR_RETURN(const Tensor same, reduce(ReduceOp::kMean, tenths, {}));
      MT_WANT(same.type() == tenths.type() && same.values<float>()[0] == 0.1F);
      return OkStatus();
    });
  }
  // Of bf16 256 + 1 + 1 would lose both ones.
  const auto three = Strategy::Mirrored({.count = 3}).value();
  PerReplica uneven;
  for (const double value : {256.0, 1.0, 1.0}) {
    uneven.values.push_back(All<mesh::BFloat16>(DType::kBF16, 1, value));
  }
  EXPECT_EQ(three->Reduce(ReduceOp::kSum, uneven).value().values<mesh::BFloat16>()[0], 258.0F);
  uneven.values[1] = All<float>(DType::kF32, 1, 1);
  EXPECT_THAT(three->Reduce(ReduceOp::kSum, uneven, 0).status().message(),
              ::testing::HasSubstr("expected values of one type on all replicas, got: bf16[1] and "
                                   "f32[1]"));
}

TEST(DatasetTest, AnIteratorOfStepsGoesThroughTheEndsOfPasses) {
  DistributedDataset dataset(ArraysPipeline({Range(5)}, 2).value(), 1, 0, 1);
  EXPECT_EQ(dataset.steps_per_epoch(), 3);
  EXPECT_EQ(dataset.global_batch_size(), 2);
  const auto sizes = [](DistributedIterator& it, int n) {
    std::vector<int64_t> out;
    for (int i = 0; i < n; ++i) {
      const auto next = it.Next().value();
      out.push_back(next ? next->global_size : -1);
    }
    return out;
  };
  DistributedIterator seven = dataset.Iterate(7);
  EXPECT_EQ(sizes(seven, 9), (std::vector<int64_t>{2, 2, 1, 2, 2, 1, 2, -1, -1}));
  // The next one begins a pass, although the one before stood in the middle of one, and ends it.
  DistributedIterator pass = dataset.Iterate();
  EXPECT_EQ(sizes(pass, 5), (std::vector<int64_t>{2, 2, 1, -1, -1}));
  EXPECT_EQ(seven.Next().status().code(), StatusCode::kFailedPrecondition);
}

TEST(DatasetTest, AnEmptyPassIsAnError) {
  data::PipelineSpec spec;
  spec.source.from = data::MemoryArrays{{Range(3)}};
  spec.stages = {data::BatchStage{.size = 4, .drop_remainder = true}};
  auto pipeline = data::Pipeline::Create(std::move(spec));
  if (!pipeline.ok()) return;  // refused already
  DistributedDataset dataset(std::move(*pipeline), 1, 0, 1);
  DistributedIterator it = dataset.Iterate(1);
  EXPECT_EQ(it.Next().status().code(), StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace meshtrain::strategy
