// The chief of the parameter-server strategy: what a training program talks to.
//
//   MT_ASSIGN_OR_RETURN(auto options, OptionsFromEnvironment({.partitioner = FixedShards{2}}));
//   MT_ASSIGN_OR_RETURN(auto coordinator, Coordinator::Create(std::move(options)));
//   const BatchTypes types[] = {{x_type, y_type}};  // of a batch
//   MT_ASSIGN_OR_RETURN(const Training training, coordinator->DefineTraining(recipe, types));
//   MT_ASSIGN_OR_RETURN(const PerWorker data,
//                       coordinator->CreatePerWorkerDataset("train", pipeline));
//   for (int step = 0; step < 1000; ++step) {
//     MT_ASSIGN_OR_RETURN(const RemoteValue loss, coordinator->Schedule(training.step, {data}));
//   }
//   MT_RETURN_IF_ERROR(coordinator->Join());
//
// Variables lie on the servers, cut by the partitioner; a step reads them, runs on one worker and
// pushes gradients, which the optimizer takes on the servers. Steps run in any order and at the
// same time: training is asynchronous. With one step at a time (Fetch each before the next) it is
// the sequence that a single process computes.
//
// A worker that is lost loses the steps it was running; they run again elsewhere, and it is set up
// anew when it is back. Such a step may have pushed to some servers already: its effect there
// counts twice. What it pushes after its loss was seen is refused. A server that is lost is waited
// for; it comes back with everything it acknowledged. The first error of a step itself ends Join,
// and cancels the steps that have not begun; the coordinator can be used again after it was told.
//
// Names are TensorFlow's (tf.distribute.coordinator.ClusterCoordinator). Thread-safe, except that
// definitions and Save come from one thread at a time. Every wait has a deadline (options) and ends
// when `stop` is requested.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <stop_token>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "runtime/base/clock.h"
#include "runtime/base/status.h"
#include "runtime/checkpoint/async.h"
#include "runtime/cluster/stop_grace.h"
#include "runtime/cluster/tf_config.h"
#include "runtime/data/spec.h"
#include "runtime/mesh/tensor.h"
#include "runtime/parameter/chief/dispatcher.h"
#include "runtime/parameter/chief/planner.h"
#include "runtime/parameter/messages/partitioner.h"
#include "runtime/parameter/messages/split.h"
#include "runtime/parameter/messages/transfer.h"
#include "runtime/train/programs.h"

namespace meshtrain::parameter {

struct CoordinatorOptions {
  cluster::ClusterSpec cluster;  // its ps and workers, dense
  Identity identity;
  Partitioner partitioner = Whole{};
  int64_t seed = nn::RandomSeed();  // of initial values

  // The term's number: a term is the time of one coordinator with its servers, and what a server
  // keeps is of one. Higher than any before; 0: from the clock, and in any case above those that
  // the servers are in.
  int64_t term = 0;
  std::string
      restore;  // a checkpoint's own folder, of this strategy or another; "": initial values
  int64_t staleness_bound =
      -1;  // a push computed from values so many versions old is computed anew; -1: no bound
  // Steps that a worker holds at once. With more than one the next step begins while the servers
  // still write the push of the one before, so its values lack that push; what a lost worker loses
  // grows with it.
  int steps_in_flight = 1;
  int max_attempts = 10;
  int64_t max_queued = 10000;

  std::string checkpoint_folder;  // "": Save is an error
  int keep = 5;

  Duration rpc_timeout = std::chrono::seconds(30);
  Duration step_timeout = std::chrono::minutes(10);
  Duration start_timeout = std::chrono::minutes(10);  // for servers, and the first worker, to come
  // For one that was lost to come back; 0: it is not waited for.
  Duration return_timeout = std::chrono::seconds(120);
  Duration save_timeout = std::chrono::minutes(10);  // by servers that are there
  Duration ping = std::chrono::milliseconds(100);    // see dispatcher.h
  Duration lost_after = cluster::kLostAfter;
};

// The addresses, by index. Errors: kInvalidArgument for a gap, or for none.
Result<std::vector<std::string>> AddressesOf(const cluster::ClusterSpec& cluster,
                                             cluster::Role role);

// Steps over the same variables for different batch sizes: the one that fits the arguments runs.
struct Function {
  std::vector<int64_t> entries;
};
// A dataset or a value of which each worker has its own.
struct PerWorker {
  int64_t entry = -1;
  bool dataset = false;
};
// What a scheduled step will have given.
class RemoteValue {
 public:
  RemoteValue() = default;
  int64_t step() const { return handle_->step(); }

