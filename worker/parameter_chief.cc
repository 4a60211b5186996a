#include "worker/parameter_chief.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <set>
#include <string>

#include "runtime/base/file.h"
#include "runtime/base/log.h"
#include "runtime/checkpoint/weights.h"
#include "runtime/parameter/chief/coordinator.h"
#include "runtime/parameter/chief/environment.h"
#include "runtime/parameter/chief/evaluate.h"
#include "runtime/parameter/chief/steps.h"
#include "runtime/saving/newest.h"
#include "runtime/saving/position.h"
#include "runtime/spec/summary.h"
#include "runtime/strategy/dataset.h"
#include "runtime/train/callbacks.h"
#include "worker/leaving.h"
#include "worker/parameter_processes.h"
#include "worker/reporter.h"
#include "worker/resume.h"
#include "worker/role.h"
#include "worker/stopped.h"

namespace meshtrain::worker {

namespace {

using parameter::Coordinator;

constexpr char kTrainingData[] = "train";

parameter::Partitioner PartitionerOf(const spec::ParameterServerSpec& spec) {
  struct Visitor {
    parameter::Partitioner operator()(const spec::WholeVariables&) const {
      return parameter::Whole{};
    }
    parameter::Partitioner operator()(const spec::FixedShardsSpec& s) const {
      return parameter::FixedShards{s.num_shards};
    }
    parameter::Partitioner operator()(const spec::MinSizeSpec& s) const {
      return parameter::MinSize{s.min_shard_bytes, s.max_shards};
    }
    parameter::Partitioner operator()(const spec::MaxSizeSpec& s) const {
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

// Figures of the strategy beside those of every training.
class StrategyMetrics final : public train::Callback {
 public:
  StrategyMetrics(telemetry::Metrics& metrics, const Coordinator& coordinator)
      : coordinator_(coordinator),
        pulled_(metrics.AddCounter("meshtrain_parameter_pulled_bytes_total",
                                   "Bytes of variables that were pulled.")),
        pushed_(metrics.AddCounter("meshtrain_parameter_pushed_bytes_total",
                                   "Bytes of values that were pushed.")),
        rerun_(metrics.AddCounter("meshtrain_parameter_steps_rerun_total",
                                  "Steps that a lost worker left.")),
        workers_lost_(
            metrics.AddCounter("meshtrain_parameter_workers_lost_total", "Workers lost.")),
        servers_lost_(metrics.AddCounter("meshtrain_parameter_servers_lost_total",
                                         "Parameter servers lost.")),
        damaged_(metrics.AddCounter(kDamagedFrames, kDamagedFramesHelp)),
        ready_(metrics.AddGauge("meshtrain_parameter_workers_ready", "Workers that take steps.")) {
    for (int w = 0; w < coordinator.num_workers(); ++w) {
      worker_steps_.push_back(metrics.AddCounter("meshtrain_parameter_worker_steps_total",
                                                 "Steps that a worker has done.",
                                                 {{"worker", std::to_string(w)}}));
    }
    seen_.worker_steps.resize(worker_steps_.size());
  }

  Status OnStepEnd(const train::StepInfo&) override {
    const parameter::DispatcherStats now = coordinator_.stats();
    const auto add = [](telemetry::Counter& counter, int64_t to, int64_t from) {
      if (to > from) counter.Add(static_cast<double>(to - from));
    };
    add(pulled_, now.pulled_bytes, seen_.pulled_bytes);
    add(pushed_, now.pushed_bytes, seen_.pushed_bytes);
    add(rerun_, now.steps_rerun, seen_.steps_rerun);
    add(workers_lost_, now.workers_lost, seen_.workers_lost);
    add(servers_lost_, now.servers_lost, seen_.servers_lost);
    const int64_t damaged = parameter::DamagedFrames();
    add(damaged_, damaged, seen_damaged_);
    seen_damaged_ = damaged;
    for (size_t w = 0; w < worker_steps_.size(); ++w) {
      add(worker_steps_[w], now.worker_steps[w], seen_.worker_steps[w]);
    }
    ready_.Set(now.workers_ready);
    seen_ = now;
    return OkStatus();
  }

 private:
  const Coordinator& coordinator_;
  telemetry::Counter pulled_, pushed_, rerun_, workers_lost_, servers_lost_, damaged_;
  std::vector<telemetry::Counter> worker_steps_;
  telemetry::Gauge ready_;
  parameter::DispatcherStats seen_;
  int64_t seen_damaged_ = 0;
};

class Chief {
 public:
  Chief(const Config& config, spec::Manifest manifest)
      : config_(config), manifest_(std::move(manifest)) {}

  Status Run(std::stop_token stop) {
    MT_ASSIGN_OR_RETURN(const cluster::StopTimes times, StopTimesIn(ProcessEnvironment()));
    MT_RETURN_IF_ERROR(end_steps_.Start(stop, times.steps));
    MT_RETURN_IF_ERROR(give_up_.Start(stop, times.save));
    const Status end = RunJob(stop);
    // They may have been asked to stop as well, and serve for as long as we need them.
    if (coordinator_ && !end.ok()) coordinator_->Leave();
    return end;
  }

 private:
  Status RunJob(std::stop_token stop) {
    const spec::ProgramSpec& program = manifest_.program;
    const cluster::TfConfig& tf_config = *config_.job.tf_config;
    // Workers serve before anything else is ready, also the one in this process.
    if (tf_config.task.role == cluster::Role::kWorker) {
      MT_ASSIGN_OR_RETURN(own_worker_, ServeWorker(config_, manifest_));
    }
    MT_ASSIGN_OR_RETURN(folder_, SharedFolder(config_, manifest_));
    MT_RETURN_IF_ERROR(MakeDirectories(folder_).From(Origin::kOutput));
    MT_ASSIGN_OR_RETURN(train_data_, data::Pipeline::Create(spec::TrainPipeline(program.data)));
    if (program.data.test) {
      MT_ASSIGN_OR_RETURN(test_data_, data::Pipeline::Create(spec::TestPipeline(program.data)));
    }
    epochs_ = program.train.epochs;
    steps_per_epoch_ = program.train.steps_per_epoch > 0 ? program.train.steps_per_epoch
                                                         : train_data_->steps_per_epoch();
    MT_RETURN_IF_ERROR(Trace().From(Origin::kManifest));
    MT_RETURN_IF_ERROR(LoadInitialWeights());

    auto resumed = Begin(stop);
    if (!resumed.ok()) return Leave(resumed.status(), stop);
    const train::Position start = *resumed ? (*resumed)->position : train::Position{};
    if (*resumed) {
      resumed_from_ = (*resumed)->path;
      Say(fmt::format("resuming from {} at step {}", resumed_from_, start.step));
    }
    MT_RETURN_IF_ERROR(Report(start));
    const auto result = Train(start, stop);
    return Finish(result, stop);
  }

  // The step's hash, the batches' types.
  Status Trace() {
    MT_ASSIGN_OR_RETURN(const spec::Declared declared, spec::Declared::Create(manifest_.program));
    MT_RETURN_IF_ERROR(CheckBatches(declared, *train_data_, test_data_.get()));
    const int64_t full = train_data_->batch_size();
    std::set<int64_t> sizes = train_data_->batch_sizes();
    if (test_data_) sizes.merge(test_data_->batch_sizes());
    for (const int64_t size : sizes) {
      const std::vector<mesh::TensorType> types = train_data_->BatchTypes(size);
      MT_ASSIGN_OR_RETURN(const spec::Traced traced, declared.Trace(types));
      types_.emplace_back(types[0], types[1]);
      classes_ = traced.programs.classes;
      if (program_hash_.empty() || size == full) {
        program_hash_ = fmt::format("{:016x}", program::HashProgram(traced.programs.train_step));
        parameters_ = traced.programs.parameters;
      }
    }
    if (test_data_) test_data_->ExpectClasses(classes_);
    return OkStatus();
  }

  Status LoadInitialWeights() {
    if (manifest_.program.initial_weights.empty()) return OkStatus();
    std::vector<checkpoint::NamedType> wanted;
    for (const nn::Parameter& p : parameters_) wanted.push_back({p.name(), p.type()});
    MT_ASSIGN_OR_RETURN(initial_weights_,
                        checkpoint::LoadWeights(manifest_.program.initial_weights, wanted));
    return OkStatus();
  }

  // A session on the servers, from the newest whole checkpoint or from the beginning.
  Result<std::optional<Resumed>> Begin(std::stop_token stop) {
    MT_ASSIGN_OR_RETURN(
        const ResumeChoice choice,
        ChooseCheckpoints({.folder = folder_, .own = false, .resume = manifest_.checkpoint.resume})
            .From(Origin::kOutput));
    std::optional<Resumed> resumed;
    const auto load = [&](const std::string& path) -> Status {
      MT_ASSIGN_OR_RETURN(resumed, ResumeFrom(path, stop));
      return OkStatus();
    };
    MT_ASSIGN_OR_RETURN(const auto taken, saving::TakeNewest(choice.candidates, load));
    if (taken) return resumed;
    MT_RETURN_IF_ERROR(Define("", stop));
    for (size_t i = 0; i < initial_weights_.size(); ++i) {
      MT_RETURN_IF_ERROR(coordinator_->Write(parameters_[i].name(), initial_weights_[i], stop));
    }
    return std::optional<Resumed>();
  }

  Result<Resumed> ResumeFrom(const std::string& path, std::stop_token stop) {
    MT_ASSIGN_OR_RETURN(const auto checkpoint,
                        checkpoint::Checkpoint::Open(path).From(Origin::kOutput));
    MT_ASSIGN_OR_RETURN(train::Position position,
                        saving::PositionOf(checkpoint->index(), path).From(Origin::kOutput));
    MT_RETURN_IF_ERROR(Define(path, stop));
    return Resumed{std::move(position), path};
  }

  Status Define(const std::string& restore, std::stop_token stop) {
    const spec::ParameterServerSpec spec =
        manifest_.program.parameter_server.value_or(spec::ParameterServerSpec{});
    parameter::CoordinatorOptions options;
    options.cluster = config_.job.tf_config->cluster;
    MT_ASSIGN_OR_RETURN(options.identity, parameter::IdentityOf(ProcessEnvironment()));
    options.partitioner = PartitionerOf(spec);
    options.seed = manifest_.program.seed;
    options.restore = restore;
    options.staleness_bound = spec.staleness_bound;
    options.checkpoint_folder = folder_;
    options.keep = static_cast<int>(manifest_.checkpoint.keep);
    options.return_timeout = config_.job.peer_return;
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
    MT_ASSIGN_OR_RETURN(const spec::Declared declared, spec::Declared::Create(manifest_.program));
    MT_ASSIGN_OR_RETURN(training_, coordinator_->DefineTraining(declared.recipe(), types_));
    data::PipelineSpec pipeline = spec::TrainPipeline(manifest_.program.data);
    pipeline.classes = classes_;
    MT_ASSIGN_OR_RETURN(data_,
                        coordinator_->CreatePerWorkerDataset(kTrainingData, std::move(pipeline)));
    return OkStatus();
  }

  Status Report(const train::Position& start) {
    const std::string places = Count(coordinator_->num_workers(), "worker") + ", " +
                               Count(coordinator_->num_servers(), "parameter server");
    Reporter::Job job{.name = JobName(manifest_),
                      .mesh = places,
                      .epochs = epochs_,
                      .steps_per_epoch = steps_per_epoch_,
                      .plan = {.mesh = places, .hash = program_hash_},
                      .facts = spec::Summary(manifest_.program, parameters_),
                      .task = config_.job.tf_config->task};
    MT_ASSIGN_OR_RETURN(reporter_, Reporter::Create(
                                       config_, std::move(job),
                                       [this] { return coordinator_->last_save(); }, start));
    MT_RETURN_IF_ERROR(WriteFileAtomically(config_.output + "/plan.txt",
                                           PlacementText(coordinator_->planner(), servers_))
                           .From(Origin::kOutput));
    Say(fmt::format("training {} with {}; output in {}", manifest_.name, places, config_.output));
    if (reporter_->port() > 0) {
      Say(fmt::format("live page: http://{}:{}/", config_.host, reporter_->port()));
    }
    return OkStatus();
  }

  Result<train::FitResult> Train(const train::Position& start, std::stop_token stop) {
    const spec::TrainSpec& train = manifest_.program.train;
    parameter::StepWindow training(*coordinator_, training_.step, stop, end_steps_.token());
    parameter::StepWindow evaluation(*coordinator_, training_.evaluate, stop, end_steps_.token());
    parameter::RemoteRunner runner(training, evaluation);
    train::Position position;  // of the step that is about to be saved
    runner.set_saver([&](int64_t step) {
      return coordinator_->Save(step, saving::PositionToMetadata(position), program_hash_,
                                give_up_.token());
    });
    runner.set_last_saved(resumed_from_.empty() ? -1 : start.step);
    std::stop_source end;
    parameter::RemoteTraining source(
        training, {.data = data_,
                   .boundaries = {.first = start.step - start.batch,
                                  .steps_per_epoch = steps_per_epoch_,
                                  .save_every = manifest_.checkpoint.every_steps},
                   .step = start.step,
                   .window = window_,
                   .batch_size = train_data_->batch_size(),
                   .stop = stop,
                   .end = end});
    runner.set_source(&source);
    std::optional<strategy::PipelineBatches> test_batches;
    std::optional<parameter::SentBatches> validation;
    if (test_data_) {
      test_batches.emplace(*test_data_);
      validation.emplace(
          evaluation, *test_batches,
          parameter::SentBatches::Options{.steps = train.validation_steps,
                                          .ahead = 2 * int64_t{coordinator_->num_workers()},
                                          .stop = stop,
                                          .end = end});
    }
    train::CheckpointEvery save(runner, manifest_.checkpoint.every_steps);
    train::FunctionCallback note;  // before `save`, which stores it
    note.on_step_end = [&](const train::StepInfo& info) {
      position = info.position;
      return OkStatus();
    };
    note.on_train_end = [&](const train::FitResult& result) {
      position = result.position;
      return OkStatus();
    };
    StrategyMetrics metrics(reporter_->metrics(), *coordinator_);
    std::vector<train::Callback*> callbacks = {&note, &metrics, reporter_.get(), &save};
    std::optional<train::EarlyStopping> early;
    if (train.early_stopping) {
      early.emplace(train.early_stopping->monitor, train.early_stopping->patience,
                    train.early_stopping->min_delta);
      callbacks.push_back(&*early);
    }
    const train::FitOptions fit{
        .epochs = epochs_,
        .steps_per_epoch = steps_per_epoch_,
        .validation = validation && train.validate_every > 0 ? &*validation : nullptr,
        .validation_steps = train.validation_steps,
        .validate_every = std::max<int64_t>(train.validate_every, 1),
        .start = start};
    reporter_->Ready();
    auto result = train::Fit(runner, source, fit, callbacks, end.get_token());
    reporter_->EndLine();
    return result;
  }

  Status Finish(const Result<train::FitResult>& result, const std::stop_token& stop) {
    const Status saved = coordinator_->WaitForSave(give_up_.token());
    const Status reported = reporter_->Finish();
    TellTermination(config_, reporter_->TerminationMessage());
    if (!result.ok()) return Leave(result.status(), stop);
    if (saved.code() == StatusCode::kCancelled) return Leave(saved, stop);
    MT_RETURN_IF_ERROR(saved);
    MT_RETURN_IF_ERROR(reported);
    if (result->end == train::FitEnd::kNotFinite) {
      return Internal(result->message).From(Origin::kNumbers);
    }
    const bool stopped = result->end == train::FitEnd::kStopped && stop.stop_requested();
    const auto save = coordinator_->last_save();
    const std::string last = save ? save->path : resumed_from_;
    if (!last.empty()) {
      MT_RETURN_IF_ERROR(Export(last).From(Origin::kOutput));
      if (!stopped) MT_RETURN_IF_ERROR(parameter::MarkFinal(last).From(Origin::kOutput));
    }
    TellResults(config_, *reporter_, last);
    if (stopped) {
      TellStopped(result->position.step);
      return Stopped();
    }
    coordinator_->End();
    return OkStatus();
  }

  Status Export(const std::string& path) const {
    MT_ASSIGN_OR_RETURN(const auto checkpoint, checkpoint::Checkpoint::Open(path));
    const std::set<std::string, std::less<>> weights(training_.parameters.begin(),
                                                     training_.parameters.end());
    return checkpoint->Export(ModelPath(config_),
                              [&](std::string_view name) { return weights.contains(name); });
  }

  // Data that is wrong is so at the next attempt too, whoever asked us to stop meanwhile.
  static Status Leave(const Status& why, const std::stop_token& stop) {
    if (!stop.stop_requested() || why.origin() == Origin::kInput) return why;
    LogWarning("stopped without saving; the last checkpoint is where it goes on",
               {{"error", why.message()}});
    return Stopped();
  }

  const Config& config_;
  spec::Manifest manifest_;
  LateStop end_steps_;  // when steps that are under way have no time left
  LateStop give_up_;    // when a checkpoint has none
  std::string folder_;
  std::unique_ptr<parameter::WorkerServer> own_worker_;  // where this process is a worker too
  std::unique_ptr<data::Pipeline> train_data_, test_data_;
  int64_t epochs_ = 0, steps_per_epoch_ = 0, window_ = 1;
  std::vector<std::pair<mesh::TensorType, mesh::TensorType>> types_;
  int64_t classes_ = 0;  // what labels must be
  std::string program_hash_;
  std::vector<nn::Parameter> parameters_;
  std::vector<mesh::Tensor> initial_weights_;
  std::vector<std::string> servers_;  // addresses
  std::unique_ptr<Coordinator> coordinator_;
  parameter::Training training_;
  parameter::PerWorker data_;
  std::string resumed_from_;            // the checkpoint's folder; "": none
  std::unique_ptr<Reporter> reporter_;  // last: it asks the coordinator
};

}  // namespace

Status RunParameterChief(const Config& config, spec::Manifest manifest, std::stop_token stop) {
  return Chief(config, std::move(manifest)).Run(stop);
}

}  // namespace meshtrain::worker
