// Which values several devices hold copies of, and what is said where two copies differ.
#include "runtime/saving/copies.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace meshtrain::saving {
namespace {

using mesh::Layout;
using mesh::Mesh;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

std::string Worker(int process) { return "worker-" + std::to_string(process); }

// On batch=2,model=2 in two processes: rank = 2 * batch + model, of which 0 and 1 are worker-0's.
std::vector<StoredVariable> Variables() {
  const Mesh mesh = Mesh::Parse("batch=2,model=2").value().OverProcesses(2).value();
  return {{"whole", {3}, Layout::Replicated(mesh, 1)},
          {"rows", {4, 2}, Layout::Parse("{model, *}", mesh).value()},
          {"apart", {4, 2}, Layout::Replicated(mesh, 2).WithDim(0, {0, 1})},
          {"short", {1, 2}, Layout::Parse("{model, *}", mesh).value()}};
}

TEST(CopiesTest, AreThePartsThatMoreThanOneDeviceHolds) {
  const std::vector<Copy> want = {
      // All of `whole`, everywhere.
      {.variable = 0, .rank = 0, .part = 0},
      {.variable = 0, .rank = 1, .part = 0},
      {.variable = 0, .rank = 2, .part = 0},
      {.variable = 0, .rank = 3, .part = 0},
      // Two rows each, twice; nothing of `apart`, of which each device has its own row.
      {.variable = 1, .rank = 0, .part = 0},
      {.variable = 1, .rank = 1, .part = 1},
      {.variable = 1, .rank = 2, .part = 0},
      {.variable = 1, .rank = 3, .part = 1},
      // Of one row over two devices the second holds none.
      {.variable = 3, .rank = 0, .part = 0},
      {.variable = 3, .rank = 2, .part = 0},
  };
  EXPECT_EQ(CopiesOf(Variables()), want);
  EXPECT_TRUE(CopiesOf({}).empty());
}

TEST(CopiesTest, EqualHashesOfEachPartAreWell) {
  const auto variables = Variables();
  const auto copies = CopiesOf(variables);
  const std::vector<uint64_t> hashes = {7, 7, 7, 7, 1, 2, 1, 2, 5, 5};
  EXPECT_EQ(CompareCopies(variables, copies, hashes, Worker), OkStatus());
}

TEST(CopiesTest, ADifferenceNamesTheVariableAndWhoHoldsWhat) {
  const auto variables = Variables();
  const auto copies = CopiesOf(variables);
  const Status one =
      CompareCopies(variables, copies, std::vector<uint64_t>{7, 7, 9, 7, 1, 2, 1, 2, 5, 5}, Worker);
  EXPECT_EQ(one.code(), StatusCode::kInternal);
  EXPECT_THAT(one.message(),
              AllOf(HasSubstr("variable `whole`: expected equal copies"),
                    HasSubstr("0000000000000007 on rank 0 (worker-0), rank 1 (worker-0), rank 3 "
                              "(worker-1); 0000000000000009 on rank 2 (worker-1)")));
  // Parts are compared with their own copies alone.
  const Status two =
      CompareCopies(variables, copies, std::vector<uint64_t>{7, 7, 7, 7, 1, 2, 1, 1, 5, 6}, Worker);
  EXPECT_THAT(two.message(), AllOf(HasSubstr("variable `rows` and 1 other variables"),
                                   HasSubstr("rank 1 (worker-0)"), HasSubstr("rank 3 (worker-1)"),
                                   Not(HasSubstr("rank 0"))));
}

}  // namespace
}  // namespace meshtrain::saving
