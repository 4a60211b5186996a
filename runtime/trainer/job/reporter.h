// Tells people and machines how training goes: progress line, metrics.jsonl, event files, /metrics,
// /progress, the live page and the report that stays.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "runtime/base/clock.h"
#include "runtime/base/mutex.h"
#include "runtime/base/status.h"
#include "runtime/checkpoint/async.h"
#include "runtime/cluster/contract.h"
#include "runtime/report/report.h"
#include "runtime/telemetry/endpoints.h"
#include "runtime/telemetry/event_file.h"
#include "runtime/telemetry/metrics_log.h"
#include "runtime/telemetry/progress.h"
#include "runtime/telemetry/progress_line.h"
#include "runtime/telemetry/training_metrics.h"
#include "runtime/train/loop.h"
#include "runtime/trainer/job/config.h"

namespace meshtrain::trainer {

class Reporter final : public train::Callback {
 public:
  struct Run {
    std::string name;
    std::string mesh;
    int64_t epochs = 0;
    int64_t steps_per_epoch = 0;
    telemetry::Progress::Plan plan;
    std::optional<report::PlanView> view;                    // of the plan, for the page
    std::vector<std::pair<std::string, std::string>> facts;  // of the report, besides our own
    // Each rank's own time in its last step, in seconds; none: not told. Called by several threads.
    std::function<std::vector<double>()> rank_step_seconds;
    std::function<int64_t()> collective_bytes;  // sent by this process so far; null: none is
    // What the last step stood in collectives with other processes; null: there are none.
    std::function<Duration()> collective_time;
    std::function<int64_t()> failed_saves;  // of this process so far; null: not told
    std::string resumed_from;               // the checkpoint that `start` stands at; "": none
    cluster::TaskId task{cluster::Role::kWorker, 0};
    bool chief =
        true;  // writes the files and the progress line; the others only answer at their address
  };
  // The newest complete checkpoint. Called by several threads.
  using LastSave = std::function<std::optional<checkpoint::SaveReport>()>;
  // Opens the output files and, where the configuration asks for it, the server. Errors: those of
  // files, kOutput; kUnavailable for an address that cannot be bound, of kPeers where its port is
  // taken.
  static Result<std::unique_ptr<Reporter>> Create(const JobConfig& config, Run job,
                                                  LastSave last_save, const train::Position& start);

  Status OnStepEnd(const train::StepInfo& info) override;
  Status OnBadStep(const train::BadStepInfo& info) override;
  Status OnEpochEnd(const train::EpochInfo& info, const train::Position& position) override;

  // Training goes on from `start`, which lies before what was told already.
  Status RollBack(const train::Position& start);
  void Ready();  // the first step may come: /readyz answers 200
  void EndLine() { line_->Interrupt(); }
  // Training stands since `incarnation` lost `rank` ("worker-2"), until the next step ends.
  void Stopped(const std::string& rank, uint64_t incarnation);
  // One more line among the report's facts.
  void AddFact(std::string name, std::string what) MT_EXCLUDES(mutex_);
  // For figures beside those of every training.
  telemetry::Metrics& metrics() { return *metrics_; }
  int port() const { return endpoints_ ? endpoints_->port() : 0; }
  // How the run ends: training, unless it stopped or failed, is at its end.
  struct End {
    report::Phase phase = report::Phase::kEnded;
    std::string why;
  };
  // A process that is asked to stop may end with an error that says so; any other one is a failure.
  static End EndWith(const Status& error);
  // Writes the report (`report.html`, and as data `run.json`, which is there from Create on) and
  // closes the files, where there are any.
  Status Finish(End end);
  // The process ends with `error`, before Finish or because of what came behind it: the report says
  // so, where it does not tell of an error already.
  void Failed(const Status& error);
  // The epochs so far as a table with a heading, for people.
  std::string EpochTable() const;
  std::string TerminationMessage(std::string_view error = {}) const {
    return telemetry::TerminationMessage(board_.Get(), error);
  }

 private:
  Reporter(const JobConfig& config, Run job, LastSave last_save);
  Status OpenFiles(const train::Position& start);
  Status CloseFiles();
  Status OpenLog(const train::Position& start);
  Status KeepOldFiles();
  void RemoveOldFiles();
  void TakeHistory(const train::Position& start) MT_EXCLUDES(mutex_);
  void ShowEpoch(int64_t epoch, int64_t steps_done);
  Status Record(const train::StepInfo& info);  // files and the line
  void Publish(const train::StepInfo& info);   // what is asked for over HTTP
  void CountSaves();
  telemetry::Progress Now() const;                             // with the times of the ranks
  std::optional<double> MeanRate() const MT_REQUIRES(mutex_);  // examples per second of steps
  report::State StateNow() const MT_REQUIRES(mutex_);
  std::string Document() const MT_EXCLUDES(mutex_);  // of what is known now
  Status WriteRun(const std::string& document) const;
  Status WriteReport() const;

  JobConfig config_;
  Run job_;
  LastSave last_save_;
  std::unique_ptr<telemetry::Metrics> metrics_;
  std::unique_ptr<telemetry::TrainingMetrics> training_;
  telemetry::ProgressBoard board_;
  std::unique_ptr<telemetry::ProgressLine> line_;
  std::unique_ptr<telemetry::MetricsLog> log_;
  std::unique_ptr<telemetry::EventFileWriter> train_events_, test_events_;
  mutable Mutex mutex_;
  report::Report report_ MT_GUARDED_BY(mutex_);  // what does not grow with the steps
  report::EpochHistory epochs_ MT_GUARDED_BY(mutex_);
  std::map<std::string, report::Curve> steps_ MT_GUARDED_BY(mutex_);  // by metric
  report::Curve step_times_ MT_GUARDED_BY(mutex_);                    // in seconds
  std::optional<double> step_seconds_ MT_GUARDED_BY(mutex_);          // of the newest ones
  std::optional<End> end_ MT_GUARDED_BY(mutex_);
  Duration ended_ MT_GUARDED_BY(mutex_){};
  int64_t examples_ MT_GUARDED_BY(mutex_) = 0;  // trained here
  Duration in_steps_ MT_GUARDED_BY(mutex_){};
  int64_t steps_timed_ MT_GUARDED_BY(mutex_) = 0;
  Duration began_ = SystemClock().Monotonic();
  bool ready_ MT_GUARDED_BY(mutex_) = false;
  int64_t epoch_shown_ = -1;
  int64_t saves_counted_ = -1, failures_counted_ = 0;
  std::optional<telemetry::Progress::Checkpoint> newest_;  // complete one, of the job
  bool old_files_kept_ = true;  // perhaps: of a run that this one replaces
  int64_t collective_bytes_counted_ = 0;
  double smoothed_examples_ = 0, smoothed_seconds_ = 0;  // of a step
  std::unique_ptr<telemetry::Endpoints> endpoints_;      // last: its threads read what stands above
};

}  // namespace meshtrain::trainer
