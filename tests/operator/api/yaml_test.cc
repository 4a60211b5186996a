#include <gtest/gtest.h>

#include "operator/api/json.h"

namespace meshtrain::api {
namespace {

TEST(YamlTest, ReadsCoreSchemaScalars) {
  EXPECT_EQ(*YamlToJson("[1, -2, 0x10, 0o17, 1.5, 1e-7, .5, true, null, ~, yes, '1', \"true\", "
                        "1.2.3, 2026-01-01, -, +5]"),
            "[1,-2,16,15,1.5,1e-07,0.5,true,null,null,\"yes\",\"1\",\"true\",\"1.2.3\",\"2026-01-"
            "01\",\"-\",5]");
  EXPECT_EQ(*YamlToJson("a: !!str 5\nb:\nc: 007"), R"({"a":"5","b":null,"c":7})");
  EXPECT_EQ(*YamlToJson(""), "null");
}

TEST(YamlTest, FollowsAliasesAndMerges) {
  EXPECT_EQ(*YamlToJson("a: &x {p: 1, q: 2}\nb: *x\nc: {<<: *x, q: 3}"),
            R"({"a":{"p":1,"q":2},"b":{"p":1,"q":2},"c":{"p":1,"q":3}})");
}

TEST(YamlTest, NamesLineAndColumn) {
  EXPECT_EQ(YamlToJson("a: 1\na: 2").status().message(),
            "line 2, column 1: must be given once, got: `a` twice");
  EXPECT_EQ(YamlToJson("a: .inf").status().message(),
            "line 1, column 4: must be a finite number, got: .inf");
  EXPECT_EQ(YamlToJson("a: [1").status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(YamlToJson("a: 99999999999999999999999").ok(), true);
}

TEST(YamlTest, RefusesAliasBombsAndDeepNests) {
  std::string bomb = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n";
  for (int i = 1; i < 10; ++i) {
    bomb += "a" + std::to_string(i) + ": &a" + std::to_string(i) + " [";
    for (int k = 0; k < 10; ++k) bomb += (k > 0 ? ", *a" : "*a") + std::to_string(i - 1);
    bomb += "]\n";
  }
  EXPECT_EQ(YamlToJson(bomb, 100'000).status().code(), StatusCode::kResourceExhausted);
  EXPECT_FALSE(YamlToJson(std::string(100'000, '[')).ok());
}

}  // namespace
}  // namespace meshtrain::api
