#include "runtime/base/file.h"

#include <gtest/gtest.h>

#include <cerrno>
#include <filesystem>

namespace meshtrain {
namespace {

TEST(FileTest, AnAtomicWriteReplacesTheFileAndLeavesNoOther) {
  const std::string folder = testing::TempDir() + "/mt_file_test";
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
  const std::string path = testing::TempDir() + "/mt_big";
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
  const std::string folder = testing::TempDir() + "/mt_file_in_the_way";
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

}  // namespace
}  // namespace meshtrain
