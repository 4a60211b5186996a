// Small programs whose plans and generated loops once gave wrong values with status OK, run as
// users run them and held against the interpreter.
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <random>

#include "runtime/execute/loaded_step.h"
#include "runtime/execute/session.h"
#include "runtime/program/ops.h"
#include "tests/support/interpreter/interpreter.h"

namespace meshtrain::execute {
namespace {

using mesh::DType;
using program::Builder;
using program::Value;

class ProgramsTest : public ::testing::TestWithParam<bool> {
 protected:
  // Runs the program on `mesh` with numbers in [-2, 2); its inputs of rank 2 are split over the
  // first axis by rows. Returns the largest difference of any output from the interpreter's.
  double DifferenceFromInterpreter(Builder& b, const Mesh& mesh) {
    const auto program = b.Build();
    EXPECT_TRUE(program.ok()) << program.status().ToString();
    const auto session = Session::Create({.isolated = GetParam()}).value();
    sharding::Given given;
    for (const auto& port : program->inputs) {
      const int rank = program->type(port.value).rank();
      if (mesh.num_axes() == 0 || rank != 2) continue;
      given.inputs.insert_or_assign(port.name,
                                    *Layout::BatchSharded(mesh, mesh.axis(0).name, rank));
    }
    const auto step = session->Load(*program, mesh, {}, given);
    EXPECT_TRUE(step.ok()) << step.status().ToString();
    if (!step.ok()) return 1e9;
    std::mt19937_64 random(20261123);
    std::uniform_real_distribution<double> numbers(-2, 2);
    meshtrain::testing::StepInput input;
    for (size_t i = 0; i < program->inputs.size(); ++i) {
      const auto& port = program->inputs[i];
      Tensor tensor(program->type(port.value));
      for (float& v : tensor.mutable_values<float>()) v = static_cast<float>(numbers(random));
      input.inputs[port.name] = meshtrain::testing::ToArray(tensor);
      EXPECT_TRUE((*step)->Feed(i, tensor).ok());
    }
    const Status ran = (*step)->Run();
    EXPECT_TRUE(ran.ok()) << ran.ToString();
    const auto want = meshtrain::testing::Interpret(*program, input);
    EXPECT_TRUE(want.ok()) << want.status().ToString();
    double most = 0;
    for (size_t i = 0; i < program->outputs.size(); ++i) {
      const auto got = (*step)->Fetch(i);
      EXPECT_TRUE(got.ok()) << got.status().ToString();
      if (!got.ok()) return 1e9;
      most = std::max(most,
                      meshtrain::testing::Difference(meshtrain::testing::ToArray(*got),
                                                     want->outputs.at(program->outputs[i].name)));
    }
    return most;
  }
};
INSTANTIATE_TEST_SUITE_P(Memory, ProgramsTest, ::testing::Bool(),
                         [](const auto& info) { return info.param ? "Isolated" : "Shared"; });

// The planner merged each tower's end with the other's beginning and lost the steps of the cycle.
TEST_P(ProgramsTest, TwoTowersThatReadEachOther) {
  for (const char* axes : {"", "batch=2"}) {
    Builder b("towers");
    Builder::Scope scope(b);
    const Value x = b.Input("x", {DType::kF32, {4, 8}}), y = b.Input("y", {DType::kF32, {4, 8}});
    const Value h = Tanh(x);
    const Value s = Softmax(h);
    const Value g = Tanh(y);
    const Value t = Softmax(g);
    b.Output("ht", h + t);
    b.Output("sg", s + g);
    EXPECT_LT(DifferenceFromInterpreter(b, *axes == '\0' ? Mesh() : *Mesh::Parse(axes)), 1e-6);
  }
}

// Two sums over the mesh in one bucket: the second's operand comes from a chain that needs the
// first.
TEST_P(ProgramsTest, ASumWhoseChainNeedsAnotherSumOfItsBucket) {
  Builder b("buckets");
  Builder::Scope scope(b);
  const Value x = b.Input("x", {DType::kF32, {4, 8}}), y = b.Input("y", {DType::kF32, {4, 8}});
  const Value h = Tanh(x);
  const Value of_h = ReduceSum(h, {0});
  const Value of_y = ReduceSum(Softmax(y), {0});
  b.Output("chain", h + Exp(of_y));
  b.Output("sum", Exp(of_h));
  EXPECT_LT(DifferenceFromInterpreter(b, *Mesh::Parse("batch=2")), 1e-5);
}

// A scalar that the loops take as a block of copies kept these in a register that an earlier
// instruction of the next block wrote to.
TEST_P(ProgramsTest, ScalarsOfTypedChainsLastBeyondTheFirstBlock) {
  const auto check = [&](const std::function<Value(Value, Value)>& record) {
    Builder b("chain");
    Builder::Scope scope(b);
    const Value x = b.Input("x", {DType::kF32, {8192}}), y = b.Input("y", {DType::kF32, {8192}});
    b.Output("z", record(x, y));
    EXPECT_EQ(DifferenceFromInterpreter(b, Mesh()), 0);
  };
  check([](Value x, Value) { return Cast(Greater(x, 0.5), DType::kI32) * 3; });
  check([](Value x, Value y) { return Cast(Greater(2.0 * x, y), DType::kI64) + 1; });
  check([](Value x, Value y) {
    const Value n = Cast(Greater(x, y), DType::kI32) * 5 - 2;
    return Select(Less(n, 0), n * 7, n + Cast(Greater(y, 0.25), DType::kI32) * 11);
  });
}

}  // namespace
}  // namespace meshtrain::execute
