#include "runtime/trainer/tensorboard.h"

#include <utility>

namespace meshtrain::trainer {

TensorBoard::TensorBoard(std::string folder, const strategy::Strategy& strategy)
    : folder_(std::move(folder)), chief_(strategy.chief()) {}

Status TensorBoard::OnTrainBegin(const train::Position&) {
  if (!chief_) return OkStatus();
  MT_ASSIGN_OR_RETURN(train_, telemetry::EventFileWriter::Create(folder_ + "/train"));
  validation_.reset();
  return OkStatus();
}

Status TensorBoard::OnStepEnd(const train::StepInfo& info) {
  return chief_ ? train_->Add(info.position.step, info.scalars) : OkStatus();
}

Status TensorBoard::OnEpochEnd(const train::EpochInfo& info, const train::Position&) {
  if (!chief_) return OkStatus();
  MT_RETURN_IF_ERROR(train_->Flush());
  if (info.validation.empty()) return OkStatus();
  if (validation_ == nullptr) {
    MT_ASSIGN_OR_RETURN(validation_, telemetry::EventFileWriter::Create(folder_ + "/validation"));
  }
  MT_RETURN_IF_ERROR(validation_->Add(info.step, info.validation));
  return validation_->Flush();
}

Status TensorBoard::OnTrainEnd(const train::FitResult&) {
  if (!chief_) return OkStatus();
  const Status closed = train_->Close();
  if (validation_ != nullptr) MT_RETURN_IF_ERROR(validation_->Close());
  return closed;
}

}  // namespace meshtrain::trainer
