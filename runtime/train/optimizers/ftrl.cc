#include "runtime/train/by_name.h"
#include "runtime/train/optimizer.h"

namespace meshtrain::train {

using program::Assign;
using program::AssignAdd;

namespace {

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
    const program::Operand lr = learning_rate(w.type().dtype);
    const double shrinkage = 2 * o_.l2_shrinkage_regularization_strength;
    const Value shrunk = shrinkage == 0 ? g : g + shrinkage * w;
    const Value before = program::Pow(sum, -o_.learning_rate_power);
    AssignAdd(sum, program::Square(g));
    const Value after = program::Pow(sum, -o_.learning_rate_power);
    AssignAdd(linear, shrunk - (after - before) / lr * w);
    const double l1 = o_.l1_regularization_strength;
    Assign(w, (program::ClipByValue(linear, -l1, l1) - linear) / (after / lr + TwiceL2(lr)));
  }

 private:
  // 2 * (l2 + beta / (2 * rate)).
  program::Operand TwiceL2(const program::Operand& rate) const {
    const double l2 = o_.l2_regularization_strength;
    if (o_.beta == 0) return 2 * l2;
    if (rate.is_number()) return 2 * (l2 + o_.beta / (2 * rate.number()));
    return o_.beta / rate + 2 * l2;
  }

  FtrlOptions o_;
};

}  // namespace

std::unique_ptr<Optimizer> Ftrl(FtrlOptions options) {
  return std::make_unique<FtrlOptimizer>(options);
}

namespace by_name {

std::shared_ptr<Optimizer> Ftrl(const Options& given) {
  FtrlOptions options;
  options.common = CommonOf(given, options.common);
  options.learning_rate_power = given.Number("learning_rate_power", options.learning_rate_power);
  options.initial_accumulator_value =
      given.Number("initial_accumulator_value", options.initial_accumulator_value);
  options.l1_regularization_strength =
      given.Number("l1_regularization_strength", options.l1_regularization_strength);
  options.l2_regularization_strength =
      given.Number("l2_regularization_strength", options.l2_regularization_strength);
  options.l2_shrinkage_regularization_strength = given.Number(
      "l2_shrinkage_regularization_strength", options.l2_shrinkage_regularization_strength);
  options.beta = given.Number("beta", options.beta);
  return train::Ftrl(options);
}

}  // namespace by_name
}  // namespace meshtrain::train
