#include <algorithm>
#include <cmath>

#include "runtime/train/by_name.h"
#include "runtime/train/confusion.h"
#include "runtime/train/loss.h"
#include "runtime/train/measures.h"

namespace meshtrain::train::metrics {
namespace {

using program::DType;

// The sums: of n = num_thresholds - 1 bins, the negative examples in each and then the positive
// ones. Bin i holds probabilities above threshold i and not above the next; those above threshold t
// are what lies in the bins from t on.
Value Bins(const std::string& name, const AucOptions& options, const Value& labels,
           const Value& predictions, const Loss& loss) {
  const Judged judged = Judge(name, options.class_id, labels, predictions, loss);
  if (!judged.positive.valid()) return {};
  const auto bins = static_cast<double>(options.num_thresholds - 1);
  // p > i / bins just where p * bins > i. Probabilities of f32 times a number of bins are exact in
  // f64.
  const Value bin =
      program::ClipByValue(program::Ceil(judged.probability * bins) - 1.0, 0.0, bins - 1);
  const Value number = bin + As(judged.positive, DType::kF64) * bins;
  return CountEach(program::Select(program::IsNan(judged.probability), judged.probability, number),
                   2 * (options.num_thresholds - 1));
}

double Share(double part, double all) { return all == 0 ? 0 : part / all; }

// `segment(area, fp, tp, more_fp, more_tp)` for each pair of neighbours, from the last threshold,
// above which nothing lies, to the first.
template <typename Segment>
void Walk(std::span<const double> sums, const Segment& segment) {
  const size_t bins = sums.size() / 2;
  double fp = 0, tp = 0;
  for (size_t i = bins; i-- > 0;) {
    segment(fp, tp, sums[i], sums[bins + i]);
    fp += sums[i];
    tp += sums[bins + i];
  }
}

struct Labels {
  double negative = 0, positive = 0;
};
Labels CountOf(std::span<const double> sums) {
  Labels all;
  Walk(sums, [&](double, double, double more_fp, double more_tp) {
    all.negative += more_fp;
    all.positive += more_tp;
  });
  return all;
}

double RocArea(std::span<const double> sums) {
  const Labels all = CountOf(sums);
  double area = 0;  // in examples
  Walk(sums, [&](double, double tp, double more_fp, double more_tp) {
    area += more_fp * (tp + more_tp / 2);
  });
  return Share(area, all.negative * all.positive);
}

// With q = tp + fp between two points, tp = c + s q; the area below tp / q over tp is s (the rise
// of tp + c log(q at the end / q at the begin)).
double PrecisionRecallArea(std::span<const double> sums) {
  double area = 0;
  Walk(sums, [&](double fp, double tp, double more_fp, double more_tp) {
    const double q = fp + tp, rise = more_fp + more_tp;
    if (rise == 0) return;
    const double slope = more_tp / rise, c = tp - slope * q;
    area += slope * (more_tp + (q > 0 ? c * std::log((q + rise) / q) : 0));
  });
  return Share(area, CountOf(sums).positive);
}

AucOptions OptionsOf(Curve curve, const Options& options) {
  return {.curve = curve,
          .num_thresholds = options.Int("num_thresholds", 200),
          .class_id = options.MaybeInt("class")};
}

}  // namespace

Metric Auc(std::string name, AucOptions options) {
  options.num_thresholds = std::max<int64_t>(2, options.num_thresholds);
  return {.name = name,
          .of_batch =
              [name, options](const Value& labels, const Value& predictions, const Loss& loss) {
                return Bins(name, options, labels, predictions, loss);
              },
          .sums = 2 * (options.num_thresholds - 1),
          .finish = options.curve == Curve::kRoc ? RocArea : PrecisionRecallArea,
          .larger_is_better = true};
}

namespace by_name {

Metric Auc(const std::string& name, const Options& options) {
  return metrics::Auc(name, OptionsOf(Curve::kRoc, options));
}
Metric PrAuc(const std::string& name, const Options& options) {
  return metrics::Auc(name, OptionsOf(Curve::kPrecisionRecall, options));
}

}  // namespace by_name
}  // namespace meshtrain::train::metrics
