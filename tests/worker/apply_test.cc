// What `meshtrain-worker evaluate` and `predict` make of their command line, and what they print.
#include "worker/apply.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <string>
#include <vector>

#include "runtime/cluster/contract.h"
#include "runtime/data/npy.h"

namespace meshtrain::worker {
namespace {

using mesh::Tensor;
using ::testing::HasSubstr;

class ApplyTest : public ::testing::Test {
 protected:
  std::variant<ApplyConfig, int> Parse(std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), "meshtrain-worker");
    std::vector<char*> argv;
    for (std::string& argument : arguments) argv.push_back(argument.data());
    EXPECT_TRUE(AsksToApply(static_cast<int>(argv.size()), argv.data()));
    ::testing::internal::CaptureStderr();
    ::testing::internal::CaptureStdout();
    auto parsed = ParseApply(static_cast<int>(argv.size()), argv.data());
    said_ = ::testing::internal::GetCapturedStdout() + ::testing::internal::GetCapturedStderr();
    return parsed;
  }
  std::string said_;
};

TEST_F(ApplyTest, AnEvaluationHasNoInput) {
  const auto parsed = Parse({"evaluate", "-f", "job.yaml", "--from", "runs/x", "-o", "json"});
  ASSERT_TRUE(std::holds_alternative<ApplyConfig>(parsed)) << said_;
  const auto& config = std::get<ApplyConfig>(parsed);
  EXPECT_EQ(config.job.file, "job.yaml");
  EXPECT_EQ(config.from, "runs/x");
  EXPECT_EQ(config.report, "json");
  EXPECT_EQ(config.input, "");
  EXPECT_EQ(config.caller, "meshtrain-worker evaluate");
}

TEST_F(ApplyTest, TheOutputsNameSaysTheFormatUnlessAFlagDoes) {
  const std::vector<std::string> common = {"predict", "-f", "j", "--from", "w", "--input", "x.npy"};
  const auto with = [&](std::vector<std::string> more) {
    more.insert(more.begin(), common.begin(), common.end());
    return Parse(more);
  };
  using F = OutputFormat;
  EXPECT_EQ(std::get<ApplyConfig>(with({"--output", "a.npy"})).format, F::kNpy);
  EXPECT_EQ(std::get<ApplyConfig>(with({"--output", "a.csv"})).format, F::kCsv);
  EXPECT_EQ(std::get<ApplyConfig>(with({"--output", "a.jsonl"})).format, F::kJsonLines);
  EXPECT_EQ(std::get<ApplyConfig>(with({"--output=-"})).format, F::kCsv);
  EXPECT_EQ(std::get<ApplyConfig>(with({"--output=-", "--format", "npy"})).format, F::kNpy);
  EXPECT_EQ(std::get<int>(with({"--output", "a.txt"})), cluster::kExitUsage);
  EXPECT_THAT(said_, HasSubstr("expected a name with .npy, .csv or .jsonl"));
  EXPECT_EQ(std::get<int>(Parse(common)), cluster::kExitUsage);
}

TEST(OutputsTest, AreALineForEachExample) {
  const float values[] = {0.1F, -2, 3e20F, std::numeric_limits<float>::quiet_NaN(), 5, 6, 7, 8};
  const Tensor square = Tensor::Of<float>({2, 2, 2}, values);
  EXPECT_EQ(FormatOutputs(square, OutputFormat::kCsv), "0.1,-2,3e+20,nan\n5,6,7,8\n");
  EXPECT_EQ(FormatOutputs(square, OutputFormat::kJsonLines),
            "[[0.1,-2],[3e+20,null]]\n[[5,6],[7,8]]\n");
  EXPECT_EQ(FormatOutputs(square, OutputFormat::kNpy), data::FormatNpy(square));
  const int64_t classes[] = {3, 1};
  EXPECT_EQ(FormatOutputs(Tensor::Of<int64_t>({2}, classes), OutputFormat::kJsonLines), "3\n1\n");
  EXPECT_EQ(FormatOutputs(Tensor::Of<int64_t>({2}, classes), OutputFormat::kCsv), "3\n1\n");
}

TEST(OutputsTest, EachOfSeveralHasAFileOfItsOwn) {
  EXPECT_EQ(FileOfOutput("a.b/c.npy", ""), "a.b/c.npy");
  EXPECT_EQ(FileOfOutput("a.b/c.npy", "digit"), "a.b/c.digit.npy");
  EXPECT_EQ(FileOfOutput("a.b/c", "digit"), "a.b/c.digit");
  EXPECT_EQ(FileOfOutput(".npy", "digit"), ".npy.digit");
  EXPECT_EQ(FileOfOutput("c.jsonl", "digit"), "c.digit.jsonl");
}

TEST(FiguresTest, AreShortForPeopleAndWholeForPrograms) {
  const train::Scalars figures = {{"loss", 0.1}, {"accuracy", 2.0 / 3}};
  EXPECT_EQ(FormatFigures("w", 40, figures, "table"),
            "loss       0.1000\naccuracy   0.6667\nexamples   40\n");
  EXPECT_EQ(FormatFigures("a \"b\"", 40, figures, "json"),
            "{\n  \"from\": \"a \\\"b\\\"\",\n  \"examples\": 40,\n  \"figures\": {\n"
            "    \"loss\": 0.1,\n    \"accuracy\": 0.6666666666666666\n  }\n}\n");
  const std::string yaml = FormatFigures("w", 40, figures, "yaml");
  EXPECT_THAT(yaml, HasSubstr("examples: 40\nfigures: {loss: 0.1, "));
  EXPECT_THAT(yaml, HasSubstr("accuracy: 0.6666666666666666"));
  const train::Scalars bad = {{"loss", std::numeric_limits<double>::quiet_NaN()}};
  EXPECT_THAT(FormatFigures("w", 1, bad, "json"), HasSubstr("\"loss\": null"));
}

}  // namespace
}  // namespace meshtrain::worker
