// The planner between two layouts: expected moves as text, and that moving there and back changes
// nothing.
#include "runtime/sharding/reshard.h"

#include <gtest/gtest.h>

#include "runtime/program/ops.h"
#include "tests/runtime/sharding/models.h"
#include "tests/support/interpreter/interpreter.h"

namespace meshtrain::sharding {
namespace {

using program::Builder;
using program::DType;

ReshardContext ContextOf(const Mesh& mesh) { return {.sizes = AxisSizes(mesh), .cost = {}}; }

std::string AxesText(const Mesh& mesh, const AxisList& axes) {
  std::string text;
  for (const int a : axes) text += (text.empty() ? "" : "+") + mesh.axis(a).name;
  return text;
}

// "all_gather a dim 0; slice b dim 1".
std::string MovesOf(const Mesh& mesh, const ReshardPlan& plan) {
  std::string text;
  for (const Move& move : plan.moves) {
    if (!text.empty()) text += "; ";
    const std::string axes = AxesText(mesh, move.axes);
    const std::string dim = std::to_string(move.dim);
    switch (move.kind) {
      case MoveKind::kSlice:
        text += "slice " + axes + " dim " + dim;
        break;
      case MoveKind::kAllGather:
        text += "all_gather " + axes + " dim " + dim;
        break;
      case MoveKind::kReduceScatter:
        text += "reduce_scatter " + axes + " dim " + dim;
        break;
      case MoveKind::kAllReduce:
        text += "all_reduce " + axes;
        break;
      case MoveKind::kAllToAll:
        text += "all_to_all " + axes + " dim " + std::to_string(move.from_dim) + " to " + dim;
        break;
    }
  }
  return text;
}

struct PlanCase {
  std::string mesh;
  program::Dims dims;
  std::string from;
  std::string to;
  std::string want;
  int64_t bytes = 0;  // one device sends, 4-byte elements
};

void PrintTo(const PlanCase& c, std::ostream* out) {
  *out << c.from << " to " << c.to << " on " << c.mesh;
}

class ReshardPlanTest : public ::testing::TestWithParam<PlanCase> {};

TEST_P(ReshardPlanTest, TakesTheCheapestWay) {
  const PlanCase& c = GetParam();
  const Mesh mesh = *Mesh::Parse(c.mesh);
  const auto plan =
      PlanReshard(PlacementOf(*Layout::Parse(c.from, mesh)),
                  PlacementOf(*Layout::Parse(c.to, mesh)), c.dims, 4, ContextOf(mesh));
  ASSERT_TRUE(plan.possible);
  EXPECT_EQ(MovesOf(mesh, plan), c.want);
  int64_t bytes = 0;
  for (const Move& move : plan.moves) bytes += move.bytes;
  EXPECT_EQ(bytes, c.bytes);
}

INSTANTIATE_TEST_SUITE_P(
    Plans, ReshardPlanTest,
    ::testing::ValuesIn(std::vector<PlanCase>{
        {"a=4", {8, 8}, "{a, *}", "{a, *}", "", 0},
        {"a=4", {8, 8}, "{*, *}", "{a, *}", "slice a dim 0", 0},
        {"a=4", {8, 8}, "{a, *}", "{*, *}", "all_gather a dim 0", 3 * 64},
        {"a=4", {8, 8}, "{a, *}", "{*, a}", "all_to_all a dim 0 to 1", 3 * 16},
        {"a=4", {8, 8}, "{*, *} sum(a)", "{*, *}", "all_reduce a", 2 * 3 * 256 / 4},
        {"a=4", {8, 8}, "{*, *} sum(a)", "{a, *}", "reduce_scatter a dim 0", 3 * 64},
        {"a=4", {8, 8}, "{*, *} max(a)", "{*, a}", "reduce_scatter a dim 1", 3 * 64},
        // Uneven: 5 rows in chunks of 2; the exchange sends padded chunks of 7 columns in 4 parts
        // of 2.
        {"a=4", {5, 7}, "{a, *}", "{*, *}", "all_gather a dim 0", 3 * 2 * 7 * 4},
        {"a=4", {5, 7}, "{a, *}", "{*, a}", "all_to_all a dim 0 to 1", 3 * 2 * 2 * 4},
        {"a=2,b=3", {12, 12}, "{*, *} sum(a,b)", "{*, *}", "all_reduce a+b", 2 * 5 * 576 / 6},
        {"a=2,b=3", {12, 12}, "{*, *} sum(a,b)", "{*, *} sum(a)", "all_reduce b", 2 * 2 * 576 / 3},
        // Tiny: one collective and two cuts; large: what is sent counts more than one more start.
        {"a=2,b=3",
         {12, 12},
         "{*, *} sum(a,b)",
         "{a, b}",
         "all_reduce a+b; slice b dim 1; slice a dim 0",
         2 * 5 * 576 / 6},
        {"a=2,b=3",
         {1200, 1200},
         "{*, *} sum(a,b)",
         "{a, b}",
         "reduce_scatter b dim 1; reduce_scatter a dim 0",
         2 * 1920000 + 960000},
        {"a=2,b=3", {12, 12}, "{a+b, *}", "{a, *}", "all_gather b dim 0", 2 * 96},
        {"a=2,b=3", {12, 12}, "{a+b, *}", "{a, b}", "all_to_all b dim 0 to 1", 2 * 32},
        {"a=2,b=3", {12, 12}, "{*, *}", "{a+b, *}", "slice a+b dim 0", 0},
        {"a=2,b=3", {12, 12}, "{a, *}", "{a+b, *}", "slice b dim 0", 0},
        // 7 over 6 stores chunks of 2, over 2 chunks of 4: 3 times 2 is not 4, so the row goes
        // round by the whole.
        {"a=2,b=3", {7, 2}, "{a+b, *}", "{a, *}", "all_gather a+b dim 0; slice a dim 0", 5 * 16},
        {"a=2,b=3", {7, 2}, "{a, *}", "{a+b, *}", "all_gather a dim 0; slice a+b dim 0", 32},
        {"a=1,b=3", {6}, "{a+b}", "{b}", "", 0},  // axes of one device hold nothing apart
    }),
    [](const auto& info) { return "Case" + std::to_string(info.index); });

TEST(ReshardPlanTest, NothingBecomesPending) {
  const Mesh mesh = *Mesh::Parse("a=4");
  const program::Dims dims = {8};
  const Placement whole = PlacementOf(*Layout::Parse("{*}", mesh));
  EXPECT_FALSE(
      PlanReshard(whole, PlacementOf(*Layout::Parse("{*} sum(a)", mesh)), dims, 4, ContextOf(mesh))
          .possible);
  EXPECT_FALSE(PlanReshard(PlacementOf(*Layout::Parse("{*} max(a)", mesh)),
                           PlacementOf(*Layout::Parse("{*} sum(a)", mesh)), dims, 4,
                           ContextOf(mesh))
                   .possible);
}

// All layouts of a matrix on a mesh of two axes, without pending ones.
std::vector<Layout> AllLayouts(const Mesh& mesh) {
  std::vector<Layout> layouts;
  for (const std::string text : {"{*, *}", "{a, *}", "{*, a}", "{b, *}", "{*, b}", "{a, b}",
                                 "{b, a}", "{a+b, *}", "{b+a, *}", "{*, a+b}", "{*, b+a}"}) {
    layouts.push_back(*Layout::Parse(text, mesh));
  }
  return layouts;
}

// x in layout `from` is brought to `via` and handed out in `from` again.
program::Program ThereAndBack(const program::Dims& dims, const Layout& via) {
  Builder b("there_and_back");
  Builder::Scope scope(b);
  b.Output("y", Relayout(b.Input("x", {DType::kF64, dims}), via.specs()));
  return *b.Build();
}

TEST(ReshardTest, ThereAndBackIsTheIdentity) {
  int moved = 0;
  for (const std::string mesh_text : {"a=2,b=3", "a=2,b=2", "a=4,b=1"}) {
    const Mesh mesh = *Mesh::Parse(mesh_text);
    std::vector<Layout> sources = AllLayouts(mesh);
    for (const std::string text :
         {"{*, *} sum(a)", "{b, *} sum(a)", "{*, *} sum(a,b)", "{*, a} max(b)", "{*, *} min(b)"}) {
      sources.push_back(*Layout::Parse(text, mesh));
    }
    for (const program::Dims& dims :
         {program::Dims{6, 6}, program::Dims{5, 7}, program::Dims{1, 3}}) {
      testing::Array x{{DType::kF64, dims}, {}};
      for (int64_t i = 0; i < mesh::NumElements(dims); ++i) {
        x.at.push_back(static_cast<double>(i) - 3);
      }
      for (const Layout& from : sources) {
        for (const Layout& via : AllLayouts(mesh)) {
          Given given;
          given.inputs.insert_or_assign("x", from);
          given.outputs.insert_or_assign("y", from.WithPartial({}));
          const auto p = Shard(ThereAndBack(dims, via), mesh, given);
          ASSERT_TRUE(p.ok()) << p.status().ToString();
          const auto got = testing::Interpret(*p, {.inputs = {{"x", x}}});
          ASSERT_TRUE(got.ok()) << from.ToString() << " via " << via.ToString() << ": "
                                << got.status().ToString();
          ASSERT_EQ(got->outputs.at("y").at, x.at) << from.ToString() << " via " << via.ToString();
          moved += static_cast<int>(p->reshards.size());
        }
      }
    }
  }
  EXPECT_GT(moved, 500);
}

TEST(ReshardTest, EveryMoveOfThePlanIsInTheReport) {
  const Mesh mesh = *Mesh::Parse("a=2,b=3");
  Given given;
  given.inputs.insert_or_assign("x", *Layout::Parse("{*, *} sum(a,b)", mesh));
  const auto p = Shard(ThereAndBack({1200, 1200}, *Layout::Parse("{a, b}", mesh)), mesh, given);
  ASSERT_TRUE(p.ok());
  ASSERT_EQ(p->reshards.size(), 2u);
  EXPECT_EQ(p->reshards[0].from.ToString(), "{*, *} sum(a,b)");
  EXPECT_EQ(p->reshards[0].to.ToString(), "{a, b}");
  EXPECT_EQ(p->reshards[0].ops, (std::vector<int>{0, 1}));
  EXPECT_EQ(p->reshards[0].value, "%0 f64[1200,1200] of input x");
  EXPECT_GT(p->reshards[0].predicted_seconds, 0);
  EXPECT_EQ(p->reshards[1].reason, "output y is returned replicated");
}

}  // namespace
}  // namespace meshtrain::sharding
