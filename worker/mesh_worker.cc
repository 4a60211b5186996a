#include "worker/mesh_worker.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <limits>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <utility>

#include "runtime/base/clock.h"
#include "runtime/base/file.h"
#include "runtime/base/log.h"
#include "runtime/checkpoint/weights.h"
#include "runtime/data/pipeline.h"
#include "runtime/execute/session.h"
#include "runtime/membership/arithmetic_agreement.h"
#include "runtime/membership/team.h"
#include "runtime/parameter/chief/evaluate.h"
#include "runtime/saving/failure.h"
#include "runtime/spec/plan_options.h"
#include "runtime/spec/summary.h"
#include "runtime/strategy/cross_device.h"
#include "runtime/train/callbacks.h"
#include "worker/checkpoints.h"
#include "worker/reporter.h"
#include "worker/resume.h"
#include "worker/role.h"
#include "worker/runner.h"
#include "worker/stop_vote.h"
#include "worker/stopped.h"

namespace meshtrain::worker {
namespace {

// From the last part of a checkpoint to its commit by the chief.
constexpr Duration kCommitTakes = std::chrono::seconds(5);

Status CheckSupported(const spec::Manifest& manifest, const Config& config) {
  const std::string file = SourceName(config);
  if (manifest.program.processes > 1 && !config.job.tf_config) {
    return InvalidArgument(file + ": its mesh lies in " +
                           std::to_string(manifest.program.processes) +
                           " processes: expected TF_CONFIG to say who they are, got: none");
  }
  if (!config.job.process()) {
    return InvalidArgument(
        "TF_CONFIG: expected a chief or a worker, or the strategy ParameterServer, got: " +
        cluster::ToString(config.job.tf_config->task));
  }
  if (manifest.program.strict && (config.isolated || manifest.program.processes > 1)) {
    return Unimplemented(file +
                         ": program.numerics: strict holds where the devices share memory, not " +
                         (config.isolated ? "with --isolated" : "between processes"));
  }
  return OkStatus();
}

void WarnOfNccl(std::string_view field, std::string_view instead) {
  LogWarning("NCCL was asked for, but there are no GPUs",
             {{"field", std::string(field)}, {"instead", std::string(instead)}});
}

// What a manifest says about its strategy's sums (docs/strategies.md), but for the plan's part.
void ApplyStrategyOptions(const spec::ProgramSpec& program, execute::SessionOptions* options) {
  if (const auto& mirrored = program.mirrored) {
    if (mirrored->cross_device_ops == spec::CrossDeviceOps::kNccl) {
      WarnOfNccl("program.mirrored.cross_device_ops", "Auto");
    }
    if (mirrored->isolated()) {
      options->isolated = true;
      static_assert(static_cast<int>(spec::CrossDeviceOps::kRing) ==
                    static_cast<int>(strategy::CrossDeviceOps::kRing));
      const auto ops = mirrored->cross_device_ops == spec::CrossDeviceOps::kNccl
                           ? strategy::CrossDeviceOps::kAuto
                           : static_cast<strategy::CrossDeviceOps>(mirrored->cross_device_ops);
      options->local_communicator =
          [ops](const mesh::Mesh& mesh,
                uint64_t) -> Result<std::unique_ptr<collective::Communicator>> {
        return strategy::MakeCrossDeviceCommunicator(mesh, ops);
      };
    }
  }
  if (program.multi_worker_mirrored &&
      program.multi_worker_mirrored->communication == spec::Communication::kNccl) {
    WarnOfNccl("program.multi_worker_mirrored.communication", "RING");
  }
}

class Worker {
 public:
  Worker(const Config& config, spec::Manifest manifest)
      : config_(config), manifest_(std::move(manifest)) {}

