#include "worker/evaluator.h"

#include <fmt/format.h>

#include <limits>
#include <memory>
#include <optional>
#include <set>
#include <string>

#include "runtime/base/file.h"
#include "runtime/cluster/exit_code.h"
#include "runtime/data/pipeline.h"
#include "runtime/saving/final.h"
#include "runtime/saving/position.h"
#include "runtime/telemetry/event_file.h"
#include "runtime/telemetry/metrics_log.h"
#include "runtime/telemetry/training_metrics.h"
#include "runtime/trainer/evaluate_loop.h"
#include "runtime/trainer/job/choices.h"
#include "runtime/trainer/job/say.h"
#include "worker/presence.h"
#include "worker/trained.h"

namespace meshtrain::worker {

namespace {

class Evaluator {
 public:
  Evaluator(const trainer::JobConfig& config, manifest::Manifest manifest)
      : config_(config), model_(config, std::move(manifest)) {}

  Status Run(std::stop_token stop) {
    const manifest::Manifest& manifest = model_.manifest();
    const manifest::Program& program = manifest.program;
    const std::string file = trainer::SourceName(config_);
    if (!program.data.test) {
      return InvalidArgument(
                 file + ": program.data.test: the evaluator expects data to evaluate on, got: none")
          .From(Origin::kManifest);
    }
    if (manifest.checkpoint.path.empty()) {
      return InvalidArgument(file +
                             ": spec.checkpoint.path: the evaluator expects the folder that the "
                             "job saves to, got: none")
          .From(Origin::kManifest);
    }
    MT_ASSIGN_OR_RETURN(data_, data::Pipeline::Create(recipe::TestPipeline(program)));
    MT_RETURN_IF_ERROR(model_.PlanEvaluation(*data_));

    const std::string log_path = config_.output + "/metrics.jsonl";
    MT_RETURN_IF_ERROR(OpenFiles(log_path).From(Origin::kOutput));
    const int64_t before = log_->resumed_at().value_or(-1);
    MT_ASSIGN_OR_RETURN(presence_, Presence::Create(config_, trainer::JobName(manifest)));
    figures_.emplace(presence_->metrics(), "test");
    count_ = presence_->metrics().AddCounter("meshtrain_evaluations_total",
                                             "Checkpoints that were evaluated.");
    trainer::Say(fmt::format("evaluating checkpoints in {}; output in {}", manifest.checkpoint.path,
                             config_.output));
    presence_->Ready();

    const int64_t epochs = program.train.epochs;
    const bool may_end_early = program.train.early_stopping.has_value();
    trainer::EvaluateOptions options{.after_step = before, .poll = std::chrono::milliseconds(500)};
    // A job that goes on for more epochs than it had first has marked what is its last checkpoint
    // no more.
    options.is_final = [=](const checkpoint::Index& index) {
      return saving::IsFinished(index, epochs, may_end_early);
    };
    const auto count = trainer::EvaluateLoop(
        manifest.checkpoint.path,
        [&](const checkpoint::Checkpoint& c) { return Evaluate(c, stop); }, options, stop);
    const Status events = events_->Close().From(Origin::kOutput);
    const Status log = log_->Close().From(Origin::kOutput);
    trainer::TellTermination(config_, telemetry::TerminationMessage(presence_->board().Get()));
    if (stop.stop_requested()) return cluster::Stopped();
    MT_RETURN_IF_ERROR(count.status());
    MT_RETURN_IF_ERROR(events);
    MT_RETURN_IF_ERROR(log);
    trainer::Say(fmt::format("evaluated {} checkpoints; metrics in {}", *count, log_path));
    return OkStatus();
  }

 private:
  Status OpenFiles(const std::string& log_path) {
    MT_RETURN_IF_ERROR(MakeDirectories(config_.output));
    MT_ASSIGN_OR_RETURN(log_, telemetry::MetricsLog::Open(
                                  log_path, {{.step = std::numeric_limits<int64_t>::max()}}));
    MT_ASSIGN_OR_RETURN(events_,
                        telemetry::EventFileWriter::Create(config_.output + "/events/evaluator"));
    return OkStatus();
  }

  Status Evaluate(const checkpoint::Checkpoint& checkpoint, std::stop_token stop) {
    const Duration begin = SystemClock().Monotonic();
    // All are read before one is written: a checkpoint that is damaged leaves nothing behind.
    std::vector<mesh::Tensor> values;
    for (const nn::Parameter& p : model_.parameters()) {
      MT_ASSIGN_OR_RETURN(mesh::Tensor value, checkpoint.Load(p.name()));
      if (value.type() != p.type()) {
        return InvalidArgument(checkpoint.path() + ": `" + p.name() + "`: expected " +
                               p.type().ToString() + ", got: " + value.type().ToString());
      }
      values.push_back(std::move(value));
    }
    MT_RETURN_IF_ERROR(model_.SetWeights(values));
    MT_ASSIGN_OR_RETURN(const train::Scalars scalars, model_.Evaluate(*data_, stop));
    const int64_t step = checkpoint.index().step;
    MT_ASSIGN_OR_RETURN(const train::Position position,
                        saving::PositionOf(checkpoint.index(), checkpoint.path()));
    const std::chrono::duration<double> took = SystemClock().Monotonic() - begin;

    telemetry::Progress progress{.step = step, .epoch = static_cast<double>(position.epoch)};
    telemetry::StepRecord record{.step = step,
                                 .epoch = position.epoch + (position.batch > 0 ? 1 : 0),
                                 .seconds = took.count()};
    std::vector<telemetry::NamedValue> others;
    std::string line = fmt::format("step {}", step);
    for (const auto& [name, value] : scalars) {
      line += fmt::format("  {} {:.4f}", name, value);
      if (name == train::kLossName) {
        record.loss = value;
        progress.loss = value;
        continue;
      }
      others.emplace_back(name, value);
      progress.metrics[name] = value;
    }
    record.metrics = others;
    figures_->Set(scalars);
    progress.checkpoint = telemetry::Progress::Checkpoint{step, checkpoint.path()};
    MT_RETURN_IF_ERROR(log_->Add(record).From(Origin::kOutput));
    MT_RETURN_IF_ERROR(events_->Add(step, scalars).From(Origin::kOutput));
    presence_->board().Set(std::move(progress));
    count_.Add();
    trainer::Say(line);
    return OkStatus();
  }

  const trainer::JobConfig& config_;
  TrainedModel model_;
  std::unique_ptr<data::Pipeline> data_;
  std::unique_ptr<telemetry::MetricsLog> log_;
  std::unique_ptr<telemetry::EventFileWriter> events_;
  telemetry::Counter count_;
  std::optional<telemetry::FigureGauges> figures_;  // borrows the presence's metrics
  std::unique_ptr<Presence> presence_;
};

}  // namespace

Status RunEvaluator(const trainer::JobConfig& config, manifest::Manifest manifest,
                    std::stop_token stop) {
  return Evaluator(config, std::move(manifest)).Run(stop);
}

}  // namespace meshtrain::worker
