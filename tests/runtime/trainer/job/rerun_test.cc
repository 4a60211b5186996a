// Jobs of one process that are run again into the folder of a run before: what is trained again,
// what goes on, and what its figures are.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <iterator>
#include <nlohmann/json.hpp>
#include <sstream>
#include <stop_token>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "runtime/base/file.h"
#include "runtime/checkpoint/restore.h"
#include "runtime/checkpoint/save.h"
#include "runtime/cluster/contract.h"
#include "runtime/cluster/exit_code.h"
#include "runtime/saving/final.h"
#include "runtime/trainer/job/training.h"
#include "tests/support/temp_folder.h"

namespace meshtrain::trainer {
namespace {

using nlohmann::json;
using ::testing::AllOf;
using ::testing::Each;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::SizeIs;

constexpr char kRerunManifest[] = R"(
program:
  seed: 7
  mesh: {batch: 2}
  data:
    train: {idx: {images: FOLDER-images-idx3-ubyte.gz, labels: FOLDER-labels-idx1-ubyte.gz}, take: 80}
    test: {idx: {images: FOLDER-images-idx3-ubyte.gz, labels: FOLDER-labels-idx1-ubyte.gz}, take: 40}
    map: [{scale: 0.00392156862745098}]
    batch: 8
  model: [flatten, dense: {name: hidden, units: 7}, dense: {name: logits, units: 10}]
  loss: {sparse_categorical_crossentropy: {from_logits: true}}
  optimizer: {adam: {learning_rate: 0.01}}
  metrics: [accuracy]
  train: {epochs: 3}
checkpoint: {everySteps: 10}
)";

using Edits = std::vector<std::pair<std::string_view, std::string_view>>;

class RerunTest : public ::testing::Test {
 protected:
  Status Run(const Edits& edits = {}, std::stop_token stop = {}) {
    std::string text = kRerunManifest;
    for (size_t at; (at = text.find("FOLDER")) != std::string::npos;) {
      text.replace(at, 6, MT_TESTDATA "/mlp/digits5120");
    }
    for (const auto& [from, to] : edits) {
      EXPECT_NE(text.find(from), std::string::npos) << from;
      text.replace(text.find(from), from.size(), to);
    }
    auto manifest = recipe::ParseManifest(text, "job.yaml");
    if (!manifest.ok()) return manifest.status();
    const JobConfig config{.output = output(), .port = std::nullopt, .threads = 1};
    ::testing::internal::CaptureStdout();
    const Status end = RunTraining(config, *std::move(manifest), MakeMeshJob, std::move(stop));
    said_ = ::testing::internal::GetCapturedStdout();
    return end;
  }

  std::string output() const { return folder_.path() + "/out"; }
  // Of metrics.jsonl: the figure of each line that has it.
  std::vector<double> Of(const std::string& figure) const {
    std::vector<double> values;
    const auto text = ReadFile(output() + "/metrics.jsonl");
    std::istringstream lines(text.ok() ? *text : "");
    for (std::string line; std::getline(lines, line);) {
      const json record = json::parse(line);
      if (record.contains(figure)) values.push_back(record[figure]);
    }
    return values;
  }

  std::string At(int64_t step) const {
    return checkpoint::CheckpointFolder(output() + "/checkpoints", step);
  }
  // As the run left it that was killed before it was done.
  void Unmark(int64_t step) const {
    const std::string file = At(step) + "/" + std::string(checkpoint::kIndexName);
    checkpoint::Index index = checkpoint::Index::Parse(ReadFile(file).value(), file).value();
    EXPECT_TRUE(saving::IsFinal(index));
    index.metadata.erase(std::string(saving::kFinalKey));
    index.metadata.erase(std::string(saving::kEndedEarlyKey));
    EXPECT_EQ(WriteFileAtomically(file, index.ToJson()), OkStatus());
  }
  bool IsFinal(int64_t step) const {
    const auto checkpoint = checkpoint::Checkpoint::Open(At(step));
    return checkpoint.ok() && saving::IsFinal((*checkpoint)->index());
  }
  int64_t EventFiles(const std::string& folder) const {
    std::error_code none;
    const std::filesystem::directory_iterator files(output() + "/" + folder, none);
    return none ? 0 : std::distance(begin(files), end(files));
  }
  std::string Model() const {
    const auto bytes = ReadFile(output() + "/model.safetensors");
    return bytes.ok() ? *bytes : "";
  }

