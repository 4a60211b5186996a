#include "runtime/train/loop.h"

#include <cmath>
#include <utility>

namespace meshtrain::train {

void Position::EndEpoch(EpochInfo info) {
  info.step = step;
  ++epoch;
  batch = 0;
  figures = {};
  std::vector<EpochInfo> epochs = history ? *history : std::vector<EpochInfo>();
  epochs.push_back(std::move(info));
  history = std::make_shared<const std::vector<EpochInfo>>(std::move(epochs));
}
namespace {

std::string Text(double number) {
  char text[32];
  std::snprintf(text, sizeof text, "%g", number);
  return text;
}

// The first output that is no number, or null.
const std::pair<std::string, double>* NotFinite(const Scalars& scalars) {
  for (const auto& scalar : scalars) {
    if (!std::isfinite(scalar.second)) return &scalar;
  }
  return nullptr;
}

class Fitting {
 public:
  Fitting(StepRunner& runner, BatchSource& data, const LoopOptions& options,
          std::span<Callback* const> callbacks, std::stop_token stop, Clock& clock)
      : runner_(runner),
        data_(data),
        o_(options),
        callbacks_(callbacks),
        stop_(std::move(stop)),
        clock_(clock) {}

  Result<FitResult> Run() {
    MT_RETURN_IF_ERROR(CheckStart());
    MT_RETURN_IF_ERROR(CheckEnds(data_, o_.steps_per_epoch, "fit: steps_per_epoch"));
    if (o_.validation != nullptr && o_.validate_every > 0) {
      MT_RETURN_IF_ERROR(CheckEnds(*o_.validation, o_.validation_steps, "fit: validation_steps"));
    }
    result_.position = o_.start;
    result_.position.figures.Know(runner_.summed());
    if (o_.start.history) result_.history = *o_.start.history;
    for (Callback* callback : callbacks_) {
      MT_RETURN_IF_ERROR(callback->OnTrainBegin(result_.position));
    }
    if (BeginsBehindAnEpoch()) MT_RETURN_IF_ERROR(AskCallbacks());
    while (result_.position.epoch < o_.epochs && result_.end == FitEnd::kFinished) {
      MT_RETURN_IF_ERROR(Epoch());
    }
    for (Callback* callback : callbacks_) MT_RETURN_IF_ERROR(callback->OnTrainEnd(result_));
    return std::move(result_);
  }

 private:
  int64_t StepsPerEpoch() const {
    return o_.steps_per_epoch > 0 ? o_.steps_per_epoch : data_.steps_per_epoch();
  }

  // A run that a callback had ended there has nothing left to train, whatever kept it from saying
  // that it was done.
  bool BeginsBehindAnEpoch() const {
    const Position& at = o_.start;
    return at.epoch < o_.epochs && at.batch == 0 && at.history && !at.history->empty();
  }

  // An epoch that has more batches behind it than it has would end without a step.
  Status CheckStart() const {
    const Position& at = o_.start;
    if (at.step < 0 || at.epoch < 0 || at.batch < 0) {
      return InvalidArgument("fit: expected to begin at counts from 0, got: step " +
                             std::to_string(at.step) + ", epoch " + std::to_string(at.epoch) +
                             ", batch " + std::to_string(at.batch));
    }
    const int64_t steps = StepsPerEpoch();
    if (at.epoch >= o_.epochs || steps <= 0 || at.batch <= steps) return OkStatus();
    return InvalidArgument("fit: expected to begin within an epoch of " + std::to_string(steps) +
                           " batches, got: behind " + std::to_string(at.batch) + " of epoch " +
                           std::to_string(at.epoch + 1) +
                           " (was it saved by a run with longer epochs?)");
  }

  Status Epoch() {
    const Duration begin = clock_.Monotonic();
    const int64_t steps = StepsPerEpoch();
    bool empty_pass = false;
    Duration waited{};
    // A job that was stopped between an epoch's last batch and the end of its validation: the data
    // may have begun the next pass already, so it is not asked for the end of this one.
    if (steps > 0 && result_.position.batch >= steps) return EndOfEpoch(begin);
    for (;;) {
      if (o_.steps_per_epoch > 0 && result_.position.batch >= o_.steps_per_epoch) break;
      if (stop_.stop_requested()) return Stop("a stop was requested");
      const Duration asked = clock_.Monotonic();
      auto next = data_.Next(stop_);
      waited += clock_.Monotonic() - asked;
      if (!next.ok() && stop_.stop_requested()) return Stop("a stop was requested");
      if (!next.ok()) return next.status();
      if (!next->has_value()) {
        if (o_.steps_per_epoch <= 0 && result_.position.batch > 0) break;
        // Joining passes end to end; two empty ones in a row would go on for ever.
        if (empty_pass) return InvalidArgument("fit: a pass of the training data holds no batch");
        empty_pass = true;
        continue;
      }
      empty_pass = false;
      MT_RETURN_IF_ERROR(Step(**next, steps, std::exchange(waited, Duration(0))));
      if (result_.end != FitEnd::kFinished) return OkStatus();
    }
    return EndOfEpoch(begin);
  }

