// A layout for each weight, given to the layer: it decides how the weight lies, and changes no
// number.
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <random>

#include "runtime/nn/layout_map.h"
#include "runtime/nn/model.h"
#include "runtime/program/ops.h"
#include "runtime/sharding/sharding.h"
#include "tests/support/interpreter/interpreter.h"

namespace meshtrain::nn {
namespace {

using mesh::Layout;
using mesh::Mesh;
using program::Builder;
using program::DType;
using program::Program;
using testing::Array;

const LayoutSpecs kVector = {"model"};
const LayoutSpecs kColumns = {"unsharded", "model"};
const LayoutSpecs kRows = {"model", "unsharded"};
const LayoutSpecs kFilters = {"unsharded", "unsharded", "model", "unsharded"};

struct Case {
  std::string name;
  program::Dims input;
  std::function<std::unique_ptr<Layer>()> make;
};

template <typename Options>
Options Normalized() {
  Options options;
  options.beta_layout = options.gamma_layout = kVector;
  return options;
}

const std::vector<Case>& Cases() {
  static const std::vector<Case> cases = {
      {"conv_transpose",
       {4, 3, 3, 2},
       [] {
         return std::make_unique<ConvTranspose>(
             2, 4, Sizes{3}, ConvOptions{.kernel_layout = kFilters, .bias_layout = kVector});
       }},
      {"depthwise_conv",
       {4, 3, 3, 4},
       [] {
         return std::make_unique<DepthwiseConv>(
             2, Sizes{3}, 2, ConvOptions{.kernel_layout = kFilters, .bias_layout = kVector});
       }},
      {"batch_normalization",
       {4, 3, 6},
       [] {
         auto options = Normalized<BatchNormalizationOptions>();
         options.moving_mean_layout = options.moving_variance_layout = kVector;
         return std::make_unique<BatchNormalization>(options);
       }},
      {"layer_normalization",
       {4, 3, 6},
       [] {
         return std::make_unique<LayerNormalization>(std::vector<int64_t>{-1},
                                                     Normalized<NormalizationOptions>());
       }},
      {"group_normalization",
       {4, 3, 6},
       [] { return std::make_unique<GroupNormalization>(2, Normalized<NormalizationOptions>()); }},
      {"rms_normalization",
       {4, 3, 6},
       [] {
         return std::make_unique<RmsNormalization>(std::vector<int64_t>{-1},
                                                   Normalized<NormalizationOptions>());
       }},
      {"multi_head_attention",
       {4, 3, 8},
       [] {
         return std::make_unique<MultiHeadAttention>(
             4, AttentionOptions{.key_value_heads = 2,
                                 .query_kernel_layout = kColumns,
                                 .query_bias_layout = kVector,
                                 .key_kernel_layout = kColumns,
                                 .key_bias_layout = kVector,
                                 .value_kernel_layout = kColumns,
                                 .value_bias_layout = kVector,
                                 .output_kernel_layout = kRows,
                                 .output_bias_layout = kVector});
       }},
  };
  return cases;
}

// In training: what the layer gives, and the gradients of sum(y * y) of what is trained.
Program Trace(const Case& c, Layer& layer) {
  Builder b("layer");
  const Builder::Scope scope(b);
  const ContextScope context({.training = true});
  const Value x = b.Input("x", {DType::kF64, c.input});
  const Value y = layer(x);
  std::vector<Value> wrt = {x};
  for (const Parameter& p : layer.parameters()) {
    if (p.trainable()) wrt.push_back(b.Read(p));
  }
  const auto gradients =
      b.Gradient(program::ReduceSum(program::Square(y)), std::span<const Value>(wrt));
  b.Output("y", y);
  for (size_t i = 0; i < gradients.size(); ++i) {
    b.Output("gradient " + std::to_string(i), gradients[i]);
  }
  auto program = b.Build();
  EXPECT_TRUE(program.ok()) << program.status().ToString();
  return program.ok() ? *std::move(program) : Program();
}

testing::StepInput Feed(const Program& program) {
  std::mt19937_64 random(5);
  std::uniform_real_distribution<double> numbers(0.1, 1);
  const auto drawn = [&](const TensorType& type) {
    Array a(type);
    for (testing::Number& v : a.at) v = numbers(random);
    return a;
  };
  testing::StepInput feed;
  for (const program::Port& p : program.inputs) feed.inputs[p.name] = drawn(program.type(p.value));
  for (const program::State& s : program.states) feed.states[s.name] = drawn(program.type(s.entry));
  return feed;
}

TEST(WeightLayoutsTest, EachWeightLiesAsItsLayerSaysAndNoNumberChanges) {
  // What a map says of a weight that has a layout does not count.
  LayoutMap whole;
  ASSERT_TRUE(whole.Add(".*kernel", LayoutSpecs{"batch", "batch"}).ok());
  for (const Case& c : Cases()) {
    SCOPED_TRACE(c.name);
    const auto layer = c.make();
    const LayoutMap::Scope scope(whole);
    const Program program = Trace(c, *layer);
    const testing::StepInput feed = Feed(program);
    const auto want = testing::Interpret(program, feed);
    ASSERT_TRUE(want.ok()) << want.status().ToString();

    const Mesh mesh = *Mesh::Parse("batch=2,model=2");
    sharding::Given given;
    given.inputs.insert_or_assign(
        "x", *Layout::BatchSharded(mesh, "batch", static_cast<int>(c.input.size())));
    for (const Parameter& p : layer->parameters()) {
      ASSERT_TRUE(p.layout()) << p.name();
      const auto layout = p.LayoutOn(mesh, *p.layout());
      ASSERT_TRUE(layout.ok()) << p.name() << ": " << layout.status().ToString();
      EXPECT_TRUE(layout->Uses(*mesh.FindAxis("model"))) << p.name();
      given.states.insert_or_assign(p.name(), *layout);
    }
    const auto partitioned = sharding::Shard(program, mesh, given);
    ASSERT_TRUE(partitioned.ok()) << partitioned.status().ToString();
    for (size_t i = 0; i < program.states.size(); ++i) {
      const TensorType& local = partitioned->local.type(partitioned->local.states[i].entry);
      EXPECT_EQ(local.num_elements(), program.type(program.states[i].entry).num_elements() / 2)
          << program.states[i].name;
    }
    const auto got = testing::Interpret(*partitioned, feed);
    ASSERT_TRUE(got.ok()) << got.status().ToString();
    for (const auto& [name, array] : want->outputs) {
      EXPECT_LT(Difference(got->outputs.at(name), array), 1e-12) << name;
    }
    for (const auto& [name, array] : want->states) {
      EXPECT_LT(Difference(got->states.at(name), array), 1e-12) << name;
    }
  }
}

TEST(WeightLayoutsTest, AnotherRankIsRefusedByTheWeightsPath) {
  NormalizationOptions options{.name = "norm"};
  options.gamma_layout = kColumns;
  LayerNormalization layer({-1}, options);
  Builder b("layer");
  const Builder::Scope scope(b);
  layer(b.Input("x", {DType::kF64, {4, 6}}));
  EXPECT_NE(b.Build().status().message().find("norm.gamma"), std::string::npos)
      << b.Build().status().message();
}

}  // namespace
}  // namespace meshtrain::nn
