#include "runtime/trainer/job/training.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "runtime/base/file.h"
#include "runtime/base/log.h"
#include "runtime/checkpoint/restore.h"
#include "runtime/cluster/exit_code.h"
#include "runtime/recipe/summary.h"
#include "runtime/trainer/evaluate_loop.h"
#include "runtime/trainer/job/choices.h"
#include "runtime/trainer/job/say.h"

namespace meshtrain::trainer {
namespace {

class Training {
 public:
  Training(const JobConfig& config, manifest::Manifest manifest, MakeEngine make)
      : job_{.config = config, .manifest = std::move(manifest)}, engine_(make(job_)) {
    engine_->set_interrupted(
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
    engine_->Close(end);
    return end;
  }

 private:
  Status RunJob(std::stop_token stop) {
    MT_RETURN_IF_ERROR(engine_->Start(stop));
    MT_RETURN_IF_ERROR(OpenData());
    MT_RETURN_IF_ERROR(engine_->Open(stop));
    for (;;) {
      MT_ASSIGN_OR_RETURN(const std::optional<saving::Resumed> resumed, engine_->Begin(stop));
      const train::Position start = resumed ? resumed->position : train::Position{};
      resumed_from_ = resumed ? resumed->path : "";
      if (resumed) TellResumed(start);
      MT_RETURN_IF_ERROR(Report(start));
      const Result<train::FitResult> result = Fit(start, stop);
      const JobEngine::Ending ending = engine_->End(result, stop);
      if (!ending.again) return Finish(result, ending, stop);
    }
  }

  Status OpenData() {
    const manifest::Program& program = job_.manifest.program;
    MT_ASSIGN_OR_RETURN(job_.train, data::Pipeline::Create(recipe::TrainPipeline(program)));
    if (program.data.test) {
      MT_ASSIGN_OR_RETURN(job_.test, data::Pipeline::Create(recipe::TestPipeline(program)));
    }
    job_.epochs = program.train.epochs;
    job_.steps_per_epoch = program.train.steps_per_epoch > 0 ? program.train.steps_per_epoch
                                                             : job_.train->steps_per_epoch();
    return OkStatus();
  }

  void TellResumed(const train::Position& start) const {
    Say(fmt::format("resuming from {} at step {}", resumed_from_, start.step));
    if (engine_->chief() && saving::IsEnd(start, job_.epochs, job_.steps_per_epoch)) {
      TellNothingLeft(resumed_from_, job_.epochs);
    }
  }

  // Files, endpoints and the first lines; or, after a loss, the same turned back to `start`.
  Status Report(const train::Position& start) {
    if (reporter_) return reporter_->RollBack(start);
    const JobConfig& config = job_.config;
    const JobEngine::Description what = engine_->Describe();
    for (const nn::Parameter& p : what.parameters) weights_.insert(p.name());
    Reporter::Job job{.name = JobName(job_.manifest),
                      .mesh = what.mesh,
                      .epochs = job_.epochs,
                      .steps_per_epoch = job_.steps_per_epoch,
                      .plan = what.plan,
                      .facts = recipe::Summary(job_.manifest.program, what.parameters),
                      .rank_step_seconds = what.rank_step_seconds,
                      .collective_bytes = what.collective_bytes,
                      .chief = engine_->chief()};
    if (config.job.tf_config) job.task = config.job.tf_config->task;
    MT_ASSIGN_OR_RETURN(
        reporter_, Reporter::Create(
                       config, std::move(job), [this] { return engine_->last_save(); }, start));
    engine_->AddMetrics(reporter_->metrics());
    if (engine_->chief()) {
      MT_RETURN_IF_ERROR(
          WriteFileAtomically(config.output + "/plan.txt", what.plan_text).From(Origin::kOutput));
    }
    Say(fmt::format("training {} {}; output in {}", job_.manifest.name, what.beginning,
                    config.output));
    if (!engine_->chief()) return OkStatus();
    TellSaving(engine_->folder(), SaveTimesOf(job_.manifest), job_.manifest.checkpoint.keep);
    if (reporter_->port() > 0) {
      Say(fmt::format("live page: http://{}:{}/", config.host, reporter_->port()));
    }
    return OkStatus();
  }

  Result<train::FitResult> Fit(const train::Position& start, std::stop_token stop) {
    const manifest::Train& train = job_.manifest.program.train;
    early_ = EarlyStoppingOf(job_.manifest);
    JobEngine::Loop loop{.options = {.epochs = train.epochs,
                                     .steps_per_epoch = train.steps_per_epoch,
                                     .validation_steps = train.validation_steps,
                                     .validate_every = std::max<int64_t>(train.validate_every, 1),
                                     .end_after_bad_steps = train.end_after_bad_steps,
                                     .start = start},
                         .validates = job_.test && train.validate_every > 0,
                         .callbacks = {reporter_.get()},
                         .saves = SaveTimesOf(job_.manifest),
                         .pinned = [this] { return Best(); }};
    if (early_) loop.callbacks.push_back(&*early_);
    reporter_->Ready();
    auto result = engine_->Fit(std::move(loop), stop);
    reporter_->EndLine();
    return result;
  }

  Status Finish(const Result<train::FitResult>& result, const JobEngine::Ending& ending,
                const std::stop_token& stop) {
    const std::optional<int64_t> best = engine_->chief() ? KeptBest() : std::nullopt;
    if (result.ok() && !stop.stop_requested() && engine_->chief()) {
      TellEarlyEnd(*result, early(), best, *reporter_);
    }
    const Status reported = reporter_->Finish();
    TellTermination(job_.config, reporter_->TerminationMessage());
    MT_RETURN_IF_ERROR(ending.training);
    MT_RETURN_IF_ERROR(ending.saved);
    MT_RETURN_IF_ERROR(reported);
    if (result->end == train::FitEnd::kNotFinite) {
      return Internal(result->message).From(Origin::kNumbers);
    }
    const bool stopped = result->end == train::FitEnd::kStopped && stop.stop_requested();
    if (engine_->chief()) {
      MT_RETURN_IF_ERROR(LeaveModel(best, stopped).From(Origin::kOutput));
    }
    if (!stopped) return OkStatus();
    TellStopped(result->position.step);
    return cluster::Stopped();
  }

  // The weights of step `best`, else of the last checkpoint, in one file; the last checkpoint of a
  // job that is done says that it is.
  Status LeaveModel(std::optional<int64_t> best, bool stopped) {
    const auto save = engine_->last_save();
    const std::string last = save ? save->path : resumed_from_;
    if (!last.empty()) {
      const std::string from = best ? checkpoint::CheckpointFolder(engine_->folder(), *best) : last;
      MT_ASSIGN_OR_RETURN(const auto checkpoint, checkpoint::Checkpoint::Open(from));
      MT_RETURN_IF_ERROR(checkpoint->Export(ModelPath(job_.config), [this](std::string_view name) {
        return weights_.contains(name);
      }));
      if (!stopped) MT_RETURN_IF_ERROR(MarkFinal(last));
    }
    TellResults(job_.config, *reporter_, last);
    return OkStatus();
  }

  const train::EarlyStopping* early() const { return early_ ? &*early_ : nullptr; }
  std::optional<int64_t> Best() const { return BestStep(job_.manifest, early()); }
  // Best() while its checkpoint is there. A run that did not ask for its best weights may have
  // removed it before this one, which goes on from there, asks for them.
  std::optional<int64_t> KeptBest() const {
    const std::optional<int64_t> best = Best();
    if (!best) return best;
    const std::string folder = checkpoint::CheckpointFolder(engine_->folder(), *best);
    if (checkpoint::Checkpoint::Open(folder).status().code() != StatusCode::kNotFound) return best;
    LogWarning("the checkpoint of the best epoch is gone: the model is that of the last one",
               {{"best", folder}});
    return std::nullopt;
  }

  TrainingJob job_;
  std::unique_ptr<JobEngine> engine_;
  std::string resumed_from_;  // the checkpoint's folder; "": none
  std::set<std::string, std::less<>> weights_;
  std::optional<train::EarlyStopping> early_;
  std::unique_ptr<Reporter> reporter_;  // last: it asks the engine
};

}  // namespace

Status RunTraining(const JobConfig& config, manifest::Manifest manifest, MakeEngine make,
                   std::stop_token stop) {
  return Training(config, std::move(manifest), make).Run(std::move(stop));
}

}  // namespace meshtrain::trainer
