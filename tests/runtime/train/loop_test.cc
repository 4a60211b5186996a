#include "runtime/train/loop.h"

#include <gtest/gtest.h>

#include <cmath>

#include "runtime/train/callbacks.h"
#include "tests/runtime/train/loop_testing.h"
#include "tests/support/fake_clock.h"

namespace meshtrain::train {
namespace {

TEST(FitTest, AnEpochsFiguresAreMeansOverItsExamples) {
  FakeRunner runner;
  FakeData data(3), test(2);
  const auto result = Fit(runner, data, {.epochs = 2, .validation = &test}, {}, {});
  ASSERT_TRUE(result.ok()) << result.status().message();
  EXPECT_EQ(result->end, FitEnd::kFinished);
  EXPECT_EQ(result->message, "");
  ASSERT_EQ(result->history.size(), 2u);
  EXPECT_EQ(result->history[0].epoch, 1);
  // Batches of 2, 2 and 1; of 2 and 1.
  EXPECT_DOUBLE_EQ(Of(result->history[0].train, "loss"), (2 * 1 + 2 / 2.0 + 1 / 3.0) / 5);
  EXPECT_DOUBLE_EQ(Of(result->history[1].train, "loss"), (2 / 4.0 + 2 / 5.0 + 1 / 6.0) / 5);
  EXPECT_DOUBLE_EQ(Of(result->history[0].validation, "loss"), (2 * 10 + 20) / 3.0);
  EXPECT_DOUBLE_EQ(Of(result->history[1].validation, "loss"), (2 * 30 + 40) / 3.0);
  EXPECT_EQ(result->position.step, 6);
  EXPECT_EQ(result->position.epoch, 2);
  EXPECT_EQ(runner.examples, 10);
  EXPECT_EQ(data.passes, 2);
}

TEST(FitTest, AStepsOwnCountOfExamplesIsWhatItsFiguresWeigh) {
  // A batch that a worker of parameter servers has read for itself has a size that the loop does
  // not know.
  FakeRunner runner;
  runner.before_step_returns = [&](int64_t step) { runner.said_examples = step == 1 ? 7 : 3; };
  FakeData data(2);
  std::vector<int64_t> told;
  FunctionCallback callback;
  callback.on_step_end = [&](const StepInfo& info) {
    told.push_back(info.examples);
    return OkStatus();
  };
  Callback* callbacks[] = {&callback};
  const auto result = Fit(runner, data, {.epochs = 1}, callbacks, {});
  ASSERT_TRUE(result.ok()) << result.status().message();
  EXPECT_DOUBLE_EQ(Of(result->history[0].train, "loss"), (7 * 1 + 3 / 2.0) / 10);
  EXPECT_EQ(told, (std::vector<int64_t>{7, 3}));
}

// Found by stopping a job while it validated: the pass had ended, the epoch had not, and a whole
// epoch was trained again.
TEST(FitTest, AFullEpochResumedTrainsNoMoreInIt) {
  for (const bool pass_has_turned : {false, true}) {
    FakeRunner runner;
    FakeData data(3), test(2);
    for (int i = 0; i < (pass_has_turned ? 4 : 3); ++i) ASSERT_TRUE(data.Next({}).ok());
    const auto result =
        Fit(runner, data,
            {.epochs = 2,
             .validation = &test,
             .start = {.step = 3,
                       .epoch = 0,
                       .batch = 3,
                       .figures = {.totals = {{"loss", 10}, {"accuracy", 2.5}}, .examples = 5}}},
            {}, {});
    ASSERT_TRUE(result.ok()) << result.status().message();
    EXPECT_EQ(runner.steps, 3);
    EXPECT_EQ(result->position.step, 6);
    ASSERT_EQ(result->history.size(), 2u);
    EXPECT_DOUBLE_EQ(Of(result->history[0].train, "loss"), 2);
  }
}

TEST(FitTest, APlaceThatNoRunReachesIsRefused) {
  FakeRunner runner;
  const auto begin_at = [&](const Position& start) {
    FakeData data(5);
    return Fit(runner, data, {.epochs = 2, .start = start}, {}, {}).status();
  };
  const auto expect = [](const Status& status, const std::string& message) {
    EXPECT_EQ(status, InvalidArgument(message));
  };
  expect(begin_at({.step = 7, .batch = 6}),
         "fit: expected to begin within an epoch of 5 batches, got: behind 6 of epoch 1 (was it "
         "saved by a run with longer epochs?)");
  expect(
      begin_at({.step = 7, .epoch = INT64_MIN}),
      "fit: expected to begin at counts from 0, got: step 7, epoch -9223372036854775808, batch 0");
  expect(begin_at({.step = -1}),
         "fit: expected to begin at counts from 0, got: step -1, epoch 0, batch 0");
  expect(begin_at({.step = 1, .batch = -2}),
         "fit: expected to begin at counts from 0, got: step 1, epoch 0, batch -2");
  EXPECT_EQ(begin_at({.step = 5, .batch = 5}), OkStatus());
}

TEST(FitTest, StepsPerEpochJoinsPasses) {
  FakeRunner runner;
  FakeData data(3);
  const auto result = Fit(runner, data, {.epochs = 2, .steps_per_epoch = 4}, {}, {});
  ASSERT_TRUE(result.ok());
  EXPECT_EQ(runner.steps, 8);
  EXPECT_EQ(data.passes, 2);
  EXPECT_EQ(result->history[1].step, 8);
}

TEST(FitTest, CallbacksHearOfEveryStepAndEpoch) {
  FakeRunner runner;
  FakeData data(2);
  std::string heard;
  FunctionCallback callback;
  callback.on_train_begin = [&](const Position& p) {
    heard += "begin " + std::to_string(p.step) + "; ";
    return OkStatus();
  };
  callback.on_step_end = [&](const StepInfo& i) {
    heard += std::to_string(i.position.step) + "/" + std::to_string(i.total_steps) + " of " +
             std::to_string(i.examples) + "; ";
    return OkStatus();
  };
  callback.on_epoch_end = [&](const EpochInfo& i) {
    heard += "epoch " + std::to_string(i.epoch) + "/" + std::to_string(i.epochs) + "; ";
    return OkStatus();
  };
  callback.on_train_end = [&](const FitResult& r) {
    heard += r.end == FitEnd::kFinished ? "end" : "broken off";
    return OkStatus();
  };
  Callback* callbacks[] = {&callback};
  ASSERT_TRUE(Fit(runner, data, {.epochs = 2}, callbacks, {}).ok());
  EXPECT_EQ(heard, "begin 0; 1/4 of 2; 2/4 of 1; epoch 1/2; 3/4 of 2; 4/4 of 1; epoch 2/2; end");
}

// Of all that it asked for: at the end of a pass twice.
TEST(FitTest, EachStepSaysHowLongItWaitedForItsBatch) {
  FakeRunner runner;
  FakeData data(2);
  testing::FakeClock clock;
  data.before_next = [&] { clock.Advance(std::chrono::seconds(3)); };
  runner.before_step_returns = [&](int64_t) { clock.Advance(std::chrono::seconds(1)); };
  std::vector<Duration> waits;
  FunctionCallback callback;
  callback.on_step_end = [&](const StepInfo& i) {
    waits.push_back(i.input_wait);
    EXPECT_EQ(i.seconds, std::chrono::seconds(1));
    return OkStatus();
  };
  Callback* callbacks[] = {&callback};
  ASSERT_TRUE(Fit(runner, data, {.epochs = 1, .steps_per_epoch = 3}, callbacks, {}, clock).ok());
  EXPECT_EQ(waits, (std::vector<Duration>{std::chrono::seconds(3), std::chrono::seconds(3),
                                          std::chrono::seconds(6)}));
}

TEST(FitTest, AStopIsHonouredBetweenStepsAndSaves) {
  FakeRunner runner;
  FakeData data(5);
  std::stop_source stop;
  runner.before_step_returns = [&](int64_t step) {
    if (step == 3) stop.request_stop();
  };
  CheckpointEvery checkpoint(runner, {.every_steps = 2});
  Callback* callbacks[] = {&checkpoint};
  const auto result = Fit(runner, data, {.epochs = 4}, callbacks, stop.get_token());
  ASSERT_TRUE(result.ok());
  EXPECT_EQ(result->end, FitEnd::kStopped);
  EXPECT_EQ(result->message, "step 3: a stop was requested");
  EXPECT_EQ(runner.steps, 3);
  EXPECT_EQ(runner.saved, (std::vector<int64_t>{2, 3}));
  EXPECT_EQ(result->position.batch, 3);
  EXPECT_EQ(result->position.figures.examples, 6);
  EXPECT_DOUBLE_EQ(Of(result->position.figures.totals, "loss"), 2 * (1 + 1 / 2.0 + 1 / 3.0));
}

TEST(FitTest, GoesOnFromAPositionWithTheSameEpochMeans) {
  FakeRunner whole;
  FakeData data(5);
  const auto want = Fit(whole, data, {.epochs = 1}, {}, {});
  ASSERT_TRUE(want.ok());

  FakeRunner resumed;
  resumed.steps = 3;
  FakeData rest(5);
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(rest.Next({}).ok());  // as a restored cursor leaves it
  const Position start{
      .step = 3,
      .batch = 3,
      .figures = {.totals = {{"accuracy", 3}, {"loss", 2 * (1 + 1 / 2.0 + 1 / 3.0)}},
                  .examples = 6}};
  const auto got = Fit(resumed, rest, {.epochs = 1, .start = start}, {}, {});
  ASSERT_TRUE(got.ok());
  ASSERT_EQ(got->history.size(), 1u);
  EXPECT_EQ(got->history[0].train, want->history[0].train);  // bit for bit, in the same order
  EXPECT_EQ(got->position.step, 5);
}

// A checkpoint holds sums without what they come to: the runner says it, even where no step is
// left.
TEST(FitTest, SumsOfACheckpointBecomeFiguresOfTheEpochThatItEnded) {
  FakeRunner runner;
  runner.sums = {{"spread", {0, 0}, [](std::span<const double> s) { return s[1] - s[0]; }}};
  FakeData data(5);
  const Position start{
      .step = 5,
      .batch = 5,
      .figures = {.totals = {{"loss", 6}}, .examples = 3, .sums = {{"spread", {2, 9}}}}};
  const auto got = Fit(runner, data, {.epochs = 1, .start = start}, {}, {});
  ASSERT_TRUE(got.ok());
  ASSERT_EQ(got->history.size(), 1u);
  EXPECT_EQ(got->history[0].train, (Scalars{{"loss", 2}, {"spread", 7}}));
  EXPECT_EQ(runner.steps, 0);
}

TEST(FitTest, ABadStepStopsNamesTheOpAndKeepsTheLastCheckpoint) {
  FakeRunner runner;
  runner.bad_at = {5};
  FakeData data(10);
  CheckpointEvery checkpoint(runner, {.every_steps = 2});
  Callback* callbacks[] = {&checkpoint};
  const auto result = Fit(runner, data, {.epochs = 1}, callbacks, {});
  ASSERT_TRUE(result.ok());
  EXPECT_EQ(result->end, FitEnd::kNotFinite);
  EXPECT_EQ(result->whose, Origin::kNumbers);
  EXPECT_EQ(result->message,
            "step 5: output `loss` is not finite; first not finite: log (hidden_1) at model.cc:31; "
            "the last checkpoint is of step 4");
  EXPECT_EQ(runner.saved, (std::vector<int64_t>{2, 4}));
  EXPECT_TRUE(result->history.empty());
}

// Of three that are allowed in a row two come twice: they are counted, have no part in the figures,
// and are not saved.
TEST(FitTest, BadStepsAreCountedUntilThereAreTooManyInARow) {
  FakeRunner runner;
  runner.bad_at = {2, 3, 5, 6, 9, 10, 11};
  FakeData data(4);
  CheckpointEvery checkpoint(runner, {.every_steps = 3});
  std::vector<std::pair<int64_t, int64_t>> told;
  FunctionCallback note;
  note.on_bad_step = [&](const BadStepInfo& info) {
    told.emplace_back(info.position.step, info.in_a_row);
    EXPECT_NE(info.why.find("log (hidden_1)"), std::string::npos);
    return OkStatus();
  };
  Callback* callbacks[] = {&checkpoint, &note};
  const auto result = Fit(runner, data, {.epochs = 5, .end_after_bad_steps = 3}, callbacks, {});
  ASSERT_TRUE(result.ok()) << result.status().message();
  EXPECT_EQ(result->end, FitEnd::kNotFinite);
  EXPECT_EQ(result->position.step, 11);
  EXPECT_EQ(told, (std::vector<std::pair<int64_t, int64_t>>{
                      {2, 1}, {3, 2}, {5, 1}, {6, 2}, {9, 1}, {10, 2}, {11, 3}}));
  EXPECT_NE(result->message.find("step 11: "), std::string::npos) << result->message;
  EXPECT_NE(result->message.find("the 3 steps up to it were bad"), std::string::npos);
  ASSERT_EQ(result->history.size(), 2u);
  // Of each epoch's good steps the first has two examples, the second one.
  EXPECT_DOUBLE_EQ(Of(result->history[0].train, "loss"), (2 + 1 / 4.0) / 3);
  EXPECT_DOUBLE_EQ(Of(result->history[1].train, "loss"), (2 / 7.0 + 1 / 8.0) / 3);
  EXPECT_TRUE(runner.saved.empty());  // 3, 6 and 9 were bad
}

TEST(FitTest, AMetricThatIsNanStops) {
  FakeRunner runner;
  runner.nan_at = 5;
  FakeData data(10);
  const auto result = Fit(runner, data, {.epochs = 1, .end_after_bad_steps = 3}, {}, {});
  ASSERT_TRUE(result.ok());
  EXPECT_EQ(result->end, FitEnd::kNotFinite);
  EXPECT_EQ(result->message, "step 5: accuracy is nan; no checkpoint was saved");
}

// Data that is not finite is told with the step that it spoils, and whose fault it was.
TEST(FitTest, DataThatIsNotFiniteIsNamedAndAtFault) {
  for (const bool metric : {false, true}) {
    FakeRunner runner;
    if (metric) {
      runner.nan_at = 3;
    } else {
      runner.bad_at = {3};
    }
    FakeData data(10);
    data.finite = InvalidArgument("x.npy: example 37: nan").From(Origin::kInput);
    std::vector<std::string> told;
    FunctionCallback note;
    note.on_bad_step = [&](const BadStepInfo& info) {
      told.push_back(info.why);
      return OkStatus();
    };
    Callback* callbacks[] = {&note};
    const auto result = Fit(runner, data, {.epochs = 1}, callbacks, {});
    ASSERT_TRUE(result.ok());
    EXPECT_EQ(result->end, FitEnd::kNotFinite);
    EXPECT_EQ(result->whose, Origin::kInput);
    const std::string why =
        std::string(metric ? "accuracy is nan"
                           : "output `loss` is not finite; first not finite: log (hidden_1) at "
                             "model.cc:31") +
        "; x.npy: example 37: nan";
    EXPECT_EQ(result->message, "step 3: " + why + "; no checkpoint was saved");
    EXPECT_EQ(told, metric ? std::vector<std::string>() : std::vector<std::string>{why});
  }
}

TEST(FitTest, AnEmptyPassIsAnError) {
  FakeRunner runner;
  FakeData data(0);
  EXPECT_EQ(Fit(runner, data, {.epochs = 1}, {}, {}).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(Fit(runner, data, {.epochs = 1, .steps_per_epoch = 3}, {}, {}).status().code(),
            StatusCode::kInvalidArgument);
}

TEST(FitTest, ACallbacksErrorEndsIt) {
  FakeRunner runner;
  FakeData data(3);
  FunctionCallback callback;
  callback.on_step_end = [](const StepInfo&) { return ResourceExhausted("disk full"); };
  Callback* callbacks[] = {&callback};
  EXPECT_EQ(Fit(runner, data, {.epochs = 1}, callbacks, {}).status(),
            ResourceExhausted("disk full"));
  EXPECT_EQ(runner.steps, 1);
}

TEST(FitTest, GoesOnWithTheHistoryOfItsStart) {
  FakeRunner runner;
  FakeData data(2);
  const auto before = Fit(runner, data, {.epochs = 2}, {}, {});
  ASSERT_TRUE(before.ok());
  ASSERT_NE(before->position.history, nullptr);
  const auto after = Fit(runner, data, {.epochs = 3, .start = before->position}, {}, {});
  ASSERT_TRUE(after.ok());
  ASSERT_EQ(after->history.size(), 3u);
  for (int64_t e = 0; e < 3; ++e) EXPECT_EQ(after->history[e].epoch, e + 1);
  EXPECT_EQ(after->history[0].train, before->history[0].train);
  EXPECT_EQ(before->position.history->size(), 2u);  // what was told once does not change
  EXPECT_EQ(after->position.history->size(), 3u);
}

TEST(EvaluateTest, MeansOverTheExamplesOfAPassOrOfSomeSteps) {
  FakeRunner runner;
  FakeData data(3);
  EXPECT_DOUBLE_EQ(Of(*Evaluate(runner, data, -1, {}), "loss"), (2 * 10 + 2 * 20 + 30) / 5.0);
  EXPECT_DOUBLE_EQ(Of(*Evaluate(runner, data, 1, {}), "loss"), 40);
  std::stop_source stop;
  stop.request_stop();
  EXPECT_EQ(Evaluate(runner, data, -1, stop.get_token()).status().code(), StatusCode::kCancelled);
}

TEST(EvaluateTest, EndsWithThePassHoweverManyStepsAreAskedFor) {
  FakeRunner runner;
  FakeData data(3);
  for (const int64_t steps : {3, 4, 7}) {
    runner.evals = 0;
    EXPECT_DOUBLE_EQ(Of(*Evaluate(runner, data, steps, {}), "loss"), (2 * 10 + 2 * 20 + 30) / 5.0);
    EXPECT_EQ(runner.evals, 3) << steps;
  }
  FakeData none(0);
  EXPECT_EQ(Evaluate(runner, none, 2, {}).status(),
            InvalidArgument("evaluate: a pass of the data holds no batch"));
}

TEST(EvaluateTest, EachBeginsWhereTheDataBegins) {
  FakeRunner runner;
  FakeData data(3), test(3);
  const auto result =
      Fit(runner, data, {.epochs = 3, .validation = &test, .validation_steps = 2}, {}, {});
  ASSERT_TRUE(result.ok()) << result.status().message();
  EXPECT_EQ(test.begun, 3);
  EXPECT_EQ(data.begun, 0) << "training goes on where the data stands";
  // Each of batches of 2 and 2; going on, the second would have one of 1 among its own.
  EXPECT_DOUBLE_EQ(Of(result->history[0].validation, "loss"), 15);
  EXPECT_DOUBLE_EQ(Of(result->history[1].validation, "loss"), 35);
  EXPECT_DOUBLE_EQ(Of(result->history[2].validation, "loss"), 55);
  EXPECT_EQ(test.passes, 0);
  test.begins = ResourceExhausted("no thread");
  EXPECT_EQ(Evaluate(runner, test, 1, {}).status(), test.begins);
}

TEST(PositionTest, AnEpochThatEndsIsTheNewestOfItsHistory) {
  Position at{.step = 7, .batch = 7, .figures = {{{"loss", 3}}, 2}};
  at.EndEpoch({.epoch = 1, .train = {{"loss", 1.5}}});
  EXPECT_EQ(at.epoch, 1);
  EXPECT_EQ(at.batch, 0);
  EXPECT_EQ(at.figures, FigureTotals());
  const auto first = at.history;
  at.step = 9;
  at.EndEpoch({.epoch = 2});
  ASSERT_EQ(first->size(), 1u);  // never changed once made
  ASSERT_EQ(at.history->size(), 2u);
  EXPECT_EQ(at.history->at(0).step, 7);
  EXPECT_EQ(at.history->at(1).step, 9);
}

}  // namespace
}  // namespace meshtrain::train
