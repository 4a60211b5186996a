#include "worker/resume.h"

#include <gtest/gtest.h>

#include <filesystem>

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

TEST(ResumeTest, TheEndIsALastEpochsLastBatch) {
  EXPECT_FALSE(IsEnd({.step = 19, .epoch = 1, .batch = 9}, 2, 10));
  EXPECT_TRUE(IsEnd({.step = 20, .epoch = 1, .batch = 10}, 2, 10));
  EXPECT_TRUE(IsEnd({.step = 20, .epoch = 2, .batch = 0}, 2, 10));
  EXPECT_FALSE(IsEnd({.step = 20, .epoch = 2, .batch = 0}, 3, 10));
}

TEST(ResumeTest, WhatMayNotBeResumedIsRemovedOrRefused) {
  const TempFolder folder;
  for (const int64_t step : {10, 20}) {
    const mesh::Tensor value = mesh::Tensor::Scalar(1.0f);
    checkpoint::Snapshot snapshot{.step = step};
    snapshot.variables.push_back({"w", value.type(), "", {{{}, value}}});
    ASSERT_TRUE(checkpoint::Save(folder.path(), snapshot).ok());
  }
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

}  // namespace
}  // namespace meshtrain::worker