  const testing_folder::TempFolder folder_;
  std::string said_;
};

TEST_F(RerunTest, EveryValidationOfSomeStepsIsOfTheSameExamples) {
  // Too slow to change a weight.
  const std::pair<std::string_view, std::string_view> slow{"0.01}", "1.0e-30}"};
  ASSERT_EQ(Run({slow, {"epochs: 3", "validation: {steps: 2}, epochs: 3"}}), OkStatus());
  const std::vector<double> first = Of("val_loss");
  ASSERT_THAT(first, SizeIs(3));
  EXPECT_THAT(first, Each(first[0]));
  ASSERT_EQ(Run({slow, {"epochs: 3", "validation: {steps: 2}, epochs: 5"}}), OkStatus());
  EXPECT_THAT(Of("val_loss"), SizeIs(5));
  EXPECT_THAT(Of("val_loss"), Each(first[0])) << "of a run that goes on too";
}

// Its last step was saved by its number, the validation behind it was not done.
TEST_F(RerunTest, ARunThatDidNotEndItsLastValidationHasThatAloneLeft) {
  ASSERT_EQ(Run(), OkStatus());
  const std::vector<double> figures = Of("val_loss");
  ASSERT_THAT(figures, SizeIs(3));
  const std::string model = Model();
  Unmark(30);
  ASSERT_EQ(Run(), OkStatus());
  EXPECT_THAT(said_, HasSubstr("resuming from " + At(30) + " at step 30"));
  EXPECT_THAT(Of("loss"), SizeIs(30));
  EXPECT_EQ(Of("val_loss"), figures);
  EXPECT_EQ(Model(), model);
  EXPECT_TRUE(IsFinal(30));
  ASSERT_EQ(Run(), OkStatus());
  EXPECT_THAT(said_, Not(HasSubstr("resuming from"))) << "done, it is replaced";
}

// Also where it was killed between its last save and its mark.
TEST_F(RerunTest, ARunThatStoppedEarlyIsReplacedAndNotTrainedOn) {
  const Edits early = {
      {"epochs: 3", "early_stopping: {monitor: val_loss, patience: 1, min_delta: 9}, epochs: 30"}};
  Edits by_epoch = early;
  by_epoch.emplace_back("checkpoint: {everySteps: 10}", "");
  for (const Edits& edits : {early, by_epoch}) {
    std::filesystem::remove_all(output());
    ASSERT_EQ(Run(edits), OkStatus());
    EXPECT_THAT(Of("loss"), SizeIs(20));
    const std::vector<double> figures = Of("val_loss");
    Unmark(20);
    ASSERT_EQ(Run(edits), OkStatus());
    EXPECT_THAT(said_, HasSubstr("resuming from " + At(20) + " at step 20"));
    EXPECT_THAT(said_, HasSubstr("stopped early: step 20: val_loss has not been better than"));
    EXPECT_THAT(Of("loss"), SizeIs(20));
    EXPECT_EQ(Of("val_loss"), figures);
    EXPECT_TRUE(IsFinal(20));
    ASSERT_EQ(Run(edits), OkStatus());
    EXPECT_THAT(said_, Not(HasSubstr("resuming from")));
    EXPECT_THAT(Of("loss"), SizeIs(20));
    EXPECT_FALSE(checkpoint::Checkpoint::Open(At(21)).ok());
  }
}

TEST_F(RerunTest, AFinishedRunIsReplacedWhateverItsProgramWas) {
  const std::pair<std::string_view, std::string_view> longer{"epochs: 3", "epochs: 4"};
  const Edits another[] = {
      {},
      {{"take: 80", "take: 100"}},
      {{"units: 7", "units: 9"}},
      {{"units: 7", "units: 9"}, longer},
      {{"take: 80", "take: 100"}, longer},
      {{"batch: 8", "batch: 16"}, longer},
      {{"epochs: 3", "epochs: 4, steps_per_epoch: 7"}},
      {{"epochs: 3", "epochs: 4, steps_per_epoch: 12"}},
      {{"epochs: 3", "epochs: 2"}},
  };
  for (const Edits& edits : another) {
    SCOPED_TRACE(edits.empty() ? "the same" : std::string(edits[0].second));
    std::filesystem::remove_all(output());
    ASSERT_EQ(Run(), OkStatus());
    ASSERT_EQ(Run(edits), OkStatus());
    EXPECT_THAT(said_, Not(HasSubstr("resuming from")));
  }
}

// Beside the new model stands nothing that another one has left.
TEST_F(RerunTest, AReplacedRunsEventsAndTextGo) {
  ASSERT_EQ(Run(), OkStatus());
  const std::string text = output() + "/generated.txt";
  ASSERT_EQ(WriteFileAtomically(text, "once"), OkStatus());
  std::stop_source stop;
  stop.request_stop();
  EXPECT_EQ(Run({{"units: 7", "units: 9"}}, stop.get_token()).origin(), Origin::kStop);
  EXPECT_EQ(EventFiles("events.replaced/train"), 1);
  EXPECT_TRUE(ReadFile(text).ok()) << "as its model";
  ASSERT_EQ(Run({{"units: 7", "units: 9"}}), OkStatus());
  EXPECT_EQ(EventFiles("events/train"), 1);
  EXPECT_EQ(EventFiles("events/test"), 1);
  EXPECT_FALSE(std::filesystem::exists(output() + "/events.replaced"));
  EXPECT_FALSE(std::filesystem::exists(output() + "/metrics.replaced.jsonl"));
  EXPECT_FALSE(ReadFile(text).ok());
  // A run that goes on adds to its own.
  ASSERT_EQ(Run({{"units: 7", "units: 9"}, {"epochs: 3", "epochs: 4"}}), OkStatus());
  EXPECT_EQ(EventFiles("events/train"), 2);
}

TEST_F(RerunTest, AStopBeforeTheFirstStepLeavesTheFinishedRun) {
  ASSERT_EQ(Run(), OkStatus());
  const std::string model = Model();
  const auto figures = ReadFile(output() + "/metrics.jsonl");
  std::stop_source stop;
  stop.request_stop();
  EXPECT_EQ(Run({{"units: 7", "units: 9"}}, stop.get_token()).origin(), Origin::kStop);
  EXPECT_THAT(said_, HasSubstr("stopped at step 0: nothing is saved; run again to begin"));
  for (const int64_t step : {10, 20, 30}) {
    EXPECT_TRUE(checkpoint::Checkpoint::Open(At(step)).ok()) << step;
  }
  EXPECT_FALSE(checkpoint::Checkpoint::Open(At(0)).ok());
  EXPECT_TRUE(IsFinal(30));
  EXPECT_EQ(Model(), model);
  EXPECT_EQ(ReadFile(output() + "/metrics.replaced.jsonl").value(), figures.value());
}

TEST_F(RerunTest, AFinishedRunGoesOnForMoreEpochsOfTheSameProgram) {
  ASSERT_EQ(Run(), OkStatus());
  ASSERT_EQ(Run({{"epochs: 3", "epochs: 5"}}), OkStatus());
  EXPECT_THAT(said_, HasSubstr("resuming from " + At(30) + " at step 30"));
  const std::vector<double> losses = Of("loss");
  const std::string model = Model();
  EXPECT_THAT(losses, SizeIs(50));
  EXPECT_TRUE(IsFinal(50));
  std::filesystem::remove_all(output());
  ASSERT_EQ(Run({{"epochs: 3", "epochs: 5"}}), OkStatus());
  EXPECT_EQ(Of("loss"), losses);
  EXPECT_EQ(Model(), model);
}

TEST_F(RerunTest, AnUnfinishedRunThatDoesNotFitSaysWhatToDo) {
  // Broken off in its second epoch, behind 4 of 9 batches.
  ASSERT_EQ(
      Run({{"epochs: 3", "epochs: 2, steps_per_epoch: 9"}, {"everySteps: 10", "everySteps: 13"}}),
      OkStatus());
  std::filesystem::remove_all(At(18));
  const std::string advice = "; give another --output, or `checkpoint.resume: Never` to begin anew";
  const Status shorter = Run({{"epochs: 3", "epochs: 3, steps_per_epoch: 3"}});
  EXPECT_EQ(cluster::ExitCodeOf(shorter), cluster::kExitBadConfig);
  EXPECT_THAT(shorter.message(),
              AllOf(HasSubstr("program.train.steps_per_epoch: expected at least 4, as many batches "
                              "of epoch 2 as " +
                              At(13) + " has behind it, got: 3"),
                    EndsWith(advice)));
  const Status other = Run({{"batch: 8", "batch: 16"}});
  EXPECT_EQ(cluster::ExitCodeOf(other), cluster::kExitBadConfig);
  EXPECT_THAT(other.message(), AllOf(HasSubstr(At(13)), EndsWith(advice)));
}

}  // namespace
}  // namespace meshtrain::trainer
