// A job with parameter servers: its variables lie on the servers, its steps run on the workers, and
// this process, their chief, schedules them, validates and has the servers save.
#include <fmt/format.h>

#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>

#include "runtime/base/file.h"
#include "runtime/base/log.h"
#include "runtime/cluster/exit_code.h"
#include "runtime/parameter/chief/coordinator.h"
#include "runtime/saving/final.h"
#include "runtime/saving/newest.h"
#include "runtime/saving/position.h"
#include "runtime/saving/resume.h"
#include "runtime/saving/shards.h"
#include "runtime/trainer/job/choices.h"
#include "runtime/trainer/job/saver.h"
#include "runtime/trainer/job/server_metrics.h"
#include "runtime/trainer/job/stages.h"
#include "runtime/trainer/job/stop_times.h"
#include "runtime/trainer/job/strategy.h"
#include "runtime/trainer/job/worker_server.h"

namespace meshtrain::trainer {

namespace {

using parameter::Coordinator;

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

// The same for the page, with the processes.
report::PlanView PlacesOf(const parameter::Planner& planner, int workers, int servers) {
  report::PlanView out;
  const auto group = [&](const char* kind, const char* role, int count) {
    auto& names = out.groups.emplace_back(kind, std::vector<std::string>()).second;
    for (int i = 0; i < count; ++i) names.push_back(fmt::format("{}-{}", role, i));
  };
  group(workers == 1 ? "worker" : "workers", "worker", workers);
  group(servers == 1 ? "parameter server" : "parameter servers", "ps", servers);
  for (const parameter::Shard& shard : planner.shards()) {
    std::string where = fmt::format("ps-{}", shard.server);
    if (shard.parts > 1) {
      where += fmt::format(", part {} of {}, from row {}", shard.part + 1, shard.parts, shard.row);
    }
    out.variables.push_back({.name = shard.name,
                             .type = shard.type.ToString(),
                             .layout = std::move(where),
                             .split = {},
                             .shard = shard.type.ToString(),
                             .bytes = shard.type.num_bytes()});
  }
  return out;
}

class ServerJob final : public JobStages, Saver {
 public:
  explicit ServerJob(const JobParts& job) : job_(job) {}

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
    MT_ASSIGN_OR_RETURN(initial_weights_, InitialWeightsOf(job_.manifest.program, parameters_));
    return OkStatus();
  }

  // A term of the servers, from the newest whole checkpoint or from the beginning.
  Result<std::optional<saving::Resumed>> Begin(std::stop_token stop) override {
    auto resumed = Resume(stop);
    if (!resumed.ok()) return Leave(resumed.status(), stop);
    return resumed;
  }

  Description Describe() const override {
    const std::string places = Count(coordinator().num_workers(), "worker") + ", " +
                               Count(coordinator().num_servers(), "parameter server");
    return {.mesh = places,
            .beginning = "with " + places,
            .plan = {.mesh = places, .hash = program_hash_},
            .view = PlacesOf(coordinator().planner(), coordinator().num_workers(),
                             coordinator().num_servers()),
            .plan_text = PlacementText(coordinator().planner(), servers_),
            .parameters = parameters_,
            .rank_step_seconds = {},
            .collective_bytes = {},
            .collective_time = {}};
  }
  std::string folder() const override { return folder_; }
  Saver& saver() override { return *this; }
  std::unique_ptr<train::Callback> MakeMetrics(telemetry::Metrics& metrics) override {
    return std::make_unique<ServerMetrics>(metrics, coordinator());
  }

  Result<train::FitResult> Fit(FitWork work, std::stop_token stop) override {
    return engine_->Fit(std::move(work), std::move(stop));
  }

  Result<std::optional<std::string>> Write(std::stop_token stop) override {
    if (!write_) return std::optional<std::string>();
    MT_ASSIGN_OR_RETURN(std::string text, write_(std::move(stop)));
    return std::optional(std::move(text));
  }

