// `metrics`: figures beside the loss.
#include <algorithm>

#include "runtime/base/text.h"
#include "runtime/manifest/catalogue/catalogue.h"
#include "runtime/manifest/fields/fields.h"

namespace meshtrain::manifest {
namespace {

// What a line of metrics.jsonl has beside the figures, and what a step's outputs are called.
constexpr std::string_view kTaken[] = {"loss", "step", "epoch", "seconds", "bad", "examples"};

void CheckName(Problems& problems, const Choice& metric, const std::vector<Choice>& before) {
  const std::string name = FigureName(metric);
  const std::string at = metric.spot.path;
  if (!IsFigureName(name)) {
    problems.Add(metric.spot.place, at + ".name",
                 "expected small letters, digits and _, with no val_ or test_ before them, got: " +
                     Excerpt(name));
  } else if (std::find(std::begin(kTaken), std::end(kTaken), name) != std::end(kTaken)) {
    problems.Add(metric.spot.place, at + ".name",
                 "expected a name that is not taken, got: " + Excerpt(name));
  }
  for (const Choice& other : before) {
    if (FigureName(other) != name) continue;
    problems.Add(metric.spot.place, at.substr(0, at.rfind('.')),
                 "metric `" + Excerpt(name) + "` is here twice (`name` tells them apart)");
    return;
  }
}

void ReadMetrics(Fields& in, std::vector<Choice>* metrics) {
  const Node* node = in.Get("metrics");
  if (node == nullptr) return;
  if (!node->IsList()) return in.Wrong("metrics", "a list");
  for (size_t i = 0; i < node->list.size(); ++i) {
    const std::string at = in.Path("metrics") + "[" + std::to_string(i) + "]";
    auto metric = ReadChoice(in.problems(), node->list[i], at, Metrics());
    if (!metric) continue;
    CheckName(in.problems(), *metric, *metrics);
    metrics->push_back(std::move(*metric));
  }
}

std::optional<Node> WriteMetrics(const std::vector<Choice>& metrics) {
  if (metrics.empty()) return std::nullopt;
  std::vector<Node> items;
  for (const Choice& metric : metrics) items.push_back(WriteChoice(metric, Metrics()));
  return Node::List(std::move(items));
}

// The member `metrics` of S.
template <typename S>
Field MetricsOf(const Says& says) {
  Field metrics = field::Own<S>(
      "metrics", "", [](Fields& in, S& to) { ReadMetrics(in, &to.metrics); },
      [](const S& from) { return WriteMetrics(from.metrics); }, says);
  metrics.type = FieldType::kChoices;
  metrics.of = &Metrics();
  return metrics;
}

}  // namespace

bool IsFigureName(std::string_view name) {
  return IsPlainName(name) && !name.starts_with("val_") && !name.starts_with("test_");
}

Field MetricsField() {
  return MetricsOf<Program>({.about = "Figures beside the loss, by name.",
                             .fallback = "none",
                             .sample = "[sparse_categorical_accuracy]"});
}

Field MetricsOfOutput() {
  return MetricsOf<Output>(
      {.about = "Figures beside its loss; their names have the layer's before them.",
       .fallback = "none",
       .sample = "[accuracy]",
       .context = kOutputsContext});
}

}  // namespace meshtrain::manifest
