#include "operator/local/run_folder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <optional>

#include "operator/local/folder_lock.h"
#include "runtime/base/file.h"
#include "tests/support/temp_folder.h"

namespace meshtrain::local {
namespace {

using ::testing::HasSubstr;

constexpr char kSucceeded[] =
    R"({"conditions":[{"type":"Running","status":"False"},{"type":"Succeeded","status":"True"}]})";
constexpr char kFailed[] = R"({"conditions":[{"type":"Failed","status":"True"}]})";
constexpr char kRunning[] = R"({"conditions":[{"type":"Succeeded","status":"False"}]})";

class RunFolderTest : public ::testing::Test {
 protected:
  // As a run leaves it.
  void Leave(const std::string& folder, const std::string& manifest, const std::string& status) {
    const std::string path = base_.path() + "/" + folder;
    ASSERT_TRUE(MakeDirectories(path).ok());
    ASSERT_TRUE(WriteFileAtomically(path + "/" + std::string(kManifestName), manifest).ok());
    ASSERT_TRUE(WriteFileAtomically(path + "/" + std::string(kStatusName), status).ok());
  }
  // "mlp-2", and "mlp-2 again" where a run is gone on with.
  std::string Choose(const std::string& manifest = "ours") const {
    const auto chosen = ChooseRunFolder(base_.path(), "mlp", manifest, Duration(0));
    if (!chosen.ok()) return chosen.status().ToString();
    EXPECT_TRUE(chosen->path.starts_with(base_.path() + "/"));
    return chosen->path.substr(base_.path().size() + 1) + (chosen->unfinished ? " again" : "");
  }
  const testing_folder::TempFolder base_;
};

TEST_F(RunFolderTest, TheFirstThatIsFree) {
  EXPECT_EQ(ChooseRunFolder(base_.path() + "/none", "mlp", "ours")->path,
            base_.path() + "/none/mlp");
  EXPECT_EQ(Choose(), "mlp");
  Leave("mlp", "theirs", kRunning);
  EXPECT_EQ(Choose(), "mlp-2");
  Leave("mlp-2", "ours", kSucceeded);
  EXPECT_EQ(Choose(), "mlp-3");
  Leave("mlp-x", "ours", kRunning);
  EXPECT_EQ(Choose(), "mlp-3");
}

TEST_F(RunFolderTest, AnUnfinishedRunOfTheSameManifestIsGoneOnWith) {
  for (const char* status : {kRunning, kFailed, "", "{", "[]", R"({"conditions":[7]})",
                             R"({"conditions":[{"type":5},{"type":"Succeeded","status":1}]})",
                             R"({"conditions":"Succeeded"})"}) {
    Leave("mlp", "ours", status);
    EXPECT_EQ(Choose(), "mlp again") << status;
  }
  EXPECT_EQ(Choose("ours, edited"), "mlp-2");
  // Not one that a later run of the same manifest has left behind.
  Leave("mlp-2", "ours", kSucceeded);
  EXPECT_EQ(Choose(), "mlp-3");
  Leave("mlp-3", "ours", kRunning);
  Leave("mlp-4", "theirs", kRunning);
  EXPECT_EQ(Choose(), "mlp-3 again");
}

TEST_F(RunFolderTest, OneThatIsWrittenToIsLeftAlone) {
  Leave("mlp", "ours", kRunning);
  {
    const auto held = FolderLock::Take(base_.path() + "/mlp");
    ASSERT_TRUE(held.ok());
    EXPECT_EQ(Choose(), "mlp-2");
  }
  EXPECT_EQ(Choose(), "mlp again");
}

TEST_F(RunFolderTest, ABaseThatIsNoFolderIsSaid) {
  ASSERT_TRUE(WriteFileAtomically(base_.path() + "/file", "").ok());
  const auto chosen = ChooseRunFolder(base_.path() + "/file", "mlp", "ours");
  ASSERT_FALSE(chosen.ok());
  EXPECT_NE(chosen.status().message().find("/file"), std::string::npos);
}

TEST_F(RunFolderTest, TwoRunsDoNotSaveIntoOneFolder) {
  api::TrainingJob job;
  job.spec.program = "{}";
  job.spec.checkpoint.emplace();
  job.spec.checkpoint->path = base_.path() + "/saved";
  const auto first = TakeFolders(job, base_.path() + "/one");
  ASSERT_TRUE(first.ok()) << first.status().ToString();
  job.spec.checkpoint->path = base_.path() + "/one/../saved/";
  const Status second = TakeFolders(job, base_.path() + "/two").status();
  EXPECT_EQ(second.code(), StatusCode::kAlreadyExists);
  EXPECT_THAT(second.message(), HasSubstr("/saved/: expected a folder that no run writes to"));
  job.spec.checkpoint->path = base_.path() + "/three";
  EXPECT_EQ(TakeFolders(job, base_.path() + "/three")->size(), 1u);
}

TEST_F(RunFolderTest, WhatAnotherContainerCallsItsPathIsNotMadeHere) {
  api::TrainingJob job;
  job.spec.checkpoint.emplace();
  job.spec.checkpoint->path = base_.path() + "/saved";
  EXPECT_EQ(TakeFolders(job, base_.path() + "/one")->size(), 1u);
  EXPECT_FALSE(std::filesystem::exists(job.spec.checkpoint->path));
}

}  // namespace
}  // namespace meshtrain::local
