// What the planner decides: where layouts spread, where sums are reduced, what is moved.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "runtime/base/check.h"
#include "runtime/program/ops.h"
#include "runtime/program/registry.h"
#include "tests/runtime/sharding/models.h"

namespace meshtrain::sharding {
namespace {

using program::Builder;
using program::DType;
using program::Value;

// Records with inputs by name and type; outputs by name.
class Recorder {
 public:
  Recorder() : builder_("test"), scope_(builder_) {}
  Value In(const std::string& name, program::Dims dims, DType dtype = DType::kF32) {
    return builder_.Input(name, {dtype, std::move(dims)});
  }
  void Out(const std::string& name, const Value& value) { builder_.Output(name, value); }
  Builder& builder() { return builder_; }
  program::Program Build() {
    auto program = builder_.Build();
    if (!program.ok()) ADD_FAILURE() << program.status().ToString();
    MT_CHECK(program.ok());
    return *std::move(program);
  }

 private:
  Builder builder_;
  Builder::Scope scope_;
};

Given Inputs(const Mesh& mesh, const std::map<std::string, std::string>& layouts) {
  Given given;
  for (const auto& [name, text] : layouts) {
    given.inputs.insert_or_assign(name, *Layout::Parse(text, mesh));
  }
  return given;
}

// "matmul {batch, *}" for each op.
std::string LayoutsText(const Sharded& s) {
  std::string text;
  for (const program::Op& op : s.program.ops) {
    text += op.kind + " " + s.layouts[op.results[0]].ToString() + "\n";
  }
  return text;
}

TEST(PropagateTest, SpreadsForwardBackwardAndIntoInputs) {
  const Mesh mesh = *Mesh::Parse("batch=4");
  Recorder r;
  const Value x = r.In("x", {8, 4});
  const Value bias = r.In("bias", {8, 4});  // nobody says how it is fed
  const Value mask = program::Fill({8, 4}, 2.0);
  r.Out("y", ReduceSum(Relu(x + bias) * mask, {1}));
  const auto s = Propagate(r.Build(), mesh, Inputs(mesh, {{"x", "{batch, *}"}}));
  ASSERT_TRUE(s.ok()) << s.status().ToString();
  EXPECT_EQ(LayoutsText(*s),
            "fill {batch, *}\n"
            "add {batch, *}\n"
            "relu {batch, *}\n"
            "mul {batch, *}\n"
            "reduce_sum {batch}\n");
  EXPECT_EQ(s->layouts[s->program.inputs[1].value].ToString(), "{batch, *}");
}

TEST(PropagateTest, GivenLayoutsStayAsTheyAre) {
  const Mesh mesh = *Mesh::Parse("batch=4");
  Recorder r;
  const Value x = r.In("x", {8, 4});
  const Value y = r.In("y", {8, 4});
  r.Out("z", x + y);
  const auto p = Shard(r.Build(), mesh, Inputs(mesh, {{"x", "{batch, *}"}, {"y", "{*, batch}"}}));
  ASSERT_TRUE(p.ok());
  EXPECT_EQ(p->input_layouts[0].ToString(), "{batch, *}");
  EXPECT_EQ(p->input_layouts[1].ToString(), "{*, batch}");
}

TEST(PropagateTest, GivenOutputReachesBackToTheSource) {
  const Mesh mesh = *Mesh::Parse("batch=4");
  Recorder r;
  r.Out("y", Transpose(Exp(program::StatelessUniform({8, 4}, {1, 2})), {1, 0}));
  Given given;
  given.outputs.insert_or_assign("y", *Layout::Parse("{*, batch}", mesh));
  const auto p = Shard(r.Build(), mesh, given);
  ASSERT_TRUE(p.ok());
  EXPECT_EQ(MovesText(*p), "");
  const program::Op& random = p->local.ops[0];
  EXPECT_EQ(random.attrs.Ints("dims"), (program::Dims{2, 4}));
  EXPECT_EQ(random.attrs.Ints("global_dims"), (program::Dims{8, 4}));
  EXPECT_EQ(random.attrs.Text("layout"), "{batch, *}");
}

TEST(PropagateTest, ReshapeCarriesTheFactorThatSurvives) {
  const Mesh mesh = *Mesh::Parse("batch=4");
  Recorder r;
  const Value x = r.In("x", {12, 28, 28});
  r.Out("y", Reshape(x, {12, 784}));
  r.Out("z", Reshape(x, {12 * 28, 28}));
  const auto s = Propagate(r.Build(), mesh, Inputs(mesh, {{"x", "{batch, *, *}"}}));
  ASSERT_TRUE(s.ok());
  EXPECT_EQ(LayoutsText(*s), "reshape {batch, *}\nreshape {batch, *}\n");
}

TEST(PropagateTest, UnevenRowsPassAReshapeThatKeepsThem) {
  const Mesh mesh = *Mesh::Parse("batch=8");
  Recorder r;
  const Value x = r.In("x", {12, 4, 4});
  r.Out("kept", ReduceSum(Reshape(x, {12, 16})));
  r.Out("merged", ReduceSum(Reshape(x, {48, 4})));  // chunks of 2 rows are not chunks of 48 / 8
  const auto p = Shard(r.Build(), mesh, Inputs(mesh, {{"x", "{batch, *, *}"}}));
  ASSERT_TRUE(p.ok()) << p.status().ToString();
  EXPECT_EQ(MovesText(*p),
            "mask_pad f32[12,16] {batch, *}\n"
            "all_gather f32[12,4,4] {batch, *, *} -> {*, *, *}\n"
            "all_reduce f32[] {} sum(batch) -> {}\n");
}

// --- where sums are reduced

TEST(PendingTest, SumOfManyUsersIsReducedOnce) {
  const Mesh mesh = *Mesh::Parse("batch=4");
  Recorder r;
  const Value sum = ReduceSum(r.In("x", {8, 4}), {0});
  r.Out("a", sum * 2.0);
  r.Out("b", sum * 3.0);
  r.Out("c", sum);
  const auto p = Shard(r.Build(), mesh, Inputs(mesh, {{"x", "{batch, *}"}}));
  ASSERT_TRUE(p.ok());
  EXPECT_EQ(MovesText(*p), "all_reduce f32[4] {*} sum(batch) -> {*}\n");
}

TEST(PendingTest, TwoSumsThatMeetAreReducedTogether) {
  const Mesh mesh = *Mesh::Parse("batch=4");
  Recorder r;
  const Value a = MatMul(r.In("x", {8, 64}), r.In("u", {8, 64}), true);
  const Value b = MatMul(r.In("y", {8, 64}), r.In("v", {8, 64}), true);
  r.Out("both", a + b);
  const auto p = Shard(
      r.Build(), mesh,
      Inputs(mesh,
             {{"x", "{batch, *}"}, {"y", "{batch, *}"}, {"u", "{batch, *}"}, {"v", "{batch, *}"}}));
  ASSERT_TRUE(p.ok());
  EXPECT_EQ(MovesText(*p), "all_reduce f32[64,64] {*, *} sum(batch) -> {*, *}\n");
}

TEST(PendingTest, SumWaitsWhereItBecomesSmaller) {
  const Mesh mesh = *Mesh::Parse("model=4");
  Recorder r;
  const Value y = MatMul(r.In("x", {256, 64}), r.In("w", {64, 256}));
  r.Out("rows", ReduceSum(y * 2.0, {0}));
  const auto p = Shard(r.Build(), mesh, Inputs(mesh, {{"x", "{*, model}"}, {"w", "{model, *}"}}));
  ASSERT_TRUE(p.ok());
  EXPECT_EQ(MovesText(*p), "all_reduce f32[256] {*} sum(model) -> {*}\n");
}

TEST(PendingTest, NonlinearOpsReduceFirst) {
  const Mesh mesh = *Mesh::Parse("model=4");
  Recorder r;
  const Value y = MatMul(r.In("x", {64, 4096}), r.In("w", {4096, 64}));
  r.Out("one", ReduceSum(Exp(y)));
  const auto p = Shard(r.Build(), mesh, Inputs(mesh, {{"x", "{*, model}"}, {"w", "{model, *}"}}));
  ASSERT_TRUE(p.ok());
  EXPECT_EQ(MovesText(*p), "all_reduce f32[64,64] {*, *} sum(model) -> {*, *}\n");
}

TEST(PendingTest, PendingPlusWholeReducesFirst) {
  const Mesh mesh = *Mesh::Parse("model=4");
  Recorder r;
  const Value y = MatMul(r.In("x", {8, 64}), r.In("w", {64, 16}));
  r.Out("y", y + r.In("b", {16}));
  const auto p = Shard(r.Build(), mesh,
                       Inputs(mesh, {{"x", "{*, model}"}, {"w", "{model, *}"}, {"b", "{*}"}}));
  ASSERT_TRUE(p.ok());
  EXPECT_EQ(MovesText(*p), "all_reduce f32[8,16] {*, *} sum(model) -> {*, *}\n");
}

// What is cast up is not added up in 16 bits, though it would be half as much to send.
TEST(PendingTest, HalvesThatAreCastUpAreReducedBehindTheCast) {
  const Mesh mesh = *Mesh::Parse("batch=4");
  const auto moves = [&](bool narrow_sums, bool used_elsewhere) {
    Recorder r;
    const Value product =
        MatMul(r.In("x", {8192, 64}, DType::kBF16), r.In("g", {8192, 16}, DType::kBF16), true);
    program::Attrs attrs = {{"dtype", std::string("f32")}};
    if (narrow_sums) attrs.Set("narrow_sums", true);
    r.Out("gradient", r.builder().Append1("cast", {product}, std::move(attrs)) * 0.5);
    if (used_elsewhere) r.Out("half", product);
    const auto p = Shard(r.Build(), mesh, Inputs(mesh, {{"x", "{batch, *}"}, {"g", "{batch, *}"}}));
    EXPECT_TRUE(p.ok());
    return p.ok() ? MovesText(*p) : p.status().ToString();
  };
  const std::string half = "all_reduce bf16[64,16] {*, *} sum(batch) -> {*, *}\n";
  EXPECT_EQ(moves(false, false), "all_reduce f32[64,16] {*, *} sum(batch) -> {*, *}\n");
  EXPECT_EQ(moves(true, false), half);
  // Once, for both who read it.
  EXPECT_EQ(moves(false, true), half);
}

// Over two axes at once, and into parts of the result.
TEST(PendingTest, HalvesOfTwoAxesAreReducedBehindTheCast) {
  const Mesh mesh = *Mesh::Parse("batch=2,model=2");
  Recorder r;
  const Value product =
      MatMul(r.In("x", {8192, 64}, DType::kF16), r.In("g", {8192, 16}, DType::kF16), true);
  r.Out("gradient", Cast(product, DType::kF32));
  Given given = Inputs(mesh, {{"x", "{batch+model, *}"}, {"g", "{batch+model, *}"}});
  given.outputs.insert_or_assign("gradient", *Layout::Parse("{model, *}", mesh));
  const auto p = Shard(r.Build(), mesh, given);
  ASSERT_TRUE(p.ok()) << p.status().ToString();
  EXPECT_THAT(MovesText(*p), ::testing::Not(::testing::HasSubstr("f16")));
  EXPECT_EQ(p->output_layouts[0].ToString(), "{model, *}");
}

// --- what is moved

TEST(CostTest, SmallOperandIsGathered) {
  const Mesh mesh = *Mesh::Parse("a=4");
  Recorder r;
  const Value x = r.In("x", {4096, 256});
  const Value w = r.In("w", {256, 16});
  r.Out("y", MatMul(x, w));
  Given given = Inputs(mesh, {{"x", "{a, *}"}, {"w", "{a, *}"}});
  given.outputs.insert_or_assign("y", *Layout::Parse("{a, *}", mesh));
  const auto p = Shard(r.Build(), mesh, given);
  ASSERT_TRUE(p.ok());
  EXPECT_EQ(MovesText(*p), "all_gather f32[256,16] {a, *} -> {*, *}\n");
}

TEST(CostTest, UsersOfOneLayoutShareOneReshard) {
  const Mesh mesh = *Mesh::Parse("a=4");
  Recorder r;
  const Value x = r.In("x", {64, 64});
  r.Out("y", program::Reverse(x, {1}));
  r.Out("z", program::Reverse(x, {-1}));
  Given given = Inputs(mesh, {{"x", "{*, a}"}});
  for (const std::string name : {"y", "z"}) {
    given.outputs.insert_or_assign(name, *Layout::Parse("{a, *}", mesh));
  }
  const auto p = Shard(r.Build(), mesh, given);
  ASSERT_TRUE(p.ok());
  EXPECT_EQ(MovesText(*p), "all_to_all f32[64,64] {*, a} -> {a, *}\n");
}

TEST(RelayoutTest, HoldsTheValueThereAndCostsNoOp) {
  const Mesh mesh = *Mesh::Parse("a=4");
  Recorder r;
  const Value x = r.In("x", {8, 8});
  r.Out("y", Exp(Relayout(x, {"unsharded", "a"})));
  Given given = Inputs(mesh, {{"x", "{a, *}"}});
  given.outputs.insert_or_assign("y", *Layout::Parse("{*, a}", mesh));
  const auto p = Shard(r.Build(), mesh, given);
  ASSERT_TRUE(p.ok()) << p.status().ToString();
  ASSERT_EQ(p->local.ops.size(), 2u);
  EXPECT_EQ(p->local.ops[0].kind, "all_to_all");
  EXPECT_EQ(p->local.ops[1].kind, "exp");
}

// --- uneven shards

TEST(UnevenTest, BothOperandsOfAContractionAreMaskedOnce) {
  const Mesh mesh = *Mesh::Parse("batch=8");
  Recorder r;
  const Value x = r.In("x", {12, 4});
  const Value g = r.In("g", {12, 3});
  r.Out("dw", MatMul(x, g, true));
  r.Out("again", MatMul(g, x, true));
  const auto p = Shard(r.Build(), mesh, Inputs(mesh, {{"x", "{batch, *}"}, {"g", "{batch, *}"}}));
  ASSERT_TRUE(p.ok());
  EXPECT_EQ(MovesText(*p),
            "mask_pad f32[12,4] {batch, *}\n"
            "mask_pad f32[12,3] {batch, *}\n"
            "all_reduce f32[4,3] {*, *} sum(batch) -> {*, *}\n"
            "all_reduce f32[3,4] {*, *} sum(batch) -> {*, *}\n");
  EXPECT_EQ(p->local.ops[0].attrs.Double("value"), 0);
  EXPECT_EQ(p->local.ops[0].attrs.Int("size"), 12);
}

TEST(UnevenTest, MaximaArePaddedWithTheirIdentity) {
  const Mesh mesh = *Mesh::Parse("batch=8");
  Recorder r;
  r.Out("max", ReduceMax(r.In("x", {12, 4}), {0}));
  r.Out("min", ReduceMin(r.In("n", {12}, DType::kI32), {0}));
  const auto p = Shard(r.Build(), mesh, Inputs(mesh, {{"x", "{batch, *}"}, {"n", "{batch}"}}));
  ASSERT_TRUE(p.ok());
  EXPECT_EQ(p->local.ops[0].kind, "mask_pad");
  EXPECT_EQ(p->local.ops[0].attrs.Double("value"), -std::numeric_limits<double>::infinity());
  for (const program::Op& op : p->local.ops) {
    if (op.kind == "mask_pad" && op.operands[0] == p->local.inputs[1].value) {
      EXPECT_EQ(op.attrs.Double("value"), std::numeric_limits<int32_t>::max());
    }
  }
}

TEST(ShardedTest, TellsLayoutsOfOperandsAndResults) {
  const Mesh mesh = *Mesh::Parse("batch=2,model=2");
  Recorder r;
  r.Out("y", MatMul(r.In("x", {8, 4}), r.In("w", {4, 16})));
  const auto s =
      Propagate(r.Build(), mesh, Inputs(mesh, {{"x", "{batch, model}"}, {"w", "{model, *}"}}));
  ASSERT_TRUE(s.ok());
  EXPECT_EQ(OperandLayout(*s, 0, 0).ToString(), "{batch, model}");
  EXPECT_EQ(OperandLayout(*s, 0, 1).ToString(), "{model, *}");
  EXPECT_EQ(ResultLayout(*s, 0, 0).ToString(), "{batch, *} sum(model)");
  EXPECT_EQ(s->splits[0], (OpSplit{{{0}, {1}, {}}, {}, {}}));
}

}  // namespace
}  // namespace meshtrain::sharding
