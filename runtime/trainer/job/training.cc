#include "runtime/trainer/job/training.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>

#include "runtime/base/file.h"
#include "runtime/base/log.h"
#include "runtime/base/memory.h"
#include "runtime/checkpoint/restore.h"
#include "runtime/checkpoint/safetensors.h"
#include "runtime/cluster/exit_code.h"
#include "runtime/recipe/loop.h"
#include "runtime/recipe/summary.h"
#include "runtime/saving/final.h"
#include "runtime/strategy/dataset.h"
#include "runtime/trainer/job/choices.h"
#include "runtime/trainer/job/say.h"

namespace meshtrain::trainer {
namespace {

// In the metadata of a model: the run that left it was stopped, and had not ended.
constexpr std::string_view kUnfinishedKey = "unfinished";

// What the first steps, the first validation and the first save took for once, tracing and planning
// before them too, goes back to the system.
class ReturnsMemory final : public train::Callback {
 public:
  Status OnStepEnd(const train::StepInfo&) override {
    if (epochs_ < 2 && ++steps_ == 3) ReturnFreedMemory();
    return OkStatus();
  }
  Status OnEpochEnd(const train::EpochInfo&, const train::Position&) override {
    ++epochs_;
    steps_ = 0;
    return OkStatus();
  }

 private:
  int steps_ = 0, epochs_ = 0;
};

class Training {
 public:
  Training(const JobConfig& config, manifest::Manifest manifest, MakeStages make)
      : job_{.config = config, .manifest = std::move(manifest)}, stages_(make(job_)) {
    stages_->set_interrupted(
        [this](const std::string& rank, uint64_t incarnation, const Status& why) {
          if (reporter_) {
            reporter_->EndLine();
            reporter_->Stopped(rank, incarnation);
          }
          LogWarning("training is interrupted", {{"error", why.message()}});
        });
  }

  Status Run(std::stop_token stop) {
    const Status end = RunJob(stop);
    if (!end.ok() && reporter_) {
      reporter_->Failed(end);
      if (end.origin() != Origin::kStop) {
        TellTermination(job_.config, reporter_->TerminationMessage(end.message()));
      }
    }
    stages_->Close(end);
    return end;
  }

 private:
  Status RunJob(std::stop_token stop) {
    MT_RETURN_IF_ERROR(stages_->Start(stop));
    MT_RETURN_IF_ERROR(OpenData());
    MT_RETURN_IF_ERROR(stages_->Open(stop));
    for (;;) {
      MT_ASSIGN_OR_RETURN(const std::optional<saving::Resumed> resumed, stages_->Begin(stop));
      const train::Position start = resumed ? resumed->position : train::Position{};
      resumed_from_ = resumed ? resumed->path : "";
      MT_RETURN_IF_ERROR(CheckPlace(start).From(Origin::kManifest));
      if (resumed) TellResumed(start);
      MT_RETURN_IF_ERROR(Report(start));
      const Result<train::FitResult> result = Fit(start, stop);
      AskForText(result, stop);
      const JobStages::RoundEnd ending = stages_->End(result, stop);
      if (!ending.again) return Finish(result, ending, stop);
    }
  }

  Status OpenData() {
    const manifest::Program& program = job_.manifest.program;
    data_.spec = recipe::TrainPipeline(program);
    MT_ASSIGN_OR_RETURN(job_.train, data::Pipeline::Create(data_.spec));
    if (program.data.test) {
      MT_ASSIGN_OR_RETURN(job_.test, data::Pipeline::Create(recipe::TestPipeline(program)));
      MT_RETURN_IF_ERROR(data::CheckSameClasses(*job_.train, *job_.test));
    }
    job_.epochs = program.train.epochs;
    job_.steps_per_epoch = program.train.steps_per_epoch > 0 ? program.train.steps_per_epoch
                                                             : job_.train->steps_per_epoch();
    return OkStatus();
  }

  // A checkpoint may stand behind more batches than an epoch has now.
  Status CheckPlace(const train::Position& start) const {
    const int64_t steps = job_.steps_per_epoch;  // below 1: not known
    if (start.epoch >= job_.epochs || steps < 1 || start.batch <= steps) return OkStatus();
    return InvalidArgument(fmt::format(
        "{}: expected at least {}, as many batches of epoch {} as {} has behind it, got: {}; {}",
        job_.manifest.program.Where("train.steps_per_epoch"), start.batch, start.epoch + 1,
        resumed_from_, job_.steps_per_epoch,
        CheckpointFolderOf(job_.config, job_.manifest).advice()));
  }

  void TellResumed(const train::Position& start) const {
    Say(fmt::format("resuming from {} at step {}", resumed_from_, start.step));
    if (stages_->chief() && saving::IsEnd(start, job_.epochs, job_.steps_per_epoch)) {
      TellNothingLeft(resumed_from_, start, job_.epochs);
    }
  }

