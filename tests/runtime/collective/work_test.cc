#include "runtime/collective/work.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>

namespace meshtrain::collective {
namespace {

using mesh::DType;
using mesh::Reduction;

const std::byte* Bytes(const void* p) { return static_cast<const std::byte*>(p); }
std::byte* Bytes(void* p) { return static_cast<std::byte*>(p); }

TEST(WorkTest, FoldsInOrderIntoAnyOfItsSources) {
  // Longer than a block; sums of magnitudes far apart depend on the order.
  const int64_t n = 5000;
  std::vector<std::vector<float>> sources(4, std::vector<float>(n));
  for (int s = 0; s < 4; ++s) {
    for (int64_t i = 0; i < n; ++i) {
      sources[s][i] = std::ldexp(1.0f + 1e-3f * static_cast<float>(i % 7), 9 * s % 25);
    }
  }
  std::vector<float> want(n);
  for (int64_t i = 0; i < n; ++i) {
    want[i] = ((sources[0][i] + sources[1][i]) + sources[2][i]) + sources[3][i];
  }
  for (int to = -1; to < 4; ++to) {
    auto copy = sources;
    std::vector<float> apart(n);
    float* target = to < 0 ? apart.data() : copy[to].data();
    std::vector<const std::byte*> from;
    for (const auto& s : copy) from.push_back(Bytes(s.data()));
    Fold(nullptr, FindReduce(DType::kF32, Reduction::kSum), Bytes(target), from, n, 4);
    EXPECT_EQ(std::memcmp(target, want.data(), n * 4), 0) << "into " << to;
  }
}

TEST(WorkTest, FoldsTheSameInParallel) {
  const int64_t n = 1'000'000;
  std::vector<int32_t> a(n), b(n), alone(n), together(n);
  std::iota(a.begin(), a.end(), 1);
  std::iota(b.begin(), b.end(), 5);
  const std::byte* from[] = {Bytes(a.data()), Bytes(b.data())};
  int calls = 0;
  const ParallelFor parallel = [&](int64_t items, int64_t grain,
                                   const std::function<void(int64_t, int64_t)>& body) {
    for (int64_t i = 0; i < items; i += grain) {
      body(i, std::min(items, i + grain));
      ++calls;
    }
  };
  Fold(nullptr, FindReduce(DType::kI32, Reduction::kSum), Bytes(alone.data()), from, n, 4);
  Fold(&parallel, FindReduce(DType::kI32, Reduction::kSum), Bytes(together.data()), from, n, 4);
  EXPECT_EQ(alone, together);
  EXPECT_GT(calls, 1);
}

TEST(WorkTest, CopiesAnyLengthAndAlignment) {
  std::vector<char> from(20'000), to(20'000);
  for (size_t i = 0; i < from.size(); ++i) from[i] = static_cast<char>(i * 7);
  for (const int64_t bytes : {0, 1, 2047, 2048, 2049, 10'000}) {
    for (const int shift : {0, 1, 16}) {
      std::fill(to.begin(), to.end(), 'x');
      Copy(nullptr, Bytes(to.data() + shift), Bytes(from.data() + 3), bytes);
      EXPECT_EQ(std::memcmp(to.data() + shift, from.data() + 3, bytes), 0);
      EXPECT_EQ(to[shift + bytes], 'x');
    }
  }
}

TEST(WorkTest, CopiesPastTheCachesWhateverTheLengthAndAlignment) {
  const int64_t room = 1 << 20;
  std::vector<char> from(room), to(room);
  for (size_t i = 0; i < from.size(); ++i) from[i] = static_cast<char>(i * 7 + i / 256);
  const ParallelFor uneven = [&](int64_t items, int64_t grain,
                                 const std::function<void(int64_t, int64_t)>& body) {
    for (int64_t i = 0; i < items; i += grain + 13) body(i, std::min(items, i + grain + 13));
  };
  for (const int64_t bytes : {0, 1, 63, 64, 65, 4097, 900'001}) {
    for (const int shift : {1, 16, 64}) {
      for (const ParallelFor* parallel : {static_cast<const ParallelFor*>(nullptr), &uneven}) {
        std::fill(to.begin(), to.end(), 'x');
        CopyPastCaches(parallel, Bytes(to.data() + shift), Bytes(from.data() + 3), bytes);
        EXPECT_EQ(std::memcmp(to.data() + shift, from.data() + 3, bytes), 0);
        EXPECT_EQ(to[shift - 1], 'x');
        EXPECT_EQ(to[shift + bytes], 'x');
      }
    }
  }
}

uint32_t Bits(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, 4);
  return bits;
}
float Nan(uint32_t payload) {
  const uint32_t bits = 0x7fc00000u | payload;
  float x;
  std::memcpy(&x, &bits, 4);
  return x;
}

TEST(WorkTest, OrderedSumsKeepTheLeftNan) {
  const float inf = std::numeric_limits<float>::infinity();
  const float left[] = {Nan(1), 1, Nan(3), inf, 2}, right[] = {Nan(2), Nan(5), 1, -inf, 3};
  float sum[5];
  FindOrderedReduce(DType::kF32, Reduction::kSum)(Bytes(sum), Bytes(left), Bytes(right), 5);
  EXPECT_EQ(Bits(sum[0]), Bits(Nan(1)));
  EXPECT_EQ(Bits(sum[1]), Bits(Nan(5)));
  EXPECT_EQ(Bits(sum[2]), Bits(Nan(3)));
  EXPECT_TRUE(std::isnan(sum[3]));
  EXPECT_EQ(sum[4], 5);
}

TEST(WorkTest, ReductionsThatMeanNothingAreNone) {
  EXPECT_EQ(FindReduce(DType::kBool, Reduction::kSum), nullptr);
  EXPECT_NE(FindReduce(DType::kBool, Reduction::kMax), nullptr);
}

}  // namespace
}  // namespace meshtrain::collective