  Status Run(std::stop_token stop) {
    MT_RETURN_IF_ERROR(CheckSupported(manifest_, config_).From(Origin::kManifest));
    const spec::ProgramSpec& program = manifest_.program;

    // Data first: a prefetching pipeline decodes while the program is traced and planned.
    MT_ASSIGN_OR_RETURN(train_data_, data::Pipeline::Create(spec::TrainPipeline(program.data)));
    train_data_->Start();
    if (program.data.test) {
      MT_ASSIGN_OR_RETURN(test_data_, data::Pipeline::Create(spec::TestPipeline(program.data)));
    }
    if (program.processes > 1) {
      MT_ASSIGN_OR_RETURN(team_, MakeTeam());
      // Loading a step chooses its kernels: by then all have agreed on the instruction set.
      const auto joined = team_->Join(-1, stop);
      if (!joined.ok()) return Leave(stop, joined.status());
      joined_ = joined->id;
    }
    if (const Status prepared = Prepare(program); !prepared.ok()) {
      Depart();
      return prepared;
    }

    epochs_ = program.train.epochs;
    steps_per_epoch_ = program.train.steps_per_epoch > 0 ? program.train.steps_per_epoch
                                                         : train_data_->steps_per_epoch();
    const CheckpointFolder folder = CheckpointFolderOf(config_, manifest_);
    MT_RETURN_IF_ERROR(MakeDirectories(folder.path).From(Origin::kOutput));
    MT_ASSIGN_OR_RETURN(checkpoints_,
                        Checkpoints::Create({folder.path, folder.own, manifest_.checkpoint,
                                             team_.get(), config_.parts_timeout},
                                            *session_, *runner_, *train_data_));
    // Each round begins at the newest checkpoint and ends with the job, with an error, or with the
    // loss of a peer.
    for (;;) {
      uint64_t incarnation = 0;
      if (team_) {
        const auto joined = Gather(stop);
        if (!joined.ok()) return Leave(stop, joined.status());
        incarnation = *joined;
      }
      const auto resumed = checkpoints_->Resume(
          [this](const train::Position& p) { return Finished(p); }, incarnation, stop);
      if (!resumed.ok()) {
        if (Lost(resumed.status())) continue;
        return Leave(stop, resumed.status());
      }
      const train::Position start = *resumed ? (*resumed)->position : train::Position{};
      resumed_from_ = *resumed ? (*resumed)->path : "";
      if (*resumed) Say(fmt::format("resuming from {} at step {}", (*resumed)->path, start.step));
      MT_RETURN_IF_ERROR(Report(start));
      std::stop_source all;
      const auto result = Train(start, stop, all);
      if (!result.ok() && Lost(result.status())) continue;
      // Another process was asked to stop and leaves; what was saved together is where we go on
      // when it is back.
      if (team_ && result.ok() && result->end == train::FitEnd::kStopped && all.stop_requested() &&
          !stop.stop_requested()) {
        Say("another process stops; waiting for its return");
        continue;
      }
      if (!result.ok()) checkpoints_->Abandon();
      const bool leaves = stop.stop_requested();
      const Status saved =
          result.ok() ? EndTogether(result->position.step, leaves) : checkpoints_->Wait();
      if (result.ok() && !leaves && Lost(saved)) continue;
      return Finish(result, saved, stop);
    }
  }

 private:
  bool Finished(const train::Position& p) const { return IsEnd(p, epochs_, steps_per_epoch_); }
  bool isolated() const {
    return config_.isolated ||
           (manifest_.program.mirrored && manifest_.program.mirrored->isolated());
  }
  bool chief() const { return team_ == nullptr || team_->chief(); }
  Result<std::unique_ptr<membership::Team>> MakeTeam() const {
    MT_ASSIGN_OR_RETURN(rpc::Security security, rpc::SecurityFromEnvironment(ProcessEnvironment()));
    return membership::Team::Create(
        {.config = *config_.job.tf_config,
         .security = std::move(security),
         .job = config_.job.job,
         .peer_return = config_.job.peer_return,
         .threads = config_.threads,
         .forced_instruction_set = membership::ForcedInstructionSet(ProcessEnvironment())});
  }

