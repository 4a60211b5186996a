// What a run's page and its files are made of.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>

#include "runtime/base/file.h"
#include "runtime/trainer/job/reporter.h"

namespace meshtrain::trainer {

namespace {
using InSeconds = std::chrono::duration<double>;
}  // namespace

std::optional<double> Reporter::MeanRate() const {
  if (in_steps_ <= Duration(0)) return std::nullopt;
  return static_cast<double>(examples_) / InSeconds(in_steps_).count();
}

report::State Reporter::StateNow() const {
  const telemetry::Progress progress = board_.Get();
  report::State state{.phase = report::Phase::kTraining,
                      .why = {},
                      .step = progress.step,
                      .steps = progress.total_steps,
                      .epoch = {},
                      .epochs = job_.epochs,
                      .figures = progress.metrics,
                      .step_seconds = step_seconds_,
                      .examples_per_second = progress.examples_per_second,
                      .eta_seconds = progress.eta_seconds,
                      .elapsed_seconds = {}};
  // An epoch whose last step is done is under way until its validation is, and told.
  const auto told = static_cast<int64_t>(epochs_.all().size());
  state.epoch = std::min(job_.epochs, std::max(static_cast<int64_t>(progress.epoch), told) + 1);
  if (state.steps <= 0) state.steps.reset();  // nobody knows how many an epoch has
  if (progress.loss) state.figures["loss"] = *progress.loss;
  if (end_) {
    state.phase = end_->phase;
    state.why = end_->why;
    if (told > 0 && state.phase == report::Phase::kEnded) state.epoch = told;
    // The newest ones say little about a run that is over.
    state.step_seconds.reset();
    state.examples_per_second = MeanRate();
    if (steps_timed_ > 0) {
      state.step_seconds = InSeconds(in_steps_).count() / static_cast<double>(steps_timed_);
    }
  } else if (!progress.stopped_rank.empty()) {
    state.phase = report::Phase::kWaiting;
    state.why = progress.stopped_rank + " is lost or stuck: waiting for its return";
  } else if (!ready_) {
    state.phase = report::Phase::kStarting;
  }
  state.elapsed_seconds = InSeconds((end_ ? ended_ : SystemClock().Monotonic()) - began_).count();
  return state;
}

std::string Reporter::Document() const {
  const auto saved = last_save_();
  report::Report report;
  {
    MutexLock lock(mutex_);
    report = report_;
    report.state = StateNow();
    report.epochs = epochs_.Summary();
    for (const auto& [name, curve] : steps_) report.steps[name] = curve.points();
    report.step_seconds = step_times_.points();
    if (const auto rate = MeanRate()) {
      report.facts.emplace_back("examples per second", fmt::format("{:.0f}", *rate));
    }
  }
  if (report.epochs.best > 0) {
    report.facts.emplace_back("best epoch", std::to_string(report.epochs.best));
  }
  if (saved) report.facts.emplace_back("checkpoint", saved->path);
  return report::Document(report);
}

Status Reporter::WriteRun(const std::string& document) const {
  return WriteFileAtomically(config_.output + "/run.json", document + "\n");
}

Status Reporter::WriteReport() const {
  const std::string document = Document();
  MT_RETURN_IF_ERROR(WriteFileAtomically(config_.output + "/report.html",
                                         report::RenderPage(job_.name, document)));
  return WriteRun(document);
}

}  // namespace meshtrain::trainer
