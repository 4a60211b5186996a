// The driver of a training job over stages that only count: whose rounds end as a test says,
// and whose checkpoints hold one number, the step.
#include "runtime/trainer/job/training.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <functional>
#include <map>
#include <set>

#include "runtime/base/file.h"
#include "runtime/checkpoint/restore.h"
#include "runtime/checkpoint/save.h"
#include "runtime/data/cursor.h"
#include "runtime/saving/final.h"
#include "runtime/saving/position.h"
#include "runtime/strategy/dataset.h"
#include "tests/support/temp_folder.h"

namespace meshtrain::trainer {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr char kManifest[] = R"(
kind: TrainingJob
apiVersion: meshtrain.dev/v1
metadata: {name: counted}
spec:
  replicaSpecs: {worker: {replicas: 1}}
  program:
    data:
      train: {idx: {images: FOLDER/digits5120-images-idx3-ubyte.gz, labels: FOLDER/digits5120-labels-idx1-ubyte.gz}}
      batch: 1024
    model: [flatten, dense: {name: w, units: 10}]
    loss: {sparse_categorical_crossentropy: {from_logits: true}}
    optimizer: sgd
    train: {epochs: 3EARLY}
)";
constexpr int64_t kStepsPerEpoch = 5;

// What a test asks of them, and what came of it.
struct Script {
  std::function<double(int64_t step)> loss = [](int64_t step) {
    return 1 / static_cast<double>(step);
  };
  std::map<int64_t, Status> fails;    // by step: Fit ends so, once
  std::set<int64_t> again;            // by round, from 1: it ends in a loss
  std::optional<Status> begin;        // what Begin ends with
  std::optional<Status> begin_again;  // what it ends with from the second round on
  std::optional<int64_t> resume_at;   // a checkpoint that lies there
  std::stop_source* stop = nullptr;   // requested in the step `stop_at`
  int64_t stop_at = 3;
  Result<std::optional<std::string>> text = std::optional<std::string>();  // what Write gives

  std::vector<std::string> called;
  std::vector<int64_t> starts, saved;
  std::optional<Status> closed;
};

class CountingStages final : public JobStages, Saver {
 public:
  CountingStages(const JobParts& job, Script& script) : job_(job), script_(script) {}

  Status Start(std::stop_token) override { return Call("Start"); }
  Status Open(std::stop_token) override { return Call("Open"); }
  Result<std::optional<saving::Resumed>> Begin(std::stop_token) override {
    MT_RETURN_IF_ERROR(Call("Begin"));
    if (script_.begin) return *script_.begin;
    ++round_;
    if (round_ > 1 && script_.begin_again) return *script_.begin_again;
    if (const auto there = checkpoint::FindLatest(folder()); there.ok()) newest_ = there->path;
    if (newest_.empty() && script_.resume_at) {
      MT_RETURN_IF_ERROR(
          Save({.step = *script_.resume_at, .epoch = *script_.resume_at / kStepsPerEpoch}, {}));
      script_.saved.clear();
      last_.reset();
    }
    train::Position at;
    if (!newest_.empty()) {
      const auto checkpoint = checkpoint::Checkpoint::Open(newest_).value();
      at = saving::PositionOf(checkpoint->index(), newest_).value();
    }
    MT_RETURN_IF_ERROR(job_.train->Restore({.epoch = at.step / kStepsPerEpoch,
                                            .batch = at.step % kStepsPerEpoch,
                                            .fingerprint = job_.train->cursor().fingerprint}));
    if (newest_.empty()) return std::optional<saving::Resumed>();
    return std::optional(saving::Resumed{at, newest_});
  }
  Description Describe() const override {
    const nn::Parameter w("w", {mesh::DType::kF32, {}}, nn::Initializer::Zeros());
    return {.mesh = "nowhere", .beginning = "nowhere", .plan_text = "a plan", .parameters = {w}};
  }
  std::string folder() const override { return job_.config.output + "/checkpoints"; }
  Saver& saver() override { return *this; }

