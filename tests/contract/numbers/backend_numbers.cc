// Numbers that are easily lost, on every backend: NaN, -0, ties of 16 bits, tails.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "runtime/program/ops.h"
#include "tests/contract/backend_programs.h"
#include "tests/contract/backend_suite.h"

namespace meshtrain::device {
namespace {

using mesh::DType;
using mesh::Layout;
using mesh::Mesh;
using program::Builder;
using program::Program;
using program::Value;
using sharding::Given;
using testing::StepInput;

constexpr DType kFloats[] = {DType::kF32, DType::kF64, DType::kBF16, DType::kF16};

// A maximum or minimum of what is no number is none, in either operand, in each place of a row and
// on each device.
TEST_P(BackendSuite, ExtremesKeepWhatIsNoNumber) {
  if (!GetParam().computes) GTEST_SKIP() << "computes nothing";
  const auto backend = GetParam().make();
  for (const DType dtype : kFloats) {
    Builder b("extremes");
    Builder::Scope scope(b);
    using namespace program;  // NOLINT: the ops
    const Value x = b.Input("x", {dtype, {4, 6}});
    const Value y = Reverse(x, {1});
    b.Output("larger", Maximum(x, y));
    b.Output("less", Minimum(y, x));
    b.Output("tops", ReduceMax(x, {0}));
    b.Output("bottoms", ReduceMin(y, {0}));
    b.Output("top of each", ReduceMax(x, {1}));
    b.Output("bottom of each", ReduceMin(x, {1}));
    b.Output("where", ArgMax(x, 0));
    b.Output("where in each", ArgMax(x, 1));
    b.Output("windows", WindowMax(Reshape(x, {4, 6, 1}), {.sizes = {2}, .strides = {2}}));
    const Program program = *b.Build();
    // The last row, and every other column, has numbers alone; of both signs, and both infinities.
    StepInput input;
    meshtrain::testing::Array& array = input.inputs["x"] =
        meshtrain::testing::Array({dtype, {4, 6}});
    for (size_t i = 0; i < array.at.size(); ++i) array.at[i] = static_cast<double>(i) - 11;
    for (const size_t row : {0, 1, 2}) array.at[6 * row + 2 * row] = std::nan("");
    array.at[3] = -std::numeric_limits<double>::infinity();
    array.at[9] = std::numeric_limits<double>::infinity();
    const auto want = *meshtrain::testing::Interpret(program, input);
    for (const char* mesh : {"", "a=2", "a=4"}) {
      if (!Fits(*backend, mesh)) continue;
      SCOPED_TRACE(std::string(mesh::DTypeName(dtype)) + " on `" + mesh + "`");
      Given given = FirstDimension(program, mesh);
      if (*mesh != 0) {
        given.outputs.insert_or_assign("bottoms", *Layout::Parse("{a}", *Mesh::Parse(mesh)));
      }
      const auto got = RunPlan(*backend, LoweredBy(*backend, program, mesh, given), input);
      ASSERT_TRUE(got.ok()) << got.status().ToString();
      ExpectNear(*got, want, 0);
    }
  }
}

// What lies next to the middle of two numbers of 16 bits, and would fall into it as an f32.
TEST_P(BackendSuite, HalvesOfWiderNumbersAreRoundedOnce) {
  if (!GetParam().computes) GTEST_SKIP() << "computes nothing";
  const auto backend = GetParam().make();
  StepInput input;
  Builder b("halves");
  Builder::Scope scope(b);
  const auto add = [&](const std::string& name, DType from, const auto& numbers) {
    meshtrain::testing::Array& array = input.inputs[name] =
        meshtrain::testing::Array({from, {static_cast<int64_t>(numbers.size())}});
    std::copy(numbers.begin(), numbers.end(), array.at.begin());
    const Value x = b.Input(name, array.type);
    b.Output(name + " as bf16", program::Cast(x, DType::kBF16));
    b.Output(name + " as f16", program::Cast(x, DType::kF16));
  };
  std::vector<double> doubles = {0,     1,      65504,    65519.9999999999, 65520,
                                 1e300, 3.4e38, HUGE_VAL, std::nan("")};
  for (const double middle : {0x1.01p0, 0x1.03p0, 0x1.01p40, 0x1.03p-40, 0x1.002p0, 0x1.006p5}) {
    for (const double away : {-0x1p-40, 0.0, 0x1p-40, 0x1p-12}) {
      doubles.push_back(middle * (1 + away));
    }
  }
  for (size_t i = 0, n = doubles.size(); i < n; ++i) doubles.push_back(-doubles[i]);
  add("f64", DType::kF64, doubles);
  std::vector<int64_t> wide = {0,
                               1,
                               2049,
                               65519,
                               65520,
                               std::numeric_limits<int64_t>::max(),
                               std::numeric_limits<int64_t>::min() + 1};
  for (int bit = 8; bit < 62; ++bit) {
    for (const int64_t first : {1, 3}) {
      const int64_t middle = (int64_t{1} << bit) + (first << (bit - 8));
      for (const int64_t away : {-1, 0, 1}) wide.push_back(middle + away);
    }
  }
  for (size_t i = 0, n = wide.size(); i < n; ++i) wide.push_back(-wide[i]);
  std::vector<int32_t> narrow = {std::numeric_limits<int32_t>::min()};
  for (const int64_t number : wide) {
    if (std::abs(number) <= std::numeric_limits<int32_t>::max()) {
      narrow.push_back(static_cast<int32_t>(number));
    }
  }
  wide.push_back(std::numeric_limits<int64_t>::min());
  add("i64", DType::kI64, wide);
  add("i32", DType::kI32, narrow);
  const Program program = *b.Build();
  const auto got = RunPlan(*backend, LoweredBy(*backend, program, "", {}), input);
  ASSERT_TRUE(got.ok()) << got.status().ToString();
  ExpectNear(*got, *meshtrain::testing::Interpret(program, input), 0);
}

// Nothing is left of gelu where erf is -1.
TEST_P(BackendSuite, GeluHasNoTail) {
  if (!GetParam().computes) GTEST_SKIP() << "computes nothing";
  const auto backend = GetParam().make();
  StepInput input;
  Builder b("gelu");
  Builder::Scope scope(b);
  for (const DType dtype : kFloats) {
    const std::string name(mesh::DTypeName(dtype));
    meshtrain::testing::Array& array = input.inputs[name] =
        meshtrain::testing::Array({dtype, {10}});
    array.at = {-1, -3, -5.5, -6, -10, -100, -3e4, -HUGE_VAL, 3e4, std::nan("")};
    const Value x = b.Input(name, array.type);
    b.Output("erf " + name, program::Erf(x));
    b.Output("gelu " + name, program::Gelu(program::Slice(x, {0}, {7})));
  }
  const Program program = *b.Build();
  const auto got = RunPlan(*backend, LoweredBy(*backend, program, "", {}), input);
  ASSERT_TRUE(got.ok()) << got.status().ToString();
  const auto want = *meshtrain::testing::Interpret(program, input);
  for (const DType dtype : kFloats) {
    const std::string name(mesh::DTypeName(dtype));
    const double tolerance = mesh::IsHalf(dtype) ? 4 * mesh::UnitRoundoff(dtype) : 1e-6;
    EXPECT_LE(meshtrain::testing::Difference(got->outputs.at("erf " + name),
                                             want.outputs.at("erf " + name)),
              tolerance)
        << name;
    EXPECT_LE(meshtrain::testing::Difference(got->outputs.at("gelu " + name),
                                             want.outputs.at("gelu " + name)),
              tolerance)
        << name;
    for (const size_t at : {4, 5, 6}) {
      EXPECT_LE(std::abs(got->outputs.at("gelu " + name).at[at]), 1e-20) << name << " " << at;
    }
  }
}

// Parts that several devices hold are put together without a sum.
TEST_P(BackendSuite, WhatIsJoinedKeepsItsSign) {
  if (!GetParam().computes) GTEST_SKIP() << "computes nothing";
  const auto backend = GetParam().make();
  if (!Fits(*backend, "a=2")) GTEST_SKIP() << "few devices";
  const Mesh mesh = *Mesh::Parse("a=2");
  for (const DType dtype : kFloats) {
    SCOPED_TRACE(mesh::DTypeName(dtype));
    Builder b("joined");
    Builder::Scope scope(b);
    const Value x = b.Input("x", {dtype, {3}});
    b.Output("y", program::Concat({x, -x}, 0));
    const Program program = *b.Build();
    StepInput input;
    input.inputs["x"] = meshtrain::testing::Array({dtype, {3}});
    input.inputs["x"].at = {-0.0, 0.0, -0.0};
    Given given = FirstDimension(program, "a=2");
    given.outputs.insert_or_assign("y", *Layout::Parse("{a}", mesh));
    const auto got = RunPlan(*backend, LoweredBy(*backend, program, "a=2", given), input);
    ASSERT_TRUE(got.ok()) << got.status().ToString();
    for (size_t i = 0; i < 6; ++i) {
      EXPECT_EQ(std::signbit(got->outputs.at("y").at[i]), i == 0 || i == 2 || i == 4) << i;
    }
  }
}

}  // namespace
}  // namespace meshtrain::device
