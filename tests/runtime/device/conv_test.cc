// Convolutions by each way that the CPU has for them, against the plain loops: oneDNN's primitives
// (f32) and matrix products (both types), at the shapes of networks and at odd ones, on one thread
// and on several.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "runtime/device/cpu/gemm.h"
#include "runtime/device/cpu/kernels.h"
#include "runtime/device/cpu/ops/window.h"
#include "tests/runtime/device/fenced.h"

namespace meshtrain::device::cpu {
namespace {

struct Shape {
  const char* name;
  WindowShape w;
  bool primitive = true;  // oneDNN has code for it in all three directions
};

// Positions follow from the rest.
WindowShape Filled(WindowShape w) {
  for (int d = 0; d < 3; ++d) {
    const int64_t reach = (w.size[d] - 1) * w.dilation[d] + 1;
    w.positions[d] = (w.elements[d] + w.low[d] + w.high[d] - reach) / w.stride[d] + 1;
  }
  return w;
}

const std::vector<Shape>& Shapes() {
  static const std::vector<Shape> shapes = [] {
    std::vector<Shape> all = {
        {"stem",
         {.n = 3,
          .channels = 3,
          .features = 16,
          .elements = {1, 12, 13},
          .size = {1, 3, 3},
          .low = {0, 1, 1},
          .high = {0, 1, 1}}},
        {"gray",
         {.n = 9,
          .channels = 1,
          .features = 16,
          .elements = {1, 28, 28},
          .size = {1, 3, 3},
          .low = {0, 1, 1},
          .high = {0, 1, 1}}},
        {"block",
         {.n = 5,
          .channels = 32,
          .features = 32,
          .elements = {1, 16, 16},
          .size = {1, 3, 3},
          .low = {0, 1, 1},
          .high = {0, 1, 1}}},
        {"strided",
         {.n = 4,
          .channels = 16,
          .features = 24,
          .elements = {1, 11, 8},
          .size = {1, 3, 3},
          .stride = {1, 2, 2},
          .high = {0, 1, 1}}},
        {"projection",
         {.n = 4, .channels = 16, .features = 32, .elements = {1, 16, 16}, .stride = {1, 2, 2}}},
        {"projection of few channels",
         {.n = 4, .channels = 3, .features = 16, .elements = {1, 16, 16}, .stride = {1, 2, 2}}},
        {"projection of odd channels",
         {.n = 2, .channels = 12, .features = 20, .elements = {1, 8, 6}, .stride = {1, 2, 1}}},
        {"projection to many",
         {.n = 2, .channels = 64, .features = 256, .elements = {1, 28, 28}, .stride = {1, 2, 2}}},
        {"one tap", {.n = 4, .channels = 24, .features = 40, .elements = {1, 7, 9}}},
        {"odd channels",
         {.n = 2,
          .channels = 5,
          .features = 7,
          .elements = {1, 9, 10},
          .size = {1, 5, 2},
          .low = {0, 2, 0},
          .high = {0, 2, 1}}},
        {"dilated",
         {.n = 3,
          .channels = 8,
          .features = 16,
          .elements = {1, 14, 13},
          .size = {1, 3, 3},
          .dilation = {1, 2, 3},
          .low = {0, 2, 3},
          .high = {0, 2, 3}}},
        {"groups",
         {.n = 3,
          .channels = 32,
          .features = 48,
          .groups = 2,
          .elements = {1, 9, 9},
          .size = {1, 3, 3},
          .low = {0, 1, 1},
          .high = {0, 1, 1}}},
        {"depthwise",
         {.n = 3,
          .channels = 32,
          .features = 32,
          .groups = 32,
          .elements = {1, 10, 9},
          .size = {1, 3, 3},
          .low = {0, 1, 1},
          .high = {0, 1, 1}}},
        {"length",
         {.n = 6,
          .channels = 16,
          .features = 16,
          .elements = {1, 1, 50},
          .size = {1, 1, 5},
          .low = {0, 0, 4}}},
        {"volume",
         {.n = 2,
          .channels = 4,
          .features = 8,
          .elements = {6, 7, 5},
          .size = {2, 3, 3},
          .stride = {1, 2, 1},
          .low = {1, 1, 1},
          .high = {0, 1, 1}}},
        // Windows that lie on padding alone are nothing for oneDNN.
        {"far padding",
         {.n = 2,
          .channels = 8,
          .features = 8,
          .elements = {1, 5, 5},
          .size = {1, 2, 2},
          .low = {0, 3, 0},
          .high = {0, 0, 3}},
         false},
    };
    for (Shape& shape : all) shape.w = Filled(shape.w);
    return all;
  }();
  return shapes;
}

template <typename T>
std::vector<T> Numbers(int64_t n, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::uniform_real_distribution<double> unit(-1, 1);
  std::vector<T> numbers(n);
  for (T& number : numbers) number = static_cast<T>(unit(random));
  return numbers;
}

struct Sizes {
  int64_t a, b, out;
};
Sizes SizesOf(const ConvCall& call) {
  const WindowShape& w = call.shape;
  const int64_t elements = w.n * w.elements_of_one() * w.channels;
  const int64_t positions = w.n * w.positions_of_one() * w.features;
  const int64_t kernel = w.taps() * w.channels_of_group() * w.features;
  if (call.kind == ConvKind::kForward) return {elements, kernel, positions};
  return call.kind == ConvKind::kInputGrad ? Sizes{positions, kernel, elements}
                                           : Sizes{elements, positions, kernel};
}

template <typename T>
std::vector<T> RunOn(const Kernel& kernel, const ConvCall& call, Pool* pool, uint64_t seed = 1) {
  const Sizes sizes = SizesOf(call);
  // Fenced: nothing behind them is touched.
  const Memory a = Fenced(Numbers<T>(sizes.a, seed)), b = Fenced(Numbers<T>(sizes.b, seed + 1)),
               out = Fenced(std::vector<T>(sizes.out, std::nan("")));
  // Nothing in the scratch may be read before it is written.
  const Memory scratch = Fenced(
      std::vector<float>(AlignedBytes(kernel.scratch_bytes()) / sizeof(float), std::nanf("")));
  std::byte* at[] = {a.data(), b.data(), out.data()};
  const OneOpenMpThread one;
  kernel.Run({.at = at, .scratch = scratch.data(), .pool = pool});
  const T* numbers = reinterpret_cast<const T*>(out.data());
  return {numbers, numbers + sizes.out};
}

template <typename T>
double Off(const std::vector<T>& got, const std::vector<T>& want) {
  double off = 0, size = 0;
  for (size_t i = 0; i < want.size(); ++i) {
    const double d = std::abs(static_cast<double>(got[i]) - static_cast<double>(want[i]));
    off = std::isnan(d) ? d : std::max(off, d);
    if (std::isnan(off)) return off;
    size = std::max(size, std::abs(static_cast<double>(want[i])));
  }
  return off / size;
}

template <typename T>
void CheckWay(const char* way, KernelPtr (*make)(const ConvCall&), double tolerance) {
  Pool pool(3);
  for (const Shape& shape : Shapes()) {
    for (const ConvKind kind : {ConvKind::kForward, ConvKind::kInputGrad, ConvKind::kFilterGrad}) {
      SCOPED_TRACE(std::string(way) + ", " + shape.name + ", " +
                   std::to_string(static_cast<int>(kind)));
      ConvCall call{.shape = shape.w, .kind = kind, .a = 0, .b = 1, .out = 2};
      const KernelPtr loops = MakeConvLoops<T>(call);
      const KernelPtr alone = make(call);
      call.threads = 3;
      const KernelPtr spread = make(call);
      const bool expected = way != std::string("primitive") || shape.primitive;
      // A processor without AVX2 may have but oneDNN's reference.
      if (alone == nullptr && expected && FindKernels("v3") == nullptr) continue;
      ASSERT_EQ(alone != nullptr, expected);
      ASSERT_EQ(spread != nullptr, expected);
      if (!expected) continue;
      const std::vector<T> got = RunOn<T>(*alone, call, nullptr);
      EXPECT_LT(Off(got, RunOn<T>(*loops, call, nullptr)), tolerance);
      EXPECT_EQ(RunOn<T>(*spread, call, &pool), got) << "other bits on three threads";
    }
  }
}

TEST(ConvTest, PrimitivesGiveWhatTheLoopsGive) {
  CheckWay<float>("primitive", MakeConvPrimitive, 4e-6);
}
TEST(ConvTest, ProductsGiveWhatTheLoopsGive) {
  CheckWay<float>("products", MakeConvProducts<float>, 4e-6);
  CheckWay<double>("products", MakeConvProducts<double>, 1e-14);
}

// Devices run one kernel at the same time, each on memory of its own, step after step.
TEST(ConvTest, DevicesRunAPrimitiveAtTheSameTime) {
  constexpr int kDevices = 3, kSteps = 4;
  Pool pool(2);
  for (const Shape& shape : Shapes()) {
    for (const ConvKind kind : {ConvKind::kForward, ConvKind::kInputGrad, ConvKind::kFilterGrad}) {
      SCOPED_TRACE(std::string(shape.name) + ", " + std::to_string(static_cast<int>(kind)));
      const ConvCall call{.shape = shape.w, .kind = kind, .a = 0, .b = 1, .out = 2, .threads = 2};
      const KernelPtr kernel = MakeConvPrimitive(call);
      if (kernel == nullptr) continue;
      std::vector<std::vector<float>> want(kDevices), got(kDevices * kSteps);
      for (int d = 0; d < kDevices; ++d) {
        want[d] = RunOn<float>(*MakeConvPrimitive(call), call, nullptr, 10 * d);
      }
      std::vector<std::thread> devices;
      for (int d = 0; d < kDevices; ++d) {
        devices.emplace_back([&, d] {
          for (int step = 0; step < kSteps; ++step) {
            got[d * kSteps + step] = RunOn<float>(*kernel, call, &pool, 10 * d);
          }
        });
      }
      for (std::thread& device : devices) device.join();
      for (int i = 0; i < kDevices * kSteps; ++i) EXPECT_EQ(got[i], want[i / kSteps]) << i;
    }
  }
}

// Which way a convolution of a program takes.
TEST(ConvTest, EachTakesTheWayThatIsFastest) {
  if (FindKernels("v3") == nullptr) return;  // as above
  const auto way = [](auto make, const WindowShape& w) {
    const ConvWays before = ConvKernelsMade();
    EXPECT_NE(make({.shape = w, .a = 0, .b = 1, .out = 2}), nullptr);
    const ConvWays after = ConvKernelsMade();
    return std::vector<int64_t>{after.primitives - before.primitives,
                                after.products - before.products, after.loops - before.loops};
  };
  for (const Shape& shape : Shapes()) {
    SCOPED_TRACE(shape.name);
    EXPECT_EQ(way(MakeConvKernel<float>, shape.w),
              shape.primitive ? (std::vector<int64_t>{1, 0, 0}) : (std::vector<int64_t>{0, 1, 0}));
    const bool loops = shape.w.groups == 32;
    EXPECT_EQ(way(MakeConvKernel<double>, shape.w),
              loops ? (std::vector<int64_t>{0, 0, 1}) : (std::vector<int64_t>{0, 1, 0}));
  }
}

}  // namespace
}  // namespace meshtrain::device::cpu
