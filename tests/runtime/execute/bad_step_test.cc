// A step whose loss or a gradient is not finite changes nothing, wherever the values lie.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "runtime/execute/function.h"
#include "runtime/program/ops.h"

namespace meshtrain::execute {
namespace {

using mesh::DType;
using program::Variable;
using ::testing::HasSubstr;

struct Case {
  std::string name;
  std::string mesh;
  std::string x = "{*, *}";  // layouts
  std::string w = "{*, *}";
  bool isolated = false;
  int64_t rows = 4, columns = 4;  // examples, inputs
};
void PrintTo(const Case& c, std::ostream* out) { *out << c.name; }

std::vector<Case> Cases() {
  return {
      {"OneDevice", ""},
      {"BatchMerged", "batch=2", "{batch, *}"},
      {"BatchIsolated", "batch=2", "{batch, *}", "{*, *}", true},
      {"ModelIsolated", "model=2", "{*, *}", "{*, model}", true},
      {"RowsOfTheModelIsolated", "model=2", "{*, model}", "{model, *}", true},
      {"BothIsolated", "batch=2,model=2", "{batch, *}", "{*, model}", true},
      {"UnevenIsolated", "batch=2,model=2", "{batch, *}", "{model, *}", true, 5, 5},
  };
}

// w and a slot v of momentum for y = x w + b with a squared error; a count of steps.
class BadStepTest : public ::testing::TestWithParam<Case> {
 protected:
  void SetUp() override { Make({.isolated = GetParam().isolated}); }

  void Make(SessionOptions options, float weights = 1) {
    session_ = Session::Create(std::move(options)).value();
    mesh_ = Mesh::Parse(GetParam().mesh).value();
    const Case& c = GetParam();
    w_ = Declare("w", {DType::kF32, {c.columns, 6}}, c.w);
    v_ = Declare("v", {DType::kF32, {c.columns, 6}}, c.w);
    b_ = Declare("b", {DType::kF32, {6}}, "{*}");
    n_ = Declare("n", {DType::kI64, {}}, "{}");
    std::vector<float> values(static_cast<size_t>(c.columns * 6));
    for (size_t i = 0; i < values.size(); ++i) {
      values[i] = weights * (0.25f * static_cast<float>(i % 7) - 0.5f);
    }
    ASSERT_TRUE(session_->Write(w_, Tensor::Of<float>({c.columns, 6}, values)).ok());
  }

  Variable Declare(const std::string& name, TensorType type, const std::string& layout) {
    const Variable variable(name, std::move(type));
    EXPECT_TRUE(session_->Declare(variable, Layout::Parse(layout, mesh_).value()).ok());
    return variable;
  }

  DTensor X(const std::vector<float>& values) {
    const Tensor x = Tensor::Of<float>({GetParam().rows, GetParam().columns}, values);
    return session_->CopyToMesh(x, Layout::Parse(GetParam().x, mesh_).value()).value();
  }
  std::vector<float> Inputs(float scale) const {
    std::vector<float> x(static_cast<size_t>(GetParam().rows * GetParam().columns));
    for (size_t i = 0; i < x.size(); ++i) {
      x[i] = scale * (0.5f + 0.125f * static_cast<float>(i % 5));
    }
    return x;
  }

  // `momentum`: else plain descent, whose gradient is a pending sum up to w.
  Function Step(bool momentum) {
    return Function(*session_, "step", {"x"}, [=, this](const Value& x) -> Outputs {
      const Value loss = program::ReduceMean(program::Square(program::MatMul(x, w_) + b_ - 1.0));
      const auto g = Gradient(loss, std::vector<Variable>{w_, b_});
      if (momentum) {
        program::Assign(v_, 0.9 * v_ + g[0]);
        program::AssignSub(w_, 0.01 * v_);
      } else {
        program::AssignSub(w_, 0.01 * g[0]);
      }
      program::AssignSub(b_, 0.01 * g[1]);
      program::AssignAdd(n_, 1);
      return {{"loss", loss}};
    });
  }

