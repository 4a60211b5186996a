#include "runtime/trainer/evaluate_loop.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "runtime/base/file.h"
#include "runtime/checkpoint/save.h"
#include "runtime/saving/final.h"
#include "runtime/saving/resume.h"
#include "tests/support/fake_clock.h"
#include "tests/support/temp_folder.h"

namespace meshtrain::trainer {
namespace {

using checkpoint::Checkpoint;
using testing_folder::TempFolder;

// `run`: of that number, whose id is a letter.
void SaveAt(const std::string& folder, int64_t step, bool final = false, int keep = 0,
            std::optional<int> run = {}, std::vector<std::string> replaces = {}) {
  checkpoint::Snapshot snapshot{.step = step};
  if (run) {
    snapshot.metadata[std::string(saving::kRunKey)] = std::to_string(*run);
    snapshot.metadata[std::string(saving::kRunIdKey)] =
        std::string(1, static_cast<char>('a' + *run));
  }
  if (final) snapshot.metadata[std::string(saving::kFinalKey)] = "true";
  const mesh::Tensor value = mesh::Tensor::Scalar(static_cast<float>(step));
  snapshot.variables.push_back({"w", value.type(), "", {{{}, value}}});
  const auto saved =
      checkpoint::Save(folder, snapshot, {.keep = keep, .replaces = std::move(replaces)});
  ASSERT_TRUE(saved.ok()) << saved.status().ToString();
}

std::string At(const TempFolder& folder, int64_t step) {
  return checkpoint::CheckpointFolder(folder.path(), step);
}

struct Watched {
  std::vector<int64_t> steps;
  Status operator()(const Checkpoint& checkpoint) {
    steps.push_back(checkpoint.index().step);
    return OkStatus();
  }
};

TEST(EvaluateLoopTest, EvaluatesEachCheckpointOnceAndEndsWithTheFinal) {
  const TempFolder folder;
  testing::FakeClock clock;
  int polls = 0;
  clock.on_sleep = [&](Duration) {
    if (++polls == 1) SaveAt(folder.path(), 10);
    if (polls == 3) {
      SaveAt(folder.path(), 20);
      SaveAt(folder.path(), 30);
    }
    if (polls == 4) SaveAt(folder.path(), 40, true);
  };
  Watched watched;
  const auto count = EvaluateLoop(folder.path(), std::ref(watched), {.clock = &clock}, {});
  ASSERT_TRUE(count.ok()) << count.status().ToString();
  EXPECT_EQ(*count, 4);
  EXPECT_EQ(watched.steps, (std::vector<int64_t>{10, 20, 30, 40}));
}

TEST(EvaluateLoopTest, GoesOnAfterARestart) {
  const TempFolder folder;
  SaveAt(folder.path(), 10);
  SaveAt(folder.path(), 20);
  SaveAt(folder.path(), 30, true);
  Watched watched;
  ASSERT_TRUE(EvaluateLoop(folder.path(), std::ref(watched), {.after_step = 20}, {}).ok());
  EXPECT_EQ(watched.steps, std::vector<int64_t>{30});
}

TEST(EvaluateLoopTest, ARunThatTakesThePlaceOfAnotherIsEvaluatedFromItsFirst) {
  const TempFolder folder;
  SaveAt(folder.path(), 20, false, 0, 0);
  SaveAt(folder.path(), 30, true, 0, 0);
  testing::FakeClock clock;
  int polls = 0;
  Watched watched;
  clock.on_sleep = [&](Duration) {
    if (++polls == 2) {
      EXPECT_TRUE(watched.steps.empty()) << "of a run that is about to be replaced";
      SaveAt(folder.path(), 10, false, 0, 1);  // the others are not gone yet
    }
    if (polls == 3) {
      EXPECT_EQ(watched.steps, std::vector<int64_t>{10});
      SaveAt(folder.path(), 20, true, 0, 1, {At(folder, 30)});
    }
  };
  EvaluateOptions options{.run = "a", .after_step = 30, .clock = &clock};
  options.is_replaced = [](const checkpoint::Index& index) {
    return saving::RunIdOf(index) == "a";
  };
  EXPECT_EQ(*EvaluateLoop(folder.path(), std::ref(watched), options, {}), 2);
  EXPECT_EQ(watched.steps, (std::vector<int64_t>{10, 20}));
  EXPECT_EQ(polls, 3);
}

// Whoever replaces a run completes a checkpoint before it removes the other's.
TEST(EvaluateLoopTest, OfTwoRunsTheNewerIsEvaluatedWhateverItsSteps) {
  const TempFolder folder;
  SaveAt(folder.path(), 30, true, 0, 0);
  SaveAt(folder.path(), 10, false, 0, 1);
  testing::FakeClock clock;
  clock.on_sleep = [&](Duration) { SaveAt(folder.path(), 20, true, 0, 1, {At(folder, 30)}); };
  Watched watched;
  EXPECT_EQ(*EvaluateLoop(folder.path(), std::ref(watched), {.clock = &clock}, {}), 2);
  EXPECT_EQ(watched.steps, (std::vector<int64_t>{10, 20}));
}

TEST(EvaluateLoopTest, StepsOfAnotherRunAreNotThoseOfThisOne) {
  const TempFolder folder;
  SaveAt(folder.path(), 10, true, 0, 1);
  Watched watched;
  EXPECT_EQ(*EvaluateLoop(folder.path(), std::ref(watched), {.run = "a", .after_step = 30}, {}), 1);
  EXPECT_EQ(*EvaluateLoop(folder.path(), std::ref(watched), {.run = "b", .after_step = 10}, {}), 0);
  EXPECT_EQ(watched.steps, std::vector<int64_t>{10});
}

TEST(EvaluateLoopTest, EndsWhenTheNewestIsMarkedLater) {
  const TempFolder folder;
  SaveAt(folder.path(), 10);
  SaveAt(folder.path(), 20);
  testing::FakeClock clock;
  int polls = 0;
  clock.on_sleep = [&](Duration) {
    if (++polls < 3) return;
    const Status marked = saving::MarkFinal(checkpoint::CheckpointFolder(folder.path(), 20));
    EXPECT_TRUE(marked.ok()) << marked.ToString();
  };
  Watched watched;
  EXPECT_EQ(*EvaluateLoop(folder.path(), std::ref(watched), {.clock = &clock}, {}), 2);
  EXPECT_EQ(polls, 3);
  // Marking changes nothing else, and a second time nothing at all.
  const auto checkpoint = Checkpoint::Open(checkpoint::CheckpointFolder(folder.path(), 20));
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status().ToString();
  EXPECT_TRUE((*checkpoint)->Verify().ok());
  EXPECT_TRUE(saving::MarkFinal(checkpoint::CheckpointFolder(folder.path(), 20)).ok());
  // An evaluator that had finished and is started again has nothing to wait for.
  EXPECT_EQ(
      *EvaluateLoop(folder.path(), std::ref(watched), {.after_step = 20, .clock = &clock}, {}), 0);
  EXPECT_EQ(watched.steps, (std::vector<int64_t>{10, 20}));
  EXPECT_EQ(saving::MarkFinal(checkpoint::CheckpointFolder(folder.path(), 30)).code(),
            StatusCode::kNotFound);
}

TEST(EvaluateLoopTest, PassesOverWhatIsDamagedButNotInSilenceAtTheEnd) {
  const TempFolder folder;
  SaveAt(folder.path(), 10);
  SaveAt(folder.path(), 20, true);
  const std::string shard =
      checkpoint::CheckpointFolder(folder.path(), 10) + "/shard-00000-of-00001.safetensors";
  std::string bytes = ReadFile(shard).value();
  bytes.pop_back();
  ASSERT_TRUE(WriteFileAtomically(shard, bytes).ok());
  Watched watched;
  EXPECT_EQ(*EvaluateLoop(folder.path(), std::ref(watched), {}, {}), 1);
  EXPECT_EQ(watched.steps, std::vector<int64_t>{20});
  const auto lost =
      EvaluateLoop(folder.path(), [](const Checkpoint&) { return DataLoss("checksum"); }, {}, {});
  EXPECT_EQ(lost.status(), DataLoss("checksum"));
}

TEST(EvaluateLoopTest, DataThatIsDamagedOrNotThereEndsIt) {
  const TempFolder folder;
  SaveAt(folder.path(), 10);
  SaveAt(folder.path(), 20);
  for (const Status& data : {DataLoss("checksum"), NotFound("images.gz")}) {
    int asked = 0;
    const auto evaluate = [&](const Checkpoint&) {
      ++asked;
      return data.From(Origin::kInput);
    };
    const auto ended = EvaluateLoop(folder.path(), evaluate, {}, {});
    EXPECT_EQ(ended.status(), data);
    EXPECT_EQ(ended.status().origin(), Origin::kInput);
    EXPECT_EQ(asked, 1);
  }
}

TEST(EvaluateLoopTest, EndsWithAnErrorAStopAndImpatience) {
  const TempFolder folder;
  SaveAt(folder.path(), 10);
  const auto failed =
      EvaluateLoop(folder.path(), [](const Checkpoint&) { return Internal("no"); }, {}, {});
  EXPECT_EQ(failed.status(), Internal("no"));
  testing::FakeClock clock;
  std::stop_source stop;
  clock.on_sleep = [&](Duration) { stop.request_stop(); };
  Watched watched;
  EXPECT_EQ(*EvaluateLoop(folder.path(), std::ref(watched), {.clock = &clock}, stop.get_token()),
            1);
  clock.on_sleep = nullptr;
  const auto late = EvaluateLoop(folder.path(), std::ref(watched),
                                 {.patience = std::chrono::hours(1), .clock = &clock}, {});
  EXPECT_EQ(late.status().code(), StatusCode::kDeadlineExceeded);
}

}  // namespace
}  // namespace meshtrain::trainer