  // Files, endpoints and the first lines; or, after a loss, the same turned back to `start`.
  Status Report(const train::Position& start) {
    if (reporter_) return reporter_->RollBack(start);
    const JobConfig& config = job_.config;
    const JobStages::Description what = stages_->Describe();
    for (const nn::Parameter& p : what.parameters) weights_.insert(p.name());
    Reporter::Run job{.name = JobName(job_.manifest),
                      .mesh = what.mesh,
                      .epochs = job_.epochs,
                      .steps_per_epoch = job_.steps_per_epoch,
                      .plan = what.plan,
                      .view = what.view,
                      .facts = recipe::Summary(job_.manifest.program, what.parameters),
                      .rank_step_seconds = what.rank_step_seconds,
                      .collective_bytes = what.collective_bytes,
                      .collective_time = what.collective_time,
                      .failed_saves = [this] { return stages_->saver().failures(); },
                      .resumed_from = resumed_from_,
                      .chief = stages_->chief()};
    if (config.job.tf_config) job.task = config.job.tf_config->task;
    MT_ASSIGN_OR_RETURN(
        reporter_, Reporter::Create(
                       config, std::move(job), [this] { return stages_->saver().last(); }, start));
    metrics_ = stages_->MakeMetrics(reporter_->metrics());
    if (stages_->chief()) {
      MT_RETURN_IF_ERROR(
          WriteFileAtomically(config.output + "/plan.txt", what.plan_text).From(Origin::kOutput));
    }
    Say(fmt::format("training {} {}; output in {}", job_.manifest.name, what.beginning,
                    config.output));
    if (!stages_->chief()) return OkStatus();
    TellSaving(stages_->folder(), recipe::SaveTimesOf(job_.manifest),
               job_.manifest.checkpoint.keep);
    if (reporter_->port() > 0) {
      const bool six = config.host.find(':') != std::string::npos;
      Say(fmt::format("live page: http://{}:{}/", six ? "[" + config.host + "]" : config.host,
                      reporter_->port()));
    }
    return OkStatus();
  }

  Result<train::FitResult> Fit(const train::Position& start, std::stop_token stop) {
    const manifest::Train& train = job_.manifest.program.train;
    early_ = recipe::EarlyStoppingOf(job_.manifest.program);
    FitWork work{.own = &data_,
                 .here = job_.train.get(),
                 .options = recipe::LoopOptionsOf(train, start),
                 .callbacks = {reporter_.get(), &returns_memory_},
                 .saves = Saves{.times = recipe::SaveTimesOf(job_.manifest),
                                .save =
                                    [this](const train::Position& position) {
                                      return stages_->saver().Save(position, Best());
                                    },
                                .last_saved = resumed_from_.empty() ? -1 : start.step}};
    if (metrics_) work.callbacks.insert(work.callbacks.begin(), metrics_.get());
    if (early_) work.callbacks.push_back(&*early_);
    if (job_.test && work.options.validate_every > 0) {
      if (!validation_) validation_.emplace(*job_.test);
      work.options.validation = &*validation_;
    }
    reporter_->Ready();
    auto result = stages_->Fit(std::move(work), stop);
    reporter_->EndLine();
    return result;
  }

  // What the manifest's `generate` asks for, of a run that has ended.
  void AskForText(const Result<train::FitResult>& result, const std::stop_token& stop) {
    written_ = std::optional<std::string>();
    const bool ended =
        result.ok() && (result->end == train::FitEnd::kFinished ||
                        (result->end == train::FitEnd::kStopped && !stop.stop_requested()));
    if (ended) written_ = stages_->Write(stop);
  }
  // Its error does not undo the training, whose model is left first; nor is the job done with it,
  // so that the next run has the text alone left to write.
  Status LeaveText() {
    if (!written_.ok()) return written_.status();
    if (!*written_ || !stages_->chief()) return OkStatus();
    const std::string path = TextPath();
    MT_RETURN_IF_ERROR(WriteFileAtomically(path, **written_).From(Origin::kOutput));
    TellText(**written_, path);
    return OkStatus();
  }

  std::string TextPath() const { return job_.config.output + "/generated.txt"; }
  // That of a run before goes with the model that wrote it.
  Status RemoveText() const {
    std::error_code error;
    const std::string path = TextPath();
    if (!std::filesystem::is_regular_file(std::filesystem::symlink_status(path, error))) {
      return OkStatus();
    }
    std::filesystem::remove(path, error);
    return error ? ErrnoStatus(error.value(), "cannot remove", path) : OkStatus();
  }