  Result<train::FitResult> Fit(FitWork work, std::stop_token stop) override {
    MT_RETURN_IF_ERROR(Call("Fit"));
    script_.starts.push_back(work.options.start.step);
    class Runner final : public train::StepRunner {
     public:
      Runner(CountingStages& stages, const FitWork& work) : stages_(stages), work_(work) {
        step_ = work.options.start.step;
      }
      Result<train::BatchFigures> TrainStep(const train::Batch& batch) override {
        Script& script = stages_.script_;
        ++step_;
        if (script.stop != nullptr && step_ == script.stop_at) script.stop->request_stop();
        if (const auto fails = script.fails.find(step_); fails != script.fails.end()) {
          const Status why = fails->second;
          script.fails.erase(fails);
          return why;
        }
        return train::BatchFigures{{{"loss", script.loss(step_)}}, batch.size};
      }
      Result<train::BatchFigures> EvalStep(const train::Batch&) override {
        return Internal("nothing is evaluated");
      }
      Status Save(const train::Position& position) override { return work_.saves->save(position); }
      int64_t last_saved() const override {
        return stages_.script_.saved.empty() ? -1 : stages_.script_.saved.back();
      }

     private:
      CountingStages& stages_;
      const FitWork& work_;
      int64_t step_ = 0;
    };
    EXPECT_EQ(work.here, job_.train.get());
    Runner runner(*this, work);
    train::CheckpointEvery save(runner, work.saves->times);
    work.callbacks.push_back(&save);
    strategy::PipelineBatches batches(*job_.train);
    return train::Fit(runner, batches, work.options, work.callbacks, stop);
  }
  Result<std::optional<std::string>> Write(std::stop_token) override { return script_.text; }
  RoundEnd End(const Result<train::FitResult>& result, std::stop_token) override {
    script_.called.emplace_back("End");
    if (!script_.again.contains(round_)) return {.training = result.status()};
    interrupted_("worker-2", 7, Unavailable("worker-2 lost"));
    return {.again = true};
  }
  void Close(const Status& status) override { script_.closed = status; }

 private:
  Status Call(const char* what) {
    script_.called.emplace_back(what);
    return OkStatus();
  }
  Result<std::optional<saving::Resumed>> Resume(std::stop_token) override {
    return Unimplemented("Begin does");
  }
  Status Wait() override { return OkStatus(); }
  std::optional<checkpoint::SaveReport> last() const override { return last_; }
  int64_t failures() const override { return 0; }
  Status Save(const train::Position& position, std::optional<int64_t> pinned) override {
    const auto w = mesh::Tensor::Scalar(static_cast<float>(position.step));
    const checkpoint::Snapshot snapshot{
        .step = position.step,
        .metadata = saving::PositionToMetadata(position),
        .variables = {{"w", w.type(), "{}", {{{}, w}}}, {"w.slot", w.type(), "{}", {{{}, w}}}}};
    newest_ = checkpoint::Save(folder(), snapshot, {.keep = 2, .pinned = pinned}).value();
    last_ = {position.step, newest_, 0};
    script_.saved.push_back(position.step);
    return OkStatus();
  }

  const JobParts& job_;
  Script& script_;
  int round_ = 0;
  std::string newest_;
  std::optional<checkpoint::SaveReport> last_;
};

Script* the_script = nullptr;
std::unique_ptr<JobStages> MakeCountingStages(const JobParts& job) {
  return std::make_unique<CountingStages>(job, *the_script);
}

class TrainingTest : public ::testing::Test {
 protected:
  TrainingTest() { the_script = &script_; }

  Status Train(const std::string& early = "", std::stop_token stop = {}) {
    std::string text = kManifest;
    for (size_t at; (at = text.find("FOLDER")) != std::string::npos;) {
      text.replace(at, 6, MT_TESTDATA "/mlp");
    }
    text.replace(text.find("EARLY"), 5, early);
    auto manifest = recipe::ParseManifest(text, "test");
    if (!manifest.ok()) return manifest.status();
    JobConfig config{.output = output(), .port = std::nullopt};
    config.job.termination_log = folder_.path() + "/last-words";
    return RunTraining(config, *std::move(manifest), MakeCountingStages, stop);
  }

