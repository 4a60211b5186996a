// The evaluator beside a job, over checkpoints that the test saves.
#include "worker/evaluator.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <future>
#include <nlohmann/json.hpp>
#include <sstream>

#include "runtime/saving/resume.h"
#include "tests/worker/small_job.h"
#include "worker/service.h"

namespace meshtrain::worker {
namespace {

using nlohmann::json;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class EvaluatorTest : public SmallJobTest {
 protected:
  Status Run() {
    trainer::JobConfig config = Config(job_.empty() ? Text() : job_);
    config.output = output_;
    config.job.tf_config = cluster::TfConfig{.cluster = {}, .task = {cluster::Role::kEvaluator, 0}};
    ::testing::internal::CaptureStdout();
    ::testing::internal::CaptureStderr();
    const Status end = Serve(config, {});
    out_ = ::testing::internal::GetCapturedStdout();
    err_ = ::testing::internal::GetCapturedStderr();
    return end;
  }
  // Of metrics.jsonl; every loss must be that of ten classes that are all as likely.
  std::vector<int64_t> Steps() const {
    std::vector<int64_t> steps;
    const auto text = ReadFile(output_ + "/metrics.jsonl");
    std::istringstream lines(text.ok() ? *text : "");
    for (std::string line; std::getline(lines, line);) {
      const json record = json::parse(line);
      steps.push_back(record["step"]);
      EXPECT_NEAR(record["loss"].get<double>(), std::log(10.0), 1e-5) << line;
      EXPECT_TRUE(record.contains("accuracy")) << line;
    }
    return steps;
  }

  const std::string checkpoints_ = folder_.path() + "/checkpoints";
  std::string output_ = folder_.path() + "/out";
  std::string job_;  // "": as Text has it
  std::string out_, err_;
};

TEST_F(EvaluatorTest, EvaluatesEachCheckpointUpToTheLastAndEachOnce) {
  Save(checkpoints_, EvenModel(10, 0), /*final=*/false);
  Save(checkpoints_, EvenModel(20, 5), /*final=*/true);
  const Status end = Run();
  ASSERT_TRUE(end.ok()) << end.ToString();
  EXPECT_THAT(Steps(), ElementsAre(10, 20));
  EXPECT_THAT(out_, HasSubstr("step 20  loss 2.3026  accuracy "));
  EXPECT_THAT(out_, HasSubstr("evaluated 2 checkpoints"));
  // Started again it has nothing left to do.
  ASSERT_TRUE(Run().ok());
  EXPECT_THAT(Steps(), ElementsAre(10, 20));
  EXPECT_THAT(out_, HasSubstr("evaluated 0 checkpoints"));
}

checkpoint::Snapshot OfRun(const std::string& id, int64_t step, int number = 0) {
  checkpoint::Snapshot snapshot = EvenModel(step, 0);
  snapshot.metadata[std::string(saving::kRunIdKey)] = id;
  snapshot.metadata[std::string(saving::kRunKey)] = std::to_string(number);
  return snapshot;
}

TEST_F(EvaluatorTest, TheFiguresOfAnotherRunGiveWay) {
  Save(checkpoints_, OfRun("a", 10), /*final=*/false);
  Save(checkpoints_, OfRun("a", 20), /*final=*/true);
  ASSERT_TRUE(Run().ok());
  EXPECT_THAT(Steps(), ElementsAre(10, 20));
  // In another folder.
  Save(folder_.path() + "/ck2", OfRun("b", 5), /*final=*/true);
  job_ = Replaced(Text(), folder_.path() + "/checkpoints", folder_.path() + "/ck2");
  ASSERT_TRUE(Run().ok());
  EXPECT_THAT(Steps(), ElementsAre(5));
  // And in one that was emptied meanwhile.
  std::filesystem::remove_all(folder_.path() + "/ck2");
  Save(folder_.path() + "/ck2", OfRun("c", 5), /*final=*/false);
  Save(folder_.path() + "/ck2", OfRun("c", 7), /*final=*/true);
  ASSERT_TRUE(Run().ok());
  EXPECT_THAT(Steps(), ElementsAre(5, 7));
}

// Nobody said whose the lines are.
TEST_F(EvaluatorTest, LinesOfAnUnknownRunGiveWay) {
  ASSERT_TRUE(MakeDirectories(output_).ok());
  ASSERT_TRUE(WriteFileAtomically(output_ + "/metrics.jsonl", R"({"step":30,"epoch":1,"loss":9})"
                                                              "\n")
                  .ok());
  Save(checkpoints_, OfRun("a", 10), /*final=*/true);
  ASSERT_TRUE(Run().ok());
  EXPECT_THAT(Steps(), ElementsAre(10));
}

// Whoever saves to the job's own folder replaces a run there that has ended.
TEST_F(EvaluatorTest, ARunThatWasReadToItsEndIsNoEndInTheJobsOwnFolder) {
  output_ = folder_.path() + "/evaluator-0";
  Save(checkpoints_, OfRun("a", 10), /*final=*/true);
  ASSERT_TRUE(Run().ok());
  EXPECT_THAT(Steps(), ElementsAre(10));
  const auto waits = std::async(std::launch::async, [&] { return Run(); });
  EXPECT_EQ(waits.wait_for(std::chrono::seconds(2)), std::future_status::timeout);
  EXPECT_THAT(Steps(), ElementsAre(10));
  Save(checkpoints_, OfRun("b", 4, 1), /*final=*/false);
  Save(checkpoints_, OfRun("b", 10, 1), /*final=*/true);
  waits.wait();
  EXPECT_THAT(Steps(), ElementsAre(4, 10));
}

// All classes are as likely: what figures come to is known without a model.
TEST_F(EvaluatorTest, SumsOfAllBatchesComeToTheFigures) {
  Save(checkpoints_, EvenModel(10, 0), /*final=*/true);
  job_ = Replaced(Text(), "metrics: [accuracy]",
                  "metrics: [accuracy, perplexity, auc: {class: 3}, recall: {class: 0, name: of_0},"
                  " recall: {class: 1, name: of_1}, precision: {class: 0}]");
  const Status end = Run();
  ASSERT_TRUE(end.ok()) << end.ToString();
  EXPECT_THAT(Steps(), ElementsAre(10));
  const json line = json::parse(ReadFile(folder_.path() + "/out/metrics.jsonl").value());
  EXPECT_NEAR(line["perplexity"].get<double>(), 10, 1e-5);
  EXPECT_EQ(line["auc"], 0.5);
  EXPECT_EQ(line["of_0"], 1) << "the first of the largest is said";
  EXPECT_EQ(line["of_1"], 0);
  EXPECT_GT(line["precision"].get<double>(), 0);
  EXPECT_EQ(line["precision"].get<double>(), std::round(line["accuracy"].get<double>() * 200) / 200)
      << "200 examples, of which all are said to be of class 0";
}

TEST_F(EvaluatorTest, PassesOverADamagedCheckpointUnlessItIsTheLast) {
  Damage(Save(checkpoints_, EvenModel(10, 0), /*final=*/false));
  const std::string last = Save(checkpoints_, EvenModel(20, 0), /*final=*/true);
  ASSERT_TRUE(Run().ok());
  EXPECT_THAT(Steps(), ElementsAre(20));
  EXPECT_THAT(err_, HasSubstr("ckpt-00000010"));
  Damage(last);
  std::filesystem::remove_all(folder_.path() + "/out");
  EXPECT_EQ(Run().code(), StatusCode::kDataLoss);
  EXPECT_THAT(Steps(), ElementsAre());
}

TEST_F(EvaluatorTest, WeightsOfAnotherModelAreRefused) {
  checkpoint::Snapshot other = EvenModel(10, 0);
  const mesh::Tensor five = Filled({5}, 0);
  other.variables[1] = {"logits.bias", five.type(), "", {{{0}, five}}};
  Save(checkpoints_, other, /*final=*/true);
  const Status end = Run();
  EXPECT_EQ(end.code(), StatusCode::kInvalidArgument) << end.ToString();
  EXPECT_THAT(end.message(), HasSubstr("`logits.bias`: expected f32[10], got: f32[5]"));
  EXPECT_THAT(Steps(), ElementsAre());
}

}  // namespace
}  // namespace meshtrain::worker