  // Of every variable, bit for bit.
  std::vector<std::string> State() {
    std::vector<std::string> all;
    for (const Variable& v : {w_, v_, b_, n_}) {
      const Tensor value = session_->ReadToHost(v).value();
      const auto bytes = value.bytes();
      all.emplace_back(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    }
    return all;
  }

  std::unique_ptr<Session> session_;
  Mesh mesh_;
  Variable w_, v_, b_, n_;
};
INSTANTIATE_TEST_SUITE_P(Layouts, BadStepTest, ::testing::ValuesIn(Cases()),
                         [](const auto& info) { return info.param.name; });

// The loss is finite, about 1e20, and the gradient is not.
TEST_P(BadStepTest, AGradientThatIsNotFiniteChangesNothingAndIsNamed) {
  for (const bool momentum : {false, true}) {
    SCOPED_TRACE(momentum);
    Make({.isolated = GetParam().isolated}, 1e-21f);
    Function step = Step(momentum);
    const auto before = State();
    const auto bad = step(X(Inputs(1e31f)));
    ASSERT_EQ(bad.status().code(), StatusCode::kAborted) << bad.status().ToString();
    EXPECT_THAT(bad.status().message(), HasSubstr("first not finite: matmul at bad_step_test.cc:"));
    EXPECT_THAT(bad.status().message(), HasSubstr("then in the gradient of `w`"));
    EXPECT_EQ(State(), before);
    // Training goes on.
    ASSERT_TRUE(step(X(Inputs(1))).ok());
    EXPECT_NE(State(), before);
    EXPECT_EQ(session_->ReadToHost(n_).value().Item(), 1);
  }
}

TEST_P(BadStepTest, ALossThatIsNotFiniteChangesNothing) {
  Function step = Step(true);
  std::vector<float> x = Inputs(1);
  x.back() = std::numeric_limits<float>::quiet_NaN();
  const auto before = State();
  const Status bad = step(X(x)).status();
  EXPECT_EQ(bad.code(), StatusCode::kAborted) << bad.ToString();
  EXPECT_THAT(bad.message(), HasSubstr("first not finite: input x"));
  EXPECT_EQ(State(), before);
}

// Each part of the gradient is finite and their sum is not.
TEST_P(BadStepTest, ASumThatOverflowsBetweenDevicesChangesNothing) {
  const Case& c = GetParam();
  const Variable u = Declare("u", {DType::kF32, {c.columns}}, "{*}");
  Function step(*session_, "step", {"x"}, [&](const Value& x) -> Outputs {
    const Value loss = program::ReduceSum(program::ReduceSum(x, {0}) * u);
    AssignSub(u, 0.5 * Gradient(loss, std::vector<Variable>{u})[0]);
    return {{"loss", loss}};
  });
  const auto of = [&](float value) {
    return X(std::vector<float>(static_cast<size_t>(c.rows * c.columns), value));
  };
  ASSERT_TRUE(step(of(1e36f)).ok());
  const Tensor before = session_->ReadToHost(u).value();
  ASSERT_TRUE(session_
                  ->Write(u, Tensor::Of<float>({c.columns},
                                               std::vector<float>(static_cast<size_t>(c.columns))))
                  .ok());
  EXPECT_EQ(step(of(1.2e38f)).status().code(), StatusCode::kAborted);
  const Tensor after = session_->ReadToHost(u).value();
  for (const float value : after.values<float>()) EXPECT_EQ(value, 0);
}

// What a good step computes, and what it sends, is what it would be without the check.
TEST_P(BadStepTest, AGoodStepsNumbersAreTheSameWithoutTheCheck) {
  for (const bool momentum : {false, true}) {
    std::vector<std::string> with;
    for (const bool guard : {true, false}) {
      Make({.isolated = GetParam().isolated, .guard_updates = guard});
      Function step = Step(momentum);
      for (int i = 0; i < 5; ++i) {
        ASSERT_TRUE(step(X(Inputs(0.1f * static_cast<float>(1 + i)))).ok());
      }
      if (guard) {
        with = State();
      } else {
        EXPECT_EQ(State(), with);
      }
    }
  }
}

// A gradient that is only shown spoils nothing.
TEST_P(BadStepTest, AGradientThatNoUpdateReadsMayBeInfinite) {
  Function step(*session_, "step", {"x"}, [&](const Value& x) -> Outputs {
    const Value loss = program::ReduceSum(program::Square(program::MatMul(x, w_)));
    const auto g = Gradient(loss, std::vector<Variable>{w_});
    program::AssignAdd(n_, 1);
    return {{"loss", loss}, {"gradient", g[0]}};
  });
  const auto shown = step(X(Inputs(1e19f)));
  ASSERT_TRUE(shown.ok()) << shown.status().ToString();
  EXPECT_EQ(shown->size(), 2u);
  EXPECT_EQ(session_->ReadToHost(n_).value().Item(), 1);
}

// The second loss is of weights that the first one has updated already.
TEST_P(BadStepTest, AnUpdateThatAGradientReadsIsTakenBackToo) {
  Function step(*session_, "step", {"x"}, [&](const Value& x) -> Outputs {
    const Value first = program::ReduceMean(program::Square(program::MatMul(x, w_)));
    program::AssignSub(w_, 0.01 * Gradient(first, std::vector<Variable>{w_})[0]);
    program::AssignAdd(n_, 1);
    const Value second = program::ReduceMean(program::Log(program::MatMul(x, w_) + b_ + 3.0));
    program::AssignSub(b_, Gradient(second, std::vector<Variable>{b_})[0]);
    return {{"first", first}, {"second", second}};
  });
  const auto before = State();
  const Status bad = step(X(Inputs(-100))).status();  // the logarithm of a negative number
  ASSERT_EQ(bad.code(), StatusCode::kAborted) << bad.ToString();
  EXPECT_THAT(bad.message(), HasSubstr("log at bad_step_test.cc:"));
  EXPECT_EQ(State(), before);
  ASSERT_TRUE(step(X(Inputs(0.01f))).ok());
  EXPECT_NE(State(), before);
}

}  // namespace
}  // namespace meshtrain::execute
