#include "runtime/wire/front.h"

#include <gtest/gtest.h>

#include <array>
#include <cstddef>

#include "runtime/wire/bytes.h"

namespace meshtrain::wire {
namespace {

TEST(FrontTest, LiesAsItsHeaderSaysAndReadsBack) {
  std::array<std::byte, kFrontBytes> bytes;
  const Front front{.head_bytes = 0x01020304, .payload_bytes = 0x1122334455667788};
  PutFront(0x3346544d, front, bytes.data());
  const unsigned char want[] = {0x4d, 0x54, 0x46, 0x33, 4,    3,    2,    1,
                                0x88, 0x77, 0x66, 0x55, 0x44, 0x33, 0x22, 0x11};
  for (size_t i = 0; i < kFrontBytes; ++i) EXPECT_EQ(std::to_integer<int>(bytes[i]), want[i]) << i;
  EXPECT_EQ(GetFront(0x3346544d, bytes.data()), front);
  EXPECT_EQ(GetFront(0x3346544e, bytes.data()), std::nullopt);
}

TEST(FrontTest, AHeadBeyondTheLimitIsNotWritten) {
  std::array<std::byte, kFrontBytes> bytes;
  EXPECT_DEATH(PutFront(1, {.head_bytes = kMaxHeadBytes + 1}, bytes.data()), "");
}

TEST(BytesTest, NumbersStandAtAnyAddress) {
  std::array<std::byte, 16> bytes{};
  Put(uint64_t{0x0102030405060708}, bytes.data() + 3);
  EXPECT_EQ(std::to_integer<int>(bytes[3]), 8);
  EXPECT_EQ(Get<uint64_t>(bytes.data() + 3), uint64_t{0x0102030405060708});
  EXPECT_EQ(Get<uint16_t>(bytes.data() + 9), 0x0102);
}

}  // namespace
}  // namespace meshtrain::wire
