// Batches that replicas do not divide: they weigh as on one replica, and end in no deadlock.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <set>

#include "runtime/nn/layers.h"
#include "runtime/nn/model.h"
#include "runtime/program/ops.h"
#include "runtime/strategy/dataset.h"
#include "runtime/strategy/replicas.h"
#include "runtime/train/loss.h"
#include "runtime/train/optimizer.h"
#include "tests/runtime/strategy/replicas_testing.h"
#include "tests/runtime/strategy/strategy_testing.h"

namespace meshtrain::strategy {
namespace {

using mesh::DType;
using mesh::Tensor;
using program::Builder;
using ::testing::HasSubstr;

// Four features, two layers, classes: enough for gradients of every kind.
class Classifier {
 public:
  explicit Classifier(std::unique_ptr<train::Optimizer> optimizer)
      : model_(nn::Dense(5, {.activation = nn::ActivationKind::kTanh,
                             .kernel_regularizer = nn::L2(1e-2)}),
               nn::Dense(3)),
        optimizer_(std::move(optimizer)),
        step("step", [this](Value x, Value y) -> Value {
          const Value per_example =
              train::losses::SparseCategoricalCrossentropy({.from_logits = true})
                  .PerExample(y, model_(x));
          const Value loss = ComputeAverageLoss(per_example) +
                             ScaleRegularizationLoss(RegularizationLoss(model_.parameters()));
          optimizer_->Minimize(loss, model_.parameters());
          return loss;
        }) {}
  const std::vector<nn::Parameter>& parameters() const { return model_.parameters(); }

 private:
  nn::Sequential model_;
  std::unique_ptr<train::Optimizer> optimizer_;

