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
    const std::string row = "| `" + std::string(info.name) + "` | " + std::string(info.meaning) +
                            " | " + std::string(info.advice) +
                            (info.advice.empty() ? "|\n" : " |\n");
    // What holds a job up has something that can be done about it.
    const bool holds_up = info.reason >= Reason::kInvalidSpec &&
                          info.reason < Reason::kNotWaiting &&
                          (info.reason < Reason::kPodDisrupted || info.reason > Reason::kChildLost);
    EXPECT_TRUE(!holds_up || !info.advice.empty()) << info.name;
    EXPECT_LE(info.advice.size(), 160u) << info.name;
    EXPECT_THAT(*docs, ::testing::HasSubstr(row));
    EXPECT_EQ(ParseReason(info.name), info.reason);
    EXPECT_EQ(ReasonName(info.reason), info.name);
  }
  EXPECT_EQ(ParseReason("Nonsense"), std::nullopt);
}

}  // namespace
}  // namespace meshtrain::api
