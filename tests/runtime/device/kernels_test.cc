// The inner loops of each instruction set that this processor has, against plain loops in double
// precision.
#include "runtime/device/cpu/kernels.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <memory>
#include <random>
#include <string>
#include <type_traits>
#include <vector>

#include "runtime/mesh/element_type.h"
#include "runtime/mesh/tensor.h"

namespace meshtrain::device::cpu {
namespace {

class KernelsTest : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    k_ = FindKernels(GetParam());
    if (k_ == nullptr) GTEST_SKIP() << "this processor or build lacks " << GetParam();
  }
  const Kernels* k_ = nullptr;
};

constexpr float kInf = std::numeric_limits<float>::infinity();
const float kNan = std::numeric_limits<float>::quiet_NaN();

// How many floats lie between the two, at most a large number.
double Ulps(float got, double want) {
  if (std::isnan(got) && std::isnan(want)) return 0;
  const float nearest = static_cast<float>(want);
  if (got == nearest) return 0;
  if (!std::isfinite(got) || !std::isfinite(nearest)) return 1e9;
  const double ulp = std::max<double>(std::nextafter(std::fabs(nearest), kInf) - std::fabs(nearest),
                                      std::numeric_limits<float>::denorm_min());
  return std::fabs(got - want) / ulp;
}

// Every float of a sweep over all exponents and both signs, and the special ones.
std::vector<float> Sweep() {
  std::vector<float> v = {0.0f,  -0.0f,  kInf,    -kInf,   kNan,   1.0f,    -1.0f, 88.7f, 88.73f,
                          89.0f, -87.4f, -103.9f, -104.5f, 0.625f, -0.625f, 0.9f,  4.0f,  9.02f};
  for (uint64_t bits = 1; bits < 0x7F800000u; bits += 9973) {
    const auto b = static_cast<uint32_t>(bits);
    float x;
    std::memcpy(&x, &b, 4);
    v.push_back(x);
    v.push_back(-x);
  }
  return v;
}

TEST_P(KernelsTest, CurvesAreAccurateEverywhere) {
  struct Case {
    BlockOp op;
    double (*exact)(double);
    double ulps;
  };
  const Case cases[] = {
      {BlockOp::kExp, [](double x) { return std::exp(x); }, 2},
      {BlockOp::kLog, [](double x) { return std::log(x); }, 2},
      {BlockOp::kLog1p, [](double x) { return std::log1p(x); }, 2},
      {BlockOp::kExpm1, [](double x) { return std::expm1(x); }, 2},
      {BlockOp::kSin, [](double x) { return std::sin(x); }, 2},
      {BlockOp::kCos, [](double x) { return std::cos(x); }, 2},
      {BlockOp::kSoftplus,
       [](double x) { return std::max(x, 0.0) + std::log1p(std::exp(-std::fabs(x))); }, 3},
      {BlockOp::kTanh, [](double x) { return std::tanh(x); }, 3},
      {BlockOp::kSigmoid, [](double x) { return 1 / (1 + std::exp(-x)); }, 4},
      {BlockOp::kErf, [](double x) { return std::erf(x); }, 2},
      {BlockOp::kSqrt, [](double x) { return std::sqrt(x); }, 0.51},
      {BlockOp::kRsqrt, [](double x) { return 1 / std::sqrt(x); }, 1.6},
      {BlockOp::kFloor, [](double x) { return std::floor(x); }, 0},
      {BlockOp::kRelu, [](double x) { return x > 0 || std::isnan(x) ? x : 0; }, 0},
      {BlockOp::kAbs, [](double x) { return std::fabs(x); }, 0},
  };
  const std::vector<float> in = Sweep();
  for (const Case& c : cases) {
    std::vector<float> out(in.size());
    const BlockFn fn = k_->block(c.op, Type::kF32, 0);
    ASSERT_NE(fn, nullptr);
    fn(out.data(), in.data(), in.data(), in.data(), static_cast<int64_t>(in.size()));
    double worst = 0;
    float at = 0;
    for (size_t i = 0; i < in.size(); ++i) {
      const double ulps = Ulps(out[i], c.exact(in[i]));
      if (ulps > worst) {
        worst = ulps;
        at = in[i];
      }
    }
    EXPECT_LE(worst, c.ulps) << "operation " << static_cast<int>(c.op) << " at " << at;
  }
}

// The value of an operation in double; c and b unused where it has fewer operands.
using Exact = std::function<double(double, double, double)>;

