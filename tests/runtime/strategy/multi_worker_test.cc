// MultiWorkerMirrored over real links: processes as threads, each with a team that joins through
// TF_CONFIG.
#include "runtime/strategy/multi_worker.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <cmath>
#include <filesystem>
#include <thread>

#include "runtime/membership/join_team.h"
#include "runtime/nn/layers.h"
#include "runtime/nn/model.h"
#include "runtime/plan/plan.h"
#include "runtime/program/ops.h"
#include "runtime/strategy/dataset.h"
#include "runtime/trainer/model.h"
#include "tests/runtime/membership/membership_testing.h"
#include "tests/runtime/strategy/strategy_testing.h"

namespace meshtrain::strategy {
namespace {

using mesh::Tensor;
using ::testing::HasSubstr;

// Runs body in `n` workers that find each other through TF_CONFIG on the loopback.
std::vector<Status> RunWorkers(int n, const MultiWorkerOptions& options,
                               const std::function<Status(ReplicaStrategy&)>& body) {
  std::vector<membership::ReservedPort> ports(static_cast<size_t>(n));
  std::vector<Status> ends(static_cast<size_t>(n));
  membership::ThreadBarrier all_joined(n);
  std::vector<std::jthread> threads;
  for (int p = 0; p < n; ++p) {
    threads.emplace_back([&, p] {
      const auto run = [&]() -> Status {
        MT_ASSIGN_OR_RETURN(
            JoinedWorker worker,
            JoinMultiWorkerMirrored(options, {}, membership::EnvironmentOfWorker(ports, p)));
        MT_WANT(worker.team->process() == p);
        MT_RETURN_IF_ERROR(all_joined.ArriveAndWait());
        MT_RETURN_IF_ERROR(body(*worker.strategy));
        return worker.Leave();
      };
      ends[static_cast<size_t>(p)] = run();
    });
  }
  threads.clear();
  return ends;
}

TEST(MultiWorkerTest, TheGuidesLoopOverRealLinks) {
  const MultiWorkerOptions options{.devices_per_worker = 2, .communication = Communication::kRing};
  for (const int workers : {2, 3}) {
    SCOPED_TRACE(std::to_string(workers) + " workers with two devices each");
    const auto ends = RunWorkers(workers, options, [&](ReplicaStrategy& strategy) -> Status {
      const int64_t replicas = strategy.num_replicas_in_sync();
      MT_WANT(replicas == 2 * workers);
      const auto scope = strategy.Scope();
      const GuideLoop loop(GuideNumbers().w0);
      const Tensor ones = Floats({840, 1}, std::vector<float>(840, 1));
      MT_ASSIGN_OR_RETURN(DistributedDataset data,
                          strategy.DistributeArrays({ones, ones}, 5 * replicas));
      const auto count = static_cast<int64_t>(GuideNumbers().losses.size());
      MT_WANT(count == 210);
      DistributedIterator steps = data.Iterate(count);
      std::vector<double> losses;
      for (int64_t i = 0; i < count; ++i) {
        MT_ASSIGN_OR_RETURN(const auto batch, steps.Next());
        MT_ASSIGN_OR_RETURN(const double loss, loop.Step(strategy, *batch));
        losses.push_back(loss);
      }
      return CheckGuideLosses(losses);
    });
    for (const Status& end : ends) EXPECT_TRUE(end.ok()) << end.ToString();
  }
}

// Each of three processes has one of these in every element: what their sum comes to says in which
// order they were added.
std::vector<std::vector<float>> SumsBetweenHosts(Communication communication) {
  constexpr float kBig = 16777216;  // 2^24: one more rounds back to it
  const std::vector<float> own = {1, kBig, -kBig};
  std::vector<membership::ReservedPort> ports(3);
  std::vector<std::vector<float>> sums(3);
  std::vector<Status> ends(3);
  membership::ThreadBarrier all_joined(3);
  std::vector<std::jthread> threads;
  for (size_t p = 0; p < 3; ++p) {
    threads.emplace_back([&, p] {
      const auto run = [&]() -> Status {
        // Without shared memory each is a host of its own.
        MT_ASSIGN_OR_RETURN(
            std::shared_ptr<membership::Team> team,
            membership::JoinTeam({.shared_memory = false}, {},
                                 membership::EnvironmentOfWorker(ports, static_cast<int>(p))));
        MT_RETURN_IF_ERROR(all_joined.ArriveAndWait());
        MT_ASSIGN_OR_RETURN(const auto made, Strategy::MultiWorkerMirrored(
                                                 {.team = team, .communication = communication}));
        const ReplicaFunction add("add", [](Value x) -> Value {
          return ReplicaContext::Current()->AllReduce(ReduceOp::kSum, x);
        });
        std::vector<PerReplica> values(1);
        values[0].values = {Floats({3}, std::vector<float>(3, own[p]))};
        MT_ASSIGN_OR_RETURN(const auto added, made->Run(add, values));
        sums[p] = FloatsOf(added[0].values[0]);
        return team->Leave(std::chrono::seconds(30));
      };
      ends[p] = run();
    });
  }
  threads.clear();
  for (const Status& end : ends) EXPECT_TRUE(end.ok()) << end.ToString();
  return sums;
}

TEST(MultiWorkerTest, HostsSumAroundARingWhereThatIsAsked) {
  for (const std::vector<float>& sums : SumsBetweenHosts(Communication::kAuto)) {
    EXPECT_THAT(sums, ::testing::AnyOf(std::vector<float>{0, 0, 0}, std::vector<float>{1, 1, 1}))
        << "so few bytes are added in one order";
  }
  for (const Communication way : {Communication::kRing, Communication::kNccl}) {
    for (const std::vector<float>& sums : SumsBetweenHosts(way)) {
      // Element p begins at process p: (1 + big) - big, (big - big) + 1, (-big + 1) + big.
      EXPECT_EQ(sums, (std::vector<float>{0, 1, 1}));
    }
  }
}

TEST(MultiWorkerTest, FitOverRealLinksWithUnevenBatches) {
  const auto fit = [](ReplicaStrategy& strategy) -> Result<std::vector<double>> {
    trainer::Model model(std::make_shared<nn::Sequential>(nn::Dense(4), nn::Dense(1)), strategy);
    MT_RETURN_IF_ERROR(
        model.Compile({.loss = train::losses::MeanSquaredError(), .optimizer = train::Adam()}));
    Tensor x(mesh::TensorType{mesh::DType::kF32, {11, 2}}),
        y(mesh::TensorType{mesh::DType::kF32, {11, 1}});
    for (size_t i = 0; i < 22; ++i) x.mutable_values<float>()[i] = std::cos(static_cast<float>(i));
    for (size_t i = 0; i < 11; ++i) y.mutable_values<float>()[i] = std::sin(static_cast<float>(i));
    MT_ASSIGN_OR_RETURN(const trainer::History history,
                        model.Fit(trainer::Arrays{x, y, 4}, {.epochs = 3}));
    MT_ASSIGN_OR_RETURN(const Tensor predicted, model.Predict(x, 4));
    std::vector<double> out = history.Of("loss");
    for (const float p : FloatsOf(predicted)) out.push_back(p);
    return out;
  };
  const std::vector<double> want = fit(*Strategy::Default().value()).value();
  const auto ends = RunWorkers(3, {}, [&](ReplicaStrategy& strategy) -> Status {
    MT_ASSIGN_OR_RETURN(const std::vector<double> got, fit(strategy));
    MT_WANT(got.size() == want.size());
    for (size_t i = 0; i < got.size(); ++i) MT_WANT(std::abs(got[i] - want[i]) <= 1e-6);
    return OkStatus();
  });
  for (const Status& end : ends) EXPECT_TRUE(end.ok()) << end.ToString();
}

// Of four kernels of 16 floats and a loss.
Result<int> BucketsOfFit(ReplicaStrategy& strategy) {
  const nn::DenseOptions plain{.use_bias = false};
  trainer::Model model(std::make_shared<nn::Sequential>(nn::Dense(4, plain), nn::Dense(4, plain),
                                                        nn::Dense(4, plain), nn::Dense(4, plain)),
                       strategy);
  MT_RETURN_IF_ERROR(
      model.Compile({.loss = train::losses::MeanSquaredError(), .optimizer = train::Sgd()}));
  const Tensor x(mesh::TensorType{mesh::DType::kF32, {8, 4}});
  MT_RETURN_IF_ERROR(model.Fit(trainer::Arrays{x, x, 8}).status());
  int count = 0;
  for (const plan::Step& s : model.plan()->steps) {
    if (s.kind != plan::StepKind::kCollective) continue;
    for (const int op : s.ops) {
      const program::Op& o = model.plan()->local().ops[static_cast<size_t>(op)];
      if (model.plan()->local().type(o.results[0]).num_elements() == 16) {
        ++count;
        break;
      }
    }
  }
  return count;
}

TEST(MultiWorkerTest, FitPacksGradientsAsAsked) {
  for (const auto& [packing, want] :
       std::vector<std::pair<Packing, int>>{{{}, 1},
                                            {{.num_packs = 1}, 1},
                                            {{.num_packs = 2}, 2},
                                            {{.num_packs = 0}, 4},
                                            {{.bytes_per_pack = 64}, 4},
                                            {{.bytes_per_pack = 128}, 2}}) {
    const auto ends = RunWorkers(2, {.packing = packing}, [&](ReplicaStrategy& strategy) -> Status {
      MT_ASSIGN_OR_RETURN(const int got, BucketsOfFit(strategy));
      EXPECT_EQ(got, want) << packing.num_packs.value_or(-1) << " "
                           << packing.bytes_per_pack.value_or(-1);
      return OkStatus();
    });
    for (const Status& end : ends) EXPECT_TRUE(end.ok()) << end.ToString();
  }
}

TEST(MultiWorkerTest, ModelsThatDifferAreNamedBeforeTheFirstStep) {
  const auto ends = RunWorkers(2, {}, [](ReplicaStrategy& strategy) -> Status {
    trainer::Model model(
        std::make_shared<nn::Sequential>(nn::Dense(strategy.chief() ? 4 : 5), nn::Dense(1)),
        strategy);
    MT_RETURN_IF_ERROR(
        model.Compile({.loss = train::losses::MeanSquaredError(), .optimizer = train::Sgd()}));
    const Tensor x(mesh::TensorType{mesh::DType::kF32, {4, 2}}),
        y(mesh::TensorType{mesh::DType::kF32, {4, 1}});
    const Status fit = model.Fit(trainer::Arrays{x, y, 4}).status();
    MT_WANT(model.steps() == 0);
    return fit;
  });
  for (const Status& end : ends) {
    EXPECT_EQ(end.code(), StatusCode::kInvalidArgument) << end.ToString();
    EXPECT_THAT(end.message(),
                HasSubstr("fit: worker-0 and worker-1 are about to run different plans"));
  }
}

// Each process takes its part of the same batches: of other files it would take others' part, twice
// or never.
TEST(MultiWorkerTest, DataOfAnotherOrderIsNamedBeforeTheFirstStep) {
  const auto ends = RunWorkers(2, {}, [](ReplicaStrategy& strategy) -> Status {
    trainer::Model model(std::make_shared<nn::Sequential>(nn::Dense(1)), strategy);
    MT_RETURN_IF_ERROR(
        model.Compile({.loss = train::losses::MeanSquaredError(), .optimizer = train::Sgd()}));
    const int64_t examples = strategy.chief() ? 8 : 12;
    const Tensor x(mesh::TensorType{mesh::DType::kF32, {examples, 2}}),
        y(mesh::TensorType{mesh::DType::kF32, {examples, 1}});
    const Status fit = model.Fit(trainer::Arrays{x, y, 4}).status();
    MT_WANT(model.steps() == 0);
    return fit;
  });
  for (const Status& end : ends) {
    EXPECT_EQ(end.code(), StatusCode::kInvalidArgument) << end.ToString();
    EXPECT_EQ(end.origin(), Origin::kInput);
    EXPECT_THAT(end.message(),
                HasSubstr("fit: worker-0 and worker-1 have data of different orders"));
  }
}

TEST(MultiWorkerTest, LoopsThatDifferAreNamedBeforeTheFirstStepAndMayGoOn) {
  const auto ends = RunWorkers(2, {}, [](ReplicaStrategy& strategy) -> Status {
    const auto sum_of = [](const std::string& name, int64_t elements) {
      return ReplicaFunction(name, [elements]() -> Value {
        return ReplicaContext::Current()->AllReduce(ReduceOp::kSum, program::Fill({elements}, 1));
      });
    };
    const ReplicaFunction differs = sum_of("sum", strategy.chief() ? 3 : 2);
    const Status run = strategy.Run(differs).status();
    EXPECT_EQ(run.code(), StatusCode::kInvalidArgument) << run.ToString();
    EXPECT_THAT(run.message(),
                HasSubstr("run sum: worker-0 and worker-1 are about to run different plans"));
    // What moves nothing is nobody else's affair.
    if (strategy.chief()) {
      const ReplicaFunction alone("alone", []() -> Value { return program::Fill({}, 7); });
      MT_RETURN_IF_ERROR(strategy.Run(alone).status());
    }
    const ReplicaFunction alike = sum_of("alike", 2);
    for (int again = 0; again < 2; ++again) {
      MT_ASSIGN_OR_RETURN(const auto sums, strategy.Run(alike));
      MT_WANT(FloatsOf(sums[0].values[0])[1] == 2);
    }
    return OkStatus();
  });
  for (const Status& end : ends) EXPECT_TRUE(end.ok()) << end.ToString();
}

TEST(MultiWorkerTest, WorkersThatEndWithoutAWordDisturbNobodysEnd) {
  // Each ends when its body does, and hears of the other's end while it takes its own team apart.
  for (int round = 0; round < 5; ++round) {
    const auto ends = RunWorkers(2, {}, [](ReplicaStrategy&) { return Aborted("enough"); });
    for (const Status& end : ends) EXPECT_EQ(end.code(), StatusCode::kAborted) << end.ToString();
  }
}

TEST(MultiWorkerTest, ALostWorkerIsNamed) {
  const auto ends = RunWorkers(2, {}, [](ReplicaStrategy& strategy) -> Status {
    if (!strategy.chief()) return Aborted("enough");
    const ReplicaFunction sum("sum", []() -> Value {
      return ReplicaContext::Current()->AllReduce(ReduceOp::kSum, program::Fill({}, 1));
    });
    return strategy.Run(sum).status();
  });
  EXPECT_TRUE(membership::Team::IsLoss(ends[0])) << ends[0].ToString();
  EXPECT_THAT(ends[0].message(), HasSubstr("worker-1"));
}

TEST(MultiWorkerTest, ALoopGoesOnFromItsCheckpointWhenALostWorkerIsBack) {
  constexpr size_t kSaved = 6, kLost = 9, kSteps = 15;
  std::string folder = (std::filesystem::temp_directory_path() / "multi-worker-XXXXXX").string();
  ASSERT_NE(::mkdtemp(folder.data()), nullptr);
  std::vector<membership::ReservedPort> ports(2);
  std::vector<std::string> losses_seen(2);
  int rounds = 0;  // that worker 0 began
  // One life of a worker: trains to the end, or to step kLost if it is to be lost there.
  const auto live = [&](int index, bool to_be_lost) -> Status {
    MT_ASSIGN_OR_RETURN(
        JoinedWorker worker,
        JoinMultiWorkerMirrored({}, {}, membership::EnvironmentOfWorker(ports, index)));
    ReplicaStrategy& strategy = *worker.strategy;
    const auto scope = strategy.Scope();
    const GuideLoop loop(GuideNumbers().w0);
    const Tensor ones = Floats({10, 1}, std::vector<float>(10, 1));
    MT_ASSIGN_OR_RETURN(const PerReplicaBatch batch,
                        strategy.DistributeBatch(std::vector<Tensor>{ones, ones}));
    const auto round = [&]() -> Status {
      const Result<int64_t> saved = strategy.Restore(folder);
      if (!saved.ok() && saved.status().code() != StatusCode::kNotFound) return saved.status();
      for (auto step = static_cast<size_t>(saved.ok() ? *saved : 0); step < kSteps; ++step) {
        if (to_be_lost && step == kLost) return Aborted("lost");
        MT_ASSIGN_OR_RETURN(const double loss, loop.Step(strategy, batch));
        MT_WANT(std::abs(loss - GuideNumbers().losses[step]) <= 1e-6);
        if (step + 1 == kSaved) MT_RETURN_IF_ERROR(strategy.Save(folder, kSaved).status());
      }
      return OkStatus();
    };
    for (;;) {
      if (index == 0) ++rounds;
      const Status end = round();
      if (!membership::Team::IsLoss(end)) {
        MT_RETURN_IF_ERROR(end);
        return worker.Leave();
      }
      losses_seen[static_cast<size_t>(index)] = end.message();
      MT_RETURN_IF_ERROR(worker.team->Join(kSaved, {}).status());
    }
  };
  Status ends[3];
  {
    std::jthread stays([&] { ends[0] = live(0, false); });
    std::jthread comes_back([&] {
      ends[1] = live(1, true);
      ends[2] = live(1, false);
    });
  }
  EXPECT_TRUE(ends[0].ok()) << ends[0].ToString();
  EXPECT_EQ(ends[1].code(), StatusCode::kAborted) << ends[1].ToString();
  EXPECT_TRUE(ends[2].ok()) << ends[2].ToString();
  EXPECT_EQ(rounds, 2);
  EXPECT_THAT(losses_seen[0], HasSubstr("worker-1"));
  std::filesystem::remove_all(folder);
}

TEST(MultiWorkerTest, WithoutAClusterAWorkerIsAlone) {
  const auto alone =
      JoinMultiWorkerMirrored({.devices_per_worker = 2}, {}, membership::EnvironmentOf({}));
  ASSERT_TRUE(alone.ok()) << alone.status().ToString();
  EXPECT_EQ(alone->team, nullptr);
  EXPECT_EQ(alone->strategy->num_replicas_in_sync(), 2);
  EXPECT_EQ(alone->strategy->name(), "MultiWorkerMirroredStrategy");
}

TEST(MultiWorkerTest, SaysWhichVariableIsWrong) {
  EXPECT_THAT(JoinMultiWorkerMirrored({}, {}, membership::EnvironmentOf({{"TF_CONFIG", "{"}}))
                  .status()
                  .message(),
              HasSubstr("TF_CONFIG"));
  EXPECT_THAT(membership::ClusterOf(
                  membership::EnvironmentOf({{"MESHTRAIN_CLUSTER_FILE", "/nowhere/cluster.json"}}))
                  .status()
                  .message(),
              HasSubstr("/nowhere/cluster.json"));
  const std::string ps =
      R"({"cluster":{"worker":["127.0.0.1:1"],"ps":["127.0.0.1:2"]},"task":{"type":"ps","index":0}})";
  EXPECT_EQ(JoinMultiWorkerMirrored({}, {}, membership::EnvironmentOf({{"TF_CONFIG", ps}}))
                .status()
                .code(),
            StatusCode::kInvalidArgument);
  const std::string two =
      R"({"cluster":{"worker":["127.0.0.1:1","127.0.0.1:2"]},"task":{"type":"worker","index":1}})";
  EXPECT_THAT(
      JoinMultiWorkerMirrored({}, {},
                              membership::EnvironmentOf(
                                  {{"TF_CONFIG", two}, {"MESHTRAIN_PEER_RETURN_SECONDS", "soon"}}))
          .status()
          .message(),
      HasSubstr("MESHTRAIN_PEER_RETURN_SECONDS"));
}

}  // namespace
}  // namespace meshtrain::strategy
