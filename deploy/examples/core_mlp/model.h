// A multilayer perceptron, its loss and its optimizer, piece by piece as in DTensor's tutorial.
#pragma once

#include <cmath>

#include "runtime/meshtrain.h"

namespace core_mlp {
using namespace meshtrain;           // NOLINT: an example reads better so
using namespace meshtrain::program;  // NOLINT

// activation(x @ weight + bias), Xavier-uniform weight in `layout`, zero bias in the same without
// its first dimension.
struct DenseLayer {
  static Result<DenseLayer> Create(Session& session, const std::string& name, int64_t in,
                                   int64_t out, const Layout& layout, bool relu, DType dtype) {
    const double xavier_lim = std::sqrt(6.0f) / std::sqrt(float(in + out));
    const auto uniform = [&] {
      return StatelessUniform({in, out}, /*seed=*/{22, 23}, -xavier_lim, xavier_lim, dtype);
    };
    MT_ASSIGN_OR_RETURN(const Variable weight,
                        DVariable::Create(session, name + ".kernel", layout, uniform));
    MT_ASSIGN_OR_RETURN(const Variable bias,
                        DVariable::Create(session, name + ".bias", layout.Delete({0}),
                                          [&] { return Zeros({out}, dtype); }));
    return DenseLayer{weight, bias, relu};
  }
  Value operator()(const Value& x) const {
    return relu ? Relu(MatMul(x, weight) + bias) : MatMul(x, weight) + bias;
  }
  Variable weight, bias;
  bool relu = false;
};

struct Mlp {
  // x: [batch, 28, 28] or [batch, 784].
  Value operator()(Value x) const {
    x = Reshape(x, {x.dims()[0], -1});
    for (const DenseLayer& layer : layers) x = layer(x);
    return x;
  }
  std::vector<Variable> variables() const {
    std::vector<Variable> all;
    for (const DenseLayer& layer : layers) all.insert(all.end(), {layer.weight, layer.bias});
    return all;
  }
  std::vector<DenseLayer> layers;
};

// Data parallel: weights whole everywhere. With an axis `model` the first kernel is split by its
// columns and the second by its rows, so one sum over the axis is all the forward pass needs.
inline std::vector<Layout> WeightLayouts(const Mesh& mesh) {
  const Layout whole = Layout::Replicated(mesh, 2);
  if (!mesh.FindAxis("model")) return {whole, whole, whole};
  return {Layout::FromSpecs({UNSHARDED, "model"}, mesh).value(),
          Layout::FromSpecs({"model", UNSHARDED}, mesh).value(), whole};
}

// 784 -> 700 relu -> 500 relu -> 10; `layouts`: of each layer's weight.
inline Result<Mlp> MakeMlp(Session& session, const std::vector<Layout>& layouts,
                           DType dtype = DType::kF32) {
  constexpr const char* kNames[] = {"hidden_1", "hidden_2", "logits"};
  constexpr int64_t kUnits[] = {784, 700, 500, 10};
  Mlp mlp;
  for (int i = 0; i < 3; ++i) {
    MT_ASSIGN_OR_RETURN(mlp.layers.emplace_back(),
                        DenseLayer::Create(session, kNames[i], kUnits[i], kUnits[i + 1], layouts[i],
                                           /*relu=*/i < 2, dtype));
  }
  return mlp;
}

// The tutorial's Adam: each slot is assigned first and then read back.
struct Adam {
  static Result<Adam> Create(Session& session, std::vector<Variable> model_vars) {
    Adam adam{.model_vars = std::move(model_vars)};
    Layout layout;
    for (const Variable& var : adam.model_vars) {
      MT_ASSIGN_OR_RETURN(layout, session.LayoutOf(var));
      const auto zeros = [&] { return Zeros(var.dims(), var.type().dtype); };
      for (const char* slot : {"m", "v"}) {
        const std::string name = std::string("optimizer.") + slot + "." + var.name();
        MT_ASSIGN_OR_RETURN(adam.slots.emplace_back(),
                            DVariable::Create(session, name, layout, zeros, /*trainable=*/false));
      }
    }
    const auto one = [] { return Ones({}, DType::kF64); };
    layout = Layout::Replicated(layout.mesh(), 0);
    MT_ASSIGN_OR_RETURN(adam.t, DVariable::Create(session, "optimizer.t", layout, one, false));
    return adam;
  }
  void ApplyGradients(const std::vector<Value>& grads) const {
    for (size_t i = 0; i < grads.size(); ++i) {
      const Variable &v = slots[2 * i], &s = slots[2 * i + 1];
      Assign(v, beta_1 * v + (1 - beta_1) * grads[i]);
      Assign(s, beta_2 * s + (1 - beta_2) * Square(grads[i]));
      const Value v_bc = v / Cast(1.0 - Pow(beta_1, t), v.type().dtype);
      const Value s_bc = s / Cast(1.0 - Pow(beta_2, t), s.type().dtype);
      AssignSub(model_vars[i], learning_rate * (v_bc / (Sqrt(s_bc) + ep)));
    }
    AssignAdd(t, 1.0);
  }
  std::vector<Variable> model_vars, slots;  // of each variable two slots, one behind the other
  Variable t;
  double learning_rate = 1e-3, beta_1 = 0.9, beta_2 = 0.999, ep = 1e-7;
};

inline Outputs TestStep(const Mlp& model, const Value& x, const Value& y) {
  const Value y_pred = model(x);
  const Value correct = Cast(Equal(ArgMax(y_pred, 1), Cast(y, DType::kI64)), DType::kF32);
  const Value loss = ReduceMean(SparseSoftmaxCrossEntropy(y_pred, y));
  return {{"loss", loss}, {"accuracy", ReduceMean(correct)}};
}

inline Outputs TrainStep(const Mlp& model, const Adam& optimizer, const Value& x, const Value& y) {
  Outputs figures = TestStep(model, x, y);
  optimizer.ApplyGradients(Gradient(figures[0].second, model.variables()));
  return figures;
}

// Splits a batch along the axis `batch`; the short last one may fall into unequal shards.
inline Result<DTensor> Repack(Session& session, const Tensor& x, const Mesh& mesh) {
  Layout layout = Layout::Replicated(mesh, x.type().rank());
  if (const auto batch = mesh.FindAxis("batch")) layout = layout.WithDim(0, {*batch});
  return RepackLocalTensor(session, x, layout, Uneven::kAllow);
}

}  // namespace core_mlp