  // All are here and about to run the same plans. The incarnation's id.
  Result<uint64_t> Gather(std::stop_token stop) {
    for (;;) {
      if (joined_ == 0) {
        MT_ASSIGN_OR_RETURN(const membership::Incarnation now,
                            team_->Join(runner_->last_saved(), stop));
        joined_ = now.id;
      }
      const uint64_t id = std::exchange(joined_, 0);
      const Status agreed = team_->AgreeOnPlans(runner_->plan_hashes(), stop);
      if (agreed.ok()) return id;
      if (!Lost(agreed)) return agreed;
    }
  }

  // The process that a loss names first ("worker-2 lost: connection closed"), "" for none.
  std::string Named(const Status& loss) const {
    std::string named;
    size_t first = std::string::npos;
    for (int i = 0; i < team_->processes(); ++i) {
      const std::string name = team_->name(i);
      const size_t at = loss.message().find(name + " ");
      if (at < first) {
        first = at;
        named = name;
      }
    }
    return named;
  }

  // Whether the error means that a peer is gone, which the next round waits for.
  bool Lost(const Status& status) {
    if (team_ == nullptr || !membership::Team::IsLoss(status)) return false;
    if (reporter_) {
      reporter_->EndLine();
      reporter_->Stopped(Named(status), team_->incarnation());
    }
    LogWarning("training is interrupted", {{"error", status.message()}});
    return true;
  }

  // The end of a process that cannot go on with the others; where one is lost, nobody is told. (Of
  // a "stale incarnation" ExitCodeOf makes a code that is not retried: a newer process of our task
  // is at work, and whoever restarts us would only disturb it.)
  Status Leave(const std::stop_token& stop, const Status& why) {
    if (stop.stop_requested()) {
      Depart();
      return Stopped();
    }
    if (!membership::Team::IsLoss(why)) Depart();
    return why;
  }

  void Depart() {
    if (team_ == nullptr) return;
    if (const Status left = team_->Leave(std::chrono::seconds(5)); !left.ok()) {
      LogInfo("left without a word", {{"error", left.message()}});
    }
  }

  // Files, endpoints and the first lines; or, after a loss, the same turned back to `start`.
  Status Report(const train::Position& start) {
    if (reporter_) return reporter_->RollBack(start);
    const plan::Plan& plan = runner_->plan();
    Reporter::Job job{.name = JobName(manifest_),
                      .mesh = runner_->mesh().ToString(),
                      .epochs = epochs_,
                      .steps_per_epoch = steps_per_epoch_,
                      .plan = {.mesh = runner_->mesh().ToString(),
                               .peak_bytes_per_device = plan.peak_bytes,
                               .collective_bytes_per_step = plan.CollectiveBytesPerStep(),
                               .hash = fmt::format("{:016x}", plan.hash)},
                      .facts = spec::Summary(manifest_.program, runner_->programs().parameters),
                      .collective_bytes = [this] { return runner_->CollectiveBytesSent(); },
                      .chief = chief()};
    job.rank_step_seconds = [this]() -> std::vector<double> {
      if (team_ == nullptr) {
        return own_seconds_ > 0 ? std::vector{own_seconds_.load()} : std::vector<double>();
      }
      std::vector<double> seconds = team_->StepSeconds();
      // Of a rank that has not ended a step there is none.
      for (double& s : seconds) s = s > 0 ? s : std::numeric_limits<double>::quiet_NaN();
      return seconds;
    };
    if (config_.job.tf_config) job.task = config_.job.tf_config->task;
    MT_ASSIGN_OR_RETURN(
        reporter_, Reporter::Create(
                       config_, std::move(job), [this] { return checkpoints_->last(); }, start));
    if (chief()) {
      MT_RETURN_IF_ERROR(
          WriteFileAtomically(config_.output + "/plan.txt", plan.Report()).From(Origin::kOutput));
    }
    const std::string mesh =
        runner_->mesh().num_axes() == 0 ? "of one device" : runner_->mesh().ToString();
    Say(fmt::format(
        "training {} on mesh {} ({}{}); output in {}", manifest_.name, mesh,
        isolated() ? "each device by itself" : "devices share memory",
        team_ ? fmt::format(", process {} of {}", team_->process(), team_->processes()) : "",
        config_.output));
    if (reporter_->port() > 0 && chief()) {
      Say(fmt::format("live page: http://{}:{}/", config_.host, reporter_->port()));
    }
    return OkStatus();
  }

