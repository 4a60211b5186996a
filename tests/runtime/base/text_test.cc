#include "runtime/base/text.h"

#include <gtest/gtest.h>

namespace meshtrain {
namespace {

TEST(TextTest, SplitKeepsEmptyPartsAndJoinUndoesIt) {
  for (const std::string text : {"", "a", "a,b", "a,,b", ",", "a,"}) {
    EXPECT_EQ(Join(Split(text, ','), ","), text);
  }
  EXPECT_EQ(Split("a,,b", ',').size(), 3u);
}

TEST(TextTest, NumbersMustBeTheWholeText) {
  EXPECT_EQ(ParseInt("-12"), -12);
  EXPECT_EQ(ParseInt("12x"), std::nullopt);
  EXPECT_EQ(ParseInt(""), std::nullopt);
  EXPECT_EQ(ParseDouble("1e-7"), 1e-7);
}

TEST(TextTest, SuggestsOnlyWhatIsNear) {
  const std::vector<std::string> names = {"optimizer", "loss", "metrics"};
  EXPECT_EQ(NearestName("optimiser", names), "optimizer");
  EXPECT_EQ(NearestName("los", names), "loss");
  EXPECT_EQ(NearestName("lsos", names), "loss");  // two letters swapped are one slip
  EXPECT_EQ(NearestName("banana", names), std::nullopt);
  EXPECT_EQ(DidYouMean("metric", names), ", did you mean `metrics`?");
}

TEST(TextTest, BytesInThreeFigures) {
  EXPECT_EQ(HumanBytes(0), "0 B");
  EXPECT_EQ(HumanBytes(1536), "1.54 kB");
  EXPECT_EQ(HumanBytes(2195200), "2.2 MB");
}

}  // namespace
}  // namespace meshtrain
