// The core MLP example: a multilayer perceptron, its loss and an optimizer of its own, written
// against the core API only. It follows the DTensor Core tutorial piece by piece.
#pragma once

#include <cmath>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "runtime/meshtrain.h"

namespace core_mlp {

using namespace meshtrain;           // NOLINT: an example reads better so
using namespace meshtrain::program;  // NOLINT

using Activation = std::function<Value(const Value&)>;
inline Value Identity(const Value& x) { return x; }
inline Value ReluActivation(const Value& x) { return Relu(x); }

// activation(x @ w + b), Xavier-uniform w in `weight_layout`, zero b in the same layout without its
// first dimension.
class DenseLayer {
 public:
  static Result<DenseLayer> Create(Session& session, const std::string& name, int64_t in,
                                   int64_t out, const Layout& weight_layout,
                                   Activation activation = Identity, DType dtype = DType::kF32) {
    const double xavier_lim = std::sqrt(6.0f) / std::sqrt(static_cast<float>(in + out));
    MT_ASSIGN_OR_RETURN(
        const DTensor w, CallWithLayout(session, weight_layout, [&] {
          return StatelessUniform({in, out}, /*seed=*/{22, 23}, -xavier_lim, xavier_lim, dtype);
        }));
    const Layout bias_layout = weight_layout.Delete({0});
    MT_ASSIGN_OR_RETURN(const DTensor b,
                        CallWithLayout(session, bias_layout, [&] { return Zeros({out}, dtype); }));
    DenseLayer layer;
    layer.activation_ = std::move(activation);
    MT_ASSIGN_OR_RETURN(layer.w_, DVariable::Create(session, name + ".kernel", w));
    MT_ASSIGN_OR_RETURN(layer.b_, DVariable::Create(session, name + ".bias", b));
    return layer;
  }

  Value operator()(const Value& x) const { return activation_(MatMul(x, w_) + b_); }
  std::vector<DVariable> variables() const { return {w_, b_}; }

 private:
  Activation activation_;
  DVariable w_, b_;
};

class Mlp {
 public:
  Mlp() = default;
  explicit Mlp(std::vector<DenseLayer> layers) : layers_(std::move(layers)) {}
  // x: [batch, 28, 28] or [batch, 784].
  Value operator()(Value x) const {
    x = Reshape(x, {x.dims()[0], -1});
    for (const DenseLayer& layer : layers_) x = layer(x);
    return x;
  }
  std::vector<DVariable> variables() const {
    std::vector<DVariable> all;
    for (const DenseLayer& layer : layers_) {
      for (const DVariable& v : layer.variables()) all.push_back(v);
    }
    return all;
  }
  std::vector<Variable> trainable() const {
    const std::vector<DVariable> all = variables();
    return {all.begin(), all.end()};
  }

 private:
  std::vector<DenseLayer> layers_;
};

// Weight layouts of the three layers. Data parallel: whole everywhere. With an axis `model`, the
// first kernel is split by its columns and the second by its rows, so one sum over the axis is all
// the forward pass needs.
inline std::vector<Layout> WeightLayouts(const Mesh& mesh) {
  const Layout whole = Layout::Replicated(mesh, 2);
  const auto model = mesh.FindAxis("model");
  if (!model) return {whole, whole, whole};
  return {whole.WithDim(1, {*model}), whole.WithDim(0, {*model}), whole};
}

// 784 -> 700 relu -> 500 relu -> 10. `layouts` holds each layer's weight layout, from the first to
// the last.
inline Result<Mlp> MakeMlp(Session& session, const std::vector<Layout>& layouts,
                           DType dtype = DType::kF32) {
  MT_ASSIGN_OR_RETURN(DenseLayer hidden_1, DenseLayer::Create(session, "hidden_1", 784, 700,
                                                              layouts[0], ReluActivation, dtype));
  MT_ASSIGN_OR_RETURN(DenseLayer hidden_2, DenseLayer::Create(session, "hidden_2", 700, 500,
                                                              layouts[1], ReluActivation, dtype));
  MT_ASSIGN_OR_RETURN(DenseLayer logits,
                      DenseLayer::Create(session, "logits", 500, 10, layouts[2], Identity, dtype));
  return Mlp({std::move(hidden_1), std::move(hidden_2), std::move(logits)});
}

inline Value CrossEntropyLoss(const Value& y_pred, const Value& y) {
  return ReduceMean(SparseSoftmaxCrossEntropy(y_pred, y));
}

inline Value Accuracy(const Value& y_pred, const Value& y) {
  return ReduceMean(Cast(Equal(ArgMax(y_pred, 1), Cast(y, DType::kI64)), DType::kF32));
}

// The tutorial's Adam: each slot is assigned first and then read back.
class Adam {
 public:
  static Result<Adam> Create(Session& session, const std::vector<DVariable>& model_vars,
                             double learning_rate = 1e-3, double beta_1 = 0.9,
                             double beta_2 = 0.999, double ep = 1e-7) {
    Adam adam;
    adam.model_vars_ = model_vars;
    adam.learning_rate_ = learning_rate;
    adam.beta_1_ = beta_1;
    adam.beta_2_ = beta_2;
    adam.ep_ = ep;
    const auto zeros_like = [&](const DVariable& var,
                                const std::string& slot) -> Result<DVariable> {
      MT_ASSIGN_OR_RETURN(const Layout layout, var.layout());
      MT_ASSIGN_OR_RETURN(const DTensor zeros, CallWithLayout(session, layout, [&] {
                            return Zeros(var.dims(), var.type().dtype);
                          }));
      return DVariable::Create(session, "optimizer." + slot + "." + var.name(), zeros,
                               /*trainable=*/false);
    };
    for (const DVariable& var : model_vars) {
      MT_ASSIGN_OR_RETURN(DVariable v, zeros_like(var, "m"));
      MT_ASSIGN_OR_RETURN(DVariable s, zeros_like(var, "v"));
      adam.v_dvar_.push_back(std::move(v));
      adam.s_dvar_.push_back(std::move(s));
    }
    MT_ASSIGN_OR_RETURN(const Layout layout, model_vars[0].layout());
    MT_ASSIGN_OR_RETURN(
        const DTensor one,
        session.CopyToMesh(Tensor::Scalar(1.0), Layout::Replicated(layout.mesh(), 0)));
    MT_ASSIGN_OR_RETURN(adam.t_,
                        DVariable::Create(session, "optimizer.t", one, /*trainable=*/false));
    return adam;
  }

