#include "runtime/train/by_name.h"
#include "runtime/train/optimizer.h"
#include "runtime/train/optimizers/shared.h"

namespace meshtrain::train {

using program::Assign;
using program::AssignAdd;
using program::AssignSub;

namespace {

// Dozat 2016, with Keras' schedule of the momentum: beta_1 * (1 - 0.5 * 0.96^t).
class NadamOptimizer final : public Optimizer {
 public:
  explicit NadamOptimizer(AdamLikeOptions o) : Optimizer(o.common), o_(o) {}
  std::string_view kind() const override { return "nadam"; }

 protected:
  void Begin() override {
    const Value t = StepNumber();
    const Value u = o_.beta_1 * (1.0 - 0.5 * program::Pow(0.96, t));
    const Value u_next = o_.beta_1 * (1.0 - 0.5 * program::Pow(0.96, t + 1.0));
    const Parameter product = Scalar("u_product", DType::kF64, 1);
    Assign(product, product * u);
    momentum_.Set(u_next / (1.0 - product * u_next));
    gradient_.Set((1.0 - u) / (1.0 - product));
    correction_2_.Set(1.0 - program::Pow(o_.beta_2, t));
  }
  void Update(const Parameter& w, const Value& g) override {
    const Parameter m = Slot("m", w);
    const Parameter v = Slot("v", w);
    AssignAdd(m, (g - m) * (1 - o_.beta_1));
    AssignAdd(v, (program::Square(g) - v) * (1 - o_.beta_2));
    const Value m_hat = momentum_.As(w) * m + gradient_.As(w) * g;
    const Value v_hat = v / correction_2_.As(w);
    AssignSub(w, m_hat * learning_rate(w.type().dtype) / (program::Sqrt(v_hat) + o_.epsilon));
  }

 private:
  AdamLikeOptions o_;
  Shared momentum_;
  Shared gradient_;
  Shared correction_2_;
};

}  // namespace

std::unique_ptr<Optimizer> Nadam(AdamLikeOptions options) {
  return std::make_unique<NadamOptimizer>(options);
}

namespace by_name {

std::shared_ptr<Optimizer> Nadam(const Options& given) {
  AdamLikeOptions options;
  options.common = CommonOf(given, options.common);
  options.beta_1 = given.Number("beta_1", options.beta_1);
  options.beta_2 = given.Number("beta_2", options.beta_2);
  options.epsilon = given.Number("epsilon", options.epsilon);
  return train::Nadam(options);
}

}  // namespace by_name
}  // namespace meshtrain::train
