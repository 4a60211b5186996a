#include "runtime/nn/path_rule.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace meshtrain::nn {
namespace {

using ::testing::HasSubstr;

TEST(PathScopesTest, AScopeEndsWhereTheNameEndsThatItsRuleEndsIn) {
  const auto scopes = PathScopes::Create({"blocks\\.[0-9]+", "stem\\.", "he"});
  ASSERT_TRUE(scopes.ok()) << scopes.status().ToString();
  EXPECT_EQ(scopes->Of("blocks.3.attention"), "blocks.3");
  EXPECT_EQ(scopes->Of("blocks.12.mlp.up"), "blocks.12");
  EXPECT_EQ(scopes->Of("blocks.12"), "blocks.12");
  EXPECT_EQ(scopes->Of("stem.conv"), "stem");
  EXPECT_EQ(scopes->Of("head.logits"), "head");
  EXPECT_EQ(scopes->Of("hello"), "hello");
  EXPECT_EQ(scopes->Of("my.blocks.3"), "");
  EXPECT_EQ(scopes->Of(""), "");
  EXPECT_EQ(PathScopes().Of("blocks.3"), "");
}

TEST(PathScopesTest, OfSeveralRulesTheFirstThatMatchesCounts) {
  const auto scopes = PathScopes::Create({"blocks\\.1\\b", "blocks"});
  ASSERT_TRUE(scopes.ok());
  EXPECT_EQ(scopes->Of("blocks.1.up"), "blocks.1");
  EXPECT_EQ(scopes->Of("blocks.10.up"), "blocks");
}

TEST(PathScopesTest, BadRulesAreNamed) {
  EXPECT_THAT(PathScopes::Create({"a("}).status().message(),
              HasSubstr("`a(` is not a regular expression: missing ): a("));
  EXPECT_EQ(PathScopes::Create({"a", "a"}).status().message(), "`a` is there already");
  const auto scopes = PathScopes::Create({"blocks", "hed"});
  ASSERT_TRUE(scopes.ok());
  EXPECT_EQ(scopes->CheckUsed({"blocks.0", "head"}).message(),
            "`hed` matches no layer (rules match from the start of a path); near: head");
  EXPECT_EQ(scopes->CheckUsed({}).message(), "`blocks` matches no layer: the model has none");
  EXPECT_TRUE(scopes->CheckUsed({"blocks.0", "hed"}).ok());
  // An empty match names no scope.
  EXPECT_FALSE(PathScopes::Create({"x*"})->CheckUsed({"head"}).ok());
}

}  // namespace
}  // namespace meshtrain::nn
