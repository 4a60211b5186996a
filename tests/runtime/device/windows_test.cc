// Sums and maxima of windows and their gradients, to the bit: kernels against their definitions, at
// shapes whose windows overlap, lie apart, and lie on padding, on one thread and on several; and
// the loops of each instruction set that this processor has.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "runtime/device/cpu/kernels.h"
#include "runtime/device/cpu/ops/window.h"
#include "tests/runtime/device/fenced.h"

namespace meshtrain::device::cpu {
namespace {

template <typename T>
constexpr T kInf = std::numeric_limits<T>::infinity();

struct Shape {
  const char* name;
  WindowShape w;
};

const std::vector<Shape>& Shapes() {
  static const std::vector<Shape> shapes = [] {
    std::vector<Shape> all = {
        {"halves",
         {.n = 3, .channels = 16, .elements = {1, 14, 14}, .size = {1, 2, 2}, .stride = {1, 2, 2}}},
        {"halves of odd sizes, odd channels",
         {.n = 2, .channels = 31, .elements = {1, 7, 9}, .size = {1, 2, 2}, .stride = {1, 2, 2}}},
        {"halves, padded",
         {.n = 2,
          .channels = 8,
          .elements = {1, 6, 8},
          .size = {1, 2, 2},
          .stride = {1, 2, 2},
          .low = {0, 1, 1},
          .high = {0, 1, 1}}},
        {"overlap",
         {.n = 4,
          .channels = 20,
          .elements = {1, 11, 12},
          .size = {1, 3, 3},
          .stride = {1, 2, 2},
          .low = {0, 1, 1},
          .high = {0, 0, 1}}},
        {"every element, few channels",
         {.n = 5,
          .channels = 3,
          .elements = {1, 9, 10},
          .size = {1, 3, 3},
          .low = {0, 1, 1},
          .high = {0, 1, 1}}},
        {"one dimension overlaps",
         {.n = 2, .channels = 5, .elements = {1, 9, 12}, .size = {1, 2, 3}, .stride = {1, 1, 3}}},
        {"dilated, overlap",
         {.n = 2,
          .channels = 17,
          .elements = {1, 10, 13},
          .size = {1, 3, 2},
          .stride = {1, 1, 2},
          .dilation = {1, 2, 3},
          .low = {0, 2, 1},
          .high = {0, 2, 3}}},
        {"overlap by dilation alone",
         {.n = 2,
          .channels = 4,
          .elements = {1, 9, 5},
          .size = {1, 2, 1},
          .stride = {1, 2, 1},
          .dilation = {1, 2, 1}}},
        {"dilated, apart",
         {.n = 2,
          .channels = 6,
          .elements = {1, 11, 17},
          .size = {1, 2, 2},
          .stride = {1, 4, 5},
          .dilation = {1, 3, 2},
          .low = {0, 1, 2}}},
        {"gaps", {.n = 3, .channels = 9, .elements = {1, 8, 10}, .stride = {1, 2, 3}}},
        {"far padding",
         {.n = 2,
          .channels = 4,
          .elements = {1, 5, 5},
          .size = {1, 2, 2},
          .stride = {1, 1, 2},
          .low = {0, 3, 5},
          .high = {0, 0, 3}}},
        {"wider than what there is",
         {.n = 2,
          .channels = 12,
          .elements = {1, 2, 3},
          .size = {1, 4, 5},
          .stride = {1, 9, 9},
          .low = {0, 1, 2},
          .high = {0, 1, 2}}},
        {"all as one", {.n = 3, .channels = 24, .elements = {1, 5, 7}, .size = {1, 5, 7}}},
        {"length, long rows",
         {.n = 1,
          .channels = 16,
          .elements = {1, 1, 6001},
          .size = {1, 1, 3},
          .stride = {1, 1, 3},
          .low = {0, 0, 1},
          .high = {0, 0, 1}}},
        {"volume, apart",
         {.n = 2,
          .channels = 7,
          .elements = {5, 4, 7},
          .size = {2, 2, 2},
          .stride = {2, 3, 2},
          .low = {1, 0, 0}}},
        {"volume, overlap",
         {.n = 2,
          .channels = 10,
          .elements = {5, 6, 4},
          .size = {3, 2, 2},
          .stride = {2, 1, 1},
          .low = {1, 1, 0},
          .high = {1, 0, 1}}},
    };
    for (Shape& shape : all) {
      WindowShape& w = shape.w;
      for (int d = 0; d < 3; ++d) {
        w.positions[d] = (w.elements[d] + w.low[d] + w.high[d] - w.reach(d)) / w.stride[d] + 1;
      }
    }
    return all;
  }();
  return shapes;
}

// Few different numbers, so that many are equal, and those at which comparisons go wrong.
template <typename T>
std::vector<T> Ranked(int64_t n, uint64_t seed) {
  const T some[] = {0, -T{0}, 1, 2, -1, -2, 1, 2, 0, 1, kInf<T>, -kInf<T>, -kInf<T>};
  std::mt19937_64 random(seed);
  std::vector<T> numbers(n);
  for (T& number : numbers) {
    const uint64_t drawn = random() % 200;
    number = drawn < 3 ? static_cast<T>(std::nan("")) : some[drawn % std::size(some)];
  }
  return numbers;
}

// Whose sums are of other bits in another order; some are -0.
template <typename T>
std::vector<T> Rough(int64_t n, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::uniform_real_distribution<double> unit(-1, 1);
  std::vector<T> numbers(n);
  for (T& number : numbers) {
    const double drawn = unit(random);
    number = drawn < -0.9 ? -T{0} : static_cast<T>(drawn);
  }
  return numbers;
}

template <typename T>
bool Before(T a, T b) {  // a is not the largest of the two, where a comes first
  return !std::isnan(a) && (std::isnan(b) || b > a);
}

// One example and channel after the other, by the definitions.
template <typename T>
std::vector<T> ByDefinition(const PoolCall& call, const std::vector<T>& a,
                            const std::vector<T>& b) {
  const WindowShape& w = call.shape;
  const bool spreads = call.kind == PoolKind::kSumGrad || call.kind == PoolKind::kMaxGrad;
  const int64_t elements = w.elements_of_one(), positions = w.positions_of_one();
  std::vector<T> out(w.n * (spreads ? elements : positions) * w.channels);
  for (int64_t n = 0; n < w.n; ++n) {
    for (int64_t c = 0; c < w.channels; ++c) {
      const auto element = [&](int64_t i) { return (n * elements + i) * w.channels + c; };
      const auto position = [&](int64_t o) { return (n * positions + o) * w.channels + c; };
      if (call.kind == PoolKind::kSumGrad) {
        Walk(w.elements, 0, elements, [&](const auto& at, int64_t i) {
          SeenBy(w, at, [&](int64_t, int64_t o) { out[element(i)] += a[position(o)]; });
        });
        continue;
      }
      Walk(w.positions, 0, positions, [&](const auto& at, int64_t o) {
        T sum = 0;
        int64_t top = -1;
        Taps(w, at, [&](int64_t, int64_t i) {
          sum += a[element(i)];
          if (top < 0 || Before(a[top], a[element(i)])) top = element(i);
        });
        switch (call.kind) {
          case PoolKind::kSum:
            out[position(o)] = sum;
            break;
          case PoolKind::kMax:
            out[position(o)] = top < 0 ? -kInf<T> : a[top];
            break;
          case PoolKind::kMaxPick:
            out[position(o)] = top < 0 ? 0 : b[top];
            break;
          default:
            if (top >= 0) out[top] += b[position(o)];
        }
      });
    }
  }
  return out;
}

// How many of them differ in a bit.
template <typename T>
int64_t Differing(const T* got, const std::vector<T>& want) {
  int64_t differing = 0;
  for (size_t i = 0; i < want.size(); ++i) {
    differing += std::memcmp(&got[i], &want[i], sizeof(T)) != 0 ? 1 : 0;
  }
  return differing;
}

template <typename T>
void CheckKernels() {
  Pool pool(3);
  for (const Shape& shape : Shapes()) {
    for (const PoolKind kind : {PoolKind::kSum, PoolKind::kSumGrad, PoolKind::kMax,
                                PoolKind::kMaxGrad, PoolKind::kMaxPick}) {
      SCOPED_TRACE(std::string(shape.name) + ", " + std::to_string(static_cast<int>(kind)));
      const WindowShape& w = shape.w;
      const PoolCall call{.shape = w, .kind = kind, .a = 0, .b = 1, .out = 2};
      const int64_t elements = w.n * w.elements_of_one() * w.channels;
      const int64_t positions = w.n * w.positions_of_one() * w.channels;
      const bool sums = kind == PoolKind::kSum || kind == PoolKind::kSumGrad;
      const std::vector<T> a = sums ? Rough<T>(kind == PoolKind::kSum ? elements : positions, 1)
                                    : Ranked<T>(elements, 2);
      const std::vector<T> b = Rough<T>(kind == PoolKind::kMaxGrad ? positions : elements, 3);
      const std::vector<T> want = ByDefinition(call, a, b);
      const KernelPtr kernel = MakePoolKernel<T>(call);
      for (Pool* on : {static_cast<Pool*>(nullptr), &pool}) {
        // Fenced: nothing behind them is touched. Whatever is not written stays odd.
        const Memory first = Fenced(a), second = Fenced(b),
                     out = Fenced(std::vector<T>(want.size(), T{12345}));
        std::byte* at[] = {first.data(), second.data(), out.data()};
        kernel->Run({.at = at, .pool = on});
        EXPECT_EQ(Differing(reinterpret_cast<const T*>(out.data()), want), 0)
            << "of " << want.size() << (on == nullptr ? "" : ", on three threads");
      }
    }
  }
}

TEST(WindowsTest, KernelsGiveWhatTheDefinitionsGive) {
  CheckKernels<float>();
  CheckKernels<double>();
}

// Each instruction set has strips of its own widths.
class SetWindowsTest : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    k_ = FindKernels(GetParam());
    if (k_ == nullptr) GTEST_SKIP() << "this processor or build lacks " << GetParam();
  }

