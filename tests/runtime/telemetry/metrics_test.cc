#include "runtime/telemetry/metrics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <sstream>

#include "runtime/telemetry/training_metrics.h"

namespace meshtrain::telemetry {
namespace {

using ::testing::HasSubstr;

TEST(MetricsTest, SeriesCarryTheReplicasLabels) {
  Metrics metrics({"default/mnist", "worker", 3});
  Counter steps = metrics.AddCounter("meshtrain_steps_total", "Steps.");
  steps.Add();
  steps.Add(2);
  metrics.AddGauge("meshtrain_loss", "Loss.", {{"split", "test"}}).Set(0.25);
  metrics.AddHistogram("meshtrain_step_seconds", "Step.", {0.1, 1}).Observe(0.5);
  const std::string text = metrics.Text();
  EXPECT_THAT(
      text,
      HasSubstr("# HELP meshtrain_steps_total Steps.\n# TYPE meshtrain_steps_total counter\n"));
  const auto series = [&](const std::string& name) {
    std::istringstream lines(text);
    for (std::string line; std::getline(lines, line);) {
      if (line.starts_with(name + "{")) return line;
    }
    return std::string();
  };
  for (const char* label :
       {"training_job=\"default/mnist\"", "replica_type=\"worker\"", "replica_index=\"3\""}) {
    EXPECT_THAT(series("meshtrain_steps_total"), HasSubstr(label));
    EXPECT_THAT(series("meshtrain_step_seconds_bucket"), HasSubstr(label));
  }
  EXPECT_THAT(series("meshtrain_steps_total"), ::testing::EndsWith(" 3"));
  EXPECT_THAT(series("meshtrain_loss"), HasSubstr("split=\"test\""));
  EXPECT_THAT(series("meshtrain_loss"), ::testing::EndsWith(" 0.25"));
  EXPECT_THAT(series("meshtrain_step_seconds_count"), ::testing::EndsWith(" 1"));
}

TEST(MetricsTest, TheSameNameAndLabelsAreTheSameSeries) {
  Metrics metrics({"j", "chief", 0});
  metrics.AddCounter("meshtrain_restarts_total", "Restarts.").Add(1);
  metrics.AddCounter("meshtrain_restarts_total", "Restarts.").Add(1);
  EXPECT_THAT(metrics.Text(), ::testing::ContainsRegex("meshtrain_restarts_total\\{[^}]*\\} 2"));
}

TEST(MetricsDeathTest, NamesKeepTheRules) {
  Metrics metrics({"j", "chief", 0});
  EXPECT_DEATH(metrics.AddCounter("meshtrain_steps", ""), "");
  EXPECT_DEATH(metrics.AddGauge("meshtrain_steps_total", ""), "");
  EXPECT_DEATH(metrics.AddGauge("steps", ""), "");
  EXPECT_DEATH(metrics.AddGauge("meshtrain_Steps", ""), "");
}

TEST(MetricsTest, TheTrainingMetricsHaveNeitherStepNorLossAsALabel) {
  Metrics metrics({"j", "chief", 0});
  TrainingMetrics training(metrics);
  training.steps.Add(5);
  const std::vector<std::pair<std::string, double>> loss = {{"loss", 0.5}};
  training.train_figures.Set(loss);
  training.step_seconds.Observe(0.002);
  const std::string text = metrics.Text();
  std::set<std::string> labels;
  for (size_t at = text.find("=\""); at != std::string::npos; at = text.find("=\"", at + 1)) {
    const size_t begin = text.find_last_of("{,", at) + 1;
    labels.insert(text.substr(begin, at - begin));
  }
  EXPECT_EQ(labels, (std::set<std::string>{"training_job", "replica_type", "replica_index", "split",
                                           "le"}));
  EXPECT_THAT(text, HasSubstr("meshtrain_checkpoint_saves_total"));
}

TEST(MetricsTest, EveryOtherFigureIsASeriesByItsName) {
  Metrics metrics({.training_job = "a/b", .replica_type = "chief"});
  FigureGauges figures(metrics, "test");
  const std::vector<std::pair<std::string, double>> first = {
      {"loss", 1}, {"accuracy", 0.5}, {"auc", 0.75}};
  figures.Set(first);
  const std::vector<std::pair<std::string, double>> next = {{"auc", 0.875}};
  figures.Set(next);
  const std::string text = metrics.Text();
  EXPECT_THAT(text, HasSubstr("meshtrain_figure{"));
  EXPECT_THAT(text, ::testing::ContainsRegex("meshtrain_loss[^\n]*split=\"test\". 1\n"));
  EXPECT_THAT(text, HasSubstr("figure=\"auc\""));
  EXPECT_THAT(text, HasSubstr("split=\"test\"} 0.875\n"));
  EXPECT_THAT(text, ::testing::Not(HasSubstr("figure=\"accuracy\"")));
  EXPECT_THAT(text, ::testing::Not(HasSubstr("figure=\"loss\"")));
}

// Of 60 that a replica may have: its role's own come beside them, nine where it leads parameter
// servers.
TEST(MetricsTest, TheTrainingMetricsAreFortyNineSeries) {
  Metrics metrics({"j", "chief", 0});
  TrainingMetrics training(metrics);
  training.Look();
  EXPECT_THAT(metrics.Text(), ::testing::Not(HasSubstr("split="))) << "no figure is known yet";
  const std::vector<std::pair<std::string, double>> figures = {{"loss", 1}, {"accuracy", 0.5}};
  training.train_figures.Set(figures);
  training.test_figures.Set(figures);
  std::istringstream lines(metrics.Text());
  int series = 0;
  for (std::string line; std::getline(lines, line);) {
    series += line.starts_with("meshtrain_") ? 1 : 0;
    if (!line.starts_with("meshtrain_resident_memory_bytes{")) continue;
    EXPECT_GT(std::stod(line.substr(line.rfind(' '))), 1e6);
  }
  EXPECT_EQ(series, 50);
}

}  // namespace
}  // namespace meshtrain::telemetry
