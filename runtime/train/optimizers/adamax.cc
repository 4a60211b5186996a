#include "runtime/train/by_name.h"
#include "runtime/train/optimizer.h"
#include "runtime/train/optimizers/shared.h"

namespace meshtrain::train {

using program::Assign;
using program::AssignAdd;
using program::AssignSub;

namespace {

class AdamaxOptimizer final : public Optimizer {
 public:
  explicit AdamaxOptimizer(AdamLikeOptions o) : Optimizer(o.common), o_(o) {}
  std::string_view kind() const override { return "adamax"; }

 protected:
  void Begin() override {
    alpha_.Set(learning_rate(DType::kF64) / (1.0 - program::Pow(o_.beta_1, StepNumber())));
  }
  void Update(const Parameter& w, const Value& g) override {
    const Parameter m = Slot("m", w);
    const Parameter u = Slot("u", w);
    AssignAdd(m, (g - m) * (1 - o_.beta_1));
    Assign(u, program::Maximum(o_.beta_2 * u, program::Abs(g)));
    AssignSub(w, alpha_.As(w) * m / (u + o_.epsilon));
  }

 private:
  AdamLikeOptions o_;
  Shared alpha_;
};

}  // namespace

std::unique_ptr<Optimizer> Adamax(AdamLikeOptions options) {
  return std::make_unique<AdamaxOptimizer>(options);
}

namespace by_name {

std::shared_ptr<Optimizer> Adamax(const Options& given) {
  AdamLikeOptions options;
  options.common = CommonOf(given, options.common);
  options.beta_1 = given.Number("beta_1", options.beta_1);
  options.beta_2 = given.Number("beta_2", options.beta_2);
  options.epsilon = given.Number("epsilon", options.epsilon);
  return train::Adamax(options);
}

}  // namespace by_name
}  // namespace meshtrain::train
