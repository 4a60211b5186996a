// A small convolutional network against Keras' numbers (tests/testdata/conv): loss, logits and the
// gradient of every weight, on one device and split by examples, features and space. The network:
// relu(conv 3x3 same), max-pool 2, relu(conv 3x3 of stride 2), flatten, dense. Each run is one of
// the interpreter and one of the CPU backend.
#include <gtest/gtest.h>

#include <cstring>
#include <fstream>
#include <iterator>

#include "runtime/device/backend.h"
#include "runtime/nn/model.h"
#include "runtime/plan/plan.h"
#include "runtime/program/ops.h"
#include "runtime/sharding/sharding.h"
#include "tests/contract/run_plan.h"
#include "tests/support/interpreter/interpreter.h"

namespace meshtrain::nn {
namespace {

using mesh::Layout;
using mesh::Mesh;
using program::Builder;
using program::DType;
using program::Program;
using testing::Array;

// An array of f32 or i32 that NumPy wrote, as numbers of `dtype`.
Array ReadNpy(const std::string& name, DType dtype, const program::Dims& dims) {
  std::ifstream file(std::string(MT_SOURCE_DIR) + "/tests/testdata/conv/" + name + ".npy",
                     std::ios::binary);
  const std::string bytes((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  Array array(TensorType{dtype, dims});
  const size_t data = 4 * array.at.size();
  EXPECT_GT(bytes.size(), data) << name;
  if (bytes.size() <= data) return array;
  const bool whole = bytes.find("'<i4'") != std::string::npos;
  for (size_t i = 0; i < array.at.size(); ++i) {
    const char* at = bytes.data() + bytes.size() - data + 4 * i;
    float real = 0;
    int32_t integer = 0;
    std::memcpy(&real, at, 4);
    std::memcpy(&integer, at, 4);
    array.at[i] = whole ? static_cast<double>(integer) : static_cast<double>(real);
  }
  return array;
}

// Weights, and what the files call them.
const std::vector<std::pair<std::string, std::string>> kWeights = {
    {"conv_2d.kernel", "k1"}, {"conv_2d.bias", "b1"}, {"conv_2d_1.kernel", "k2"},
    {"conv_2d_1.bias", "b2"}, {"dense.kernel", "wd"}, {"dense.bias", "bd"}};

// Its loss, logits and gradients, named as the files are.
Program Network() {
  Sequential model(Conv(2, 4, {3}, {.same = true, .activation = ActivationKind::kRelu}),
                   Pooling(PoolingKind::kMax, 2, {2}),
                   Conv(2, 6, {3}, {.strides = {2}, .activation = ActivationKind::kRelu}),
                   Flatten(), Dense(5));
  Builder b("conv");
  const Builder::Scope scope(b);
  const Value logits = model(b.Input("x", {DType::kF64, {8, 15, 15, 2}}));
  const Value loss = program::ReduceMean(
      program::SparseSoftmaxCrossEntropy(logits, b.Input("y", {DType::kI32, {8}})));
  std::vector<program::Variable> weights(model.parameters().begin(), model.parameters().end());
  EXPECT_EQ(weights.size(), kWeights.size());
  const auto gradients = b.Gradient(loss, std::span<const program::Variable>(weights));
  b.Output("loss", loss);
  b.Output("logits", logits);
  for (size_t i = 0; i < weights.size(); ++i) {
    EXPECT_EQ(weights[i].name(), kWeights[i].first);
    b.Output("grad_" + kWeights[i].second, gradients[i]);
  }
  auto program = b.Build();
  EXPECT_TRUE(program.ok()) << program.status().ToString();
  return program.ok() ? *std::move(program) : Program();
}

testing::StepInput Feed(const Program& program) {
  testing::StepInput feed;
  feed.inputs["x"] = ReadNpy("x", DType::kF64, {8, 15, 15, 2});
  feed.inputs["y"] = ReadNpy("y", DType::kI32, {8});
  for (const program::State& state : program.states) {
    for (const auto& [name, file] : kWeights) {
      if (name != state.name) continue;
      feed.states[name] = ReadNpy("init_" + file, DType::kF64, program.type(state.entry).dims);
    }
  }
  return feed;
}

Result<testing::StepResult> RunOnCpu(const sharding::Partitioned& partitioned,
                                     const testing::StepInput& feed) {
  const auto cpu = device::MakeCpuBackend({.threads = 2, .isolated = true, .fenced = true});
  MT_ASSIGN_OR_RETURN(const plan::Plan plan, plan::MakePlan(partitioned));
  return device::RunPlan(*cpu, plan, feed);
}

TEST(ConvTest, GivesTheNumbersOfKeras) {
  const Program program = Network();
  const testing::StepInput feed = Feed(program);
  const auto alone = sharding::Shard(program, Mesh(), {});
  ASSERT_TRUE(alone.ok()) << alone.status().ToString();
  for (const auto& got : {testing::Interpret(program, feed), RunOnCpu(*alone, feed)}) {
    ASSERT_TRUE(got.ok()) << got.status().ToString();
    EXPECT_NEAR(static_cast<double>(got->outputs.at("loss").at[0]), 2.854063034057617, 1e-6);
    for (const program::Port& port : program.outputs) {
      if (port.name == "loss") continue;
      const Array want = ReadNpy(port.name, DType::kF64, program.type(port.value).dims);
      EXPECT_LT(Difference(got->outputs.at(port.name), want), 2e-6) << port.name;
    }
  }
}

struct Placing {
  std::string mesh;
  std::string image;  // of x
  std::map<std::string, std::string> weights;
};

// By data, by model and in space: layouts alone, and the numbers of one device.
TEST(ConvTest, LayoutsDoNotChangeItsNumbers) {
  const Program program = Network();
  const testing::StepInput feed = Feed(program);
  const auto want = testing::Interpret(program, feed);
  ASSERT_TRUE(want.ok()) << want.status().ToString();
  const Placing placings[] = {
      {"batch=8", "{batch, *, *, *}", {}},
      {"batch=4,model=2",
       "{batch, *, *, *}",
       {{"conv_2d.kernel", "{*, *, *, model}"},
        {"conv_2d.bias", "{model}"},
        {"conv_2d_1.kernel", "{*, *, model, *}"}}},
      {"h=2,w=2,batch=2", "{batch, h, w, *}", {}},
      {"h=4", "{*, h, *, *}", {}},
  };
  for (const Placing& placing : placings) {
    for (const double link : {1e10, 1e6}) {  // the second: where moving is dear
      SCOPED_TRACE(placing.mesh + (link < 1e7 ? ", slow links" : ""));
      const Mesh mesh = *Mesh::Parse(placing.mesh);
      sharding::Given given;
      given.inputs.insert_or_assign("x", *Layout::Parse(placing.image, mesh));
      for (const auto& [name, layout] : placing.weights) {
        given.states.insert_or_assign(name, *Layout::Parse(layout, mesh));
      }
      const auto partitioned =
          sharding::Shard(program, mesh, given, {.cost = {.link_bytes_per_second = link}});
      ASSERT_TRUE(partitioned.ok()) << partitioned.status().ToString();
      for (const auto& got :
           {testing::Interpret(*partitioned, feed), RunOnCpu(*partitioned, feed)}) {
        ASSERT_TRUE(got.ok()) << got.status().ToString();
        for (const auto& [name, array] : want->outputs) {
          EXPECT_LT(Difference(got->outputs.at(name), array), 1e-9) << name;
        }
      }
    }
  }
}

Status ErrorOf(Layer&& layer, TensorType type) {
  Builder b("model");
  const Builder::Scope scope(b);
  layer(b.Input("x", std::move(type)));
  return b.Build().status();
}

TEST(ConvTest, SaysWhatItTakes) {
  const TensorType image{DType::kF32, {2, 8, 8, 3}};
  EXPECT_NE(ErrorOf(Conv(2, 4, {3, 3, 3}), image).message().find("kernel_size must be 1 or 2"),
            std::string::npos);
  EXPECT_NE(ErrorOf(Conv(1, 4, {3}), image).message().find("conv_1d takes floats of 3 dimensions"),
            std::string::npos);
  EXPECT_NE(ErrorOf(Conv(2, 4, {3}, {.groups = 2}), image).message().find("groups must divide"),
            std::string::npos);
  EXPECT_NE(ErrorOf(Conv(2, 4, {9}), image).message().find("got: 9 elements in 8"),
            std::string::npos);
  EXPECT_NE(ErrorOf(Pooling(PoolingKind::kMax, 3, {2}), image).message().find("max_pooling_3d"),
            std::string::npos);
}

TEST(ConvTest, GlobalPoolingLeavesChannels) {
  for (const bool keep : {false, true}) {
    Sequential model(GlobalPooling(PoolingKind::kAverage, 2, keep));
    Builder b("model");
    const Builder::Scope scope(b);
    const Value y = model(b.Input("x", {DType::kF32, {2, 8, 8, 3}}));
    EXPECT_EQ(y.dims(), keep ? (program::Dims{2, 1, 1, 3}) : (program::Dims{2, 3}));
  }
}

}  // namespace
}  // namespace meshtrain::nn
