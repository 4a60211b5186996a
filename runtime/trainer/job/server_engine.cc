// The engine of parameter servers: its variables lie on the servers, its steps run on the workers,
// and this process, their chief, schedules them, validates and has the servers save.
#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <set>
#include <string>

#include "runtime/base/file.h"
#include "runtime/base/log.h"
#include "runtime/checkpoint/weights.h"
#include "runtime/cluster/exit_code.h"
#include "runtime/parameter/chief/coordinator.h"
#include "runtime/parameter/chief/environment.h"
#include "runtime/parameter/chief/steps.h"
#include "runtime/saving/newest.h"
#include "runtime/saving/position.h"
#include "runtime/saving/resume.h"
#include "runtime/strategy/dataset.h"
#include "runtime/train/callbacks.h"
#include "runtime/trainer/job/choices.h"
#include "runtime/trainer/job/engine.h"
#include "runtime/trainer/job/server_metrics.h"
#include "runtime/trainer/job/stop_times.h"
#include "runtime/trainer/job/worker_server.h"

namespace meshtrain::trainer {

namespace {

using parameter::Coordinator;

constexpr char kTrainingData[] = "train";

parameter::Partitioner PartitionerOf(const manifest::ParameterServer& spec) {
  struct Visitor {
    parameter::Partitioner operator()(const manifest::WholeVariables&) const {
      return parameter::Whole{};
    }
    parameter::Partitioner operator()(const manifest::FixedShards& s) const {
      return parameter::FixedShards{s.num_shards};
    }
    parameter::Partitioner operator()(const manifest::MinSize& s) const {
      return parameter::MinSize{s.min_shard_bytes, s.max_shards};
    }
    parameter::Partitioner operator()(const manifest::MaxSize& s) const {
      return parameter::MaxSize{s.max_shard_bytes, s.max_shards};
    }
  };
  return std::visit(Visitor{}, spec.partitioner);
}

std::string Count(int64_t n, const std::string& one) {
  return std::to_string(n) + " " + one + (n == 1 ? "" : "s");
}

// Where every variable lies.
std::string PlacementText(const parameter::Planner& planner,
                          const std::vector<std::string>& servers) {
  std::string text;
  for (size_t s = 0; s < servers.size(); ++s) {
    text += fmt::format("ps-{} at {}\n", s, servers[s]);
    for (const parameter::Shard& shard : planner.shards()) {
      if (shard.server != static_cast<int>(s)) continue;
      text += fmt::format("  {:<40} {:<20} {:>12} bytes\n", shard.name, shard.type.ToString(),
                          shard.type.num_bytes());
    }
  }
  return text;
}

class ServerEngine final : public JobEngine {
 public:
  explicit ServerEngine(const TrainingJob& job) : job_(job) {}

  Status Start(std::stop_token stop) override {
    MT_ASSIGN_OR_RETURN(const cluster::StopTimes times, StopTimesIn(ProcessEnvironment()));
    MT_RETURN_IF_ERROR(end_steps_.Start(stop, times.steps));
    MT_RETURN_IF_ERROR(give_up_.Start(stop, times.save));
    // Workers serve before anything else is ready, also the one in this process.
    if (job_.config.job.tf_config->task.role == cluster::Role::kWorker) {
      MT_ASSIGN_OR_RETURN(own_worker_, ServeWorker(job_.config, job_.manifest));
    }
    MT_ASSIGN_OR_RETURN(folder_, SharedFolder(job_.config, job_.manifest));
    return MakeDirectories(folder_).From(Origin::kOutput);
  }

  Status Open(std::stop_token) override {
    MT_RETURN_IF_ERROR(Trace().From(Origin::kManifest));
    return LoadInitialWeights();
  }

  // A session on the servers, from the newest whole checkpoint or from the beginning.
  Result<std::optional<saving::Resumed>> Begin(std::stop_token stop) override {
    auto resumed = Resume(stop);
    if (!resumed.ok()) return Leave(resumed.status(), stop);
    return resumed;
  }

  Description Describe() const override {
    const std::string places = Count(coordinator_->num_workers(), "worker") + ", " +
                               Count(coordinator_->num_servers(), "parameter server");
    return {.mesh = places,
            .beginning = "with " + places,
            .plan = {.mesh = places, .hash = program_hash_},
            .plan_text = PlacementText(coordinator_->planner(), servers_),
            .parameters = parameters_,
            .rank_step_seconds = {},
            .collective_bytes = {}};
  }
  std::string folder() const override { return folder_; }
  std::optional<checkpoint::SaveReport> last_save() const override {
    return coordinator_->last_save();
  }
  void AddMetrics(telemetry::Metrics& metrics) override {
    metrics_.emplace(metrics, *coordinator_);
  }

