// A step of one's own over a mesh: weights and slots are made by its first call, in their layouts,
// and it trains and evaluates as Model does.
#include <gtest/gtest.h>

#include <cctype>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "runtime/execute/function.h"
#include "runtime/nn/layers.h"
#include "runtime/nn/model.h"
#include "runtime/program/ops.h"
#include "runtime/strategy/dataset.h"
#include "runtime/trainer/label_metric.h"
#include "runtime/trainer/model.h"
#include "tests/runtime/strategy/strategy_testing.h"

namespace meshtrain::trainer {
namespace {

using execute::DTensor;
using execute::Function;
using execute::Outputs;
using mesh::Layout;
using mesh::Mesh;
using mesh::Tensor;
using program::Value;

constexpr int64_t kExamples = 64, kFeatures = 6, kClasses = 4, kBatch = 16;

Tensor Features() {
  std::vector<float> x;
  for (int64_t i = 0; i < kExamples * kFeatures; ++i) {
    x.push_back(static_cast<float>((i * 37 + i / 5) % 19) / 19 - 0.5f);
  }
  return strategy::Floats({kExamples, kFeatures}, std::move(x));
}
Tensor Labels() {
  std::vector<int32_t> y;
  for (int64_t i = 0; i < kExamples; ++i) y.push_back(static_cast<int32_t>((i * 7 + i / 3) % 4));
  return Tensor::Of<int32_t>({kExamples}, y);
}

std::shared_ptr<nn::Sequential> TwoLayers() {
  return std::make_shared<nn::Sequential>(
      nn::Dense(8, {.name = "hidden", .activation = nn::ActivationKind::kTanh}),
      nn::Dense(kClasses, {.name = "logits"}));
}
std::shared_ptr<train::Optimizer> Optimizer() {
  return train::Adam({.common = {.learning_rate = 0.05}});
}

struct Way {
  std::string mesh;
  bool rules = false;
};

class OwnStepTest : public ::testing::TestWithParam<Way> {};
INSTANTIATE_TEST_SUITE_P(Meshes, OwnStepTest,
                         ::testing::Values(Way{"batch=1"}, Way{"batch=8"}, Way{"batch=2,model=2"},
                                           Way{"batch=2,model=2", true}),
                         [](const auto& info) {
                           std::string name = info.param.rules ? "Rules" : "Plain";
                           for (const char c : info.param.mesh) {
                             if (std::isalnum(static_cast<unsigned char>(c)) != 0) name += c;
                           }
                           return name;
                         });

TEST_P(OwnStepTest, TrainsAndEvaluatesAsAModelDoes) {
  const Mesh mesh = Mesh::Parse(GetParam().mesh).value();
  const auto make = [&] {
    strategy::MeshOptions options{.mesh = mesh, .common = {.threads = 1, .isolated = true}};
    if (GetParam().rules) {
      EXPECT_TRUE(options.layouts.Add(R"(hidden\.kernel)", {"unsharded", "model"}).ok());
      EXPECT_TRUE(options.layouts.Add(R"(logits\.kernel)", {"model", "unsharded"}).ok());
    }
    return strategy::Strategy::Mesh(std::move(options)).value();
  };
  const train::Loss loss = train::losses::SparseCategoricalCrossentropy({.from_logits = true});

  const auto reference = make();
  Model model(TwoLayers(), *reference);
  ASSERT_TRUE(
      model
          .Compile(
              {.loss = loss, .optimizer = Optimizer(), .metrics = {train::metrics::Accuracy()}})
          .ok());
  const auto fit = model.Fit(Arrays{Features(), Labels(), kBatch}, {.epochs = 3});
  ASSERT_TRUE(fit.ok()) << fit.status().message();
  const auto want = model.Evaluate(Arrays{Features(), Labels(), kBatch});
  ASSERT_TRUE(want.ok()) << want.status().message();

  const auto own = make();
  const auto scope = own->Scope();
  execute::Session& session = *own->session().value();
  const auto layers = TwoLayers();
  const auto optimizer = Optimizer();
  const auto accuracy =
      LabelMetric::Create(session, mesh, train::metrics::Accuracy(), loss).value();
  const auto mean = [&](const Value& x, const Value& y) {
    const Value logits = (*layers)(x);
    accuracy.Update(y, logits);
    return ReduceMean(loss.PerExample(y, logits));
  };
  Function fit_step(session, "train", {"x", "y"}, [&](const Value& x, const Value& y) -> Outputs {
    const Value l = mean(x, y);
    optimizer->Minimize(l, layers->parameters());
    return {{"loss", l}};
  });
  Function evaluate(session, "evaluate", {"x", "y"},
                    [&](const Value& x, const Value& y) -> Outputs {
                      return {{"loss", mean(x, y)}};
                    });
  const Tensor x = Features(), y = Labels();
  const auto pass = [&](Function& step) {
    EXPECT_TRUE(accuracy.Reset().ok());
    double sum = 0;
    for (int64_t first = 0; first < kExamples; first += kBatch) {
      const auto on_mesh = [&](const Tensor& part) {
        const auto split = Layout::BatchSharded(mesh, "batch", part.type().rank());
        return session.CopyToMesh(part, split.value()).value();
      };
      const auto got = step(on_mesh(x.Slice({first, 0}, {kBatch, kFeatures})),
                            on_mesh(y.Slice({first}, {kBatch})));
      EXPECT_TRUE(got.ok()) << got.status().message();
      if (!got.ok()) return sum;
      sum += (*got)["loss"].Whole().value().Item();
    }
    return sum / (kExamples / kBatch);
  };
  for (int epoch = 0; epoch < 3; ++epoch) {
    EXPECT_NEAR(pass(fit_step), fit->Of("loss")[static_cast<size_t>(epoch)], 1e-5);
    EXPECT_NEAR(accuracy.Result().value(), fit->Of("accuracy")[static_cast<size_t>(epoch)], 1e-9);
  }
  EXPECT_NEAR(pass(evaluate), train::FindScalar(*want, "loss").value(), 1e-5);
  EXPECT_NEAR(accuracy.Result().value(), train::FindScalar(*want, "accuracy").value(), 1e-9);
  for (const nn::Parameter& weight : layers->parameters()) {
    const Layout layout = session.LayoutOf(weight).value();
    EXPECT_EQ(layout.Canonical().IsReplicated(),
              !GetParam().rules || !weight.name().ends_with("kernel"))
        << weight.name() << " " << layout.ToString();
  }
}

}  // namespace
}  // namespace meshtrain::trainer
