#include "runtime/recipe/summary.h"

#include <fmt/format.h>

namespace meshtrain::recipe {
namespace {

// As many layers as one can read at a glance.
constexpr size_t kMostLayers = 12;

// What of its options tells one layer from another at a glance.
std::string LayerText(const manifest::Layer& layer) {
  std::string text = layer.kind;
  if (const auto units = layer.options.MaybeInt("units")) text += fmt::format(" {}", *units);
  if (const auto rate = layer.options.MaybeNumber("rate")) text += fmt::format(" {}", *rate);
  if (const auto dims = layer.options.Ints("dims")) {
    text += fmt::format(" {}", fmt::join(*dims, " x "));
  }
  const std::string activation = layer.options.Text("activation");
  if (!activation.empty() && (activation != "linear" || layer.kind == "activation")) {
    text += " " + activation;
  }
  return text;
}

std::string ModelText(const manifest::Model& model) {
  std::string text;
  for (size_t i = 0; i < model.layers.size() && i < kMostLayers; ++i) {
    text += (i == 0 ? "" : ", ") + LayerText(model.layers[i]);
  }
  if (model.layers.size() > kMostLayers) {
    text += fmt::format(" and {} more layers", model.layers.size() - kMostLayers);
  }
  return text;
}

}  // namespace

std::vector<std::pair<std::string, std::string>> Summary(
    const manifest::Program& program, std::span<const nn::Parameter> parameters) {
  int64_t count = 0;
  for (const nn::Parameter& p : parameters) count += p.type().num_elements();
  return {
      {"model", ModelText(program.model)},
      {"parameters", fmt::format("{}", count)},
      {"optimizer",
       fmt::format("{}, learning rate {}", program.optimizer.kind,
                   MakeOptimizer(program.optimizer)->common().learning_rate.ToString())},
      {"batch",
       fmt::format("{} examples", program.data.batch) +
           (program.precision == manifest::kFullPrecision ? ""
                                                          : ", computed in " + program.precision) +
           (program.train.accumulate == 1
                ? ""
                : fmt::format(", in {} parts", program.train.accumulate))},
      {"seed", fmt::format("{}", program.seed)},
  };
}

}  // namespace meshtrain::recipe