 private:
  friend class Coordinator;
  explicit RemoteValue(std::shared_ptr<Dispatcher::Handle> handle) : handle_(std::move(handle)) {}
  std::shared_ptr<Dispatcher::Handle> handle_;
};
using Outputs = std::vector<std::pair<std::string, mesh::Tensor>>;

// An argument of Schedule: a tensor of this process, or the worker's own.
class Arg {
 public:
  // Implicit: a call names what it passes.
  // NOLINTBEGIN(google-explicit-constructor)
  Arg(PerWorker own)
      : argument_{
            own.dataset ? RunArgument::Kind::kDataset : RunArgument::Kind::kValue, own.entry, {}} {}
  Arg(mesh::Tensor tensor) : argument_{RunArgument::Kind::kTensor, 0, std::move(tensor)} {}
  // NOLINTEND(google-explicit-constructor)
  const Argument& argument() const { return argument_; }

 private:
  Argument argument_;
};

struct Training {
  // A batch's components are the arguments.
  Function step;      // -> loss, the metrics and kExamplesName; changes the variables
  Function evaluate;  // -> loss and the metrics
  std::vector<std::string> parameters;     // the model's, in its order
  std::string update;                      // what the servers do with the step's pushes
  std::map<std::string, int64_t> classes;  // train::Programs::classes
  std::map<std::string, int64_t> rows;     // train::Programs::rows
  std::vector<train::FigureSums> summed;   // train::Programs::summed
};
using BatchTypes = std::vector<mesh::TensorType>;  // of the recipe's components

class Coordinator {
 public:
  // Waits until every server is there and begins a term on it; workers may come later. Errors:
  // kInvalidArgument, kUnavailable naming who did not come, a server's.
  static Result<std::unique_ptr<Coordinator>> Create(CoordinatorOptions options,
                                                     std::stop_token stop = {});
  // Ends what is under way. Workers and servers stay.
  ~Coordinator();
  Coordinator(const Coordinator&) = delete;
  Coordinator& operator=(const Coordinator&) = delete;

  int num_workers() const { return dispatcher_->workers(); }
  int num_servers() const { return servers_->size(); }
  int64_t term() const { return options_.term; }

  // --- definitions
  // Creates variables on the servers, with their initial values or those of the checkpoint to
  // restore.
  Status CreateVariables(std::span<const Parameter> variables);
  // What the servers do with a push of these values. Variables must be there.
  Status DefineUpdate(const std::string& name, std::span<const Pushed> pushed,
                      const Updater& updater);
  // A step, traced: outputs named GradientName(v) and assigned variables go to the servers through
  // `update` (made here, with `updater`, where there is none of that name); the rest is what Fetch
  // gives. `finite`: outputs that must be finite numbers, else the step is an error and changes
  // nothing.
  Result<Function> DefineFunction(const Program& step, const std::string& update = "",
                                  const Updater& updater = {},
                                  std::vector<std::string> finite = {});
  // A model with its loss, optimizer and metrics: creates those of its variables that are not here
  // yet, and a step for each of `types`. Slots of a name that is taken go on with what they hold.
  Result<Training> DefineTraining(const train::Recipe& recipe, std::span<const BatchTypes> types);
  // Steps for more batches of the same training. `recipe`: as given to DefineTraining.
  Status AddBatches(Training& training, const train::Recipe& recipe,
                    std::span<const BatchTypes> types);
  // `examples`: how many the spec's source has here. A worker whose files hold another number ends
  // the steps with kInvalidArgument of Origin::kInput, naming it and the file. 0: not said.
  Result<PerWorker> CreatePerWorkerDataset(const std::string& name, data::PipelineSpec spec,
                                           ShardPolicy policy = ShardPolicy::kWhole,
                                           int64_t examples = 0);
  // values[i] is worker i's; all of one type.
  Result<PerWorker> CreatePerWorkerValue(const std::string& name,
                                         const std::vector<mesh::Tensor>& values);

