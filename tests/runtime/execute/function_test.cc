// Ordinary code as steps over state.
#include "runtime/execute/function.h"

#include <gtest/gtest.h>

#include <cmath>

#include "runtime/execute/loaded_step.h"
#include "runtime/program/ops.h"

namespace meshtrain::execute {
namespace {

using mesh::DType;
using program::Variable;

Layout L(const std::string& text, const Mesh& mesh) { return Layout::Parse(text, mesh).value(); }

std::vector<float> Values(const Tensor& t) {
  const auto values = t.values<float>();
  return {values.begin(), values.end()};
}

class FunctionTest : public ::testing::TestWithParam<bool> {
 protected:
  Tensor Host(const Result<DTensor>& x) {
    EXPECT_TRUE(x.ok()) << x.status().message();
    return session_->ToHost(*x).value();
  }
  DTensor OnMesh(std::vector<float> values, const char* layout) {
    const auto n = static_cast<int64_t>(values.size());
    return session_->CopyToMesh(Tensor::Of<float>({n}, values), L(layout, mesh_)).value();
  }
  std::unique_ptr<Session> session_ = Session::Create({.isolated = GetParam()}).value();
  Mesh mesh_ = Mesh::Parse("batch=4").value();
};
INSTANTIATE_TEST_SUITE_P(Memory, FunctionTest, ::testing::Bool(),
                         [](const auto& info) { return info.param ? "Isolated" : "Shared"; });

TEST_P(FunctionTest, InitializersRunUnderTheirLayoutAndGiveTheSameNumbersInEach) {
  const auto make = [] { return program::StatelessUniform({6, 8}, {22, 23}, -1, 1); };
  const Mesh wide = Mesh::Parse("batch=2,model=4").value();
  const std::vector<float> want = Values(Host(CallWithLayout(*session_, L("{*, *}", mesh_), make)));
  for (const Layout& layout :
       {L("{batch, *}", mesh_), L("{*, batch}", mesh_), L("{model, batch}", wide)}) {
    const auto got = CallWithLayout(*session_, layout, make);
    EXPECT_EQ(got->layout(), layout);
    EXPECT_EQ(Values(Host(got)), want);
  }
}

TEST_P(FunctionTest, VariablesKeepTheirLayoutAndAReadAfterAnAssignmentSeesIt) {
  for (const char* layout : {"{*}", "{batch}"}) {
    const DVariable v =
        DVariable::Create(*session_, std::string("v") + layout, OnMesh({1, 2, 3, 4, 5, 6}, layout))
            .value();
    Function step(*session_, "step", {"x"}, [&](const Value& x) -> Outputs {
      const Value before = x + v;
      AssignAdd(v, x);
      const Value middle = x + v;
      Assign(v, 2.0 * v);
      AssignSub(v, 1.0);
      return {{"before", before}, {"middle", middle}, {"after", x + v}};
    });
    const auto out = step(OnMesh({1, 1, 1, 1, 1, 1}, "{batch}"));
    ASSERT_TRUE(out.ok()) << out.status().message();
    EXPECT_EQ(Values(Host((*out)[0])), (std::vector<float>{2, 3, 4, 5, 6, 7}));
    EXPECT_EQ(Values(Host((*out)[1])), (std::vector<float>{3, 4, 5, 6, 7, 8}));
    EXPECT_EQ(Values(Host((*out)[2])), (std::vector<float>{4, 6, 8, 10, 12, 14}));
    EXPECT_EQ(Values(v.ToHost().value()), (std::vector<float>{3, 5, 7, 9, 11, 13}));
    EXPECT_EQ(*v.layout(), L(layout, mesh_));
    ASSERT_TRUE(v.Assign(Tensor::Of<float>({6}, std::vector<float>(6, 7))).ok());
    EXPECT_EQ(Values(Host(v.Read())), std::vector<float>(6, 7));
  }
}

TEST_P(FunctionTest, AVariableWithoutAFirstValueIsRefused) {
  const auto v = DVariable::Create(*session_, "v", DTensor());
  EXPECT_EQ(v.status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(v.status().message(), "variable `v`: expected a tensor on a mesh, got: an empty one");
}

TEST_P(FunctionTest, AVariableThatWasForgottenIsUsedAsItIsDeclaredAnew) {
  const Variable w("w", {DType::kF32, {4}});
  ASSERT_TRUE(session_->Declare(w, L("{batch}", mesh_)).ok());
  Function step(*session_, "step", {}, [&]() -> Outputs {
    AssignAdd(w, 1.0);
    return {{"w", program::ReduceSum(w)}};
  });
  ASSERT_TRUE(step().ok());
  ASSERT_TRUE(step().ok());
  EXPECT_EQ(Values(session_->ReadToHost(w).value()), (std::vector<float>(4, 2)));
  ASSERT_TRUE(session_->Forget(w).ok());
  const Status gone = step().status();
  EXPECT_EQ(gone.code(), StatusCode::kFailedPrecondition);
  EXPECT_NE(gone.message().find("`w`"), std::string::npos) << gone.message();
  for (const char* layout : {"{batch}", "{*}"}) {
    SCOPED_TRACE(layout);
    ASSERT_TRUE(session_->Declare(w, L(layout, mesh_)).ok());
    LoadedStep* const held = step.Prepare({}, {}).value();
    ASSERT_TRUE(held->Run().ok());
    ASSERT_TRUE(step().ok());
    EXPECT_EQ(Values(session_->ReadToHost(w).value()), (std::vector<float>(4, 2)));
    ASSERT_TRUE(session_->Forget(w).ok());
    EXPECT_EQ(held->Run().code(), StatusCode::kFailedPrecondition);
  }
}

TEST_P(FunctionTest, OneTracePerTypesAndLayouts) {
  int traces = 0;
  Function twice(*session_, "twice", {"x"}, [&](const Value& x) -> Outputs {
    ++traces;
    return {{"y", x * 2.0}};
  });
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(twice(OnMesh({1, 2, 3, 4}, "{batch}")).ok());
  EXPECT_EQ(traces, 1);
  ASSERT_TRUE(twice(OnMesh({1, 2, 3, 4}, "{*}")).ok());
  ASSERT_TRUE(twice(OnMesh({1, 2, 3}, "{batch}")).ok());
  EXPECT_EQ(traces, 3);
}

// Whoever calls it with ever new shapes keeps a bounded number of steps: the last used.
TEST_P(FunctionTest, TheStepsUsedLastAreKept) {
  constexpr auto kMost = static_cast<int>(Function::kMostLoaded);
  int traces = 0;
  Function twice(*session_, "twice", {"x"}, [&](const Value& x) -> Outputs {
    ++traces;
    return {{"y", x * 2.0}};
  });
  const auto call = [&](int size) {
    const std::vector<float> x(static_cast<size_t>(size), 3);
    const auto out = twice(OnMesh(x, "{*}"));
    ASSERT_TRUE(out.ok()) << out.status().message();
    EXPECT_EQ(Values(Host((*out)[0])), std::vector<float>(x.size(), 6)) << size;
  };
  const TensorType one{DType::kF32, {1}};
  LoadedStep* const first = twice.Prepare(std::vector{one}, std::vector{L("{*}", mesh_)}).value();
  for (int size = 1; size <= kMost; ++size) call(size);
  EXPECT_EQ(traces, kMost);
  call(1);  // the oldest, used again
  EXPECT_EQ(twice.Prepare(std::vector{one}, std::vector{L("{*}", mesh_)}).value(), first);
  EXPECT_EQ(first->runs(), 2);
  call(kMost + 1);  // in the place of size 2
  EXPECT_EQ(traces, kMost + 1);
  for (int size = 3; size <= kMost; ++size) call(size);
  call(1);
  EXPECT_EQ(traces, kMost + 1);
  EXPECT_EQ(first->runs(), 3);
  call(2);
  EXPECT_EQ(traces, kMost + 2);
}

// Rows of one mesh have the same axes; so have meshes over other devices, or the same in another
// order.
TEST_P(FunctionTest, OneFunctionComputesOnEachOfSeveralMeshesWithTheSameAxes) {
  const Mesh square = Mesh::Parse("a=2,b=2").value();
  std::vector<Mesh> meshes = {square.SubMesh({{"a", 0}}).value(),
                              square.SubMesh({{"a", 1}}).value()};
  for (const std::vector<const char*>& names :
       {std::vector<const char*>{"cpu:4", "cpu:5"}, {"cpu:5", "cpu:4"}}) {
    std::vector<mesh::Device> devices;
    for (const char* name : names) devices.push_back(mesh::Device::Parse(name).value());
    meshes.push_back(Mesh::Create({{"b", 2}}, devices).value());
  }
  int traces = 0;
  Function step(*session_, "step", {"x"}, [&](const Value& x) -> Outputs {
    ++traces;
    return {{"y", x * x}, {"sum", ReduceSum(x)}};
  });
  for (int round = 0; round < 2; ++round) {
    for (size_t m = 0; m < meshes.size(); ++m) {
      SCOPED_TRACE(m);
      const auto at = static_cast<float>(m + 1);
      const Tensor host = Tensor::Of<float>({3}, std::vector<float>{at, at + 1, at + 2});
      const auto out = step(session_->CopyToMesh(host, L("{b}", meshes[m])).value());
      ASSERT_TRUE(out.ok()) << out.status().message();
      EXPECT_EQ((*out)[0].layout().mesh(), meshes[m]);
      EXPECT_EQ(Values(Host((*out)[0])),
                (std::vector<float>{at * at, (at + 1) * (at + 1), (at + 2) * (at + 2)}));
      EXPECT_EQ(Values(Host((*out)[1])), (std::vector<float>{3 * at + 3}));
    }
    EXPECT_EQ(traces, 4);
  }
}

TEST_P(FunctionTest, WhatLiesOnAnotherMeshIsRefusedByItsDevices) {
  const Mesh square = Mesh::Parse("a=2,b=2").value();
  const Mesh first = square.SubMesh({{"a", 0}}).value(),
             second = square.SubMesh({{"a", 1}}).value();
  const Tensor host = Tensor::Of<float>({2}, std::vector<float>{1, 2});
  const DTensor here = session_->CopyToMesh(host, L("{b}", first)).value();
  const DTensor there = session_->CopyToMesh(host, L("{b}", second)).value();
  const DVariable v = DVariable::Create(*session_, "v", here).value();
  Function add(*session_, "add", {"x"}, [&](const Value& x) -> Outputs { return {{"y", x + v}}; });
  EXPECT_EQ(Values(Host((*add(here))[0])), (std::vector<float>{2, 4}));
  EXPECT_EQ(add(there).status().message(),
            "variable `v`: expected it on mesh b=2 on cpu:2, cpu:3, got: b=2 on cpu:0, cpu:1");
  EXPECT_EQ(session_->Relayout(here, L("{*}", second)).status().message(),
            "relayout: expected a layout on mesh b=2 on cpu:0, cpu:1, got: b=2 on cpu:2, cpu:3");
  LoadedStep* step = add.Prepare(std::vector{here.type()}, std::vector{here.layout()}).value();
  EXPECT_EQ(step->Feed(0, there).message(),
            "input `x`: expected a tensor on mesh b=2 on cpu:0, cpu:1, got: b=2 on cpu:2, cpu:3");
}

TEST_P(FunctionTest, TheFirstMistakeComesBackWithItsLine) {
  Function wrong(*session_, "wrong", {"x"}, [&](const Value& x) -> Outputs {
    return {{"y", MatMul(x, x)}};
  });
  const Status status = wrong(OnMesh({1, 2, 3, 4}, "{batch}")).status();
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_NE(status.message().find("function_test.cc:"), std::string::npos) << status.message();
  const Variable nowhere("nowhere", {DType::kF32, {4}});
  Function unknown(*session_, "unknown", {"x"}, [&](const Value& x) -> Outputs {
    return {{"y", x + nowhere}};
  });
  EXPECT_EQ(unknown(OnMesh({1, 2, 3, 4}, "{batch}")).status().code(),
            StatusCode::kFailedPrecondition);
}

TEST_P(FunctionTest, AnUnfedInputOrAWrongTypeIsRefused) {
  Function sum(*session_, "sum", {"a", "b"}, [&](const Value& a, const Value& b) -> Outputs {
    return {{"y", a + b}};
  });
  const std::vector<TensorType> types(2, {DType::kF32, {4}});
  const std::vector<Layout> layouts(2, L("{batch}", mesh_));
  LoadedStep* step = sum.Prepare(types, layouts).value();
  ASSERT_TRUE(step->Feed(0, Tensor::Of<float>({4}, std::vector<float>{1, 2, 3, 4})).ok());
  EXPECT_EQ(step->Run().message(), "input `b` was never fed");
  EXPECT_EQ(step->Feed(1, Tensor::Of<float>({5}, std::vector<float>(5))).message(),
            "input `b`: expected a tensor of type f32[4], got: f32[5]");
  ASSERT_TRUE(step->Feed(1, OnMesh({4, 3, 2, 1}, "{batch}")).ok());
  ASSERT_TRUE(step->Run().ok());
  EXPECT_EQ(Values(step->Fetch(0).value()), std::vector<float>(4, 5));
}

// The states are as they were when a guarded output is not finite.
TEST_P(FunctionTest, AGuardedStepThatIsNotFiniteChangesNothing) {
  SessionOptions options{.isolated = GetParam()};
  options.plan.finite_outputs = {"loss"};
  session_ = Session::Create(std::move(options)).value();
  const DVariable w = DVariable::Create(*session_, "w", OnMesh({1, 2, 3, 4}, "{*}")).value();
  Function step(*session_, "step", {"x"}, [&](const Value& x) -> Outputs {
    const Value loss = ReduceSum(program::Log(x * w));
    const auto gradients = Gradient(loss, std::vector<Variable>{w});
    AssignSub(w, gradients[0]);
    return {{"loss", loss}};
  });
  ASSERT_TRUE(step(OnMesh({1, 1, 1, 1}, "{batch}")).ok());
  const std::vector<float> before = Values(w.ToHost().value());
  EXPECT_EQ(step(OnMesh({1, -1, 1, 1}, "{batch}")).status().code(), StatusCode::kAborted);
  EXPECT_EQ(Values(w.ToHost().value()), before);
}

// Chains are fused up to a length that every backend can hold.
TEST_P(FunctionTest, LongChainsOfElementWiseOpsRun) {
  constexpr int kOps = 400;
  Function step(*session_, "long", {"x", "s"}, [&](const Value& x, const Value& s) -> Outputs {
    Value y = x, t = s;
    std::vector<Value> kept;
    for (int i = 0; i < kOps; ++i) {
      t = t + (i % 2 == 0 ? 1.0 : -1.0) * 0.5;
      y = program::Maximum(y * 1.0 + t, y - static_cast<double>(i) * 1e-6);
      if (i % 5 == 0) kept.push_back(y);
    }
    for (const Value& k : kept) y = y + 0.0 * k;
    return {{"y", y}, {"t", t}};
  });
  const DTensor s = session_->CopyToMesh(Tensor::Scalar(0.0f), L("{}", mesh_)).value();
  const auto out = step(OnMesh({1, 2, 3, 4}, "{batch}"), s);
  ASSERT_TRUE(out.ok()) << out.status().message();
  float t = 0;
  std::vector<float> want = {1, 2, 3, 4};
  for (int i = 0; i < kOps; ++i) {
    t += i % 2 == 0 ? 0.5f : -0.5f;
    for (float& y : want) y = std::max(y + t, y - static_cast<float>(i * 1e-6));
  }
  const std::vector<float> got = Values(Host((*out)[0]));
  for (size_t i = 0; i < want.size(); ++i) EXPECT_NEAR(got[i], want[i], 1e-3f * want[i]);
}

// Each is several loops and constants to the backend.
TEST_P(FunctionTest, LongChainsOfFunctionsRun) {
  constexpr int kOps = 60;
  Function step(*session_, "long", {"x"}, [&](const Value& x) -> Outputs {
    Value y = x;
    for (int i = 0; i < kOps; ++i) y = program::Gelu(y) + 1.0 / (i + 3);
    const auto gradient = y.builder()->Gradient(ReduceSum(y), std::vector<Value>{x});
    return {{"y", y}, {"gradient", gradient[0]}};
  });
  const auto out = step(OnMesh({1, 2, 3, 4}, "{batch}"));
  ASSERT_TRUE(out.ok()) << out.status().message();
  std::vector<double> want = {1, 2, 3, 4};
  std::vector<double> slope = {1, 1, 1, 1};
  for (int i = 0; i < kOps; ++i) {
    for (size_t k = 0; k < want.size(); ++k) {
      const double x = want[k], half = 0.5 * std::erfc(-x / std::sqrt(2.0));
      slope[k] *= half + x * std::exp(-x * x / 2) / std::sqrt(2 * M_PI);
      want[k] = x * half + 1.0 / (i + 3);
    }
  }
  const std::vector<float> got = Values(Host((*out)["y"]));
  const std::vector<float> gradient = Values(Host((*out)["gradient"]));
  for (size_t k = 0; k < want.size(); ++k) {
    EXPECT_NEAR(got[k], want[k], 1e-4 * want[k]);
    EXPECT_NEAR(gradient[k], slope[k], 1e-4 * std::abs(slope[k]) + 1e-6);
  }
}

TEST_P(FunctionTest, OutputsMayBeAskedForInALayout) {
  Function twice(*session_, "twice", {"x"}, [&](const Value& x) -> Outputs {
    return {{"y", x * 2.0}};
  });
  twice.WithOutputLayout("y", L("{batch}", mesh_));
  const auto y = twice(OnMesh({1, 2, 3, 4, 5}, "{*}"));
  ASSERT_TRUE(y.ok()) << y.status().message();
  EXPECT_EQ((*y)[0].layout(), L("{batch}", mesh_));
  EXPECT_EQ(Values(Host((*y)[0])), (std::vector<float>{2, 4, 6, 8, 10}));
}

TEST_P(FunctionTest, ResultsGoByNameAndStayWhereTheyWereMade) {
  Function step(*session_, "step", {"x"}, [&](const Value& x) -> Outputs {
    return {{"y", x * 2.0}, {"sum", program::ReduceSum(x)}};
  });
  const auto results = step(OnMesh({1, 2, 3, 4, 5}, "{batch}"));
  ASSERT_TRUE(results.ok()) << results.status().message();
  ASSERT_EQ(results->size(), 2u);
  const DTensor& y = (*results)["y"];
  EXPECT_EQ(y.layout(), L("{batch}", mesh_));
  EXPECT_EQ(Values(y.Whole().value()), (std::vector<float>{2, 4, 6, 8, 10}));
  // What is pending is reduced: a result is a number.
  EXPECT_EQ((*results)["sum"].layout(), L("{}", mesh_));
  EXPECT_EQ((*results)["sum"].Whole().value().Item(), 15);
  EXPECT_DEATH((*results)["z"], "");
  EXPECT_FALSE(DTensor().Whole().ok());
}

TEST_P(FunctionTest, OneWithoutInputsIsCalledWithNone) {
  Function three(*session_, "three", {}, []() -> Outputs {
    return {{"y", program::Ones({}) * 3.0}};
  });
  const auto results = three();
  ASSERT_TRUE(results.ok()) << results.status().message();
  EXPECT_EQ((*results)["y"].Whole().value().Item(), 3);
}

TEST_P(FunctionTest, AMeanMetricIsOfTheStepsSinceItWasReset) {
  const auto mean = MeanMetric::Create(*session_, "loss", mesh_).value();
  Function step(*session_, "step", {"x"}, [&](const Value& x) -> Outputs {
    const Value loss = program::ReduceSum(x);
    mean.Update(loss);
    return {{"loss", loss}};
  });
  EXPECT_TRUE(std::isnan(mean.Result().value()));
  for (const float x : {1.0f, 2.0f, 4.0f}) ASSERT_TRUE(step(OnMesh({x, x}, "{batch}")).ok());
  EXPECT_DOUBLE_EQ(mean.Result().value(), 14.0 / 3);
  ASSERT_TRUE(mean.Reset().ok());
  ASSERT_TRUE(step(OnMesh({3, 3}, "{batch}")).ok());
  EXPECT_DOUBLE_EQ(mean.Result().value(), 6);
}

}  // namespace
}  // namespace meshtrain::execute
