#include "runtime/train/loss.h"

#include <algorithm>
#include <string>

#include "runtime/base/check.h"
#include "runtime/train/measures.h"

namespace meshtrain::train {

using program::Dims;
using program::TensorType;

Status LossFunction::CheckLabels(const TensorType&) const { return OkStatus(); }

std::vector<Dims> LossFunction::LabelDims(const TensorType& predictions) const {
  return AsPredicted(predictions);
}

int64_t LossFunction::Classes(const TensorType&) const { return 0; }

Value LossFunction::Logits(const Value&) const { return {}; }

Value LossFunction::Accuracy(const Value& labels, const Value& predictions) const {
  return BinaryAccuracy(labels, predictions, decision());
}

Status LossFunction::Refuse(std::string_view takes, const TensorType& labels) const {
  return InvalidArgument(std::string(name()) + " takes " + std::string(takes) + ", got: labels " +
                         labels.ToString());
}

Status Loss::CheckLabels(const TensorType& labels) const {
  MT_CHECK(function != nullptr);
  return function->CheckLabels(labels);
}

Status Loss::CheckLabels(const TensorType& labels, const TensorType& predictions) const {
  MT_RETURN_IF_ERROR(CheckLabels(labels));
  const std::vector<Dims> wanted = function->LabelDims(predictions);
  for (const Dims& dims : wanted) {
    if (labels.dims == dims) return OkStatus();
  }
  return InvalidArgument(std::string(function->name()) + " of predictions " +
                         predictions.ToString() + " takes labels " +
                         TensorType{labels.dtype, wanted.front()}.ToString() + ", got: labels " +
                         labels.ToString());
}

int64_t Loss::Classes(const TensorType& predictions) const {
  MT_CHECK(function != nullptr);
  return function->Classes(predictions);
}

Value Loss::PerExample(const Value& labels, const Value& predictions) const {
  MT_CHECK(function != nullptr);
  if (known && known->labels.id() == labels.id() && known->predictions.id() == predictions.id()) {
    return known->per_example;
  }
  return function->PerExample(labels, predictions);
}

Status Metric::CheckLabels(const TensorType& labels, const TensorType& predictions) const {
  if (!label_dims) return OkStatus();
  const std::vector<Dims> wanted = label_dims(predictions);
  if (wanted.empty()) {
    return InvalidArgument(name +
                           ": expected predictions [N, classes], got: " + predictions.ToString());
  }
  if (std::find(wanted.begin(), wanted.end(), labels.dims) != wanted.end()) return OkStatus();
  return InvalidArgument(name + ": expected " + LabelsOf(wanted.front(), labels, predictions));
}

std::string Head::FigureName(std::string_view figure) const {
  return (output.empty() ? "" : output + "_") + std::string(figure);
}

}  // namespace meshtrain::train
