// The engine of a mesh: a session and its steps, and with several processes the team that they
// make.
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
#include "runtime/cluster/exit_code.h"
#include "runtime/collective/communicator.h"
#include "runtime/data/cursor.h"
#include "runtime/data/pipeline.h"
#include "runtime/execute/session.h"
#include "runtime/membership/arithmetic_agreement.h"
#include "runtime/membership/membership.h"
#include "runtime/membership/team.h"
#include "runtime/membership/team_options.h"
#include "runtime/recipe/plan_options.h"
#include "runtime/saving/failure.h"
#include "runtime/saving/resume.h"
#include "runtime/strategy/cross_device.h"
#include "runtime/strategy/dataset.h"
#include "runtime/train/callbacks.h"
#include "runtime/trainer/job/checkpoints.h"
#include "runtime/trainer/job/choices.h"
#include "runtime/trainer/job/engine.h"
#include "runtime/trainer/job/runner.h"
#include "runtime/trainer/job/say.h"
#include "runtime/trainer/job/stop_vote.h"

namespace meshtrain::trainer {
namespace {

// From the last part of a checkpoint to its commit by the chief.
constexpr Duration kCommitTakes = std::chrono::seconds(5);

Status CheckSupported(const manifest::Manifest& manifest, const JobConfig& config) {
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
  if (manifest.program.strict && config.isolated) {
    return Unimplemented(file +
                         ": program.numerics: strict holds where the devices share memory, "
                         "not with --isolated");
  }
  return OkStatus();
}

// What a manifest says about its strategy's sums (docs/strategies.md), but for the plan's part.
void ApplyStrategyOptions(const manifest::Program& program, execute::SessionOptions* options) {
  if (const auto& mirrored = program.mirrored) {
    if (mirrored->cross_device_ops == manifest::CrossDeviceOps::kNccl) {
      LogWarning("NCCL was asked for, but there are no GPUs",
                 {{"field", "program.mirrored.cross_device_ops"}, {"instead", "Auto"}});
    }
    if (mirrored->isolated()) {
      options->isolated = true;
      static_assert(static_cast<int>(manifest::CrossDeviceOps::kRing) ==
                    static_cast<int>(strategy::CrossDeviceOps::kRing));
      const auto ops = mirrored->cross_device_ops == manifest::CrossDeviceOps::kNccl
                           ? strategy::CrossDeviceOps::kAuto
                           : static_cast<strategy::CrossDeviceOps>(mirrored->cross_device_ops);
      options->local_communicator =
          [ops](const mesh::Mesh& mesh,
                uint64_t) -> Result<std::unique_ptr<collective::Communicator>> {
        return strategy::MakeCrossDeviceCommunicator(mesh, ops);
      };
    }
  }
}

class MeshEngine final : public JobEngine {
 public:
  explicit MeshEngine(const TrainingJob& job) : job_(job) {}

  Status Start(std::stop_token) override {
    return CheckSupported(job_.manifest, job_.config).From(Origin::kManifest);
  }

  Status Open(std::stop_token stop) override {
    // A prefetching pipeline decodes while the program is traced and planned.
    job_.train->Start();
    if (job_.manifest.program.processes > 1) {
      MT_ASSIGN_OR_RETURN(team_, MakeTeam());
      // Loading a step chooses its kernels: by then all have agreed on the instruction set.
      const auto joined = team_->Join(-1, stop);
      if (!joined.ok()) return Leave(stop, joined.status());
      joined_ = true;
    }
    if (const Status prepared = Prepare(); !prepared.ok()) {
      Depart();
      return prepared;
    }
    const CheckpointFolder folder = CheckpointFolderOf(job_.config, job_.manifest);
    MT_RETURN_IF_ERROR(MakeDirectories(folder.path).From(Origin::kOutput));
    MT_ASSIGN_OR_RETURN(checkpoints_,
                        JobCheckpoints::Create({folder.path, folder.own, job_.manifest.checkpoint,
                                                team_.get(), job_.config.parts_timeout},
                                               *session_, *runner_, *job_.train));
    return OkStatus();
  }

  Result<std::optional<saving::Resumed>> Begin(std::stop_token stop) override {
    const auto finished = [this](const train::Position& p) {
      return saving::IsEnd(p, job_.epochs, job_.steps_per_epoch);
    };
    for (;;) {
      if (team_) {
        if (const Status all = Gather(stop); !all.ok()) return Leave(stop, all);
      }
      auto resumed = checkpoints_->Resume(finished, stop);
      if (resumed.ok()) return resumed;
      if (!Lost(resumed.status())) return Leave(stop, resumed.status());
    }
  }

