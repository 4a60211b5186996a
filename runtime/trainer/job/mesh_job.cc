// A job on a mesh: its strategy with a session and, with several processes, the team that they
// make.
#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <utility>

#include "runtime/base/clock.h"
#include "runtime/base/file.h"
#include "runtime/base/log.h"
#include "runtime/cluster/exit_code.h"
#include "runtime/data/pipeline.h"
#include "runtime/execute/session.h"
#include "runtime/membership/arithmetic_agreement.h"
#include "runtime/membership/membership.h"
#include "runtime/membership/team.h"
#include "runtime/membership/team_options.h"
#include "runtime/report/plan_view.h"
#include "runtime/saving/failure.h"
#include "runtime/trainer/job/choices.h"
#include "runtime/trainer/job/mesh_saver.h"
#include "runtime/trainer/job/say.h"
#include "runtime/trainer/job/stages.h"
#include "runtime/trainer/job/strategy.h"

namespace meshtrain::trainer {
namespace {

// From the loss of a process to the mark of a job that is done, where the chief goes on by itself;
// and its last word.
constexpr Duration kChiefTakes = std::chrono::seconds(5);
// What one process does at the end while the others wait: its last part, the chief's model.
constexpr Duration kLongestWait = std::chrono::minutes(10);

class MeshJob final : public JobStages {
 public:
  explicit MeshJob(const JobParts& job) : job_(job) {}

  Status Start(std::stop_token) override {
    return CheckMeshJob(job_.manifest, job_.config).From(Origin::kManifest);
  }