  std::string output() const { return folder_.path() + "/out"; }
  std::string Read(const std::string& name) const {
    const auto text = ReadFile(output() + "/" + name);
    return text.ok() ? *text : "";
  }
  bool Has(const std::string& name) const { return std::filesystem::exists(output() + "/" + name); }
  // The number in the model that the job left; -1: it left none. After a header of 8 bytes and its
  // length.
  float Model() const {
    const std::string file = Read("model.safetensors");
    if (file.size() < 12) return -1;
    float w = 0;
    std::memcpy(&w, file.data() + file.size() - 4, 4);
    return w;
  }
  bool IsFinal(int64_t step) const {
    const auto checkpoint =
        checkpoint::Checkpoint::Open(checkpoint::CheckpointFolder(output() + "/checkpoints", step));
    return checkpoint.ok() &&
           (*checkpoint)->index().metadata.contains(std::string(saving::kFinalKey));
  }

  const testing_folder::TempFolder folder_;
  Script script_;
};

TEST_F(TrainingTest, AJobThatIsDoneLeavesItsModelAndSaysWhichCheckpointIsTheLast) {
  EXPECT_EQ(Train(), OkStatus());
  EXPECT_THAT(script_.called, ElementsAre("Start", "Open", "Begin", "Fit", "End"));
  EXPECT_THAT(script_.saved, ElementsAre(5, 10, 15)) << "after each epoch";
  EXPECT_EQ(Model(), 15);
  EXPECT_THAT(Read("model.safetensors"), ::testing::Not(HasSubstr("slot")));
  EXPECT_TRUE(IsFinal(15));
  EXPECT_EQ(Read("plan.txt"), "a plan");
  EXPECT_THAT(Read("report.html"), HasSubstr(R"("state":{"phase":"ended","why":"","step":15,)"
                                             R"("steps":15,"epoch":3,"epochs":3,)"));
  EXPECT_THAT(Read("run.json"), HasSubstr(R"("phase":"ended")"));
  EXPECT_THAT(Read("report.html"), HasSubstr(Read("run.json").substr(0, 200)));
  EXPECT_EQ(script_.closed, OkStatus());
}

