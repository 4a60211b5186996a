#include "runtime/device/cpu/gemm.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

namespace meshtrain::device::cpu {
namespace {

template <typename T>
std::vector<T> Random(size_t n, unsigned seed) {
  std::mt19937 random(seed);
  std::uniform_real_distribution<T> real(-1, 1);
  std::vector<T> v(n);
  for (T& x : v) x = real(random);
  return v;
}

template <typename T>
void ExpectProduct(const GemmShape& s, const std::vector<T>& a, const std::vector<T>& b,
                   const std::vector<T>& c, double tolerance) {
  for (int64_t i = 0; i < s.m; ++i) {
    for (int64_t j = 0; j < s.n; ++j) {
      double want = 0;
      for (int64_t k = 0; k < s.k; ++k) {
        want += static_cast<double>(s.transpose_a ? a[k * s.lda + i] : a[i * s.lda + k]) *
                static_cast<double>(s.transpose_b ? b[j * s.ldb + k] : b[k * s.ldb + j]);
      }
      ASSERT_NEAR(c[i * s.ldc + j], want, tolerance * std::sqrt(1.0 + static_cast<double>(s.k)))
          << i << "," << j;
    }
  }
}

template <typename T>
void CheckShape(int64_t m, int64_t n, int64_t k, double tolerance) {
  for (const bool ta : {false, true}) {
    for (const bool tb : {false, true}) {
      SCOPED_TRACE(std::to_string(m) + "x" + std::to_string(k) + "x" + std::to_string(n) +
                   (ta ? " T" : " N") + (tb ? "T" : "N"));
      const GemmShape s{m, n, k, ta, tb, ta ? m : k, tb ? k : n, n};
      const auto a = Random<T>(m * k, 1), b = Random<T>(k * n, 2);
      std::vector<T> whole(m * n, T(99));
      Gemm(s, a.data(), b.data(), whole.data());
      ExpectProduct(s, a, b, whole, tolerance);
      for (const int threads : {2, 3, 8}) {
        const GemmSplit split = SplitGemm(s, threads);
        ASSERT_GE(split.pieces, 1);
        ASSERT_LE(split.pieces, threads);
        std::vector<T> parts(m * n, T(99));
        for (int64_t i = 0; i < split.pieces; ++i) {
          const GemmPiece p = PieceOf(s, split, i);
          Gemm(p.shape, a.data() + p.a, b.data() + p.b, parts.data() + p.c);
        }
        ExpectProduct(s, a, b, parts, tolerance);
      }
    }
  }
}

TEST(GemmTest, AgreesWithLoopsWholeAndInPieces) {
  const int64_t shapes[][3] = {{1, 1, 1},     {3, 5, 7},      {128, 10, 50},
                               {33, 129, 65}, {300, 17, 200}, {20, 400, 128}};
  for (const auto& s : shapes) {
    CheckShape<float>(s[0], s[1], s[2], 1e-6);
    CheckShape<double>(s[0], s[1], s[2], 1e-14);
  }
}

// Some rows of a factor at a time, the last of them fewer, whole and in pieces.
TEST(GemmTest, RowsThatLieAMultipleOf2kBApartAreBrought) {
  struct Case {
    int64_t m, n, k, lda, ldb;
    bool ta, tb, brings_a, brings_b;
  };
  for (const Case& c : {Case{512, 100, 300, 512, 100, true, false, true, false},
                        Case{100, 96, 700, 1024, 700, true, true, true, false},
                        Case{1024, 512, 130, 1024, 512, true, false, true, true},
                        Case{64, 1100, 257, 257, 3072, false, false, false, true},
                        Case{70, 90, 65, 2048, 1536, true, false, true, true}}) {
    const GemmShape s{c.m, c.n, c.k, c.ta, c.tb, c.lda, c.ldb, c.n};
    SCOPED_TRACE(std::to_string(s.m) + "x" + std::to_string(s.k) + "x" + std::to_string(s.n));
    const Bringing bringing = BringingOf(s);
    ASSERT_GT(bringing.rows, 0);
    EXPECT_EQ(bringing.a, c.brings_a);
    EXPECT_EQ(bringing.b, c.brings_b);
    const auto a = Random<float>(c.lda * (c.ta ? c.k : c.m), 1);
    const auto b = Random<float>(c.ldb * (c.tb ? c.n : c.k), 2);
    for (const int threads : {1, 3}) {
      const GemmSplit split = SplitGemm(s, threads);
      std::vector<float> parts(s.m * s.n, 99);
      for (int64_t i = 0; i < split.pieces; ++i) {
        const GemmPiece p = PieceOf(s, split, i);
        // What lies behind the scratch must stay.
        std::vector<float> scratch(BroughtBytes(p.shape, bringing) / sizeof(float) + 1, -7);
        Gemm(p.shape, a.data() + p.a, b.data() + p.b, parts.data() + p.c, bringing,
             reinterpret_cast<std::byte*>(scratch.data()));
        EXPECT_EQ(scratch.back(), -7);
      }
      ExpectProduct(s, a, b, parts, 1e-6);
    }
  }
  // Those of other strides, the transposed B, and of so many rows of C, are not.
  EXPECT_EQ(BringingOf({784, 700, 128, true, false, 784, 700, 700}).rows, 0);
  EXPECT_EQ(BringingOf({128, 700, 1024, false, true, 1024, 1024, 700}).rows, 0);
  EXPECT_EQ(BringingOf({2048, 1024, 256, false, false, 256, 1024, 1024}).rows, 0);
  EXPECT_EQ(BringingOf({8, 1024, 256, false, false, 256, 1024, 1024}).rows, 0);
}

TEST(GemmTest, NothingToAddGivesZeros) {
  std::vector<float> c(6, 5.0f);
  Gemm(GemmShape{2, 3, 0, false, false, 1, 3, 3}, static_cast<const float*>(nullptr), nullptr,
       c.data());
  EXPECT_EQ(c, std::vector<float>(6, 0.0f));
}

}  // namespace
}  // namespace meshtrain::device::cpu
