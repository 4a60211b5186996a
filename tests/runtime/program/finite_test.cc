#include "runtime/program/finite.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "runtime/program/builder.h"
#include "runtime/program/ops.h"

namespace meshtrain::program {
namespace {

using ::testing::ElementsAre;

std::vector<std::string> Names(const std::vector<Port>& ports) {
  std::vector<std::string> names;
  for (const Port& p : ports) names.push_back(p.name);
  return names;
}

struct Step {
  explicit Step(bool updates) {
    Builder::Scope scope(builder);
    const Value x = builder.Input("x", {DType::kF32, {4, 3}});
    const Value loss = ReduceMean(Square(MatMul(x, w)) + unused);
    const auto g = Gradient(loss, std::vector<Variable>{w, unused});
    if (updates) AssignSub(w, 0.1 * g[0]);
    AssignAdd(steps, 1);
    builder.Output("loss", loss);
    builder.Output("g", g[1]);
    program = builder.Build().value();
  }
  Builder builder{"step"};
  const Variable w{"w", {DType::kF32, {3, 2}}};
  const Variable unused{"unused", {DType::kF32, {2}}};
  const Variable steps{"steps", {DType::kI64, {}}};
  Program program;
};

TEST(FiniteTest, TheLossAndTheGradientsOfUpdatesAreWatched) {
  EXPECT_THAT(Names(WatchedForUpdates(Step(true).program)),
              ElementsAre("the loss", "the gradient of `w`"));
  EXPECT_TRUE(WatchedForUpdates(Step(false).program).empty());
}

TEST(FiniteTest, OfAVariableTheLastGradientIsWatched) {
  Builder b("step");
  Builder::Scope scope(b);
  const Variable w("w", {DType::kF32, {3}}), still("still", {DType::kF32, {3}});
  const Value loss = ReduceSum(Square(b.Input("x", {DType::kF32, {3}}) * w));
  const auto g = Gradient(loss, std::vector<Variable>{w, still});
  const Value scaled = g[0] / 2.0;
  b.WatchGradient(w, scaled);
  // Zeros, since the loss does not depend on it.
  EXPECT_THAT(Names(b.program().watched), ElementsAre("the loss", "the gradient of `w`"));
  EXPECT_EQ(b.program().watched[1].value, scaled.id());
}

TEST(FiniteTest, WatchesSurviveTextAndWireAndGoWithTheirOps) {
  const Program program = Step(true).program;
  ASSERT_EQ(program.watched.size(), 3u);
  const std::string text = program.ToString();
  EXPECT_NE(text.find("\nwatch \"the gradient of `w`\" = %"), std::string::npos) << text;
  EXPECT_EQ(ParseProgram(text).value().ToString(), text);
  EXPECT_EQ(DeserializeProgram(SerializeProgram(program)).value().watched, program.watched);
  Program without = program;
  without.outputs.clear();
  for (State& s : without.states) s.exit = s.entry;
  EXPECT_TRUE(WithoutDeadOps(without).watched.empty());
  // What is computed is the same.
  Program unwatched = program;
  unwatched.watched.clear();
  EXPECT_EQ(HashProgram(program), HashProgram(unwatched));
  EXPECT_EQ(ParseProgram("program p\ninput x: i32[2] = %0\nwatch g = %0\n").status().code(),
            StatusCode::kInvalidArgument);
}

TEST(FiniteTest, ReplicasBoundTheirPartsOfASum) {
  const Program alone = WithGuard(Step(true).program, 1, "guard").value();
  const Program one_of_two = WithGuard(Step(true).program, 2, "guard").value();
  const auto limit = [](const Program& p) {
    for (const Op& op : p.ops) {
      if (op.kind == "count_beyond") return op.attrs.Double("limit");
    }
    return 0.0;
  };
  EXPECT_EQ(limit(one_of_two), limit(alone) / 4);
  EXPECT_EQ(alone.outputs.back().name, "guard");
  EXPECT_NE(alone.ops.back().kind, "all_reduce");
  EXPECT_EQ(one_of_two.ops.back().kind, "all_reduce");
  EXPECT_EQ(WithGuard(Step(false).program, 2, "guard").value().outputs.size(), 2u);
}

TEST(FiniteTest, TheFirstOpAndTheGradientItIsSeenInAreNamed) {
  const FiniteCheck check = WithFiniteChecks(Step(true).program).value();
  ASSERT_EQ(check.program.outputs.size(), check.places.size());
  EXPECT_THAT(check.places, ::testing::Contains("input x"));
  std::vector<double> counts(check.places.size(), 0);
  EXPECT_EQ(check.Explain(counts), "");
  counts.back() = 3;
  EXPECT_EQ(check.Explain(counts),
            "the gradient of `w`, of which a sum over the replicas may overflow");
  counts[check.watched] = 1;  // the loss as well
  counts[0] = 1;
  EXPECT_EQ(check.Explain(counts), "input x, then in the gradient of `w`");
  counts.back() = 0;
  EXPECT_EQ(check.Explain(counts), "input x, then in the loss");
}

}  // namespace
}  // namespace meshtrain::program
