// Gradient descent and the optimizers that scale it by past gradients, without bias correction.
#include "runtime/train/optimizer.h"

namespace meshtrain::train {

using program::Assign;
using program::AssignAdd;
using program::AssignSub;

namespace {

class SgdOptimizer final : public Optimizer {
 public:
  explicit SgdOptimizer(SgdOptions o) : Optimizer(o.common), o_(o) {}
  std::string_view kind() const override { return "sgd"; }

 protected:
  void Update(const Parameter& w, const Value& g) override {
    const Value step = g * learning_rate();
    if (o_.momentum == 0) return AssignSub(w, step);
    const Parameter m = Slot("momentum", w);
    Assign(m, m * o_.momentum - step);
    if (o_.nesterov) {
      AssignAdd(w, m * o_.momentum - step);
    } else {
      AssignAdd(w, m);
    }
  }

 private:
  SgdOptions o_;
};

class RmspropOptimizer final : public Optimizer {
 public:
  explicit RmspropOptimizer(RmspropOptions o) : Optimizer(o.common), o_(o) {}
  std::string_view kind() const override { return "rmsprop"; }

 protected:
  void Update(const Parameter& w, const Value& g) override {
    const Parameter v = Slot("velocity", w);
    Assign(v, o_.rho * v + (1 - o_.rho) * program::Square(g));
    Value under = v + o_.epsilon;
    if (o_.centered) {
      const Parameter mean = Slot("average_gradient", w);
      Assign(mean, o_.rho * mean + (1 - o_.rho) * g);
      under = v - program::Square(mean) + o_.epsilon;
    }
    const Value step = learning_rate() * g * program::Rsqrt(under);
    if (o_.momentum == 0) return AssignSub(w, step);
    const Parameter m = Slot("momentum", w);
    Assign(m, o_.momentum * m + step);
    AssignSub(w, m);
  }

 private:
  RmspropOptions o_;
};

class AdagradOptimizer final : public Optimizer {
 public:
  explicit AdagradOptimizer(AdagradOptions o) : Optimizer(o.common), o_(o) {}
  std::string_view kind() const override { return "adagrad"; }

 protected:
  void Update(const Parameter& w, const Value& g) override {
    const Parameter sum =
        Slot("accumulator", w, nn::Initializer::Constant(o_.initial_accumulator_value));
    AssignAdd(sum, program::Square(g));
    AssignSub(w, learning_rate() * g / program::Sqrt(sum + o_.epsilon));
  }

 private:
  AdagradOptions o_;
};

// McMahan et al. 2013, "Ad Click Prediction", algorithm 1, with Keras' shrinkage.
class FtrlOptimizer final : public Optimizer {
 public:
  explicit FtrlOptimizer(FtrlOptions o) : Optimizer(o.common), o_(o) {}
  std::string_view kind() const override { return "ftrl"; }

 protected:
  void Update(const Parameter& w, const Value& g) override {
    const Parameter sum =
        Slot("accumulator", w, nn::Initializer::Constant(o_.initial_accumulator_value));
    const Parameter linear = Slot("linear", w);
    const double lr = learning_rate();
    const double l2 = o_.l2_regularization_strength + o_.beta / (2 * lr);
    const double shrinkage = 2 * o_.l2_shrinkage_regularization_strength;
    const Value shrunk = shrinkage == 0 ? g : g + shrinkage * w;
    const Value before = program::Pow(sum, -o_.learning_rate_power);
    AssignAdd(sum, program::Square(g));
    const Value after = program::Pow(sum, -o_.learning_rate_power);
    AssignAdd(linear, shrunk - (after - before) / lr * w);
    const double l1 = o_.l1_regularization_strength;
    Assign(w, (program::ClipByValue(linear, -l1, l1) - linear) / (after / lr + 2 * l2));
  }

 private:
  FtrlOptions o_;
};

}  // namespace

std::unique_ptr<Optimizer> Sgd(SgdOptions options) {
  return std::make_unique<SgdOptimizer>(options);
}
std::unique_ptr<Optimizer> Rmsprop(RmspropOptions options) {
  return std::make_unique<RmspropOptimizer>(options);
}
std::unique_ptr<Optimizer> Adagrad(AdagradOptions options) {
  return std::make_unique<AdagradOptimizer>(options);
}
std::unique_ptr<Optimizer> Ftrl(FtrlOptions options) {
  return std::make_unique<FtrlOptimizer>(options);
}

}  // namespace meshtrain::train
