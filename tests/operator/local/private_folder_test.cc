#include "operator/local/private_folder.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>

#include "runtime/base/file.h"

namespace meshtrain::local {
namespace {

namespace fs = std::filesystem;

class PrivateFolderTest : public ::testing::Test {
 protected:
  void SetUp() override {
    parent_ = ::testing::TempDir() + "/mt_private_XXXXXX";
    ASSERT_NE(::mkdtemp(parent_.data()), nullptr);
  }
  void TearDown() override { fs::remove_all(parent_); }

  // A run that is killed when it has its token: the folder that it leaves.
  std::string LeftByAKilledRun() {
    const pid_t run = ::fork();
    if (run == 0) {
      const auto folder = PrivateFolder::Create(parent_);
      if (!folder.ok() || !WriteFileAtomically((*folder)->path() + "/token", "secret").ok()) {
        ::_exit(1);
      }
      ::raise(SIGKILL);
    }
    int status = 0;
    EXPECT_EQ(::waitpid(run, &status, 0), run);
    EXPECT_TRUE(WIFSIGNALED(status));
    for (const auto& entry : fs::directory_iterator(parent_)) {
      if (fs::exists(entry.path() / "token")) return entry.path().string();
    }
    return "";
  }

  std::string parent_;
};

TEST_F(PrivateFolderTest, IsItsOwnersAndGoesWithTheRun) {
  std::string path;
  {
    const auto folder = PrivateFolder::Create(parent_);
    ASSERT_TRUE(folder.ok()) << folder.status().ToString();
    path = (*folder)->path();
    struct stat info {};
    ASSERT_EQ(::stat(path.c_str(), &info), 0);
    EXPECT_EQ(info.st_mode & 0777, 0700u);
    ASSERT_TRUE(WriteFileAtomically(path + "/token", "secret").ok());
  }
  EXPECT_FALSE(fs::exists(path));
}

TEST_F(PrivateFolderTest, WhatAKilledRunLeftGoesWithTheNext) {
  const std::string left = LeftByAKilledRun();
  ASSERT_FALSE(left.empty());
  const auto next = PrivateFolder::Create(parent_);
  ASSERT_TRUE(next.ok()) << next.status().ToString();
  EXPECT_FALSE(fs::exists(left));
  EXPECT_TRUE(fs::exists((*next)->path()));
}

TEST_F(PrivateFolderTest, NobodyTakesWhatIsHeldOrIsNoneOfOurs) {
  const auto first = PrivateFolder::Create(parent_);
  ASSERT_TRUE(first.ok());
  // As a run's, but a link to what is somebody's, a file, and folders of other names.
  fs::create_directory(parent_ + "/mine");
  ASSERT_TRUE(WriteFileAtomically(parent_ + "/mine/file", "x").ok());
  fs::create_directory_symlink(parent_ + "/mine", parent_ + "/meshtrain-run-aaaaaa");
  ASSERT_TRUE(WriteFileAtomically(parent_ + "/meshtrain-run-bbbbbb", "x").ok());
  fs::create_directory(parent_ + "/meshtrain-run-longer-name");
  const auto second = PrivateFolder::Create(parent_);
  ASSERT_TRUE(second.ok());
  EXPECT_TRUE(fs::exists((*first)->path()));
  EXPECT_NE((*first)->path(), (*second)->path());
  for (const char* kept : {"/mine/file", "/meshtrain-run-bbbbbb", "/meshtrain-run-longer-name"}) {
    EXPECT_TRUE(fs::exists(parent_ + kept)) << kept;
  }
}

TEST_F(PrivateFolderTest, WhereNoneCanBeMadeSaysWhere) {
  const Status status = PrivateFolder::Create("/proc/none").status();
  EXPECT_EQ(status.code(), StatusCode::kNotFound);
  EXPECT_TRUE(status.message().starts_with("/proc/none/meshtrain-run-")) << status.message();
}

}  // namespace
}  // namespace meshtrain::local
