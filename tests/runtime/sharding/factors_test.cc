#include "runtime/sharding/factors.h"

#include <gtest/gtest.h>

#include "runtime/sharding/sharding.h"

namespace meshtrain::sharding {
namespace {

using program::FactorKind;
using program::FactorTable;

// [8,4] x [4,16] -> [8,16]
const FactorTable kMatMul = {{{8, FactorKind::kMap}, {4, FactorKind::kSum}, {16, FactorKind::kMap}},
                             {{{0}, {1}}, {{1}, {2}}},
                             {{{0}, {2}}}};
// [4,6] -> [24]
const FactorTable kMerge = {
    {{4, FactorKind::kMap}, {6, FactorKind::kMap}}, {{{0}, {1}}}, {{{0, 1}}}};

AxisList Axes(std::initializer_list<int> axes) {
  AxisList list;
  for (const int a : axes) list.Add(a);
  return list;
}

Split SplitOf(std::vector<AxisList> factors) {
  Split split;
  split.factors = std::move(factors);
  return split;
}

TEST(FactorsTest, WorkedExampleOfTheHeader) {
  const Mesh mesh = *Mesh::Parse("batch=2,model=2");
  const Split split = SplitOf({Axes({0}), Axes({1}), {}});
  EXPECT_EQ(LayoutOf(OperandPlacement(kMatMul, split, 0), mesh, 2).ToString(), "{batch, model}");
  EXPECT_EQ(LayoutOf(OperandPlacement(kMatMul, split, 1), mesh, 2).ToString(), "{model, *}");
  EXPECT_EQ(LayoutOf(ResultPlacement(kMatMul, split, 0), mesh, 2).ToString(),
            "{batch, *} sum(model)");
}

TEST(FactorsTest, PassingStaysPending) {
  const Mesh mesh = *Mesh::Parse("batch=2,model=2");
  Split split = SplitOf({Axes({0}), {}, {}});
  split.passing.at[1] = Placement::kPendingSum;
  split.passing_operands = 1;
  EXPECT_EQ(LayoutOf(OperandPlacement(kMatMul, split, 0), mesh, 2).ToString(),
            "{batch, *} sum(model)");
  EXPECT_EQ(LayoutOf(OperandPlacement(kMatMul, split, 1), mesh, 2).ToString(), "{*, *}");
  EXPECT_EQ(LayoutOf(ResultPlacement(kMatMul, split, 0), mesh, 2).ToString(),
            "{batch, *} sum(model)");
}

TEST(FactorsTest, MergedDimensionsSplitFromTheSlowestFactor) {
  const auto representable = [](const std::string& mesh, std::vector<AxisList> factors) {
    return Representable(kMerge, SplitOf(std::move(factors)), AxisSizes(*Mesh::Parse(mesh)));
  };
  EXPECT_TRUE(representable("a=2,b=3", {Axes({0}), {}}));
  EXPECT_FALSE(
      representable("a=2,b=3", {{}, Axes({0})}));  // rows of 6 cut in two are not contiguous in 24
  EXPECT_FALSE(representable("a=2,b=3", {Axes({1}), {}}));  // 4 over 3 is uneven
  EXPECT_FALSE(
      representable("a=2,b=3", {Axes({0}), Axes({1})}));  // two rows each, then thirds of rows
  EXPECT_TRUE(representable("a=4,b=3", {Axes({0}), Axes({1})}));  // one row each, then thirds of it
  EXPECT_TRUE(representable("a=2,b=2", {Axes({0, 1}), {}}));
}

TEST(FactorsTest, AxesOfADimensionGoToItsFactorsInOrder) {
  std::vector<AxisList> parts;
  const auto split = [&](const std::string& mesh, std::initializer_list<int> axes) {
    AxesToFactors({0, 1}, kMerge, Axes(axes), AxisSizes(*Mesh::Parse(mesh)), parts);
    return std::pair(parts[0], parts[1]);
  };
  EXPECT_EQ(split("a=4,b=2", {0, 1}), std::pair(Axes({0}), Axes({1})));
  EXPECT_EQ(split("a=2,b=2", {0, 1}), std::pair(Axes({0, 1}), Axes({})));
  EXPECT_EQ(split("a=2,b=3", {0, 1}),
            std::pair(Axes({0}), Axes({})));  // 3 does not divide what is left of 4
  EXPECT_EQ(split("a=8,b=3", {0, 1}), std::pair(Axes({}), Axes({})));
}

TEST(PlacementTest, LayoutsRoundTrip) {
  const Mesh mesh = *Mesh::Parse("a=2,b=3,c=4,d=1");
  for (const std::string text : {"{*, *}", "{a, b}", "{c+a, *}", "{b+c+a, *}", "{*, *} sum(a)",
                                 "{c, *} max(b)", "{*, b} min(a,c)"}) {
    const Layout layout = *Layout::Parse(text, mesh);
    EXPECT_EQ(LayoutOf(PlacementOf(layout), mesh, 2).ToString(), text);
  }
  EXPECT_EQ(LayoutOf(PlacementOf(*Layout::Parse("{a+d, *}", mesh)), mesh, 2).ToString(), "{a, *}");
}

}  // namespace
}  // namespace meshtrain::sharding
