#include "runtime/mesh/half.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>

#include "runtime/mesh/element_type.h"
#include "runtime/mesh/tensor.h"

namespace meshtrain::mesh {
namespace {

// One format: bits of fraction, the least exponent of a normal number, the largest number.
struct Format {
  int fraction;
  int least;
  long double largest;
};
constexpr Format kBf16{7, -126, 0x1.fep127L}, kF16{10, -14, 65504};

// The nearest number of the format by its definition: a multiple of the last bit's worth there.
long double Nearest(long double x, const Format& f) {
  if (x == 0 || !std::isfinite(x)) return x;
  int exponent = 0;
  std::frexp(x, &exponent);  // |x| in [2^(exponent - 1), 2^exponent)
  const int last = std::max(exponent - 1, f.least) - f.fraction;
  const long double rounded = std::ldexp(std::nearbyint(std::ldexp(x, -last)), last);
  if (std::abs(rounded) <= f.largest) return rounded;
  return std::copysign(std::numeric_limits<long double>::infinity(), x);
}

template <typename Half, typename T>
void ExpectNearest(T number, const Format& format) {
  const float got = Half(number);
  if (std::isnan(static_cast<long double>(number))) {
    EXPECT_TRUE(std::isnan(got));
    return;
  }
  const auto want = Nearest(static_cast<long double>(number), format);
  ASSERT_EQ(static_cast<long double>(got), want) << static_cast<long double>(number);
  ASSERT_EQ(std::signbit(got), std::signbit(want)) << static_cast<long double>(number);
}

// Numbers of every size, and those beside the middle of two halves, where one rounding too many
// would show.
template <typename Half>
void CheckRounding(const Format& format) {
  std::mt19937_64 random(7);
  const auto near_a_tie = [&](int most_bits) {
    const auto lead = static_cast<double>((int64_t{2} << format.fraction) + random() % 512);
    const double off = static_cast<double>(random() % 3) - 1;
    const double number = lead / 2 + std::ldexp(off, -static_cast<int>(random() % most_bits) - 1);
    return std::ldexp(random() % 2 == 0 ? number : -number, static_cast<int>(random() % 60) - 35);
  };
  for (int i = 0; i < 200'000; ++i) {
    ExpectNearest<Half>(__builtin_bit_cast(float, static_cast<uint32_t>(random())), format);
    ExpectNearest<Half>(__builtin_bit_cast(double, random()), format);
    ExpectNearest<Half>(near_a_tie(40), format);
    ExpectNearest<Half>(static_cast<float>(near_a_tie(12)), format);
    const auto whole = static_cast<int64_t>(random()) >> (random() % 63);
    ExpectNearest<Half>(whole, format);
    ExpectNearest<Half>(static_cast<int32_t>(whole), format);
    const int64_t tie = ((int64_t{2} << format.fraction) + 1) << (random() % 40);
    ExpectNearest<Half>(tie + static_cast<int64_t>(random() % 3) - 1, format);
    if (::testing::Test::HasFatalFailure()) return;
  }
  ExpectNearest<Half>(std::numeric_limits<int64_t>::max(), format);
  ExpectNearest<Half>(std::numeric_limits<int64_t>::min(), format);
  ExpectNearest<Half>(static_cast<double>(format.largest), format);
}

TEST(HalfTest, NumbersAreRoundedOnce) {
  CheckRounding<BFloat16>(kBf16);
  CheckRounding<Float16>(kF16);
}

// Every pattern of bits there is.
template <typename Half>
void CheckExact(const Format& format) {
  for (uint32_t bits = 0; bits < 1 << 16; ++bits) {
    Half half;
    half.bits = static_cast<uint16_t>(bits);
    const float wide = half;
    const auto exponent = (bits & 0x7fff) >> format.fraction;
    const auto fraction = bits & ((1u << format.fraction) - 1);
    const bool special = exponent == (0x7fffu >> format.fraction);
    const long double size =
        exponent == 0
            ? std::ldexp(static_cast<long double>(fraction), format.least - format.fraction)
            : std::ldexp(static_cast<long double>(fraction + (1u << format.fraction)),
                         static_cast<int>(exponent) - 1 + format.least - format.fraction);
    ASSERT_EQ(std::signbit(wide), bits >> 15 == 1);
    if (special && fraction != 0) {
      ASSERT_TRUE(std::isnan(wide) && std::isnan(static_cast<float>(Half(wide))));
      continue;
    }
    ASSERT_EQ(static_cast<long double>(std::abs(wide)),
              special ? std::numeric_limits<long double>::infinity() : size);
    ASSERT_EQ(Half(wide).bits, bits);
    ASSERT_EQ(Half(static_cast<double>(wide)).bits, bits);
  }
}

TEST(HalfTest, EveryHalfIsAFloatAndComesBack) {
  CheckExact<BFloat16>(kBf16);
  CheckExact<Float16>(kF16);
}

TEST(HalfTest, TypesHaveNamesSizesAndLimits) {
  for (const DType dtype : kAllDTypes) {
    EXPECT_EQ(*ParseDType(DTypeName(dtype)), dtype);
    WithElementType(dtype, [&](auto zero) {
      EXPECT_EQ(static_cast<int64_t>(sizeof zero), DTypeBytes(dtype));
      EXPECT_EQ(DTypeOf<decltype(zero)>::value, dtype);
      EXPECT_EQ(kIsFloatType<decltype(zero)>, IsFloat(dtype));
      if constexpr (kIsFloatType<decltype(zero)>) {
        using T = decltype(zero);
        const double largest = LargestFinite(dtype), unit = UnitRoundoff(dtype);
        EXPECT_EQ(static_cast<double>(T(largest)), largest);
        EXPECT_TRUE(std::isinf(static_cast<double>(T(largest * (1 + 2 * unit)))));
        EXPECT_EQ(static_cast<double>(T(1 + unit)), 1) << "to even";
        EXPECT_EQ(static_cast<double>(T(1 + 2 * unit)), 1 + 2 * unit);
      }
    });
  }
}

TEST(HalfTest, TensorsOfHalves) {
  const BFloat16 values[] = {BFloat16(1.5), BFloat16(-INFINITY), BFloat16(NAN), BFloat16(3e38)};
  const Tensor t = Tensor::Of<BFloat16>({4}, values);
  EXPECT_EQ(t.type().ToString(), "bf16[4]");
  EXPECT_EQ(t.bytes().size(), 8u);
  EXPECT_EQ(CountNotFinite(t), 2);
  EXPECT_EQ(t.Slice({0}, {1}).Item(), 1.5);
  const Float16 small[] = {Float16(0x1p-24), Float16(65519.0), Float16(65520.0)};
  const Tensor f = Tensor::Of<Float16>({3}, small);
  EXPECT_EQ(CountNotFinite(f), 1);
  EXPECT_EQ(f.Slice({1}, {1}).Item(), 65504);
  EXPECT_EQ(f.Slice({0}, {1}).Item(), 0x1p-24);
}

}  // namespace
}  // namespace meshtrain::mesh