 public:
  ReplicaFunction step;
};

std::vector<Tensor> Examples(int64_t n) {
  Tensor x(mesh::TensorType{DType::kF32, {n, 4}}), y(mesh::TensorType{DType::kI32, {n}});
  for (int64_t i = 0; i < n * 4; ++i) {
    x.mutable_values<float>()[static_cast<size_t>(i)] = std::sin(static_cast<float>(i));
  }
  for (int64_t i = 0; i < n; ++i) {
    y.mutable_values<int32_t>()[static_cast<size_t>(i)] = static_cast<int32_t>(i * i % 3);
  }
  return {x, y};
}

// Losses and final weights of two passes of 11 examples in batches of `batch`.
struct Trained {
  std::vector<double> losses;
  std::map<std::string, std::vector<float>> weights;
};
Result<Trained> TrainUneven(ReplicaStrategy& strategy, int64_t batch) {
  const auto scope = strategy.Scope();
  Classifier c(train::Adam({.common = {.learning_rate = 0.05}}));
  MT_ASSIGN_OR_RETURN(DistributedDataset dataset, strategy.DistributeArrays(Examples(11), batch));
  Trained out;
  for (int epoch = 0; epoch < 2; ++epoch) {
    DistributedIterator pass = dataset.Iterate();
    for (;;) {
      MT_ASSIGN_OR_RETURN(const auto next, pass.Next());
      if (!next) break;
      MT_ASSIGN_OR_RETURN(const auto losses, strategy.Run(c.step, *next));
      MT_ASSIGN_OR_RETURN(const Tensor loss, strategy.Reduce(ReduceOp::kSum, losses[0]));
      out.losses.push_back(loss.Item());
    }
  }
  for (const nn::Parameter& p : c.parameters()) {
    MT_ASSIGN_OR_RETURN(const Tensor w, strategy.Read(p));
    out.weights[p.name()] = FloatsOf(w);
  }
  return out;
}

TEST(ReplicasTest, UnevenBatchesWeighAsOnOneReplica) {
  // Batches of 1 leave all replicas but one without an example; 4 and 7 end in batches of 3 and 4.
  for (const int64_t batch : {1, 2, 4, 7, 11}) {
    const auto one = Strategy::OneDevice("cpu:0", {.seed = 3}).value();
    const auto want = TrainUneven(*one, batch);
    ASSERT_TRUE(want.ok()) << want.status().ToString();
    const auto check = [&](ReplicaStrategy& strategy) -> Status {
      MT_ASSIGN_OR_RETURN(const Trained got, TrainUneven(strategy, batch));
      MT_WANT(got.losses.size() == want->losses.size());
      for (size_t i = 0; i < got.losses.size(); ++i) {
        MT_WANT(std::abs(got.losses[i] - want->losses[i]) <= 2e-6);
      }
      MT_WANT(got.weights.size() == 4);
      for (const auto& [name, values] : got.weights) {
        const std::vector<float>& right = want->weights.at(name);
        for (size_t i = 0; i < right.size(); ++i) MT_WANT(std::abs(values[i] - right[i]) <= 2e-5f);
      }
      return OkStatus();
    };
    for (const int64_t replicas : {2, 3, 5}) {
      SCOPED_TRACE("batch " + std::to_string(batch) + ", replicas " + std::to_string(replicas));
      MirroredOptions options{.common = {.seed = 3}};
      const Status ok = check(*Mirrored(replicas, options));
      EXPECT_TRUE(ok.ok()) << ok.ToString();
    }
    const auto ends = RunProcesses(3, [&](FakeProcess& self) -> Status {
      MT_ASSIGN_OR_RETURN(const auto strategy,
                          Strategy::MultiWorkerMirrored({.process = self.process,
                                                         .processes = 3,
                                                         .communicator = self.communicator,
                                                         .common = {.seed = 3}}));
      return check(*strategy);
    });
    for (const Status& end : ends) {
      EXPECT_TRUE(end.ok()) << "batch " << batch << ": " << end.ToString();
    }
  }
}

TEST(ReplicasTest, ProgramsOfAllSizesCallTheSameCollectives) {
  // Sums in the forward pass too, between ops that fuse for some sizes and not for others.
  const auto strategy = Mirrored(4);
  const auto scope = strategy->Scope();
  nn::Dense dense(3);
  const ReplicaFunction norm("norm", [&](Value x) -> Value {
    ReplicaContext& c = *ReplicaContext::Current();
    const Value n =
        c.AllReduce(ReduceOp::kSum, program::Fill({}, static_cast<double>(x.dims()[0])));
    const Value mean = c.AllReduce(ReduceOp::kSum, program::ReduceSum(x, {0})) / n;
    const Value centred = x - mean;
    const Value variance =
        c.AllReduce(ReduceOp::kSum, program::ReduceSum(program::Square(centred), {0})) / n;
    const Value y = dense(centred * program::Rsqrt(variance + 1e-3));
    return c.AllReduce(ReduceOp::kSum, program::ReduceSum(program::Square(y)));
  });
  for (const int64_t n : {1, 5, 8}) {  // 1 0 0 0, 2 2 1 0, 2 2 2 2
    const PerReplicaBatch batch =
        strategy->DistributeBatch(std::vector<Tensor>{Examples(n)[0]}).value();
    const auto got = strategy->Run(norm, batch);
    ASSERT_TRUE(got.ok()) << got.status().ToString();
    std::set<uint64_t> collectives, plans;
    for (int64_t r = 0; r < 4; ++r) {
      collectives.insert(strategy->last_plan(norm, r)->CollectivesHash());
      plans.insert(strategy->last_plan(norm, r)->hash);
    }
    EXPECT_EQ(collectives.size(), 1u);
    EXPECT_EQ(plans.size(), n == 1 ? 2u : n == 5 ? 3u : 1u);
    const Doubles sums = Numbers((*got)[0]);
    EXPECT_EQ(sums, Doubles(4, sums[0]));
  }
}

// It has no mean and no variance: its gradients are 0, and its moving figures stay.
TEST(ReplicasTest, AReplicaWithoutExamplesNormalizesNothing) {
  for (const bool scale : {true, false}) {
    const auto strategy = Mirrored(2);
    const auto scope = strategy->Scope();
    nn::BatchNormalizationOptions options;
    options.scale = scale;
    nn::Sequential model(nn::BatchNormalization(options), nn::Dense(1));
    const auto sgd = train::Sgd({.common = {.learning_rate = 0.1}});
    const ReplicaFunction step("step", [&](Value x) -> Value {
      const nn::ContextScope training({.training = true});
      const Value loss = ComputeAverageLoss(program::ReduceSum(program::Square(model(x)), {1}));
      sgd->Minimize(loss, model.parameters());
      return loss;
    });
    for (const int64_t examples : {1, 3}) {
      const std::vector<Tensor> batch = {Examples(examples)[0]};
      const auto ran = strategy->Run(step, strategy->DistributeBatch(batch).value());
      ASSERT_TRUE(ran.ok()) << ran.status().ToString();
    }
    for (const nn::Parameter& p : model.parameters()) {
      const std::vector<Tensor> copies = strategy->LocalResults(p).value();
      EXPECT_EQ(copies.size(), 2);
      for (const Tensor& copy : copies) {
        for (const float number : FloatsOf(copy)) EXPECT_TRUE(std::isfinite(number)) << p.name();
      }
    }
  }
}

TEST(ReplicasTest, WeightsOfExamplesAndAGivenBatchSizeCount) {
  const auto strategy = Mirrored(2);
  const ReplicaFunction loss("loss", [](Value per_example, Value weight) -> Outputs {
    return {{"weighted", ComputeAverageLoss(per_example, {.sample_weight = weight})},
            {"of_ten", ComputeAverageLoss(per_example, {.global_batch_size = 10})},
            {"scaled", ScaleRegularizationLoss(program::Ones({3}))}};
  });
  const std::vector<Tensor> batch = {Floats({3}, {1, 2, 4}), Floats({3}, {1, 0, 2})};
  const auto got = strategy->Run(loss, strategy->DistributeBatch(batch).value());
  ASSERT_TRUE(got.ok()) << got.status().ToString();
  EXPECT_NEAR(strategy->Reduce(ReduceOp::kSum, (*got)[0]).value().Item(), 9.0 / 3, 1e-6);
  EXPECT_NEAR(strategy->Reduce(ReduceOp::kSum, (*got)[1]).value().Item(), 7.0 / 10, 1e-6);
  EXPECT_NEAR(strategy->Reduce(ReduceOp::kSum, (*got)[2]).value().Item(), 3, 1e-6);
  // A weight that makes more of the losses than there are is none.
  const std::vector<Tensor> wide = {Floats({3}, {1, 2, 4}), Floats({3, 1}, {1, 0, 2})};
  EXPECT_THAT(strategy->Run(loss, strategy->DistributeBatch(wide).value()).status().message(),
              HasSubstr("expected a sample weight that broadcasts to the losses' f32[2], "
                        "got: f32[2,1]"));
  // Values that are no batch: TensorFlow's rule, own examples times replicas.
  const std::vector<PerReplica> values = {{{Floats({2}, {1, 1}), Floats({2}, {1, 1})}},
                                          {{Floats({2}, {1, 1}), Floats({2}, {1, 1})}}};
  EXPECT_EQ(Numbers(strategy->Run(loss, values).value()[0]), (Doubles{.5, .5}));
  // Outside of every replica the batch is whole.
  Builder b("whole");
  const Builder::Scope scope(b);
  b.Output("loss", ComputeAverageLoss(b.Input("x", {DType::kF32, {4}})));
  EXPECT_TRUE(b.Build().ok());
}

TEST(ReplicasTest, WhatRegularizersAddIsAskedForAfterTheModelsFirstCall) {
  const auto strategy = Mirrored(2);
  const auto scope = strategy->Scope();
  nn::Sequential model(nn::Dense(
      1, {.kernel_initializer = nn::Initializer::Constant(3), .kernel_regularizer = nn::L2(1e-4)}));
  const std::vector<Tensor> batch = {Floats({2, 1}, {1, 1})};
  const ReplicaFunction early("early", [&](Value x) -> Value {
    const Value cost = RegularizationLoss(model.parameters());
    return cost + program::ReduceSum(model(x));
  });
  const Status refused = strategy->Run(early, strategy->DistributeBatch(batch).value()).status();
  EXPECT_EQ(refused.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(refused.message(),
              HasSubstr("expected the weights of a model that was called before, got: none"));
  const ReplicaFunction late("late", [&](Value x) -> Value {
    const Value y = model(x);
    return ScaleRegularizationLoss(RegularizationLoss(model.parameters())) +
           program::ReduceSum(y) * 0.0;
  });
  const auto got = strategy->Run(late, strategy->DistributeBatch(batch).value());
  ASSERT_TRUE(got.ok()) << got.status().ToString();
  EXPECT_NEAR(strategy->Reduce(ReduceOp::kSum, (*got)[0]).value().Item(), 1e-4 * 9, 1e-9);
}

}  // namespace
}  // namespace meshtrain::strategy