  RoundEnd End(const Result<train::FitResult>& result, std::stop_token stop) override {
    // A server that Fit has waited for in vain is not waited for again.
    std::stop_source given_up;
    const bool lost = result.status().origin() == Origin::kPeers && coordinator().misses_server();
    if (lost) given_up.request_stop();
    const Status saved = lost ? coordinator().WaitForSave(given_up.get_token()) : Wait();
    RoundEnd ending{.training = result.status(), .saved = saved};
    if (!result.ok()) ending.training = Leave(result.status(), stop);
    if (saved.code() == StatusCode::kCancelled || saved.origin() == Origin::kPeers) {
      ending.saved = Leave(saved, stop);
    }
    return ending;
  }

  // Servers and workers may have been asked to stop as well, and serve for as long as we need them.
  void Close(const Status& end) override {
    if (strategy_ == nullptr) return;
    if (end.ok()) {
      coordinator().End();
    } else {
      coordinator().Leave();
    }
  }

 private:
  // --- Saver
  Result<std::optional<saving::Resumed>> Resume(std::stop_token stop) override {
    own_folder_ = CheckpointFolderOf(job_.config, job_.manifest).own;
    MT_ASSIGN_OR_RETURN(
        const saving::ResumeChoice choice,
        saving::ChooseCheckpoints(
            {.folder = folder_,
             .own = own_folder_,
             .resume = job_.manifest.checkpoint.resume,
             .goes_on = [this](const checkpoint::Index& index) { return GoesOnFrom(index); }})
            .From(Origin::kOutput));
    run_ = choice.run;
    std::optional<saving::Resumed> resumed;
    const auto load = [&](const std::string& path) -> Status {
      MT_ASSIGN_OR_RETURN(resumed, ResumeFrom(path, stop));
      return OkStatus();
    };
    MT_ASSIGN_OR_RETURN(const auto taken, saving::TakeNewest(choice.candidates, load));
    if (!taken) {
      MT_RETURN_IF_ERROR(BeginTerm("", stop));
      MT_RETURN_IF_ERROR(engine_->BeginAnew(initial_weights_));
      resumed.reset();
      run_id_ = saving::DrawRunId();
    }
    coordinator().set_replaced_checkpoints(choice.replaced);
    return resumed;
  }
  // From the last checkpoint of a run that is done: as MeshSaver.
  bool GoesOnFrom(const checkpoint::Index& index) const {
    if (saving::IsFinished(index, job_.epochs,
                           job_.manifest.program.train.early_stopping.has_value())) {
      return false;
    }
    const auto position = saving::PositionOf(index, folder_);
    if (!position.ok()) return true;  // who loads it says what is wrong with it
    const bool whole = position->batch == 0 || position->batch == job_.steps_per_epoch;
    return whole && saving::CheckFits(index, folder_, states_).ok();
  }
  Status Save(const train::Position& position, std::optional<int64_t> pinned) override {
    coordinator().set_pinned_checkpoint(pinned);
    std::map<std::string, std::string> metadata = saving::PositionToMetadata(position);
    metadata.merge(saving::RunMetadata(own_folder_ ? std::optional(run_) : std::nullopt, run_id_));
    return coordinator().Save(position.step, std::move(metadata), program_hash_, give_up_.token());
  }
  Status Wait() override { return coordinator().WaitForSave(give_up_.token()); }
  std::optional<checkpoint::SaveReport> last() const override { return coordinator().last_save(); }
  int64_t failures() const override { return coordinator().failed_saves(); }

  Coordinator& coordinator() const { return strategy_->coordinator(); }

  // The step's hash, the batches' types.
  Status Trace() {
    MT_ASSIGN_OR_RETURN(const recipe::Declared declared,
                        recipe::Declared::Create(job_.manifest.program));
    MT_RETURN_IF_ERROR(CheckBatches(declared, *job_.train, job_.test.get()));
    const int64_t full = job_.train->batch_size();
    train_sizes_ = job_.train->batch_sizes();
    if (job_.test) test_sizes_ = job_.test->batch_sizes();
    MT_ASSIGN_OR_RETURN(const recipe::Traced traced, declared.Trace(job_.train->BatchTypes(full)));
    program_hash_ = fmt::format("{:016x}", program::HashProgram(traced.programs.train_step));
    if (job_.manifest.program.generate) {
      MT_RETURN_IF_ERROR(declared.TraceNext(OneText(job_.train->BatchTypes(1)[0])).status());
    }
    parameters_ = traced.programs.parameters;
    const std::vector<nn::Parameter> states = traced.programs.States();
    states_.assign(states.begin(), states.end());
    for (data::Pipeline* data : {job_.train.get(), job_.test.get()}) {
      if (data == nullptr) continue;
      data->ExpectClasses(traced.programs.classes);
      data->ExpectIds(traced.programs.rows);
    }
    return OkStatus();
  }

