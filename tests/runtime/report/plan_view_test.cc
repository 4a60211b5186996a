#include "runtime/report/plan_view.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/runtime/sharding/models.h"

namespace meshtrain::report {
namespace {

using ::testing::HasSubstr;
using Axes = std::vector<std::string>;

plan::Plan TwoAxes() {
  const mesh::Mesh mesh = *mesh::Mesh::Parse("batch=4,model=2")->OverProcesses(2);
  sharding::Given given;
  given.inputs.insert_or_assign("x", *mesh::Layout::BatchSharded(mesh, "batch", 2));
  GiveLayer(given, "hidden_1", *mesh::Layout::Parse("{*, model}", mesh));
  auto partitioned = sharding::Shard(sharding::MlpTrainStep({}), mesh, given);
  EXPECT_TRUE(partitioned.ok()) << partitioned.status().ToString();
  auto plan = plan::MakePlan(*std::move(partitioned));
  EXPECT_TRUE(plan.ok()) << plan.status().ToString();
  return *std::move(plan);
}

// The page says what `meshtrain plan` prints.
TEST(PlanViewTest, HasTheFiguresThatThePlanPrints) {
  const plan::Plan plan = TwoAxes();
  const std::string printed = plan.Report();
  const PlanView view = ViewOf(plan);
  EXPECT_EQ(view.axes, (std::vector<std::pair<std::string, int64_t>>{{"batch", 4}, {"model", 2}}));
  EXPECT_EQ(view.num_devices, 8);
  EXPECT_EQ(view.devices,
            (Axes{"cpu:0", "cpu:1", "cpu:2", "cpu:3", "1/cpu:0", "1/cpu:1", "1/cpu:2", "1/cpu:3"}));
  ASSERT_EQ(view.inputs.size(), plan.local().inputs.size());
  ASSERT_EQ(view.variables.size(), plan.local().states.size());
  for (const auto* list : {&view.inputs, &view.variables}) {
    for (const Variable& v : *list) {
      const size_t at = printed.find("  " + v.name + " ");
      ASSERT_NE(at, std::string::npos) << v.name;
      const std::string line = printed.substr(at, printed.find('\n', at + 1) - at);
      for (const std::string& text : {v.type, v.layout, v.shard})
        EXPECT_THAT(line, HasSubstr(text));
    }
  }
  const Variable& kernel = view.variables[0];
  EXPECT_EQ(kernel.name, "hidden_1.kernel");
  EXPECT_EQ(kernel.split, (std::vector<Axes>{{}, {"model"}}));
  EXPECT_EQ(kernel.shard, "f32[784,350]");
  EXPECT_EQ(kernel.bytes, 784 * 350 * 4);
  EXPECT_EQ(view.inputs[0].split[0], Axes{"batch"});
  int64_t bytes = 0;
  for (const Collective& c : view.collectives) {
    EXPECT_THAT(printed, HasSubstr(std::to_string(c.bytes) + " bytes ("));
    bytes += c.bytes;
  }
  EXPECT_EQ(bytes, plan.CollectiveBytesPerStep());
  EXPECT_GT(bytes, 0);
  int64_t memory = 0;
  for (const auto& [what, n] : view.memory) memory += n;
  EXPECT_EQ(memory, view.peak_bytes);
  EXPECT_EQ(view.peak_bytes, plan.peak_bytes);
}

TEST(PlanViewTest, OneDeviceHasNoAxesAndNoCollectives) {
  auto partitioned = sharding::Shard(sharding::MlpTrainStep({}), mesh::Mesh(), {});
  ASSERT_TRUE(partitioned.ok());
  const auto plan = plan::MakePlan(*std::move(partitioned));
  ASSERT_TRUE(plan.ok()) << plan.status().ToString();
  const PlanView view = ViewOf(*plan);
  EXPECT_TRUE(view.axes.empty());
  EXPECT_EQ(view.devices, Axes{"cpu:0"});
  EXPECT_TRUE(view.collectives.empty());
}

}  // namespace
}  // namespace meshtrain::report
