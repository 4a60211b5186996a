// Learning rates that follow from the number of steps: Keras 3's formulas
// (keras/src/optimizers/schedules), with s for the steps that the optimizer has made before, from
// 0. The schedule is part of the step's program, so it goes on where a checkpoint was taken.
//
//   train::Adam({.common = {.learning_rate = train::schedules::ExponentialDecay(
//       {.initial = 0.01, .decay_steps = 1000, .decay_rate = 0.9})}})
#pragma once

#include <cstdint>
#include <vector>

#include "runtime/train/optimizer.h"

namespace meshtrain::train::schedules {

// initial * decay_rate^(s / decay_steps); with `staircase` the exponent is rounded down.
struct ExponentialDecayOptions {
  double initial = 0;
  double decay_steps = 1;
  double decay_rate = 1;
  bool staircase = false;
};
LearningRate ExponentialDecay(const ExponentialDecayOptions& options);

// initial / (1 + decay_rate * s / decay_steps), the quotient rounded down with `staircase`.
LearningRate InverseTimeDecay(const ExponentialDecayOptions& options);

// (initial - end) * (1 - min(s, decay_steps) / decay_steps)^power + end. With `cycle` decay_steps
// grows to its next multiple whenever s has passed it.
struct PolynomialDecayOptions {
  double initial = 0;
  double decay_steps = 1;
  double end = 0.0001;
  double power = 1;
  bool cycle = false;
};
LearningRate PolynomialDecay(const PolynomialDecayOptions& options);

// initial * ((1 - alpha) * (1 + cos(pi * min(s, decay_steps) / decay_steps)) / 2 + alpha): half a
// wave from `initial` to alpha * initial, where it stays. Keras' warm-up within it is WarmUp's.
struct CosineDecayOptions {
  double initial = 0;
  double decay_steps = 1;
  double alpha = 0;
};
LearningRate CosineDecay(const CosineDecayOptions& options);

// values[0] while s <= boundaries[0], values[1] while s <= boundaries[1], ..., then the last value.
// One value more than boundaries, which rise.
LearningRate PiecewiseConstant(std::vector<int64_t> boundaries, std::vector<double> values);

// Rises evenly to the rate that `then` begins with, which it reaches after `steps` steps, and goes
// on as `then`, whose s counts from there.
LearningRate WarmUp(int64_t steps, LearningRate then);

}  // namespace meshtrain::train::schedules
