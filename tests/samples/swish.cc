// A layer: x * sigmoid(beta * x), whose beta is a weight (Ramachandran et al. 2017).
#include "runtime/recipe/rows.h"

namespace meshtrain::samples {
namespace {

using manifest::option::Number;
using program::Value;

class Swish final : public nn::Layer {
 public:
  Swish(double beta, std::string name) : Layer(std::move(name)), initial_(beta) {}
  std::string_view kind() const override { return "swish"; }

 protected:
  void Build(std::span<const program::TensorType> inputs) override {
    beta_ = AddParameter("beta", {inputs[0].dtype, {}}, nn::Initializer::Constant(initial_));
  }
  Value Call(const Value& x) override { return x * program::Sigmoid(x * beta_); }

 private:
  double initial_;
  nn::Parameter beta_;
};

}  // namespace

recipe::LayerRow SwishRow() {
  return {{.name = "swish",
           .about = "x * sigmoid(beta * x); beta is a weight.",
           .options = {Number("beta", {.above = 0},
                              {.about = "Where beta begins.", .fallback = "1", .sample = "2"})},
           .weights =
               [](const choice::Options&) {
                 return std::vector<std::pair<std::string, int>>{{"beta", 0}};
               }},
          [](const std::string& name, const choice::Options& options) -> nn::LayerPtr {
            return nn::Make<Swish>(options.Number("beta", 1), name);
          }};
}

}  // namespace meshtrain::samples
