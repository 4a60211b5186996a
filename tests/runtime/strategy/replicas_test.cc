// What replicas see and do: their numbers, sums between them, packed gradients, and what happens
// when one fails.
#include "runtime/strategy/replicas.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>

#include "runtime/collective/communicator.h"
#include "runtime/nn/layers.h"
#include "runtime/nn/model.h"
#include "runtime/program/ops.h"
#include "runtime/train/optimizer.h"
#include "tests/runtime/strategy/replicas_testing.h"
#include "tests/runtime/strategy/strategy_testing.h"

namespace meshtrain::strategy {
namespace {

using mesh::DType;
using mesh::Tensor;
using program::Builder;
using ::testing::HasSubstr;

Value IdAsFloat() {
  return program::Cast(ReplicaContext::Current()->replica_id_in_sync_group(), DType::kF32);
}

TEST(ReplicasTest, EachKnowsItsNumber) {
  const auto strategy = Mirrored(3);
  const ReplicaFunction id("id", []() -> Value {
    EXPECT_EQ(ReplicaContext::Current()->num_replicas_in_sync(), 3);
    EXPECT_EQ(ReplicaContext::Current()->global_batch_size(), -1);
    return ReplicaContext::Current()->replica_id_in_sync_group();
  });
  EXPECT_EQ(ReplicaContext::Current(), nullptr);
  const auto ids = strategy->Run(id);
  ASSERT_TRUE(ids.ok()) << ids.status().ToString();
  EXPECT_EQ(Numbers((*ids)[0]), (Doubles{0, 1, 2}));
  EXPECT_EQ(ReplicaContext::Current(), nullptr);
}

TEST(ReplicasTest, SumsMeansAndGathersBetweenReplicas) {
  const auto strategy = Mirrored(2);
  const ReplicaFunction collect("collect", []() -> Outputs {
    ReplicaContext& c = *ReplicaContext::Current();
    const Value mine = IdAsFloat() + 1.0;
    return {{"sum", c.AllReduce(ReduceOp::kSum, mine)},
            {"mean", c.AllReduce(ReduceOp::kMean, mine)},
            {"gather", c.AllGather(program::Reshape(mine, {1}), 0)}};
  });
  const auto got = strategy->Run(collect);
  ASSERT_TRUE(got.ok()) << got.status().ToString();
  EXPECT_EQ(Numbers((*got)[0]), (Doubles{3, 3}));
  EXPECT_EQ(Numbers((*got)[1]), (Doubles{1.5, 1.5}));
  for (const Tensor& v : (*got)[2].values) EXPECT_EQ(FloatsOf(v), (std::vector<float>{1, 2}));
}

TEST(ReplicasTest, GradientsPassThroughSumsAndGathers) {
  // Each replica's loss is (own + 1) * (sum of x)^2 + sum(gathered^3), x = own + 1 = 1, 2, 3. Of
  // the replicas' losses together: d/dx_r = sum_i (i + 1) * 2 * 6 + 3 replicas * 3 x_r^2 = 72 + 9
  // x_r^2.
  const auto strategy = Mirrored(3);
  const ReplicaFunction slope("slope", []() -> Value {
    ReplicaContext& c = *ReplicaContext::Current();
    const Value x = program::Reshape(IdAsFloat() + 1.0, {1});
    const Value sum = program::ReduceSum(c.AllReduce(ReduceOp::kSum, x));
    const Value cubes = program::Pow(c.AllGather(x, 0), 3.0);
    const Value loss = (IdAsFloat() + 1.0) * program::Square(sum) + program::ReduceSum(cubes);
    const std::vector<Value> wrt = {x};
    return program::ReduceSum(x.builder()->Gradient(loss, std::span<const Value>(wrt))[0]);
  });
  const auto got = strategy->Run(slope);
  ASSERT_TRUE(got.ok()) << got.status().ToString();
  EXPECT_EQ(Numbers((*got)[0]), (Doubles{72 + 9, 72 + 36, 72 + 81}));
}

TEST(ReplicasTest, OnlyASumHasAGradient) {
  Builder b("max");
  const Builder::Scope scope(b);
  const Value x = b.Input("x", {DType::kF32, {}});
  const Value max = b.Append1("all_reduce", {x},
                              {{"axes", std::vector<int64_t>{0}},
                               {"group", int64_t{2}},
                               {"reduction", std::string("max")}});
  const std::vector<Value> wrt = {x};
  b.Output("g", b.Gradient(max, std::span<const Value>(wrt))[0]);
  EXPECT_THAT(b.Build().status().message(), HasSubstr("only a sum has a gradient"));
}

TEST(ReplicasTest, AssignmentsAreEachReplicasOwnUnlessTheySumFirst) {
  // TensorFlow's aggregations: NONE is an assignment of one's own; SUM and MEAN are sums said
  // aloud.
  std::ifstream file(MT_TESTDATA "/guide/tf_strategies.json");
  const nlohmann::json tf = nlohmann::json::parse(file).at("variable_aggregation");
  const auto run = [](const std::function<Value(Value)>& aggregate) {
    const auto strategy = Mirrored(2);
    const auto scope = strategy->Scope();
    const nn::Parameter v("v", {DType::kF32, {}}, nn::Initializer::Ones(), {.trainable = false});
    const ReplicaFunction add("add",
                              [&]() { program::AssignAdd(v, aggregate(IdAsFloat() + 1.0)); });
    EXPECT_TRUE(strategy->Run(add).ok());
    PerReplica local{strategy->LocalResults(v).value()};
    EXPECT_EQ(strategy->Read(v).value().Item(), local.values[0].Item());
    return Numbers(local);
  };
  const auto context = [] { return ReplicaContext::Current(); };
  EXPECT_EQ(run([](Value x) { return x; }), tf.at("NONE/AUTO").at("local").get<Doubles>());
  EXPECT_EQ(run([&](Value x) { return context()->AllReduce(ReduceOp::kSum, x); }),
            tf.at("SUM/AUTO").at("local").get<Doubles>());
  EXPECT_EQ(run([&](Value x) { return context()->AllReduce(ReduceOp::kMean, x); }),
            tf.at("MEAN/AUTO").at("local").get<Doubles>());
}

TEST(ReplicasTest, CentralStorageHasOneCopy) {
  const auto strategy = Strategy::CentralStorage({.count = 2}).value();
  const auto scope = strategy->Scope();
  const nn::Parameter v("v", {DType::kF32, {}}, nn::Initializer::Ones(), {.trainable = false});
  const ReplicaFunction add("add", [&]() -> Value {
    program::AssignAdd(v, IdAsFloat() + 1.0);
    return v + 0.0;
  });
  // What the second replica's device made of its copy is gone by the next step.
  EXPECT_EQ(Numbers(strategy->Run(add).value()[0]), (Doubles{2, 3}));
  EXPECT_EQ(Numbers(strategy->Run(add).value()[0]), (Doubles{3, 4}));
  EXPECT_EQ(Numbers({strategy->LocalResults(v).value()}), (Doubles{3}));
}

TEST(ReplicasTest, ReduceSumsAndMeansOverReplicasAndAnAxis) {
  for (const StrategyCase& c : AllStrategies()) {
    SCOPED_TRACE(c.name);
    ForReplicas(c, [](ReplicaStrategy& s) -> Status {
      const auto n = static_cast<double>(s.num_replicas_in_sync());
      // Replica r has the r + 1 numbers r, r, ...
      PerReplica own, uneven;
      double sum = 0, squares = 0, count = 0;
      for (int64_t r = 0; r < s.num_replicas_in_sync(); ++r) {
        sum += static_cast<double>(r);
        squares += static_cast<double>(r * (r + 1));
        count += static_cast<double>(r + 1);
      }
      for (int64_t i = 0; i < s.local_replicas(); ++i) {
        const int64_t r = s.first_replica() + i;
        own.values.push_back(Floats({2}, {static_cast<float>(r), 1}));
        uneven.values.push_back(
            Floats({r + 1}, std::vector<float>(static_cast<size_t>(r + 1), static_cast<float>(r))));
      }
      MT_ASSIGN_OR_RETURN(const Tensor total, s.Reduce(ReduceOp::kSum, own));
      MT_WANT(FloatsOf(total) ==
              (std::vector<float>{static_cast<float>(sum), static_cast<float>(n)}));
      MT_ASSIGN_OR_RETURN(const Tensor mean, s.Reduce(ReduceOp::kMean, own));
      MT_WANT(FloatsOf(mean) == (std::vector<float>{static_cast<float>(sum / n), 1}));
      MT_ASSIGN_OR_RETURN(const Tensor along, s.Reduce(ReduceOp::kSum, uneven, 0));
      MT_WANT(along.Item() == squares);
      MT_ASSIGN_OR_RETURN(const Tensor each_once, s.Reduce(ReduceOp::kMean, uneven, 0));
      MT_WANT(std::abs(each_once.Item() - squares / count) < 1e-6);
      MT_WANT(s.LocalResults(own).size() == static_cast<size_t>(s.local_replicas()));
      return OkStatus();
    });
  }
}

TEST(ReplicasTest, ReduceRefusesWhatItCannotAdd) {
  const auto s = Mirrored(2);
  EXPECT_EQ(s->Reduce(ReduceOp::kSum, {{Floats({1}, {1}), Floats({2}, {1, 2})}}).status().code(),
            StatusCode::kInvalidArgument);
  EXPECT_EQ(s->Reduce(ReduceOp::kSum, {{Floats({1}, {1})}}).status().code(),
            StatusCode::kInvalidArgument);
  const PerReplica ints{{Tensor::Scalar(int64_t{1}), Tensor::Scalar(int64_t{2})}};
  EXPECT_EQ(s->Reduce(ReduceOp::kSum, ints).value().Item(), 3);
  EXPECT_THAT(s->Reduce(ReduceOp::kMean, ints).status().message(),
              HasSubstr("a mean takes f32, f64, bf16 or f16"));
}

// --- failures

TEST(ReplicasTest, AFunctionThatFailsForOneReplicaIsNamedAndChangesNothing) {
  const auto strategy = Mirrored(2);
  const auto scope = strategy->Scope();
  const nn::Parameter v("v", {DType::kF32, {2}}, nn::Initializer::Ones());
  const ReplicaFunction add("add", [&](Value x) {
    program::AssignAdd(
        v, program::ReduceSum(x, {0}) + program::ReduceSum(program::Slice(x, {0, 0}, {2, 2}), {0}));
  });
  // Three examples over two replicas: the second has one row, and a slice of two fails.
  const auto run = [&](int64_t n) {
    return strategy->Run(add, strategy
                                  ->DistributeBatch(std::vector<Tensor>{Floats(
                                      {n, 2}, std::vector<float>(static_cast<size_t>(2 * n), 1))})
                                  .value());
  };
  const Status failed = run(3).status();
  EXPECT_EQ(failed.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(failed.message(), HasSubstr("replica 1"));
  EXPECT_THAT(failed.message(), HasSubstr("replicas_test.cc"));
  EXPECT_EQ(FloatsOf(strategy->Read(v).value()), (std::vector<float>{1, 1}));
  EXPECT_TRUE(run(4).ok());
  EXPECT_EQ(FloatsOf(strategy->Read(v).value()), (std::vector<float>{5, 5}));
}

TEST(ReplicasTest, ReplicasThatCallDifferentCollectivesEndInAnErrorNotAHang) {
  const auto strategy = Mirrored(3);
  const auto scope = strategy->Scope();
  const nn::Parameter v("v", {DType::kF32, {}}, nn::Initializer::Zeros());
  const ReplicaFunction odd("odd", [&](Value x) {
    Value sum = program::ReduceSum(x);
    if (x.dims()[0] == 2) sum = ReplicaContext::Current()->AllReduce(ReduceOp::kSum, sum);
    program::AssignAdd(v, ReplicaContext::Current()->AllReduce(ReduceOp::kSum, sum));
  });
  const auto run = [&](int64_t n) {
    return strategy
        ->Run(odd, strategy
                       ->DistributeBatch(std::vector<Tensor>{
                           Floats({n}, std::vector<float>(static_cast<size_t>(n), 1))})
                       .value())
        .status();
  };
  const Status failed = run(5);  // 2 2 1
  EXPECT_FALSE(failed.ok());
  EXPECT_THAT(failed.message(), HasSubstr("replica 2"));
  EXPECT_THAT(failed.message(), HasSubstr("different collectives"));
  // Nobody knows what the copies are now.
  EXPECT_EQ(run(3).code(), StatusCode::kFailedPrecondition);
  ASSERT_TRUE(strategy->Equalize().ok());
  ASSERT_TRUE(strategy->Assign(v, Tensor::Scalar(0.0f)).ok());
  ASSERT_TRUE(run(3).ok());
  EXPECT_EQ(Numbers({strategy->LocalResults(v).value()}), (Doubles{3, 3, 3}));
}

TEST(ReplicasTest, AReplicaWithoutItsPeerGivesUpAtTheDeadlineNamingIt) {
  // The second process stops before its first step.
  const auto ends = RunProcesses(2, [&](FakeProcess& self) -> Status {
    if (self.process == 1) return OkStatus();
    const auto inner = self.communicator;
    collective::ThreadPartiesOptions quick{.deadline = std::chrono::milliseconds(100)};
    auto parties = std::make_shared<collective::ThreadParties>(
        std::vector<std::string>{"worker-0", "worker-1"}, quick);
    MT_ASSIGN_OR_RETURN(const auto strategy,
                        Strategy::MultiWorkerMirrored(
                            {.process = 0,
                             .processes = 2,
                             .communicator = [&](const mesh::Mesh& mesh, uint64_t hash)
                                 -> Result<std::unique_ptr<collective::Communicator>> {
                               MT_ASSIGN_OR_RETURN(auto behind, inner(mesh, hash));
                               return parties->Join(0, mesh.LocalRanks(0), hash, std::move(behind));
                             },
                             .devices_per_worker = 2}));
    const ReplicaFunction sum("sum", []() -> Value {
      return ReplicaContext::Current()->AllReduce(ReduceOp::kSum, program::Fill({}, 1));
    });
    const Status run = strategy->Run(sum).status();
    MT_WANT(run.code() == StatusCode::kDeadlineExceeded);
    MT_WANT(run.message().find("waited for worker-1") != std::string::npos);
    return OkStatus();
  });
  for (const Status& end : ends) EXPECT_TRUE(end.ok()) << end.ToString();
}

TEST(ReplicasTest, WrongInputsAreRefused) {
  const auto strategy = Mirrored(2);
  const ReplicaFunction one("one", [](Value x) -> Value { return x; });
  EXPECT_EQ(strategy->Run(one).status().code(), StatusCode::kInvalidArgument);
  PerReplicaBatch three;
  three.replicas.resize(3);
  EXPECT_THAT(strategy->Run(one, three).status().message(),
              HasSubstr("2 replicas of this process, got: for 3"));
}

// --- packing, dropout

int Buckets(const plan::Plan& plan) {
  int count = 0;
  for (const plan::Step& s : plan.steps) count += s.kind == plan::StepKind::kCollective ? 1 : 0;
  return count;
}

TEST(ReplicasTest, GradientsArePackedAsAsked) {
  // Four weights of 16 floats.
  const auto buckets = [](Packing packing) {
    const auto strategy = Mirrored(2, {.packing = packing});
    const auto scope = strategy->Scope();
    std::vector<nn::Parameter> w;
    for (int i = 0; i < 4; ++i) {
      w.emplace_back("w" + std::to_string(i), mesh::TensorType{DType::kF32, {16}},
                     nn::Initializer::Ones());
    }
    const auto optimizer = train::Sgd();
    const ReplicaFunction step("step", [&]() {
      Value loss = program::ReduceSum(program::Square(w[0]));
      for (int i = 1; i < 4; ++i) {
        loss = loss + program::ReduceSum(program::Square(w[static_cast<size_t>(i)]));
      }
      const std::vector<program::Variable> variables(w.begin(), w.end());
      optimizer->Apply(w, program::Gradient(loss, variables));
    });
    EXPECT_TRUE(strategy->Run(step).ok());
    EXPECT_EQ(FloatsOf(strategy->Read(w[3]).value())[15],
              1 - 0.01f * 4);  // two replicas' gradients of 2
    return Buckets(*strategy->last_plan(step));
  };
  // The count of what is not finite goes with the last pack, full or not; by itself where each
  // gradient does.
  EXPECT_EQ(buckets({}), 1);
  EXPECT_EQ(buckets({.num_packs = 1}), 1);
  EXPECT_EQ(buckets({.num_packs = 2}), 2);
  EXPECT_EQ(buckets({.num_packs = 4}), 4);
  EXPECT_EQ(buckets({.num_packs = 0}), 4 + 1);
  EXPECT_EQ(buckets({.bytes_per_pack = 64}), 4);
  EXPECT_EQ(buckets({.bytes_per_pack = 65}), 2);
  EXPECT_EQ(Strategy::Mirrored({.packing = {.num_packs = 1, .bytes_per_pack = 1}}).status().code(),
            StatusCode::kInvalidArgument);
  EXPECT_EQ(Strategy::Mirrored({.packing = {.num_packs = -1}}).status().code(),
            StatusCode::kInvalidArgument);
}

TEST(ReplicasTest, DropoutDrawsAMaskOfItsOwnOnEachReplica) {
  const auto masks = [](ReplicaStrategy& strategy) {
    const auto scope = strategy.Scope();
    const nn::Parameter step("step", {DType::kI64, {}}, nn::Initializer::Zeros(),
                             {.trainable = false});
    const ReplicaFunction draw(
        "draw", [&]() -> Value { return program::Dropout(program::Ones({64}), 0.5, 7, step); });
    return strategy.Run(draw).value()[0].values;
  };
  const auto one = Strategy::OneDevice("cpu:0").value();
  const std::vector<Tensor> two = masks(*Mirrored(2));
  EXPECT_EQ(FloatsOf(two[0]), FloatsOf(masks(*one)[0]));
  EXPECT_NE(FloatsOf(two[0]), FloatsOf(two[1]));
  EXPECT_EQ(FloatsOf(masks(*Mirrored(2))[1]), FloatsOf(two[1])) << "the same in every run";
}

TEST(ReplicasTest, DropoutInALoopDrawsAnewInEachStep) {
  const auto draw = [] {
    const auto strategy = Mirrored(2);
    const auto scope = strategy->Scope();
    nn::Sequential model(nn::Dropout(0.5));
    const nn::Parameter steps("steps", {DType::kI64, {}}, nn::Initializer::Zeros(),
                              {.trainable = false});
    const ReplicaFunction step("step", [&](Value x) -> Value {
      const nn::ContextScope training({.training = true, .seed = 3, .step = steps});
      const Value y = model(x);
      program::AssignAdd(steps, 1);
      return y;
    });
    const std::vector<Tensor> batch = {Floats({2, 64}, std::vector<float>(128, 1))};
    std::vector<std::vector<float>> masks;
    for (int i = 0; i < 2; ++i) {
      const std::vector<PerReplica> y =
          strategy->Run(step, strategy->DistributeBatch(batch).value()).value();
      for (const Tensor& own : y[0].values) masks.push_back(FloatsOf(own));
    }
    return masks;
  };
  const std::vector<std::vector<float>> masks = draw();
  EXPECT_EQ(std::set<std::vector<float>>(masks.begin(), masks.end()).size(), 4u)
      << "of two steps and two replicas";
  EXPECT_EQ(masks, draw()) << "the same in every run";
}

}  // namespace
}  // namespace meshtrain::strategy
