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

}  // namespace
}  // namespace meshtrain::train