  Status Finish(const Result<train::FitResult>& result, const JobStages::RoundEnd& ending,
                const std::stop_token& stop) {
    const std::optional<int64_t> best = stages_->chief() ? KeptBest() : std::nullopt;
    if (result.ok() && !stop.stop_requested() && stages_->chief()) {
      TellEarlyEnd(*result, early(), best, *reporter_);
    }
    if (written_.ok() && *written_) reporter_->AddFact("text that the model writes", **written_);
    const bool stopped = WasStopped(result, stop);
    const Status reported = reporter_->Finish(EndOf(result, ending, stopped));
    TellTermination(job_.config, reporter_->TerminationMessage());
    MT_RETURN_IF_ERROR(ending.training);
    MT_RETURN_IF_ERROR(ending.saved);
    MT_RETURN_IF_ERROR(reported);
    if (result->end == train::FitEnd::kNotFinite) {
      const bool data = result->whose == Origin::kInput;
      return (data ? InvalidArgument(result->message) : Internal(result->message))
          .From(result->whose);
    }
    if (stages_->chief()) {
      const bool broken_off = stopped && result->end == train::FitEnd::kStopped;
      MT_RETURN_IF_ERROR(LeaveModel(best, broken_off).From(Origin::kOutput));
    }
    if (stopped) {
      TellStopped(result->position.step, !LastCheckpoint().empty());
      return cluster::Stopped();
    }
    MT_RETURN_IF_ERROR(LeaveText());
    const std::string last = LastCheckpoint();
    if (!stages_->chief() || last.empty()) return OkStatus();
    return saving::MarkFinal(last, result->end == train::FitEnd::kStopped).From(Origin::kOutput);
  }

  // Whether the job was asked to stop before it was done, its text too.
  bool WasStopped(const Result<train::FitResult>& result, const std::stop_token& stop) const {
    if (written_.status().origin() == Origin::kStop) return true;
    return result.ok() && result->end == train::FitEnd::kStopped && stop.stop_requested();
  }

  static Reporter::End EndOf(const Result<train::FitResult>& result,
                             const JobStages::RoundEnd& ending, bool stopped) {
    if (!ending.training.ok()) return Reporter::EndWith(ending.training);
    if (!ending.saved.ok()) return Reporter::EndWith(ending.saved);
    if (result->end == train::FitEnd::kNotFinite) {
      return {report::Phase::kFailed, result->message};
    }
    if (stopped) {
      return {report::Phase::kStopped,
              fmt::format("asked to stop at step {}; run again to go on", result->position.step)};
    }
    if (result->end == train::FitEnd::kStopped) {
      return {report::Phase::kEnded, "stopped early: " + result->message};
    }
    return {};
  }

  // The folder of the newest one; "": there is none.
  std::string LastCheckpoint() const {
    const auto save = stages_->saver().last();
    return save ? save->path : resumed_from_;
  }
  // The weights of step `best`, else of the last checkpoint, in one file. Training that is
  // `broken_off` leaves a model whose own had ended.
  Status LeaveModel(std::optional<int64_t> best, bool broken_off) {
    const std::string last = LastCheckpoint();
    const std::string path = ModelPath(job_.config);
    const bool leaves = !last.empty() && !(broken_off && HoldsEndedModel(path));
    if (leaves) {
      const std::string from = best ? checkpoint::CheckpointFolder(stages_->folder(), *best) : last;
      MT_ASSIGN_OR_RETURN(const auto checkpoint, checkpoint::Checkpoint::Open(from));
      std::map<std::string, std::string> notes;
      if (broken_off) notes.emplace(kUnfinishedKey, "true");
      MT_RETURN_IF_ERROR(checkpoint->Export(
          path, [this](std::string_view name) { return weights_.contains(name); }, notes));
      MT_RETURN_IF_ERROR(RemoveText());
    }
    TellResults(job_.config, *reporter_, last, leaves);
    return OkStatus();
  }
  static bool HoldsEndedModel(const std::string& path) {
    const auto model = checkpoint::SafetensorsReader::Open(path);
    if (!model.ok()) return model.status().code() != StatusCode::kNotFound;
    return !(*model)->header().metadata.contains(std::string(kUnfinishedKey));
  }

  const train::EarlyStopping* early() const { return early_ ? &*early_ : nullptr; }
  std::optional<int64_t> Best() const {
    return recipe::BestStep(job_.manifest.program.train, early());
  }
  // Best() while its checkpoint is there. A run that did not ask for its best weights may have
  // removed it before this one, which goes on from there, asks for them.
  std::optional<int64_t> KeptBest() const {
    const std::optional<int64_t> best = Best();
    if (!best) return best;
    const std::string folder = checkpoint::CheckpointFolder(stages_->folder(), *best);
    if (checkpoint::Checkpoint::Open(folder).status().code() != StatusCode::kNotFound) return best;
    LogWarning("the checkpoint of the best epoch is gone: the model is that of the last one",
               {{"best", folder}});
    return std::nullopt;
  }

  JobParts job_;
  NamedData data_{.name = "train", .spec = {}};
  std::unique_ptr<JobStages> stages_;
  std::string resumed_from_;  // the checkpoint's folder; "": none
  std::set<std::string, std::less<>> weights_;
  ReturnsMemory returns_memory_;
  std::optional<train::EarlyStopping> early_;
  std::optional<strategy::PipelineBatches> validation_;  // of all rounds
  Result<std::optional<std::string>> written_ = std::optional<std::string>();
  std::unique_ptr<Reporter> reporter_;        // it asks the stages
  std::unique_ptr<train::Callback> metrics_;  // the stages' own, in the reporter's; null: none
};

}  // namespace

Status RunTraining(const JobConfig& config, manifest::Manifest manifest, MakeStages make,
                   std::stop_token stop) {
  return Training(config, std::move(manifest), make).Run(std::move(stop));
}

}  // namespace meshtrain::trainer
