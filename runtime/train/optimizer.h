// Optimizers record how a step changes the weights, given their gradients; they compute nothing
// themselves.
//
// Their state is made of variables: per weight `optimizer.m.hidden_1.kernel` with the weight's type
// and layout, and scalars such as `optimizer.iterations`. They are made on the first Apply and are
// the same in every program traced after, so a program for the short last batch goes on with the
// same state. A weight's slots are its own: another weight of its path and type, as in a second
// model, is refused as long as the first one lives. Formulas and order are Keras 3's (clip the
// gradients, decay the weights, update, count), except for AdamPaper.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "runtime/nn/parameter.h"

namespace meshtrain::train {

using nn::Parameter;
using program::DType;
using program::Value;

// How far a step goes: a number, or a value of the program, which follows from the steps before.
// Schedules have a header of their own (schedules.h); a function does as well:
//
//   train::Sgd({.common = {.learning_rate = {[](const Value& step) { return 0.1 / (1 + step); },
//                                            "0.1 / (1 + step)"}}})
class LearningRate {
 public:
  // `step`: an f64 scalar, how many steps the optimizer has made before this one. Records an f64
  // scalar.
  using Schedule = std::function<Value(const Value& step)>;
  // Implicit: options are written with numbers.
  LearningRate(double constant) : constant_(constant) {}  // NOLINT(google-explicit-constructor)
  LearningRate(Schedule schedule, std::string text)
      : schedule_(std::move(schedule)), text_(std::move(text)) {}

  bool is_constant() const { return schedule_ == nullptr; }
  double constant() const { return constant_; }  // where it is one
  // Where it is none.
  Value Record(const Value& step) const { return schedule_(step); }
  std::string ToString() const;  // for people: "0.001", "exponential_decay from 0.1"

 private:
  double constant_ = 0;
  Schedule schedule_;
  std::string text_;
};

// What every optimizer takes.
struct OptimizerOptions {
  LearningRate learning_rate = 0.001;
  // At most one of the three clips.
  std::optional<double> clipnorm;         // each gradient scaled down to this length
  std::optional<double> global_clipnorm;  // all of them together
  std::optional<double> clipvalue;        // each element
  std::optional<double> weight_decay;  // w -= w * weight_decay * learning_rate, before the update
  // Weights whose path contains one of these do not: "bias", "ln1.gamma".
  std::vector<std::string> exclude_from_weight_decay = {};

  bool Decays(std::string_view path) const;
};

// How gradients go together on their way between devices: in so many packs of about the same size,
// 0: each gradient alone; or in packs of so many bytes.
struct Packing {
  std::optional<int64_t> num_packs;
  std::optional<int64_t> bytes_per_pack;
  bool given() const { return num_packs || bytes_per_pack; }
};

// While it lives, optimizers of this thread hand their gradients to `reduce` before they do
// anything with them, and go on with what it gives back: how a strategy sums gradients over its
// replicas. Of nested scopes the innermost counts.
class GradientScope {
 public:
  using Reduce = std::function<std::vector<Value>(std::span<const Value>)>;
  explicit GradientScope(Reduce reduce);
  ~GradientScope();
  GradientScope(const GradientScope&) = delete;
  GradientScope& operator=(const GradientScope&) = delete;

 private:
  friend class Optimizer;
  Reduce reduce_;
  GradientScope* previous_;
};

// One thread at a time, that of the builder.
class Optimizer {
 public:
  virtual ~Optimizer() = default;
  Optimizer(const Optimizer&) = delete;
  Optimizer& operator=(const Optimizer&) = delete;
  virtual std::string_view kind() const = 0;  // "adam", as the manifest spells it

  // Records one step in the current builder: reads and assigns the weights and the slots.
  // `gradients[i]` is of weights[i], and watched (Builder::WatchGradient). Call once per program.
  // The builder fails with kInvalidArgument for a clip that is not above 0, for several clips, and
  // for a weight whose slots another one has.
  void Apply(std::span<const Parameter> weights, std::span<const Value> gradients);
  // Apply, with the gradients of the scalar `loss` to those of `weights` that are trainable.
  void Minimize(const Value& loss, std::span<const Parameter> weights);
  // Its state, in the order in which it was made; empty before the first Apply.
  const std::vector<Parameter>& slots() const { return slots_; }
  const OptimizerOptions& common() const { return common_; }

 protected:
  explicit Optimizer(OptimizerOptions common) : common_(std::move(common)) {}

