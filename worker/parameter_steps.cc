#include "worker/parameter_steps.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "worker/resume.h"

namespace meshtrain::worker {

namespace {

constexpr Duration kWhy = std::chrono::seconds(15);
constexpr Duration kNoLimit = std::chrono::hours(24 * 365);

}  // namespace

Status StepWindow::Schedule(const std::vector<parameter::Arg>& arguments) {
  MT_ASSIGN_OR_RETURN(parameter::RemoteValue value,
                      coordinator_.Schedule(function_, arguments, stop_));
  steps_.push_back(std::move(value));
  return OkStatus();
}

Result<train::Scalars> StepWindow::Take() {
  const parameter::RemoteValue step = std::move(steps_.front());
  steps_.pop_front();
  auto outputs = coordinator_.Fetch(step, give_up_, kNoLimit);
  if (!outputs.ok() && outputs.status().code() == StatusCode::kCancelled &&
      !give_up_.stop_requested()) {
    // Because of something else, which Join tells.
    if (const Status why = coordinator_.Join(give_up_, kWhy); !why.ok()) return why;
  }
  if (!outputs.ok() && outputs.status().code() == StatusCode::kAborted) {
    not_finite_ = outputs.status().message();
    return train::Scalars{{std::string(train::kLossName), std::nan("")}};
  }
  if (!outputs.ok()) return outputs.status();
  train::Scalars scalars;
  for (const auto& [name, value] : *outputs) scalars.emplace_back(name, value.Item());
  return scalars;
}

int64_t Boundaries::After(int64_t step) const {
  const int64_t epoch_end = first + ((step - first) / steps_per_epoch + 1) * steps_per_epoch;
  if (save_every <= 0) return epoch_end;
  return std::min(epoch_end, (step / save_every + 1) * save_every);
}

Result<std::optional<train::Batch>> RemoteTraining::Next(std::stop_token) {
  const int64_t end = o_.boundaries.After(o_.step);
  while (!o_.stop.stop_requested() && failed_.ok() && window_.size() < o_.window &&
         o_.step + window_.size() < end) {
    failed_ = window_.Schedule({o_.data});
  }
  if (window_.size() == 0) {
    // What the steps before it gave, or which of them failed, was told first.
    if (!failed_.ok() && !o_.stop.stop_requested()) return failed_;
    o_.end.request_stop();
    return Cancelled("training: a stop was requested");
  }
  return std::optional<train::Batch>({{}, o_.batch_size});
}

Result<std::optional<train::Batch>> RemoteValidation::Next(std::stop_token stop) {
  const auto room = [&] {
    // Never into the next validation.
    const int64_t end =
        o_.steps > 0 ? (given_ / o_.steps + 1) * o_.steps : std::numeric_limits<int64_t>::max();
    return !o_.stop.stop_requested() && !pass_over_ && window_.size() < o_.ahead &&
           scheduled_ < end;
  };
  while (room()) {
    auto batch = pipeline_.Next(stop);
    if (!batch.ok()) {
      if (batch.status().code() != StatusCode::kCancelled) error_ = batch.status();
      return batch.status();
    }
    if (!batch->has_value()) {
      pass_over_ = true;
      break;
    }
    std::vector<parameter::Arg> arguments;
    for (mesh::Tensor& component : (*batch)->components) {
      arguments.emplace_back(std::move(component));
    }
    const Status scheduled = window_.Schedule(arguments);
    if (!scheduled.ok() && o_.stop.stop_requested()) break;
    MT_RETURN_IF_ERROR(scheduled);
    sizes_.push_back((*batch)->size);
    ++scheduled_;
  }
  if (sizes_.empty()) {
    if (o_.stop.stop_requested()) {
      o_.end.request_stop();
      return Cancelled("validation: a stop was requested");
    }
    pass_over_ = false;
    return std::optional<train::Batch>();
  }
  ++given_;
  const int64_t size = sizes_.front();
  sizes_.pop_front();
  return std::optional<train::Batch>({{}, size});
}

Result<train::Scalars> RemoteRunner::TrainStep(const train::Batch&) {
  MT_ASSIGN_OR_RETURN(train::Scalars scalars, training_.Take());
  if (source_ != nullptr) source_->Took();
  return scalars;
}

Result<train::Scalars> RemoteRunner::EvalStep(const train::Batch&) { return evaluation_.Take(); }

Status RemoteRunner::Save(int64_t step) {
  MT_RETURN_IF_ERROR(
      coordinator_.Save(step, PositionToMetadata(position_), program_hash_, give_up_));
  last_saved_ = step;
  return OkStatus();
}

Result<std::string> RemoteRunner::FirstNonFinite(const train::Batch&) {
  return NotFound("its batch is the worker's: " + training_.not_finite());
}

}  // namespace meshtrain::worker
