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

TEST(TextTest, NothingPrintableActsOnATerminal) {
  EXPECT_EQ(Printable("a\x1b[31mred\x07\r"), "a\\x1b[31mred\\x07\\x0d");
  EXPECT_EQ(Printable(std::string("a\0b", 3)), "a\\x00b");
  EXPECT_EQ(Printable("lines\nand\ttabs stay, \xc3\xbc, \xe2\x82\xac, \xf0\x9f\x98\x80"),
            "lines\nand\ttabs stay, \xc3\xbc, \xe2\x82\xac, \xf0\x9f\x98\x80");
  EXPECT_EQ(Printable("\xc2\x9b"
                      "1m"),
            "\\xc2\\x9b"
            "1m");  // CSI, as C1 has it
  EXPECT_EQ(Printable("\xe2\x80\xae"
                      "gpj"),
            "\\xe2\\x80\\xae"
            "gpj");  // right to left
  EXPECT_EQ(Printable("\x7f"), "\\x7f");
  // No UTF-8: alone, cut short, overlong, a surrogate, beyond the last character.
  for (const auto& [bytes, want] : std::vector<std::pair<std::string, std::string>>{
           {"\x9b", "\\x9b"},
           {"\xe2\x82", "\\xe2\\x82"},
           {"\xc0\x9b", "\\xc0\\x9b"},
           {"\xe0\x82\x9b", "\\xe0\\x82\\x9b"},
           {"\xed\xa0\x80", "\\xed\\xa0\\x80"},
           {"\xf4\x90\x80\x80", "\\xf4\\x90\\x80\\x80"},
           {"\xff", "\\xff"}}) {
    EXPECT_EQ(Printable(bytes), want);
  }
}

TEST(TextTest, AnExcerptIsOneShortLineThatSaysWhatItCut) {
  EXPECT_EQ(Excerpt("two\nlines\tof text"), "two\\nlines\\tof text");
  EXPECT_EQ(Excerpt(std::string(200, 'a')), std::string(200, 'a'));
  EXPECT_EQ(Excerpt(std::string(70000, 'a')), std::string(200, 'a') + "... (70000 bytes)");
  EXPECT_EQ(Excerpt("abc\x1b", 3), "abc... (4 bytes)");
  // A character is not cut in two: nothing of it is shown.
  EXPECT_EQ(Excerpt("ab\xe2\x82\xac"
                    "cd",
                    3),
            "ab... (7 bytes)");
  EXPECT_EQ(Excerpt("ab\xe2\x82\xac"
                    "cd",
                    4),
            "ab... (7 bytes)");
  EXPECT_EQ(Excerpt("ab\xe2\x82\xac"
                    "cd",
                    5),
            "ab\xe2\x82\xac... (7 bytes)");
  EXPECT_EQ(Excerpt(std::string(9, '\x80'), 3), "\\x80\\x80\\x80... (9 bytes)");
}

// Its cost would be the product of their lengths.
TEST(TextTest, AWordAsLongAsAManifestIsNearNothing) {
  EXPECT_EQ(NearestName(std::string(4 << 20, 'l'), std::vector<std::string>{"loss"}), std::nullopt);
}

}  // namespace
}  // namespace meshtrain
