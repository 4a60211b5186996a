#include "runtime/base/memory.h"

#include <gtest/gtest.h>

#include <cstring>
#include <limits>
#include <memory>
#include <vector>

#include "runtime/base/file.h"
#include "tests/support/temp_folder.h"

namespace meshtrain {
namespace {

// Folders as the kernel would show them.
class MemoryTest : public ::testing::Test {
 protected:
  void Put(const std::string& path, const std::string& text) const {
    const std::string whole = folder_.path() + "/" + path;
    ASSERT_TRUE(MakeDirectories(whole.substr(0, whole.rfind('/'))).ok());
    ASSERT_TRUE(WriteFileAtomically(whole, text).ok());
  }
  MemoryLimit Limit() const {
    return UsableMemory({folder_.path() + "/proc", folder_.path() + "/cgroup"});
  }
  const testing_folder::TempFolder folder_;
};

TEST_F(MemoryTest, OfTheMachineWhereNobodyLimitsIt) {
  Put("proc/meminfo", "MemFree:  7 kB\nMemTotal:       24679424 kB\nBuffers: 1 kB\n");
  EXPECT_EQ(Limit().bytes, int64_t{24679424} * 1024);
  EXPECT_EQ(Limit().whose, "this machine's memory");
  Put("proc/self/cgroup", "0::/\n");
  Put("cgroup/memory.max", "max\n");
  EXPECT_EQ(Limit().bytes, int64_t{24679424} * 1024);
}

TEST_F(MemoryTest, TheLeastLimitOfTheGroupsCounts) {
  Put("proc/meminfo", "MemTotal: 24679424 kB\n");
  Put("proc/self/cgroup", "0::/kubepods/pod7/main\n");
  Put("cgroup/kubepods/pod7/main/memory.max", "max\n");
  Put("cgroup/kubepods/pod7/memory.max", "2147483648\n");
  Put("cgroup/kubepods/memory.max", "8589934592\n");
  EXPECT_EQ(Limit().bytes, int64_t{2} << 30);
  EXPECT_EQ(Limit().whose, "the container's limit");
}

TEST_F(MemoryTest, AContainerSeesItsOwnGroupAsTheRoot) {
  Put("proc/self/cgroup", "0::/../../elsewhere/on/the/host\n");
  Put("cgroup/memory.max", "1048576\n");
  EXPECT_EQ(Limit().bytes, 1 << 20);
}

TEST_F(MemoryTest, TheFirstVersionOfGroups) {
  Put("proc/self/cgroup", "12:cpu,cpuacct:/docker/b\n7:memory:/docker/b\n");
  Put("cgroup/memory/docker/b/memory.limit_in_bytes", "3145728\n");
  Put("cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
  EXPECT_EQ(Limit().bytes, 3 << 20);
}

TEST_F(MemoryTest, WhereNothingCanBeReadThereIsNoLimit) {
  EXPECT_EQ(Limit().bytes, std::numeric_limits<int64_t>::max());
  Put("proc/meminfo", "MemTotal: much\n");
  Put("proc/self/cgroup", "nonsense\n\n:\n");
  EXPECT_EQ(Limit().bytes, std::numeric_limits<int64_t>::max());
}

TEST(UsableMemoryTest, ThisMachineHasSome) { EXPECT_GT(UsableMemory().bytes, int64_t{1} << 26); }

// Small blocks, of which a few between them are still in use: the allocator keeps all of it.
TEST(FreedMemoryTest, WhatWasFreedIsTheSystemsAgain) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "sanitizers keep what was freed";
#endif
  constexpr int64_t kBytes = int64_t{64} << 20, kBlock = 4096;
  std::vector<std::unique_ptr<char[]>> blocks;
  for (int64_t i = 0; i < kBytes / kBlock; ++i) {
    blocks.push_back(std::make_unique<char[]>(kBlock));
    std::memset(blocks.back().get(), 1, kBlock);
  }
  const int64_t full = ResidentBytes().value_or(0);
  if (full == 0) GTEST_SKIP() << "the system does not say what a process has";
  for (size_t i = 0; i < blocks.size(); ++i) {
    if (i % 64 != 63) blocks[i].reset();
  }
  ReturnFreedMemory();
  EXPECT_LT(ResidentBytes().value_or(full), full - kBytes / 2);
  EXPECT_EQ(blocks.back()[kBlock - 1], 1);
}

}  // namespace
}  // namespace meshtrain