  Result<train::FitResult> Fit(Loop loop, std::stop_token stop) override {
    const train::Position& start = loop.options.start;
    parameter::StepWindow training(*coordinator_, training_.step, stop, end_steps_.token());
    parameter::StepWindow evaluation(*coordinator_, training_.evaluate, stop, end_steps_.token());
    parameter::RemoteRunner runner(training, evaluation);
    runner.set_saver([&](const train::Position& position) {
      coordinator_->set_pinned_checkpoint(loop.pinned());
      return coordinator_->Save(position.step, saving::PositionToMetadata(position), program_hash_,
                                give_up_.token());
    });
    train::CheckpointEvery save(runner, loop.saves);
    // A save sees the work of whole steps: those that are under way come to their end first.
    save.set_due([&] { return save.Overdue() && training.size() == 0; });
    runner.set_last_saved(resumed_ ? start.step : -1);
    std::stop_source end;
    parameter::RemoteTraining source(training,
                                     {.data = data_,
                                      .boundaries = {.first = start.step - start.batch,
                                                     .steps_per_epoch = job_.steps_per_epoch,
                                                     .save_every = loop.saves.every_steps},
                                      .step = start.step,
                                      .window = window_,
                                      .batch_size = job_.train->batch_size(),
                                      .stop = stop,
                                      .end = end,
                                      .hold = [&save] { return save.Overdue(); }});
    runner.set_source(&source);
    std::optional<strategy::PipelineBatches> test_batches;
    std::optional<parameter::SentBatches> validation;
    if (job_.test) {
      test_batches.emplace(*job_.test);
      validation.emplace(
          evaluation, *test_batches,
          parameter::SentBatches::Options{.steps = loop.options.validation_steps,
                                          .ahead = 2 * int64_t{coordinator_->num_workers()},
                                          .stop = stop,
                                          .end = end});
    }
    loop.callbacks.insert(loop.callbacks.begin(), &*metrics_);
    loop.callbacks.push_back(&save);
    if (loop.validates) loop.options.validation = &*validation;
    loop.options.steps_per_epoch = job_.steps_per_epoch;
    return train::Fit(runner, source, loop.options, loop.callbacks, end.get_token());
  }

  Ending End(const Result<train::FitResult>& result, std::stop_token stop) override {
    const Status saved = coordinator_->WaitForSave(give_up_.token());
    Ending ending{.training = result.status(), .saved = saved};
    if (!result.ok()) ending.training = Leave(result.status(), stop);
    if (saved.code() == StatusCode::kCancelled) ending.saved = Leave(saved, stop);
    return ending;
  }

  // Servers and workers may have been asked to stop as well, and serve for as long as we need them.
  void Close(const Status& end) override {
    if (coordinator_ == nullptr) return;
    if (end.ok()) {
      coordinator_->End();
    } else {
      coordinator_->Leave();
    }
  }

 private:
  // The step's hash, the batches' types.
  Status Trace() {
    MT_ASSIGN_OR_RETURN(const recipe::Declared declared,
                        recipe::Declared::Create(job_.manifest.program));
    MT_RETURN_IF_ERROR(CheckBatches(declared, *job_.train, job_.test.get()));
    const int64_t full = job_.train->batch_size();
    std::set<int64_t> sizes = job_.train->batch_sizes();
    if (job_.test) sizes.merge(job_.test->batch_sizes());
    for (const int64_t size : sizes) {
      const std::vector<mesh::TensorType> types = job_.train->BatchTypes(size);
      MT_ASSIGN_OR_RETURN(const recipe::Traced traced, declared.Trace(types));
      types_.emplace_back(types[0], types[1]);
      classes_ = traced.programs.classes;
      if (program_hash_.empty() || size == full) {
        program_hash_ = fmt::format("{:016x}", program::HashProgram(traced.programs.train_step));
        parameters_ = traced.programs.parameters;
      }
    }
    if (job_.test) job_.test->ExpectClasses(classes_);
    return OkStatus();
  }

  Status LoadInitialWeights() {
    if (job_.manifest.program.initial_weights.empty()) return OkStatus();
    std::vector<checkpoint::NamedType> wanted;
    for (const nn::Parameter& p : parameters_) wanted.push_back({p.name(), p.type()});
    MT_ASSIGN_OR_RETURN(initial_weights_,
                        checkpoint::LoadWeights(job_.manifest.program.initial_weights, wanted));
    return OkStatus();
  }

