// Transposed and depthwise convolutions against Keras' numbers (tests/testdata/conv_layers), and
// split over a mesh.
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

const TensorType kX{DType::kF64, {2, 5, 4, 3}};

Array Given(const std::string& name, const TensorType& type) {
  static const auto golden = [] {
    std::map<std::string, std::vector<double>> all;
    std::ifstream file(std::string(MT_SOURCE_DIR) + "/tests/testdata/conv_layers/keras.txt");
    std::string line_name;
    for (size_t n = 0; file >> line_name >> n;) {
      std::vector<double> numbers(n);
      for (double& number : numbers) file >> number;
      all[line_name] = std::move(numbers);
    }
    return all;
  }();
  Array array(type);
  const auto it = golden.find(name);
  EXPECT_TRUE(it != golden.end() && it->second.size() == array.at.size()) << name;
  if (it == golden.end() || it->second.size() != array.at.size()) return array;
  for (size_t i = 0; i < array.at.size(); ++i) array.at[i] = it->second[i];
  return array;
}

struct Case {
  std::string name;
  std::function<std::unique_ptr<Layer>()> make;
  program::Dims result;
};

std::vector<Case> Cases() {
  return {
      {"transpose_same",
       [] {
         return std::make_unique<ConvTranspose>(2, 2, Sizes{3},
                                                ConvOptions{.strides = {2}, .same = true});
       },
       {2, 10, 8, 2}},
      {"transpose_valid",
       [] {
         return std::make_unique<ConvTranspose>(2, 2, Sizes{4, 2}, ConvOptions{.strides = {3, 1}});
       },
       {2, 16, 5, 2}},
      {"transpose_gaps",
       [] { return std::make_unique<ConvTranspose>(2, 2, Sizes{2}, ConvOptions{.strides = {3}}); },
       {2, 15, 12, 2}},
      {"depthwise",
       [] { return std::make_unique<DepthwiseConv>(2, Sizes{3}, 2, ConvOptions{.same = true}); },
       {2, 5, 4, 6}},
      {"depthwise_strided",
       [] { return std::make_unique<DepthwiseConv>(2, Sizes{2}, 1, ConvOptions{.strides = {2}}); },
       {2, 2, 2, 3}},
  };
}

TEST(ConvLayersTest, GiveTheNumbersOfKerasInEveryLayout) {
  for (const Case& c : Cases()) {
    const auto layer = c.make();
    Builder b("layer");
    const Builder::Scope scope(b);
    const Value x = b.Input("x", kX);
    const Value y = (*layer)(x);
    ASSERT_EQ(y.dims(), c.result) << c.name;
    std::vector<Value> wrt = {x};
    std::vector<std::string> names = {"x"};
    for (const Parameter& p : layer->parameters()) {
      wrt.push_back(b.Read(p));
      names.push_back(p.name());
    }
    const TensorType result{DType::kF64, c.result};
    const auto gradients =
        b.Gradient(program::ReduceSum(y * b.Input("pull", result)), std::span<const Value>(wrt));
    b.Output("y", y);
    for (size_t i = 0; i < names.size(); ++i) b.Output("grad_" + names[i], gradients[i]);
    const auto program = b.Build();
    ASSERT_TRUE(program.ok()) << program.status().ToString();

    testing::StepInput feed;
    feed.inputs["x"] = Given("x", kX);
    feed.inputs["pull"] = Given(c.name + ".pull", result);
    for (const Parameter& p : layer->parameters()) {
      feed.states[p.name()] = Given(c.name + "." + p.name(), p.type());
    }
    for (const auto& [mesh_text, layout] : {std::pair{"batch=1", "{batch, *, *, *}"},
                                            {"batch=2,model=3", "{batch, *, *, model}"},
                                            {"h=2,w=2", "{*, h, w, *}"}}) {
      SCOPED_TRACE(c.name + " on " + mesh_text);
      const Mesh mesh = *Mesh::Parse(mesh_text);
      sharding::Given given;
      given.inputs.insert_or_assign("x", *Layout::Parse(layout, mesh));
      const auto partitioned = sharding::Shard(*program, mesh, given);
      ASSERT_TRUE(partitioned.ok()) << partitioned.status().ToString();
      const auto got = testing::Interpret(*partitioned, feed);
      ASSERT_TRUE(got.ok()) << got.status().ToString();
      for (const auto& [name, array] : got->outputs) {
        EXPECT_LT(Difference(array, Given(c.name + "." + name, array.type)), 1e-12) << name;
      }
    }
  }
}

TEST(ConvLayersTest, SayWhatTheyTake) {
  const auto error_of = [](Layer&& layer) {
    Builder b("model");
    const Builder::Scope scope(b);
    layer(b.Input("x", {DType::kF32, {2, 5, 3}}));
    return b.Build().status().message();
  };
  EXPECT_NE(error_of(ConvTranspose(2, 2, {3})).find("conv_2d_transpose takes floats of 4"),
            std::string::npos);
  EXPECT_NE(error_of(ConvTranspose(1, 0, {3})).find("filters must be at least 1"),
            std::string::npos);
  EXPECT_NE(error_of(DepthwiseConv(1, {3}, 0)).find("depth_multiplier must be at least 1"),
            std::string::npos);
}

}  // namespace
}  // namespace meshtrain::nn
