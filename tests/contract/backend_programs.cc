#include "tests/contract/backend_programs.h"

#include <gtest/gtest.h>

#include <random>
#include <span>
#include <vector>

#include "runtime/program/ops.h"

namespace meshtrain::device {
namespace {

using mesh::DType;
using mesh::Layout;
using mesh::Mesh;
using mesh::TensorType;
using program::Program;
using sharding::Given;
using testing::Array;
using testing::StepInput;
using testing::StepResult;

Array Numbers(const TensorType& type, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::uniform_real_distribution<double> real(0.1, 2.0);
  Array a(type);
  for (auto& x : a.at) {
    switch (type.dtype) {
      case DType::kBool:
        x = static_cast<double>(random() % 2);
        break;
      case DType::kU8:
      case DType::kI32:
      case DType::kI64:
        x = static_cast<double>(random() % 3);
        break;
      default:
        x = testing::RoundTo(type.dtype, (random() % 2 == 0 ? 1 : -1) * real(random));
    }
  }
  return a;
}

}  // namespace

StepInput InputFor(const Program& program, uint64_t seed) {
  StepInput input;
  for (const auto& p : program.inputs) {
    input.inputs[p.name] = Numbers(program.type(p.value), seed++);
  }
  for (const auto& s : program.states) {
    input.states[s.name] = Numbers(program.type(s.entry), seed++);
  }
  return input;
}

void ExpectNear(const StepResult& got, const StepResult& want, double tolerance) {
  const auto compare = [&](const testing::Arrays& a, const testing::Arrays& b) {
    for (const auto& [name, array] : b) {
      ASSERT_TRUE(a.contains(name)) << name;
      EXPECT_LE(testing::Difference(a.at(name), array), tolerance) << name;
    }
  };
  compare(got.outputs, want.outputs);
  compare(got.states, want.states);
}

plan::Plan PlanOf(const Program& program, const std::string& mesh_text, const Given& given,
                  plan::Options options) {
  auto partitioned = sharding::Shard(program, *Mesh::Parse(mesh_text), given);
  EXPECT_TRUE(partitioned.ok()) << partitioned.status().ToString();
  auto plan = plan::MakePlan(std::move(*partitioned), options);
  EXPECT_TRUE(plan.ok()) << plan.status().ToString();
  return std::move(*plan);
}

Given FirstDimension(const Program& program, const std::string& mesh_text) {
  Given given;
  const Mesh mesh = *Mesh::Parse(mesh_text);
  if (mesh.num_axes() == 0) return given;
  for (const auto& p : program.inputs) {
    const int rank = program.type(p.value).rank();
    if (rank > 0) {
      given.inputs.insert_or_assign(p.name, *Layout::BatchSharded(mesh, mesh.axis(0).name, rank));
    }
  }
  return given;
}

Given EveryAxis(const Program& program, const std::string& mesh_text) {
  const Mesh mesh = *Mesh::Parse(mesh_text);
  mesh::DimSharding others;
  for (int a = 1; a < mesh.num_axes(); ++a) others.push_back(a);
  Given given = FirstDimension(program, mesh_text);
  for (auto& [name, layout] : given.inputs) {
    if (layout.rank() == 2) layout = layout.WithDim(1, others);
  }
  return given;
}

Program WindowsInSpace() {
  program::Builder b("windows");
  const program::Builder::Scope scope(b);
  const program::Value image = b.Input("x", {mesh::DType::kF32, {2, 13, 12, 2}});
  const program::Value kernel = b.Input("kernel", {mesh::DType::kF32, {3, 3, 2, 3}});
  program::Value y =
      program::Conv(image, kernel, {.strides = {2, 1}, .padding = program::Padding::kSame});
  y = program::WindowMax(y, {.sizes = {3, 2}, .strides = {1, 2}});
  const std::vector<program::Value> wrt = {image, kernel};
  const auto gradients =
      b.Gradient(program::ReduceSum(y * y), std::span<const program::Value>(wrt));
  b.Output("y", y);
  b.Output("dx", gradients[0]);
  b.Output("dk", gradients[1]);
  return *b.Build();
}

plan::Plan PlanInSpace(const Program& windows, const std::string& mesh_text,
                       plan::Options options) {
  const Mesh mesh = *Mesh::Parse(mesh_text);
  const auto layout =
      mesh::Layout::Parse(mesh.FindAxis("w") ? "{*, h, w, *}" : "{*, h, *, *}", mesh);
  Given given;
  given.inputs.insert_or_assign("x", *layout);
  given.outputs.insert_or_assign("dx", *layout);
  const sharding::Options slow{
      .cost = {.link_bytes_per_second = 1e6, .collective_latency_seconds = 0}};
  auto partitioned = sharding::Shard(windows, mesh, given, slow);
  EXPECT_TRUE(partitioned.ok()) << partitioned.status().ToString();
  auto plan = plan::MakePlan(std::move(*partitioned), options);
  EXPECT_TRUE(plan.ok()) << plan.status().ToString();
  return std::move(*plan);
}

}  // namespace meshtrain::device
