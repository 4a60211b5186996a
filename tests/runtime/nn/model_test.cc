#include "runtime/nn/model.h"

#include <gtest/gtest.h>

#include <cmath>

namespace meshtrain::nn {
namespace {

using program::Builder;
using program::DType;
using program::Program;

// The model's program on x of `type`, or the first error.
Result<Program> Trace(Layer& model, TensorType type, CallContext context = {}) {
  Builder b("model");
  Builder::Scope scope(b);
  ContextScope calls(std::move(context));
  b.Output("y", model(b.Input("x", std::move(type))));
  return b.Build();
}

std::vector<std::string> Paths(const Layer& model) {
  std::vector<std::string> paths;
  for (const Parameter& parameter : model.parameters()) paths.push_back(parameter.name());
  return paths;
}

int CountOps(const Program& program, std::string_view kind) {
  int n = 0;
  for (const program::Op& op : program.ops) n += op.kind == kind;
  return n;
}

TEST(ModelTest, SequentialNamesLayersAfterTheirKind) {
  Sequential model(Flatten(), Dense(5, {.activation = ActivationKind::kRelu}),
                   Dense(4, {.name = "middle"}), Dense(3));
  const auto traced = Trace(model, {DType::kF32, {8, 2, 3}});
  ASSERT_TRUE(traced.ok()) << traced.status().ToString();
  EXPECT_EQ(Paths(model),
            (std::vector<std::string>{"dense.kernel", "dense.bias", "middle.kernel", "middle.bias",
                                      "dense_1.kernel", "dense_1.bias"}));
  EXPECT_EQ(model.parameters()[0].dims(), (program::Dims{6, 5}));
  EXPECT_EQ(traced->type(traced->outputs[0].value), (TensorType{DType::kF32, {8, 3}}));
}

TEST(ModelTest, ASecondTraceUsesTheSameVariables) {
  Sequential model(Dense(3));
  ASSERT_TRUE(Trace(model, {DType::kF32, {8, 2}}).ok());
  const auto first = model.parameters();
  ASSERT_TRUE(Trace(model, {DType::kF32, {5, 2}}).ok());
  ASSERT_EQ(model.parameters().size(), 2u);
  EXPECT_EQ(model.parameters()[0], first[0]);
  EXPECT_EQ(model.parameters()[1], first[1]);
}

TEST(ModelTest, ModelsInsideModelsPrefixTheirPaths) {
  Sequential model(std::vector<LayerPtr>{
      std::make_shared<Sequential>(std::vector<LayerPtr>{Make<Dense>(3), Make<Dense>(3)}, "block"),
      Make<Dense>(2)});
  ASSERT_TRUE(Trace(model, {DType::kF32, {8, 2}}).ok());
  EXPECT_EQ(Paths(model), (std::vector<std::string>{"block.dense.kernel", "block.dense.bias",
                                                    "block.dense_1.kernel", "block.dense_1.bias",
                                                    "dense.kernel", "dense.bias"}));
}

TEST(ModelTest, AFunctionalModelMayBranchAndJoinAndShareALayer) {
  const Symbol x = Input();
  const LayerPtr shared = Make<Dense>(4, DenseOptions{.name = "shared"});
  const Symbol once = Apply(shared, x);
  const Symbol twice = Apply(shared, once);
  const Symbol sum = Apply(Make<Add>(), {once, twice});
  Functional model({x}, Apply(Make<Concatenate>(), {sum, x}));
  const auto traced = Trace(model, {DType::kF32, {8, 4}});
  ASSERT_TRUE(traced.ok()) << traced.status().ToString();
  EXPECT_EQ(Paths(model), (std::vector<std::string>{"shared.kernel", "shared.bias"}));
  EXPECT_EQ(CountOps(*traced, "matmul"), 2);
  EXPECT_EQ(traced->type(traced->outputs[0].value).dims, (program::Dims{8, 8}));
}

class Composed : public Layer {
 public:
  Dense feature{4, {.name = "feature", .activation = ActivationKind::kRelu}};
  Dense feature_2{2, {.name = "feature_2"}};

