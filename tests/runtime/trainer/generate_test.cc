// How ids are chosen and follow each other; the window over a model is tested with the manifest's
// generate (job/text_test.cc).
#include "runtime/trainer/generate.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace meshtrain::trainer {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(ChooseIdTest, TheFirstOfTheLargestWithoutATemperature) {
  const double logits[] = {-1, 3, 2, 3};
  for (int64_t index = 0; index < 5; ++index) {
    EXPECT_EQ(ChooseId(logits, {.temperature = 0, .seed = index}, index).value(), 1);
  }
}

// Shares of softmax(logits / temperature), within five standard deviations.
TEST(ChooseIdTest, DrawsByProbability) {
  const double logits[] = {0, 1, 2, -30};
  for (const double temperature : {0.5, 1.0, 4.0}) {
    double sum = 0;
    for (const double logit : logits) sum += std::exp(logit / temperature);
    constexpr int64_t kDraws = 20000;
    int64_t counts[4] = {};
    for (int64_t i = 0; i < kDraws; ++i) {
      ++counts[ChooseId(logits, {.temperature = temperature, .seed = 5}, i).value()];
    }
    for (int i = 0; i < 4; ++i) {
      const double share = std::exp(logits[i] / temperature) / sum;
      EXPECT_NEAR(static_cast<double>(counts[i]), share * kDraws,
                  5 * std::sqrt(share * (1 - share) * kDraws) + 1e-3)
          << "id " << i << " at " << temperature;
    }
  }
}

TEST(ChooseIdTest, FollowsFromSeedAndPlace) {
  const std::vector<double> logits(64, 0.0);
  const auto draw = [&](int64_t seed) {
    std::vector<int64_t> ids;
    for (int64_t i = 0; i < 16; ++i) {
      ids.push_back(ChooseId(logits, {.temperature = 1, .seed = seed}, i).value());
    }
    return ids;
  };
  EXPECT_EQ(draw(1), draw(1));
  EXPECT_NE(draw(1), draw(2));
}

TEST(ChooseIdTest, LogitsThatAreNotFiniteAreAnError) {
  for (const double bad :
       {std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity()}) {
    const double logits[] = {0, bad};
    const Status status = ChooseId(logits, {.temperature = 1}, 7).status();
    EXPECT_EQ(status.origin(), Origin::kNumbers);
    EXPECT_THAT(status.message(), HasSubstr("character 7: expected finite logits"));
  }
}

TEST(WriteIdsTest, EachIsChosenByAllBeforeIt) {
  std::vector<std::vector<int64_t>> asked;
  const NextLogits next = [&](std::span<const int64_t> text) -> Result<std::vector<double>> {
    asked.emplace_back(text.begin(), text.end());
    std::vector<double> logits(10, 0);
    logits[static_cast<size_t>((text.back() + text[text.size() - 2]) % 10)] = 1;
    return logits;
  };
  EXPECT_THAT(WriteIds({1, 2}, {.length = 5}, next, {}).value(), ElementsAre(3, 5, 8, 3, 1));
  EXPECT_THAT(asked.back(), ElementsAre(1, 2, 3, 5, 8, 3));
}

TEST(WriteIdsTest, EndsWhereItIsStoppedOrFails) {
  std::stop_source stop;
  int calls = 0;
  const NextLogits next = [&](std::span<const int64_t>) -> Result<std::vector<double>> {
    if (++calls == 3) stop.request_stop();
    return std::vector<double>{0, 1};
  };
  EXPECT_EQ(WriteIds({0}, {.length = 9}, next, stop.get_token()).status().code(),
            StatusCode::kCancelled);
  EXPECT_EQ(calls, 3);
  const NextLogits fails = [](std::span<const int64_t>) -> Result<std::vector<double>> {
    return Unavailable("worker-1 lost");
  };
  EXPECT_EQ(WriteIds({0}, {.length = 9}, fails, {}).status().message(), "worker-1 lost");
}

}  // namespace
}  // namespace meshtrain::trainer
