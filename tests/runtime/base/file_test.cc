#include "runtime/base/file.h"

#include <gtest/gtest.h>

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

}  // namespace
}  // namespace meshtrain