  // Rows of three windows of that many channels, their taps in no order.
  template <typename T>
  void Check(Type type, int64_t channels, int64_t count) const {
    SCOPED_TRACE(std::to_string(channels) + " channels, " + std::to_string(count) + " taps");
    constexpr int64_t kWindows = 3;
    const int64_t step = 2 * channels, apart = channels + 1;
    std::vector<int64_t> taps;
    for (int64_t t = 0; t < count; ++t) taps.push_back((t * 5 % 7) * 10 * channels);
    const WindowRow row{.taps = taps.data(),
                        .count = count,
                        .windows = kWindows,
                        .step = step,
                        .apart = apart,
                        .channels = channels};
    const std::vector<T> a = Ranked<T>(70 * channels, 4), v = Rough<T>(70 * channels, 5);
    const std::vector<T> g = Rough<T>(kWindows * apart, 6), before = Rough<T>(70 * channels, 7);
    std::vector<T> sum(kWindows * apart, 9), max = sum, pick = sum, set = before, added = before;
    std::vector<T> want_sum = sum, want_max = sum, want_pick = sum, want_set = set,
                   want_added = added;
    k_->window_sum(type, sum.data(), v.data(), row);
    k_->window_max(type, max.data(), a.data(), row);
    k_->window_pick(type, pick.data(), a.data(), v.data(), row);
    k_->window_max_grad(type, set.data(), a.data(), g.data(), row, false);
    k_->window_max_grad(type, added.data(), a.data(), g.data(), row, true);
    for (int64_t r = 0; r < kWindows; ++r) {
      for (int64_t c = 0; c < channels; ++c) {
        T total = 0;
        int64_t top = -1;
        for (const int64_t tap : taps) {
          const int64_t i = tap + r * step + c;
          total += v[i];
          if (top < 0 || Before(a[top], a[i])) top = i;
        }
        const int64_t to = r * apart + c;
        want_sum[to] = total;
        want_max[to] = top < 0 ? -kInf<T> : a[top];
        want_pick[to] = top < 0 ? 0 : v[top];
        for (const int64_t tap : taps) {
          const int64_t i = tap + r * step + c;
          const T given = i == top ? g[to] + T{0} : T{0};
          want_set[i] = given;
          want_added[i] += given;
        }
      }
    }
    EXPECT_EQ(Differing(sum.data(), want_sum), 0);
    EXPECT_EQ(Differing(max.data(), want_max), 0);
    EXPECT_EQ(Differing(pick.data(), want_pick), 0);
    EXPECT_EQ(Differing(set.data(), want_set), 0);
    EXPECT_EQ(Differing(added.data(), want_added), 0);
  }

  const Kernels* k_ = nullptr;
};

TEST_P(SetWindowsTest, RowsOfAnyNumberOfChannelsAndTaps) {
  for (int64_t channels = 1; channels < 40; ++channels) {
    for (int64_t count = 0; count < 7; ++count) {
      Check<float>(Type::kF32, channels, count);
      Check<double>(Type::kF64, channels, count);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Isa, SetWindowsTest, ::testing::Values("v2", "v3", "v4"),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace meshtrain::device::cpu
