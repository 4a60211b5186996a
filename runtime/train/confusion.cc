#include "runtime/train/confusion.h"

#include <algorithm>
#include <source_location>

#include "runtime/train/measures.h"

namespace meshtrain::train {

using program::Dims;
using program::DType;

namespace {

// Of what a user asked for, so no line of ours is named.
Judged Mistake(const std::string& metric, const Value& predictions, const std::string& what) {
  predictions.builder()->Fail(InvalidArgument(metric + ": expected " + what),
                              std::source_location());
  return {};
}

std::string Given(const Value& predictions, const Loss& loss) {
  return ", got: " + std::string(loss.function->name()) + " of predictions " +
         predictions.type().ToString();
}

}  // namespace

Judged Judge(const std::string& metric, std::optional<int64_t> class_id, const Value& labels,
             const Value& predictions, const Loss& loss) {
  const Value logits = loss.function->Logits(predictions);
  if (!predictions.valid() || !labels.valid()) return {};
  if (!class_id) {
    if (logits.valid()) {
      return Mistake(
          metric, predictions,
          "`class`, the number of the class that is looked for, where there are several" +
              Given(predictions, loss));
    }
    const LabelDims wanted = AsPredicted(predictions.type());
    if (std::find(wanted.begin(), wanted.end(), labels.dims()) == wanted.end()) {
      return Mistake(metric, predictions,
                     LabelsOf(wanted.front(), labels.type(), predictions.type()));
    }
    const Value y = LikePredictions(labels, predictions);
    return {.positive = program::Greater(y, 0.5),
            .probability = loss.function->Probability(program::Cast(predictions, DType::kF64)),
            .said = {}};
  }
  if (!logits.valid()) {
    return Mistake(
        metric, predictions,
        "a loss of classes of which one is right, beside `class`" + Given(predictions, loss));
  }
  const Dims& dims = logits.dims();
  const int64_t classes = dims.back();
  if (*class_id < 0 || *class_id >= classes) {
    return Mistake(metric, predictions,
                   "`class` from 0 to " + std::to_string(classes - 1) +
                       ", a class of predictions " + predictions.type().ToString() +
                       ", got: " + std::to_string(*class_id));
  }
  const auto number = static_cast<double>(*class_id);
  // Labels are numbers of classes, or shares of them.
  const Dims of_numbers(dims.begin(), dims.end() - 1);
  if (labels.dims() != of_numbers && labels.dims() != dims) {
    return Mistake(metric, predictions, LabelsOf(of_numbers, labels.type(), predictions.type()));
  }
  const Value label =
      labels.rank() < predictions.rank() ? As(labels, DType::kI64) : program::ArgMax(labels, -1);
  const Value wide = program::Cast(logits, DType::kF64);
  // Not a slice: where a layout splits the classes, only sums travel.
  const Value is_own = program::Equal(program::Iota({classes}, 0), number);
  const Value own = program::ReduceSum(program::Select(is_own, wide, 0.0), {-1});
  return {.positive = program::Equal(label, number),
          .probability = program::Exp(own - program::LogSumExp(wide, {-1})),
          .said = program::Equal(program::ArgMax(predictions, -1), number)};
}

// A number that is outside makes every count NaN (SegmentSum).
Value CountEach(const Value& numbers, int64_t bins) {
  if (!numbers.valid()) return {};
  const Value ids =
      program::Cast(program::Select(program::IsNan(numbers), -1.0, numbers), DType::kI64);
  return program::SegmentSum(program::Ones(numbers.dims(), DType::kF64), ids, bins);
}

}  // namespace meshtrain::train
