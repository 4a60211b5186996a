#include "runtime/device/cpu/bounds.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "runtime/program/builder.h"
#include "runtime/program/ops.h"

namespace meshtrain::device::cpu {
namespace {

using mesh::DType;
using program::Builder;
using program::CountBeyond;
using program::MatMul;
using program::Value;

constexpr float kLargest = std::numeric_limits<float>::max();

TEST(BoundsTest, AskAboutProductsThatAreLargerThanTheirFactors) {
  Builder b("p");
  Builder::Scope scope(b);
  const Value x = b.Input("x", {DType::kF32, {64, 4}});
  const Value y = b.Input("y", {DType::kF32, {4, 64}});
  const Value large = MatMul(x, y), uncounted = MatMul(x, y), scaled = MatMul(x, y) * 2;
  const Value small = MatMul(y, x);
  b.Output("large", CountBeyond(large, 1e6));
  b.Output("largest", CountBeyond(large, kLargest));
  b.Output("small", CountBeyond(small, 1e6));
  b.Output("scaled", CountBeyond(scaled, 1e6));
  b.Output("uncounted", uncounted);
  const auto program = b.Build();
  ASSERT_TRUE(program.ok());
  const Bounds bounds(*program, 2);
  const double limit = bounds.FactorLimit(large.id());
  EXPECT_LE(4 * limit * limit * 2, 1e6) << "of the smaller limit, with room for rounding";
  EXPECT_GE(4 * limit * limit * 5, 1e6) << "and no more room than that";
  for (const Value& v : {small, scaled, uncounted, x}) EXPECT_EQ(bounds.FactorLimit(v.id()), 0);
}

TEST(BoundsTest, MarksAreOfADevice) {
  Builder b("p");
  Builder::Scope scope(b);
  const Value product =
      MatMul(b.Input("x", {DType::kF32, {64, 4}}), b.Input("y", {DType::kF32, {4, 64}}));
  b.Output("count", CountBeyond(product, 1));
  const auto program = b.Build();
  ASSERT_TRUE(program.ok());
  Bounds bounds(*program, 2);
  EXPECT_FALSE(bounds.Within(1, product.id()));
  bounds.Mark(1, product.id(), true);
  EXPECT_TRUE(bounds.Within(1, product.id()));
  EXPECT_FALSE(bounds.Within(0, product.id()));
  bounds.Mark(1, product.id(), false);
  EXPECT_FALSE(bounds.Within(1, product.id()));
  EXPECT_FALSE(bounds.Within(0, product.id() + 1)) << "of what is no product nothing is known";
}

TEST(BoundsTest, NarrowsALimitDownwards) {
  EXPECT_EQ(WithinType(DType::kF32, 1.5), 1.5);
  EXPECT_EQ(WithinType(DType::kF32, 1e300), kLargest);
  EXPECT_EQ(WithinType(DType::kF32, std::numeric_limits<double>::infinity()), kLargest);
  EXPECT_LE(WithinType(DType::kF32, 0.1), 0.1);
  EXPECT_GT(WithinType(DType::kF32, 0.1), 0.1 - 1e-8);
  EXPECT_EQ(WithinType(DType::kF64, 0.1), 0.1);
}

}  // namespace
}  // namespace meshtrain::device::cpu
