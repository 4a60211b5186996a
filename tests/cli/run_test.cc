// What `meshtrain run` hands to the runner.
#include "cli/run.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "operator/local/run_folder.h"
#include "tests/cli/manifests.h"

namespace meshtrain::cli {
namespace {

using ::testing::Contains;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Key;
using ::testing::Not;
using ::testing::Pair;

// In a folder of its own, where `runs` would be made.
class PrepareRunTest : public ManifestTest {
 protected:
  void SetUp() override { std::filesystem::current_path(folder_.path()); }
  void TearDown() override {
    std::filesystem::current_path(before_);
    ::unsetenv("MT_NOT_FOR_PROCESSES");
    ::unsetenv("TF_CONFIG");
  }

  // A folder with what a run leaves there.
  void Leave(const std::string& run, const std::string& manifest, const std::string& status) {
    std::filesystem::create_directories(run);
    std::ofstream(run + "/" + std::string(local::kManifestName)) << manifest;
    if (!status.empty()) std::ofstream(run + "/" + std::string(local::kStatusName)) << status;
  }

  std::filesystem::path before_ = std::filesystem::current_path();
};

TEST_F(PrepareRunTest, FlagsBecomeTheRunnersOptions) {
  const auto run = PrepareRun({.file = Write("job.yaml", JobText()),
                               .output = "out",
                               .metrics_address = "127.0.0.1:0",
                               .isolated = true,
                               .threads = 3});
  ASSERT_TRUE(run.ok()) << run.status().message();
  const local::LaunchOptions& launch = run->options.launch;
  EXPECT_EQ(launch.output, "out");
  EXPECT_EQ(launch.metrics_address, "127.0.0.1:0");
  EXPECT_TRUE(launch.isolated);
  EXPECT_EQ(launch.threads, 3);
  EXPECT_GE(launch.cores, 1);
  EXPECT_GT(launch.memory, 0);
  EXPECT_THAT(launch.worker, EndsWith("/meshtrain-worker"));
  EXPECT_EQ(run->options.manifest, JobText());
  EXPECT_EQ(run->job.metadata.name, "digits");
  EXPECT_FALSE(run->goes_on);
  EXPECT_FALSE(std::filesystem::exists("out")) << "nothing is made yet";
}

TEST_F(PrepareRunTest, ProcessesGetWhatAnImageWouldGiveThemAndNothingElse) {
  ::setenv("MT_NOT_FOR_PROCESSES", "1", 1);
  ::setenv("TF_CONFIG", "{}", 1);
  ::setenv("MESHTRAIN_INSTRUCTION_SET", "v3", 1);
  const auto run = PrepareRun({.file = Write("job.yaml", JobText()), .output = "out"});
  ASSERT_TRUE(run.ok()) << run.status().message();
  const auto& environment = run->options.launch.environment;
  EXPECT_THAT(environment, Contains(Pair("PATH", std::getenv("PATH"))));
  EXPECT_THAT(environment, Not(Contains(Key("MT_NOT_FOR_PROCESSES"))));
  EXPECT_THAT(environment, Not(Contains(Key("TF_CONFIG"))));
  EXPECT_THAT(environment, Contains(Pair("MESHTRAIN_INSTRUCTION_SET", "v3")))
      << "as on a lesser host";
}

TEST_F(PrepareRunTest, WithoutAnOutputTheFolderIsNamedAfterTheJob) {
  const std::string file = Write("job.yaml", JobText());
  auto run = PrepareRun({.file = file});
  ASSERT_TRUE(run.ok()) << run.status().message();
  EXPECT_EQ(run->options.launch.output, "runs/digits");
  EXPECT_FALSE(std::filesystem::exists("runs"));

  // Another manifest's run stands there.
  Leave("runs/digits", "seed: 9", "");
  run = PrepareRun({.file = file});
  ASSERT_TRUE(run.ok()) << run.status().message();
  EXPECT_EQ(run->options.launch.output, "runs/digits-2");
  EXPECT_FALSE(run->goes_on);

  // An unfinished one of this manifest.
  Leave("runs/digits-2", JobText(), "");
  run = PrepareRun({.file = file});
  ASSERT_TRUE(run.ok()) << run.status().message();
  EXPECT_EQ(run->options.launch.output, "runs/digits-2");
  EXPECT_TRUE(run->goes_on);

  // A folder that was asked for is taken as it is.
  run = PrepareRun({.file = file, .output = "runs/digits-2"});
  ASSERT_TRUE(run.ok()) << run.status().message();
  EXPECT_FALSE(run->goes_on);
}

TEST_F(PrepareRunTest, AMistakeThatShowsWithTheDataIsToldBeforeAnythingStarts) {
  const auto run = PrepareRun(
      {.file =
           Write("job.yaml", Replaced(JobText(), "- flatten", "- dense: {name: flat, units: 3}")),
       .output = "out"});
  ASSERT_FALSE(run.ok());
  EXPECT_EQ(run.status().origin(), Origin::kManifest);
  EXPECT_THAT(run.status().message(), HasSubstr("job.yaml:14:5: program.model: "));
  EXPECT_FALSE(std::filesystem::exists("out"));
}

TEST_F(PrepareRunTest, DataThatIsNotHereIsAnErrorOfTheInput) {
  const auto run =
      PrepareRun({.file = Write("job.yaml", Replaced(JobText(), "digits5120-images", "away"))});
  ASSERT_FALSE(run.ok());
  EXPECT_EQ(run.status().origin(), Origin::kInput);
  EXPECT_EQ(run.status().code(), StatusCode::kNotFound);
}

TEST_F(PrepareRunTest, AFolderThatCannotBeReadIsOfTheOutput) {
  std::ofstream("runs") << "in the way";
  const auto run = PrepareRun({.file = Write("job.yaml", JobText())});
  ASSERT_FALSE(run.ok());
  EXPECT_EQ(run.status().origin(), Origin::kOutput);
}

TEST(MetricsAddressTest, TakesHostAndPortOrNone) {
  for (const char* good : {"", "none", ":0", "127.0.0.1:65535", "[::1]:80", "host:8080"}) {
    EXPECT_TRUE(IsMetricsAddress(good)) << good;
  }
  for (const char* bad : {"None", "host", "host:", "host:x", "host:-1", "host:65536", "8080"}) {
    EXPECT_FALSE(IsMetricsAddress(bad)) << bad;
  }
}

}  // namespace
}  // namespace meshtrain::cli
