// What PNG images of every kind become.
#include "runtime/data/png.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>

#include "tests/runtime/data/png_files.h"

namespace meshtrain::data {
namespace {

using ::testing::HasSubstr;
using Ints = std::vector<int>;

Ints Decoded(const std::string& bytes, int64_t channels) {
  const auto reader = PngReader::Create(bytes, "a.png");
  EXPECT_TRUE(reader.ok()) << reader.status().ToString();
  if (!reader.ok()) return {};
  std::vector<uint8_t> out(static_cast<size_t>((*reader)->height() * (*reader)->width() * channels),
                           77);
  const Status decoded = (*reader)->Decode(channels, out);
  EXPECT_EQ(decoded, OkStatus());
  return {out.begin(), out.end()};
}

TEST(PngTest, GreyIsKeptAndBecomesThreeEqualColors) {
  const std::string png = Png(1, 3, kPngGrey, {0, 7, 255});
  EXPECT_EQ(Decoded(png, 1), (Ints{0, 7, 255}));
  EXPECT_EQ(Decoded(png, 3), (Ints{0, 0, 0, 7, 7, 7, 255, 255, 255}));
  EXPECT_EQ(Decoded(png, 4), (Ints{0, 0, 0, 255, 7, 7, 7, 255, 255, 255, 255, 255}));
}

TEST(PngTest, AlphaIsLeftOutWhereItIsNotAskedFor) {
  const std::string grey = Png(1, 2, kPngGreyAlpha, {10, 0, 20, 128});
  EXPECT_EQ(Decoded(grey, 1), (Ints{10, 20}));
  EXPECT_EQ(Decoded(grey, 3), (Ints{10, 10, 10, 20, 20, 20}));
  EXPECT_EQ(Decoded(grey, 4), (Ints{10, 10, 10, 0, 20, 20, 20, 128}));
  const std::string rgba = Png(1, 1, kPngRgba, {1, 2, 3, 4});
  EXPECT_EQ(Decoded(rgba, 3), (Ints{1, 2, 3}));
  EXPECT_EQ(Decoded(rgba, 4), (Ints{1, 2, 3, 4}));
  EXPECT_EQ(Decoded(Png(1, 1, kPngRgb, {1, 2, 3}), 4), (Ints{1, 2, 3, 255}));
}

// Pillow's Image.convert("L") gives the same numbers.
TEST(PngTest, OfColorsGreyIsTheirLuma) {
  EXPECT_EQ(
      Decoded(Png(1, 5, kPngRgb, {255, 255, 255, 255, 0, 0, 0, 255, 0, 0, 0, 255, 10, 20, 30}), 1),
      (Ints{255, 76, 150, 29, 18}));
}

TEST(PngTest, FewBitsBecomeEight) {
  EXPECT_EQ(Decoded(Png(2, 3, kPngGrey, {0, 1, 1, 1, 0, 0}, {.bits = 1}), 1),
            (Ints{0, 255, 255, 255, 0, 0}));
  EXPECT_EQ(Decoded(Png(1, 4, kPngGrey, {0, 1, 2, 3}, {.bits = 2}), 1), (Ints{0, 85, 170, 255}));
  EXPECT_EQ(Decoded(Png(1, 2, kPngGrey, {1, 15}, {.bits = 4}), 3),
            (Ints{17, 17, 17, 255, 255, 255}));
}

TEST(PngTest, SixteenBitsAreRounded) {
  EXPECT_EQ(Decoded(Png(1, 4, kPngGrey, {0, 128, 129, 65535}, {.bits = 16}), 1),
            (Ints{0, 0, 1, 255}));
  EXPECT_EQ(Decoded(Png(1, 1, kPngRgba, {257, 514, 65535, 0}, {.bits = 16}), 4),
            (Ints{1, 2, 255, 0}));
  EXPECT_EQ(Decoded(Png(1, 1, kPngRgb, {257, 514, 65535}, {.bits = 16}), 4),
            (Ints{1, 2, 255, 255}));
}

TEST(PngTest, PalettesAreLookedUp) {
  const PngOptions two{
      .bits = 1, .palette = std::string("\1\2\3\4\5\6", 6), .transparency = "\x80"};
  const std::string png = Png(1, 3, kPngPalette, {1, 0, 1}, two);
  EXPECT_EQ(Decoded(png, 3), (Ints{4, 5, 6, 1, 2, 3, 4, 5, 6}));
  EXPECT_EQ(Decoded(png, 4), (Ints{4, 5, 6, 255, 1, 2, 3, 128, 4, 5, 6, 255}));
  EXPECT_EQ(Decoded(png, 1), (Ints{5, 2, 5}));
  // A color that stands for nothing there.
  const std::string rgb =
      Png(1, 2, kPngRgb, {9, 9, 9, 1, 1, 1}, {.transparency = std::string("\0\x9\0\x9\0\x9", 6)});
  EXPECT_EQ(Decoded(rgb, 4), (Ints{9, 9, 9, 0, 1, 1, 1, 255}));
  EXPECT_EQ(Decoded(rgb, 3), (Ints{9, 9, 9, 1, 1, 1}));
}

TEST(PngTest, InterlacedImagesAreThoseThatAreNot) {
  Ints samples(11 * 9 * 3);
  std::iota(samples.begin(), samples.end(), 0);
  for (int& s : samples) s = s * 37 % 256;
  for (const int64_t channels : {1, 3, 4}) {
    EXPECT_EQ(Decoded(Png(11, 9, kPngRgb, samples, {.interlaced = true}), channels),
              Decoded(Png(11, 9, kPngRgb, samples), channels));
  }
}

// The error of a file, wherever it comes up.
Status ErrorOf(const std::string& bytes) {
  const auto reader = PngReader::Create(bytes, "a.png");
  if (!reader.ok()) return reader.status();
  std::vector<uint8_t> out(static_cast<size_t>((*reader)->height() * (*reader)->width() * 3));
  return (*reader)->Decode(3, out);
}

TEST(PngTest, SaysWhatIsWrongWithAFile) {
  Ints samples(40 * 40);
  std::iota(samples.begin(), samples.end(), 0);
  for (int& s : samples) s = s * s % 251;
  const std::string sound = Png(40, 40, kPngGrey, samples);
  ASSERT_EQ(ErrorOf(sound), OkStatus());
  EXPECT_EQ(ErrorOf(""), DataLoss("a.png: byte 0: expected a PNG image, got: an empty file"));
  EXPECT_EQ(ErrorOf("GIF89a, and so on"),
            DataLoss("a.png: byte 0: expected a PNG image, got: other bytes"));
  // Cut off anywhere, its end included.
  for (const size_t length : {8ul, 20ul, 40ul, 100ul, sound.size() / 2, sound.size() - 1}) {
    const Status error = ErrorOf(sound.substr(0, length));
    EXPECT_EQ(error.code(), StatusCode::kDataLoss) << length;
    EXPECT_THAT(error.message(), HasSubstr("expected a sound PNG image, got: end of file"))
        << length;
  }
  // A byte that changed in each part that matters: size, checksum, data, end.
  for (const size_t at : {19ul, 30ul, 60ul, sound.size() / 2, sound.size() - 1}) {
    std::string changed = sound;
    changed[at] = static_cast<char>(changed[at] ^ 0x55);
    const Status error = ErrorOf(changed);
    EXPECT_EQ(error.code(), StatusCode::kDataLoss) << at << error.ToString();
    EXPECT_THAT(error.message(), HasSubstr("a.png: byte ")) << at;
  }
  // One that promises more than anybody has.
  const std::string huge =
      "\x89PNG\r\n\x1a\n" +
      PngChunk("IHDR", Big32(900000) + Big32(900000) + std::string("\x8\0\0\0\0", 5)) +
      PngChunk("IDAT", "x");
  EXPECT_EQ(ErrorOf(huge), InvalidArgument("a.png: byte 16: expected an image of at most 268435456 "
                                           "pixels, got: 900000 rows of 900000"));
}

}  // namespace
}  // namespace meshtrain::data