  void ApplyGradients(const std::vector<Value>& grads) const {
    for (size_t i = 0; i < grads.size(); ++i) {
      const DVariable& var = model_vars_[i];
      const DType dtype = var.type().dtype;
      Assign(v_dvar_[i], beta_1_ * v_dvar_[i] + (1 - beta_1_) * grads[i]);
      Assign(s_dvar_[i], beta_2_ * s_dvar_[i] + (1 - beta_2_) * Square(grads[i]));
      const Value v_bc = v_dvar_[i] / Cast(1.0 - Pow(beta_1_, t_), dtype);
      const Value s_bc = s_dvar_[i] / Cast(1.0 - Pow(beta_2_, t_), dtype);
      AssignSub(var, learning_rate_ * (v_bc / (Sqrt(s_bc) + ep_)));
    }
    AssignAdd(t_, 1.0);
  }
  // Its slots and its count of steps: with the model's, all that a later step depends on.
  std::vector<DVariable> variables() const {
    std::vector<DVariable> all = v_dvar_;
    all.insert(all.end(), s_dvar_.begin(), s_dvar_.end());
    all.push_back(t_);
    return all;
  }

 private:
  std::vector<DVariable> model_vars_, v_dvar_, s_dvar_;
  DVariable t_;
  double learning_rate_ = 0, beta_1_ = 0, beta_2_ = 0, ep_ = 0;
};

inline Outputs TrainStep(const Mlp& model, const Adam& optimizer, const Value& x, const Value& y) {
  const Value y_pred = model(x);
  const Value batch_loss = CrossEntropyLoss(y_pred, y);
  const std::vector<Value> grads = Gradient(batch_loss, model.trainable());
  optimizer.ApplyGradients(grads);
  return {{"loss", batch_loss}, {"accuracy", Accuracy(y_pred, y)}};
}

inline Outputs TestStep(const Mlp& model, const Value& x, const Value& y) {
  const Value y_pred = model(x);
  return {{"loss", CrossEntropyLoss(y_pred, y)}, {"accuracy", Accuracy(y_pred, y)}};
}

// Split along the mesh's axis `batch`, where it has one.
inline Layout BatchLayout(const Mesh& mesh, int rank) {
  const Layout whole = Layout::Replicated(mesh, rank);
  const auto batch = mesh.FindAxis("batch");
  return batch ? whole.WithDim(0, {*batch}) : whole;
}

// An axis that neither the batches nor the weights use would do no work.
inline Status CheckMesh(const Mesh& mesh) {
  const std::vector<Layout> weights = WeightLayouts(mesh);
  return CheckAxesUsed(
      mesh,
      {.inputs = {{"x", BatchLayout(mesh, 3)}, {"y", BatchLayout(mesh, 1)}},
       .states = {{"hidden_1", weights[0]}, {"hidden_2", weights[1]}, {"logits", weights[2]}}});
}

// Splits a batch; the short last one of an epoch may fall into unequal shards.
inline Result<std::pair<DTensor, DTensor>> RepackBatch(Session& session, const Tensor& x,
                                                       const Tensor& y, const Mesh& mesh) {
  const Layout x_layout = BatchLayout(mesh, x.type().rank());
  const Layout y_layout = BatchLayout(mesh, y.type().rank());
  MT_ASSIGN_OR_RETURN(DTensor xs, RepackLocalTensor(session, x, x_layout, Uneven::kAllow));
  MT_ASSIGN_OR_RETURN(DTensor ys, RepackLocalTensor(session, y, y_layout, Uneven::kAllow));
  return std::pair(std::move(xs), std::move(ys));
}

}  // namespace core_mlp
