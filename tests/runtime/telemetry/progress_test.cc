#include "runtime/telemetry/progress.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "runtime/telemetry/progress_line.h"

namespace meshtrain::telemetry {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

Progress Full() {
  return {.step = 60,
          .total_steps = 120,
          .epoch = 1.5,
          .loss = 0.25,
          .metrics = {{"accuracy", 0.9}, {"top5", std::nan("")}},
          .examples_per_second = 61000,
          .eta_seconds = 1.5,
          .rank_step_seconds = {0.002, 0.003},
          .checkpoint = Progress::Checkpoint{40, "ckpt/ckpt-00000040"},
          .plan = Progress::Plan{"batch=8", 1000, 2000, "abc"}};
}

TEST(ProgressTest, IsTheJsonThatTheStatusShows) {
  EXPECT_EQ(json::parse(ProgressJson(Full())), json::parse(R"({
    "step": 60, "totalSteps": 120, "epoch": 1.5, "loss": 0.25, "accuracy": 0.9, "metrics": {"accuracy": 0.9, "top5": null},
    "examplesPerSecond": 61000.0, "etaSeconds": 1.5, "rankStepSeconds": [0.002, 0.003],
    "checkpoint": {"step": 40, "path": "ckpt/ckpt-00000040"},
    "plan": {"mesh": "batch=8", "peakBytesPerDevice": 1000, "collectiveBytesPerStep": 2000, "hash": "abc"},
    "planHash": "abc"})"));
  EXPECT_EQ(ProgressJson({}), "{\"step\":0,\"epoch\":0.0}");
  const Progress stands = {.stopped_rank = "worker-2", .lost_incarnation = "71"};
  const std::string text =
      "{\"step\":0,\"epoch\":0.0,\"stoppedRank\":\"worker-2\",\"lostIncarnation\":\"71\"}";
  EXPECT_EQ(ProgressJson(stands), text);
  EXPECT_EQ(TerminationMessage(stands), text);
}

TEST(ProgressTest, TheTerminationMessageFits) {
  Progress progress = Full();
  progress.rank_step_seconds.assign(1000, 0.0012345);
  EXPECT_EQ(json::parse(TerminationMessage(progress))["accuracy"], 0.9);
  for (int i = 0; i < 300; ++i) {
    progress.metrics["metric_number_" + std::to_string(i)] = 1.0 / (i + 1);
  }
  EXPECT_LE(TerminationMessage(progress).size(), 4096u);
  progress.checkpoint->path.assign(5000, 'x');
  EXPECT_LE(TerminationMessage(progress).size(), 4096u);
  EXPECT_EQ(json::parse(TerminationMessage(progress))["step"], 60);
  const std::string error = "saving step 60: No space left on device";
  EXPECT_EQ(json::parse(TerminationMessage(progress, error))["error"], error);
  const std::string long_error = TerminationMessage(progress, std::string(5000, '\x1b'));
  EXPECT_LE(long_error.size(), 4096u);
  EXPECT_FALSE(json::parse(long_error)["error"].empty());
  progress.rank_step_seconds.assign(10000, 0.0012345);
  EXPECT_FALSE(json::parse(ProgressJson(progress)).contains("rankStepSeconds"));
}

class FakeClock final : public Clock {
 public:
  TimePoint Now() const override { return TimePoint(now); }
  Duration Monotonic() const override { return now; }
  bool SleepFor(Duration, std::stop_token) override { return false; }
  Duration now = std::chrono::seconds(100);
};

const std::vector<NamedValue> kValues = {{"accuracy", 0.772}, {"loss", 0.831}};

TEST(ProgressLineTest, LooksLikeKeras) {
  const std::string line = TerminalLine({.step = 30, .steps = 120, .seconds = 0.06}, kValues);
  EXPECT_THAT(line, ::testing::StartsWith(" 30/120 "));
  EXPECT_THAT(line, ::testing::EndsWith(" 0s 2ms/step - accuracy: 0.7720 - loss: 0.8310"));
  EXPECT_THAT(TerminalLine({.step = 1, .steps = 100, .seconds = 2}, {}),
              HasSubstr(" 3:18 2s/step"));
  EXPECT_THAT(TerminalLine({.step = 100, .steps = 100, .seconds = 3723, .done = true}, {}),
              HasSubstr(" 1:02:03 37s/step"));
  EXPECT_THAT(TerminalLine({.step = 5, .steps = 0, .seconds = 0.001}, {}),
              HasSubstr("5/? 0s 200us/step"));
  EXPECT_THAT(TerminalLine({.step = 1, .steps = 2, .seconds = 1},
                           std::vector<NamedValue>{{"loss", 1.5e-7}}),
              HasSubstr("loss: 1.5000e-07"));
}

TEST(ProgressLineTest, ATerminalIsRedrawnNowAndThen) {
  FakeClock clock;
  std::string out;
  ProgressLine line(
      {.terminal = true}, [&](std::string_view text) { out += text; }, clock);
  line.BeginEpoch(1, 3, 40);
  for (int step = 1; step <= 40; ++step) {
    clock.now += std::chrono::milliseconds(10);
    line.Step(step, kValues);
  }
  line.EndEpoch(kValues);
  EXPECT_THAT(out, ::testing::StartsWith("Epoch 1/3\n"));
  EXPECT_EQ(std::count(out.begin(), out.end(), '\r'), 5);  // at 10, 110, 210, 310 ms and the end
  EXPECT_EQ(std::count(out.begin(), out.end(), '\n'), 2);
  EXPECT_THAT(out, HasSubstr("40/40 "));
}

TEST(ProgressLineTest, ALogGetsWholeLines) {
  FakeClock clock;
  std::string out;
  ProgressLine line(
      {}, [&](std::string_view text) { out += text; }, clock);
  line.BeginEpoch(2, 3, 40);
  for (int step = 1; step <= 40; ++step) {
    clock.now += std::chrono::milliseconds(400);
    line.Step(step, kValues);
  }
  line.EndEpoch(kValues);
  EXPECT_EQ(out,
            "epoch 2/3  step 25/40  10.0 s  400.0 ms/step  accuracy 0.7720  loss 0.8310\n"
            "epoch 2/3  step 40/40  16.0 s  400.0 ms/step  accuracy 0.7720  loss 0.8310\n");
}

}  // namespace
}  // namespace meshtrain::telemetry
