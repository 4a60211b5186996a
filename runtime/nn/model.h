// Models made of layers: a chain, or a graph.
//
//   nn::Sequential model(nn::Flatten(),
//                        nn::Dense(128, {.activation = nn::ActivationKind::kRelu}),
//                        nn::Dense(10));
//   Value logits = model(x);  // dense.kernel, dense.bias, dense_1.kernel, dense_1.bias
//
//   nn::Symbol x = nn::Input();
//   nn::Symbol a = nn::Apply(nn::Make<nn::Dense>(16, ...), x);
//   nn::Functional model({x}, nn::Apply(nn::Make<nn::Add>(), {a, x}));
//   nn::Functional heads({x}, {{"digit", a}, {"parity", nn::Apply(nn::Make<nn::Dense>(1), a)}});
//
// A layer without a name is called after its kind, with _1, _2 ... behind all but the first of one
// model.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "runtime/nn/layer.h"
#include "runtime/nn/layers.h"

namespace meshtrain::nn {

using LayerPtr = std::shared_ptr<Layer>;

template <typename L, typename... Args>
LayerPtr Make(Args&&... args) {
  return std::make_shared<L>(std::forward<Args>(args)...);
}

class Sequential final : public Layer {
 public:
  explicit Sequential(std::vector<LayerPtr> layers, std::string name = "");
  // Takes layers by value.
  template <typename... Layers>
  requires(sizeof...(Layers) > 0 &&
           (std::is_base_of_v<Layer, Layers> && ...)) explicit Sequential(Layers&&... layers)
      : Sequential(std::vector<LayerPtr>{std::make_shared<Layers>(std::move(layers))...}) {}
  Sequential(Sequential&&) = default;
  std::string_view kind() const override { return "sequential"; }
  bool by_position() const override { return true; }
  const std::vector<LayerPtr>& layers() const { return layers_; }

 protected:
  Value Call(const Value& x) override;

 private:
  std::vector<LayerPtr> layers_;
};

// What a layer will give, before there is a program. A cheap handle on a node of an immutable
// graph.
class Symbol {
 public:
  struct Node {
    LayerPtr layer;  // null: an input
    std::vector<Symbol> inputs;
  };
  explicit Symbol(std::shared_ptr<const Node> node) : node_(std::move(node)) {}
  const Node& node() const { return *node_; }
  friend bool operator==(const Symbol&, const Symbol&) = default;

 private:
  std::shared_ptr<const Node> node_;
};

Symbol Input();
Symbol Apply(LayerPtr layer, std::vector<Symbol> inputs);
inline Symbol Apply(LayerPtr layer, const Symbol& input) {
  return Apply(std::move(layer), std::vector<Symbol>{input});
}

// One of several things that a model gives.
struct NamedSymbol {
  std::string name;
  Symbol symbol;
};

// The model from `inputs` to its output or outputs, whose names are not empty and differ. A layer
// that stands at several nodes is called at each, with the same weights.
class Functional final : public Layer {
 public:
  Functional(std::vector<Symbol> inputs, Symbol output, std::string name = "");
  Functional(std::vector<Symbol> inputs, std::vector<NamedSymbol> outputs, std::string name = "");
  Functional(Functional&&) = default;
  std::vector<std::string> outputs() const override;
  std::string_view kind() const override { return "functional"; }
  bool by_position() const override { return true; }
  // Each once, operands before users.
  const std::vector<LayerPtr>& layers() const { return layers_; }

 protected:
  std::vector<Value> CallAll(std::span<const Value> inputs) override;

 private:
  void Walk();  // fills what follows

  std::vector<Symbol> inputs_;
  std::vector<NamedSymbol> outputs_;  // of one output: with the name ""
  std::vector<Symbol> order_;         // every node that the outputs need, operands before users
  std::vector<LayerPtr> layers_;
};

// Names for the layers that have none, as said above. Used by the models.
void NameLayers(const std::vector<LayerPtr>& layers);

}  // namespace meshtrain::nn
