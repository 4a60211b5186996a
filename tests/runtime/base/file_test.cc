#include "runtime/base/file.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>

namespace meshtrain {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(FileTest, AnAtomicWriteReplacesTheFileAndLeavesNoOther) {
  const std::string folder = ::testing::TempDir() + "/mt_file_test";
  std::filesystem::remove_all(folder);
  ASSERT_TRUE(MakeDirectories(folder + "/a/b").ok());
  const std::string path = folder + "/a/b/f";
  ASSERT_TRUE(WriteFileAtomically(path, "one").ok());
  ASSERT_TRUE(WriteFileAtomically(path, "two").ok());
  EXPECT_EQ(*ReadFile(path), "two");
  int files = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator(folder + "/a/b")) {
    ++files;
  }
  EXPECT_EQ(files, 1);
}

TEST(FileTest, ErrorsNameThePath) {
  EXPECT_EQ(ReadFile("/nowhere/x").status().code(), StatusCode::kNotFound);
  EXPECT_NE(WriteFileAtomically("/nowhere/x", "").message().find("/nowhere/x"), std::string::npos);
  const std::string path = ::testing::TempDir() + "/mt_big";
  ASSERT_TRUE(WriteFileAtomically(path, std::string(100, 'x')).ok());
  EXPECT_EQ(ReadFile(path, 99).status().code(), StatusCode::kResourceExhausted);
}

// What trying again may mend, and what it cannot.
TEST(FileTest, ErrnosAreToldApart) {
  const auto code = [](int error) { return ErrnoStatus(error, "cannot open", "/x").code(); };
  for (const int error : {ENOENT, ENOTDIR, ENAMETOOLONG}) {
    EXPECT_EQ(code(error), StatusCode::kNotFound) << error;
  }
  for (const int error : {EISDIR, ELOOP, EEXIST}) {
    EXPECT_EQ(code(error), StatusCode::kAlreadyExists) << error;
  }
  for (const int error : {EACCES, EPERM, EROFS}) {
    EXPECT_EQ(code(error), StatusCode::kPermissionDenied) << error;
  }
  for (const int error : {ENOSPC, EDQUOT, EFBIG}) {
    EXPECT_EQ(code(error), StatusCode::kResourceExhausted) << error;
  }
  for (const int error : {EIO, ESTALE, EMFILE, ENXIO}) {
    EXPECT_EQ(code(error), StatusCode::kUnavailable) << error;
  }
}

TEST(FileTest, WhatIsInTheWayIsAnErrorOfItsOwn) {
  const std::string folder = ::testing::TempDir() + "/mt_file_in_the_way";
  std::filesystem::remove_all(folder);
  ASSERT_TRUE(MakeDirectories(folder + "/a").ok());
  std::filesystem::create_symlink(folder + "/loop", folder + "/loop");
  std::filesystem::create_symlink(folder + "/none", folder + "/dangling");
  ASSERT_TRUE(WriteFileAtomically(folder + "/file", "x").ok());
  const auto expect = [](const Status& status, StatusCode code) {
    EXPECT_EQ(status.code(), code) << status.ToString();
  };
  expect(WriteFileAtomically(folder + "/a", "x"), StatusCode::kAlreadyExists);
  expect(MakeDirectories(folder + "/loop/b"), StatusCode::kAlreadyExists);
  expect(MakeDirectories(folder + "/dangling"), StatusCode::kAlreadyExists);
  expect(MakeDirectories(folder + "/file/b"), StatusCode::kNotFound);
  expect(MakeDirectories(folder + "/" + std::string(300, 'n')), StatusCode::kNotFound);
  expect(ReadFile(folder + "/loop").status(), StatusCode::kAlreadyExists);
}

