// The layers that normalise against Keras' numbers (tests/testdata/normalization): results in
// training and outside it, gradients, moving averages; on one device and split over meshes.
#include <gtest/gtest.h>

#include <fstream>
#include <functional>
#include <map>
#include <memory>

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

const TensorType kX{DType::kF64, {4, 3, 2, 6}};

const std::map<std::string, std::vector<double>>& Golden() {
  static const auto golden = [] {
    std::map<std::string, std::vector<double>> all;
    std::ifstream file(std::string(MT_SOURCE_DIR) + "/tests/testdata/normalization/keras.txt");
    std::string name;
    for (size_t n = 0; file >> name >> n;) {
      std::vector<double> numbers(n);
      for (double& number : numbers) file >> number;
      all[name] = std::move(numbers);
    }
    return all;
  }();
  return golden;
}

Array Given(const std::string& name, const TensorType& type) {
  Array array(type);
  const auto it = Golden().find(name);
  EXPECT_TRUE(it != Golden().end() && it->second.size() == array.at.size()) << name;
  if (it == Golden().end() || it->second.size() != array.at.size()) return array;
  for (size_t i = 0; i < array.at.size(); ++i) array.at[i] = it->second[i];
  return array;
}

struct Case {
  std::string name;  // in the file
  std::function<std::unique_ptr<Layer>()> make;
};

const std::vector<Case>& Cases() {
  static const std::vector<Case> cases = {
      {"batch", [] { return std::make_unique<BatchNormalization>(); }},
      {"batch_axis",
       [] {
         BatchNormalizationOptions options;
         options.epsilon = 1e-5;
         options.axis = 1;
         options.momentum = 0.8;
         return std::make_unique<BatchNormalization>(options);
       }},
      {"layer", [] { return std::make_unique<LayerNormalization>(); }},
      {"layer_axes",
       [] {
         return std::make_unique<LayerNormalization>(std::vector<int64_t>{1, 3},
                                                     NormalizationOptions{.epsilon = 1e-5});
       }},
      {"group", [] { return std::make_unique<GroupNormalization>(3); }},
      {"rms", [] { return std::make_unique<RmsNormalization>(); }},
  };
  return cases;
}

// `y`, and in training the gradients of sum(y * pull), named as in the file.
Program Trace(Layer& layer, bool training) {
  Builder b("normalized");
  const Builder::Scope scope(b);
  const ContextScope context({.training = training});
  const Value x = b.Input("x", kX);
  const Value y = layer(x);
  b.Output(training ? "y" : "after", y);
  if (training) {
    std::vector<Value> wrt = {x};
    std::vector<std::string> names = {"x"};
    for (const Parameter& p : layer.parameters()) {
      if (!p.trainable()) continue;
      wrt.push_back(b.Read(p));
      names.push_back(p.name());
    }
    const auto gradients =
        b.Gradient(program::ReduceSum(y * b.Input("pull", kX)), std::span<const Value>(wrt));
    for (size_t i = 0; i < names.size(); ++i) b.Output("grad_" + names[i], gradients[i]);
  }
  auto program = b.Build();
  EXPECT_TRUE(program.ok()) << program.status().ToString();
  return program.ok() ? *std::move(program) : Program();
}

testing::StepInput Feed(const Case& c, const Layer& layer) {
  testing::StepInput feed;
  feed.inputs["x"] = Given("x", kX);
  feed.inputs["pull"] = Given("pull", kX);
  for (const Parameter& p : layer.parameters()) {
    if (p.trainable()) {
      feed.states[p.name()] = Given(c.name + "." + p.name(), p.type());
    } else {  // as it begins
      Array begin(p.type());
      for (auto& v : begin.at) v = p.name() == "moving_variance" ? 1 : 0;
      feed.states[p.name()] = begin;
    }
  }
  return feed;
}

void ExpectGolden(const Case& c, const testing::StepResult& got, double tolerance) {
  for (const auto& [name, array] : got.outputs) {
    EXPECT_LT(Difference(array, Given(c.name + "." + name, array.type)), tolerance) << name;
  }
  for (const auto& [name, array] : got.states) {
    EXPECT_LT(Difference(array, Given(c.name + "." + name, array.type)), tolerance) << name;
  }
}

