#include <map>

#include "runtime/train/by_name.h"
#include "runtime/train/optimizer.h"

namespace meshtrain::train {

using program::Assign;
using program::AssignAdd;
using program::AssignSub;

namespace {

class AdamOptimizer final : public Optimizer {
 public:
  AdamOptimizer(AdamOptions o, std::string_view kind) : Optimizer(o.common), o_(o), kind_(kind) {}
  std::string_view kind() const override { return kind_; }

 protected:
  void Begin() override {
    t_ = StepNumber();
    alphas_.clear();
  }
  void Update(const Parameter& w, const Value& g) override {
    const Parameter m = Slot("m", w);
    const Parameter v = Slot("v", w);
    AssignAdd(m, (g - m) * (1 - o_.beta_1));
    AssignAdd(v, (program::Square(g) - v) * (1 - o_.beta_2));
    Parameter scale = v;
    if (o_.amsgrad) {
      scale = Slot("v_max", w);
      Assign(scale, program::Maximum(scale, v));
    }
    AssignSub(w, m * AlphaFor(w.type().dtype) / (program::Sqrt(scale) + o_.epsilon));
  }

 private:
  // In the weight's own type, as Keras does: in f32, 1 - 0.999^t is off by 5e-5 at first, and
  // Keras' losses with it.
  Value AlphaFor(DType dtype) {
    const auto [alpha, is_new] = alphas_.try_emplace(dtype);
    if (is_new) {
      const Value t = dtype == t_.dtype() ? t_ : program::Cast(t_, dtype);
      alpha->second = learning_rate(dtype) * program::Sqrt(1.0 - program::Pow(o_.beta_2, t)) /
                      (1.0 - program::Pow(o_.beta_1, t));
    }
    return alpha->second;
  }

  AdamOptions o_;
  std::string_view kind_;
  Value t_;
  std::map<DType, Value> alphas_;  // one for all weights of a type
};

// Of Adam and its variant with weights that decay.
AdamOptions OptionsOf(const Options& given) {
  AdamOptions options;
  options.common = CommonOf(given, options.common);
  options.beta_1 = given.Number("beta_1", options.beta_1);
  options.beta_2 = given.Number("beta_2", options.beta_2);
  options.epsilon = given.Number("epsilon", options.epsilon);
  options.amsgrad = given.Bool("amsgrad", options.amsgrad);
  return options;
}

}  // namespace

std::unique_ptr<Optimizer> Adam(AdamOptions options) {
  return std::make_unique<AdamOptimizer>(options, "adam");
}
std::unique_ptr<Optimizer> AdamW(AdamOptions options) {
  if (!options.common.weight_decay) options.common.weight_decay = 0.004;
  return std::make_unique<AdamOptimizer>(options, "adamw");
}

namespace by_name {

std::shared_ptr<Optimizer> Adam(const Options& given) { return train::Adam(OptionsOf(given)); }
std::shared_ptr<Optimizer> AdamW(const Options& given) { return train::AdamW(OptionsOf(given)); }

}  // namespace by_name
}  // namespace meshtrain::train
