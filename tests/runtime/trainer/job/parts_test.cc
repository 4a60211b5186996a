// A job whose batches are computed in parts (train.accumulate): a step is a batch, so that it goes
// on from the middle of an epoch as if it had never stopped.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "runtime/base/file.h"
#include "runtime/checkpoint/save.h"
#include "runtime/trainer/job/choices.h"
#include "runtime/trainer/job/training.h"
#include "tests/support/temp_folder.h"

namespace meshtrain::trainer {
namespace {

using testing_folder::TempFolder;

constexpr char kJobInParts[] = R"(
program:
  seed: 7
  mesh: {batch: 2}
  data:
    train: {idx: {images: FOLDER/digits5120-images-idx3-ubyte.gz, labels: FOLDER/digits5120-labels-idx1-ubyte.gz}, take: 1000}
    map: [{scale: 0.00392156862745098}]
    shuffle: {buffer: 500}
    batch: 96
    uneven: true
  model: [flatten, dropout: {rate: 0.2}, dense: {units: 10}]
  loss: {sparse_categorical_crossentropy: {from_logits: true}}
  optimizer: {sgd: {learning_rate: 0.1, momentum: 0.9, clipnorm: 0.5}}
  train: {epochs: 2, accumulate: 4}
)";
constexpr int64_t kStepsInParts = 11;  // of an epoch, the last of 40 examples

TEST(JobInPartsTest, GoesOnFromTheMiddleOfAnEpochBitForBit) {
  std::string text = kJobInParts;
  for (size_t at; (at = text.find("FOLDER")) != std::string::npos;) {
    text.replace(at, 6, MT_TESTDATA "/mlp");
  }
  const TempFolder folder;
  const auto run = [&](const std::string& name) {
    manifest::Manifest manifest = recipe::ParseManifest(text, "test").value();
    manifest.checkpoint = {
        .path = folder.path() + "/" + name + "-checkpoints", .every_steps = 4, .keep = 100};
    const JobConfig config{
        .output = folder.path() + "/" + name, .port = std::nullopt, .threads = 1};
    EXPECT_TRUE(MakeDirectories(config.output).ok());
    const Status end = RunTraining(config, manifest, MakeMeshJob, {});
    EXPECT_TRUE(end.ok()) << end.ToString();
    return ReadFile(ModelPath(config)).value();
  };
  const std::string whole = run("whole");
  // Behind 4 steps and behind one of the second epoch.
  for (const int64_t step : {int64_t{4}, int64_t{12}}) {
    ASSERT_NE(step % kStepsInParts, 0);
    const std::string name = "from-" + std::to_string(step);
    const std::string from =
        checkpoint::CheckpointFolder(folder.path() + "/whole-checkpoints", step);
    const std::string into = folder.path() + "/" + name + "-checkpoints";
    ASSERT_TRUE(MakeDirectories(into).ok());
    std::filesystem::copy(from, checkpoint::CheckpointFolder(into, step),
                          std::filesystem::copy_options::recursive);
    EXPECT_TRUE(run(name) == whole) << "another model than that of a run that never stopped";
  }
}

}  // namespace
}  // namespace meshtrain::trainer
