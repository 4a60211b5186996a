#include "runtime/train/callbacks.h"

#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tests/runtime/train/loop_testing.h"
#include "tests/support/fake_clock.h"

namespace meshtrain::train {
namespace {

TEST(FitTest, EarlyStoppingComparesMeansOverExamples) {
  // Two epochs, each a batch of two examples and one of one. The means of batches go from 1
  // to 1.05, those of examples from 1.17 to 0.9.
  class Runner final : public StepRunner {
   public:
    Result<BatchFigures> TrainStep(const Batch& batch) override {
      constexpr double kLosses[] = {1.5, 0.5, 0.6, 1.5};
      return BatchFigures{{{"loss", kLosses[at_++]}}, batch.size};
    }
    Result<BatchFigures> EvalStep(const Batch&) override { return BatchFigures{}; }
    Status Save(const Position&) override { return OkStatus(); }
    int64_t last_saved() const override { return -1; }

   private:
    size_t at_ = 0;
  };
  Runner runner;
  FakeData data(2);
  EarlyStopping stopping("loss", 1);
  Callback* callbacks[] = {&stopping};
  const auto result = Fit(runner, data, {.epochs = 2}, callbacks, {});
  ASSERT_TRUE(result.ok()) << result.status().message();
  EXPECT_EQ(result->end, FitEnd::kFinished);
  EXPECT_EQ(stopping.WantsStop(), std::nullopt);
  EXPECT_NEAR(Of(result->history[0].train, "loss"), 3.5 / 3, 1e-15);
  EXPECT_NEAR(Of(result->history[1].train, "loss"), 2.7 / 3, 1e-15);
}

TEST(FitTest, EarlyStoppingGoesOnCountingWhereAResumedJobStood) {
  const auto epoch = [](int64_t number, double loss) {
    return EpochInfo{.epoch = number, .train = {{"loss", loss}}};
  };
  const auto history = [&](std::vector<EpochInfo> epochs) {
    return Position{.history = std::make_shared<const std::vector<EpochInfo>>(std::move(epochs))};
  };
  EarlyStopping stopping("loss", 2);
  ASSERT_TRUE(stopping.OnTrainBegin(history({epoch(1, 1.0), epoch(2, 2.0)})).ok());
  EXPECT_EQ(stopping.WantsStop(), std::nullopt);
  ASSERT_TRUE(stopping.OnEpochEnd(epoch(3, 1.5), {}).ok());
  EXPECT_EQ(stopping.WantsStop(),
            "loss has not been better than 1.0000, that of epoch 1, for 2 epochs");
  ASSERT_TRUE(stopping.OnTrainBegin({}).ok());  // from the beginning
  EXPECT_EQ(stopping.WantsStop(), std::nullopt);
}

// A run goes on with a metric that its epochs so far did not have.
TEST(FitTest, EarlyStoppingBeginsWithTheFirstEpochThatHasItsFigure) {
  const auto epoch = [](int64_t number) {
    return EpochInfo{.epoch = number, .train = {{"loss", 1}}, .validation = {{"loss", 1}}};
  };
  const Position two{.epoch = 2,
                     .history = std::make_shared<const std::vector<EpochInfo>>(
                         std::vector<EpochInfo>{epoch(1), epoch(2)})};
  for (const std::string monitor : {"auc", "val_auc"}) {
    EarlyStopping stopping(monitor, 1, 0, /*larger=*/true);
    ASSERT_EQ(stopping.OnTrainBegin(two), OkStatus());
    EXPECT_FALSE(stopping.best());
    EpochInfo third = epoch(3), fourth = epoch(4);
    third.train.emplace_back("auc", 0.75);
    third.validation.emplace_back("auc", 0.75);
    ASSERT_EQ(stopping.OnEpochEnd(third, two), OkStatus());
    EXPECT_EQ(stopping.best()->epoch, 3);
    // An epoch whose own steps do not have it is a mistake.
    const Scalars batch;
    ASSERT_EQ(stopping.OnStepEnd({.position = two, .scalars = batch}), OkStatus());
    EXPECT_EQ(stopping.OnEpochEnd(fourth, two),
              InvalidArgument("early_stopping: `" + monitor + "` is not an output of the step"));
  }
  // Every step of it came before the checkpoint.
  EarlyStopping stopping("auc", 1);
  ASSERT_EQ(stopping.OnTrainBegin(two), OkStatus());
  EXPECT_EQ(stopping.OnEpochEnd(epoch(3), two), OkStatus());
}

TEST(FitTest, WhatEarlyStoppingHasEndedIsNotTrainedOn) {
  FakeRunner runner;  // validation gives 10, 20, 30: never better than the first
  FakeData data(2), test(1);
  EarlyStopping stopping("val_loss", 2);
  Callback* callbacks[] = {&stopping};
  const auto ended = Fit(runner, data, {.epochs = 10, .validation = &test}, callbacks, {});
  ASSERT_TRUE(ended.ok());
  ASSERT_EQ(runner.steps, 6);
  const auto again = Fit(
      runner, data, {.epochs = 10, .validation = &test, .start = ended->position}, callbacks, {});
  ASSERT_TRUE(again.ok());
  EXPECT_EQ(runner.steps, 6);
  EXPECT_EQ(again->end, FitEnd::kStopped);
  EXPECT_EQ(again->message, ended->message);
  EXPECT_EQ(again->history.size(), 3u);
  // Whose patience is longer trains on; behind the last epoch nobody is asked.
  EarlyStopping patient("val_loss", 3);
  Callback* others[] = {&patient};
  const auto more =
      Fit(runner, data, {.epochs = 10, .validation = &test, .start = ended->position}, others, {});
  ASSERT_TRUE(more.ok());
  EXPECT_EQ(runner.steps, 8);
  EXPECT_EQ(Fit(runner, data, {.epochs = 3, .start = ended->position}, callbacks, {})->end,
            FitEnd::kFinished);
}

TEST(FitTest, EarlyStoppingWaitsForItsPatience) {
  FakeRunner runner;  // validation gives 10, 20, 30: never better than the first
  FakeData data(1), test(1);
  EarlyStopping stopping("val_loss", 2);
  Callback* callbacks[] = {&stopping};
  const auto result = Fit(runner, data, {.epochs = 10, .validation = &test}, callbacks, {});
  ASSERT_TRUE(result.ok());
  EXPECT_EQ(result->end, FitEnd::kStopped);
  EXPECT_EQ(result->message,
            "step 3: val_loss has not been better than 10.0000, that of epoch 1, for 2 epochs");
  EXPECT_EQ(result->history.size(), 3u);
  ASSERT_TRUE(stopping.best());
  EXPECT_EQ(stopping.best()->epoch, 1);
  EXPECT_EQ(stopping.best()->step, 1);
  EXPECT_EQ(stopping.best()->value, 10);

  EarlyStopping unknown("val_los", 2);
  Callback* bad[] = {&unknown};
  EXPECT_EQ(Fit(runner, data, {.epochs = 10, .validation = &test}, bad, {}).status().message(),
            "early_stopping: `val_los` is not an output of the step");
}

TEST(CheckpointEveryTest, TheLastStepIsSavedOnce) {
  FakeRunner runner;
  FakeData data(4);
  CheckpointEvery checkpoint(runner, {.every_steps = 2});
  Callback* callbacks[] = {&checkpoint};
  ASSERT_TRUE(Fit(runner, data, {.epochs = 1}, callbacks, {}).ok());
  EXPECT_EQ(runner.saved, (std::vector<int64_t>{2, 4}));
}

// A crash costs an epoch at most: what is saved is where the next epoch begins, its validation
// done.
TEST(CheckpointEveryTest, EachEpochIsSavedAfterItsValidation) {
  FakeRunner runner;
  FakeData data(3), test(2);
  CheckpointEvery checkpoint(runner, {.every_steps = 2, .each_epoch = true});
  Callback* callbacks[] = {&checkpoint};
  ASSERT_TRUE(Fit(runner, data, {.epochs = 2, .validation = &test}, callbacks, {}).ok());
  // Step 6 is saved by its number, and then not again as the end of an epoch or of training.
  EXPECT_EQ(runner.saved, (std::vector<int64_t>{2, 3, 4, 6}));
  const Position& epoch = runner.positions[1];
  EXPECT_EQ(epoch.epoch, 1);
  EXPECT_EQ(epoch.batch, 0);
  ASSERT_TRUE(epoch.history);
  EXPECT_EQ(Of(epoch.history->back().validation, "loss"), (2 * 10 + 20) / 3.0);
}

TEST(CheckpointEveryTest, ALongEpochIsSavedByTheClock) {
  FakeRunner runner;
  FakeData data(10);
  meshtrain::testing::FakeClock clock;
  runner.before_step_returns = [&](int64_t) { clock.Advance(std::chrono::seconds(150)); };
  runner.after_save = [&] { clock.Advance(std::chrono::seconds(100)); };  // it does not count
  CheckpointEvery checkpoint(runner, {.at_latest = std::chrono::minutes(10)}, clock);
  Callback* callbacks[] = {&checkpoint};
  ASSERT_TRUE(Fit(runner, data, {.epochs = 1}, callbacks, {}, clock).ok());
  EXPECT_EQ(runner.saved, (std::vector<int64_t>{4, 8, 10}));
}

// Where the time alone does not say which step may be saved, somebody else does.
TEST(CheckpointEveryTest, WhoKnowsBetterIsAskedInPlaceOfTheClock) {
  FakeRunner runner;
  FakeData data(6);
  meshtrain::testing::FakeClock clock;
  runner.before_step_returns = [&](int64_t) { clock.Advance(std::chrono::minutes(4)); };
  CheckpointEvery checkpoint(runner, {.at_latest = std::chrono::minutes(10)}, clock);
  std::vector<bool> overdue;
  checkpoint.set_due([&] {
    overdue.push_back(checkpoint.Overdue());
    return runner.steps == 5;
  });
  Callback* callbacks[] = {&checkpoint};
  ASSERT_TRUE(Fit(runner, data, {.epochs = 1}, callbacks, {}, clock).ok());
  EXPECT_EQ(overdue, (std::vector<bool>{false, false, true, true, true, false}));
  EXPECT_EQ(runner.saved, (std::vector<int64_t>{5, 6}));
}

}  // namespace
}  // namespace meshtrain::train
