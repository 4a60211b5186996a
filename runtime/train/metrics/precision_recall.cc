#include "runtime/train/by_name.h"
#include "runtime/train/confusion.h"
#include "runtime/train/loss.h"
#include "runtime/train/measures.h"

namespace meshtrain::train::metrics {
namespace {

using program::DType;

// The sums: how many examples are each of these.
enum Kind : uint8_t { kTrueNegative, kFalsePositive, kFalseNegative, kTruePositive, kKinds };

double ShareOf(double part, double rest) { return part == 0 ? 0 : part / (part + rest); }
double PrecisionOf(std::span<const double> sums) {
  return ShareOf(sums[kTruePositive], sums[kFalsePositive]);
}
double RecallOf(std::span<const double> sums) {
  return ShareOf(sums[kTruePositive], sums[kFalseNegative]);
}

Value Kinds(const std::string& name, const ConfusionOptions& options, const Value& labels,
            const Value& predictions, const Loss& loss) {
  const Judged judged = Judge(name, options.class_id, labels, predictions, loss);
  if (!judged.positive.valid()) return {};
  const bool largest = judged.said.valid() && !options.threshold;
  const Value said =
      largest ? judged.said : program::Greater(judged.probability, options.threshold.value_or(0.5));
  const Value kind = As(judged.positive, DType::kF64) * static_cast<double>(kFalseNegative) +
                     As(said, DType::kF64);
  // Predictions that are no numbers are of no kind.
  return CountEach(program::Select(program::IsNan(judged.probability), judged.probability, kind),
                   kKinds);
}

Metric Make(std::string name, ConfusionOptions options, Finish finish) {
  return {.name = name,
          .of_batch =
              [name, options](const Value& labels, const Value& predictions, const Loss& loss) {
                return Kinds(name, options, labels, predictions, loss);
              },
          .sums = kKinds,
          .finish = finish,
          .larger_is_better = true};
}

ConfusionOptions OptionsOf(const Options& options) {
  return {.threshold = options.MaybeNumber("threshold"), .class_id = options.MaybeInt("class")};
}

}  // namespace

Metric Precision(std::string name, ConfusionOptions options) {
  return Make(std::move(name), options, PrecisionOf);
}
Metric Recall(std::string name, ConfusionOptions options) {
  return Make(std::move(name), options, RecallOf);
}

namespace by_name {

Metric Precision(const std::string& name, const Options& options) {
  return metrics::Precision(name, OptionsOf(options));
}
Metric Recall(const std::string& name, const Options& options) {
  return metrics::Recall(name, OptionsOf(options));
}

}  // namespace by_name
}  // namespace meshtrain::train::metrics
