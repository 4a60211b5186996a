#include "runtime/base/json_depth.h"

#include <gtest/gtest.h>

#include <string>

namespace meshtrain {
namespace {

TEST(JsonDepthTest, CountsWhatLiesInEachOther) {
  EXPECT_EQ(JsonDepth(""), 0);
  EXPECT_EQ(JsonDepth("7"), 0);
  EXPECT_EQ(JsonDepth("[]"), 1);
  EXPECT_EQ(JsonDepth(R"({"a": [1, {}], "b": [[2]]})"), 3);
  EXPECT_EQ(JsonDepth(R"(["[[[", "\"[[", "\\", [1]])"), 2);
}

TEST(JsonDepthTest, ADeepTextIsRefused) {
  const auto nested = [](int levels) {
    return std::string(static_cast<size_t>(levels), '[') +
           std::string(static_cast<size_t>(levels), ']');
  };
  EXPECT_EQ(CheckJsonDepth(nested(64)), OkStatus());
  EXPECT_EQ(CheckJsonDepth(nested(1'000'000)),
            InvalidArgument("expected JSON of at most 64 levels, got: 1000000"));
}

}  // namespace
}  // namespace meshtrain
