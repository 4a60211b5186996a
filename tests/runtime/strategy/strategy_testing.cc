#include "tests/runtime/strategy/strategy_testing.h"

#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <thread>

#include "runtime/base/check.h"
#include "runtime/collective/local.h"
#include "runtime/collective/thread_parties.h"
#include "runtime/strategy/server_strategy.h"
#include "runtime/train/loss.h"
#include "tests/runtime/parameter/cluster_testing.h"

namespace meshtrain::strategy {

const Guide& GuideNumbers() {
  static const Guide guide = [] {
    std::ifstream file(MT_TESTDATA "/guide/guide_series.json");
    const nlohmann::json json = nlohmann::json::parse(file);
    Guide g;
    g.losses = json.at("printed_in_text").get<std::vector<double>>();
    g.w0 = json.at("w0");
    const auto& fit = json.at("fit_mse");
    g.fit_w0 = fit.at("w0_from_first_batch");
    g.fit = fit.at("epoch1,epoch2,evaluate,epoch3,epoch4").get<std::vector<double>>();
    g.fit_printed = fit.at("printed").get<std::vector<double>>();
    g.fit_bar = fit.at("bar").get<std::vector<double>>();
    return g;
  }();
  return guide;
}

Status CheckGuideLosses(const std::vector<double>& losses) {
  const std::vector<double>& want = GuideNumbers().losses;
  MT_CHECK(losses.size() <= want.size());
  for (size_t i = 0; i < losses.size(); ++i) {
    if (std::abs(losses[i] - want[i]) <= 1e-6) continue;
    return Internal("step " + std::to_string(i) + ": expected " + std::to_string(want[i]) +
                    ", got: " + std::to_string(losses[i]));
  }
  return OkStatus();
}

GuideLoop::GuideLoop(double w0)
    : model_(nn::Dense(1, {.kernel_initializer = nn::Initializer::Constant(w0),
                           .kernel_regularizer = nn::L2(1e-4)})),
      step_("train_step", [this](Value x, Value y) -> Value {
        const Value loss = Loss(x, y);
        optimizer_->Minimize(loss, model_.parameters());
        return loss;
      }) {}

Value GuideLoop::Loss(const Value& x, const Value& y) {
  const train::Loss loss = train::losses::BinaryCrossentropy({.from_logits = true});
  const Value predictions = model_(x);  // the first call makes the weights, which come next
  return ComputeAverageLoss(loss.PerExample(y, predictions)) +
         ScaleRegularizationLoss(RegularizationLoss(model_.parameters()));
}

Result<double> GuideLoop::Step(ReplicaStrategy& strategy, const PerReplicaBatch& batch) const {
  MT_ASSIGN_OR_RETURN(const std::vector<PerReplica> losses, strategy.Run(step_, batch));
  MT_ASSIGN_OR_RETURN(const mesh::Tensor loss, strategy.Reduce(ReduceOp::kSum, losses[0]));
  return loss.Item();
}

std::vector<Status> RunProcesses(int processes, const std::function<Status(FakeProcess&)>& body) {
  std::vector<std::string> names;
  for (int p = 0; p < processes; ++p) names.push_back("worker-" + std::to_string(p));
  collective::ThreadParties thread_parties(names);
  std::vector<Status> ends(static_cast<size_t>(processes));
  {
    std::vector<std::jthread> threads;
    for (int p = 0; p < processes; ++p) {
      threads.emplace_back([&, p] {
        FakeProcess self{.process = p, .processes = processes, .communicator = nullptr};
        if (processes > 1) {
          self.communicator = [&thread_parties, p](const mesh::Mesh& mesh, uint64_t hash)
              -> Result<std::unique_ptr<collective::Communicator>> {
            return thread_parties.Join(p, mesh.LocalRanks(p), hash,
                                       collective::MakeLocalCommunicator(mesh));
          };
        }
        ends[static_cast<size_t>(p)] = body(self);
        if (!ends[static_cast<size_t>(p)].ok()) thread_parties.Abort(ends[static_cast<size_t>(p)]);
      });
    }
  }
  return ends;
}

namespace {

// Any of them as what they have in common.
template <typename Made>
Result<std::unique_ptr<Strategy>> Any(Result<Made> made) {
  MT_RETURN_IF_ERROR(made.status());
  return std::unique_ptr<Strategy>(std::move(*made));
}

StrategyCase OnMesh(const std::string& name, const std::string& mesh) {
  return {name, 1, [mesh](FakeProcess&) {
            return Any(Strategy::Mesh({.mesh = mesh::Mesh::Parse(mesh).value()}));
          }};
}

}  // namespace

std::vector<StrategyCase> AllStrategies() {
  const auto mirrored = [](int64_t count, CrossDeviceOps ops) {
    return [=](FakeProcess&) {
      return Any(Strategy::Mirrored({.count = count, .cross_device_ops = ops}));
    };
  };
  const auto central = [](int64_t count) {
    return [=](FakeProcess&) { return Any(Strategy::CentralStorage({.count = count})); };
  };
  const auto workers = [](int64_t devices) {
    return [=](FakeProcess& self) {
      return Any(Strategy::MultiWorkerMirrored({.process = self.process,
                                                .processes = self.processes,
                                                .communicator = self.communicator,
                                                .devices_per_worker = devices}));
    };
  };
  return {
      {"Default", 1, [](FakeProcess&) { return Any(Strategy::Default()); }},
      {"OneDevice", 1, [](FakeProcess&) { return Any(Strategy::OneDevice("cpu:0")); }},
      {"Mirrored1", 1, mirrored(1, CrossDeviceOps::kAuto)},
      {"Mirrored2", 1, mirrored(2, CrossDeviceOps::kAuto)},
      {"Mirrored2Hierarchical", 1, mirrored(2, CrossDeviceOps::kHierarchicalCopy)},
      {"Mirrored2ToOne", 1, mirrored(2, CrossDeviceOps::kReductionToOneDevice)},
      {"Mirrored2Ring", 1, mirrored(2, CrossDeviceOps::kRing)},
      {"CentralStorage1", 1, central(1)},
      {"CentralStorage2", 1, central(2)},
      {"MultiWorkerMirrored1", 1, workers(1)},
      {"MultiWorkerMirrored3", 3, workers(1)},
      {"MultiWorkerMirrored2Times2", 2, workers(2)},
      {"MultiWorkerMirrored3Times2", 3, workers(2)},
  };
}

StrategyCase ParameterServers(int workers) {
  return {"ParameterServer" + std::to_string(workers), 1, [workers](FakeProcess& self) {
            const auto cluster = std::make_shared<parameter::TestCluster>(2, workers);
            self.ground = cluster;
            ParameterServerOptions options{.coordinator = cluster->options(), .steps_in_flight = 1};
            options.coordinator.partitioner = parameter::FixedShards{2};
            return Any(Strategy::ParameterServer(std::move(options)));
          }};
}

std::vector<StrategyCase> ModelStrategies() {
  std::vector<StrategyCase> all = AllStrategies();
  all.push_back(OnMesh("MeshOfOne", ""));
  all.push_back(OnMesh("MeshBatch2Model2", "batch=2,model=2"));
  all.push_back(OnMesh("MeshModel2", "model=2"));
  all.push_back(ParameterServers(1));
  all.push_back(ParameterServers(3));
  return all;
}

void ForStrategy(const StrategyCase& c, const std::function<Status(Strategy&)>& body) {
  const auto ends = RunProcesses(c.processes, [&](FakeProcess& self) -> Status {
    MT_ASSIGN_OR_RETURN(const auto strategy, c.make(self));
    return body(*strategy);
  });
  for (size_t p = 0; p < ends.size(); ++p) {
    EXPECT_TRUE(ends[p].ok()) << "process " << p << ": " << ends[p].ToString();
  }
}

void ForReplicas(const StrategyCase& c, const std::function<Status(ReplicaStrategy&)>& body) {
  ForStrategy(c, [&](Strategy& strategy) -> Status {
    auto* replicas = dynamic_cast<ReplicaStrategy*>(&strategy);
    MT_WANT(replicas != nullptr);
    return body(*replicas);
  });
}

mesh::Tensor Floats(mesh::Dims dims, std::vector<float> values) {
  return mesh::Tensor::Of<float>(std::move(dims), std::span<const float>(values));
}

std::vector<float> FloatsOf(const mesh::Tensor& x) {
  const auto values = x.values<float>();
  return {values.begin(), values.end()};
}

}  // namespace meshtrain::strategy
