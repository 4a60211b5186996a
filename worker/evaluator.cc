#include "worker/evaluator.h"

#include <fmt/format.h>

#include <limits>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>

#include "runtime/base/file.h"
#include "runtime/cluster/exit_code.h"
#include "runtime/data/pipeline.h"
#include "runtime/saving/final.h"
#include "runtime/saving/position.h"
#include "runtime/saving/resume.h"
#include "runtime/saving/shards.h"
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

using Json = nlohmann::json;

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
    last_step_ = read_ ? log_->resumed_at().value_or(-1) : -1;
    MT_ASSIGN_OR_RETURN(presence_, Presence::Create(config_, trainer::JobName(manifest)));
    figures_.emplace(presence_->metrics(), "test");
    count_ = presence_->metrics().AddCounter("meshtrain_evaluations_total",
                                             "Checkpoints that were evaluated.");
    trainer::Say(fmt::format("evaluating checkpoints in {}; output in {}", manifest.checkpoint.path,
                             config_.output));
    presence_->Ready();

    const int64_t epochs = program.train.epochs;
    const bool may_end_early = program.train.early_stopping.has_value();
    trainer::EvaluateOptions options{.run = read_ ? read_->run : "",
                                     .after_step = last_step_,
                                     .poll = std::chrono::milliseconds(500)};
    // A job that goes on for more epochs than it had first has marked what is its last checkpoint
    // no more.
    options.is_final = [=](const checkpoint::Index& index) {
      return saving::IsFinished(index, epochs, may_end_early);
    };
    // Who saves to a folder of the job's own replaces a run that has ended, or cannot go on from
    // it; of one that this process's folder says was read to its end it is told by that.
    const bool own = trainer::CheckpointFolderOf(config_, manifest).own;
    options.is_replaced = [this, own, before = read_](const checkpoint::Index& index) {
      if (!own || !index.metadata.contains(std::string(saving::kRunKey))) return false;
      if (!saving::IsFinal(index)) return false;
      const bool read = before && config_.job.attempt == 0 &&
                        before->run == saving::RunIdOf(index) && before->ended_at == index.step;
      return read || !Fits(index);
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
    if (read_) {
      read_->ended_at = last_step_;
      MT_RETURN_IF_ERROR(WriteRead().From(Origin::kOutput));
    }
    trainer::Say(fmt::format("evaluated {} checkpoints; metrics in {}", *count, log_path));
    return OkStatus();
  }

 private:
  // Whose figures the output folder holds, as `evaluated.json` in it says.
  struct Read {
    std::string folder;     // of the checkpoints
    std::string run;        // saving::RunIdOf
    int64_t ended_at = -1;  // the step of its final checkpoint, once that had its turn
  };
  std::string ReadPath() const { return config_.output + "/evaluated.json"; }
  // What cannot be read says nothing.
  void TakeRead() {
    const auto text = ReadFile(ReadPath());
    if (!text.ok()) return;
    const Json json = Json::parse(*text, nullptr, /*allow_exceptions=*/false);
    if (!json.is_object()) return;
    const auto folder_named = json.find("folder"), run = json.find("run"),
               end = json.find("endedAt");
    if (folder_named == json.end() || !folder_named->is_string() || run == json.end() ||
        !run->is_string() || end == json.end() || !end->is_number_integer()) {
      return;
    }
    const Read read{*folder_named, *run, *end};
    // A run without an id is known by its folder alone.
    if (read.run.empty() && read.folder != folder()) return;
    read_ = read;
  }
  Status WriteRead() const {
    return WriteFileAtomically(
        ReadPath(),
        Json{{"folder", read_->folder}, {"run", read_->run}, {"endedAt", read_->ended_at}}.dump() +
            "\n");
  }
  const std::string& folder() const { return model_.manifest().checkpoint.path; }

  Status OpenFiles(const std::string& log_path) {
    MT_RETURN_IF_ERROR(MakeDirectories(config_.output));
    TakeRead();
    MT_ASSIGN_OR_RETURN(log_, telemetry::MetricsLog::Open(
                                  log_path, {{.step = std::numeric_limits<int64_t>::max()}}));
    MT_ASSIGN_OR_RETURN(events_,
                        telemetry::EventFileWriter::Create(config_.output + "/events/evaluator"));
    return OkStatus();
  }

  // The lines of another run give way to those of this one, with its first.
  Status BeginWith(const checkpoint::Index& index) {
    const std::string run = saving::RunIdOf(index);
    if (read_ && read_->run == run) return OkStatus();
    MT_RETURN_IF_ERROR(log_->Close());
    MT_ASSIGN_OR_RETURN(log_, telemetry::MetricsLog::Open(config_.output + "/metrics.jsonl"));
    read_ = Read{.folder = folder(), .run = run};
    return WriteRead();
  }

  bool Fits(const checkpoint::Index& index) const {
    const auto& all = model_.parameters();
    const std::vector<program::Variable> weights(all.begin(), all.end());
    return saving::CheckFits(index, folder(), weights).ok();
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
    MT_RETURN_IF_ERROR(BeginWith(checkpoint.index()).From(Origin::kOutput));
    MT_RETURN_IF_ERROR(log_->Add(record).From(Origin::kOutput));
    last_step_ = step;
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
  std::optional<Read> read_;  // none: nobody knows whose lines are there
  int64_t last_step_ = -1;    // evaluated, of that run
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
