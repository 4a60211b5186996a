#include "runtime/nn/model.h"

#include <algorithm>
#include <map>
#include <set>

#include "runtime/base/text.h"

namespace meshtrain::nn {

void NameLayers(const std::vector<LayerPtr>& layers) {
  std::set<std::string, std::less<>> taken;
  for (const LayerPtr& layer : layers) taken.insert(layer->name());
  for (const LayerPtr& layer : layers) {
    if (!layer->name().empty()) continue;
    std::string name(layer->kind());
    for (int n = 1; taken.contains(name); ++n) {
      name = std::string(layer->kind()) + "_" + std::to_string(n);
    }
    taken.insert(name);
    layer->set_name(name);
  }
}

Sequential::Sequential(std::vector<LayerPtr> layers, std::string name)
    : Layer(std::move(name)), layers_(std::move(layers)) {
  NameLayers(layers_);
}

Value Sequential::Call(const Value& x) {
  Value value = x;
  for (const LayerPtr& layer : layers_) value = (*layer)(value);
  return value;
}

Symbol Input() { return Symbol(std::make_shared<const Symbol::Node>()); }

Symbol Apply(LayerPtr layer, std::vector<Symbol> inputs) {
  return Symbol(
      std::make_shared<const Symbol::Node>(Symbol::Node{std::move(layer), std::move(inputs)}));
}

Functional::Functional(std::vector<Symbol> inputs, Symbol output, std::string name)
    : Layer(std::move(name)), inputs_(std::move(inputs)), outputs_{{"", std::move(output)}} {
  Walk();
}

Functional::Functional(std::vector<Symbol> inputs, std::vector<NamedSymbol> outputs,
                       std::string name)
    : Layer(std::move(name)), inputs_(std::move(inputs)), outputs_(std::move(outputs)) {
  Walk();
}

void Functional::Walk() {
  // Depth first with a stack of our own: a model may be a chain of any length.
  std::set<const Symbol::Node*> seen;
  std::vector<std::pair<Symbol, size_t>> stack;
  // The first output is on top.
  for (size_t i = outputs_.size(); i-- > 0;) stack.emplace_back(outputs_[i].symbol, 0);
  while (!stack.empty()) {
    auto& [symbol, next] = stack.back();
    if (next == 0 && !seen.insert(&symbol.node()).second) {
      stack.pop_back();
      continue;
    }
    if (next < symbol.node().inputs.size()) {
      const Symbol input = symbol.node().inputs[next++];
      stack.emplace_back(input, 0);
      continue;
    }
    order_.push_back(symbol);
    if (const LayerPtr& layer = symbol.node().layer;
        layer != nullptr && std::find(layers_.begin(), layers_.end(), layer) == layers_.end()) {
      layers_.push_back(layer);
    }
    stack.pop_back();
  }
  NameLayers(layers_);
}

std::vector<std::string> Functional::outputs() const {
  std::vector<std::string> names;
  for (const NamedSymbol& output : outputs_) names.push_back(output.name);
  return names;
}

std::vector<Value> Functional::CallAll(std::span<const Value> inputs) {
  if (inputs.size() != inputs_.size()) {
    Fail(InvalidArgument("the model takes " + std::to_string(inputs_.size()) +
                         " inputs, got: " + std::to_string(inputs.size())));
    return {};
  }
  const std::vector<std::string> names = outputs();
  const std::set<std::string> distinct(names.begin(), names.end());
  if (names.empty() || distinct.size() != names.size() ||
      (names.size() > 1 && distinct.contains(""))) {
    Fail(InvalidArgument("the model expected outputs with a name each, no two alike, got: " +
                         (names.empty() ? "none" : "`" + Join(names, "`, `") + "`")));
    return {};
  }
  std::map<const Symbol::Node*, Value> values;
  for (size_t i = 0; i < inputs.size(); ++i) values[&inputs_[i].node()] = inputs[i];
  for (const Symbol& symbol : order_) {
    if (values.contains(&symbol.node())) continue;
    if (symbol.node().layer == nullptr) {
      Fail(InvalidArgument("the model uses an Input that is not one of its inputs"));
      return {};
    }
    std::vector<Value> operands;
    for (const Symbol& input : symbol.node().inputs) operands.push_back(values[&input.node()]);
    values[&symbol.node()] = (*symbol.node().layer)(std::span<const Value>(operands));
  }
  std::vector<Value> made;
  for (const NamedSymbol& output : outputs_) made.push_back(values[&output.symbol.node()]);
  return made;
}

}  // namespace meshtrain::nn