TEST_P(KernelsTest, LoopsTakeScalarsAndAnyLength) {
  struct Case {
    BlockOp op;
    int operands;
    Exact exact;
  };
  const Case cases[] = {
      {BlockOp::kAdd, 2, [](double a, double b, double) { return a + b; }},
      {BlockOp::kSub, 2, [](double a, double b, double) { return a - b; }},
      {BlockOp::kMul, 2, [](double a, double b, double) { return a * b; }},
      {BlockOp::kDiv, 2, [](double a, double b, double) { return a / b; }},
      {BlockOp::kPow, 2, [](double a, double b, double) { return std::pow(a, b); }},
      {BlockOp::kMaximum, 2, [](double a, double b, double) { return std::max(a, b); }},
      {BlockOp::kMinimum, 2, [](double a, double b, double) { return std::min(a, b); }},
      {BlockOp::kSquareMul, 2, [](double a, double b, double) { return a * a * b; }},
      {BlockOp::kSqrtAdd, 2, [](double a, double b, double) { return std::sqrt(a) + b; }},
      {BlockOp::kMulAdd, 3, [](double a, double b, double c) { return a * b + c; }},
      {BlockOp::kMulSub, 3, [](double a, double b, double c) { return a * b - c; }},
      {BlockOp::kNegMulAdd, 3, [](double a, double b, double c) { return c - a * b; }},
      {BlockOp::kMulSqrtAdd, 3, [](double a, double b, double c) { return std::sqrt(a * b) + c; }},
      {BlockOp::kKeepWhere, 3, [](double a, double b, double c) { return a > c ? b : 0; }},
  };
  std::mt19937 random(7);
  std::uniform_real_distribution<double> real(0.25, 2);
  for (const Case& c : cases) {
    for (ScalarMask mask = 0; mask < (1u << c.operands); ++mask) {
      const BlockFn f32 = k_->block(c.op, Type::kF32, mask),
                    f64 = k_->block(c.op, Type::kF64, mask);
      EXPECT_EQ(f32 == nullptr, f64 == nullptr);
      // What chains rely on: every mask but those with nothing to run along, and a scalar first
      // where order matters not.
      const bool all = mask == (1u << c.operands) - 1;
      if (!all && (mask & 1) == 0) {
        EXPECT_NE(f32, nullptr) << static_cast<int>(c.op) << " mask " << mask;
      }
      if (f32 == nullptr) continue;
      for (const int64_t n : {0, 1, 15, 16, 17, 63, 200}) {
        std::vector<float> a(n + 1), b(n + 1), w(n + 1), out(n + 1, -7.0f);
        std::vector<double> da, db, dw, dout(n + 1, -7.0);
        for (auto* v : {&a, &b, &w}) {
          for (float& x : *v) x = static_cast<float>(real(random));
        }
        da.assign(a.begin(), a.end());
        db.assign(b.begin(), b.end());
        dw.assign(w.begin(), w.end());
        f32(out.data(), a.data(), b.data(), w.data(), n);
        f64(dout.data(), da.data(), db.data(), dw.data(), n);
        for (int64_t i = 0; i < n; ++i) {
          const double want =
              c.exact(da[mask & 1 ? 0 : i], db[mask & 2 ? 0 : i], dw[mask & 4 ? 0 : i]);
          ASSERT_NEAR(out[i], want, 2e-6 * (1 + std::fabs(want)))
              << static_cast<int>(c.op) << " mask " << mask << " n " << n;
          ASSERT_NEAR(dout[i], want, 1e-14 * (1 + std::fabs(want)));
        }
        EXPECT_EQ(out[n], -7.0f);
        EXPECT_EQ(dout[n], -7.0);
        // In the place of each operand.
        if (n == 200 && mask == 0) {
          for (auto* v : {&a, &b, &w}) {
            std::vector<float> copy = *v;
            const auto at = [&](const std::vector<float>& x) {
              return &x == v ? copy.data() : x.data();
            };
            f32(copy.data(), at(a), at(b), at(w), n);
            ASSERT_EQ(std::vector<float>(copy.begin(), copy.end() - 1),
                      std::vector<float>(out.begin(), out.end() - 1));
          }
        }
      }
    }
  }
}

