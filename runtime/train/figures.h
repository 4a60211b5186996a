// Loss and metrics as means over examples. Pure.
//
// A step gives the means over its own batch. The mean of those means would let a short last batch
// of 8 examples weigh as much as one of 128, so a batch's mean counts once for each of its
// examples. Every loop that shows a figure of more than one batch adds and divides here.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace meshtrain::train {

// Figures by name, in the program's order: {"loss", 0.8}, {"accuracy", 0.7}.
using Scalars = std::vector<std::pair<std::string, double>>;
std::optional<double> FindScalar(const Scalars& scalars, std::string_view name);

// What a step gives for its batch.
struct BatchFigures {
  Scalars means;  // over the batch's examples
  int64_t examples = 0;
};

// Sums over the examples of some batches, in f64.
//   {loss: 1} of 128 examples and {loss: 3} of 8: totals {loss: 152}, examples 136, mean 152 / 136
struct FigureTotals {
  Scalars totals;  // in the order of the newest batch's figures
  int64_t examples = 0;

  void Add(const BatchFigures& batch);
  // Means over the examples; empty where there are none.
  Scalars Means() const;
  friend bool operator==(const FigureTotals&, const FigureTotals&) = default;
};

}  // namespace meshtrain::train