TEST(NormalizationTest, GivesTheNumbersOfKeras) {
  for (const Case& c : Cases()) {
    SCOPED_TRACE(c.name);
    const auto layer = c.make();
    const Program program = Trace(*layer, true);
    const auto got = testing::Interpret(program, Feed(c, *layer));
    ASSERT_TRUE(got.ok()) << got.status().ToString();
    ExpectGolden(c, *got, 1e-12);
    EXPECT_EQ(got->states.size(), layer->parameters().size());
    if (!got->states.contains("moving_mean")) continue;
    // What comes after that step, outside training: nothing changes.
    testing::StepInput feed = Feed(c, *layer);
    feed.states = got->states;
    const Program evaluated = Trace(*layer, false);
    const auto after = testing::Interpret(evaluated, feed);
    ASSERT_TRUE(after.ok()) << after.status().ToString();
    ExpectGolden(c, *after, 1e-12);
    for (const program::State& state : evaluated.states) EXPECT_EQ(state.entry, state.exit);
  }
}

// The batch is all of it, whatever devices hold it.
TEST(NormalizationTest, LayoutsDoNotChangeItsNumbers) {
  for (const Case& c : Cases()) {
    const auto layer = c.make();
    const Program program = Trace(*layer, true);
    for (const auto& [mesh_text, layout] : {std::pair{"batch=4", "{batch, *, *, *}"},
                                            {"batch=2,h=3", "{batch, h, *, *}"},
                                            {"batch=2,model=3", "{batch, *, *, model}"},
                                            {"h=2,w=2", "{*, h, w, *}"}}) {  // uneven
      SCOPED_TRACE(c.name + " on " + mesh_text);
      const Mesh mesh = *Mesh::Parse(mesh_text);
      sharding::Given given;
      given.inputs.insert_or_assign("x", *Layout::Parse(layout, mesh));
      const auto partitioned = sharding::Shard(program, mesh, given);
      ASSERT_TRUE(partitioned.ok()) << partitioned.status().ToString();
      const auto got = testing::Interpret(*partitioned, Feed(c, *layer));
      ASSERT_TRUE(got.ok()) << got.status().ToString();
      ExpectGolden(c, *got, 1e-12);
    }
  }
}

TEST(NormalizationTest, GammaAndBetaMayBeLeftOut) {
  NormalizationOptions bare{.center = false, .scale = false};
  BatchNormalizationOptions batch;
  batch.center = batch.scale = false;
  BatchNormalization of_batch(batch);
  LayerNormalization of_layer({-1}, bare);
  GroupNormalization of_groups(-1, bare);
  for (Layer* layer : std::initializer_list<Layer*>{&of_batch, &of_layer, &of_groups}) {
    const Program program = Trace(*layer, true);
    EXPECT_EQ(layer->parameters().size(), layer == &of_batch ? 2u : 0u);
    // Each example's channels, or each channel of the batch, have mean 0 and variance near 1.
    testing::StepInput feed;
    feed.inputs["x"] = Given("x", kX);
    feed.inputs["pull"] = Given("pull", kX);
    for (const Parameter& p : layer->parameters()) feed.states[p.name()] = Array(p.type());
    const auto got = testing::Interpret(program, feed);
    ASSERT_TRUE(got.ok()) << got.status().ToString();
    double sum = 0, squares = 0;
    for (const auto v : got->outputs.at("y").at) {
      sum += static_cast<double>(v);
      squares += static_cast<double>(v * v);
    }
    EXPECT_NEAR(sum / 144, 0, 1e-12);
    EXPECT_NEAR(squares / 144, 1, 0.1);
  }
}

Status ErrorOf(Layer&& layer, const TensorType& type) {
  Builder b("model");
  const Builder::Scope scope(b);
  layer(b.Input("x", type));
  return b.Build().status();
}

TEST(NormalizationTest, SaysWhatItTakes) {
  const auto says = [](const Status& status, const std::string& what) {
    EXPECT_NE(status.message().find(what), std::string::npos) << status.ToString();
  };
  BatchNormalizationOptions axis;
  axis.axis = 4;
  says(ErrorOf(BatchNormalization(axis), kX), "axis must name dimensions of f64[4,3,2,6]");
  says(ErrorOf(LayerNormalization({1, -3}), kX), "each once, got: 1");
  says(ErrorOf(LayerNormalization({0}), kX), "behind the first");
  says(ErrorOf(GroupNormalization(4), kX), "groups must divide the 6 channels");
  says(ErrorOf(RmsNormalization({-1}, {.epsilon = 0}), kX), "epsilon must be above 0");
  says(ErrorOf(RmsNormalization(), {DType::kI32, {4, 3}}), "rms_normalization takes floats");
}

}  // namespace
}  // namespace meshtrain::nn