  // Session, steps and initial weights.
  Status Prepare(const spec::ProgramSpec& program) {
    // The others wait for its plan hashes.
    const membership::Team::Busy busy(team_.get(), "planning");
    MT_RETURN_IF_ERROR(Plan(program).From(Origin::kManifest));
    train_data_->ExpectClasses(runner_->programs().classes);
    if (test_data_) test_data_->ExpectClasses(runner_->programs().classes);
    if (!program.initial_weights.empty()) {
      std::vector<checkpoint::NamedType> wanted;
      for (const nn::Parameter& p : runner_->programs().parameters) {
        wanted.push_back({p.name(), p.type()});
      }
      MT_ASSIGN_OR_RETURN(std::vector<mesh::Tensor> weights,
                          checkpoint::LoadWeights(program.initial_weights, wanted));
      runner_->set_initial_weights(std::move(weights));
    }
    return OkStatus();
  }

  Status Plan(const spec::ProgramSpec& program) {
    execute::SessionOptions options{.isolated = config_.isolated, .threads = config_.threads};
    if (team_) {
      options.process = team_->process();
      options.communicator = team_->communicators();
    }
    MT_ASSIGN_OR_RETURN(const spec::Declared declared, spec::Declared::Create(program));
    const int64_t full = train_data_->batch_size();
    ApplyStrategyOptions(program, &options);
    MT_ASSIGN_OR_RETURN(options.plan,
                        spec::PlanOptionsOf(program, declared, train_data_->BatchTypes(full)));
    MT_ASSIGN_OR_RETURN(session_, execute::Session::Create(std::move(options)));
    trainer::MeshRunner::Options sizes{
        .types = train_data_->BatchTypes(full), .train_sizes = {}, .eval_sizes = {}};
    sizes.train_sizes = train_data_->batch_sizes();
    if (test_data_) sizes.eval_sizes = test_data_->batch_sizes();
    MT_RETURN_IF_ERROR(CheckBatches(declared, *train_data_, test_data_.get()));
    MT_ASSIGN_OR_RETURN(runner_, MakeRunner(*session_, declared, std::move(sizes)));
    return OkStatus();
  }

  Result<train::FitResult> Train(const train::Position& start, std::stop_token stop,
                                 const std::stop_source& all) {
    const spec::TrainSpec& train = manifest_.program.train;
    batches_.emplace(*train_data_);
    validation_.reset();
    if (test_data_) {
      // A validation that a loss has cut short begins anew.
      if (const data::Cursor at = test_data_->cursor(); at.batch != 0) {
        MT_RETURN_IF_ERROR(test_data_->Restore({.epoch = at.epoch, .fingerprint = at.fingerprint}));
      }
      validation_.emplace(*test_data_);
    }
    runner_->set_saver([&](int64_t step) { return checkpoints_->Save(step); });
    train::CheckpointEvery save(*runner_, manifest_.checkpoint.every_steps);
    train::FunctionCallback note;  // before `save`, which stores it
    note.on_step_end = [&](const train::StepInfo& info) {
      checkpoints_->Note(info.position);
      const Duration own = info.seconds - runner_->waited();
      own_seconds_ = std::chrono::duration<double>(own).count();
      if (team_) team_->ReportStepTime(own);
      return OkStatus();
    };
    note.on_train_end = [&](const train::FitResult& result) {
      checkpoints_->Note(result.position);
      return OkStatus();
    };
    std::vector<train::Callback*> callbacks = {&note, reporter_.get(), &save};
    std::optional<StopVote> vote;
    if (team_) callbacks.push_back(&vote.emplace(*team_, stop, all));
    std::optional<train::EarlyStopping> early;
    if (train.early_stopping) {
      early.emplace(train.early_stopping->monitor, train.early_stopping->patience,
                    train.early_stopping->min_delta);
      callbacks.push_back(&*early);
    }
    train::FitOptions fit{
        .epochs = train.epochs,
        .steps_per_epoch = train.steps_per_epoch,
        .validation = validation_ && train.validate_every > 0 ? &*validation_ : nullptr,
        .validation_steps = train.validation_steps,
        .validate_every = std::max<int64_t>(train.validate_every, 1),
        .end_after_bad_steps = train.end_after_bad_steps,
        .start = start};
    reporter_->Ready();
    // Many processes stop by their vote only: one that stopped by itself would leave the others
    // waiting in a collective.
    auto result = train::Fit(*runner_, *batches_, fit, callbacks, team_ ? all.get_token() : stop);
    reporter_->EndLine();
    return result;
  }