  Status Step(const Batch& batch, int64_t steps_per_epoch, Duration waited) {
    const Duration begin = clock_.Monotonic();
    auto ran = runner_.TrainStep(batch);
    if (ran.status().code() == StatusCode::kAborted) return BadStep(ran.status());
    MT_ASSIGN_OR_RETURN(const BatchFigures figures, std::move(ran));
    const Duration seconds = clock_.Monotonic() - begin;
    Position& at = result_.position;
    ++at.step;
    ++at.batch;
    if (const auto* bad = NotFinite(figures.means)) {
      const Status data = data_.CheckFinite();
      EndOfNumbers(With(bad->first + " is " + Text(bad->second), data), data);
      return OkStatus();
    }
    bad_in_a_row_ = 0;
    at.figures.Add(figures);
    const StepInfo info{.position = at,
                        .epochs = o_.epochs,
                        .steps_per_epoch = steps_per_epoch,
                        .total_steps = steps_per_epoch > 0 ? steps_per_epoch * o_.epochs : -1,
                        .examples = figures.examples,
                        .seconds = seconds,
                        .input_wait = waited,
                        .scalars = figures.means};
    for (Callback* callback : callbacks_) MT_RETURN_IF_ERROR(callback->OnStepEnd(info));
    return AskCallbacks();
  }

  // The batch is done with, and counts as one without figures.
  Status BadStep(const Status& bad) {
    const Status data = data_.CheckFinite();
    const std::string why = With(bad.message(), data);
    Position& at = result_.position;
    ++at.step;
    ++at.batch;
    ++bad_in_a_row_;
    const BadStepInfo info{.position = at, .in_a_row = bad_in_a_row_, .why = why};
    for (Callback* callback : callbacks_) MT_RETURN_IF_ERROR(callback->OnBadStep(info));
    if (bad_in_a_row_ < o_.end_after_bad_steps) return AskCallbacks();
    // A step that another process ran on data of its own has been looked at there.
    EndOfNumbers(why, data.ok() && bad.origin() == Origin::kInput ? bad : data);
    return OkStatus();
  }

  static std::string With(const std::string& why, const Status& data) {
    return data.ok() ? why : why + "; " + std::string(data.message());
  }

  // `data`: of the batch, BatchSource::CheckFinite.
  void EndOfNumbers(const std::string& why, const Status& data) {
    result_.end = FitEnd::kNotFinite;
    result_.whose = data.origin().value_or(Origin::kNumbers);
    const int64_t saved = runner_.last_saved();
    result_.message =
        "step " + std::to_string(result_.position.step) + ": " + why +
        (bad_in_a_row_ > 1 ? "; the " + std::to_string(bad_in_a_row_) + " steps up to it were bad"
                           : "") +
        "; " +
        (saved < 0 ? "no checkpoint was saved"
                   : "the last checkpoint is of step " + std::to_string(saved));
  }

  Status EndOfEpoch(Duration begin) {
    Position& at = result_.position;
    EpochInfo info{
        .epoch = at.epoch + 1, .epochs = o_.epochs, .step = at.step, .train = at.figures.Means()};
    if (o_.validation != nullptr && o_.validate_every > 0 && info.epoch % o_.validate_every == 0) {
      auto validation = Evaluate(runner_, *o_.validation, o_.validation_steps, stop_);
      if (!validation.ok() && stop_.stop_requested()) return Stop("a stop was requested");
      if (!validation.ok()) return validation.status().At("validation");
      info.validation = std::move(*validation);
    }
    info.seconds = clock_.Monotonic() - begin;
    ++at.epoch;
    at.batch = 0;
    at.figures = {};
    result_.history.push_back(info);
    at.history = std::make_shared<const std::vector<EpochInfo>>(result_.history);
    for (Callback* callback : callbacks_) MT_RETURN_IF_ERROR(callback->OnEpochEnd(info, at));
    if (at.epoch < o_.epochs) return AskCallbacks();
    return OkStatus();
  }

  Status AskCallbacks() {
    for (const Callback* callback : callbacks_) {
      if (const auto why = callback->WantsStop()) return Stop(*why);
    }
    return OkStatus();
  }

  Status Stop(std::string_view why) {
    result_.end = FitEnd::kStopped;
    result_.message = "step " + std::to_string(result_.position.step) + ": " + std::string(why);
    return OkStatus();
  }

  StepRunner& runner_;
  BatchSource& data_;
  const LoopOptions& o_;
  std::span<Callback* const> callbacks_;
  std::stop_token stop_;
  Clock& clock_;
  FitResult result_;
  int64_t bad_in_a_row_ = 0;
};

}  // namespace

Status CheckEnds(const BatchSource& data, int64_t steps, std::string_view what) {
  if (!data.endless() || steps > 0) return OkStatus();
  return InvalidArgument(
      std::string(what) +
      ": expected at least 1 with data that repeats for ever, got: " + std::to_string(steps));
}

Result<FitResult> Fit(StepRunner& runner, BatchSource& data, const LoopOptions& options,
                      std::span<Callback* const> callbacks, std::stop_token stop, Clock& clock) {
  return Fitting(runner, data, options, callbacks, std::move(stop), clock).Run();
}

Result<Scalars> Evaluate(StepRunner& runner, BatchSource& data, int64_t steps,
                         std::stop_token stop) {
  MT_RETURN_IF_ERROR(CheckEnds(data, steps, "evaluate: steps"));
  MT_RETURN_IF_ERROR(data.Begin());
  FigureTotals figures;
  int64_t done = 0;
  bool empty_pass = false;
  while (steps <= 0 || done < steps) {
    if (stop.stop_requested())
      return Cancelled("evaluate: a stop was requested").From(Origin::kStop);
    MT_ASSIGN_OR_RETURN(std::optional<Batch> batch, data.Next(stop));
    if (!batch) {
      if (done > 0) break;
      if (empty_pass) return InvalidArgument("evaluate: a pass of the data holds no batch");
      empty_pass = true;
      continue;
    }
    empty_pass = false;
    MT_ASSIGN_OR_RETURN(const BatchFigures of_batch, runner.EvalStep(*batch));
    figures.Add(of_batch);
    ++done;
  }
  return figures.Means();
}

}  // namespace meshtrain::train
