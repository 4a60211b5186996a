// Windows of a text: what they hold, in which order, and what is refused.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "runtime/data/cursor.h"
#include "runtime/data/pipeline.h"
#include "runtime/data/source.h"
#include "tests/runtime/data/idx_files.h"

namespace meshtrain::data {
namespace {

using ::testing::HasSubstr;

std::string Letters(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

// "x>y" of each window; the message of the first error.
std::vector<std::string> Windows(const TextFile& text, int64_t take = -1) {
  const auto source = OpenSource({.from = text, .take = take});
  if (!source.ok()) return {std::string(source.status().message())};
  std::vector<std::string> all;
  for (int64_t i = 0; i < (*source)->size(); ++i) {
    const Status there = (*source)->Load(std::vector<int64_t>{i});
    if (!there.ok()) return {std::string(there.message())};
    all.push_back(Letters((*source)->Row(0, i)) + ">" + Letters((*source)->Row(1, i)));
  }
  return all;
}

using Texts = std::vector<std::string>;

TEST(TextTest, AWindowAndTheCharactersThatFollow) {
  const TempFolder folder;
  const std::string file = folder.Write("a.txt", "abcdefgh");
  EXPECT_EQ(Windows({.file = file, .length = 3}), (Texts{"abc>bcd", "def>efg"}));
  EXPECT_EQ(Windows({.file = file, .length = 3, .stride = 2}),
            (Texts{"abc>bcd", "cde>def", "efg>fgh"}));
  EXPECT_EQ(Windows({.file = file, .length = 7}), (Texts{"abcdefg>bcdefgh"}));
  EXPECT_EQ(Windows({.file = file, .length = 2, .stride = 5}), (Texts{"ab>bc", "fg>gh"}));
  EXPECT_EQ(Windows({.file = file, .length = 3}, 1), (Texts{"abc>bcd"}));
}

// Windows that nobody asks for cost nothing, whatever lies there.
TEST(TextTest, ReadsTheWindowsAskedForAlone) {
  const TempFolder folder;
  const std::string file = folder.Write("a.txt", "ab?????baab");
  const auto source =
      OpenSource({.from = TextFile{.file = file, .length = 1, .stride = 1, .alphabet = "ab"}});
  ASSERT_TRUE(source.ok()) << source.status().message();
  ASSERT_EQ((*source)->Load(std::vector<int64_t>{9, 0, 7, 0}), OkStatus());
  const auto window = [&](int64_t i) {
    return Letters((*source)->Row(0, i)) + Letters((*source)->Row(1, i));
  };
  EXPECT_EQ(window(0), std::string("\0\1", 2));
  EXPECT_EQ(window(7), std::string("\1\0", 2));
  EXPECT_EQ(window(9), std::string("\0\1", 2));
  EXPECT_THAT((*source)->Load(std::vector<int64_t>{9, 1}).message(), HasSubstr(": byte 2: "));
  // The next batch may be read where the last one failed.
  ASSERT_EQ((*source)->Load(std::vector<int64_t>{8}), OkStatus());
  EXPECT_EQ(window(8), std::string("\0\0", 2));
}

TEST(TextTest, TheEndIsKeptForValidationAndNoWindowLiesInBoth) {
  const TempFolder folder;
  const std::string file = folder.Write("a.txt", "abcdefghij");
  TextFile text{.file = file, .length = 2, .stride = 1, .validation_split = 0.4};
  EXPECT_EQ(Windows(text), (Texts{"ab>bc", "bc>cd", "cd>de", "de>ef"}));
  text.validation = true;
  EXPECT_EQ(Windows(text), (Texts{"gh>hi", "hi>ij"}));
}

TEST(TextTest, AnAlphabetNumbersTheCharacters) {
  const TempFolder folder;
  const std::string file = folder.Write("a.txt", "ba\nab\n");
  EXPECT_EQ(Windows({.file = file, .length = 5, .alphabet = "ab\n"}),
            (Texts{std::string("\1\0\2\0\1>\0\2\0\1\2", 11)}));
  // Only what is read is looked at.
  const TextFile lacks{.file = file, .length = 2, .alphabet = "ab"};
  EXPECT_EQ(Windows(lacks),
            (Texts{file + ": byte 2: expected one of the 2 characters of `alphabet`, got: 0x0a"}));
  EXPECT_EQ(Windows({.file = file, .length = 1, .alphabet = "ab"}, 1),
            (Texts{std::string("\1>\0", 3)}));
  TextFile validation = lacks;
  validation.validation_split = 0.5;
  validation.validation = true;
  EXPECT_THAT(Windows(validation)[0], HasSubstr(": byte 5: expected one of the 2 characters"));
  EXPECT_EQ(Windows({.file = file, .length = 2, .alphabet = "aba"}),
            (Texts{"data: text: expected each character of `alphabet` once, got: `a` again at "
                   "byte 2"}));
}

TEST(TextTest, ClassesAreTheCharactersOfTheirNumbers) {
  const TempFolder folder;
  const std::string file = folder.Write("a.txt", "abcabcabc");
  const auto open = [&](const std::string& alphabet) {
    auto made = Pipeline::Create(
        {.source = {.from = TextFile{.file = file, .length = 2, .alphabet = alphabet}},
         .stages = {BatchStage{2}}});
    EXPECT_TRUE(made.ok()) << made.status().message();
    return std::move(*made);
  };
  EXPECT_EQ(CheckSameClasses(*open("abc"), *open("abc")), OkStatus());
  EXPECT_EQ(CheckSameClasses(*open(""), *open("")), OkStatus());
  EXPECT_EQ(CheckSameClasses(*open("abc"), *open("acb")).message(),
            file + ": expected the classes of " + file + ", of which number 1 is `b`, got: `c`");
  EXPECT_FALSE(CheckSameClasses(*open("abc"), *open("")).ok());
}

TEST(TextTest, BatchesAreOfBytesAndClassNumbersInAnOrderThatFollowsFromTheSeed) {
  const TempFolder folder;
  std::string letters;
  for (int i = 0; i < 401; ++i) letters += static_cast<char>('a' + i % 26);
  const TextFile text{.file = folder.Write("a.txt", letters), .length = 4};
  const auto make = [&](uint64_t seed) {
    auto made = Pipeline::Create({.source = {.from = text},
                                  .stages = {ShuffleStage{.buffer = 100, .seed = seed},
                                             BatchStage{8, /*drop_remainder=*/true}}});
    EXPECT_TRUE(made.ok()) << made.status().ToString();
    return *std::move(made);
  };
  const auto elements = [](Pipeline& pipeline) {
    std::vector<int64_t> all;
    for (;;) {
      const auto batch = pipeline.Next();
      EXPECT_TRUE(batch.ok()) << batch.status().ToString();
      if (!batch.ok() || !*batch) return all;
      const auto x = (**batch)["x"].values<uint8_t>();
      const auto y = (**batch)["y"].values<int32_t>();
      for (size_t i = 0; i < x.size(); ++i) {
        EXPECT_EQ(y[i], 'a' + (x[i] - 'a' + 1) % 26);
      }
      all.insert(all.end(), (*batch)->elements.begin(), (*batch)->elements.end());
    }
  };
  auto first = make(1), again = make(1), other = make(2);
  EXPECT_EQ(first->BatchTypes(8), (std::vector<mesh::TensorType>{{mesh::DType::kU8, {8, 4}},
                                                                 {mesh::DType::kI32, {8, 4}}}));
  EXPECT_EQ(first->steps_per_epoch(), 12);
  const auto order = elements(*first);
  EXPECT_EQ(order, elements(*again));
  EXPECT_NE(order, elements(*other));
  EXPECT_NE(order, elements(*first));  // the next pass
  // A byte that is no row of the table, and one that is no class.
  auto narrow = make(1);
  narrow->ExpectIds({{"x", 100}});
  EXPECT_THAT(narrow->Next().status().message(), HasSubstr("component `x`: example "));
  auto few = make(1);
  few->ExpectClasses({{"y", 100}});
  EXPECT_THAT(few->Next().status().message(), HasSubstr("but 100 classes"));
}

TEST(TextTest, SaysWhatIsWrongWithAFile) {
  const TempFolder folder;
  const std::string file = folder.Write("a.txt", "abc");
  EXPECT_EQ(Windows({.file = file, .length = 3}),
            (Texts{file + ": byte 0: expected at least 4 characters, a window and one more, "
                          "got: 3"}));
  EXPECT_THAT(Windows({.file = folder.Write("empty.txt", ""), .length = 1})[0],
              HasSubstr("got: 0"));
  EXPECT_THAT(Windows({.file = folder.At("none.txt"), .length = 1})[0], HasSubstr("cannot open"));
  EXPECT_THAT(Windows({.file = folder.Write("a.gz", Gzip("abc")), .length = 1})[0],
              HasSubstr("a.gz: byte 0: expected a plain text, got: a gzip file"));
  EXPECT_THAT(Windows({.file = file, .length = 0})[0], HasSubstr("a length of 1 to"));
  EXPECT_THAT(Windows({.file = file, .length = 1, .stride = -1})[0], HasSubstr("a stride of at"));
  EXPECT_THAT(Windows({.file = file, .length = 1, .validation = true})[0],
              HasSubstr("expected a validation_split beside subset: validation, got: none"));
  EXPECT_THAT(Windows({.file = file, .length = 1, .validation_split = 1})[0],
              HasSubstr("a validation_split of at least 0 and below 1"));
  EXPECT_THAT(Windows({.file = file, .length = 1}, 0)[0], HasSubstr("of which 0 windows"));
  // One that gets shorter while it is read.
  const auto source = OpenSource({.from = TextFile{.file = file, .length = 1}});
  ASSERT_TRUE(source.ok());
  std::filesystem::resize_file(file, 1);
  const Status cut = (*source)->Load(std::vector<int64_t>{1});
  EXPECT_EQ(cut.code(), StatusCode::kDataLoss);
  EXPECT_THAT(cut.message(), HasSubstr("byte 1: expected the text as it was opened, got: its end"));
}

}  // namespace
}  // namespace meshtrain::data
