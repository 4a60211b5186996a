#include "runtime/train/schedules.h"

#include <fmt/format.h>

#include <numbers>
#include <utility>

#include "runtime/base/check.h"
#include "runtime/program/ops.h"

namespace meshtrain::train::schedules {
namespace {

Value Number(const Value& step, double number) {
  return step.builder()->Constant(number, DType::kF64);
}

// What `rate` is when `step` steps were made.
Value At(const LearningRate& rate, const Value& step) {
  return rate.is_constant() ? Number(step, rate.constant()) : rate.Record(step);
}

// How often `length` has passed: step / length, rounded down. A backend may compute a quotient by a
// constant as a product with its inverse, which at a boundary is a little less than the whole
// number; so what it gives is compared with the boundaries themselves.
Value Passed(const Value& step, double length) {
  Value passed = program::Floor(step / length);
  const Value more = passed + 1.0;
  passed = program::Select(program::GreaterEqual(step, more * length), more, passed);
  return program::Select(program::Less(step, passed * length), passed - 1.0, passed);
}

Value Quotient(const Value& step, const ExponentialDecayOptions& o) {
  return o.staircase ? Passed(step, o.decay_steps) : step / o.decay_steps;
}

}  // namespace

LearningRate ExponentialDecay(const ExponentialDecayOptions& o) {
  return {
      [o](const Value& step) { return o.initial * program::Pow(o.decay_rate, Quotient(step, o)); },
      fmt::format("exponential_decay from {}", o.initial)};
}

LearningRate InverseTimeDecay(const ExponentialDecayOptions& o) {
  return {[o](const Value& step) { return o.initial / (1 + o.decay_rate * Quotient(step, o)); },
          fmt::format("inverse_time_decay from {}", o.initial)};
}

LearningRate PolynomialDecay(const PolynomialDecayOptions& o) {
  return {[o](const Value& step) {
            Value share;  // of the decay that is behind us
            if (o.cycle) {
              // The least multiple that is not below step, and 1 at the least.
              const Value multiple = program::Maximum(-Passed(-step, o.decay_steps), 1.0);
              share = step / (o.decay_steps * multiple);
            } else {
              share = program::Minimum(step, o.decay_steps) / o.decay_steps;
            }
            return (o.initial - o.end) * program::Pow(1 - share, o.power) + o.end;
          },
          fmt::format("polynomial_decay from {}", o.initial)};
}

LearningRate CosineDecay(const CosineDecayOptions& o) {
  return {[o](const Value& step) {
            const Value share = program::Minimum(step, o.decay_steps) / o.decay_steps;
            const Value wave = 0.5 * (1.0 + program::Cos(std::numbers::pi * share));
            return o.initial * ((1 - o.alpha) * wave + o.alpha);
          },
          fmt::format("cosine_decay from {}", o.initial)};
}

LearningRate PiecewiseConstant(std::vector<int64_t> boundaries, std::vector<double> values) {
  MT_CHECK(values.size() == boundaries.size() + 1);
  std::string text = fmt::format("piecewise_constant_decay from {}", values.front());
  return {[boundaries = std::move(boundaries), values = std::move(values)](const Value& step) {
            Value rate = Number(step, values.back());
            for (size_t i = boundaries.size(); i-- > 0;) {
              rate = program::Select(program::LessEqual(step, static_cast<double>(boundaries[i])),
                                     values[i], rate);
            }
            return rate;
          },
          std::move(text)};
}

LearningRate WarmUp(int64_t steps, LearningRate then) {
  std::string text = fmt::format("{} after {} steps of warm-up", then.ToString(), steps);
  return {[steps, then = std::move(then)](const Value& step) {
            const auto length = static_cast<double>(steps);
            const Value rising = At(then, Number(step, 0)) * ((step + 1.0) / length);
            return program::Select(program::Less(step, length), rising,
                                   At(then, program::Maximum(step - length, 0.0)));
          },
          std::move(text)};
}

}  // namespace meshtrain::train::schedules
