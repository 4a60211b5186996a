#include "runtime/saving/position.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <memory>
#include <vector>

namespace meshtrain::saving {
namespace {

TEST(PositionTest, APositionComesBackBitForBit) {
  const train::Position position{
      .step = 12,
      .epoch = 1,
      .batch = 4,
      .figures = {.totals = {{"accuracy", 0.1 + 0.2}, {"loss", 1.0 / 3}},
                  .examples = 457,
                  .sums = {{"auc", {0, 1e300, 1.0 / 3}}, {"perplexity", {-0.1, 457}}},
                  .fewer = {{"accuracy", 57}}}};
  checkpoint::Index index{.step = 12};
  index.metadata = PositionToMetadata(position);
  const auto back = PositionOf(index, "x");
  ASSERT_TRUE(back.ok()) << back.status().ToString();
  EXPECT_EQ(back->step, 12);
  EXPECT_EQ(back->epoch, 1);
  EXPECT_EQ(back->batch, 4);
  EXPECT_EQ(back->figures, position.figures);
  for (const char* bad : {"0x1p+1  0x1p+1", "", "0x1p+1 one"}) {
    checkpoint::Index damaged = index;
    damaged.metadata["sums.auc"] = bad;
    EXPECT_EQ(PositionOf(damaged, "x").status().code(), StatusCode::kDataLoss) << bad;
  }
  index.metadata["batch"] = "four";
  EXPECT_EQ(PositionOf(index, "x").status(),
            DataLoss("x: `batch`: expected a count from 0 to 12, got: four"));
}

TEST(PositionTest, SumsOfBatchMeansFromOlderCheckpointsAreNoTotalsOverExamples) {
  checkpoint::Index index{.step = 12};
  index.metadata = {{"epoch", "1"}, {"batch", "4"}, {"sum.loss", "0x1p+1"}};
  const auto back = PositionOf(index, "x");
  ASSERT_TRUE(back.ok()) << back.status().ToString();
  EXPECT_EQ(back->batch, 4);
  EXPECT_EQ(back->figures, train::FigureTotals{});
}

TEST(PositionTest, CountsThatNoRunReachesAreDataLoss) {
  const std::string lowest = "-9223372036854775808";
  for (const char* key : {"epoch", "batch"}) {
    for (const std::string& text :
         {lowest, std::string("-1"), std::string("13"), std::string("4611686018427387904"),
          std::string("1e3"), std::string(300, '1')}) {
      checkpoint::Index index{.step = 12, .metadata = {{key, text}}};
      const Status status = PositionOf(index, "x").status();
      EXPECT_EQ(status.code(), StatusCode::kDataLoss) << key << " " << text;
      EXPECT_TRUE(status.message().starts_with(std::string("x: `") + key +
                                               "`: expected a count from 0 to 12, got: "))
          << status.message();
      EXPECT_LT(status.message().size(), 300u);
    }
    EXPECT_TRUE(PositionOf({.step = 12, .metadata = {{key, "12"}}}, "x").ok());
  }
  for (const std::string text : {"-1", "9007199254740993"}) {
    for (const std::string key : {"examples", "examples.loss"}) {
      EXPECT_EQ(
          PositionOf({.step = 12, .metadata = {{key, text}}}, "x").status(),
          DataLoss("x: `" + key + "`: expected a count from 0 to 9007199254740992, got: " + text));
    }
  }
  for (const char* text : {"", "one", "1 ", "0x1p1\n"}) {
    EXPECT_EQ(PositionOf({.metadata = {{"total.loss", text}}}, "x").status().code(),
              StatusCode::kDataLoss)
        << text;
  }
  for (const char* epoch : {"1e300", "-1", "1.5", "18446744073709551615", "true"}) {
    const std::string history =
        R"([{"epoch":)" + std::string(epoch) + R"(,"step":1,"train":{},"validation":{}}])";
    EXPECT_EQ(PositionOf({.metadata = {{"history", history}}}, "x").status().code(),
              StatusCode::kDataLoss)
        << epoch;
  }
}

TEST(PositionTest, TheFinishedEpochsComeBack) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const train::Position position{
      .step = 8,
      .epoch = 2,
      .history =
          std::make_shared<const std::vector<train::EpochInfo>>(std::vector<train::EpochInfo>{
              {.epoch = 1,
               .step = 4,
               .train = {{"loss", 1.0 / 3}, {"accuracy", 0.5}},
               .validation = {{"loss", nan}}},
              {.epoch = 2, .step = 8, .train = {{"loss", 0.25}, {"accuracy", 1}}}})};
  checkpoint::Index index{.step = 8};
  index.metadata = PositionToMetadata(position);
  const auto back = PositionOf(index, "x");
  ASSERT_TRUE(back.ok()) << back.status().ToString();
  ASSERT_NE(back->history, nullptr);
  ASSERT_EQ(back->history->size(), 2u);
  const train::EpochInfo& first = back->history->front();
  EXPECT_EQ(first.epoch, 1);
  EXPECT_EQ(first.step, 4);
  EXPECT_EQ(first.train, position.history->front().train);  // in their order, bit for bit
  ASSERT_EQ(first.validation.size(), 1u);
  EXPECT_TRUE(std::isnan(first.validation[0].second));
  EXPECT_EQ(back->history->back().train, position.history->back().train);
  EXPECT_TRUE(back->history->back().validation.empty());
  for (const char* bad : {"", "{", "7", "[7]", "[{\"epoch\": \"one\"}]"}) {
    index.metadata["history"] = bad;
    const Status status = PositionOf(index, "x").status();
    EXPECT_EQ(status.code(), StatusCode::kDataLoss) << bad;
    EXPECT_TRUE(status.message().starts_with("x: `history`: expected a list of epochs, got: "));
  }
}

}  // namespace
}  // namespace meshtrain::saving
