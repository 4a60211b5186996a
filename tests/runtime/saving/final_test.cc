#include "runtime/saving/final.h"

#include <gtest/gtest.h>

#include <string>

#include "runtime/checkpoint/restore.h"
#include "runtime/checkpoint/save.h"
#include "runtime/saving/position.h"
#include "tests/support/temp_folder.h"

namespace meshtrain::saving {
namespace {

checkpoint::Index At(int64_t epoch, int64_t batch) {
  checkpoint::Index index;
  index.step = 10 * epoch + batch;
  index.metadata = {{"epoch", std::to_string(epoch)}, {"batch", std::to_string(batch)}};
  return index;
}
checkpoint::Index Final(int64_t epoch, int64_t batch, bool early = false) {
  checkpoint::Index index = At(epoch, batch);
  index.metadata[std::string(kFinalKey)] = "true";
  if (early) index.metadata[std::string(kEndedEarlyKey)] = "true";
  return index;
}

TEST(FinalTest, FinishedIsAFinalCheckpointBehindAllThatIsAskedFor) {
  const auto finished = [](const checkpoint::Index& index, int64_t epochs) {
    return IsFinished(index, epochs, /*may_end_early=*/false);
  };
  EXPECT_FALSE(finished(At(3, 0), 3)) << "a job that is not done, wherever it stands";
  EXPECT_FALSE(finished(At(2, 10), 3));
  EXPECT_TRUE(finished(Final(3, 0), 3));
  EXPECT_TRUE(finished(Final(3, 0), 2));
  EXPECT_FALSE(finished(Final(3, 0), 4));
  // Saved by its step, before the validation of its epoch.
  EXPECT_TRUE(finished(Final(2, 10), 3));
  EXPECT_FALSE(finished(Final(2, 10), 4));
  checkpoint::Index damaged = Final(3, 0);
  damaged.metadata["epoch"] = "-1";
  EXPECT_FALSE(finished(damaged, 3)) << "who loads it says what is wrong";
}

TEST(FinalTest, WhatWasEndedEarlyIsFinishedForAJobThatMayBe) {
  EXPECT_TRUE(IsFinished(Final(2, 0, /*early=*/true), 9, /*may_end_early=*/true));
  EXPECT_FALSE(IsFinished(Final(2, 0, /*early=*/true), 9, /*may_end_early=*/false));
  EXPECT_FALSE(IsFinished(Final(2, 0), 9, /*may_end_early=*/true)) << "it had fewer epochs";
}

TEST(FinalTest, TheMarkSaysHowTheJobEnded) {
  const testing_folder::TempFolder folder;
  const mesh::Tensor value = mesh::Tensor::Scalar(1.0f);
  checkpoint::Snapshot snapshot{.step = 20, .metadata = {{"epoch", "2"}, {"batch", "0"}}};
  snapshot.variables.push_back({"w", value.type(), "", {{{}, value}}});
  const std::string path = checkpoint::Save(folder.path(), snapshot).value();
  const auto index = [&] { return checkpoint::Checkpoint::Open(path).value()->index(); };
  EXPECT_FALSE(IsFinal(index()));
  for (const bool early : {true, false, true}) {
    ASSERT_EQ(MarkFinal(path, early), OkStatus());
    EXPECT_TRUE(IsFinal(index()));
    EXPECT_EQ(IsFinished(index(), 9, /*may_end_early=*/true), early);
    EXPECT_EQ(PositionOf(index(), path)->epoch, 2);
  }
}

}  // namespace
}  // namespace meshtrain::saving
