#include "runtime/report/epochs.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

namespace meshtrain::report {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

EpochFigures Figures(int64_t epoch, double train, double test) {
  return {.epoch = epoch, .train = {{"loss", train}}, .test = {{"loss", test}}, .seconds = 0.1};
}

std::vector<int64_t> Rows(const EpochSummary& summary) {
  std::vector<int64_t> rows;
  for (const EpochFigures& e : summary.rows) rows.push_back(e.epoch);
  return rows;
}

TEST(EpochHistoryTest, TheBestEpochHasTheLeastTestLoss) {
  EpochHistory history;
  EXPECT_EQ(history.best(), nullptr);
  EXPECT_EQ(history.Summary().best, 0);
  history.Add(Figures(1, .831, .340));
  history.Add(Figures(2, .187, kNan));
  history.Add(Figures(3, .299, .249));
  history.Add(Figures(4, .100, .249));
  EXPECT_EQ(history.best()->epoch, 3) << "the first of equal ones; not a number is never the best";
  EpochHistory untested;
  untested.Add({.epoch = 1, .train = {{"loss", .3}}});
  untested.Add({.epoch = 2, .train = {{"loss", -std::numeric_limits<double>::infinity()}}});
  untested.Add({.epoch = 3, .train = {{"accuracy", .9}}});
  EXPECT_EQ(untested.best()->epoch, 1) << "without tests, of the training loss";
  EXPECT_FALSE(untested.Summary().tested);
  // Once one epoch was tested, training losses are no measure any more.
  untested.Add(Figures(4, 1, .5));
  EXPECT_EQ(untested.best()->epoch, 4);
  untested.Clear();
  EXPECT_EQ(untested.best(), nullptr);
}

TEST(EpochHistoryTest, RowsAreSomeTheBestAndTheLastInOrder) {
  EpochHistory history;
  for (int64_t e = 1; e <= 40; ++e) history.Add(Figures(e, 1.0 / static_cast<double>(e), 1));
  EXPECT_EQ(history.Summary().rows.size(), 40u);
  EXPECT_EQ(history.Summary().every, 1);
  history.Clear();
  for (int64_t e = 1; e <= 1201; ++e) {
    history.Add(Figures(e, 1, 1.0 / static_cast<double>(e) + (e > 700 ? 1 : 0)));
  }
  const EpochSummary summary = history.Summary();
  EXPECT_EQ(summary.count, 1201);
  EXPECT_EQ(summary.every, 31);
  EXPECT_EQ(summary.best, 700);
  const std::vector<int64_t> rows = Rows(summary);
  EXPECT_TRUE(std::is_sorted(rows.begin(), rows.end()));
  EXPECT_EQ(std::count(rows.begin(), rows.end(), 700), 1);
  EXPECT_EQ(rows.size(), 1201u / 31 + 2);
  EXPECT_EQ(rows.front(), 31);
  EXPECT_EQ(rows.back(), 1201);
}

TEST(EpochHistoryTest, TheBestOneIsTheOnlyRowOfItsNumber) {
  for (const int64_t best : {1, 2, 3, 80, 81}) {
    EpochHistory history;
    for (int64_t e = 1; e <= 81; ++e) history.Add(Figures(e, 1, e == best ? 0.5 : 1));
    const std::vector<int64_t> rows = Rows(history.Summary());
    EXPECT_TRUE(std::is_sorted(rows.begin(), rows.end())) << best;
    EXPECT_EQ(std::count(rows.begin(), rows.end(), best), 1) << best;
    EXPECT_EQ(rows.back(), 81);
  }
}

// Of every metric and split the same places, so that what stands at one is said together; epochs
// without a figure are absent, not gaps of figures that are no numbers.
TEST(EpochHistoryTest, CurvesHaveAPlaceForEveryEpoch) {
  EpochHistory history;
  history.Add({.epoch = 5, .train = {{"loss", 1}}});
  history.Add({.epoch = 6, .train = {{"loss", kNan}}, .test = {{"loss", 2}}});
  history.Add({.epoch = 7, .train = {{"loss", 3}}});
  const EpochSummary summary = history.Summary();
  const auto& train = summary.train.at("loss");
  const auto& test = summary.test.at("loss");
  ASSERT_EQ(train.size(), 3u);
  ASSERT_EQ(test.size(), 3u);
  for (size_t i = 0; i < 3; ++i) EXPECT_EQ(train[i].x, test[i].x);
  EXPECT_EQ(train[1].count, 0);
  EXPECT_FALSE(train[1].absent);
  EXPECT_TRUE(test[0].absent);
  EXPECT_EQ(test[1].value, 2);
  EXPECT_TRUE(test[2].absent);
}

TEST(EpochHistoryTest, ASummaryDoesNotGrowWithTheEpochs) {
  EpochHistory history;
  for (int64_t e = 1; e <= 15'000; ++e) history.Add(Figures(e, 1, 1));
  const EpochSummary summary = history.Summary();
  EXPECT_LE(summary.rows.size(), 42u);
  EXPECT_LE(summary.train.at("loss").size(), 512u);
  EXPECT_EQ(summary.train.at("loss").back().x, 15'000);
}

}  // namespace
}  // namespace meshtrain::report
