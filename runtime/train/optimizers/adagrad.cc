#include "runtime/train/by_name.h"
#include "runtime/train/optimizer.h"

namespace meshtrain::train {

using program::AssignAdd;
using program::AssignSub;

namespace {

class AdagradOptimizer final : public Optimizer {
 public:
  explicit AdagradOptimizer(AdagradOptions o) : Optimizer(o.common), o_(o) {}
  std::string_view kind() const override { return "adagrad"; }

 protected:
  void Update(const Parameter& w, const Value& g) override {
    const Parameter sum =
        Slot("accumulator", w, nn::Initializer::Constant(o_.initial_accumulator_value));
    AssignAdd(sum, program::Square(g));
    AssignSub(w, learning_rate(w.type().dtype) * g / program::Sqrt(sum + o_.epsilon));
  }

 private:
  AdagradOptions o_;
};

}  // namespace

std::unique_ptr<Optimizer> Adagrad(AdagradOptions options) {
  return std::make_unique<AdagradOptimizer>(options);
}

namespace by_name {

std::shared_ptr<Optimizer> Adagrad(const Options& given) {
  AdagradOptions options;
  options.common = CommonOf(given, options.common);
  options.initial_accumulator_value =
      given.Number("initial_accumulator_value", options.initial_accumulator_value);
  options.epsilon = given.Number("epsilon", options.epsilon);
  return train::Adagrad(options);
}

}  // namespace by_name
}  // namespace meshtrain::train
