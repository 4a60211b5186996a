#include "runtime/trainer/job/reporter.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <ctime>
#include <filesystem>
#include <limits>
#include <system_error>
#include <utility>

#include "runtime/base/file.h"
#include "runtime/base/log.h"
#include "runtime/trainer/job/choices.h"

namespace meshtrain::trainer {
namespace {

constexpr std::string_view kMetricsName = "metrics.jsonl";
constexpr std::string_view kEventsName = "events";
// What grows with a run, and its name while another run replaces that one.
constexpr struct Replaced {
  std::string_view name, kept;
  std::filesystem::file_type type;
} kReplaced[] = {
    {kMetricsName, "metrics.replaced.jsonl", std::filesystem::file_type::regular},
    {kEventsName, "events.replaced", std::filesystem::file_type::directory},
};
// As telemetry/endpoints.h has it, relative to the page.
constexpr std::string_view kRunPage = "run.json";
constexpr double kSmoothing = 0.1;  // weight of the newest step in the shown rate

double Seconds(Duration d) { return std::chrono::duration<double>(d).count(); }

std::map<std::string, double> ToMap(const train::Scalars& scalars) {
  return {scalars.begin(), scalars.end()};
}

report::EpochFigures FiguresOf(const train::EpochInfo& info) {
  return {info.epoch, ToMap(info.train), ToMap(info.validation), Seconds(info.seconds)};
}

// Of the epoch so far, bad steps left out.
std::vector<telemetry::NamedValue> RunningMeans(const train::Position& position) {
  const train::Scalars means = position.figures.Means();
  return {means.begin(), means.end()};
}

std::string Today() {
  const std::time_t now = std::chrono::system_clock::to_time_t(std::chrono::system_clock::now());
  std::tm utc{};
  gmtime_r(&now, &utc);
  char text[16];
  std::strftime(text, sizeof text, "%Y-%m-%d", &utc);
  return text;
}

}  // namespace

Reporter::Reporter(const JobConfig& config, Run job, LastSave last_save)
    : config_(config), job_(std::move(job)), last_save_(std::move(last_save)) {
  metrics_ = std::make_unique<telemetry::Metrics>(
      telemetry::ReplicaLabels{.training_job = job_.name,
                               .replica_type = std::string(cluster::RoleName(job_.task.role)),
                               .replica_index = job_.task.index});
  training_ = std::make_unique<telemetry::TrainingMetrics>(*metrics_);
  training_->planned_bytes.Set(static_cast<double>(job_.plan.peak_bytes_per_device));
  line_ = std::make_unique<telemetry::ProgressLine>(
      telemetry::ProgressLine::Options{.terminal = ::isatty(STDOUT_FILENO) != 0},
      [](std::string_view text) {
        std::fwrite(text.data(), 1, text.size(), stdout);
        std::fflush(stdout);
      });
}

Result<std::unique_ptr<Reporter>> Reporter::Create(const JobConfig& config, Run job,
                                                   LastSave last_save,
                                                   const train::Position& start) {
  auto reporter =
      std::unique_ptr<Reporter>(new Reporter(config, std::move(job), std::move(last_save)));
  MT_RETURN_IF_ERROR(MakeDirectories(config.output).From(Origin::kOutput));
  if (reporter->job_.chief) {
    MT_RETURN_IF_ERROR(reporter->OpenFiles(start).From(Origin::kOutput));
  }
  {
    MutexLock lock(reporter->mutex_);
    const Run& what = reporter->job_;
    const std::string mesh = what.mesh.empty() ? "one device" : what.mesh;
    report::Report& report = reporter->report_;
    report.title = what.name;
    report.subtitle = fmt::format("{} epochs on {}, {}", what.epochs, mesh, Today());
    report.plan = what.view;
    report.facts = what.facts;
    report.facts.emplace_back("mesh", mesh);
    report.facts.emplace_back("plan", what.plan.hash);
    if (!config.version.empty()) report.facts.emplace_back("meshtrain", config.version);
  }
  reporter->TakeHistory(start);
  telemetry::Progress progress;
  progress.step = start.step;
  progress.total_steps = reporter->job_.epochs * reporter->job_.steps_per_epoch;
  progress.plan = reporter->job_.plan;
  if (!reporter->job_.resumed_from.empty()) {
    reporter->newest_ = {start.step, reporter->job_.resumed_from};
    reporter->training_->checkpoint_step.Set(static_cast<double>(start.step));
  }
  progress.checkpoint = reporter->newest_;
  reporter->board_.Set(progress);
  if (reporter->job_.chief) {
    MT_RETURN_IF_ERROR(reporter->WriteRun(reporter->Document()).From(Origin::kOutput));
  }
  if (config.port) {
    Reporter* r = reporter.get();
    MT_ASSIGN_OR_RETURN(
        reporter->endpoints_,
        telemetry::Endpoints::Start(
            {.host = config.host, .port = *config.port, .names = OwnHostNames(config)},
            {.metrics =
                 [r] {
                   r->training_->Look();
                   return r->metrics_->Text();
                 },
             .progress = [r] { return telemetry::ProgressJson(r->Now()); },
             .healthy = {},
             .ready =
                 [r] {
                   MutexLock lock(r->mutex_);
                   return r->ready_;
                 },
             .page = [r] { return report::RenderPage(r->job_.name, r->Document(), kRunPage); },
             .run = [r] { return r->Document(); }}));
  }
  return reporter;
}

Status Reporter::OpenFiles(const train::Position& start) {
  if (start.step == 0) MT_RETURN_IF_ERROR(KeepOldFiles());
  MT_RETURN_IF_ERROR(OpenLog(start));
  if (start.step > 0) {
    // The curves show the whole run, also what a process before this one trained.
    MT_RETURN_IF_ERROR(
        telemetry::ReadSteps(config_.output + "/" + std::string(kMetricsName),
                             [this](int64_t step, auto figures, std::optional<double> seconds) {
                               MutexLock lock(mutex_);
                               for (const auto& [name, value] : figures) {
                                 steps_[std::string(name)].Add(static_cast<double>(step), value);
                               }
                               if (seconds) step_times_.Add(static_cast<double>(step), *seconds);
                             }));
  }
  const std::string events = config_.output + "/" + std::string(kEventsName);
  MT_ASSIGN_OR_RETURN(train_events_, telemetry::EventFileWriter::Create(events + "/train"));
  MT_ASSIGN_OR_RETURN(test_events_, telemetry::EventFileWriter::Create(events + "/test"));
  return OkStatus();
}

telemetry::Progress Reporter::Now() const {
  telemetry::Progress progress = board_.Get();
  if (job_.rank_step_seconds) progress.rank_step_seconds = job_.rank_step_seconds();
  return progress;
}

// As the checkpoints of the run before this one, its lines and events stay until the first
// checkpoint of this one. Those of a run in between, which was killed before it had one, do not.
Status Reporter::KeepOldFiles() {
  namespace fs = std::filesystem;
  for (const auto& [name, kept, type] : kReplaced) {
    const fs::path now = config_.output + "/" + std::string(name);
    const fs::path old = config_.output + "/" + std::string(kept);
    std::error_code error;
    if (fs::symlink_status(now, error).type() != type || fs::is_empty(now, error)) continue;
    if (fs::exists(fs::symlink_status(old, error))) {
      fs::remove_all(now, error);
      if (error) return ErrnoStatus(error.value(), "cannot remove", now.string());
      continue;
    }
    fs::rename(now, old, error);
    if (error) return ErrnoStatus(error.value(), "cannot rename", now.string());
  }
  return OkStatus();
}

void Reporter::RemoveOldFiles() {
  if (!std::exchange(old_files_kept_, false) || !job_.chief) return;
  namespace fs = std::filesystem;
  for (const auto& [name, kept, type] : kReplaced) {
    const fs::path old = config_.output + "/" + std::string(kept);
    std::error_code error;
    if (fs::symlink_status(old, error).type() != type) continue;
    fs::remove_all(old, error);
    if (error) LogWarning("the figures of the run before stay", {{"error", error.message()}});
  }
}

Status Reporter::OpenLog(const train::Position& start) {
  std::optional<telemetry::MetricsLog::Behind> from;
  // Where the epoch had not ended its validation is done again, and told again.
  if (start.step > 0) from = {.step = start.step, .validated = start.batch == 0};
  MT_ASSIGN_OR_RETURN(
      log_, telemetry::MetricsLog::Open(config_.output + "/" + std::string(kMetricsName), from));
  return OkStatus();
}

// The epochs that were finished where training goes on.
void Reporter::TakeHistory(const train::Position& start) {
  MutexLock lock(mutex_);
  for (auto& [name, curve] : steps_) curve.CutBehind(static_cast<double>(start.step));
  step_times_.CutBehind(static_cast<double>(start.step));
  epochs_.Clear();
  if (!start.history) return;
  for (const train::EpochInfo& epoch : *start.history) epochs_.Add(FiguresOf(epoch));
}

Status Reporter::RollBack(const train::Position& start) {
  line_->Interrupt();
  epoch_shown_ = -1;
  TakeHistory(start);
  if (!job_.chief) return OkStatus();
  MT_RETURN_IF_ERROR(log_->Close().From(Origin::kOutput));
  return OpenLog(start).From(Origin::kOutput);
}

void Reporter::Stopped(const std::string& rank, uint64_t incarnation) {
  telemetry::Progress progress = board_.Get();
  progress.stopped_rank = rank;
  progress.lost_incarnation = std::to_string(incarnation);
  board_.Set(std::move(progress));
}

void Reporter::Ready() {
  MutexLock lock(mutex_);
  ready_ = true;
  training_->ready.Set(1);
}

Status Reporter::OnStepEnd(const train::StepInfo& info) {
  if (job_.chief) MT_RETURN_IF_ERROR(Record(info).From(Origin::kOutput));
  Publish(info);
  return OkStatus();
}

Status Reporter::OnBadStep(const train::BadStepInfo& info) {
  training_->bad_steps.Add();
  const train::Position& p = info.position;
  training_->step.Set(static_cast<double>(p.step));
  telemetry::Progress progress = board_.Get();
  progress.step = p.step;
  board_.Set(std::move(progress));
  if (!job_.chief) return OkStatus();
  line_->Interrupt();
  LogWarning("a bad step changed nothing", {{"step", std::to_string(p.step)},
                                            {"in_a_row", std::to_string(info.in_a_row)},
                                            {"why", info.why}});
  return log_
      ->Add(telemetry::StepRecord{.step = p.step,
                                  .epoch = p.epoch + 1,
                                  .loss = std::numeric_limits<double>::quiet_NaN(),
                                  .metrics = {},
                                  .seconds = {},
                                  .bad = info.why})
      .From(Origin::kOutput);
}

// `epoch`: from 1.
void Reporter::ShowEpoch(int64_t epoch, int64_t steps_done) {
  line_->BeginEpoch(epoch, job_.epochs, std::max<int64_t>(job_.steps_per_epoch, 0), steps_done);
  epoch_shown_ = epoch - 1;
}

void Reporter::AddFact(std::string name, std::string what) {
  MutexLock lock(mutex_);
  report_.facts.emplace_back(std::move(name), std::move(what));
}

Status Reporter::Record(const train::StepInfo& info) {
  const train::Position& p = info.position;
  if (epoch_shown_ != p.epoch) ShowEpoch(p.epoch + 1, p.batch - 1);
  line_->Step(p.batch, RunningMeans(p));

  telemetry::StepRecord record{.step = p.step,
                               .epoch = p.epoch + 1,
                               .loss = 0,
                               .metrics = {},
                               .seconds = Seconds(info.seconds)};
  std::vector<telemetry::NamedValue> others;
  for (const auto& [name, value] : info.scalars) {
    if (name == "loss") {
      record.loss = value;
    } else {
      others.emplace_back(name, value);
    }
  }
  record.metrics = others;
  {
    MutexLock lock(mutex_);
    for (const auto& [name, value] : info.scalars) {
      steps_[name].Add(static_cast<double>(p.step), value);
    }
    step_times_.Add(static_cast<double>(p.step), Seconds(info.seconds));
    examples_ += info.examples;
    in_steps_ += info.seconds;
    ++steps_timed_;
  }
  MT_RETURN_IF_ERROR(log_->Add(record));
  return train_events_->Add(p.step, info.scalars);
}

void Reporter::Publish(const train::StepInfo& info) {
  const train::Position& p = info.position;
  const double seconds = Seconds(info.seconds);
  // Examples and seconds apart: steps that end together, as parameter servers' do, take no time of
  // their own.
  const double fresh = smoothed_examples_ == 0 ? 1 : kSmoothing;
  smoothed_examples_ += fresh * (static_cast<double>(info.examples) - smoothed_examples_);
  smoothed_seconds_ += fresh * (seconds - smoothed_seconds_);
  const double rate = smoothed_seconds_ > 0 ? smoothed_examples_ / smoothed_seconds_ : 0;
  {
    MutexLock lock(mutex_);
    step_seconds_ = smoothed_seconds_;
  }
  training_->steps.Add();
  training_->examples.Add(static_cast<double>(info.examples));
  training_->step_seconds.Observe(seconds);
  training_->input_wait_seconds.Observe(Seconds(info.input_wait));
  training_->step.Set(static_cast<double>(p.step));
  training_->examples_per_second.Set(rate);
  if (job_.collective_bytes) {
    const int64_t sent = job_.collective_bytes();
    training_->collective_bytes.Add(static_cast<double>(sent - collective_bytes_counted_));
    collective_bytes_counted_ = sent;
  }
  if (job_.collective_time) training_->collective_seconds.Add(Seconds(job_.collective_time()));

  telemetry::Progress progress;
  progress.step = p.step;
  if (info.total_steps >= 0) progress.total_steps = info.total_steps;
  progress.epoch = static_cast<double>(p.epoch);
  if (info.steps_per_epoch > 0) {
    progress.epoch += static_cast<double>(p.batch) / static_cast<double>(info.steps_per_epoch);
  }
  training_->epoch.Set(progress.epoch);
  for (const auto& [name, value] : info.scalars) {
    if (name == "loss") {
      progress.loss = value;
    } else {
      progress.metrics[name] = value;
    }
  }
  training_->train_figures.Set(info.scalars);
  progress.examples_per_second = rate;
  if (rate > 0 && progress.total_steps) {
    progress.eta_seconds = static_cast<double>(*progress.total_steps - p.step) * smoothed_seconds_;
  }
  progress.plan = job_.plan;
  CountSaves();
  progress.checkpoint = newest_;
  board_.Set(std::move(progress));
}

void Reporter::CountSaves() {
  if (const auto saved = last_save_(); saved && saved->step != saves_counted_) {
    saves_counted_ = saved->step;
    RemoveOldFiles();
    newest_ = {saved->step, saved->path};
    training_->checkpoint_saves.Add();
    training_->checkpoint_seconds.Observe(saved->seconds);
    training_->checkpoint_step.Set(static_cast<double>(saved->step));
  }
  const int64_t failed = job_.failed_saves ? job_.failed_saves() : 0;
  const int64_t before = std::exchange(failures_counted_, failed);
  training_->checkpoint_failures.Add(static_cast<double>(failed - before));
}

Status Reporter::OnEpochEnd(const train::EpochInfo& info, const train::Position&) {
  std::vector<telemetry::NamedValue> values(info.train.begin(), info.train.end());
  for (const auto& [name, value] : info.validation) values.emplace_back("test_" + name, value);
  if (job_.chief) {
    // Of an epoch whose steps a checkpoint has done, only its validation was left.
    if (epoch_shown_ != info.epoch - 1) ShowEpoch(info.epoch, job_.steps_per_epoch);
    line_->EndEpoch(values);
  }
  if (!info.validation.empty()) {
    if (job_.chief) {
      MT_RETURN_IF_ERROR(
          log_->Add(telemetry::ValidationRecord{
                        .step = info.step, .epoch = info.epoch, .figures = info.validation})
              .From(Origin::kOutput));
      MT_RETURN_IF_ERROR(test_events_->Add(info.step, info.validation).From(Origin::kOutput));
    }
    training_->test_figures.Set(info.validation);
  }
  MutexLock lock(mutex_);
  epochs_.Add(FiguresOf(info));
  return OkStatus();
}

Status Reporter::Finish(End end) {
  {
    MutexLock lock(mutex_);
    end_ = std::move(end);
    ended_ = SystemClock().Monotonic();
  }
  CountSaves();  // the last one came after the last step
  telemetry::Progress progress = board_.Get();
  progress.checkpoint = newest_;
  board_.Set(std::move(progress));
  return job_.chief ? CloseFiles().From(Origin::kOutput) : OkStatus();
}

Status Reporter::CloseFiles() {
  MT_RETURN_IF_ERROR(log_->Close());
  MT_RETURN_IF_ERROR(train_events_->Close());
  MT_RETURN_IF_ERROR(test_events_->Close());
  return WriteReport();
}

Reporter::End Reporter::EndWith(const Status& error) {
  const bool asked = error.origin() == Origin::kStop;
  return {asked ? report::Phase::kStopped : report::Phase::kFailed, error.message()};
}

void Reporter::Failed(const Status& error) {
  {
    MutexLock lock(mutex_);
    if (end_ && end_->phase != report::Phase::kEnded) return;
    if (!end_) ended_ = SystemClock().Monotonic();
    end_ = EndWith(error);
  }
  if (!job_.chief) return;
  if (const Status written = WriteReport(); !written.ok()) {
    LogWarning("the report does not say how the run ended", {{"error", written.message()}});
  }
}

std::string Reporter::EpochTable() const {
  MutexLock lock(mutex_);
  std::string text = fmt::format("{:>5}  {:>10}  {:>14}  {:>9}  {:>13}\n", "epoch", "train loss",
                                 "train accuracy", "test loss", "test accuracy");
  const auto cell = [](const std::map<std::string, double>& figures, const char* name) {
    const auto it = figures.find(name);
    return it == figures.end() ? std::string("-") : fmt::format("{:.4f}", it->second);
  };
  for (const report::EpochFigures& e : epochs_.all()) {
    text += fmt::format("{:>5}  {:>10}  {:>14}  {:>9}  {:>13}\n", e.epoch, cell(e.train, "loss"),
                        cell(e.train, "accuracy"), cell(e.test, "loss"), cell(e.test, "accuracy"));
  }
  return text;
}

}  // namespace meshtrain::trainer