  // Done only when the chief has committed what was saved last, of `step`: nobody leaves before.
  // When somebody is lost before that, kUnavailable: what the lost one did not write is computed
  // again. Who `leaves` has written its part.
  Status EndTogether(int64_t step, bool leaves) {
    const Status saved = checkpoints_->Wait();
    if (!team_ || membership::Team::IsLoss(saved)) return saved;
    const auto said = team_->Agree("end", saving::TellFailure(saved), std::chrono::minutes(10), {});
    if (said.ok()) return saved.ok() ? saving::ToldFailure(team_->name(0), (*said)[0]) : saved;
    // What is complete stays so, whoever is lost afterwards; the chief may be about to make it
    // complete.
    if (!saved.ok() || leaves || chief()) return saved;
    const Duration end = SystemClock().Monotonic() + kCommitTakes;
    while (!checkpoints_->Holds(step)) {
      if (SystemClock().Monotonic() >= end) return said.status();
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
    return OkStatus();
  }

  Status Finish(const Result<train::FitResult>& result, const Status& saved,
                const std::stop_token& stop) {
    Depart();
    const Status reported = reporter_->Finish();
    TellTermination(config_, reporter_->TerminationMessage());
    MT_RETURN_IF_ERROR(result.status());
    MT_RETURN_IF_ERROR(saved);
    MT_RETURN_IF_ERROR(reported);
    if (result->end == train::FitEnd::kNotFinite) {
      return Internal(result->message).From(Origin::kNumbers);
    }
    const bool stopped = result->end == train::FitEnd::kStopped && stop.stop_requested();
    if (chief()) {
      MT_RETURN_IF_ERROR(checkpoints_->Export(ModelPath(config_)).From(Origin::kOutput));
      std::string last;
      if (const auto newest = checkpoints_->last()) last = newest->path;
      if (last.empty()) last = resumed_from_;
      if (!stopped && !last.empty()) {
        MT_RETURN_IF_ERROR(parameter::MarkFinal(last).From(Origin::kOutput));
      }
      TellResults(config_, *reporter_, last);
    }
    if (!stopped) return OkStatus();
    TellStopped(result->position.step);
    return Stopped();
  }

  Config config_;
  spec::Manifest manifest_;
  // In the order in which they lean on each other.
  std::unique_ptr<membership::Team> team_;  // null: one process
  uint64_t joined_ = 0;                     // an incarnation whose plans are not compared yet
  std::unique_ptr<data::Pipeline> train_data_, test_data_;
  std::optional<PipelineBatches> batches_, validation_;
  int64_t epochs_ = 0, steps_per_epoch_ = 0;
  std::unique_ptr<execute::Session> session_;
  std::unique_ptr<trainer::MeshRunner> runner_;
  std::unique_ptr<Checkpoints> checkpoints_;
  std::string resumed_from_;             // the checkpoint's folder; "": none
  std::atomic<double> own_seconds_ = 0;  // of the last step, without waiting for others; 0: none
  std::unique_ptr<Reporter> reporter_;
};

}  // namespace

Status RunMeshWorker(const Config& config, spec::Manifest manifest, std::stop_token stop) {
  return Worker(config, std::move(manifest)).Run(stop);
}

}  // namespace meshtrain::worker