TEST_P(KernelsTest, NanSurvivesMaximumMinimumRelu) {
  const float a[] = {kNan, 1, kNan}, b[] = {1, kNan, kNan};
  float out[3];
  for (const BlockOp op : {BlockOp::kMaximum, BlockOp::kMinimum}) {
    k_->block(op, Type::kF32, 0)(out, a, b, b, 3);
    for (const float x : out) EXPECT_TRUE(std::isnan(x));
  }
  std::vector<float> v(100, 1.0f);
  v[77] = kNan;
  for (const Fold fold : {Fold::kSum, Fold::kMax, Fold::kMin}) {
    float folded = 0;
    k_->fold_row(fold, Type::kF32, &folded, v.data(), 100);
    EXPECT_TRUE(std::isnan(folded));
  }
}

TEST_P(KernelsTest, CastsRoundTowardsZeroAndSaturate) {
  const float in[] = {1.9f, -1.9f, 3e9f, -3e9f, kNan, 0.0f, 255.0f, 300.0f};
  int32_t i32[8];
  k_->cast(Type::kF32, Type::kI32)(i32, in, in, in, 8);
  EXPECT_EQ(std::vector<int32_t>(i32, i32 + 8),
            (std::vector<int32_t>{1, -1, 2147483647, -2147483647 - 1, 0, 0, 255, 300}));
  uint8_t u8[8];
  k_->cast(Type::kF32, Type::kU8)(u8, in, in, in, 8);
  EXPECT_EQ(std::vector<int>(u8, u8 + 8), (std::vector<int>{1, 0, 255, 0, 0, 0, 255, 255}));
  uint8_t flags[8];
  k_->cast(Type::kF32, Type::kBool)(flags, in, in, in, 8);
  EXPECT_EQ(std::vector<int>(flags, flags + 8), (std::vector<int>{1, 1, 1, 1, 1, 0, 1, 1}));
}

TEST_P(KernelsTest, FoldsOfEveryType) {
  const auto check = [&]<typename T>(Type type, T) {
    for (const int64_t n : {1, 5, 16, 17, 100, 1000}) {
      std::vector<T> v(n);
      for (int64_t i = 0; i < n; ++i) {
        v[i] = static_cast<T>((i * 7) % 11 % (type == Type::kU8 ? 2 : 11));
      }
      double sum = 0, top = v[0], low = v[0];
      for (const T x : v) {
        sum += static_cast<double>(x);
        top = std::max<double>(top, x);
        low = std::min<double>(low, x);
      }
      T got;
      if (type != Type::kU8 || sum < 256) {
        k_->fold_row(Fold::kSum, type, &got, v.data(), n);
        EXPECT_EQ(static_cast<double>(got), sum);
      }
      k_->fold_row(Fold::kMax, type, &got, v.data(), n);
      EXPECT_EQ(static_cast<double>(got), top);
      k_->fold_row(Fold::kMin, type, &got, v.data(), n);
      EXPECT_EQ(static_cast<double>(got), low);
      // As three rows of n, one after the other.
      std::vector<T> rows;
      for (int r = 0; r < 3; ++r) rows.insert(rows.end(), v.begin(), v.end());
      std::vector<T> d(n, T(1));
      k_->fold_rows(Fold::kSum, type, d.data(), rows.data(), 3, n, n, true);
      for (int64_t i = 0; i < n; ++i) EXPECT_EQ(d[i], static_cast<T>(3 * v[i]));
      k_->fold_rows(Fold::kSum, type, d.data(), rows.data(), 2, n, n, false);
      for (int64_t i = 0; i < n; ++i) EXPECT_EQ(d[i], static_cast<T>(5 * v[i]));
    }
  };
  check(Type::kF32, 0.0f);
  check(Type::kF64, 0.0);
  check(Type::kI32, int32_t{0});
  check(Type::kI64, int64_t{0});
  check(Type::kU8, uint8_t{0});
}