  Result<saving::Resumed> ResumeFrom(const std::string& path, std::stop_token stop) {
    MT_ASSIGN_OR_RETURN(const auto checkpoint,
                        checkpoint::Checkpoint::Open(path).From(Origin::kOutput));
    MT_ASSIGN_OR_RETURN(train::Position position,
                        saving::PositionOf(checkpoint->index(), path).From(Origin::kOutput));
    MT_RETURN_IF_ERROR(BeginTerm(path, stop));
    run_id_ = saving::RunIdOf(checkpoint->index());
    return saving::Resumed{std::move(position), path};
  }

  // On the servers, with the values of the checkpoint at `restore`; "": the first ones.
  Status BeginTerm(const std::string& restore, std::stop_token stop) {
    write_ = nullptr;
    engine_.reset();
    strategy_.reset();
    MT_ASSIGN_OR_RETURN(
        servers_, parameter::AddressesOf(job_.config.job.tf_config->cluster, cluster::Role::kPs));
    MT_ASSIGN_OR_RETURN(strategy_,
                        MakeServerStrategy(job_.config, job_.manifest, folder_, restore, stop));
    engine_ = MakeServerEngine(*strategy_, {.end_steps = end_steps_.token()});
    // A trace of its own: a term before this one has used up the other's.
    MT_ASSIGN_OR_RETURN(declared_, recipe::Declared::Create(job_.manifest.program));
    engine_->Compile(declared_->recipe());
    MT_RETURN_IF_ERROR(engine_->Prepare(job_.train->BatchTypes(job_.train->batch_size())));
    MT_RETURN_IF_ERROR(engine_->Plan("", train_sizes_, test_sizes_));
    if (!job_.manifest.program.generate) return OkStatus();
    MT_ASSIGN_OR_RETURN(const recipe::TracedPrediction next,
                        declared_->TraceNext(OneText(job_.train->BatchTypes(1)[0])));
    MT_ASSIGN_OR_RETURN(write_, PlanText(job_.manifest.program, next, *engine_));
    return OkStatus();
  }

  // Data that is wrong is so at the next attempt too, whoever asked us to stop meanwhile.
  static Status Leave(const Status& why, const std::stop_token& stop) {
    if (!stop.stop_requested() || why.origin() == Origin::kInput) return why;
    LogWarning("stopped without saving; the last checkpoint is where it goes on",
               {{"error", why.message()}});
    return cluster::Stopped();
  }

  const JobParts& job_;
  LateStop end_steps_;  // when steps that are under way have no time left
  LateStop give_up_;    // when a checkpoint has none
  std::string folder_;
  bool own_folder_ = false;  // CheckpointFolder::own
  int64_t run_ = 0;          // saving::kRunKey, in it
  std::string run_id_;       // saving::kRunIdKey; "": of a run that has none
  std::unique_ptr<parameter::WorkerServer> own_worker_;  // where this process is a worker too
  std::set<int64_t> train_sizes_, test_sizes_;           // of batches
  std::string program_hash_;
  std::vector<nn::Parameter> parameters_;
  std::vector<program::Variable> states_;
  std::vector<mesh::Tensor> initial_weights_;
  std::vector<std::string> servers_;  // addresses
  // Of the term of the servers, in the order in which they lean on each other.
  std::unique_ptr<strategy::ServerStrategy> strategy_;
  std::optional<recipe::Declared> declared_;
  std::unique_ptr<Engine> engine_;
  WriteText write_;  // null: the manifest asks for no text
};

}  // namespace

std::unique_ptr<JobStages> MakeServerJob(const JobParts& job) {
  return std::make_unique<ServerJob>(job);
}

}  // namespace meshtrain::trainer