// Each of these would wait for ever, or read and write what is no file.
TEST(FileTest, WhatIsNoRegularFileIsAnErrorAtOnce) {
  const std::string folder = ::testing::TempDir() + "/mt_file_kinds";
  std::filesystem::remove_all(folder);
  ASSERT_TRUE(MakeDirectories(folder).ok());
  const std::string fifo = folder + "/fifo", socket = folder + "/socket";
  ASSERT_EQ(::mkfifo(fifo.c_str(), 0600), 0);
  std::filesystem::create_symlink(fifo, folder + "/link");
  const FileDescriptor server(::socket(AF_UNIX, SOCK_STREAM, 0));
  sockaddr_un address{.sun_family = AF_UNIX, .sun_path = {}};
  ASSERT_LT(socket.size(), sizeof address.sun_path);
  socket.copy(address.sun_path, socket.size());
  ASSERT_EQ(::bind(server.get(), reinterpret_cast<sockaddr*>(&address), sizeof address), 0);

  for (const auto& [path, kind] :
       std::vector<std::pair<std::string, std::string>>{{fifo, "a FIFO"},
                                                        {folder + "/link", "a FIFO"},
                                                        {socket, "a socket"},
                                                        {folder, "a folder"},
                                                        {"/dev/null", "a device"}}) {
    const std::string message = path + ": expected a regular file, got: " + kind;
    EXPECT_EQ(ReadFile(path).status(), InvalidArgument(message));
    EXPECT_EQ(OpenFile(path, O_RDONLY).status(), InvalidArgument(message));
    EXPECT_EQ(OpenFile(path, O_WRONLY | O_CREAT | O_TRUNC).status(), AlreadyExists(message));
    EXPECT_EQ(OpenFile(path, O_RDWR | O_CREAT | O_APPEND).status(), AlreadyExists(message));
    EXPECT_EQ(WriteFileInPlace(path, "x"), AlreadyExists(message));
  }
  // Also one that somebody reads, which can be opened for writing.
  const FileDescriptor reader(::open(fifo.c_str(), O_RDONLY | O_NONBLOCK));
  EXPECT_EQ(OpenFile(fifo, O_WRONLY).status(),
            AlreadyExists(fifo + ": expected a regular file, got: a FIFO"));
}

TEST(FileTest, ALinkIsNotFollowedWhereItMustNotBe) {
  const std::string folder = ::testing::TempDir() + "/mt_file_links";
  std::filesystem::remove_all(folder);
  ASSERT_TRUE(MakeDirectories(folder).ok());
  const std::string file = folder + "/file", link = folder + "/link";
  ASSERT_TRUE(WriteFileAtomically(file, "kept").ok());
  std::filesystem::create_symlink(file, link);
  EXPECT_EQ(OpenFile(link, O_WRONLY | O_TRUNC | O_NOFOLLOW).status(),
            AlreadyExists(link + ": expected a regular file, got: a symbolic link"));
  EXPECT_EQ(*ReadFile(link), "kept");
  // Nor by a file's temporary neighbour.
  std::filesystem::create_symlink(file, folder + "/other.tmp." + std::to_string(::getpid()));
  EXPECT_EQ(WriteFileAtomically(folder + "/other", "x").code(), StatusCode::kAlreadyExists);
  EXPECT_EQ(*ReadFile(file), "kept");
}

TEST(FileTest, APathWithANulByteIsRefused) {
  const std::string folder = ::testing::TempDir() + "/mt_file_nul";
  std::filesystem::remove_all(folder);
  const std::string path = folder + std::string("\0.gz", 4);
  for (const Status& status : {ReadFile(path).status(), WriteFileAtomically(path, "x"),
                               MakeDirectories(path), SyncFolder(path), CheckPath(path)}) {
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << status.ToString();
    EXPECT_THAT(status.message(), AllOf(HasSubstr("mt_file_nul\\x00.gz"),
                                        HasSubstr(": expected a path without NUL bytes")));
  }
  EXPECT_FALSE(std::filesystem::exists(folder));
}

TEST(FileTest, ReadsFromAnyByteAsManyAsThereAre) {
  const std::string path = ::testing::TempDir() + "/mt_file_read_at";
  ASSERT_TRUE(WriteFileAtomically(path, "0123456789").ok());
  const FileDescriptor file = *OpenFile(path, O_RDONLY);
  std::string bytes(4, '.');
  const auto read_at = [&](int64_t offset) {
    return ReadAt(file, offset, std::as_writable_bytes(std::span(bytes)), path);
  };
  EXPECT_EQ(read_at(3).value(), 4u);
  EXPECT_EQ(bytes, "3456");
  EXPECT_EQ(read_at(8).value(), 2u);
  EXPECT_EQ(bytes, "8956");
  EXPECT_EQ(read_at(10).value(), 0u);
  EXPECT_EQ(read_at(-1).status(), Unavailable(path + ": cannot read at byte -1: Invalid argument"));
}

TEST(FileTest, InPlaceTheFileStaysTheSame) {
  const std::string path = ::testing::TempDir() + "/mt_file_in_place";
  std::filesystem::remove(path);
  struct stat before {
  }, after{};
  ASSERT_TRUE(WriteFileInPlace(path, "something longer").ok());
  ASSERT_EQ(::stat(path.c_str(), &before), 0);
  ASSERT_TRUE(WriteFileInPlace(path, "short").ok());
  ASSERT_EQ(::stat(path.c_str(), &after), 0);
  EXPECT_EQ(before.st_ino, after.st_ino);
  EXPECT_EQ(*ReadFile(path), "short");
}

}  // namespace
}  // namespace meshtrain