 protected:
  Value Call(const Value& x) override { return feature_2(feature(x)); }
};

TEST(ModelTest, AComposedModelIsTheSameProgramAsItsSequential) {
  Composed composed;
  Sequential sequential(Dense(4, {.name = "feature", .activation = ActivationKind::kRelu}),
                        Dense(2, {.name = "feature_2"}));
  const auto a = Trace(composed, {DType::kF32, {8, 3}});
  const auto b = Trace(sequential, {DType::kF32, {8, 3}});
  ASSERT_TRUE(a.ok() && b.ok());
  EXPECT_EQ(Paths(composed), Paths(sequential));
  EXPECT_EQ(program::HashProgram(*a), program::HashProgram(*b));
}

// --- several outputs

// All that the model gives for x, or the first error.
Result<Program> TraceAll(Layer& model, TensorType type, CallContext context = {}) {
  Builder b("model");
  Builder::Scope scope(b);
  ContextScope calls(std::move(context));
  const Value x = b.Input("x", std::move(type));
  const std::vector<Value> all = model.All({&x, 1});
  for (size_t i = 0; i < all.size(); ++i) b.Output(model.outputs()[i], all[i]);
  return b.Build();
}

// A trunk, and two layers over it.
std::vector<NamedSymbol> TwoOver(const Symbol& x) {
  const Symbol trunk = Apply(Make<Dense>(4, DenseOptions{.name = "trunk"}), x);
  return {{"digit", Apply(Make<Dense>(10, DenseOptions{.name = "digit"}), trunk)},
          {"parity", Apply(Make<Dense>(1, DenseOptions{.name = "parity"}), trunk)}};
}

TEST(ModelTest, AFunctionalModelMayHaveSeveralOutputs) {
  const Symbol x = Input();
  Functional model({x}, TwoOver(x));
  EXPECT_EQ(model.outputs(), (std::vector<std::string>{"digit", "parity"}));
  const auto traced = TraceAll(model, {DType::kF32, {8, 3}});
  ASSERT_TRUE(traced.ok()) << traced.status().ToString();
  EXPECT_EQ(CountOps(*traced, "matmul"), 3);  // the trunk once
  ASSERT_EQ(traced->outputs.size(), 2u);
  EXPECT_EQ(traced->outputs[0].name, "digit");
  EXPECT_EQ(traced->type(traced->outputs[0].value), (TensorType{DType::kF32, {8, 10}}));
  EXPECT_EQ(traced->outputs[1].name, "parity");
  EXPECT_EQ(traced->type(traced->outputs[1].value), (TensorType{DType::kF32, {8, 1}}));
  // In another order: each name with its own value.
  const Symbol y = Input();
  std::vector<NamedSymbol> swapped = TwoOver(y);
  std::swap(swapped[0], swapped[1]);
  Functional other({y}, swapped);
  const auto turned = TraceAll(other, {DType::kF32, {8, 3}});
  ASSERT_TRUE(turned.ok());
  EXPECT_EQ(turned->type(turned->outputs[0].value), (TensorType{DType::kF32, {8, 1}}));
  // All of them in the type that the trace computes in.
  const auto halves = TraceAll(model, {DType::kF32, {8, 3}}, {.compute = DType::kBF16});
  ASSERT_TRUE(halves.ok()) << halves.status().ToString();
  for (const program::Port& output : halves->outputs) {
    EXPECT_EQ(halves->type(output.value).dtype, DType::kBF16) << output.name;
  }
}

TEST(ModelTest, AModelOfOneOutputGivesItAmongAll) {
  Sequential model(Dense(3));
  EXPECT_EQ(model.outputs(), (std::vector<std::string>{""}));
  Builder b("all");
  Builder::Scope scope(b);
  const Value x = b.Input("x", {DType::kF32, {8, 2}});
  const std::vector<Value> all = model.All({&x, 1});
  ASSERT_EQ(all.size(), 1u);
  EXPECT_EQ(all[0].type(), (TensorType{DType::kF32, {8, 3}}));
}

// Of a class of one's own.
class Twins : public Layer {
 public:
  explicit Twins(size_t gives) : Layer("twins"), gives_(gives) {}
  std::vector<std::string> outputs() const override { return {"half", "double"}; }

 protected:
  std::vector<Value> CallAll(std::span<const Value> inputs) override {
    std::vector<Value> all = {inputs[0] * 0.5, inputs[0] * 2.0};
    all.resize(gives_);
    return all;
  }

