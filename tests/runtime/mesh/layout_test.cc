#include "runtime/mesh/layout.h"

#include <gtest/gtest.h>

#include <random>

namespace meshtrain::mesh {
namespace {

const Mesh& TwoAxes() {
  static const Mesh mesh = *Mesh::Parse("batch=4,model=2");
  return mesh;
}

TEST(LayoutTest, TextRoundTrips) {
  for (const std::string text : {"{}", "{*}", "{batch, *}", "{*, model}", "{batch+model, *}",
                                 "{model+batch}", "{*, *} sum(batch)", "{batch} max(model)",
                                 "{} min(batch,model)", "{} sum(batch) max(model)"}) {
    const auto layout = Layout::Parse(text, TwoAxes());
    ASSERT_TRUE(layout.ok()) << layout.status().ToString();
    EXPECT_EQ(layout->ToString(), text);
    EXPECT_EQ(*Layout::Parse(layout->ToString(), TwoAxes()), *layout);
  }
  EXPECT_EQ(Layout::Parse(" { unsharded ,batch } ", TwoAxes())->ToString(), "{*, batch}");
}

TEST(LayoutTest, RefusesWithTheReason) {
  const auto message = [](std::string_view text) {
    const auto layout = Layout::Parse(text, TwoAxes());
    return layout.ok() ? "accepted" : layout.status().message();
  };
  const std::string shape =
      "layout: expected a text like `{batch, *}` or `{*, *} sum(batch)`, got: ";
  for (const std::string text :
       {"batch", "{batch", "{batch,}", "{batch} sum", "{batch} sum(", "{*} product(batch)"}) {
    EXPECT_EQ(message(text), shape + text);
  }
  EXPECT_EQ(message("{batch, batch}"), "layout: axis `batch` is used twice");
  EXPECT_EQ(message("{batch} sum(batch)"), "layout: axis `batch` is used twice");
  EXPECT_EQ(message("{batc}"),
            "mesh batch=4,model=2: expected one of its axes, got: `batc`, did you mean `batch`?");
  EXPECT_EQ(Layout::Create(TwoAxes(), {{2}}).status().message(),
            "layout: mesh batch=4,model=2 has no axis number 2");
}

TEST(LayoutTest, SpeaksDTensor) {
  const auto weight = Layout::FromSpecs({"unsharded", "model"}, TwoAxes());
  ASSERT_TRUE(weight.ok());
  EXPECT_EQ(*weight, *Layout::Parse("{*, model}", TwoAxes()));
  EXPECT_EQ(*Layout::FromSpecs({UNSHARDED, "batch"}, TwoAxes()),
            *Layout::Parse("{*, batch}", TwoAxes()));
  EXPECT_EQ(Layout::Replicated(TwoAxes(), 2).ToString(), "{*, *}");
  EXPECT_TRUE(Layout::Replicated(TwoAxes(), 2).IsReplicated());
  EXPECT_EQ(Layout::BatchSharded(TwoAxes(), "batch", 3)->ToString(), "{batch, *, *}");
  EXPECT_EQ(Layout::BatchSharded(TwoAxes(), "batch", 0).status().message(),
            "layout: a batch-sharded tensor has at least one dimension, got rank: 0");
  EXPECT_EQ(Layout::BatchSharded(TwoAxes(), "batch", -2).status().message(),
            "layout: a batch-sharded tensor has at least one dimension, got rank: -2");
  EXPECT_FALSE(Layout::BatchSharded(TwoAxes(), "rows", 1).ok());
  EXPECT_EQ(weight->Delete({0}).ToString(), "{model}");
  EXPECT_EQ(weight->Delete({1}).ToString(), "{*}");
  EXPECT_EQ(weight->Delete({0, 1}).ToString(), "{}");
  EXPECT_EQ(weight->specs(), (std::vector<std::string>{"unsharded", "model"}));
  EXPECT_EQ(Layout::Parse("{batch+model, *}", TwoAxes())->Shape(), (std::vector<int64_t>{8, 1}));
}

TEST(LayoutTest, KnowsItsAxes) {
  const Layout layout = *Layout::Parse("{*, batch} sum(model)", TwoAxes());
  EXPECT_EQ(layout.DimOf(0), 1);
  EXPECT_EQ(layout.DimOf(1), -1);
  EXPECT_TRUE(layout.Uses(0));
  EXPECT_TRUE(layout.Uses(1));
  EXPECT_TRUE(layout.IsPartial());
  EXPECT_FALSE(layout.IsReplicated());
  EXPECT_EQ(layout.WithPartial({}).ToString(), "{*, batch}");
  EXPECT_EQ(layout.WithPartial({}).WithDim(0, {1}).ToString(), "{model, batch}");
  EXPECT_EQ(layout.WithDim(1, {}).ToString(), "{*, *} sum(model)");
  const Mesh narrow = *Mesh::Parse("batch=1,model=2");
  EXPECT_EQ(Layout::Parse("{batch+model, *}", narrow)->Canonical().ToString(), "{model, *}");
  EXPECT_EQ(Layout::Parse("{*} sum(batch)", narrow)->Canonical().ToString(), "{*}");
}

TEST(LayoutDeathTest, WhatIsNotThereEndsTheProgram) {
  const Layout layout = *Layout::Parse("{batch, *}", TwoAxes());
  EXPECT_DEATH(layout.Delete({2}), "layout.cc");
  EXPECT_DEATH(layout.Delete({-1}), "layout.cc");
  EXPECT_DEATH(layout.WithDim(2, {}), "layout.cc");
  EXPECT_DEATH(layout.WithDim(1, {2}), "layout.cc");
  EXPECT_DEATH(layout.WithDim(1, {0}), "layout.cc");  // splits dimension 0
  EXPECT_DEATH(layout.WithDim(1, {1, 1}), "layout.cc");
  EXPECT_DEATH(layout.WithPartial({{0}}), "layout.cc");
  EXPECT_DEATH(layout.WithPartial({{2}}), "layout.cc");
  EXPECT_DEATH(layout.WithPartial({{1}, {1, Reduction::kMax}}), "layout.cc");
}

TEST(LayoutTest, WorkedExampleOfTheHeader) {
  const Layout layout = *Layout::Parse("{batch, *}", *Mesh::Parse("batch=4"));
  EXPECT_EQ(*layout.LocalShape({10, 4}), (Dims{3, 4}));
  EXPECT_EQ(layout.SliceOf(3, {10, 4}), (Layout::Slice{{9, 0}, {1, 4}}));
  EXPECT_FALSE(layout.IsEven({10, 4}));
  EXPECT_TRUE(layout.IsEven({12, 4}));
  EXPECT_EQ(layout.LocalShape({10}).status().message(),
            "layout {batch, *}: expected a tensor of rank 2, got: 1");
}

TEST(LayoutTest, TwelveOverEightLeavesTheLastTwoEmpty) {
  const Layout layout = *Layout::Parse("{batch}", *Mesh::Parse("batch=8"));
  EXPECT_EQ(*layout.LocalShape({12}), (Dims{2}));
  std::vector<int64_t> valid;
  for (int64_t rank = 0; rank < 8; ++rank) valid.push_back(layout.SliceOf(rank, {12}).sizes[0]);
  EXPECT_EQ(valid, (std::vector<int64_t>{2, 2, 2, 2, 2, 2, 0, 0}));
}

// Property: over the devices of one copy, the valid slices cover the tensor exactly once, and none
// is larger than what is stored.
TEST(LayoutTest, SlicesCoverTheTensorOnce) {
  const Mesh mesh = *Mesh::Parse("a=2,b=3,c=4");
  const std::vector<std::string> layouts = {"{*, *}",     "{a, *}",   "{a, b}",   "{b, a+c}",
                                            "{a+b+c, *}", "{c+a, b}", "{*, c+b}", "{a, *} sum(b)"};
  for (const std::string& text : layouts) {
    const Layout layout = *Layout::Parse(text, mesh);
    for (int64_t rows = 0; rows <= 9; ++rows) {
      for (const int64_t columns : {1, 2, 5, 12, 25}) {
        const Dims global = {rows, columns};
        const Dims local = *layout.LocalShape(global);
        std::vector<int> count(NumElements(global), 0);
        for (int64_t rank = 0; rank < mesh.size(); ++rank) {
          const Layout::Slice slice = layout.SliceOf(rank, global);
          for (int d = 0; d < 2; ++d) {
            ASSERT_LE(slice.sizes[d], local[d]);
            ASSERT_LE(slice.offsets[d] + slice.sizes[d], global[d]);
            ASSERT_GE(slice.sizes[d], 0);
          }
          for (int64_t r = 0; r < slice.sizes[0]; ++r) {
            for (int64_t c = 0; c < slice.sizes[1]; ++c) {
              ++count[(slice.offsets[0] + r) * columns + slice.offsets[1] + c];
            }
          }
        }
        const int64_t copies = mesh.size() / (layout.NumShards(0) * layout.NumShards(1));
        for (const int n : count) ASSERT_EQ(n, copies) << text << " of " << rows << "x" << columns;
      }
    }
  }
}

TEST(LayoutTest, FirstAxisOfADimensionIsSlowest) {
  const Layout layout = *Layout::Parse("{model+batch}", TwoAxes());  // model=2 slow, batch=4 fast
  // Rank 1 is batch 0, model 1: shard 4 of 8.
  EXPECT_EQ(layout.SliceOf(1, {16}).offsets, (Dims{8}));
  EXPECT_EQ(layout.SliceOf(2, {16}).offsets, (Dims{2}));
  const Layout other = *Layout::Parse("{batch+model}", TwoAxes());
  EXPECT_EQ(other.SliceOf(1, {16}).offsets, (Dims{2}));
  EXPECT_EQ(other.SliceOf(2, {16}).offsets, (Dims{4}));
}

}  // namespace
}  // namespace meshtrain::mesh
