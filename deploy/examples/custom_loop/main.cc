// A custom training loop under a strategy: the one of TensorFlow's guide to distributed training, and its losses.
//
//   custom_loop                                    one device: 0.902437, 0.895386, 0.888404, ...
//   custom_loop --strategy mirrored --devices 2    the same losses, from batches twice as large
//   TF_CONFIG=... custom_loop --strategy multi-worker
#include <CLI/CLI.hpp>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "runtime/meshtrain.h"

namespace {

using namespace meshtrain;              // NOLINT: an example reads like a user's program
using namespace meshtrain::distribute;  // NOLINT

struct Flags {
  std::string strategy = "default";
  int64_t devices = 2;
  int64_t steps = 20;
};

// The team, where there is one, lives as long as the strategy.
Result<JoinedWorker> MakeStrategy(const Flags& flags) {
  if (flags.strategy == "multi-worker") return JoinMultiWorkerMirrored({.devices_per_worker = flags.devices});
  JoinedWorker alone;
  if (flags.strategy == "default") {
    MT_ASSIGN_OR_RETURN(alone.strategy, Strategy::Default());
  } else if (flags.strategy == "mirrored") {
    MT_ASSIGN_OR_RETURN(alone.strategy, Strategy::Mirrored({.count = flags.devices}));
  } else {
    MT_ASSIGN_OR_RETURN(alone.strategy, Strategy::CentralStorage({.count = flags.devices}));
  }
  return alone;
}

Status Train(const Flags& flags) {
  MT_ASSIGN_OR_RETURN(JoinedWorker worker, MakeStrategy(flags));
  Strategy& strategy = *worker.strategy;
  const auto scope = strategy.Scope();

  // Whatever is made from here on lies on every replica.
  nn::Sequential model(nn::Dense(1, {.kernel_initializer = nn::Initializer::Constant(-0.38224259),
                                     .kernel_regularizer = nn::L2(1e-4)}));
  const auto optimizer = train::Sgd({.common = {.learning_rate = 0.01}});
  const train::Loss loss_of{.kind = train::LossKind::kBinaryCrossentropy, .from_logits = true};

  // What one replica does with its part of a batch. Apply sums the gradients over all replicas first, so every replica
  // weighs its examples as parts of the whole batch.
  const ReplicaFunction step("step", [&](Value features, Value labels) -> Value {
    const Value predictions = model(features);
    const Value loss = ComputeAverageLoss(loss_of.PerExample(labels, predictions)) +
                       ScaleRegularizationLoss(RegularizationLoss(model.parameters()));
    const std::vector<Variable> weights(model.parameters().begin(), model.parameters().end());
    optimizer->Apply(model.parameters(), program::Gradient(loss, weights));
    return loss;
  });

  const int64_t global_batch = 5 * strategy.num_replicas_in_sync();
  const int64_t examples = 200 * global_batch;
  const std::vector<float> ones(static_cast<size_t>(examples), 1);
  const Tensor column = Tensor::Of<float>({examples, 1}, ones);
  MT_ASSIGN_OR_RETURN(DistributedDataset dataset, strategy.DistributeArrays({column, column}, global_batch));

  DistributedIterator batches = dataset.Iterate(flags.steps);
  for (int64_t i = 0; i < flags.steps; ++i) {
    MT_ASSIGN_OR_RETURN(const auto batch, batches.Next());
    MT_ASSIGN_OR_RETURN(const std::vector<PerReplica> losses, strategy.Run(step, *batch));
    MT_ASSIGN_OR_RETURN(const Tensor loss, strategy.Reduce(ReduceOp::kSum, losses[0]));
    if (strategy.chief()) std::printf("%.6f\n", loss.Item());
  }
  return worker.Leave();
}

}  // namespace

int main(int argc, char** argv) {
  Flags flags;
  CLI::App app("Runs the custom training loop of the guide to distributed training.");
  app.add_option("--strategy", flags.strategy, "How to train")
      ->check(CLI::IsMember({"default", "mirrored", "central-storage", "multi-worker"}))
      ->capture_default_str();
  app.add_option("--devices", flags.devices, "Replicas of this process")->capture_default_str();
  app.add_option("--steps", flags.steps, "Steps")->capture_default_str();
  CLI11_PARSE(app, argc, argv);
  const meshtrain::Status status = Train(flags);
  if (!status.ok()) std::fprintf(stderr, "custom_loop: %s\n", status.ToString().c_str());
  return status.ok() ? 0 : 70;
}
