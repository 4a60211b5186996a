#include "runtime/train/by_name.h"
#include "runtime/train/optimizer.h"

namespace meshtrain::train {

using program::Assign;
using program::AssignSub;

namespace {

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
    const Value step = learning_rate(w.type().dtype) * g * program::Rsqrt(under);
    if (o_.momentum == 0) return AssignSub(w, step);
    const Parameter m = Slot("momentum", w);
    Assign(m, o_.momentum * m + step);
    AssignSub(w, m);
  }

 private:
  RmspropOptions o_;
};

}  // namespace

std::unique_ptr<Optimizer> Rmsprop(RmspropOptions options) {
  return std::make_unique<RmspropOptimizer>(options);
}

namespace by_name {

std::shared_ptr<Optimizer> Rmsprop(const Options& given) {
  RmspropOptions options;
  options.common = CommonOf(given, options.common);
  options.rho = given.Number("rho", options.rho);
  options.momentum = given.Number("momentum", options.momentum);
  options.epsilon = given.Number("epsilon", options.epsilon);
  options.centered = given.Bool("centered", options.centered);
  return train::Rmsprop(options);
}

}  // namespace by_name
}  // namespace meshtrain::train
