#include "runtime/plan/widen.h"

#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

#include "runtime/program/builder.h"
#include "runtime/program/ops.h"

namespace meshtrain::plan {
namespace {

using mesh::DType;
using program::Builder;
using program::Op;
using program::Program;
using program::Value;

sharding::Partitioned OnTwo(const Program& program) {
  const mesh::Mesh mesh = *mesh::Mesh::Parse("a=2");
  sharding::Given given;
  for (const program::Port& p : program.inputs) {
    given.inputs.insert_or_assign(
        p.name, mesh::Layout::Replicated(mesh, program.type(p.value).rank()).WithDim(0, {0}));
  }
  auto made = sharding::Shard(program, mesh, given);
  EXPECT_TRUE(made.ok()) << made.status().ToString();
  return *std::move(made);
}

std::map<std::string, int> Kinds(const Program& program) {
  std::map<std::string, int> kinds;
  for (const Op& op : program.ops) ++kinds[op.kind];
  return kinds;
}

Program Sample(DType dtype) {
  Builder b("sample");
  const Builder::Scope scope(b);
  const Value x = b.Input("x", {dtype, {4, 6}}), y = b.Input("y", {dtype, {4, 6}});
  const Value moved = program::Transpose(program::Select(program::Greater(x, y), x, y), {1, 0});
  b.Output("squares", program::MatMul(moved, x * x));
  b.Output("normal", program::StatelessNormal({4}, {1, 2}, 0, 1, dtype));
  return *b.Build();
}

TEST(WidenTest, WhatComputesComputesInF32) {
  for (const DType dtype : {DType::kBF16, DType::kF16}) {
    const sharding::Partitioned before = OnTwo(Sample(dtype));
    const sharding::Partitioned after = WidenHalves(before);
    EXPECT_TRUE(program::Validate(after.local).ok()) << program::Validate(after.local).ToString();
    EXPECT_EQ(after.layouts.size(), after.local.values.size());
    EXPECT_EQ(after.global_dims.size(), after.local.values.size());
    for (const Op& op : after.local.ops) {
      if (MovesElements(op)) continue;
      for (const auto v : op.operands) EXPECT_FALSE(IsHalf(after.local.type(v).dtype)) << op.kind;
      for (const auto v : op.results) EXPECT_FALSE(IsHalf(after.local.type(v).dtype)) << op.kind;
    }
    // What was there keeps its number, type and layout.
    for (size_t v = 0; v < before.local.values.size(); ++v) {
      EXPECT_EQ(after.local.values[v].type, before.local.values[v].type);
      EXPECT_EQ(after.layouts[v].ToString(), before.layouts[v].ToString());
    }
    // greater 2, mul 1 (both operands are one value) and 1, matmul 2 and 1, normal 1.
    EXPECT_EQ(Kinds(after.local)["cast"], 8);
    auto kinds = Kinds(after.local);
    kinds.erase("cast");
    EXPECT_EQ(kinds, Kinds(before.local));
  }
}

TEST(WidenTest, ReshardsNameTheirOpsStill) {
  const auto named = [](const sharding::Partitioned& p) {
    std::vector<std::string> kinds;
    for (const sharding::Reshard& reshard : p.reshards) {
      for (const int op : reshard.ops) kinds.push_back(p.local.ops[op].kind);
    }
    return kinds;
  };
  const sharding::Partitioned before = OnTwo(Sample(DType::kBF16));
  ASSERT_FALSE(named(before).empty());
  EXPECT_EQ(named(WidenHalves(before)), named(before));
}

TEST(WidenTest, WhatADeviceComputesByItselfStays) {
  const sharding::Partitioned before = OnTwo(Sample(DType::kBF16));
  const auto products = [](const Op& op) { return op.kind == "matmul"; };
  EXPECT_EQ(Kinds(WidenHalves(before, products).local)["cast"], 5);
}

TEST(WidenTest, AProgramWithoutHalvesStaysAsItIs) {
  const sharding::Partitioned before = OnTwo(Sample(DType::kF32));
  EXPECT_EQ(WidenHalves(before).local.ToString(), before.local.ToString());
}

}  // namespace
}  // namespace meshtrain::plan
