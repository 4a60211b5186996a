#include "runtime/train/by_name.h"

#include <utility>

#include "runtime/base/check.h"
#include "runtime/train/schedules.h"

namespace meshtrain::train {
namespace {

schedules::ExponentialDecayOptions DecayOf(const Options& o) {
  return {.initial = o.Number("initial", 0),
          .decay_steps = o.Number("decay_steps", 1),
          .decay_rate = o.Number("decay_rate", 1),
          .staircase = o.Bool("staircase", false)};
}

LearningRate PolynomialOf(const Options& o) {
  schedules::PolynomialDecayOptions options;
  options.initial = o.Number("initial", options.initial);
  options.decay_steps = o.Number("decay_steps", options.decay_steps);
  options.end = o.Number("end", options.end);
  options.power = o.Number("power", options.power);
  options.cycle = o.Bool("cycle", options.cycle);
  return schedules::PolynomialDecay(options);
}

// What makes each row of manifest/catalogue/schedules.cc, without its warm-up.
struct ScheduleRow {
  std::string_view kind;
  LearningRate (*make)(const Options& options);
};
constexpr ScheduleRow kSchedules[] = {
    {"constant", [](const Options& o) { return LearningRate(o.Number("initial", 0)); }},
    {"exponential_decay", [](const Options& o) { return schedules::ExponentialDecay(DecayOf(o)); }},
    {"inverse_time_decay",
     [](const Options& o) { return schedules::InverseTimeDecay(DecayOf(o)); }},
    {"polynomial_decay", PolynomialOf},
    {"cosine_decay",
     [](const Options& o) {
       return schedules::CosineDecay({.initial = o.Number("initial", 0),
                                      .decay_steps = o.Number("decay_steps", 1),
                                      .alpha = o.Number("alpha", 0)});
     }},
    {"piecewise_constant_decay",
     [](const Options& o) {
       return schedules::PiecewiseConstant(*o.Ints("boundaries"), *o.Numbers("values"));
     }},
};

// `learning_rate: 0.1`, or `learning_rate: {SCHEDULE: {...}}`.
LearningRate LearningRateOf(const Options& options, LearningRate fallback) {
  if (const auto constant = options.MaybeNumber("learning_rate")) return *constant;
  const choice::Choice* chosen = options.Chosen("learning_rate");
  if (chosen == nullptr) return fallback;
  for (const ScheduleRow& row : kSchedules) {
    if (row.kind != chosen->kind) continue;
    const int64_t warm_up = chosen->options.Int("warmup_steps", 0);
    LearningRate rate = row.make(chosen->options);
    return warm_up > 0 ? schedules::WarmUp(warm_up, std::move(rate)) : rate;
  }
  MT_CHECK(false);  // a row that nothing makes
  return fallback;
}

}  // namespace

OptimizerOptions CommonOf(const Options& options, OptimizerOptions common) {
  common.learning_rate = LearningRateOf(options, std::move(common.learning_rate));
  common.clipnorm = options.MaybeNumber("clipnorm");
  common.global_clipnorm = options.MaybeNumber("global_clipnorm");
  common.clipvalue = options.MaybeNumber("clipvalue");
  common.weight_decay = options.MaybeNumber("weight_decay");
  common.exclude_from_weight_decay =
      options.Texts("exclude_from_weight_decay").value_or(std::vector<std::string>{});
  return common;
}

LossReduction ReductionOf(const Options& options) {
  return options.Text("reduction") == "sum" ? LossReduction::kSum : LossReduction::kMean;
}

losses::CrossentropyOptions CrossentropyOptionsOf(const Options& options) {
  return {.from_logits = options.Bool("from_logits", false), .reduction = ReductionOf(options)};
}

}  // namespace meshtrain::train
