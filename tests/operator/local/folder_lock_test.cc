#include "operator/local/folder_lock.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <future>

namespace meshtrain::local {
namespace {

namespace fs = std::filesystem;
using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::AllOf;
using ::testing::HasSubstr;

class FolderLockTest : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = ::testing::TempDir() + "/mt_lock_XXXXXX";
    ASSERT_NE(::mkdtemp(folder_.data()), nullptr);
  }
  void TearDown() override { fs::remove_all(folder_); }
  std::string folder_;
};

TEST_F(FolderLockTest, WhoComesSecondIsToldWhoHoldsIt) {
  const auto first = FolderLock::Take(folder_);
  ASSERT_TRUE(first.ok()) << first.status().ToString();
  const Status second = FolderLock::Take(folder_, milliseconds(50)).status();
  EXPECT_EQ(second.code(), StatusCode::kAlreadyExists);
  EXPECT_THAT(second.message(),
              AllOf(HasSubstr(folder_ + ": expected a folder that no run writes to"),
                    HasSubstr("process " + std::to_string(::getpid()) + " since 20")));
}

TEST_F(FolderLockTest, ItIsFreeWhenItsHolderEnds) {
  { ASSERT_TRUE(FolderLock::Take(folder_).ok()); }
  EXPECT_TRUE(FolderLock::Take(folder_, milliseconds(0)).ok());
  const pid_t killed = ::fork();
  if (killed == 0) {
    const auto held = FolderLock::Take(folder_);
    ::raise(held.ok() ? SIGKILL : SIGTERM);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(killed, &status, 0), killed);
  ASSERT_EQ(WTERMSIG(status), SIGKILL);
  EXPECT_TRUE(FolderLock::Take(folder_, milliseconds(0)).ok());
}

TEST_F(FolderLockTest, OneThatIsJustEndingIsWaitedFor) {
  auto first = FolderLock::Take(folder_);
  ASSERT_TRUE(first.ok());
  auto second =
      std::async(std::launch::async, [&] { return FolderLock::Take(folder_, seconds(60)); });
  EXPECT_EQ(second.wait_for(milliseconds(100)), std::future_status::timeout);
  first = Unavailable("ended");
  EXPECT_TRUE(second.get().ok());
}

TEST_F(FolderLockTest, ALinkIsNotFollowed) {
  fs::create_symlink(folder_ + "/elsewhere", folder_ + "/run.lock");
  EXPECT_FALSE(FolderLock::Take(folder_).ok());
  EXPECT_FALSE(fs::exists(folder_ + "/elsewhere"));
}

}  // namespace
}  // namespace meshtrain::local
