#include <algorithm>
#include <cmath>
#include <source_location>

#include "runtime/train/by_name.h"
#include "runtime/train/loss.h"

namespace meshtrain::train::metrics {
namespace {

constexpr double kLargestExponent = 709;

double ExpOfMean(std::span<const double> sums) {
  const double mean = sums[0] / sums[1];
  return std::exp(mean > kLargestExponent ? kLargestExponent : mean);
}

Value SumAndCount(const std::string& name, const Value& labels, const Value& predictions,
                  const Loss& loss) {
  const Value logits = loss.function->Logits(predictions);
  if (!predictions.valid()) return {};
  if (!logits.valid()) {
    predictions.builder()->Fail(
        InvalidArgument(name + ": expected a loss of classes of which one is right, got: " +
                        std::string(loss.function->name())),
        std::source_location());
    return {};
  }
  const Value losses = loss.PerExample(labels, predictions);
  if (!losses.valid()) return {};
  const auto count = static_cast<double>(losses.type().num_elements());
  const Value sum = program::ReduceSum(program::Cast(losses, program::DType::kF64));
  return program::Stack({sum, program::Fill({}, count, program::DType::kF64)}, 0);
}

}  // namespace

Metric Perplexity(std::string name) {
  return {
      .name = name,
      .of_batch = [name](const Value& labels, const Value& predictions,
                         const Loss& loss) { return SumAndCount(name, labels, predictions, loss); },
      .sums = 2,
      .finish = ExpOfMean};
}

namespace by_name {

Metric Perplexity(const std::string& name, const Options&) { return metrics::Perplexity(name); }

}  // namespace by_name
}  // namespace meshtrain::train::metrics
