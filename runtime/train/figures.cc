#include "runtime/train/figures.h"

namespace meshtrain::train {

std::optional<double> FindScalar(const Scalars& scalars, std::string_view name) {
  for (const auto& [known, value] : scalars) {
    if (known == name) return value;
  }
  return std::nullopt;
}

void FigureTotals::Add(const BatchFigures& batch) {
  const auto weight = static_cast<double>(batch.examples);
  Scalars sums;
  for (const auto& [name, mean] : batch.means) {
    sums.emplace_back(name, FindScalar(totals, name).value_or(0) + mean * weight);
  }
  for (const auto& [name, total] : totals) {
    if (!FindScalar(sums, name)) sums.emplace_back(name, total);
  }
  totals = std::move(sums);
  examples += batch.examples;
}

Scalars FigureTotals::Means() const {
  Scalars means;
  if (examples <= 0) return means;
  for (const auto& [name, total] : totals) {
    means.emplace_back(name, total / static_cast<double>(examples));
  }
  return means;
}

}  // namespace meshtrain::train
