#include "runtime/checkpoint/async.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "runtime/checkpoint/restore.h"
#include "tests/runtime/checkpoint/checkpoint_testing.h"

namespace meshtrain::checkpoint {
namespace {

Snapshot Small(int64_t step) {
  return Whole(step, {{"kernel", Counting(Type("f32[100,3]"), static_cast<double>(step))}});
}

TEST(AsyncSaverTest, SavesInOrderAndReports) {
  for (const bool background : {false, true}) {
    const TempFolder folder;
    auto saver = AsyncSaver::Create(folder.At("deep/er"), {.keep = 2}, background);
    ASSERT_TRUE(saver.ok());
    EXPECT_FALSE((*saver)->last().has_value());
    for (int64_t step = 1; step <= 5; ++step) ASSERT_EQ((*saver)->Save(Small(step)), OkStatus());
    ASSERT_EQ((*saver)->Close(), OkStatus());
    EXPECT_EQ((*saver)->last()->step, 5);
    EXPECT_EQ((*saver)->last()->path, folder.At("deep/er/ckpt-00000005"));
    EXPECT_EQ(FindLatest(folder.At("deep/er"))->step, 5);
    EXPECT_EQ(ListCheckpoints(folder.At("deep/er"))->size(), 2u);
    EXPECT_EQ((*saver)->Save(Small(6)).code(), StatusCode::kFailedPrecondition);
  }
}

TEST(AsyncSaverTest, AFolderThatVanishesIsNotMadeAgain) {
  const TempFolder folder;
  auto saver = AsyncSaver::Create(folder.At("deep/er"), {});
  ASSERT_TRUE(saver.ok());
  ASSERT_EQ((*saver)->Save(Small(1)), OkStatus());
  ASSERT_EQ((*saver)->Wait(), OkStatus());
  std::filesystem::remove_all(folder.At("deep"));
  ASSERT_EQ((*saver)->Save(Small(2)), OkStatus());
  EXPECT_EQ((*saver)->Wait(),
            NotFound("saving step 2: " + folder.At("deep/er") +
                     ": expected the folder of checkpoints to stay while the run writes into it, "
                     "got: it was removed or moved"));
  EXPECT_FALSE(std::filesystem::exists(folder.At("deep")));
}

TEST(AsyncSaverTest, AnErrorSurfacesAtTheNextCallOnce) {
  const TempFolder folder;
  auto saver = AsyncSaver::Create(folder.path(), {});
  ASSERT_TRUE(saver.ok());
  Spill(folder.At("ckpt-00000001"), "a file where the folder should be");
  ASSERT_EQ((*saver)->Save(Small(1)), OkStatus());
  const Status error = (*saver)->Save(Small(2));
  EXPECT_THAT(error.message(),
              ::testing::HasSubstr("saving step 1: " + folder.At("ckpt-00000001")));
  EXPECT_EQ((*saver)->Save(Small(2)), OkStatus());
  EXPECT_EQ((*saver)->Wait(), OkStatus());
  EXPECT_EQ((*saver)->last()->step, 2);
  EXPECT_EQ((*saver)->failures(), 1);
}

TEST(AsyncSaverTest, ValuesThatAreNotFiniteAreNotSaved) {
  for (const bool background : {false, true}) {
    const TempFolder folder;
    auto saver = AsyncSaver::Create(folder.path(), {}, background);
    ASSERT_TRUE(saver.ok());
    ASSERT_EQ((*saver)->Save(Small(1)), OkStatus());
    Snapshot bad = Small(2);
    bad.variables[0].blocks[0].value.mutable_values<float>()[7] =
        std::numeric_limits<float>::infinity();
    const Status refused = (*saver)->Save(std::move(bad));  // at once, not at the next call
    EXPECT_EQ(refused.code(), StatusCode::kInternal);
    EXPECT_EQ(refused.message(),
              "step 2 is not saved: variable `kernel`: expected finite values, got: 1 of 300 that "
              "are not");
    EXPECT_EQ((*saver)->Wait(), OkStatus());
    EXPECT_EQ((*saver)->failures(), 1);
    EXPECT_EQ(FindLatest(folder.path())->step, 1);
    EXPECT_TRUE(ListIncomplete(folder.path()).empty());
  }
}

// Checkpoints of another run, whose steps are higher, go when the first of this one is complete;
// what this one saves there later stays.
TEST(AsyncSaverTest, WhatItReplacesGoesWithTheFirstThatSucceeds) {
  const TempFolder folder;
  for (const int64_t step : {10, 20, 30}) ASSERT_TRUE(Save(folder.path(), Small(step)).ok());
  auto saver = AsyncSaver::Create(folder.path(), {.keep = 1});
  ASSERT_TRUE(saver.ok());
  (*saver)->set_replaces(
      {folder.At("ckpt-00000010"), folder.At("ckpt-00000020"), folder.At("ckpt-00000030")});
  Spill(folder.At("ckpt-00000005"), "a file where the folder should be");
  ASSERT_EQ((*saver)->Save(Small(5)), OkStatus());
  EXPECT_FALSE((*saver)->Wait().ok());
  EXPECT_EQ(ListCheckpoints(folder.path())->size(), 3u);
  ASSERT_EQ((*saver)->Save(Small(10)), OkStatus());
  ASSERT_EQ((*saver)->Wait(), OkStatus());
  EXPECT_EQ(ListCheckpoints(folder.path())->size(), 1u);
  EXPECT_EQ(FindLatest(folder.path())->step, 10);
  for (const int64_t step : {20, 30}) {
    ASSERT_EQ((*saver)->Save(Small(step)), OkStatus());
    ASSERT_EQ((*saver)->Wait(), OkStatus());
    EXPECT_EQ(FindLatest(folder.path())->step, step);
  }
}

TEST(AsyncSaverTest, WhatItReplacesMayBeSaidBetweenTwoSaves) {
  const TempFolder folder, others;
  ASSERT_TRUE(Save(others.path(), Small(7)).ok());
  auto saver = AsyncSaver::Create(folder.path(), {});
  ASSERT_TRUE(saver.ok());
  ASSERT_EQ((*saver)->Save(Small(1)), OkStatus());
  ASSERT_EQ((*saver)->Wait(), OkStatus());
  (*saver)->set_replaces({others.At("ckpt-00000007")});
  ASSERT_EQ((*saver)->Save(Small(2)), OkStatus());
  ASSERT_EQ((*saver)->Wait(), OkStatus());
  EXPECT_TRUE(ListCheckpoints(others.path())->empty());
}

TEST(AsyncSaverTest, WhatWasHandedOverIsWrittenEvenWithoutClose) {
  const TempFolder folder;
  {
    auto saver = AsyncSaver::Create(folder.path(), {});
    ASSERT_TRUE(saver.ok());
    ASSERT_EQ((*saver)->Save(Small(1)), OkStatus());
  }
  EXPECT_EQ(FindLatest(folder.path())->step, 1);
}

}  // namespace
}  // namespace meshtrain::checkpoint
