#include "runtime/data/idx.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include "runtime/data/source.h"
#include "tests/runtime/data/idx_files.h"

namespace meshtrain::data {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

std::vector<uint8_t> ReadAll(IdxReader& reader, int64_t n) {
  std::vector<uint8_t> out(static_cast<size_t>(n));
  const Status read = reader.Read(std::as_writable_bytes(std::span(out)));
  EXPECT_TRUE(read.ok()) << read.ToString();
  return out;
}

TEST(IdxReaderTest, ReadsPlainAndGzippedFilesAlike) {
  const TempFolder folder;
  for (const std::string& path :
       {folder.Write("a", Images(5)), folder.Write("a.gz", Gzip(Images(5)))}) {
    auto reader = IdxReader::Open(path);
    ASSERT_TRUE(reader.ok()) << reader.status().ToString();
    EXPECT_EQ((*reader)->type().ToString(), "u8[5,2,3]");
    EXPECT_EQ((*reader)->bytes_per_item(), 6);
    EXPECT_EQ(ReadAll(**reader, 8), (std::vector<uint8_t>{0, 1, 2, 3, 4, 5, 7, 8}));
    EXPECT_EQ(ReadAll(**reader, 22).back(), 33);
    EXPECT_EQ((*reader)->Finish(), OkStatus());
  }
}

// No bytes at all, of items whose size no number holds.
TEST(IdxReaderTest, NoItemsOfHugeDimensionsAreDataLoss) {
  const TempFolder folder;
  const std::vector<uint32_t> dims = {0, ~0u, ~0u, ~0u, ~0u, ~0u, ~0u, ~0u};
  const Status status = IdxReader::Open(folder.Write("none", IdxHeader(dims))).status();
  EXPECT_EQ(status.code(), StatusCode::kDataLoss);
  EXPECT_THAT(status.message(), HasSubstr("expected dimensions that fit in memory"));
}

TEST(IdxReaderTest, AFifoIsNotWaitedFor) {
  const TempFolder folder;
  const std::string path = folder.At("fifo");
  ASSERT_EQ(::mkfifo(path.c_str(), 0600), 0);
  EXPECT_EQ(IdxReader::Open(path).status(),
            InvalidArgument(path + ": expected a regular file, got: a FIFO"));
}

TEST(IdxReaderTest, TurnsBigEndianElementsAround) {
  const TempFolder folder;
  const std::string path =
      folder.Write("i32", IdxHeader({2}, 0x0C) + std::string("\0\0\1\2\377\377\377\376", 8));
  auto reader = IdxReader::Open(path);
  ASSERT_TRUE(reader.ok()) << reader.status().ToString();
  std::vector<int32_t> values(2);
  ASSERT_TRUE((*reader)->Read(std::as_writable_bytes(std::span(values))).ok());
  EXPECT_EQ(values, (std::vector<int32_t>{258, -2}));
}

TEST(IdxReaderTest, ReadsGzipMembersInARow) {
  const TempFolder folder;
  const std::string whole = Images(4);
  auto reader =
      IdxReader::Open(folder.Write("two.gz", Gzip(whole.substr(0, 20)) + Gzip(whole.substr(20))));
  ASSERT_TRUE(reader.ok()) << reader.status().ToString();
  EXPECT_EQ(ReadAll(**reader, 24).back(), 26);
  EXPECT_EQ((*reader)->Finish(), OkStatus());
}

struct Case {
  std::string name;
  std::string bytes;
  StatusCode code;
  std::string says;  // after "PATH: "
};
void PrintTo(const Case& c, std::ostream* out) { *out << c.name; }

std::string Flipped(std::string bytes, size_t at) {
  bytes[at] = static_cast<char>(bytes[at] ^ 0x40);
  return bytes;
}

// A member that declares ten images and inflates to 64 MB of zeros.
std::string Bomb() { return Gzip(IdxHeader({10, 2, 3}) + std::string(64 << 20, '\0')); }

std::string Cut(const std::string& bytes, size_t n) { return bytes.substr(0, bytes.size() - n); }

class BadIdxTest : public ::testing::TestWithParam<Case> {};

// Opens the file as a source would, reads all, and checks the end.
TEST_P(BadIdxTest, SaysFileAndByte) {
  const TempFolder folder;
  const std::string path = folder.Write("bad.idx", GetParam().bytes);
  const auto use = [&]() -> Status {
    MT_ASSIGN_OR_RETURN(auto reader, IdxReader::Open(path));
    std::vector<std::byte> all(static_cast<size_t>(reader->type().num_bytes()));
    MT_RETURN_IF_ERROR(reader->Read(all));
    return reader->Finish();
  };
  const Status status = use();
  EXPECT_EQ(status.code(), GetParam().code) << status.ToString();
  EXPECT_THAT(status.message(), AllOf(HasSubstr(path + ": byte "), HasSubstr(GetParam().says)));
}

INSTANTIATE_TEST_SUITE_P(
    Idx, BadIdxTest,
    ::testing::ValuesIn(std::vector<Case>{
        {"Empty", "", StatusCode::kDataLoss,
         "byte 0: expected the 4 bytes of IDX's magic number, got: end of file"},
        {"NotIdx", "PK\3\4 something", StatusCode::kInvalidArgument,
         "byte 0: expected IDX's magic number"},
        {"WrongMagicInGzip", Gzip("\x89PNG\r\n"), StatusCode::kInvalidArgument, "got: 89504e47"},
        {"UnknownElementType", IdxHeader({1}, 0x0B) + "ab", StatusCode::kInvalidArgument,
         "byte 2: expected element type"},
        {"HeaderCut", Cut(IdxHeader({3, 2, 3}), 3), StatusCode::kDataLoss,
         "expected the header's 3 dimensions"},
        {"PlainTruncated", Cut(Images(5), 1), StatusCode::kDataLoss,
         "byte 45: expected the file to hold u8[5,2,3]"},
        {"PlainTooLong", Images(5) + "x", StatusCode::kDataLoss,
         "byte 46: expected the file to hold"},
        {"GzipTruncated", Cut(Gzip(Images(500)), 200), StatusCode::kDataLoss, "got: end of file"},
        {"GzipTrailerCut", Cut(Gzip(Images(500)), 3), StatusCode::kDataLoss, "got: end of file"},
        {"GzipChecksumFlipped", Flipped(Gzip(Images(500)), Gzip(Images(500)).size() - 6),
         StatusCode::kDataLoss,
         "of the compressed file: expected a sound gzip stream, got: incorrect data check"},
        {"GzipBodyFlipped", Flipped(Gzip(Images(500)), 15), StatusCode::kDataLoss,
         "sound gzip stream"},
        {"GzipContentShort", Gzip(Cut(Images(500), 1)), StatusCode::kDataLoss,
         "expected content up to byte 3016"},
        {"GzipContentLong", Gzip(Images(500) + "x"), StatusCode::kDataLoss,
         "byte 3016: expected the end"},
        {"GzipBomb", Bomb(), StatusCode::kDataLoss,
         "byte 76: expected the end after u8[10,2,3], got: more bytes"},
        {"DeclaresMoreThanGzipCanHold", Gzip(IdxHeader({60000, 28, 28}) + "abc"),
         StatusCode::kDataLoss, "compressed bytes can hold, got: u8[60000,28,28]"},
        {"DimensionsOverflow", IdxHeader({0xFFFFFFFF, 0xFFFFFFFF, 0xFFFFFFFF}),
         StatusCode::kDataLoss, "expected dimensions that fit in memory"},
    }),
    [](const ::testing::TestParamInfo<Case>& info) { return info.param.name; });

Status OpenPair(const std::string& images, const std::string& labels, int64_t take = -1) {
  return OpenSource({.from = IdxFiles{images, labels}, .take = take}).status();
}

TEST(IdxSourceTest, RefusesCountsThatDiffer) {
  const TempFolder folder;
  const std::string images = folder.Write("images", Images(5));
  const std::string labels = folder.Write("labels", Labels(4));
  EXPECT_EQ(OpenPair(images, labels),
            InvalidArgument(labels + ": byte 4: expected 5 labels, as many as images in " + images +
                            ", got: 4"));
}

TEST(IdxSourceTest, RefusesImagesForLabels) {
  const TempFolder folder;
  const std::string images = folder.Write("images", Images(5));
  EXPECT_THAT(OpenPair(images, images).message(), HasSubstr("is it the images' file?"));
  EXPECT_EQ(OpenPair(images, folder.At("none")).code(), StatusCode::kNotFound);
  EXPECT_EQ(OpenPair(folder.At(""), images).code(), StatusCode::kInvalidArgument);
}

TEST(IdxSourceTest, RefusesNothing) {
  const TempFolder folder;
  const std::string none = folder.Write("images", IdxHeader({0, 2, 3}));
  EXPECT_THAT(OpenPair(none, folder.Write("labels", IdxHeader({0}))).message(),
              HasSubstr("at least one element"));
  EXPECT_THAT(OpenPair(folder.Write("i5", Images(5)), folder.Write("l5", Labels(5)), 0).message(),
              HasSubstr("of which 0 are taken"));
}

TEST(IdxSourceTest, RefusesMoreThanTheMachineHolds) {
  const TempFolder folder;
  // A terabyte that the file system does not store, declared honestly.
  const std::string images = folder.Write("images", IdxHeader({1 << 20, 1024, 1024}));
  const std::string labels = folder.Write("labels", IdxHeader({1 << 20}));
  std::filesystem::resize_file(images, 16 + (uintmax_t{1} << 40));
  std::filesystem::resize_file(labels, 8 + (uintmax_t{1} << 20));
  const Status status = OpenPair(images, labels);
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(status.message(),
              AllOf(HasSubstr(images + ": byte 4"), HasSubstr("`take` limits them")));
  EXPECT_TRUE(OpenPair(images, labels, 100).ok());
}

TEST(IdxSourceTest, ReadsNoFurtherThanTaken) {
  const TempFolder folder;
  // Broken behind the first 100 images: nobody looks there.
  const std::string images = folder.Write("images.gz", Cut(Gzip(Images(20000)), 100));
  const std::string labels = folder.Write("labels.gz", Gzip(Labels(20000)));
  auto some = OpenSource({.from = IdxFiles{images, labels}, .take = 100});
  ASSERT_TRUE(some.ok()) << some.status().ToString();
  EXPECT_EQ((*some)->size(), 100);
  const std::vector<int64_t> last = {99}, beyond = {19999}, first = {0};
  ASSERT_TRUE((*some)->Load(last).ok());
  EXPECT_EQ(std::to_integer<int>((*some)->Row(0, 99)[0]), 99 * 7 % 256);
  EXPECT_EQ(std::to_integer<int>((*some)->Row(1, 99)[0]), 9);

  auto all = OpenSource({.from = IdxFiles{images, labels}});
  ASSERT_TRUE(all.ok());
  EXPECT_EQ((*all)->Load(beyond).code(), StatusCode::kDataLoss);
  EXPECT_EQ((*all)->Load(first).code(), StatusCode::kDataLoss);  // an error stays
}

}  // namespace
}  // namespace meshtrain::data
