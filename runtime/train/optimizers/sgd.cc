#include "runtime/train/by_name.h"
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
    const Value step = g * learning_rate(w.type().dtype);
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

}  // namespace

std::unique_ptr<Optimizer> Sgd(SgdOptions options) {
  return std::make_unique<SgdOptimizer>(options);
}

namespace by_name {

std::shared_ptr<Optimizer> Sgd(const Options& given) {
  SgdOptions options;
  options.common = CommonOf(given, options.common);
  options.momentum = given.Number("momentum", options.momentum);
  options.nesterov = given.Bool("nesterov", options.nesterov);
  return train::Sgd(options);
}

}  // namespace by_name
}  // namespace meshtrain::train
