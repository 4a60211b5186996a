// Numbers that are easily lost, on every backend: NaN, -0, ties of 16 bits, tails.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "runtime/program/ops.h"
#include "tests/contract/backend_programs.h"
#include "tests/contract/backend_suite.h"

namespace meshtrain::device {
namespace {

using mesh::DType;
using program::Builder;
using program::Program;
using program::Value;
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
      const auto got = RunPlan(
          *backend, LoweredBy(*backend, program, mesh, FirstDimension(program, mesh)), input);
      ASSERT_TRUE(got.ok()) << got.status().ToString();
      ExpectNear(*got, want, 0);
    }
  }
}

}  // namespace
}  // namespace meshtrain::device
