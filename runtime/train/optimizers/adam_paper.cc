#include "runtime/train/by_name.h"
#include "runtime/train/optimizer.h"
#include "runtime/train/optimizers/shared.h"

namespace meshtrain::train {

using program::Assign;
using program::AssignAdd;
using program::AssignSub;

namespace {

class AdamPaperOptimizer final : public Optimizer {
 public:
  explicit AdamPaperOptimizer(AdamPaperOptions o) : Optimizer(o.common), o_(o) {}
  std::string_view kind() const override { return "adam_paper"; }

 protected:
  void Begin() override {
    const Parameter t = Scalar("t", DType::kF64, 1);
    correction_1_.Set(1.0 - program::Pow(o_.beta_1, t));
    correction_2_.Set(1.0 - program::Pow(o_.beta_2, t));
  }
  void Update(const Parameter& w, const Value& g) override {
    const Parameter m = Slot("m", w);
    const Parameter v = Slot("v", w);
    Assign(m, o_.beta_1 * m + (1 - o_.beta_1) * g);
    Assign(v, o_.beta_2 * v + (1 - o_.beta_2) * program::Square(g));
    const Value m_hat = m / correction_1_.As(w);  // the new m and v: reading after assigning
    const Value v_hat = v / correction_2_.As(w);
    AssignSub(w, learning_rate(w.type().dtype) * (m_hat / (program::Sqrt(v_hat) + o_.epsilon)));
  }
  void End() override { AssignAdd(Scalar("t", DType::kF64, 1), 1); }

 private:
  AdamPaperOptions o_;
  Shared correction_1_;
  Shared correction_2_;
};

}  // namespace

std::unique_ptr<Optimizer> AdamPaper(AdamPaperOptions options) {
  return std::make_unique<AdamPaperOptimizer>(options);
}

namespace by_name {

std::shared_ptr<Optimizer> AdamPaper(const Options& given) {
  AdamPaperOptions options;
  options.common = CommonOf(given, options.common);
  options.beta_1 = given.Number("beta_1", options.beta_1);
  options.beta_2 = given.Number("beta_2", options.beta_2);
  options.epsilon = given.Number("epsilon", options.epsilon);
  return train::AdamPaper(options);
}

}  // namespace by_name
}  // namespace meshtrain::train
