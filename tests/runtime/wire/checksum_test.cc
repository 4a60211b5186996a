#include "runtime/wire/checksum.h"

#include <gtest/gtest.h>

#include <string>

namespace meshtrain::wire {
namespace {

TEST(ChecksumTest, IsTheSameInOnePieceAndInMany) {
  std::string text;
  for (int i = 0; i < 1000; ++i) text += static_cast<char>(i * 31);
  for (const size_t piece : {size_t{1}, size_t{7}, size_t{240}, size_t{1000}}) {
    RunningChecksum running;
    for (size_t at = 0; at < text.size(); at += piece) {
      running.Add(text.data() + at, std::min(piece, text.size() - at));
    }
    EXPECT_EQ(running.value(), Checksum(text)) << piece;
  }
}

TEST(ChecksumTest, AnyOneChangedBitChangesIt) {
  std::string text(100, 'x');
  const uint64_t sum = Checksum(text);
  for (size_t bit = 0; bit < 8 * text.size(); ++bit) {
    text[bit / 8] = static_cast<char>(text[bit / 8] ^ (1 << bit % 8));
    EXPECT_NE(Checksum(text), sum) << bit;
    text[bit / 8] = static_cast<char>(text[bit / 8] ^ (1 << bit % 8));
  }
}

TEST(ChecksumTest, IsXxh3AsItsAuthorsPublishedIt) {
  EXPECT_EQ(HexText(Checksum("")), "2d06800538d394c2");  // XXH3_64bits of nothing, seed 0
}

}  // namespace
}  // namespace meshtrain::wire
