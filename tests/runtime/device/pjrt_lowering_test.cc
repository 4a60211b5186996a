// The column of StableHLO: every op has its row, and what plans become. That plugins read it and
// compute the same, tests/contract/backend_pjrt_test.cc shows.
#include <gtest/gtest.h>

#include <array>

#include "runtime/device/pjrt/lowering.h"
#include "runtime/device/pjrt/ops/rows.h"
#include "runtime/program/ops.h"
#include "runtime/program/registry.h"

namespace meshtrain::device::pjrt {
namespace {

// How often `what` stands in the text.
int Count(std::string_view text, std::string_view what) {
  int found = 0;
  for (size_t at = text.find(what); at != std::string::npos; at = text.find(what, at + 1)) ++found;
  return found;
}

TEST(PjrtRowsTest, EveryOpHasItsRow) {
  for (const program::OpDef* def : program::Registry::Standard().All()) {
    EXPECT_TRUE(AllRows().contains(def->kind))
        << "op `" << def->kind << "` has no row in runtime/device/pjrt/ops";
  }
  for (const auto& [kind, row] : AllRows()) {
    EXPECT_NE(program::Registry::Standard().Find(kind), nullptr) << "no op is called " << kind;
  }
}

TEST(PjrtLoweringTest, AStepIsOneProgramWithItsStatesDonated) {
  program::Builder b("step");
  program::Builder::Scope scope(b);
  const program::Variable w("w", {mesh::DType::kF32, {4}}), kept("kept", {mesh::DType::kF32, {}});
  const program::Value x = b.Input("x", {mesh::DType::kF32, {2, 4}});
  b.Output("loss", program::ReduceSum(x * w) + kept);
  program::Assign(w, b.Read(w) - program::ReduceSum(x, {0}));
  const mesh::Mesh mesh = *mesh::Mesh::Parse("batch=2");
  sharding::Given given;
  given.inputs.insert_or_assign("x", *mesh::Layout::BatchSharded(mesh, "batch", 2));
  const auto plan = plan::MakePlan(*sharding::Shard(*b.Build(), mesh, given),
                                   {.fuse = false, .finite_outputs = {"loss"}});
  ASSERT_TRUE(plan.ok()) << plan.status().ToString();
  const auto lowered = Lower(*plan);
  ASSERT_TRUE(lowered.ok()) << lowered.status().ToString();
  const std::string& text = lowered->text;
  EXPECT_EQ(lowered->replicas, 2);
  EXPECT_EQ(lowered->changed, std::vector<int>{0});
  EXPECT_EQ(lowered->guards, std::vector<std::string>{"loss"});
  EXPECT_NE(text.find("mhlo.num_replicas = 2"), std::string::npos) << text;
  // The output, the state that changes, the code; the state that only is read is not donated.
  EXPECT_NE(text.find("@main(%arg0: tensor<1x4xf32>, %arg1: tensor<4xf32> {tf.aliasing_output = 1 "
                      ": i32}, %arg2: tensor<f32>) -> (tensor<f32>, tensor<4xf32>, tensor<i32>)"),
            std::string::npos)
      << text;
  EXPECT_NE(text.find("replica_groups = dense<[[0, 1]]> : tensor<1x2xi64>"), std::string::npos)
      << text;
}

// Two things alike, of which XLA would compute one.
TEST(PjrtLoweringTest, WhatIsComputedAgainStandsBehindBarriers) {
  program::Builder b("step");
  const program::Builder::Scope scope(b);
  b.ComputeAgain([](std::string_view path) { return path.substr(0, 5); });
  const program::Variable w("w", {mesh::DType::kF32, {4}});
  program::Value y = program::Tanh(b.Input("x", {mesh::DType::kF32, {4}}) * w);
  {
    const program::Builder::NameScope name(b, "block.one");
    y = program::Tanh(program::Exp(y * 0.5));
  }
  const program::Value loss = program::ReduceSum(y);
  b.Output("loss", loss);
  program::Assign(w, b.Read(w) - program::Gradient(loss, std::array{w})[0]);
  const auto plan = plan::MakePlan(*sharding::Shard(*b.Build(), mesh::Mesh(), {}));
  ASSERT_TRUE(plan.ok()) << plan.status().ToString();
  const auto lowered = Lower(*plan);
  ASSERT_TRUE(lowered.ok()) << lowered.status().ToString();
  // What leads into the block, once; the block's own values need none.
  const std::string_view kBarrier = "stablehlo.optimization_barrier";
  const size_t at = lowered->text.find(kBarrier);
  ASSERT_NE(at, std::string::npos) << lowered->text;
  EXPECT_EQ(lowered->text.find(kBarrier, at + 1), std::string::npos) << lowered->text;
}

// XLA's code for CPUs would compute a moment anew for its weight, from the old moment, and so have
// to copy that.
TEST(PjrtLoweringTest, OnCpusAWeightReadsTheMomentThatIsThere) {
  program::Builder b("step");
  const program::Builder::Scope scope(b);
  const program::Variable w("w", {mesh::DType::kF32, {3}}), m("m", {mesh::DType::kF32, {3}});
  const program::Value loss = program::ReduceSum(b.Read(w) * b.Read(w), {0});
  const program::Value gradient = b.Gradient(loss, std::vector<program::Variable>{w})[0];
  b.Output("loss", loss);
  const program::Value moment = b.Read(m) * 0.9 + gradient;
  program::Assign(m, moment);
  program::Assign(w, b.Read(w) - moment);
  for (const bool guarded : {true, false}) {
    const plan::Plan plan =
        *plan::MakePlan(*sharding::Shard(*b.Build(), mesh::Mesh(), {}),
                        {.finite_outputs = guarded ? std::vector<std::string>{"loss"}
                                                   : std::vector<std::string>{}});
    ASSERT_EQ(plan.guard_step >= 0, guarded);
    EXPECT_EQ(Lower(plan)->text.find("optimization_barrier"), std::string::npos);
    const std::string text = Lower(plan, /*for_cpus=*/true)->text;
    const size_t subtract = text.find("stablehlo.subtract ");
    ASSERT_NE(subtract, std::string::npos) << text;
    const size_t comma = text.find(", ", subtract) + 2;
    const std::string read = text.substr(comma, text.find(' ', comma) - comma);
    EXPECT_NE(text.find(read + " = stablehlo.optimization_barrier "), std::string::npos) << text;
    // A choice of the guard for each state.
    EXPECT_EQ(Count(text, "stablehlo.select"), guarded ? 4 : 0) << text;
  }
}

// TPUs reduce numbers of 64 bits of several devices by sums alone.
TEST(PjrtLoweringTest, TheLeastOfWideNumbersIsFoundWhereTheyAreGathered) {
  for (const auto& [dtype, gathered] : std::vector<std::pair<mesh::DType, bool>>{
           {mesh::DType::kI64, true}, {mesh::DType::kF64, true}, {mesh::DType::kF32, false}}) {
    program::Builder b("step");
    const program::Builder::Scope scope(b);
    const program::Value x = b.Input("x", {dtype, {4, 3}});
    b.Output("least", program::ReduceMin(x, {0}));
    b.Output("sum", program::ReduceSum(x, {0}));
    const mesh::Mesh mesh = *mesh::Mesh::Parse("batch=2");
    sharding::Given given;
    given.inputs.insert_or_assign("x", *mesh::Layout::BatchSharded(mesh, "batch", 2));
    const plan::Plan plan = *plan::MakePlan(*sharding::Shard(*b.Build(), mesh, given));
    const std::string text = Lower(plan)->text;
    EXPECT_EQ(Count(text, "\"stablehlo.all_reduce\""), gathered ? 1 : 2) << text;
    EXPECT_EQ(Count(text, "\"stablehlo.all_gather\""), gathered ? 1 : 0) << text;
  }
}

// Where devices find the largest float, a NaN is lost: they find that of whole numbers.
TEST(PjrtLoweringTest, DevicesCompareFloatsAsWholeNumbers) {
  for (const mesh::DType dtype : {mesh::DType::kF32, mesh::DType::kBF16, mesh::DType::kF16}) {
    program::Builder b("step");
    const program::Builder::Scope scope(b);
    const program::Value x = b.Input("x", {dtype, {4, 2}});
    b.Output("whole", program::ReduceMax(x, {0}));
    b.Output("parts", program::ReduceMin(x, {0}));
    const mesh::Mesh mesh = *mesh::Mesh::Parse("batch=2");
    sharding::Given given;
    given.inputs.insert_or_assign("x", *mesh::Layout::BatchSharded(mesh, "batch", 2));
    given.outputs.insert_or_assign("parts", *mesh::Layout::Parse("{batch}", mesh));
    const plan::Plan plan = *plan::MakePlan(*sharding::Shard(*b.Build(), mesh, given));
    const std::string text = Lower(plan)->text;
    EXPECT_EQ(Count(text, "\"stablehlo.all_reduce\""), 1) << text;
    EXPECT_EQ(Count(text, "\"stablehlo.reduce_scatter\""), 1) << text;
    EXPECT_EQ(Count(text, ": (tensor<2xi32>) -> (tensor<2xi32>)"), 1) << text;
    EXPECT_EQ(Count(text, ": (tensor<2xi32>) -> tensor<1xi32>"), 1) << text;
  }
}

TEST(PjrtLoweringTest, AnOpWithoutARowIsNamedWithItsLine) {
  program::Builder b("step");
  const program::Builder::Scope scope(b);
  const program::SourceLine line{"deploy/job.yaml", 12};
  {
    const program::Builder::NameScope name(b, "hidden_1");
    const program::Builder::LineScope declared(b, line);
    b.Output("y", program::Exp(b.Input("x", {mesh::DType::kF32, {2}})));
  }
  plan::Plan plan = *plan::MakePlan(*sharding::Shard(*b.Build(), mesh::Mesh(), {}));
  for (program::Op& op : plan.partitioned.local.ops) {
    if (op.kind == "exp") op.kind = "exponential";
  }
  const Status status = Lower(plan).status();
  EXPECT_EQ(status.code(), StatusCode::kUnimplemented);
  EXPECT_EQ(status.message(), "job.yaml:12: pjrt: no StableHLO for op `exponential` of hidden_1");
}

TEST(PjrtLoweringTest, NumbersAreWrittenBitForBit) {
  Module m;
  m.Splat("f32", {2}, 0.1);
  m.Splat("f64", {}, 0.1);
  m.Whole("ui64", {}, ~uint64_t{0});
  m.Splat("f32", {0, 3}, 1);
  EXPECT_EQ(m.text(),
            "    %0 = stablehlo.constant dense<0x3DCCCCCD> : tensor<2xf32>\n"
            "    %1 = stablehlo.constant dense<0x3FB999999999999A> : tensor<f64>\n"
            "    %2 = stablehlo.constant dense<18446744073709551615> : tensor<ui64>\n"
            "    %3 = stablehlo.constant dense<> : tensor<0x3xf32>\n");
}

}  // namespace
}  // namespace meshtrain::device::pjrt