  Description Describe() const override {
    const plan::Plan& plan = runner_->plan();
    const std::string mesh = runner_->mesh().ToString();
    Description what{
        .mesh = mesh,
        .beginning = fmt::format(
            "on mesh {} ({}{})", runner_->mesh().num_axes() == 0 ? "of one device" : mesh,
            isolated() ? "each device by itself" : "devices share memory",
            team_ ? fmt::format(", process {} of {}", team_->process(), team_->processes()) : ""),
        .plan = {.mesh = mesh,
                 .peak_bytes_per_device = plan.peak_bytes,
                 .collective_bytes_per_step = plan.CollectiveBytesPerStep(),
                 .hash = fmt::format("{:016x}", plan.hash)},
        .plan_text = plan.Report(),
        .parameters = runner_->programs().parameters,
        .rank_step_seconds = [this] { return RankStepSeconds(); },
        .collective_bytes = [this] { return runner_->CollectiveBytesSent(); }};
    return what;
  }

  bool chief() const override { return team_ == nullptr || team_->chief(); }
  std::string folder() const override {
    return CheckpointFolderOf(job_.config, job_.manifest).path;
  }
  std::optional<checkpoint::SaveReport> last_save() const override {
    return checkpoints_->files().last();
  }

  Result<train::FitResult> Fit(Loop loop, std::stop_token stop) override {
    batches_.emplace(*job_.train);
    validation_.reset();
    if (job_.test) {
      // A validation that a loss has cut short begins anew.
      if (const data::Cursor at = job_.test->cursor(); at.batch != 0) {
        MT_RETURN_IF_ERROR(job_.test->Restore({.epoch = at.epoch, .fingerprint = at.fingerprint}));
      }
      validation_.emplace(*job_.test);
    }
    if (loop.validates) loop.options.validation = &*validation_;
    runner_->set_saver([this, pinned = loop.pinned](const train::Position& position) {
      return checkpoints_->Save(position, pinned());
    });
    train::FunctionCallback times;
    times.on_step_end = [&](const train::StepInfo& info) {
      const Duration own = info.seconds - runner_->waited();
      own_seconds_ = std::chrono::duration<double>(own).count();
      if (team_) team_->ReportStepTime(own);
      return OkStatus();
    };
    loop.callbacks.insert(loop.callbacks.begin(), &times);
    train::CheckpointEvery save(*runner_, loop.saves);
    all_ = std::stop_source();
    std::optional<StopVote> vote;
    if (team_) {
      loop.callbacks.push_back(
          &vote.emplace(*team_, stop, all_, [&save] { return save.Overdue(); }));
      save.set_due([&vote] { return vote->saves(); });
    }
    loop.callbacks.push_back(&save);
    // Many processes stop by their vote only: one that stopped by itself would leave the others
    // waiting in a collective.
    return train::Fit(*runner_, *batches_, loop.options, loop.callbacks,
                      team_ ? all_.get_token() : stop);
  }

  Ending End(const Result<train::FitResult>& result, std::stop_token stop) override {
    if (!result.ok() && Lost(result.status())) return {.again = true};
    // Another process is asked to stop and leaves; what was saved together is where we go on when
    // it is back.
    if (team_ && result.ok() && result->end == train::FitEnd::kStopped && all_.stop_requested() &&
        !stop.stop_requested()) {
      Say("another process stops; waiting for its return");
      return {.again = true};
    }
    if (!result.ok()) checkpoints_->files().Abandon();
    const bool leaves = stop.stop_requested();
    const Status saved =
        result.ok() ? EndTogether(result->position.step, leaves) : checkpoints_->files().Wait();
    if (result.ok() && !leaves && Lost(saved)) return {.again = true};
    Depart();
    return {.training = result.status(), .saved = saved};
  }

 private:
  bool isolated() const {
    const auto& mirrored = job_.manifest.program.mirrored;
    return job_.config.isolated || (mirrored && mirrored->isolated());
  }

  Result<std::unique_ptr<membership::Team>> MakeTeam() const {
    const JobConfig& config = job_.config;
    MT_ASSIGN_OR_RETURN(rpc::Security security, rpc::SecurityFromEnvironment(ProcessEnvironment()));
    return membership::Team::Create(
        {.config = *config.job.tf_config,
         .security = std::move(security),
         .job = config.job.job,
         .peer_return = config.job.peer_return,
         .threads = config.threads,
         .forced_instruction_set = membership::ForcedInstructionSet(ProcessEnvironment())});
  }

