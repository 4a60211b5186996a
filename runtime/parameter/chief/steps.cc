#include "runtime/parameter/chief/steps.h"

#include <algorithm>
#include <limits>
#include <span>

#include "runtime/parameter/messages/split.h"

namespace meshtrain::parameter {

namespace {

constexpr Duration kWhy = std::chrono::seconds(15);
constexpr Duration kNoLimit = std::chrono::hours(24 * 365);

// Of a step's outputs; `announced`: the examples of its batch, where no output counts them.
Result<train::BatchFigures> FiguresOf(const Outputs& outputs, int64_t announced,
                                      std::span<const train::FigureSums> summed) {
  train::BatchFigures figures{.means = {}, .examples = announced};
  for (const auto& [name, value] : outputs) {
    if (name == kExamplesName) {
      figures.examples = static_cast<int64_t>(value.Item());
    } else {
      MT_RETURN_IF_ERROR(figures.Add(name, value, summed));
    }
  }
  return figures;
}

}  // namespace

InFlight DivideInFlight(int64_t steps, int64_t workers) {
  const int64_t at_once = steps > 0 ? steps : workers;
  return {.per_worker = static_cast<int>((at_once + workers - 1) / workers),
          .ahead = at_once % workers == 0 ? 2 * at_once : at_once};
}

Status StepWindow::Schedule(const std::vector<Arg>& arguments) {
  MT_ASSIGN_OR_RETURN(RemoteValue value, coordinator_.Schedule(function_, arguments, stop_));
  steps_.push_back(std::move(value));
  return OkStatus();
}

Result<Outputs> StepWindow::Take() {
  const RemoteValue step = std::move(steps_.front());
  steps_.pop_front();
  auto outputs = coordinator_.Fetch(step, give_up_, kNoLimit);
  if (!outputs.ok() && outputs.status().code() == StatusCode::kCancelled &&
      !give_up_.stop_requested()) {
    // Because of something else, which Join tells.
    if (const Status why = coordinator_.Join(give_up_, kWhy); !why.ok()) return why;
  }
  return outputs;
}

int64_t StepWindow::Drain() {
  int64_t done = 0;
  while (!steps_.empty()) {
    if (Take().ok()) ++done;
  }
  // The loop has told of it already.
  static_cast<void>(coordinator_.Join(give_up_, kWhy).ok());
  return done;
}

int64_t Boundaries::After(int64_t step) const {
  const int64_t epoch_end = first + ((step - first) / steps_per_epoch + 1) * steps_per_epoch;
  if (save_every <= 0) return epoch_end;
  return std::min(epoch_end, (step / save_every + 1) * save_every);
}

Result<std::optional<train::Batch>> RemoteTraining::Next(std::stop_token) {
  int64_t end = o_.boundaries.After(o_.step);
  if (o_.hold && o_.hold()) end = std::min(end, o_.step + std::max<int64_t>(window_.size(), 1));
  while (!o_.stop.stop_requested() && failed_.ok() && window_.size() < o_.window &&
         o_.step + window_.size() < end) {
    failed_ = window_.Schedule({o_.data});
  }
  if (window_.size() == 0) {
    // What the steps before it gave, or which of them failed, was told first.
    if (!failed_.ok() && !o_.stop.stop_requested()) return failed_;
    o_.end.request_stop();
    return Cancelled("training: a stop was requested").From(Origin::kStop);
  }
  return std::optional<train::Batch>({{}, o_.batch_size});
}

Status SentBatches::ScheduleNext() {
  // The user's stop ends a wait for data too.
  MT_ASSIGN_OR_RETURN(std::optional<train::Batch> batch, source_.Next(o_.stop));
  if (!batch) {
    pass_over_ = true;
    return OkStatus();
  }
  if (o_.before) MT_RETURN_IF_ERROR(o_.before(*batch));
  std::vector<Arg> arguments;
  for (mesh::Tensor& component : batch->components) arguments.emplace_back(std::move(component));
  MT_RETURN_IF_ERROR(window_.Schedule(arguments));
  sizes_.push_back(batch->size);
  ++scheduled_;
  return OkStatus();
}

Result<std::optional<train::Batch>> SentBatches::Next(std::stop_token) {
  // Never into the next epoch.
  const int64_t end =
      o_.steps > 0 ? (given_ / o_.steps + 1) * o_.steps : std::numeric_limits<int64_t>::max();
  while (!o_.stop.stop_requested() && failed_.ok() && !pass_over_ && window_.size() < o_.ahead &&
         scheduled_ < end) {
    failed_ = ScheduleNext();
  }
  if (sizes_.empty()) {
    if (o_.stop.stop_requested()) {
      o_.end.request_stop();
      return Cancelled("a stop was requested").From(Origin::kStop);
    }
    // What the steps before it gave, or which of them failed, was told first.
    MT_RETURN_IF_ERROR(failed_);
    pass_over_ = false;
    return std::optional<train::Batch>();
  }
  ++given_;
  const int64_t size = sizes_.front();
  sizes_.pop_front();
  return std::optional<train::Batch>({{}, size});
}

Result<train::BatchFigures> RemoteRunner::TrainStep(const train::Batch& batch) {
  auto outputs = training_.Take();
  const bool bad = outputs.status().code() == StatusCode::kAborted;
  if (source_ != nullptr && (outputs.ok() || bad)) source_->Took();
  MT_RETURN_IF_ERROR(outputs.status());
  return FiguresOf(*outputs, batch.size, summed_);
}

Result<train::BatchFigures> RemoteRunner::EvalStep(const train::Batch& batch) {
  MT_ASSIGN_OR_RETURN(const Outputs outputs, evaluation_.Take());
  return FiguresOf(outputs, batch.size, summed_);
}

Status RemoteRunner::Save(const train::Position& position) {
  if (!saver_) return OkStatus();
  MT_RETURN_IF_ERROR(saver_(position));
  last_saved_ = position.step;
  return OkStatus();
}

}  // namespace meshtrain::parameter