  Result<std::optional<saving::Resumed>> Resume(std::stop_token stop) {
    MT_ASSIGN_OR_RETURN(
        const saving::ResumeChoice choice,
        saving::ChooseCheckpoints(
            {.folder = folder_, .own = false, .resume = job_.manifest.checkpoint.resume})
            .From(Origin::kOutput));
    std::optional<saving::Resumed> resumed;
    const auto load = [&](const std::string& path) -> Status {
      MT_ASSIGN_OR_RETURN(resumed, ResumeFrom(path, stop));
      return OkStatus();
    };
    MT_ASSIGN_OR_RETURN(const auto taken, saving::TakeNewest(choice.candidates, load));
    resumed_ = taken.has_value();
    if (taken) return resumed;
    MT_RETURN_IF_ERROR(Define("", stop));
    for (size_t i = 0; i < initial_weights_.size(); ++i) {
      MT_RETURN_IF_ERROR(coordinator_->Write(parameters_[i].name(), initial_weights_[i], stop));
    }
    return std::optional<saving::Resumed>();
  }

  Result<saving::Resumed> ResumeFrom(const std::string& path, std::stop_token stop) {
    MT_ASSIGN_OR_RETURN(const auto checkpoint,
                        checkpoint::Checkpoint::Open(path).From(Origin::kOutput));
    MT_ASSIGN_OR_RETURN(train::Position position,
                        saving::PositionOf(checkpoint->index(), path).From(Origin::kOutput));
    MT_RETURN_IF_ERROR(Define(path, stop));
    return saving::Resumed{std::move(position), path};
  }

  Status Define(const std::string& restore, std::stop_token stop) {
    const manifest::ParameterServer spec =
        job_.manifest.program.parameter_server.value_or(manifest::ParameterServer{});
    parameter::CoordinatorOptions options;
    options.cluster = job_.config.job.tf_config->cluster;
    MT_ASSIGN_OR_RETURN(options.identity, parameter::IdentityOf(ProcessEnvironment()));
    options.partitioner = PartitionerOf(spec);
    options.seed = job_.manifest.program.seed;
    options.restore = restore;
    options.staleness_bound = spec.staleness_bound;
    options.checkpoint_folder = folder_;
    options.keep = static_cast<int>(job_.manifest.checkpoint.keep);
    options.return_timeout = job_.config.job.peer_return;
    MT_ASSIGN_OR_RETURN(servers_, parameter::AddressesOf(options.cluster, cluster::Role::kPs));
    MT_ASSIGN_OR_RETURN(const auto workers,
                        parameter::AddressesOf(options.cluster, cluster::Role::kWorker));
    const parameter::InFlight in_flight = parameter::DivideInFlight(
        spec.steps_in_flight.value_or(0), static_cast<int64_t>(workers.size()));
    options.steps_in_flight = in_flight.per_worker;
    window_ = in_flight.ahead;
    coordinator_.reset();
    MT_ASSIGN_OR_RETURN(coordinator_, Coordinator::Create(std::move(options), stop));
    // A trace of its own: a session before this one has used up the other's.
    MT_ASSIGN_OR_RETURN(const recipe::Declared declared,
                        recipe::Declared::Create(job_.manifest.program));
    MT_ASSIGN_OR_RETURN(training_, coordinator_->DefineTraining(declared.recipe(), types_));
    data::PipelineSpec pipeline = recipe::TrainPipeline(job_.manifest.program);
    pipeline.classes = classes_;
    MT_ASSIGN_OR_RETURN(data_,
                        coordinator_->CreatePerWorkerDataset(kTrainingData, std::move(pipeline)));
    return OkStatus();
  }

  // Data that is wrong is so at the next attempt too, whoever asked us to stop meanwhile.
  static Status Leave(const Status& why, const std::stop_token& stop) {
    if (!stop.stop_requested() || why.origin() == Origin::kInput) return why;
    LogWarning("stopped without saving; the last checkpoint is where it goes on",
               {{"error", why.message()}});
    return cluster::Stopped();
  }

  const TrainingJob& job_;
  LateStop end_steps_;  // when steps that are under way have no time left
  LateStop give_up_;    // when a checkpoint has none
  std::string folder_;
  std::unique_ptr<parameter::WorkerServer> own_worker_;  // where this process is a worker too
  int64_t window_ = 1;
  std::vector<std::pair<mesh::TensorType, mesh::TensorType>> types_;
  int64_t classes_ = 0;  // what labels must be
  std::string program_hash_;
  std::vector<nn::Parameter> parameters_;
  std::vector<mesh::Tensor> initial_weights_;
  std::vector<std::string> servers_;  // addresses
  std::unique_ptr<Coordinator> coordinator_;
  parameter::Training training_;
  parameter::PerWorker data_;
  bool resumed_ = false;  // from a checkpoint
  std::optional<ServerMetrics> metrics_;
};

}  // namespace

std::unique_ptr<JobEngine> MakeServerJobEngine(const TrainingJob& job) {
  return std::make_unique<ServerEngine>(job);
}

}  // namespace meshtrain::trainer