TEST_P(KernelsTest, CountsWhatIsBeyondALimitAtAnyLengthAndPlace) {
  const auto check = [&]<typename T>(Type type, T) {
    const T kMost = static_cast<T>(mesh::LargestFinite(static_cast<mesh::DType>(type)));
    const T kInfinity = static_cast<T>(std::numeric_limits<double>::infinity());
    const T kNone = static_cast<T>(std::numeric_limits<double>::quiet_NaN());
    for (const int64_t n : {0, 1, 63, 64, 65, 1000}) {
      std::vector<T> v(static_cast<size_t>(n), T(-2.0));
      EXPECT_EQ(k_->count_beyond(type, v.data(), n, 2), 0);
      EXPECT_EQ(k_->count_beyond(type, v.data(), n, 1.5), n);
      int64_t want = 0;
      const T bad[] = {kInfinity, static_cast<T>(-kInfinity), kNone, kMost, static_cast<T>(-kMost)};
      for (int64_t at = 0; at < n; at += 7) {
        v[static_cast<size_t>(at)] = bad[at % 5];
        want += at % 5 < 3 ? 1 : 0;
      }
      EXPECT_EQ(k_->count_beyond(type, v.data(), n, std::numeric_limits<double>::max()), want);
      EXPECT_EQ(k_->count_beyond(type, v.data(), n, 3), (n + 6) / 7);
    }
  };
  check(Type::kF32, 0.0f);
  check(Type::kF64, 0.0);
  check(Type::kBF16, mesh::BFloat16());
  check(Type::kF16, mesh::Float16());
}

// As half.h rounds, at any length and place; NaN stays one.
TEST_P(KernelsTest, HalvesAreCastAsTheHostCastsThem) {
  std::mt19937_64 random(3);
  const auto bits_of = []<typename T>(T v) {
    uint64_t bits = 0;
    std::memcpy(&bits, &v, sizeof v);
    return bits;
  };
  for (const auto from : mesh::kAllDTypes) {
    for (const auto to : mesh::kAllDTypes) {
      if (!mesh::IsHalf(from) && !mesh::IsHalf(to)) continue;
      mesh::WithElementType(from, [&](auto from_zero) {
        mesh::WithElementType(to, [&](auto to_zero) {
          using From = decltype(from_zero);
          using To = decltype(to_zero);
          constexpr size_t kLength = 1037;
          auto x = std::make_unique<From[]>(kLength);
          auto y = std::make_unique<To[]>(kLength);
          for (size_t i = 0; i < kLength; ++i) {
            const auto number = std::ldexp(static_cast<double>(static_cast<int64_t>(random())),
                                           static_cast<int>(random() % 150) - 110);
            x[i] = std::is_integral_v<From> ? static_cast<From>(random() >> random() % 64)
                                            : static_cast<From>(number);
          }
          if constexpr (mesh::kIsFloatType<From>) {
            x[5] = static_cast<From>(std::numeric_limits<double>::quiet_NaN());
            x[kLength - 1] = static_cast<From>(-std::numeric_limits<double>::infinity());
          }
          k_->cast(static_cast<Type>(from), static_cast<Type>(to))(y.get(), x.get(), nullptr,
                                                                   nullptr, kLength);
          for (size_t i = 0; i < kLength; ++i) {
            if constexpr (mesh::kIsFloatType<To>) {
              const To want = static_cast<To>(x[i]);
              if (std::isnan(static_cast<double>(want))) {
                ASSERT_TRUE(std::isnan(static_cast<double>(y[i])));
              } else {
                ASSERT_EQ(bits_of(y[i]), bits_of(want))
                    << mesh::DTypeName(from) << " " << static_cast<double>(x[i]);
              }
            } else {
              // What f32 gives is held against the reference elsewhere.
              const float wide = static_cast<float>(x[i]);
              To want;
              k_->cast(Type::kF32, static_cast<Type>(to))(&want, &wide, nullptr, nullptr, 1);
              ASSERT_EQ(bits_of(y[i]), bits_of(want)) << wide;
            }
          }
        });
      });
    }
  }
}

TEST_P(KernelsTest, RandomWordsAreTheSameOnEverySet) {
  const Kernels& best = ActiveKernels();
  // A counter that carries over.
  const uint32_t key[] = {1, 2}, counter[] = {0xFFFFFFF0u, 0xFFFFFFFFu, 0xFFFFFFFFu, 7};
  std::vector<uint32_t> a(4 * 37), b(a.size());
  k_->philox(key, counter, 5, 37, a.data());
  best.philox(key, counter, 5, 37, b.data());
  EXPECT_EQ(a, b);
  std::vector<float> x(a.size()), y(a.size());
  k_->uniform_f32(a.data(), static_cast<int64_t>(a.size()), 0.3f, -0.1f, x.data());
  best.uniform_f32(a.data(), static_cast<int64_t>(a.size()), 0.3f, -0.1f, y.data());
  EXPECT_EQ(x, y);
}

INSTANTIATE_TEST_SUITE_P(Isa, KernelsTest, ::testing::Values("v2", "v3", "v4"),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace meshtrain::device::cpu