  // All are here and about to run the same plans.
  Status Gather(std::stop_token stop) {
    for (;;) {
      if (!joined_) MT_RETURN_IF_ERROR(team_->Join(runner_->last_saved(), stop).status());
      joined_ = false;
      const Status agreed = team_->AgreeOnPlans(runner_->plan_hashes(), stop);
      if (agreed.ok() || !Lost(agreed)) return agreed;
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
    interrupted_(Named(status), team_->incarnation(), status);
    return true;
  }

  // The end of a process that cannot go on with the others; where one is lost, nobody is told. (Of
  // a "stale incarnation" ExitCodeOf makes a code that is not retried: a newer process of our task
  // is at work, and whoever restarts us would only disturb it.)
  Status Leave(const std::stop_token& stop, const Status& why) {
    if (stop.stop_requested()) {
      Depart();
      return cluster::Stopped();
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

  std::vector<double> RankStepSeconds() const {
    if (team_ == nullptr) {
      return own_seconds_ > 0 ? std::vector{own_seconds_.load()} : std::vector<double>();
    }
    std::vector<double> seconds = team_->StepSeconds();
    // Of a rank that has not ended a step there is none.
    for (double& s : seconds) s = s > 0 ? s : std::numeric_limits<double>::quiet_NaN();
    return seconds;
  }

  // Session, steps and initial weights.
  Status Prepare() {
    const manifest::Program& program = job_.manifest.program;
    // The others wait for its plan hashes.
    const membership::Team::Busy busy(team_.get(), "planning");
    MT_RETURN_IF_ERROR(Plan(program).From(Origin::kManifest));
    job_.train->ExpectClasses(runner_->programs().classes);
    if (job_.test) job_.test->ExpectClasses(runner_->programs().classes);
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

  Status Plan(const manifest::Program& program) {
    execute::SessionOptions options{.isolated = job_.config.isolated,
                                    .threads = job_.config.threads,
                                    .memory = job_.config.memory};
    if (team_) {
      options.process = team_->process();
      options.communicator = team_->communicators();
    }
    MT_ASSIGN_OR_RETURN(const recipe::Declared declared, recipe::Declared::Create(program));
    const int64_t full = job_.train->batch_size();
    ApplyStrategyOptions(program, &options);
    MT_ASSIGN_OR_RETURN(options.plan,
                        recipe::PlanOptionsOf(program, declared, job_.train->BatchTypes(full)));
    MT_ASSIGN_OR_RETURN(session_, execute::Session::Create(std::move(options)));
    MeshRunner::Options sizes{
        .types = job_.train->BatchTypes(full), .train_sizes = {}, .eval_sizes = {}};
    sizes.train_sizes = job_.train->batch_sizes();
    if (job_.test) sizes.eval_sizes = job_.test->batch_sizes();
    MT_RETURN_IF_ERROR(CheckBatches(declared, *job_.train, job_.test.get()));
    MT_ASSIGN_OR_RETURN(runner_, MakeRunner(*session_, declared, std::move(sizes)));
    return OkStatus();
  }

  // Done only when the chief has committed what was saved last, of `step`: nobody leaves before.
  // When somebody is lost before that, kUnavailable: what the lost one did not write is computed
  // again. Who `leaves` has written its part.
  Status EndTogether(int64_t step, bool leaves) {
    const Status saved = checkpoints_->files().Wait();
    if (!team_ || membership::Team::IsLoss(saved)) return saved;
    const auto said = team_->Agree("end", saving::TellFailure(saved), std::chrono::minutes(10), {});
    if (said.ok()) return saved.ok() ? saving::ToldFailure(team_->name(0), (*said)[0]) : saved;
    // What is complete stays so, whoever is lost afterwards; the chief may be about to make it
    // complete.
    if (!saved.ok() || leaves || chief()) return saved;
    const Duration end = SystemClock().Monotonic() + kCommitTakes;
    while (!checkpoints_->files().Holds(step)) {
      if (SystemClock().Monotonic() >= end) return said.status();
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
    return OkStatus();
  }

  const TrainingJob& job_;
  // In the order in which they lean on each other.
  std::unique_ptr<membership::Team> team_;  // null: one process
  bool joined_ = false;                     // an incarnation whose plans are not compared yet
  std::optional<strategy::PipelineBatches> batches_, validation_;
  std::unique_ptr<execute::Session> session_;
  std::unique_ptr<MeshRunner> runner_;
  std::unique_ptr<JobCheckpoints> checkpoints_;
  std::stop_source all_;                 // any process wants to stop
  std::atomic<double> own_seconds_ = 0;  // of the last step, without waiting for others; 0: none
};

}  // namespace

std::unique_ptr<JobEngine> MakeMeshJobEngine(const TrainingJob& job) {
  return std::make_unique<MeshEngine>(job);
}

}  // namespace meshtrain::trainer
