#include "operator/control/metrics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <set>
#include <sstream>

#include "runtime/base/file.h"

namespace meshtrain::control {
namespace {

using api::ConditionType;
using ::testing::HasSubstr;
using ::testing::Not;

TEST(MetricsTest, APhaseThatNoJobIsInAnyMoreStandsAtZero) {
  Metrics metrics("api:6443");
  std::map<std::pair<std::string, std::string>, int64_t> phases;
  metrics.SetGauges({.jobs_by_phase = [&] { return phases; }});
  for (const char* phase : {"", "Pending", "Waiting", "Running", "Restarting", "Stalled",
                            "Suspended", "Succeeded", "Failed"}) {
    const std::string line =
        "meshtrain_jobs{namespace=\"ml\",phase=\"" + std::string(*phase ? phase : "New") + "\"} ";
    phases = {{{"ml", phase}, 2}};
    EXPECT_THAT(metrics.Text(), HasSubstr(line + "2"));
    phases.clear();
    EXPECT_THAT(metrics.Text(), HasSubstr(line + "0"));
  }
}

TEST(MetricsTest, ACounterNeverFalls) {
  Metrics metrics("api:6443");
  double last = -1;
  for (int i = 0; i < 20; ++i) {
    const std::string text = metrics.Text();
    const std::string name = "\nprocess_cpu_seconds_total ";
    const size_t at = text.find(name);
    ASSERT_NE(at, std::string::npos);
    const double now = std::atof(text.c_str() + at + name.size());
    EXPECT_GE(now, last);
    last = now;
  }
  EXPECT_GT(last, 0);
}

// Lines of /metrics that begin with `name`.
std::vector<std::string> Lines(Metrics& metrics, const std::string& name) {
  std::istringstream text(metrics.Text());
  std::vector<std::string> lines;
  for (std::string line; std::getline(text, line);) {
    if (line.starts_with(name)) lines.push_back(line);
  }
  return lines;
}

TEST(MetricsTest, TheStragglerIsASeriesThatGoesWithItsJob) {
  Metrics metrics("api:6443");
  std::vector<RankSteps> ranks = {
      {.ns = "ml", .job = "even", .slowest = "worker-0", .seconds = 0.25, .median = 0.2},
      {.ns = "ml",
       .job = "mnist",
       .slowest = "worker-3",
       .seconds = 2,
       .median = 0.5,
       .straggles = true}};
  metrics.SetGauges({.rank_steps = [&] { return ranks; }});
  EXPECT_THAT(
      Lines(metrics, "meshtrain_job_rank_step_seconds{"),
      ::testing::UnorderedElementsAre(
          "meshtrain_job_rank_step_seconds{job=\"even\",namespace=\"ml\",rank=\"median\"} 0.2",
          "meshtrain_job_rank_step_seconds{job=\"even\",namespace=\"ml\",rank=\"slowest\"} 0.25",
          "meshtrain_job_rank_step_seconds{job=\"mnist\",namespace=\"ml\",rank=\"median\"} 0.5",
          "meshtrain_job_rank_step_seconds{job=\"mnist\",namespace=\"ml\",rank=\"slowest\"} 2"));
  EXPECT_THAT(Lines(metrics, "meshtrain_job_straggler_step_seconds{"),
              ::testing::ElementsAre("meshtrain_job_straggler_step_seconds{job=\"mnist\",namespace="
                                     "\"ml\",replica=\"worker-3\"} 2"));

  // Another replica is the slow one, and then none is: no former one stays behind.
  ranks[1].slowest = "worker-1";
  EXPECT_THAT(Lines(metrics, "meshtrain_job_straggler_step_seconds{"),
              ::testing::ElementsAre("meshtrain_job_straggler_step_seconds{job=\"mnist\",namespace="
                                     "\"ml\",replica=\"worker-1\"} 2"));
  ranks[1].straggles = false;
  EXPECT_THAT(Lines(metrics, "meshtrain_job_straggler_step_seconds{"), ::testing::IsEmpty());

  ranks.pop_back();
  EXPECT_THAT(metrics.Text(), Not(HasSubstr("job=\"mnist\"")));
  metrics.SetGauges({});
  EXPECT_THAT(metrics.Text(), Not(HasSubstr("job=\"even\"")));
}

TEST(MetricsTest, NoMoreJobsAreNamedThanTheLimitAndTheWorstOnesAre) {
  Metrics metrics("api:6443");
  std::vector<RankSteps> ranks;
  for (size_t i = 0; i < 10 * Metrics::kMostShown; ++i) {
    ranks.push_back({.ns = "ml",
                     .job = "job-" + std::to_string(i),
                     .slowest = "worker-0",
                     .seconds = 1 + static_cast<double>(i % 7),
                     .median = 1});
  }
  ranks[3].straggles = true;  // seconds 4: others are further behind, but they matter less
  metrics.SetGauges({.rank_steps = [&] { return ranks; }});
  EXPECT_THAT(Lines(metrics, "meshtrain_job_rank_step_seconds{"),
              ::testing::SizeIs(2 * Metrics::kMostShown));
  EXPECT_THAT(Lines(metrics, "meshtrain_job_straggler_step_seconds{job=\"job-3\""),
              ::testing::SizeIs(1));
  for (const std::string& line : Lines(metrics, "meshtrain_job_rank_step_seconds{")) {
    if (line.find("slowest") == std::string::npos || line.find("\"job-3\"") != std::string::npos) {
      continue;
    }
    EXPECT_THAT(line, ::testing::EndsWith(" 7"));
  }
}

TEST(MetricsTest, FiguresOfAJobStayUntilItIsDeleted) {
  Metrics metrics("api:6443");
  std::vector<JobFigures> jobs = {{.ns = "ml",
                                   .job = "mnist",
                                   .runs = true,
                                   .step = 120,
                                   .total_steps = 200,
                                   .checkpoint_step = 80,
                                   .loss = 0.25,
                                   .accuracy = 0.9,
                                   .examples_per_second = 5000,
                                   .restarts = 1,
                                   .processes = 3},
                                  {.ns = "ml", .job = "silent", .processes = 2}};
  metrics.SetGauges({.figures = [&] { return jobs; }});
  const std::string of = R"({job="mnist",namespace="ml"} )";
  for (const char* line :
       {"step", "steps_wanted", "checkpoint_step", "loss", "accuracy", "examples_per_second"}) {
    EXPECT_THAT(Lines(metrics, "meshtrain_job_" + std::string(line) + "{"), ::testing::SizeIs(1))
        << line;
  }
  // Of one that has told nothing yet, what the operator knows by itself.
  for (const char* line : {"restarts", "processes"}) {
    EXPECT_THAT(Lines(metrics, "meshtrain_job_" + std::string(line) + "{"), ::testing::SizeIs(2))
        << line;
  }
  EXPECT_THAT(metrics.Text(), HasSubstr("meshtrain_job_loss" + of + "0.25\n"));
  EXPECT_THAT(metrics.Text(), HasSubstr("meshtrain_job_step" + of + "120\n"));
  // Ended: it trains no examples, and its last loss is still told.
  jobs[0].runs = false;
  EXPECT_THAT(metrics.Text(), HasSubstr("meshtrain_job_loss" + of));
  EXPECT_THAT(metrics.Text(), Not(HasSubstr("meshtrain_job_examples_per_second" + of)));
  jobs.clear();
  EXPECT_THAT(metrics.Text(), Not(HasSubstr("job=\"mnist\"")));
}

TEST(MetricsTest, FiguresAreOfNoMoreJobsThanTheLimitAndOfThoseThatRunFirst) {
  Metrics metrics("api:6443");
  std::vector<JobFigures> jobs;
  for (size_t i = 0; i < 3 * Metrics::kMostShown; ++i) {
    jobs.push_back({.ns = "ml",
                    .job = "job-" + std::to_string(i),
                    .runs = i == 7,
                    .step = 1,
                    .advanced = TimePoint(std::chrono::seconds(1000 + i))});
  }
  metrics.SetGauges({.figures = [&] { return jobs; }});
  EXPECT_THAT(Lines(metrics, "meshtrain_job_step{"), ::testing::SizeIs(Metrics::kMostShown));
  EXPECT_THAT(Lines(metrics, "meshtrain_job_step{job=\"job-7\""), ::testing::SizeIs(1));
  EXPECT_THAT(Lines(metrics, "meshtrain_job_step{job=\"job-1499\""), ::testing::SizeIs(1));
  EXPECT_THAT(Lines(metrics, "meshtrain_job_step{job=\"job-8\""), ::testing::IsEmpty());
}

TEST(MetricsTest, APhaseLastsFromItsOwnBeginning) {
  Metrics metrics("api:6443");
  api::TrainingJob job;
  job.metadata.namespace_name = "ml";
  const auto at = [](int seconds) { return TimePoint(std::chrono::seconds(seconds)); };
  job.metadata.created = at(1000);
  const auto set = [&](api::JobStatus& status, ConditionType type, bool value, int seconds) {
    status.conditions[type] = {.status = value, .last_transition = at(seconds)};
  };
  api::JobStatus running;
  running.phase = "Running";
  set(running, ConditionType::kCreated, true, 1000);
  set(running, ConditionType::kWaiting, false, 1100);
  set(running, ConditionType::kRunning, true, 1100);
  // Neither a straggler that comes and goes nor a wait begins the phase anew.
  set(running, ConditionType::kStraggling, false, 1300);
  set(running, ConditionType::kWaiting, true, 1350);
  api::JobStatus restarting = running;
  restarting.phase = "Restarting";
  set(restarting, ConditionType::kRunning, false, 1400);
  set(restarting, ConditionType::kRestarting, true, 1400);
  metrics.OnStatus(job, running, restarting);
  EXPECT_THAT(metrics.Text(),
              HasSubstr("meshtrain_job_phase_seconds_sum{namespace=\"ml\",phase=\"Running\"} 300"));

  set(restarting, ConditionType::kWaiting, false, 1450);
  set(restarting, ConditionType::kWaiting, true, 1470);
  api::JobStatus again = restarting;
  again.phase = "Running";
  set(again, ConditionType::kRestarting, false, 1500);
  set(again, ConditionType::kRunning, true, 1500);
  metrics.OnStatus(job, restarting, again);
  EXPECT_THAT(
      metrics.Text(),
      HasSubstr("meshtrain_job_phase_seconds_sum{namespace=\"ml\",phase=\"Restarting\"} 100"));
}

TEST(MetricsTest, CountsTheReasonsOfConditions) {
  Metrics metrics("api:6443");
  api::TrainingJob job;
  job.metadata.namespace_name = "ml";
  const auto waiting = [](const char* reason) {
    api::JobStatus status;
    status.conditions[ConditionType::kWaiting] = {.status = true, .reason = reason};
    return status;
  };
  metrics.OnStatus(job, {}, waiting("ImagePull"));
  metrics.OnStatus(job, waiting("ImagePull"), waiting("ImagePull"));
  metrics.OnStatus(job, waiting("ImagePull"), waiting("CrashLoop"));
  metrics.OnStatus(job, waiting("CrashLoop"), waiting("ImagePull"));
  metrics.OnStatus(job, {}, waiting("a word of somebody else's"));
  std::vector<std::string> counted = Lines(metrics, "meshtrain_job_reasons_total");
  // What a job may wait for stands at 0 first, so that Prometheus sees the first wait as a rise.
  const auto zeros =
      std::erase_if(counted, [](const std::string& line) { return line.ends_with("} 0"); });
  EXPECT_EQ(zeros, 15u);
  EXPECT_THAT(counted, ::testing::UnorderedElementsAre(
                           "meshtrain_job_reasons_total{condition=\"Waiting\",namespace=\"ml\","
                           "reason=\"ImagePull\"} 2",
                           "meshtrain_job_reasons_total{condition=\"Waiting\",namespace=\"ml\","
                           "reason=\"CrashLoop\"} 1"));
  EXPECT_THAT(Lines(metrics, "meshtrain_jobs_condition_total{condition=\"Waiting\""),
              ::testing::ElementsAre(::testing::EndsWith(" 2")));
}

TEST(MetricsTest, EverySeriesOfOursStandsInTheDocs) {
  Metrics metrics("api:6443");
  api::TrainingJob job;
  job.metadata.namespace_name = "ml";
  job.metadata.created = TimePoint(std::chrono::seconds(1000));
  api::JobStatus status;
  status.phase = "Pending";
  status.conditions[ConditionType::kWaiting] = {.status = true, .reason = "ImagePull"};
  metrics.OnStatus(job, {}, status);
  metrics.SetGauges(
      {.jobs_by_phase =
           [] {
             return std::map<std::pair<std::string, std::string>, int64_t>{{{"ml", "Pending"}, 1}};
           },
       .rank_steps =
           [] {
             return std::vector<RankSteps>{{.ns = "ml",
                                            .job = "mnist",
                                            .slowest = "worker-3",
                                            .seconds = 2,
                                            .median = 0.5,
                                            .straggles = true}};
           }});
  const auto docs = ReadFile(MT_SOURCE_DIR "/docs/operator.md");
  ASSERT_TRUE(docs.ok()) << docs.status().ToString();
  std::set<std::string> names;
  for (const std::string& line : Lines(metrics, "# TYPE ")) {
    std::istringstream words(line);
    std::string mark, type, name, kind;
    words >> mark >> type >> name >> kind;
    if (name.starts_with("meshtrain_")) names.insert("| `" + name + "` | " + kind + " |");
  }
  EXPECT_THAT(names, ::testing::SizeIs(::testing::Ge(9u)));
  for (const std::string& row : names) EXPECT_THAT(*docs, HasSubstr(row));
}

}  // namespace
}  // namespace meshtrain::control
