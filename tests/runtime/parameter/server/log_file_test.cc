#include "runtime/parameter/server/log_file.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <csignal>
#include <filesystem>

#include "runtime/base/file.h"
#include "tests/support/temp_folder.h"

namespace meshtrain::parameter {
namespace {

Bytes BytesOf(std::string_view text) { return std::as_bytes(std::span(text)); }

std::vector<std::string> HeadsIn(const std::string& path) {
  std::vector<std::string> heads;
  const auto file = MappedFile::Open(path);
  EXPECT_TRUE(file.ok()) << file.status().ToString();
  const auto log = ScanLog((*file)->bytes(), path);
  EXPECT_TRUE(log.ok()) << log.status().ToString();
  for (const Record& r : log->records) heads.emplace_back(r.head);
  return heads;
}

TEST(LogFileTest, ListsSegmentsByNumber) {
  const testing_folder::TempFolder folder;
  EXPECT_TRUE(ListSegments(folder.path() + "/none")->empty());
  for (const int64_t n : {10, 9, 123456789}) {
    ASSERT_TRUE(LogWriter::Create(SegmentPath(folder.path(), n)).ok());
  }
  ASSERT_TRUE(WriteFileAtomically(folder.path() + "/push-x.log", "").ok());
  ASSERT_TRUE(WriteFileAtomically(folder.path() + "/setup", "").ok());
  const auto segments = ListSegments(folder.path());
  ASSERT_TRUE(segments.ok());
  std::vector<int64_t> numbers;
  for (const Segment& s : *segments) numbers.push_back(s.number);
  EXPECT_EQ(numbers, (std::vector<int64_t>{9, 10, 123456789}));
  EXPECT_TRUE(RemoveFile((*segments)[0].path).ok());
  EXPECT_TRUE(RemoveFile((*segments)[0].path).ok());
  EXPECT_EQ(ListSegments(folder.path())->size(), 2u);
}

TEST(LogFileTest, GoesOnBehindTheLastWholeRecord) {
  const testing_folder::TempFolder folder;
  const std::string path = SegmentPath(folder.path(), 1);
  int64_t end = 0;
  {
    auto writer = LogWriter::Create(path);
    ASSERT_TRUE(writer.ok());
    ASSERT_TRUE((*writer)->Write("one", std::vector<Bytes>{BytesOf("a"), {}, BytesOf("bc")}).ok());
    ASSERT_TRUE((*writer)->Sync().ok());
    end = (*writer)->bytes();
    ASSERT_TRUE((*writer)->Write("two", {}).ok());
  }
  EXPECT_EQ(LogWriter::Create(path).status().code(), StatusCode::kAlreadyExists)
      << "an old log is never written over";
  std::filesystem::resize_file(path, static_cast<uint64_t>(end) + 11);  // "two" was torn
  EXPECT_EQ(HeadsIn(path), std::vector<std::string>{"one"});
  auto writer = LogWriter::Reopen(path, end);
  ASSERT_TRUE(writer.ok());
  ASSERT_TRUE((*writer)->Write("three", {}).ok());
  EXPECT_EQ(HeadsIn(path), (std::vector<std::string>{"one", "three"}));
}

TEST(LogFileTest, AFullDiskLeavesTheRecordsBefore) {
  const testing_folder::TempFolder folder;
  const std::string path = SegmentPath(folder.path(), 1);
  auto writer = LogWriter::Create(path);
  ASSERT_TRUE(writer.ok());
  ASSERT_TRUE((*writer)->Write("one", {}).ok());
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  const auto ignored = std::signal(SIGXFSZ, SIG_IGN);
  const rlimit small{.rlim_cur = 4096, .rlim_max = before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
  const std::string big(10000, 'x');
  const Status refused = (*writer)->Write("two", std::vector<Bytes>{BytesOf(big)});
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &before), 0);
  std::signal(SIGXFSZ, ignored);
  EXPECT_EQ(refused.code(), StatusCode::kResourceExhausted) << refused.ToString();
  EXPECT_EQ(HeadsIn(path), std::vector<std::string>{"one"});
  ASSERT_TRUE((*writer)->Write("three", {}).ok());
  EXPECT_EQ(HeadsIn(path), (std::vector<std::string>{"one", "three"}));
}

}  // namespace
}  // namespace meshtrain::parameter