  Status Open(std::stop_token stop) override {
    // A prefetching pipeline decodes while the program is traced and planned.
    job_.train->Start();
    if (job_.manifest.program.processes > 1) {
      MT_ASSIGN_OR_RETURN(team_, MakeTeam());  // the strategy gets it, joined
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
    MT_ASSIGN_OR_RETURN(execute::Session * session, strategy_->session());
    MeshSaver::Options saves{
        .folder = folder,
        .spec = job_.manifest.checkpoint,
        .team = team_.get(),
        .parts_timeout = job_.config.parts_timeout,
        .program_hash = program_hash_,
        .initial_weights = std::move(initial_weights_),
        .epochs = job_.epochs,
        .steps_per_epoch = job_.steps_per_epoch,
        .may_end_early = job_.manifest.program.train.early_stopping.has_value()};
    MT_ASSIGN_OR_RETURN(saver_,
                        MeshSaver::Create(std::move(saves), *session, *engine_, *job_.train));
    return OkStatus();
  }

  Result<std::optional<saving::Resumed>> Begin(std::stop_token stop) override {
    for (;;) {
      if (team_) {
        if (const Status all = Gather(stop); !all.ok()) return Leave(stop, all);
      }
      auto resumed = saver_->Resume(stop);
      if (resumed.ok()) return resumed;
      if (!Lost(resumed.status())) return Leave(stop, resumed.status());
    }
  }

  Description Describe() const override {
    const plan::Plan& plan = *engine_->plan();
    const std::string mesh = strategy_->mesh().ToString();
    Description what{
        .mesh = mesh,
        .beginning = fmt::format("on mesh {} ({}{})",
                                 strategy_->mesh().num_axes() == 0 ? "of one device" : mesh,
                                 IsIsolated(job_.config, job_.manifest) ? "each device by itself"
                                                                        : "devices share memory",
                                 team_ ? fmt::format(", process {} of {}{}", team_->process(),
                                                     team_->processes(), sealed_ ? ", sealed" : "")
                                       : ""),
        .plan = {.mesh = mesh,
                 .peak_bytes_per_device = plan.peak_bytes + engine_->scratch_bytes(),
                 .collective_bytes_per_step = plan.CollectiveBytesPerStep(),
                 .hash = fmt::format("{:016x}", plan.hash)},
        .view = report::ViewOf(plan),
        .plan_text = plan.Report(),
        .parameters = declared_->recipe().model->parameters(),
        .rank_step_seconds = [this] { return engine_->RankStepSeconds(); },
        .collective_bytes = [this] { return engine_->CollectiveBytesSent(); },
        .collective_time = [this] { return engine_->CollectiveTime(); }};
    if (!IsIsolated(job_.config, job_.manifest) && strategy_->mesh().size() > 1) {
      what.view->note =
          "The devices of a process share their memory here: between them nothing is sent.";
    }
    return what;
  }

  bool chief() const override { return team_ == nullptr || team_->chief(); }
  std::string folder() const override {
    return CheckpointFolderOf(job_.config, job_.manifest).path;
  }
  Saver& saver() override { return *saver_; }

  Result<train::FitResult> Fit(FitWork work, std::stop_token stop) override {
    return engine_->Fit(std::move(work), std::move(stop));
  }

  Result<std::optional<std::string>> Write(std::stop_token stop) override {
    // Processes that stop do so together; here one alone would leave the others waiting.
    if (!write_ || engine_->stopped_by_another()) return std::optional<std::string>();
    auto text = write_(team_ ? std::stop_token() : std::move(stop));
    lost_writing_ = !text.ok() && Lost(text.status());
    if (lost_writing_) return std::optional<std::string>();
    if (!text.ok()) return text.status();
    return std::optional(*std::move(text));
  }

  RoundEnd End(const Result<train::FitResult>& result, std::stop_token stop) override {
    if (std::exchange(lost_writing_, false)) return {.again = true};
    if (!result.ok() && Lost(result.status())) return {.again = true};
    // Another process is asked to stop and leaves; what was saved together is where we go on when
    // it is back.
    if (team_ && result.ok() && result->end == train::FitEnd::kStopped &&
        engine_->stopped_by_another() && !stop.stop_requested()) {
      Say("another process stops; waiting for its return");
      return {.again = true};
    }
    if (!result.ok()) saver_->files().Abandon();
    const bool leaves = stop.stop_requested();
    const Status saved = result.ok() ? EndTogether(*result, stop) : saver_->files().Wait();
    if (result.ok() && !leaves && Lost(saved)) return {.again = true};
    if (team_ && chief() && result.ok() && saved.ok() && Ends(*result, leaves)) {
      leaving_.emplace(team_.get(), "what the job leaves");
    } else {
      Depart();
    }
    return {.training = result.status(), .saved = saved};
  }

  void Close(const Status& end) override {
    if (!leaving_) return;
    leaving_.reset();
    if (end.ok()) {
      const Status told = team_->Agree("done", "", kChiefTakes, {}).status();
      // Who did not hear it reads it in the checkpoint.
      if (!told.ok()) LogInfo("not all heard that the job is done", {{"error", told.message()}});
    }
    Depart();
  }

 private:
  Result<std::unique_ptr<membership::Team>> MakeTeam() {
    const JobConfig& config = job_.config;
    MT_ASSIGN_OR_RETURN(rpc::Security security, rpc::SecurityFromEnvironment(ProcessEnvironment()));
    sealed_ = security.tls();
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
      if (!joined_) MT_RETURN_IF_ERROR(team_->Join(saver_->last_saved(), stop).status());
      joined_ = false;
      const Status agreed = engine_->Agree({job_.train.get(), job_.test.get()}, stop);
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

  // Strategy, steps and initial weights.
  Status Prepare() {
    const manifest::Program& program = job_.manifest.program;
    // The others wait for its plan hashes.
    const membership::Team::Busy busy(team_.get(), "planning");
    MT_RETURN_IF_ERROR(Plan(program).From(Origin::kManifest));
    Expect(*engine_, *job_.train);
    UseOwnPart(*engine_, *job_.train);
    if (job_.test) {
      Expect(*engine_, *job_.test);
      UseOwnPart(*engine_, *job_.test);
    }
    MT_ASSIGN_OR_RETURN(initial_weights_,
                        InitialWeightsOf(program, declared_->recipe().model->parameters()));
    return OkStatus();
  }

  Status Plan(const manifest::Program& program) {
    MT_ASSIGN_OR_RETURN(declared_, recipe::Declared::Create(program));
    MT_RETURN_IF_ERROR(CheckBatches(*declared_, *job_.train, job_.test.get()));
    MT_ASSIGN_OR_RETURN(strategy_, MakeMeshStrategy(job_.config, job_.manifest, *declared_, team_));
    engine_ = MakeMeshEngine(*strategy_, {.declare_only = true});
    const std::vector<mesh::TensorType> full = job_.train->BatchTypes(job_.train->batch_size());
    engine_->Compile(declared_->recipe(), TraceOf(*declared_));
    MT_RETURN_IF_ERROR(engine_->Prepare(full));
    MT_RETURN_IF_ERROR(engine_->Plan("", job_.train->batch_sizes(),
                                     job_.test ? job_.test->batch_sizes() : std::set<int64_t>()));
    program_hash_ = fmt::format("{:016x}", program::HashProgram(engine_->programs()->train_step));
    if (!program.generate) return OkStatus();
    MT_ASSIGN_OR_RETURN(const recipe::TracedPrediction next,
                        declared_->TraceNext(OneText(full[0])));
    MT_ASSIGN_OR_RETURN(write_, PlanText(program, next, *engine_));
    return OkStatus();
  }

  // Whether the job is at its end behind this run, the chief's last files aside.
  static bool Ends(const train::FitResult& result, bool leaves) {
    return result.end == train::FitEnd::kFinished ||
           (result.end == train::FitEnd::kStopped && !leaves);
  }

  // The chief: all have written their part of what was saved last, and it is complete. Others are
  // done only when the chief is, which leaves the model then: one that is started again meanwhile
  // needs all of them. When somebody is lost before that, kUnavailable: what is not there is
  // computed again. A process that was asked to stop has written its part, and leaves.
  Status EndTogether(const train::FitResult& result, const std::stop_token& stop) {
    const Status saved = saver_->files().Wait();
    if (!team_ || membership::Team::IsLoss(saved)) return saved;
    const bool leaves = stop.stop_requested();
    auto said = team_->Agree("end", saving::TellFailure(saved), kLongestWait, {});
    if (said.ok() && saved.ok()) {
      const Status told = saving::ToldFailure(team_->name(0), (*said)[0]);
      if (!told.ok() || leaves || chief() || !Ends(result, leaves)) return told;
      said = team_->Agree("done", "", kLongestWait, stop);
    }
    // What is complete stays so, whoever is lost afterwards.
    if (said.ok() || !saved.ok() || chief() || stop.stop_requested()) return saved;
    const Duration end = SystemClock().Monotonic() + kChiefTakes;
    while (!saver_->files().IsFinal(result.position.step)) {
      if (SystemClock().Monotonic() >= end) return said.status();
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
    return OkStatus();
  }

  const JobParts& job_;
  // In the order in which they lean on each other.
  std::shared_ptr<membership::Team> team_;  // null: one process
  bool sealed_ = false;                     // what goes between its processes
  bool joined_ = false;                     // an incarnation whose plans are not compared yet
  std::optional<membership::Team::Busy> leaving_;  // the chief, from End to Close of a job's end
  std::optional<recipe::Declared> declared_;
  std::unique_ptr<strategy::MeshStrategy> strategy_;
  std::unique_ptr<Engine> engine_;
  WriteText write_;  // null: the manifest asks for no text
  bool lost_writing_ = false;
  std::string program_hash_;
  std::vector<mesh::Tensor> initial_weights_;
  std::unique_ptr<MeshSaver> saver_;
};

}  // namespace

std::unique_ptr<JobStages> MakeMeshJob(const JobParts& job) {
  return std::make_unique<MeshJob>(job);
}

}  // namespace meshtrain::trainer
