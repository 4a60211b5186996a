// An optimizer: steps of one length, along the sign of a running mean of the gradients (Bernstein
// et al. 2018).
#include "runtime/recipe/rows.h"

namespace meshtrain::samples {
namespace {

using manifest::option::Number;
using program::Value;

class Signum final : public train::Optimizer {
 public:
  Signum(const train::OptimizerOptions& common, double momentum)
      : Optimizer(common), momentum_(momentum) {}
  std::string_view kind() const override { return "signum"; }

 protected:
  void Update(const nn::Parameter& weight, const Value& gradient) override {
    const nn::Parameter mean = Slot("mean", weight);
    program::Assign(mean, mean * momentum_ + gradient * (1 - momentum_));
    program::AssignSub(weight, program::Sign(mean) * learning_rate(weight.type().dtype));
  }

 private:
  double momentum_;
};

}  // namespace

recipe::OptimizerRow SignumRow() {
  return {{.name = "signum",
           .about = "Steps of one length, along the sign of the gradients' running mean.",
           .options = {Number("learning_rate", {.above = 0},
                              {.about = "The length.", .fallback = "0.001", .sample = "0.5"}),
                       Number("momentum", {.least = 0, .below = 1},
                              {.about = "How much of the mean stays in each step.",
                               .fallback = "0.9",
                               .sample = "0.5"})}},
          [](const choice::Options& options) -> std::shared_ptr<train::Optimizer> {
            return std::make_shared<Signum>(train::CommonOf(options, {}),
                                            options.Number("momentum", 0.9));
          }};
}

}  // namespace meshtrain::samples
