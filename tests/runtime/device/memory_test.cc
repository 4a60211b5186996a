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
      std::fill_n(memory.data(), AlignedBytes(bytes), std::byte{7});
    }
  }
}

TEST(MemoryTest, SaysThatThereIsNone) {
  for (const bool fenced : {false, true}) {
    EXPECT_EQ(Memory::Create(-1, fenced).status().code(), StatusCode::kInvalidArgument);
    const Status none = Memory::Create(int64_t{1} << 60, fenced).status();
    EXPECT_EQ(none.code(), StatusCode::kFailedPrecondition);
    EXPECT_NE(none.message().find("a buffer of 1152921504606846976 bytes, got: none"),
              std::string::npos);
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
