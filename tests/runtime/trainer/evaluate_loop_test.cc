#include "runtime/trainer/evaluate_loop.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "runtime/base/file.h"
#include "runtime/checkpoint/save.h"
#include "runtime/saving/final.h"
#include "tests/support/fake_clock.h"
#include "tests/support/temp_folder.h"

namespace meshtrain::trainer {
namespace {

using checkpoint::Checkpoint;
using testing_folder::TempFolder;

void SaveAt(const std::string& folder, int64_t step, bool final = false, int keep = 0) {
  checkpoint::Snapshot snapshot{.step = step};
  if (final) snapshot.metadata[std::string(saving::kFinalKey)] = "true";
  const mesh::Tensor value = mesh::Tensor::Scalar(static_cast<float>(step));
  snapshot.variables.push_back({"w", value.type(), "", {{{}, value}}});
  const auto saved = checkpoint::Save(folder, snapshot, {.keep = keep});
  ASSERT_TRUE(saved.ok()) << saved.status().ToString();
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
