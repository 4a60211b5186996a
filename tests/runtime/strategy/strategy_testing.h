// What the tests of strategies share: the guide's numbers, its custom loop, and processes as
// threads.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "runtime/nn/layers.h"
#include "runtime/nn/model.h"
#include "runtime/strategy/dataset.h"
#include "runtime/strategy/replica_context.h"
#include "runtime/strategy/replica_function.h"
#include "runtime/strategy/strategy.h"
#include "runtime/strategy/values.h"
#include "runtime/train/optimizer.h"

namespace meshtrain::strategy {

// tests/testdata/guide/guide_series.json: what TensorFlow's guide prints, and where it comes from.
struct Guide {
  std::vector<double> losses;  // 210 steps of the custom loop
  double w0 = 0;               // the kernel behind them
  double fit_w0 = 0;           // and behind Fit's
  std::vector<double>
      fit;  // epoch 1, epoch 2, evaluate, epochs 1 and 2 on arrays: means of batches
  std::vector<double> fit_printed;
  std::vector<double> fit_bar;  // what Keras' progress bar makes of them, unrounded
};
const Guide& GuideNumbers();
// Whether `losses` are the first of the guide's to 1e-6. Errors: kInternal naming the step.
Status CheckGuideLosses(const std::vector<double>& losses);

// The guide's custom loop: Dense(1), kernel L2 1e-4, SGD 0.01, binary cross-entropy from logits.
// Made under a scope.
class GuideLoop {
 public:
  explicit GuideLoop(double w0);
  // One step over all replicas: the global loss.
  Result<double> Step(ReplicaStrategy& strategy, const PerReplicaBatch& batch) const;
  const ReplicaFunction& step() const { return step_; }
  const std::vector<nn::Parameter>& parameters() const { return model_.parameters(); }

 private:
  Value Loss(const Value& x, const Value& y);

  nn::Sequential model_;
  std::unique_ptr<train::Optimizer> optimizer_ = train::Sgd();
  ReplicaFunction step_;
};

// One process of several, as a thread of the test.
struct FakeProcess {
  int process = 0;
  int processes = 1;
  execute::MakeCommunicator communicator;  // null for one
  std::shared_ptr<void> ground;            // what the strategy stands on, and goes after it
};
// Runs body in each; a process that returns an error ends the others' waiting. All statuses, by
// process.
std::vector<Status> RunProcesses(int processes, const std::function<Status(FakeProcess&)>& body);

// How a test makes its strategy.
struct StrategyCase {
  std::string name;
  int processes = 1;
  std::function<Result<std::unique_ptr<Strategy>>(FakeProcess&)> make;
};
// Every strategy with replicas: one replica, two, one and three processes.
std::vector<StrategyCase> AllStrategies();
// Those, and meshes, and parameter servers: two servers, `workers`, one step at a time, variables
// in two parts.
std::vector<StrategyCase> ModelStrategies();
StrategyCase ParameterServers(int workers);
// The body of a test under a strategy: in each process.
void ForStrategy(const StrategyCase& c, const std::function<Status(Strategy&)>& body);
// The same under one with replicas.
void ForReplicas(const StrategyCase& c, const std::function<Status(ReplicaStrategy&)>& body);

// A tensor of f32 from a list.
mesh::Tensor Floats(mesh::Dims dims, std::vector<float> values);
std::vector<float> FloatsOf(const mesh::Tensor& x);

}  // namespace meshtrain::strategy

// In a body that returns Status: ends it with the line where `condition` is false.
#define MT_WANT(condition)                                                                  \
  do {                                                                                      \
    if (!(condition))                                                                       \
      return ::meshtrain::Internal(std::string(__FILE__) + ":" + std::to_string(__LINE__) + \
                                   ": " #condition);                                        \
  } while (false)
