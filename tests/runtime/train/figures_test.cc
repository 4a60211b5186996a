#include "runtime/train/figures.h"

#include <gtest/gtest.h>

namespace meshtrain::train {
namespace {

TEST(FigureTotalsTest, AnExampleWeighsTheSameInAShortBatchAsInAFullOne) {
  FigureTotals totals;
  EXPECT_TRUE(totals.Means().empty());
  totals.Add({{{"loss", 1}, {"accuracy", 0.75}}, 128});
  totals.Add({{{"loss", 3}, {"accuracy", 0.25}}, 8});
  EXPECT_EQ(totals.examples, 136);
  EXPECT_EQ(totals.totals, (Scalars{{"loss", 152}, {"accuracy", 98}}));
  EXPECT_EQ(totals.Means(), (Scalars{{"loss", 152.0 / 136}, {"accuracy", 98.0 / 136}}));
}

TEST(FigureTotalsTest, ManyBatchesLoseNothing) {
  // As sums in f32 this is off by more than a thousandth.
  FigureTotals totals;
  for (int i = 0; i < 1'000'000; ++i) totals.Add({{{"loss", 0.1}}, 128});
  EXPECT_EQ(totals.examples, 128'000'000);
  EXPECT_NEAR(totals.Means()[0].second, 0.1, 1e-10);
}

TEST(FigureTotalsTest, TheNewestBatchGivesTheOrder) {
  // Totals that were read back from a checkpoint are in the order of their names.
  FigureTotals totals{.totals = {{"accuracy", 1}, {"loss", 4}}, .examples = 2};
  totals.Add({{{"loss", 2}, {"accuracy", 1}}, 1});
  EXPECT_EQ(totals.Means(), (Scalars{{"loss", 2}, {"accuracy", 2.0 / 3}}));
}

// An epoch goes on with other metrics.
TEST(FigureTotalsTest, AMeanIsOverTheExamplesThatHaveIt) {
  FigureTotals totals;
  totals.Add({{{"loss", 1}, {"gone", 5}}, 24});
  totals.Add({{{"loss", 2}, {"accuracy", 0.25}}, 8});
  totals.Add({{{"loss", 4}, {"accuracy", 0.5}}, 4});
  EXPECT_EQ(totals.examples, 36);
  EXPECT_EQ(totals.Means(), (Scalars{{"loss", 56.0 / 36}, {"accuracy", 4.0 / 12}}));
  totals.Add({{{"loss", 1}}, 4});
  EXPECT_EQ(totals, (FigureTotals{.totals = {{"loss", 60}}, .examples = 40}));
  totals.Add({{{"loss", 1}, {"accuracy", 1}}, 4});  // it was away
  EXPECT_EQ(totals.Means(), (Scalars{{"loss", 64.0 / 44}, {"accuracy", 1}}));
  // One that a metric of sums takes the name of is that metric's.
  totals.Add({.means = {{"loss", 1}, {"accuracy", 3}},
              .examples = 4,
              .sums = {{"accuracy", {1, 4}, [](std::span<const double> s) { return s[1]; }}}});
  EXPECT_EQ(totals.Means(), (Scalars{{"loss", 68.0 / 48}, {"accuracy", 4}}));
}

double SecondLessFirst(std::span<const double> sums) { return sums[1] - sums[0]; }

TEST(FigureTotalsTest, SumsAddUpWhateverTheExamples) {
  FigureTotals totals;
  totals.Add({.means = {{"loss", 1}, {"gap", 3}},
              .examples = 2,
              .sums = {{"gap", {1, 4}, SecondLessFirst}}});
  totals.Add({.means = {{"loss", 4}, {"gap", 6}},
              .examples = 1,
              .sums = {{"gap", {10, 16}, SecondLessFirst}}});
  EXPECT_EQ(totals.totals, (Scalars{{"loss", 6}}));
  EXPECT_EQ(totals.Means(), (Scalars{{"loss", 2}, {"gap", 9}}));
}

// Those of a checkpoint come without what they come to.
TEST(FigureTotalsTest, SumsFromACheckpointAreFiguresOnceTheyAreKnown) {
  FigureTotals totals{.totals = {{"loss", 6}},
                      .examples = 3,
                      .sums = {{"gap", {11, 20}}, {"gone", {1, 2}}, {"longer", {1, 2}}}};
  EXPECT_EQ(totals.Means(), (Scalars{{"loss", 2}}));
  const std::vector<FigureSums> all = {{"gap", {0, 0}, SecondLessFirst},
                                       {"longer", {0, 0, 0}, SecondLessFirst}};
  totals.Know(all);
  EXPECT_EQ(totals.Means(), (Scalars{{"loss", 2}, {"gap", 9}}));
}

TEST(BatchFiguresTest, AnOutputIsANumberOrTheSumsOfItsMetric) {
  const std::vector<FigureSums> summed = {{"gap", {0, 0}, SecondLessFirst}};
  BatchFigures figures{.means = {}, .examples = 3};
  const auto two = mesh::Tensor::Of<double>({2}, std::vector<double>{1, 4});
  ASSERT_TRUE(figures.Add("loss", mesh::Tensor::Scalar(2.0f), summed).ok());
  ASSERT_TRUE(figures.Add("gap", two, summed).ok());
  EXPECT_EQ(figures.means, (Scalars{{"loss", 2}, {"gap", 3}}));
  EXPECT_EQ(figures.Add("loss", two, summed),
            InvalidArgument("output `loss`: expected one element, got: f64[2]"));
  EXPECT_EQ(figures.Add("gap", mesh::Tensor::Scalar(2.0f), summed),
            InvalidArgument("output `gap`: expected f64[2], got: f32[]"));
}

}  // namespace
}  // namespace meshtrain::train
