// What a reporter makes of the steps that it is told of, for /metrics and /progress.
#include "runtime/trainer/job/reporter.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <nlohmann/json.hpp>
#include <regex>

#include "tests/support/temp_folder.h"

namespace meshtrain::trainer {
namespace {

using nlohmann::json;
using std::chrono::seconds;

class ReporterTest : public ::testing::Test {
 protected:
  void Begin(Reporter::Run run, int64_t step = 0) {
    run.name = "told";
    run.epochs = 1;
    run.steps_per_epoch = 8;
    at_.step = step;
    const JobConfig config{.output = folder_.path(), .port = std::nullopt};
    auto made = Reporter::Create(
        config, std::move(run), [this] { return saved_; }, at_);
    ASSERT_TRUE(made.ok()) << made.status().ToString();
    reporter_ = *std::move(made);
  }
  void Step(int64_t examples, Duration took = seconds(1), Duration waited = {}) {
    ++at_.step;
    ++at_.batch;
    const train::Scalars scalars = {{"loss", 0.5}};
    EXPECT_EQ(reporter_->OnStepEnd({.position = at_,
                                    .epochs = 1,
                                    .steps_per_epoch = 8,
                                    .total_steps = 8,
                                    .examples = examples,
                                    .seconds = took,
                                    .input_wait = waited,
                                    .scalars = scalars}),
              OkStatus());
  }
  // Of a series, whatever its labels; none where it is not there.
  std::optional<double> Metric(const std::string& name) const {
    std::smatch found;
    const std::string text = reporter_->metrics().Text();
    if (!std::regex_search(text, found, std::regex("\n" + name + R"(\{[^\n]*\} ([^\n]*)\n)"))) {
      return std::nullopt;
    }
    return std::stod(found[1]);
  }
  json Progress() const { return json::parse(reporter_->TerminationMessage()); }

  const testing_folder::TempFolder folder_;
  std::optional<checkpoint::SaveReport> saved_;
  train::Position at_;
  std::unique_ptr<Reporter> reporter_;
};

TEST_F(ReporterTest, TheTimeInWhichStepsWaitForTheirBatchesIsObserved) {
  Begin({});
  Step(10, seconds(1), seconds(3));
  Step(10, seconds(1), std::chrono::milliseconds(500));
  EXPECT_EQ(Metric("meshtrain_input_wait_seconds_count"), 2);
  EXPECT_EQ(Metric("meshtrain_input_wait_seconds_sum"), 3.5);
}

TEST_F(ReporterTest, SavesAreCountedThoseThatComeToNothingToo) {
  int64_t failed = 0;
  Begin({.failed_saves = [&] { return failed; }});
  EXPECT_EQ(Metric("meshtrain_checkpoint_failures_total"), 0);
  failed = 1;
  Step(10);
  Step(10);
  EXPECT_EQ(Metric("meshtrain_checkpoint_failures_total"), 1);
  EXPECT_EQ(Metric("meshtrain_checkpoint_saves_total"), 0);
  // Behind the last step.
  failed = 3;
  saved_ = checkpoint::SaveReport{.step = 2, .path = "c/2", .seconds = 4};
  EXPECT_EQ(reporter_->Finish({}), OkStatus());
  EXPECT_EQ(Metric("meshtrain_checkpoint_failures_total"), 3);
  EXPECT_EQ(Metric("meshtrain_checkpoint_saves_total"), 1);
  EXPECT_EQ(Metric("meshtrain_checkpoint_step"), 2);
}

TEST_F(ReporterTest, TheTimeLeftDoesNotFollowTheSizeOfTheNewestBatch) {
  Begin({});
  for (int i = 0; i < 3; ++i) Step(2048);
  EXPECT_DOUBLE_EQ(Progress()["etaSeconds"].get<double>(), 5);
  Step(1);
  EXPECT_DOUBLE_EQ(Progress()["etaSeconds"].get<double>(), 4);
}

TEST_F(ReporterTest, TheCheckpointThatItGoesOnFromIsTheNewestUntilTheNextOne) {
  Begin({.resumed_from = "c/3"}, 3);
  EXPECT_EQ(Metric("meshtrain_checkpoint_step"), 3);
  EXPECT_EQ(Progress()["checkpoint"], json({{"step", 3}, {"path", "c/3"}}));
  Step(10);
  EXPECT_EQ(Progress()["checkpoint"]["step"], 3);
  EXPECT_EQ(Metric("meshtrain_checkpoint_saves_total"), 0);
  saved_ = checkpoint::SaveReport{.step = 5, .path = "c/5", .seconds = 4};
  Step(10);
  EXPECT_EQ(Progress()["checkpoint"], json({{"step", 5}, {"path", "c/5"}}));
  EXPECT_EQ(Metric("meshtrain_checkpoint_step"), 5);
}

TEST_F(ReporterTest, AFigureThatNobodyKnowsIsNoSeries) {
  Begin({});
  EXPECT_EQ(Metric("meshtrain_loss"), std::nullopt);
  Step(10);
  EXPECT_EQ(Metric("meshtrain_loss"), 0.5);
  EXPECT_EQ(Metric("meshtrain_accuracy"), std::nullopt);
  EXPECT_THAT(reporter_->metrics().Text(), ::testing::Not(::testing::HasSubstr("test")));
}

}  // namespace
}  // namespace meshtrain::trainer
