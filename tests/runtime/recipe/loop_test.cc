// What a manifest says of its loop, as the loop takes it.
#include "runtime/recipe/loop.h"

#include <gtest/gtest.h>

#include "runtime/recipe/recipe.h"

namespace meshtrain::recipe {
namespace {

Result<manifest::Manifest> ReadJob(const std::string& train, const std::string& checkpoint = "") {
  return ParseManifest(
      "kind: TrainingJob\nspec:\n  replicaSpecs: {worker: {replicas: 1}}\n" +
          (checkpoint.empty() ? "" : "  checkpoint: " + checkpoint + "\n") +
          "  program:\n    data: {train: {idx: {images: a, labels: b}}, test: {idx: {images: a, "
          "labels: b}}, batch: 10}\n    model: [flatten, dense: {units: 1}]\n    loss: mse\n"
          "    optimizer: sgd\n    metrics: [accuracy, recall: {name: of_ones}, perplexity: {name: "
          "surprise}]\n    train: " +
          train + "\n",
      "job.yaml");
}

manifest::Manifest Job(const std::string& train, const std::string& checkpoint = "") {
  auto manifest = ReadJob(train, checkpoint);
  EXPECT_TRUE(manifest.ok()) << manifest.status().message();
  return *std::move(manifest);
}

// Without a word the chief's folder is taken; an empty word would be one that was forgotten.
TEST(LoopTest, AFolderOfCheckpointsHasAName) {
  EXPECT_EQ(ReadJob("{epochs: 1}", "{path: ''}").status().message(),
            "job.yaml:4:22: spec.checkpoint.path: expected a path, got: \"\"");
  EXPECT_EQ(Job("{epochs: 1}", "{keep: 2}").checkpoint.path, "");
}

TEST(LoopTest, TakesWhatTheManifestSays) {
  const manifest::Manifest job =
      Job("{epochs: 7, steps_per_epoch: 12, validation: {steps: 3, every_epochs: 2}, "
          "end_after_bad_steps: 4}");
  const train::LoopOptions options = LoopOptionsOf(job.program.train, {.step = 5, .batch = 5});
  EXPECT_EQ(options.epochs, 7);
  EXPECT_EQ(options.steps_per_epoch, 12);
  EXPECT_EQ(options.validation_steps, 3);
  EXPECT_EQ(options.validate_every, 2);
  EXPECT_EQ(options.end_after_bad_steps, 4);
  EXPECT_EQ(options.start.step, 5);
  EXPECT_EQ(options.validation, nullptr);
}

TEST(LoopTest, AValidationThatNeverComesIsRefused) {
  const auto message = [](const std::string& train) { return ReadJob(train).status().message(); };
  const std::string validation = "validation: {every_epochs: 4}";
  EXPECT_EQ(message("{epochs: 4, " + validation + "}"), "");
  EXPECT_EQ(message("{epochs: 4, early_stopping: {}, " + validation + "}"), "");
  EXPECT_EQ(message("{epochs: 3, early_stopping: {monitor: val_loss}, " + validation + "}"),
            "job.yaml:10:88: program.train.validation.every_epochs: expected at most train.epochs, "
            "3, or nothing is validated, got: 4");
}

TEST(LoopTest, SavesEachEpochAndByTheClockUnlessStepsAreGiven) {
  const train::SaveTimes unsaid = SaveTimesOf(Job("{epochs: 1}"));
  EXPECT_EQ(unsaid.every_steps, 0);
  EXPECT_TRUE(unsaid.each_epoch);
  EXPECT_EQ(unsaid.at_latest, std::chrono::minutes(10));
  const std::string steps = "{path: /c, everySteps: 50}";
  const train::SaveTimes said = SaveTimesOf(Job("{epochs: 1}", steps));
  EXPECT_EQ(said.every_steps, 50);
  EXPECT_FALSE(said.each_epoch);
  EXPECT_EQ(said.at_latest, Duration());
  // The best epoch's weights must be somewhere.
  const std::string best =
      "{epochs: 1, early_stopping: {monitor: val_loss, patience: 2, restore_best_weights: true}}";
  EXPECT_TRUE(SaveTimesOf(Job(best, steps)).each_epoch);
}

TEST(LoopTest, LargerIsBetterWhereTheMetricSaysSo) {
  const auto best_epoch = [](const std::string& monitor) {
    manifest::Program program =
        Job("{epochs: 9, early_stopping: {monitor: " + monitor + ", patience: 5}}").program;
    auto early = EarlyStoppingOf(program);
    const double figures[] = {0.5, 0.75, 0.25};
    for (int64_t epoch = 1; epoch <= 3; ++epoch) {
      const train::Scalars all = {{monitor, figures[epoch - 1]}};
      EXPECT_TRUE(early->OnEpochEnd({.epoch = epoch, .step = epoch, .train = all}, {}).ok());
    }
    return early->best()->epoch;
  };
  EXPECT_EQ(best_epoch("loss"), 3);
  EXPECT_EQ(best_epoch("accuracy"), 2);
  EXPECT_EQ(best_epoch("of_ones"), 2) << "a recall by another name";
  EXPECT_EQ(best_epoch("surprise"), 3) << "a perplexity";
}

TEST(LoopTest, TheBestStepIsThatOfWhoWatchedAndOnlyWhereItIsAskedFor) {
  const std::string stopping = "{epochs: 9, early_stopping: {monitor: loss, patience: 1";
  const manifest::Train plain = Job(stopping + "}}").program.train;
  const manifest::Program whole = Job(stopping + ", restore_best_weights: true}}").program;
  const manifest::Train& best = whole.train;
  EXPECT_FALSE(EarlyStoppingOf(Job("{epochs: 9}").program).has_value());
  std::optional<train::EarlyStopping> early = EarlyStoppingOf(whole);
  ASSERT_TRUE(early.has_value());
  EXPECT_EQ(early->monitor(), "loss");
  EXPECT_EQ(BestStep(best, &*early), std::nullopt) << "no epoch has ended";
  const auto epoch = [&](int64_t number, double loss) {
    return early->OnEpochEnd({.epoch = number, .step = 10 * number, .train = {{"loss", loss}}},
                             {.step = 10 * number, .epoch = number});
  };
  ASSERT_TRUE(epoch(1, 1.0).ok());
  ASSERT_TRUE(epoch(2, 2.0).ok());
  EXPECT_EQ(BestStep(best, &*early), 10);
  EXPECT_EQ(BestStep(plain, &*early), std::nullopt);
  EXPECT_EQ(BestStep(best, nullptr), std::nullopt);
  EXPECT_TRUE(early->WantsStop().has_value());
}

}  // namespace
}  // namespace meshtrain::recipe
