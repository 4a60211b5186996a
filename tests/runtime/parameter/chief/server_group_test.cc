// The coordinator's calls to servers that answer late.
#include "runtime/parameter/chief/server_group.h"

#include <gtest/gtest.h>

#include <thread>

#include "tests/runtime/parameter/server/held_server.h"

namespace meshtrain::parameter {
namespace {

using mesh::DType;
using mesh::Tensor;
using mesh::TensorType;
using std::chrono::seconds;

// Two counts on one server.
class ServerGroupTest : public ::testing::Test {
 protected:
  ServerGroupTest() {
    const std::vector<Parameter> variables = {Count("a"), Count("b")};
    const auto definitions = Must(planner_.AddVariables(variables));
    EXPECT_TRUE(group_->SetUp({.term = 1}, seconds(20), {}).ok());
    EXPECT_TRUE(group_->Define(definitions, seconds(20), {}).ok());
  }
  static Parameter Count(const std::string& name) {
    return Parameter(name, TensorType{DType::kI64, {}}, nn::Initializer::Zeros(),
                     {.trainable = false});
  }
  void Write(const std::string& name, int64_t value) {
    const Status written =
        group_->Write(planner_.states().at(name), Tensor::Scalar<int64_t>(value), seconds(20), {});
    EXPECT_TRUE(written.ok()) << written.ToString();
  }

  HeldServer server_;
  Planner planner_{Whole{}, 1, 7};
  std::unique_ptr<ServerGroup> group_ =
      Must(ServerGroup::Create({server_.address()}, TestIdentity(), seconds(20)));
};

// A write said that all before it had been answered. One that was still on its way was then taken
// for one that comes again: acknowledged, and never applied.
TEST_F(ServerGroupTest, AWriteThatIsOvertakenIsApplied) {
  server_.HoldNextPush();
  std::jthread first([&] { Write("a", 41); });
  ASSERT_TRUE(server_.WaitForHeldPush());
  Write("b", 42);
  first.join();
  EXPECT_EQ(server_.Read("a").Item(), 41);
  EXPECT_EQ(server_.Read("b").Item(), 42);
  Write("a", 43);  // all before it are settled
  EXPECT_EQ(server_.Read("a").Item(), 43);
}

}  // namespace
}  // namespace meshtrain::parameter