  // Before the weights: what they share.
  virtual void Begin() {}
  virtual void Update(const Parameter& weight, const Value& gradient) = 0;
  // After the weights: counts steps in what the optimizer counts them in itself.
  virtual void End() {}

  // `optimizer.<kind>.<path of weight>`.
  Parameter Slot(std::string_view kind, const Parameter& weight,
                 nn::Initializer initial = nn::Initializer::Zeros());
  // `optimizer.<name>`, a scalar.
  Parameter Scalar(std::string_view name, DType dtype, double initial);
  // The number of this step, from 1, as an f64 scalar: `optimizer.iterations` + 1. What has asked
  // for it once is counted after the weights.
  Value StepNumber();
  // Of this step, in the type of a weight; from Begin to End.
  program::Operand learning_rate(DType dtype);

 private:
  Parameter Find(std::string path, program::TensorType type, nn::Initializer initial,
                 nn::ParameterOptions options);
  OptimizerOptions common_;
  std::map<DType, Value> rates_;  // of this step, where the learning rate is no constant
  std::vector<Parameter> slots_;
  std::map<std::string, size_t> place_of_;  // in slots_, by name and type
  struct Owner {
    const void* key = nullptr;          // Variable::key
    std::weak_ptr<const void> holders;  // Parameter::holders
  };
  std::map<std::string, Owner> owners_;  // whose weight a slot is, by the slot's name and type
};

// Keras' Adam: w -= alpha * m / (sqrt(v) + epsilon), alpha = learning_rate * sqrt(1 - beta_2^t) /
// (1 - beta_1^t). With amsgrad, v's running maximum stands in its place. alpha is computed in the
// weight's type, as Keras computes it.
struct AdamOptions {
  OptimizerOptions common;
  double beta_1 = 0.9;
  double beta_2 = 0.999;
  double epsilon = 1e-7;
  bool amsgrad = false;
};
std::unique_ptr<Optimizer> Adam(AdamOptions options = {});
// Adam with weights that decay (0.004 where none is given).
std::unique_ptr<Optimizer> AdamW(AdamOptions options = {});

// The one of Kingma & Ba 2014 that DTensor's tutorial writes: m_hat = m / (1 - beta_1^t), v_hat = v
// / (1 - beta_2^t), w -= learning_rate * m_hat / (sqrt(v_hat) + epsilon). Slots are assigned first
// and then read back. t is the variable `optimizer.t`, an f64 scalar that begins at 1; 1 - beta and
// the corrections are computed in f64 (1 - 0.999f would be wrong by 5e-5).
struct AdamPaperOptions {
  OptimizerOptions common;
  double beta_1 = 0.9;
  double beta_2 = 0.999;
  double epsilon = 1e-7;
};
std::unique_ptr<Optimizer> AdamPaper(AdamPaperOptions options = {});

struct SgdOptions {
  OptimizerOptions common = {.learning_rate = 0.01};
  double momentum = 0;
  bool nesterov = false;
};
std::unique_ptr<Optimizer> Sgd(SgdOptions options = {});

struct RmspropOptions {
  OptimizerOptions common;
  double rho = 0.9;
  double momentum = 0;
  double epsilon = 1e-7;
  bool centered = false;
};
std::unique_ptr<Optimizer> Rmsprop(RmspropOptions options = {});

struct AdagradOptions {
  OptimizerOptions common;
  double initial_accumulator_value = 0.1;
  double epsilon = 1e-7;
};
std::unique_ptr<Optimizer> Adagrad(AdagradOptions options = {});

// Adamax and Nadam (the variants of Adam by its infinity norm, and with Nesterov's momentum).
struct AdamLikeOptions {
  OptimizerOptions common;
  double beta_1 = 0.9;
  double beta_2 = 0.999;
  double epsilon = 1e-7;
};
std::unique_ptr<Optimizer> Adamax(AdamLikeOptions options = {});
std::unique_ptr<Optimizer> Nadam(AdamLikeOptions options = {});

struct FtrlOptions {
  OptimizerOptions common;
  double learning_rate_power = -0.5;
  double initial_accumulator_value = 0.1;
  double l1_regularization_strength = 0;
  double l2_regularization_strength = 0;
  double l2_shrinkage_regularization_strength = 0;
  double beta = 0;
};
std::unique_ptr<Optimizer> Ftrl(FtrlOptions options = {});

struct LionOptions {
  OptimizerOptions common;
  double beta_1 = 0.9;
  double beta_2 = 0.99;
};
std::unique_ptr<Optimizer> Lion(LionOptions options = {});

}  // namespace meshtrain::train
