#include "worker/resume.h"

#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <iterator>
#include <limits>
#include <memory>

#include "runtime/checkpoint/save.h"
#include "tests/runtime/distribute/parameter/temp_folder.h"

namespace meshtrain::worker {
namespace {

using testing_folder::TempFolder;

TEST(ResumeTest, APositionComesBackBitForBit) {
  const train::Position position{
      .step = 12, .epoch = 1, .batch = 4, .sums = {{"accuracy", 0.1 + 0.2}, {"loss", 1.0 / 3}}};
  checkpoint::Index index{.step = 12};
  index.metadata = PositionToMetadata(position);
  const auto back = PositionOf(index, "x");
  ASSERT_TRUE(back.ok()) << back.status().ToString();
  EXPECT_EQ(back->step, 12);
  EXPECT_EQ(back->epoch, 1);
  EXPECT_EQ(back->batch, 4);
  EXPECT_EQ(back->sums, position.sums);
  index.metadata["batch"] = "four";
  EXPECT_EQ(PositionOf(index, "x").status(), DataLoss("x: `batch`: expected a number, got: four"));
}

TEST(ResumeTest, TheFinishedEpochsComeBack) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const train::Position position{
      .step = 8,
      .epoch = 2,
      .history =
          std::make_shared<const std::vector<train::EpochInfo>>(std::vector<train::EpochInfo>{
              {.epoch = 1,
               .step = 4,
               .train = {{"loss", 1.0 / 3}, {"accuracy", 0.5}},
               .validation = {{"loss", nan}}},
              {.epoch = 2, .step = 8, .train = {{"loss", 0.25}, {"accuracy", 1}}}})};
  checkpoint::Index index{.step = 8};
  index.metadata = PositionToMetadata(position);
  const auto back = PositionOf(index, "x");
  ASSERT_TRUE(back.ok()) << back.status().ToString();
  ASSERT_NE(back->history, nullptr);
  ASSERT_EQ(back->history->size(), 2u);
  const train::EpochInfo& first = back->history->front();
  EXPECT_EQ(first.epoch, 1);
  EXPECT_EQ(first.step, 4);
  EXPECT_EQ(first.train, position.history->front().train);  // in their order, bit for bit
  ASSERT_EQ(first.validation.size(), 1u);
  EXPECT_TRUE(std::isnan(first.validation[0].second));
  EXPECT_EQ(back->history->back().train, position.history->back().train);
  EXPECT_TRUE(back->history->back().validation.empty());
  for (const char* bad : {"", "{", "7", "[7]", "[{\"epoch\": \"one\"}]"}) {
    index.metadata["history"] = bad;
    const Status status = PositionOf(index, "x").status();
    EXPECT_EQ(status.code(), StatusCode::kDataLoss) << bad;
    EXPECT_TRUE(status.message().starts_with("x: `history`: expected a list of epochs, got: "));
  }
}

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
