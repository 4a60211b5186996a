#include "runtime/trainer/job/choices.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "tests/support/temp_folder.h"

namespace meshtrain::trainer {
namespace {

TEST(CheckpointFolderTest, CheckpointsOfTheOutputAreTheJobsOwnHoweverTheyAreNamed) {
  const testing_folder::TempFolder folder;
  const std::string output = folder.path() + "/out";
  std::filesystem::create_directory_symlink(output, folder.path() + "/link");
  const auto of = [&](const std::string& named, const std::string& at = "",
                      cluster::TaskId task = {cluster::Role::kWorker, 1}) {
    JobConfig config{.output = output + at};
    config.job.tf_config = cluster::TfConfig{.cluster = {}, .task = task};
    manifest::Manifest manifest;
    manifest.checkpoint.path = named;
    return CheckpointFolderOf(config, manifest);
  };
  EXPECT_EQ(of("").path, output + "/checkpoints");
  EXPECT_TRUE(of("").own);
  EXPECT_FALSE(of("").shared);
  for (const bool there : {false, true}) {
    if (there) std::filesystem::create_directories(output + "/checkpoints");
    const std::string own = output + "/checkpoints";
    const std::string relative = std::filesystem::relative(own).string();
    for (const std::string& named : {own, own + "/", output + "/./x/../checkpoints", relative}) {
      EXPECT_TRUE(of(named).own) << named;
      EXPECT_TRUE(of(named).shared);
      EXPECT_EQ(of(named).path, named);
      // Of replicas beside the leader.
      EXPECT_TRUE(of(named, "/worker-1").own) << named;
      EXPECT_TRUE(of(named, "/evaluator-0/", {cluster::Role::kEvaluator, 0}).own) << named;
    }
    for (const std::string& named : {output, own + "/more", folder.path() + "/checkpoints"}) {
      EXPECT_FALSE(of(named).own) << named;
      EXPECT_TRUE(of(named).shared);
    }
    EXPECT_FALSE(of(own, "/other").own);
    EXPECT_FALSE(of(own, "/chief-0", {cluster::Role::kChief, 0}).own);
    EXPECT_FALSE(of(own, "/worker-0", {cluster::Role::kWorker, 0}).own);
    EXPECT_FALSE(of(own, "/worker-1", {cluster::Role::kWorker, 2}).own);
  }
  EXPECT_TRUE(of(folder.path() + "/link/checkpoints").own);
}

}  // namespace
}  // namespace meshtrain::trainer
