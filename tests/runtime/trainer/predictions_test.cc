// The steps that a Model predicts with.
#include <gtest/gtest.h>

#include "runtime/execute/session.h"
#include "runtime/nn/layers.h"
#include "runtime/nn/model.h"
#include "runtime/strategy/strategy.h"
#include "runtime/trainer/model.h"
#include "tests/runtime/strategy/strategy_testing.h"

namespace meshtrain::trainer {
namespace {

using mesh::Tensor;

constexpr int64_t kWide = 1024;

// Row i is i times ones, so that its sum is i * kWide.
Tensor Rows(int64_t rows) {
  std::vector<float> values;
  for (int64_t i = 0; i < rows; ++i) values.insert(values.end(), kWide, static_cast<float>(i));
  return strategy::Floats({rows, kWide}, std::move(values));
}

// A MiB of each batch stays on the mesh: more than 16 of them are not there at once, or this would
// be too much.
TEST(PredictionsTest, OnlyTheStepsUsedLastAreKept) {
  constexpr int64_t kSizes = 3 * Model::kMostPredictions;
  const auto strategy = strategy::Strategy::Default({.memory = int64_t{30} << 20}).value();
  Model model(std::make_shared<nn::Sequential>(
                  nn::Dense(1, {.use_bias = false, .kernel_initializer = nn::Initializer::Ones()})),
              *strategy);
  const auto right = [&](int64_t rows) {
    const auto sums = model.PredictOnBatch(Rows(rows));
    ASSERT_TRUE(sums.ok()) << rows << " rows: " << sums.status().ToString();
    const std::vector<float> got = strategy::FloatsOf(*sums);
    ASSERT_EQ(got.size(), static_cast<size_t>(rows));
    for (int64_t i = 0; i < rows; ++i) {
      ASSERT_EQ(got[static_cast<size_t>(i)], static_cast<float>(i * kWide)) << rows << " rows";
    }
  };
  for (int64_t more = 0; more < kSizes; ++more) {
    right(256 + more);
    right(256);  // used all the time, it stays
  }
  right(257);  // and one that has gone comes back
}

// A pass whose batches are of two sizes, over and over beside others.
TEST(PredictionsTest, APassGoesOnWhileOthersCome) {
  const auto strategy = strategy::Strategy::Mirrored({.count = 2}).value();
  Model model(std::make_shared<nn::Sequential>(
                  nn::Dense(1, {.use_bias = false, .kernel_initializer = nn::Initializer::Ones()})),
              *strategy);
  for (int64_t batch = 1; batch <= 20; ++batch) {
    const auto sums = model.Predict(Rows(41), batch);
    ASSERT_TRUE(sums.ok()) << sums.status().ToString();
    const std::vector<float> got = strategy::FloatsOf(*sums);
    ASSERT_EQ(got.size(), 41u);
    for (int64_t i = 0; i < 41; ++i) {
      ASSERT_EQ(got[static_cast<size_t>(i)], static_cast<float>(i * kWide)) << batch;
    }
  }
}

}  // namespace
}  // namespace meshtrain::trainer
