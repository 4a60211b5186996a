#include "runtime/train/figures.h"

#include <algorithm>
#include <functional>

namespace meshtrain::train {

namespace {

template <typename List>
auto Named(List& list, std::string_view name) {
  return std::find_if(list.begin(), list.end(), [&](const auto& f) { return f.name == name; });
}

}  // namespace

std::optional<double> FindScalar(const Scalars& scalars, std::string_view name) {
  for (const auto& [known, value] : scalars) {
    if (known == name) return value;
  }
  return std::nullopt;
}

Status BatchFigures::Add(const std::string& name, const mesh::Tensor& value,
                         std::span<const FigureSums> summed) {
  const auto of = Named(summed, name);
  const mesh::TensorType& type = value.type();
  if (of == summed.end()) {
    if (type.num_elements() != 1) {
      return InvalidArgument("output `" + name +
                             "`: expected one element, got: " + type.ToString());
    }
    means.emplace_back(name, value.Item());
    return OkStatus();
  }
  const mesh::TensorType want{mesh::DType::kF64, {static_cast<int64_t>(of->sums.size())}};
  if (type != want) {
    return InvalidArgument("output `" + name + "`: expected " + want.ToString() +
                           ", got: " + type.ToString());
  }
  const std::span<const double> numbers = value.values<double>();
  sums.push_back({name, {numbers.begin(), numbers.end()}, of->finish});
  means.emplace_back(name, of->finish(numbers));
  return OkStatus();
}

void FigureTotals::Add(const BatchFigures& batch) {
  const auto weight = static_cast<double>(batch.examples);
  Scalars added;
  std::vector<std::pair<std::string, int64_t>> counts;
  for (const auto& [name, mean] : batch.means) {
    if (Named(batch.sums, name) != batch.sums.end()) continue;
    const std::optional<double> total = FindScalar(totals, name);
    added.emplace_back(name, total.value_or(0) + mean * weight);
    const int64_t before = total ? ExamplesOf(name) : 0;
    if (before != examples) counts.emplace_back(name, before + batch.examples);
  }
  totals = std::move(added);
  fewer = std::move(counts);
  for (const FigureSums& more : batch.sums) {
    const auto own = Named(sums, more.name);
    if (own == sums.end()) {
      sums.push_back(more);
    } else if (own->sums.size() != more.sums.size()) {
      *own = more;  // of a metric with other options
    } else {
      std::transform(more.sums.begin(), more.sums.end(), own->sums.begin(), own->sums.begin(),
                     std::plus<>());
      own->finish = more.finish;
    }
  }
  examples += batch.examples;
}

int64_t FigureTotals::ExamplesOf(std::string_view mean) const {
  for (const auto& [name, count] : fewer) {
    if (name == mean) return count;
  }
  return examples;
}

void FigureTotals::Know(std::span<const FigureSums> figures) {
  std::vector<FigureSums> known;
  for (const FigureSums& figure : figures) {
    const auto own = Named(sums, figure.name);
    if (own == sums.end() || own->sums.size() != figure.sums.size()) continue;
    known.push_back({own->name, std::move(own->sums), figure.finish});
  }
  sums = std::move(known);
}

Scalars FigureTotals::Means() const {
  Scalars means;
  if (examples <= 0) return means;
  for (const auto& [name, total] : totals) {
    const int64_t of = ExamplesOf(name);
    if (of > 0) means.emplace_back(name, total / static_cast<double>(of));
  }
  for (const FigureSums& figure : sums) {
    if (figure.finish != nullptr) means.emplace_back(figure.name, figure.finish(figure.sums));
  }
  return means;
}

}  // namespace meshtrain::train
