#include "runtime/saving/resume.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <optional>
#include <vector>

#include "runtime/checkpoint/save.h"
#include "runtime/saving/final.h"
#include "tests/support/temp_folder.h"

namespace meshtrain::saving {
namespace {

using testing_folder::TempFolder;

TEST(ResumeTest, TheEndIsALastEpochsLastBatch) {
  EXPECT_FALSE(IsEnd({.step = 19, .epoch = 1, .batch = 9}, 2, 10));
  EXPECT_TRUE(IsEnd({.step = 20, .epoch = 1, .batch = 10}, 2, 10));
  EXPECT_TRUE(IsEnd({.step = 20, .epoch = 2, .batch = 0}, 2, 10));
  EXPECT_FALSE(IsEnd({.step = 20, .epoch = 2, .batch = 0}, 3, 10));
}

// Of run `run`; "" is of a version that did not number them. `final`: the last one of a job that is
// done.
void SaveStep(const std::string& folder, int64_t step, const std::string& run = "",
              bool final = false) {
  const mesh::Tensor value = mesh::Tensor::Scalar(1.0f);
  checkpoint::Snapshot snapshot{.step = step};
  snapshot.metadata = {{"epoch", std::to_string(step / 10)}, {"batch", "0"}};
  if (final) snapshot.metadata[std::string(kFinalKey)] = "true";
  if (!run.empty()) snapshot.metadata[std::string(kRunKey)] = run;
  snapshot.variables.push_back({"w", value.type(), "", {{{}, value}}});
  ASSERT_TRUE(checkpoint::Save(folder, snapshot, {.keep = 0}).ok());
}

std::vector<int64_t> Steps(const ResumeChoice& choice) {
  std::vector<int64_t> steps;
  for (const checkpoint::Candidate& c : choice.candidates) steps.push_back(c.step);
  return steps;
}

class ChooseTest : public ::testing::Test {
 protected:
  // In a folder of our own, of a job of three epochs of ten steps.
  Result<ResumeChoice> Choose(bool resume = true, std::optional<int64_t> run = {}) const {
    return ChooseCheckpoints({.folder = folder_.path(),
                              .own = true,
                              .resume = resume,
                              .goes_on =
                                  [](const checkpoint::Index& index) {
                                    return !IsFinished(index, 3, /*may_end_early=*/false);
                                  },
                              .run = run});
  }
  std::string At(int64_t step) const { return checkpoint::CheckpointFolder(folder_.path(), step); }
  size_t Count() const { return checkpoint::ListCheckpoints(folder_.path())->size(); }
  const TempFolder folder_;
};

TEST_F(ChooseTest, AUsersFolderIsGoneOnFromOrRefused) {
  for (const int64_t step : {10, 30}) SaveStep(folder_.path(), step);
  ResumeOptions options{.folder = folder_.path(), .own = false};
  const auto all = ChooseCheckpoints(options);
  ASSERT_TRUE(all.ok());
  EXPECT_EQ(Steps(*all), (std::vector<int64_t>{30, 10}));
  EXPECT_TRUE(all->replaced.empty());
  options.resume = false;
  EXPECT_EQ(ChooseCheckpoints(options).status().code(), StatusCode::kFailedPrecondition);
}

TEST_F(ChooseTest, AFinishedRunIsReplacedAndStaysUntilThen) {
  for (const int64_t step : {10, 20, 30}) SaveStep(folder_.path(), step, "", step == 30);
  const auto anew = Choose();
  ASSERT_TRUE(anew.ok());
  EXPECT_TRUE(anew->candidates.empty());
  EXPECT_EQ(anew->run, 1);
  EXPECT_EQ(anew->replaced, (std::vector<std::string>{At(10), At(20), At(30)}));
  EXPECT_EQ(Count(), 3u);
  // Killed before its first checkpoint, it begins anew once more.
  EXPECT_EQ(Choose()->replaced, anew->replaced);
  // After its first one, of a lower step, it goes on from that, and what is left of the old goes.
  SaveStep(folder_.path(), 10, "1");
  const auto on = Choose();
  EXPECT_EQ(Steps(*on), std::vector<int64_t>{10});
  EXPECT_EQ(on->run, 1);
  EXPECT_EQ(on->replaced, (std::vector<std::string>{At(20), At(30)}));
  // So does a rollback of it.
  EXPECT_EQ(Steps(*Choose(true, 1)), std::vector<int64_t>{10});
  EXPECT_TRUE(Choose(true, 2)->candidates.empty());
}

TEST_F(ChooseTest, ARunThatIsNotFinishedIsGoneOnWith) {
  for (const int64_t step : {10, 20}) SaveStep(folder_.path(), step, "4");
  const auto on = Choose();
  EXPECT_EQ(Steps(*on), (std::vector<int64_t>{20, 10}));
  EXPECT_EQ(on->run, 4);
  EXPECT_TRUE(on->replaced.empty());
  const auto anew = Choose(/*resume=*/false);
  EXPECT_TRUE(anew->candidates.empty());
  EXPECT_EQ(anew->run, 5);
  EXPECT_EQ(anew->replaced.size(), 2u);
  EXPECT_EQ(Count(), 2u);
}

// It stands behind its last step, and was stopped or killed before it was done.
TEST_F(ChooseTest, ARunThatHasNoStepLeftIsGoneOnWithUntilItIsDone) {
  for (const int64_t step : {20, 30}) SaveStep(folder_.path(), step, "4");
  EXPECT_EQ(Steps(*Choose()), (std::vector<int64_t>{30, 20}));
  EXPECT_EQ(Choose()->run, 4);
  EXPECT_TRUE(Choose()->replaced.empty());
  ASSERT_TRUE(MarkFinal(At(30)).ok());
  EXPECT_TRUE(Choose()->candidates.empty());
  EXPECT_EQ(Choose()->run, 5);
}

TEST_F(ChooseTest, AFinishedRunIsGoneOnWithOnlyWhereTheJobSaysSo) {
  SaveStep(folder_.path(), 20, "4", /*final=*/true);
  EXPECT_EQ(Steps(*Choose()), std::vector<int64_t>{20}) << "three epochs are asked for";
  ResumeOptions options{.folder = folder_.path(), .own = true};
  EXPECT_TRUE(ChooseCheckpoints(options)->candidates.empty());
  // A checkpoint behind it is of a run that goes on already.
  SaveStep(folder_.path(), 25, "4");
  EXPECT_EQ(Steps(*ChooseCheckpoints(options)), (std::vector<int64_t>{25, 20}));
}

TEST_F(ChooseTest, OneThatCannotBeReadIsLeftToWhoLoadsIt) {
  for (const int64_t step : {10, 20}) SaveStep(folder_.path(), step, "1");
  std::filesystem::resize_file(At(20) + "/" + std::string(checkpoint::kIndexName), 3);
  const auto on = Choose();
  EXPECT_EQ(Steps(*on), (std::vector<int64_t>{20, 10}));
  EXPECT_EQ(on->run, 1);
}

}  // namespace
}  // namespace meshtrain::saving
