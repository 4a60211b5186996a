#include "operator/api/reason.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "runtime/base/file.h"

namespace meshtrain::api {
namespace {

TEST(ReasonTest, EveryReasonStandsInTheDocs) {
  const auto docs = ReadFile(MT_SOURCE_DIR "/docs/operator.md");
  ASSERT_TRUE(docs.ok()) << docs.status().ToString();
  for (const ReasonInfo& info : Reasons()) {
    const std::string row =
        "| `" + std::string(info.name) + "` | " + std::string(info.meaning) + " |\n";
    EXPECT_THAT(*docs, testing::HasSubstr(row));
    EXPECT_EQ(ParseReason(info.name), info.reason);
    EXPECT_EQ(ReasonName(info.reason), info.name);
  }
  EXPECT_EQ(ParseReason("Nonsense"), std::nullopt);
}

}  // namespace
}  // namespace meshtrain::api