 private:
  size_t gives_;
};

TEST(ModelTest, SeveralOutputsAreAskedForAsSuch) {
  const TensorType type{DType::kF32, {8, 3}};
  Twins twins(2), odd(1);
  EXPECT_TRUE(TraceAll(twins, type).ok());
  const auto refused = [](const Status& status, const std::string& what) {
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    EXPECT_NE(status.message().find(what), std::string::npos) << status.message();
  };
  refused(Trace(twins, type).status(),
          "twins: expected a call for all of its outputs, half, double (nn::Layer::All), got: one "
          "for a single output");
  refused(TraceAll(odd, type).status(),
          "twins: expected a value for each of its outputs, half, double, got: 1");
  const Symbol x = Input();
  const Symbol same = Apply(Make<Dense>(2), x);
  const std::string expected = "expected outputs with a name each, no two alike, got: ";
  Functional twice({x}, {{"a", same}, {"a", same}}), nameless({x}, {{"a", same}, {"", same}}),
      none({x}, std::vector<NamedSymbol>());
  refused(TraceAll(twice, type).status(), expected + "`a`, `a`");
  refused(TraceAll(nameless, type).status(), expected + "`a`, ``");
  refused(TraceAll(none, type).status(), expected + "none");
}

TEST(ModelTest, ErrorsNameTheLayerAndTheLineThatCalledIt) {
  Composed composed;
  const auto traced = Trace(composed, {DType::kU8, {8, 3}});
  ASSERT_FALSE(traced.ok());
  EXPECT_NE(
      traced.status().message().find(
          "feature: dense takes floats [..., features], got: u8[8,3] (scale or cast the input)"),
      std::string::npos)
      << traced.status().message();
  EXPECT_NE(traced.status().message().find("model_test.cc:"), std::string::npos)
      << traced.status().message();
  EXPECT_TRUE(composed.feature.failed());
  EXPECT_FALSE(composed.feature_2.failed());

  Sequential no_units(Dense(0));
  EXPECT_NE(Trace(no_units, {DType::kF32, {8, 3}})
                .status()
                .message()
                .find("dense: units must be at least 1, got: 0"),
            std::string::npos);
}

TEST(ModelTest, ALayerMadeInAFailedTraceIsMadeAgain) {
  Sequential model(Dense(3));
  ASSERT_FALSE(Trace(model, {DType::kF32, {8}}).ok());
  ASSERT_TRUE(Trace(model, {DType::kF32, {8, 2}}).ok());
  EXPECT_EQ(Paths(model), (std::vector<std::string>{"dense.kernel", "dense.bias"}));
}

TEST(ModelTest, DropoutIsThereInTrainingOnlyAndNeedsAStep) {
  const program::Variable step("step", TensorType{DType::kI64, {}}, false);
  Sequential model(Dropout(0.5));
  const auto eval = Trace(model, {DType::kF32, {8, 2}});
  ASSERT_TRUE(eval.ok());
  EXPECT_TRUE(eval->ops.empty());
  const auto train =
      Trace(model, {DType::kF32, {8, 2}}, {.training = true, .seed = 7, .step = step});
  ASSERT_TRUE(train.ok()) << train.status().ToString();
  EXPECT_FALSE(train->ops.empty());
  ASSERT_EQ(train->states.size(), 1u);
  EXPECT_EQ(train->states[0].name, "step");
  EXPECT_NE(Trace(model, {DType::kF32, {8, 2}}, {.training = true})
                .status()
                .message()
                .find("needs a step counter"),
            std::string::npos);
  Sequential bad(Dropout(1.0));
  EXPECT_NE(
      Trace(bad, {DType::kF32, {8, 2}}).status().message().find("rate must be in [0, 1), got: 1"),
      std::string::npos);
}

TEST(ModelTest, TwoDropoutsDrawTheirOwnNumbers) {
  const program::Variable step("step", TensorType{DType::kI64, {}}, false);
  Sequential one(Dropout(0.5, {}, "a")), other(Dropout(0.5, {}, "b"));
  const CallContext context{.training = true, .seed = 7, .step = step};
  const auto a = Trace(one, {DType::kF32, {8, 2}}, context);
  const auto b = Trace(other, {DType::kF32, {8, 2}}, context);
  ASSERT_TRUE(a.ok() && b.ok());
  EXPECT_NE(program::HashProgram(*a), program::HashProgram(*b));
}

// --- initializers

TEST(InitializerTest, GlorotsLimitIsComputedInFloatAsTensorFlowDoes) {
  Builder b("init");
  Builder::Scope scope(b);
  b.Output("w", Initializer::XavierUniform(Seed{22, 23}).Record({DType::kF32, {784, 700}}, {0, 0}));
  const auto program = b.Build();
  ASSERT_TRUE(program.ok());
  Builder c("want");
  Builder::Scope scope_c(c);
  const double limit = std::sqrt(6.0f) / std::sqrt(1484.0f);
  EXPECT_EQ(limit, static_cast<double>(static_cast<float>(limit)));
  c.Output("w", program::StatelessUniform({784, 700}, {22, 23}, -limit, limit));
  EXPECT_EQ(program::HashProgram(*program), program::HashProgram(*c.Build()));
}

TEST(InitializerTest, FansCountTheWindowOfAConvolution) {
  EXPECT_EQ(Fans({}), (std::pair<int64_t, int64_t>{1, 1}));
  EXPECT_EQ(Fans({5}), (std::pair<int64_t, int64_t>{5, 5}));
  EXPECT_EQ(Fans({784, 700}), (std::pair<int64_t, int64_t>{784, 700}));
  EXPECT_EQ(Fans({3, 3, 16, 32}), (std::pair<int64_t, int64_t>{144, 288}));
}

TEST(InitializerTest, WithoutASeedThePathDecides) {
  EXPECT_EQ(SeedFor(9, "a.kernel"), SeedFor(9, "a.kernel"));
  EXPECT_NE(SeedFor(9, "a.kernel"), SeedFor(9, "b.kernel"));
  EXPECT_NE(SeedFor(9, "a.kernel"), SeedFor(10, "a.kernel"));
}

}  // namespace
}  // namespace meshtrain::nn