// Also where the checkpoint to go on from cannot be read any more, or the model not be written.
TEST_F(TrainingTest, TheReportSaysWhatTheProcessEndsWithAfterItsTrainingToo) {
  script_.fails = {{3, Unavailable("worker-2 lost")}};
  script_.again = {1};
  script_.begin_again = Unavailable("worker-2 did not come back").From(Origin::kPeers);
  EXPECT_EQ(Train(), *script_.begin_again);
  EXPECT_THAT(Read("report.html"),
              HasSubstr(R"("phase":"failed","why":"worker-2 did not come back","step":2,)"));
  std::filesystem::remove_all(output());
  script_.begin_again.reset();
  std::filesystem::create_directories(output() + "/model.safetensors/in the way");
  const Status end = Train();
  EXPECT_FALSE(end.ok());
  EXPECT_THAT(Read("report.html"), HasSubstr(R"("state":{"phase":"failed","why":")"));
  EXPECT_THAT(Read("report.html"), HasSubstr("model.safetensors"));
}

// Each begins at the newest checkpoint, and the lines behind it are told again.
TEST_F(TrainingTest, RoundsFollowUntilOneIsNotCutShort) {
  script_.fails = {{3, Unavailable("worker-2 lost")}, {8, Unavailable("worker-2 lost")}};
  script_.again = {1, 2};
  EXPECT_EQ(Train(), OkStatus());
  EXPECT_THAT(script_.starts, ElementsAre(0, 0, 5));
  EXPECT_THAT(script_.saved, ElementsAre(5, 10, 15));
  const std::string lines = Read("metrics.jsonl");
  EXPECT_EQ(std::count(lines.begin(), lines.end(), '\n'), 3 * kStepsPerEpoch);
  EXPECT_EQ(Model(), 15);
}

TEST_F(TrainingTest, AStoppedJobSavesAndIsNotDone) {
  std::stop_source stop;
  script_.stop = &stop;
  const Status end = Train("", stop.get_token());
  EXPECT_EQ(end.origin(), Origin::kStop) << end.ToString();
  EXPECT_THAT(script_.saved, ElementsAre(3));
  EXPECT_EQ(Model(), 3);
  EXPECT_FALSE(IsFinal(3));
  EXPECT_THAT(
      Read("report.html"),
      HasSubstr(R"("phase":"stopped","why":"asked to stop at step 3; run again to go on")"));
  EXPECT_EQ(script_.closed->origin(), Origin::kStop);
}

TEST_F(TrainingTest, AJobThatIsStoppedBeforeItsFirstStepSavesNothing) {
  std::stop_source stop;
  stop.request_stop();
  EXPECT_EQ(Train("", stop.get_token()).origin(), Origin::kStop);
  EXPECT_THAT(script_.saved, ElementsAre());
  EXPECT_FALSE(Has("model.safetensors"));
}

// The model of a run that had ended stays until another has; one that was stopped leaves its own
// over that of one that was stopped.
TEST_F(TrainingTest, AStoppedJobLeavesTheModelOfOneThatHadEnded) {
  const auto stop_at = [this](int64_t step) {
    std::filesystem::remove_all(output() + "/checkpoints");
    script_ = {};
    std::stop_source stop;
    script_.stop = &stop;
    script_.stop_at = step;
    EXPECT_EQ(Train("", stop.get_token()).origin(), Origin::kStop);
    EXPECT_THAT(script_.saved, ElementsAre(step));
    return Model();
  };
  EXPECT_EQ(stop_at(2), 2);
  EXPECT_EQ(stop_at(3), 3);
  EXPECT_EQ(Train(), OkStatus());
  EXPECT_EQ(Model(), 15);
  EXPECT_EQ(stop_at(2), 15);
  EXPECT_EQ(stop_at(3), 15);
}

// The text alone is left to the next run, after a stop as after an error.
TEST_F(TrainingTest, AJobIsDoneWithItsText) {
  const Status error = InvalidArgument("a layer looks ahead").From(Origin::kManifest);
  const Status stop = Cancelled("generate: stopped").From(Origin::kStop);
  for (const Status& why : {stop, error}) {
    script_.text = why;
    const Status end = Train();
    EXPECT_EQ(end.origin(), why.origin()) << end.ToString();
    EXPECT_EQ(Model(), 15);
    EXPECT_FALSE(IsFinal(15));
    EXPECT_FALSE(Has("generated.txt"));
    EXPECT_THAT(
        Read("report.html"),
        HasSubstr(why == stop
                      ? R"("phase":"stopped","why":"asked to stop at step 15; run again to go on")"
                      : R"("phase":"failed","why":"a layer looks ahead")"));
  }
  script_.text = std::optional<std::string>("once upon a time");
  EXPECT_EQ(Train(), OkStatus());
  EXPECT_THAT(script_.starts, ElementsAre(0, 15, 15));
  EXPECT_THAT(script_.saved, ElementsAre(5, 10, 15));
  EXPECT_EQ(Read("generated.txt"), "once upon a time");
  EXPECT_TRUE(IsFinal(15));
}

TEST_F(TrainingTest, AnErrorOfAStepEndsTheJobWithItAndTheReportStays) {
  const Status why = InvalidArgument("example 4711: label 12, but 10 classes").From(Origin::kInput);
  script_.fails = {{7, why}};
  EXPECT_EQ(Train(), why);
  EXPECT_EQ(script_.closed, why);
  EXPECT_EQ(Model(), -1);
  EXPECT_THAT(Read("report.html"),
              HasSubstr(R"("phase":"failed","why":"example 4711: label 12, but 10 classes",)"
                        R"("step":6,"steps":15,"epoch":2,"epochs":3)"));
  EXPECT_FALSE(IsFinal(5));
}

TEST_F(TrainingTest, AJobThatCannotBeginWritesNoReport) {
  script_.begin = Unavailable("nobody came").From(Origin::kPeers);
  EXPECT_EQ(Train(), *script_.begin);
  EXPECT_EQ(script_.closed, *script_.begin);
  EXPECT_THAT(script_.called, ElementsAre("Start", "Open", "Begin"));
  EXPECT_FALSE(Has("report.html"));
}

TEST_F(TrainingTest, NumbersThatAreNotFiniteLeaveNoModel) {
  script_.fails = {{7, Aborted("output `loss` is not finite")}};
  const Status end = Train();
  EXPECT_EQ(end.origin(), Origin::kNumbers);
  EXPECT_THAT(end.message(), HasSubstr("step 7: output `loss` is not finite"));
  EXPECT_THAT(Read("report.html"), HasSubstr(R"("phase":"failed","why":")" + end.message()));
  EXPECT_EQ(Model(), -1);
  EXPECT_FALSE(IsFinal(5));
}

TEST_F(TrainingTest, EarlyStoppingEndsItAndTheReportSaysWhy) {
  script_.loss = [](int64_t) { return 1.0; };
  EXPECT_EQ(Train(", early_stopping: {monitor: loss, patience: 1}"), OkStatus());
  EXPECT_THAT(script_.saved, ElementsAre(5, 10));
  EXPECT_EQ(Model(), 10);
  EXPECT_TRUE(IsFinal(10));
  EXPECT_THAT(
      Read("report.html"),
      HasSubstr(
          R"("phase":"ended","why":"stopped early: step 10: loss has not been better than 1.0000)"));
}

TEST_F(TrainingTest, TheBestEpochsWeightsAreTheModelAlsoOfAResumedJob) {
  script_.loss = [](int64_t step) { return step <= 5 ? 1.0 : 2.0; };
  const std::string best =
      ", early_stopping: {monitor: loss, patience: 9, restore_best_weights: true}";
  EXPECT_EQ(Train(best), OkStatus());
  EXPECT_EQ(Model(), 5);
  // Two are kept, and the best.
  EXPECT_TRUE(Has("checkpoints/ckpt-00000005"));
  EXPECT_TRUE(IsFinal(15));
  // Broken off in the third epoch, its first epoch is known from the checkpoint.
  std::filesystem::remove_all(output());
  script_.fails = {{12, Unavailable("worker-2 lost")}};
  script_.again = {1};
  EXPECT_EQ(Train(best), OkStatus());
  EXPECT_EQ(script_.starts.back(), 10);
  EXPECT_EQ(Model(), 5);
}

TEST_F(TrainingTest, ABestEpochThatAnEarlierRunDidNotKeepLeavesTheLastOnesWeights) {
  script_.loss = [](int64_t step) { return step <= 5 ? 1.0 : 2.0; };
  script_.fails = {{12, Unavailable("the machine went down")}};
  const std::string early = ", early_stopping: {monitor: loss, patience: 9";
  EXPECT_FALSE(Train(early + "}").ok());
  std::filesystem::remove_all(output() + "/checkpoints/ckpt-00000005");
  ::testing::internal::CaptureStdout();
  EXPECT_EQ(Train(early + ", restore_best_weights: true}"), OkStatus());
  EXPECT_THAT(::testing::internal::GetCapturedStdout(), ::testing::Not(HasSubstr("best epoch")));
  EXPECT_EQ(script_.starts.back(), 10);
  EXPECT_EQ(Model(), 15);
  EXPECT_TRUE(IsFinal(15));
}

TEST_F(TrainingTest, AJobThatBeginsAtItsEndLeavesTheModelOfItsCheckpoint) {
  script_.resume_at = 15;
  ::testing::internal::CaptureStdout();
  EXPECT_EQ(Train(), OkStatus());
  const std::string said = ::testing::internal::GetCapturedStdout();
  EXPECT_THAT(said, HasSubstr("nothing is left to train: " + output() +
                              "/checkpoints/ckpt-00000015 is the end of 3 epochs"));
  EXPECT_THAT(said, ::testing::Not(HasSubstr("epoch 0/0")));
  EXPECT_EQ(Model(), 15);
  EXPECT_TRUE(IsFinal(15));
}

// The run before was asked for more epochs, and was stopped.
TEST_F(TrainingTest, AJobThatBeginsBehindItsEndSaysSo) {
  script_.resume_at = 35;
  ::testing::internal::CaptureStdout();
  EXPECT_EQ(Train(), OkStatus());
  EXPECT_THAT(::testing::internal::GetCapturedStdout(),
              HasSubstr("nothing is left to train: " + output() +
                        "/checkpoints/ckpt-00000035 has trained 7 epochs, asked for: 3\n"));
  EXPECT_EQ(Model(), 35);
}

}  // namespace
}  // namespace meshtrain::trainer
