#include "runtime/base/status.h"

#include <gtest/gtest.h>

#include <memory>

namespace meshtrain {
namespace {

Result<int> Half(int x) {
  if (x % 2 != 0) return InvalidArgument("x: must be even, got: " + std::to_string(x));
  return x / 2;
}

Result<int> Quarter(int x) {
  MT_ASSIGN_OR_RETURN(const int half, Half(x));
  return Half(half);
}

TEST(StatusTest, TheFirstErrorComesBackUnchanged) {
  EXPECT_EQ(*Quarter(12), 3);
  EXPECT_EQ(Quarter(6).status(), InvalidArgument("x: must be even, got: 3"));
}

TEST(StatusTest, PrintsItsCodeAsGrpcSpellsIt) {
  EXPECT_EQ(OkStatus().ToString(), "OK");
  EXPECT_EQ(DataLoss("x").At("file").ToString(), "DATA_LOSS: file: x");
}

TEST(StatusTest, AResultMayHoldWhatCanOnlyBeMoved) {
  Result<std::unique_ptr<int>> r = std::make_unique<int>(7);
  std::unique_ptr<int> p = std::move(r).value();
  EXPECT_EQ(*p, 7);
}

TEST(StatusDeathTest, ValueOfAnErrorDiesWithTheMessage) {
  Result<int> r = NotFound("gone");
  EXPECT_DEATH(r.value(), "NOT_FOUND: gone");
}

}  // namespace
}  // namespace meshtrain
