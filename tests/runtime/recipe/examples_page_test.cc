// docs/examples.md shows plans: each line of them, those of reshards apart, is what `meshtrain
// plan` prints of that example now.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "runtime/base/file.h"
#include "runtime/base/text.h"
#include "runtime/recipe/step_plan.h"

namespace meshtrain::recipe {
namespace {

using mesh::DType;
using mesh::TensorType;
using ::testing::HasSubstr;

const std::string kRoot = std::string(MT_TESTDATA) + "/../../";

struct PageCase {
  std::string example;
  std::vector<TensorType> types;
};
void PrintTo(const PageCase& c, std::ostream* out) { *out << c.example; }

const PageCase kPageCases[] = {
    {"mnist-mlp", {{DType::kF32, {128, 28, 28}}, {DType::kI32, {128}}}},
    {"mnist-mlp-model-parallel", {{DType::kF32, {128, 28, 28}}, {DType::kI32, {128}}}},
    {"lenet", {{DType::kF32, {100, 28, 28}}, {DType::kI32, {100}}}},
    {"resnet", {{DType::kF32, {64, 32, 32, 3}}, {DType::kI32, {64}}}},
    {"charlm", {{DType::kU8, {16, 128}}, {DType::kI32, {16, 128}}}},
    {"parameter-server", {{DType::kF32, {128, 28, 28}}, {DType::kI32, {128}}}},
};

Result<plan::Plan> PlanOfExample(const PageCase& example, int64_t parts) {
  const std::string file = example.example + ".yaml";
  MT_ASSIGN_OR_RETURN(const std::string text, ReadFile(kRoot + "deploy/examples/" + file));
  MT_ASSIGN_OR_RETURN(manifest::Manifest read, ParseManifest(text, file));
  read.program.train.accumulate = parts;
  MT_ASSIGN_OR_RETURN(const Declared declared, Declared::Create(read.program));
  return StepPlanOf(read.program, declared, example.types);
}

std::string Page() {
  const auto page = ReadFile(kRoot + "docs/examples.md");
  EXPECT_TRUE(page.ok()) << page.status().message();
  return page.ok() ? *page : "";
}

// The lines of the plan in the section of that name.
std::vector<std::string> ShownOf(const std::string& example) {
  std::vector<std::string> shown;
  bool section = false, plan = false, reshards = false;
  for (const std::string& line : Split(Page(), '\n')) {
    if (line.starts_with("## ")) section = line == "## " + example;
    if (!section) continue;
    if (line.starts_with("```")) plan = false;
    plan = plan || line.starts_with("plan of ");
    if (!line.starts_with(" ")) reshards = line == "reshards";
    const bool left_out = line.find_first_not_of(" .") == std::string::npos;
    if (plan && !left_out && !reshards) shown.push_back(line);
  }
  return shown;
}

class ExamplesPageTest : public ::testing::TestWithParam<PageCase> {};
INSTANTIATE_TEST_SUITE_P(Examples, ExamplesPageTest, ::testing::ValuesIn(kPageCases),
                         [](const auto& info) {
                           std::string name;
                           for (const char c : info.param.example) {
                             if (c != '-') name += c;
                           }
                           return name;
                         });

TEST_P(ExamplesPageTest, ShowsThePlanAsItIs) {
  const auto plan = PlanOfExample(GetParam(), 1);
  ASSERT_TRUE(plan.ok()) << plan.status().message();
  const std::string report = plan->Report();
  const std::vector<std::string> shown = ShownOf(GetParam().example);
  EXPECT_GE(shown.size(), 6u);
  for (const std::string& line : shown) EXPECT_THAT(report, HasSubstr(line + "\n"));
}

TEST(ExamplesPartsTest, ThePageSaysWhatPartsNeed) {
  const std::string page = Page();
  const std::pair<const PageCase*, int64_t> rows[] = {{&kPageCases[3], 1},
                                                      {&kPageCases[3], 4},
                                                      {&kPageCases[3], 8},
                                                      {&kPageCases[4], 1},
                                                      {&kPageCases[4], 4}};
  for (const auto& [example, parts] : rows) {
    const auto plan = PlanOfExample(*example, parts);
    ASSERT_TRUE(plan.ok()) << plan.status().message();
    const std::string begin = fmt::format("| {} | {} | {} |", parts, HumanBytes(plan->peak_bytes),
                                          HumanBytes(plan->arena_bytes));
    EXPECT_THAT(page, HasSubstr(begin)) << example->example;
    const std::string rest = page.substr(std::min(page.find(begin), page.size()));
    EXPECT_THAT(rest.substr(0, rest.find('\n')),
                HasSubstr("| " + HumanBytes(plan->CollectiveBytesPerStep()) + " |"))
        << example->example;
  }
}

}  // namespace
}  // namespace meshtrain::recipe
