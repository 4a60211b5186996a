// Loss and metrics of one batch and of many, every example counted once. Pure.
//
// A figure is what sums over examples come to. Of most it is a mean: a step gives the mean over its
// own batch, which counts once for each of its examples (the mean of means would let a short last
// batch of 8 examples weigh as much as one of 128). Of the others (perplexity, precision, recall,
// areas under curves) a step gives the sums themselves, and a function of theirs says what they
// come to. Every loop that shows a figure of more than one batch adds and finishes here.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "runtime/base/status.h"
#include "runtime/mesh/tensor.h"

namespace meshtrain::train {

// Figures by name, in the program's order: {"loss", 0.8}, {"accuracy", 0.7}.
using Scalars = std::vector<std::pair<std::string, double>>;
std::optional<double> FindScalar(const Scalars& scalars, std::string_view name);

// What sums over examples come to. Pure.
using Finish = double (*)(std::span<const double> sums);

// A figure that is no mean of examples.
struct FigureSums {
  std::string name;
  std::vector<double> sums;
  Finish finish = nullptr;  // null: not known, since the sums were read from a checkpoint
  friend bool operator==(const FigureSums&, const FigureSums&) = default;
};

// What a step gives for its batch.
struct BatchFigures {
  // All figures. Means over the batch's examples, but for those of `sums`: what these come to.
  Scalars means;
  int64_t examples = 0;
  std::vector<FigureSums> sums = {};

  // `value` is what a step gave for the figure `name`: the sums of one of `summed`, or a mean.
  // Errors: kInvalidArgument where it is neither.
  Status Add(const std::string& name, const mesh::Tensor& value,
             std::span<const FigureSums> summed);
};

// Sums over the examples of some batches, in f64.
//   {loss: 1} of 128 examples and {loss: 3} of 8: totals {loss: 152}, examples 136, mean 152 / 136
struct FigureTotals {
  Scalars totals;  // of the means, in the order of the newest batch's figures
  int64_t examples = 0;
  std::vector<FigureSums> sums = {};
  // Of a mean that not all of the examples have, since its metric came later: how many do.
  std::vector<std::pair<std::string, int64_t>> fewer = {};

  // Means that the batch does not have, of metrics that a run before had, go.
  void Add(const BatchFigures& batch);
  // Makes known what the sums come to. `figures`: all that steps give from now on; other sums, of
  // metrics that a run before had, go.
  void Know(std::span<const FigureSums> figures);
  // Means over the examples that have them, then what the sums come to; empty where there are no
  // examples.
  Scalars Means() const;
  friend bool operator==(const FigureTotals&, const FigureTotals&) = default;

 private:
  int64_t ExamplesOf(std::string_view mean) const;
};

}  // namespace meshtrain::train
