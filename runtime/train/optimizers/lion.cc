#include "runtime/train/by_name.h"
#include "runtime/train/optimizer.h"

namespace meshtrain::train {

using program::Assign;
using program::AssignSub;

namespace {

// Chen et al. 2023: the sign of an average.
class LionOptimizer final : public Optimizer {
 public:
  explicit LionOptimizer(LionOptions o) : Optimizer(o.common), o_(o) {}
  std::string_view kind() const override { return "lion"; }

 protected:
  void Update(const Parameter& w, const Value& g) override {
    const Parameter m = Slot("m", w);
    AssignSub(w,
              learning_rate(w.type().dtype) * program::Sign(m * o_.beta_1 + g * (1 - o_.beta_1)));
    Assign(m, m * o_.beta_2 + g * (1 - o_.beta_2));
  }

 private:
  LionOptions o_;
};

}  // namespace

std::unique_ptr<Optimizer> Lion(LionOptions options) {
  return std::make_unique<LionOptimizer>(options);
}

namespace by_name {

std::shared_ptr<Optimizer> Lion(const Options& given) {
  LionOptions options;
  options.common = CommonOf(given, options.common);
  options.beta_1 = given.Number("beta_1", options.beta_1);
  options.beta_2 = given.Number("beta_2", options.beta_2);
  return train::Lion(options);
}

}  // namespace by_name
}  // namespace meshtrain::train
