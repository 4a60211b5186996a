#include "worker/resume.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <iterator>

#include "runtime/checkpoint/save.h"
#include "tests/runtime/distribute/parameter/temp_folder.h"

namespace meshtrain::worker {
namespace {

using testing_folder::TempFolder;

TEST(ResumeTest, TheEndIsALastEpochsLastBatch) {
  EXPECT_FALSE(IsEnd({.step = 19, .epoch = 1, .batch = 9}, 2, 10));
  EXPECT_TRUE(IsEnd({.step = 20, .epoch = 1, .batch = 10}, 2, 10));
  EXPECT_TRUE(IsEnd({.step = 20, .epoch = 2, .batch = 0}, 2, 10));
  EXPECT_FALSE(IsEnd({.step = 20, .epoch = 2, .batch = 0}, 3, 10));
}

void SaveStep(const std::string& folder, int64_t step) {
  const mesh::Tensor value = mesh::Tensor::Scalar(1.0f);
  checkpoint::Snapshot snapshot{.step = step};
  snapshot.variables.push_back({"w", value.type(), "", {{{}, value}}});
  ASSERT_TRUE(checkpoint::Save(folder, snapshot).ok());
}

TEST(ResumeTest, WhatMayNotBeResumedIsRemovedOrRefused) {
  const TempFolder folder;
  for (const int64_t step : {10, 20}) SaveStep(folder.path(), step);
  const auto all = ResumeCandidates(folder.path(), false, true);
  ASSERT_TRUE(all.ok());
  ASSERT_EQ(all->size(), 2u);
  EXPECT_EQ((*all)[0].step, 20);
  const auto refused = ResumeCandidates(folder.path(), false, false);
  EXPECT_EQ(refused.status().code(), StatusCode::kFailedPrecondition);
  const auto none = ResumeCandidates(folder.path(), true, false);
  ASSERT_TRUE(none.ok());
  EXPECT_TRUE(none->empty());
  EXPECT_TRUE(checkpoint::ListCheckpoints(folder.path())->empty());
}

TEST(ResumeTest, ARemovalThatEndsEarlyLeavesTheNewestWhole) {
  const TempFolder folder;
  for (const int64_t step : {10, 20, 30}) SaveStep(folder.path(), step);
  // An index that cannot be unlinked.
  const std::string older = checkpoint::CheckpointFolder(folder.path(), 20);
  const std::string index = older + "/" + std::string(checkpoint::kIndexName);
  ASSERT_TRUE(std::filesystem::remove(index));
  ASSERT_TRUE(std::filesystem::create_directory(index));
  const auto count = [&older] {
    return std::distance(std::filesystem::directory_iterator(older), {});
  };
  const auto files = count();
  const Status removed = RemoveCheckpoints(*checkpoint::ListCheckpoints(folder.path()));
  EXPECT_TRUE(removed.message().starts_with(index + ": cannot remove")) << removed.ToString();
  // The oldest is gone, of the next one nothing, and of the newest nothing.
  EXPECT_FALSE(std::filesystem::exists(checkpoint::CheckpointFolder(folder.path(), 10)));
  EXPECT_EQ(count(), files);
  const auto newest = checkpoint::Checkpoint::Open(checkpoint::CheckpointFolder(folder.path(), 30));
  ASSERT_TRUE(newest.ok()) << newest.status().ToString();
  EXPECT_TRUE((*newest)->Verify().ok());
}

}  // namespace
}  // namespace meshtrain::worker
