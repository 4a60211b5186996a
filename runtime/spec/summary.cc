#include "runtime/spec/summary.h"

#include <fmt/format.h>

namespace meshtrain::spec {
namespace {

// As many layers as one can read at a glance.
constexpr size_t kMostLayers = 12;

std::string LayerText(const LayerSpec& layer) {
  struct {
    std::string operator()(const DenseSpec& dense) const {
      const bool linear = dense.options.activation == nn::ActivationKind::kLinear;
      return fmt::format(" {}{}{}", dense.units, linear ? "" : " ",
                         linear ? "" : nn::ActivationName(dense.options.activation));
    }
    std::string operator()(const DropoutSpec& dropout) const {
      return fmt::format(" {}", dropout.rate);
    }
    std::string operator()(const ActivationSpec& activation) const {
      return fmt::format(" {}", nn::ActivationName(activation.activation));
    }
    std::string operator()(const ReshapeSpec& reshape) const {
      return fmt::format(" {}", fmt::join(reshape.dims, " x "));
    }
    std::string operator()(const FlattenSpec&) const { return ""; }
    std::string operator()(const AddSpec&) const { return ""; }
    std::string operator()(const ConcatenateSpec&) const { return ""; }
  } const options;
  return layer.kind + std::visit(options, layer.options);
}

std::string ModelText(const ModelSpec& model) {
  std::string text;
  for (size_t i = 0; i < model.layers.size() && i < kMostLayers; ++i) {
    text += (i == 0 ? "" : ", ") + LayerText(model.layers[i]);
  }
  if (model.layers.size() > kMostLayers) {
    text += fmt::format(" and {} more layers", model.layers.size() - kMostLayers);
  }
  return text;
}

double LearningRate(const OptimizerOptions& options) {
  return std::visit([](const auto& o) { return o.common.learning_rate; }, options);
}

}  // namespace

std::vector<std::pair<std::string, std::string>> Summary(
    const ProgramSpec& program, std::span<const nn::Parameter> parameters) {
  int64_t count = 0;
  for (const nn::Parameter& p : parameters) count += p.type().num_elements();
  return {
      {"model", ModelText(program.model)},
      {"parameters", fmt::format("{}", count)},
      {"optimizer", fmt::format("{}, learning rate {}", program.optimizer.kind,
                                LearningRate(program.optimizer.options))},
      {"batch", fmt::format("{} examples", program.data.batch)},
      {"seed", fmt::format("{}", program.seed)},
  };
}

}  // namespace meshtrain::spec
