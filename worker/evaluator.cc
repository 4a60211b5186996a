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
#include "runtime/saving/position.h"
#include "runtime/saving/resume.h"
#include "runtime/strategy/dataset.h"
#include "runtime/telemetry/event_file.h"
#include "runtime/telemetry/metrics_log.h"
#include "runtime/trainer/engine.h"
#include "runtime/trainer/evaluate_loop.h"
#include "runtime/trainer/job/choices.h"
#include "runtime/trainer/job/say.h"
#include "runtime/trainer/job/strategy.h"
#include "worker/presence.h"

namespace meshtrain::worker {

namespace {

class Evaluator {
 public:
  Evaluator(const trainer::JobConfig& config, manifest::Manifest manifest)
      : config_(config), manifest_(std::move(manifest)) {}

  Status Run(std::stop_token stop) {
    manifest::Program& program = manifest_.program;
    const std::string file = trainer::SourceName(config_);
    if (!program.data.test) {
      return InvalidArgument(
                 file + ": program.data.test: the evaluator expects data to evaluate on, got: none")
          .From(Origin::kManifest);
    }
    if (manifest_.checkpoint.path.empty()) {
      return InvalidArgument(file +
                             ": spec.checkpoint.path: the evaluator expects the folder that the "
                             "job saves to, got: none")
          .From(Origin::kManifest);
    }
    // The mesh of the job, all of it in this process, so that its layouts hold.
    int64_t devices = 1;
    for (const mesh::Axis& axis : program.mesh) devices *= axis.size;
    program.processes = 1;
    program.devices.count = devices;
    MT_ASSIGN_OR_RETURN(data_, data::Pipeline::Create(recipe::TestPipeline(program)));
    MT_RETURN_IF_ERROR(Plan().From(Origin::kManifest));
    data_->ExpectClasses(engine_->classes());

    const std::string log_path = config_.output + "/metrics.jsonl";
    MT_RETURN_IF_ERROR(OpenFiles(log_path).From(Origin::kOutput));
    const int64_t before = log_->resumed_at().value_or(-1);
    MT_ASSIGN_OR_RETURN(presence_, Presence::Create(config_, trainer::JobName(manifest_)));
    loss_ = presence_->metrics().AddGauge(
        "meshtrain_loss", "Loss of the newest step or evaluation.", {{"split", "test"}});
    accuracy_ = presence_->metrics().AddGauge(
        "meshtrain_accuracy", "Accuracy of the newest step or evaluation.", {{"split", "test"}});
    count_ = presence_->metrics().AddCounter("meshtrain_evaluations_total",
                                             "Checkpoints that were evaluated.");
    trainer::Say(fmt::format("evaluating checkpoints in {}; output in {}",
                             manifest_.checkpoint.path, config_.output));
    presence_->Ready();

    const int64_t epochs = program.train.epochs;
    const bool may_end_early = program.train.early_stopping.has_value();
    trainer::EvaluateOptions options{.after_step = before, .poll = std::chrono::milliseconds(500)};
    // A job that goes on for more epochs than it had first has marked what is its last checkpoint
    // no more.
    options.is_final = [&](const checkpoint::Index& index) {
      const auto final = index.metadata.find(std::string(trainer::kFinalKey));
      if (final == index.metadata.end() || final->second != "true") return false;
      const auto at = saving::PositionOf(index, "");
      return may_end_early || (at.ok() && at->epoch >= epochs - 1);
    };
    const auto count = trainer::EvaluateLoop(
        manifest_.checkpoint.path,
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
  // Strategy and steps.
  Status Plan() {
    MT_ASSIGN_OR_RETURN(declared_, recipe::Declared::Create(manifest_.program));
    MT_ASSIGN_OR_RETURN(strategy_,
                        trainer::MakeMeshStrategy(config_, manifest_, *declared_, nullptr));
    engine_ = trainer::MakeMeshEngine(*strategy_, {.declare_only = true});
    engine_->Compile(declared_->recipe(), trainer::TraceOf(*declared_));
    MT_RETURN_IF_ERROR(engine_->Prepare(data_->BatchTypes(data_->batch_size())));
    return engine_->Plan("", {}, data_->batch_sizes());
  }

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
    const std::vector<nn::Parameter>& weights = declared_->recipe().model->parameters();
    for (const nn::Parameter& p : weights) {
      MT_ASSIGN_OR_RETURN(mesh::Tensor value, checkpoint.Load(p.name()));
      if (value.type() != p.type()) {
        return InvalidArgument(checkpoint.path() + ": `" + p.name() + "`: expected " +
                               p.type().ToString() + ", got: " + value.type().ToString());
      }
      values.push_back(std::move(value));
    }
    for (size_t i = 0; i < values.size(); ++i) {
      MT_RETURN_IF_ERROR(strategy_->Assign(weights[i], values[i]));
    }
    strategy::PipelineBatches batches(*data_);
    MT_RETURN_IF_ERROR(strategy::BeginPass(*data_));
    MT_ASSIGN_OR_RETURN(const train::Scalars scalars,
                        engine_->Evaluate(batches, manifest_.program.train.validation_steps, stop));
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
        loss_.Set(value);
        continue;
      }
      others.emplace_back(name, value);
      progress.metrics[name] = value;
      if (name == "accuracy") accuracy_.Set(value);
    }
    record.metrics = others;
    progress.checkpoint = telemetry::Progress::Checkpoint{step, checkpoint.path()};
    MT_RETURN_IF_ERROR(log_->Add(record).From(Origin::kOutput));
    MT_RETURN_IF_ERROR(events_->Add(step, scalars).From(Origin::kOutput));
    presence_->board().Set(std::move(progress));
    count_.Add();
    trainer::Say(line);
    return OkStatus();
  }

  const trainer::JobConfig& config_;
  manifest::Manifest manifest_;
  std::unique_ptr<data::Pipeline> data_;
  std::optional<recipe::Declared> declared_;
  std::unique_ptr<strategy::MeshStrategy> strategy_;
  std::unique_ptr<trainer::Engine> engine_;
  std::unique_ptr<telemetry::MetricsLog> log_;
  std::unique_ptr<telemetry::EventFileWriter> events_;
  telemetry::Gauge loss_, accuracy_;
  telemetry::Counter count_;
  std::unique_ptr<Presence> presence_;
};

}  // namespace

Status RunEvaluator(const trainer::JobConfig& config, manifest::Manifest manifest,
                    std::stop_token stop) {
  return Evaluator(config, std::move(manifest)).Run(stop);
}

}  // namespace meshtrain::worker
