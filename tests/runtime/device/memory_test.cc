#include "runtime/device/cpu/memory.h"

#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>

#include "runtime/device/cpu/kernel.h"

namespace meshtrain::device::cpu {
namespace {

TEST(MemoryTest, IsZeroAndAlignedAndAllOfItIsThere) {
  for (const bool fenced : {false, true}) {
    for (const int64_t bytes : {0, 1, 63, 64, 65, 4096, 100000}) {
      const Memory memory = *Memory::Create(bytes, fenced);
      ASSERT_NE(memory.data(), nullptr);
      EXPECT_EQ(reinterpret_cast<uintptr_t>(memory.data()) % kAlignment, 0u);
      EXPECT_TRUE(std::all_of(memory.data(), memory.data() + bytes,
                              [](std::byte b) { return b == std::byte{0}; }));
      std::fill_n(memory.data(), bytes, std::byte{7});
    }
  }
}

// A sanitizer's malloc ends the process where it is asked for too much.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kMallocAnswers = false;
#else
constexpr bool kMallocAnswers = true;
#endif

TEST(MemoryTest, SaysThatThereIsNone) {
  for (const bool fenced : {false, true}) {
    if (!fenced && !kMallocAnswers) continue;
    EXPECT_EQ(Memory::Create(-1, fenced).status().code(), StatusCode::kInvalidArgument);
    const Status none = Memory::Create(int64_t{1} << 60, fenced).status();
    EXPECT_EQ(none.code(), StatusCode::kFailedPrecondition);
    EXPECT_NE(none.message().find("a buffer of 1152921504606846976 bytes, got: none"),
              std::string::npos);
  }
}

TEST(WorkspacesTest, TheNextStepHasTheMemoryOfTheLastOne) {
  Workspaces workspaces(false);
  const std::byte* first = nullptr;
  {
    const auto lease = *workspaces.Take(2, {.arena = 1000, .scratch = 100});
    ASSERT_GE(lease->size(), 2u);
    first = (*lease)[1].arena.data();
    std::fill_n((*lease)[1].arena.data(), 1000, std::byte{1});
    // Another that runs at the same time has its own.
    const auto beside = *workspaces.Take(1, {.arena = 1000, .scratch = 100});
    EXPECT_NE((*beside)[0].arena.data(), (*lease)[0].arena.data());
  }
  const auto smaller = *workspaces.Take(2, {.arena = 10, .scratch = 0});
  const auto larger = *workspaces.Take(2, {.arena = 5000, .scratch = 64});
  EXPECT_TRUE((*smaller)[1].arena.data() == first || (*larger)[1].sizes.arena == 5000);
  for (size_t d = 0; d < 2; ++d) {
    EXPECT_GE((*larger)[d].sizes.arena, 5000);
    std::fill_n((*larger)[d].arena.data(), 5000, std::byte{2});
    std::fill_n((*larger)[d].scratch.data(), 64, std::byte{2});
  }
}

TEST(WorkspacesTest, ARefusedOneLeavesTheRest) {
  Workspaces workspaces(!kMallocAnswers);
  EXPECT_EQ(workspaces.Take(1, {.arena = int64_t{1} << 60}).status().code(),
            StatusCode::kFailedPrecondition);
  const auto lease = *workspaces.Take(1, {.arena = 100});
  std::fill_n((*lease)[0].arena.data(), 100, std::byte{1});
}

TEST(WorkspacesTest, FencedOnesHoldNothingThatAStepMayTakeForItsOwn) {
  Workspaces workspaces(true);
  for (int round = 0; round < 2; ++round) {
    const auto lease = *workspaces.Take(1, {.arena = 100, .scratch = 64});
    EXPECT_TRUE(std::all_of((*lease)[0].arena.data(), (*lease)[0].arena.data() + 100,
                            [](std::byte b) { return b == std::byte{0xFF}; }));
    std::fill_n((*lease)[0].arena.data(), 100, std::byte{0});
  }
}

[[noreturn]] void Touch(int64_t bytes, int64_t at, bool write) {
  signal(SIGSEGV, SIG_DFL);
  const Memory memory = *Memory::Create(bytes, true);
  volatile std::byte* place = memory.data() + at;
  if (write) *place = std::byte{1};
  [[maybe_unused]] const std::byte read = *place;
  std::exit(0);
}

TEST(MemoryDeathTest, NobodyTouchesWhatLiesBehindAFence) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(Touch(100, 127, true), ::testing::ExitedWithCode(0), "");
  EXPECT_EXIT(Touch(100, 128, true), ::testing::KilledBySignal(SIGSEGV), "");
  EXPECT_EXIT(Touch(4096, 4096, false), ::testing::KilledBySignal(SIGSEGV), "");
}

}  // namespace
}  // namespace meshtrain::device::cpu
