// A custom training loop under a strategy: the one of TensorFlow's guide to distributed training,
// and its 210 losses.
//
//   custom_loop                                    one device: 0.9024367, 0.8953863, 0.8884038, ...
//   custom_loop --strategy mirrored --devices 2    the same losses, from batches twice as large
//   custom_loop --strategy mirrored --devices 2 --device discrete    on devices that share no memory
//   TF_CONFIG=... custom_loop --strategy multi-worker
#include <CLI/CLI.hpp>
#include <cstdio>
#include <string>
#include <vector>

#include "runtime/replicas.h"

namespace {

using namespace meshtrain;  // NOLINT: an example reads like a user's program

struct Flags {
  std::string strategy = "default";
  int64_t devices = 1;
  std::string device = "cpu";
};

// The team, where there is one, lives as long as the strategy.
Result<JoinedWorker> MakeStrategy(const Flags& flags) {
  const StrategyOptions common{.device_kind = flags.device};
  if (flags.strategy == "multi-worker") {
    return JoinMultiWorkerMirrored({.devices_per_worker = flags.devices, .common = common});
  }
  JoinedWorker alone;
  if (flags.strategy == "default") {
    MT_ASSIGN_OR_RETURN(alone.strategy, Strategy::Default(common));
  } else if (flags.strategy == "one-device") {
    MT_ASSIGN_OR_RETURN(alone.strategy, Strategy::OneDevice(flags.device + ":0"));
  } else if (flags.strategy == "mirrored") {
    MT_ASSIGN_OR_RETURN(alone.strategy,
                        Strategy::Mirrored({.count = flags.devices, .common = common}));
  } else {
    MT_ASSIGN_OR_RETURN(alone.strategy,
                        Strategy::CentralStorage({.count = flags.devices, .common = common}));
  }
  return alone;
}

Status Main(const Flags& flags) {
  MT_ASSIGN_OR_RETURN(JoinedWorker worker, MakeStrategy(flags));
  ReplicaStrategy& strategy = *worker.strategy;
  const auto scope = strategy.Scope();

  // Whatever is made from here on lies on every replica.
  nn::Sequential model(nn::Dense(1, {.kernel_initializer = nn::Initializer::Constant(-0.38224259),
                                     .kernel_regularizer = nn::L2(1e-4)}));
  const auto optimizer = train::Sgd({.common = {.learning_rate = 0.01}});
  const train::Loss loss_object = train::losses::BinaryCrossentropy({.from_logits = true});

  const int64_t global_batch_size = 5 * strategy.num_replicas_in_sync();
  const int64_t examples = 200 * global_batch_size;
  const Tensor ones =
      Tensor::Of<float>({examples, 1}, std::vector<float>(static_cast<size_t>(examples), 1));
  MT_ASSIGN_OR_RETURN(DistributedDataset dataset,
                      strategy.DistributeArrays({ones, ones}, global_batch_size));

  // What one replica does with its part of a batch. Minimize sums the gradients over all replicas
  // before it applies them, so every replica weighs its examples as parts of the whole batch.
  const ReplicaFunction train_step("train_step", [&](Value features, Value labels) -> Value {
    const Value predictions = model(features);
    const Value loss = ComputeAverageLoss(loss_object.PerExample(labels, predictions)) +
                       ScaleRegularizationLoss(RegularizationLoss(model.parameters()));
    optimizer->Minimize(loss, model.parameters());
    return loss;
  });
  const auto distributed_train_step = [&](const PerReplicaBatch& batch) -> Status {
    MT_ASSIGN_OR_RETURN(const std::vector<PerReplica> per_replica_losses,
                        strategy.Run(train_step, batch));
    MT_ASSIGN_OR_RETURN(const Tensor loss, strategy.Reduce(ReduceOp::kSum, per_replica_losses[0]));
    if (strategy.chief()) std::printf("%.9g\n", loss.Item());
    return OkStatus();
  };

  // A pass over the dataset, then ten steps of an iterator.
  DistributedIterator pass = dataset.Iterate();
  for (;;) {
    MT_ASSIGN_OR_RETURN(const auto batch, pass.Next());
    if (!batch) break;
    MT_RETURN_IF_ERROR(distributed_train_step(*batch));
  }
  DistributedIterator ten = dataset.Iterate(10);
  for (int i = 0; i < 10; ++i) {
    MT_ASSIGN_OR_RETURN(const auto batch, ten.Next());
    MT_RETURN_IF_ERROR(distributed_train_step(*batch));
  }
  return worker.Leave();
}

}  // namespace

int main(int argc, char** argv) {
  Flags flags;
  CLI::App app(
      "Runs the custom training loop of the guide to distributed training; prints a loss for each "
      "step.");
  app.add_option("--strategy", flags.strategy, "How to train")
      ->check(
          CLI::IsMember({"default", "one-device", "mirrored", "central-storage", "multi-worker"}))
      ->capture_default_str();
  app.add_option("--devices", flags.devices,
                 "Replicas of this process, where the strategy has more than one")
      ->capture_default_str();
  app.add_option("--device", flags.device, "Kind of devices: cpu, discrete or pjrt")
      ->capture_default_str();
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return app.exit(error);  // --help
    return EndOfUsage("custom_loop", error.what());
  }
  return RunMain("custom_loop", Main(flags));
}