  // --- steps
  Result<RemoteValue> Schedule(const Function& function, const std::vector<Arg>& arguments,
                               std::stop_token stop = {});
  Status Join(std::stop_token stop = {}, Duration timeout = std::chrono::hours(24 * 365));
  Result<bool> Done();
  Result<Outputs> Fetch(const RemoteValue& value, std::stop_token stop = {},
                        Duration timeout = std::chrono::hours(24));

  // --- variables and slots, by their names in checkpoints
  Result<mesh::Tensor> Read(std::string_view name, std::stop_token stop = {});
  Status Write(std::string_view name, const mesh::Tensor& value, std::stop_token stop = {});
  const Planner& planner() const { return *planner_; }

  // --- checkpoints
  // Saves every variable and slot as of now: no step is running while the servers take their
  // copies, nor one left of which a server may have a part and another not, so every step that has
  // ended is in it, whole, and none that has not, but for what a lost worker had pushed of its own.
  // Steps go on while the copies are written and the checkpoint is made complete; a later Save, or
  // WaitForSave, waits for that and gives its error. A checkpoint that a server's restart cuts
  // short is given up: the next one takes its place. The same checkpoint loads under any strategy.
  Status Save(int64_t step, std::map<std::string, std::string> metadata = {},
              const std::string& program_hash = "", std::stop_token stop = {});
  // The same into another folder than the options'; one that the servers reach too. What lies there
  // is the caller's, to move or remove: the servers' logs do not go on from it.
  Status SaveTo(const std::string& folder, int64_t step,
                std::map<std::string, std::string> metadata = {},
                const std::string& program_hash = "", std::stop_token stop = {});
  // Of a checkpoint that the saves to come keep besides the newest (checkpoint::SaveOptions).
  void set_pinned_checkpoint(std::optional<int64_t> step) { pinned_ = step; }
  // Other checkpoints' folders, which go when the next one is complete. Between saves.
  void set_replaced_checkpoints(std::vector<std::string> folders);
  // A server that stays away while one is written ends it with kUnavailable, after return_timeout.
  // `stop`: gives it up, with kCancelled where it is not complete yet. A checkpoint that was given
  // up is made anew here; kUnavailable where steps have ended since, so that it would be another.
  Status WaitForSave(std::stop_token stop = {});
  // The newest step whose checkpoint is complete, of this term; -1: none.
  int64_t last_saved() const;
  // The same, with where it lies and how long it took. Thread-safe.
  std::optional<checkpoint::SaveReport> last_save() const;
  // How many of this term came to nothing. Thread-safe.
  int64_t failed_saves() const;

  // The job is done: servers and workers may go. Nothing is scheduled after it.
  void End(Duration timeout = std::chrono::seconds(5));
  // We leave, and the job will go on with another chief: whoever was asked to stop need not wait
  // for us any longer.
  void Leave(Duration timeout = std::chrono::seconds(2));

  // Whether a server is away now.
  bool misses_server() const { return !dispatcher_->ServersWithin(Duration(0)).ok(); }
  DispatcherStats stats() const { return dispatcher_->stats(); }

 private:
  class CheckpointWriter;
  explicit Coordinator(CoordinatorOptions options);
  Status Define(const std::vector<Definition>& definitions);
  Result<std::vector<Planner::Part>> PartsOf(std::string_view name) const;

  CoordinatorOptions options_;
  std::stop_source stop_;
  std::unique_ptr<Planner> planner_;
  struct Newest {
    std::string folder;
    int64_t step = -1;
    std::map<std::string, std::string> metadata;
    std::string program_hash;
    int64_t steps_done = 0;  // by then
  };
  Newest newest_;  // checkpoint that was begun
  std::set<std::string> updates_;
  std::map<int64_t, std::string> dataset_names_;         // by entry
  std::map<std::string, std::string> restored_cursors_;  // by metadata key
  std::unique_ptr<ServerGroup> servers_;
  std::unique_ptr<Dispatcher> dispatcher_;
  std::optional<int64_t> pinned_;
  std::unique_ptr<CheckpointWriter> saver_;
};

}  // namespace meshtrain::parameter
