#include "runtime/mesh/shape.h"

#include <gtest/gtest.h>

namespace meshtrain::mesh {
namespace {

TEST(ShapeTest, TypesRoundTrip) {
  for (const std::string text :
       {"f32[]", "i64[0]", "bool[3]", "u8[28,28]", "f64[2,3,4]", "i32[1,1]"}) {
    const auto type = TensorType::Parse(text);
    ASSERT_TRUE(type.ok()) << type.status().ToString();
    EXPECT_EQ(type->ToString(), text);
  }
  EXPECT_EQ(TensorType::Parse("f64[2,3,4]")->num_bytes(), 192);
  EXPECT_EQ(TensorType::Parse("f32[]")->num_elements(), 1);
  EXPECT_EQ(TensorType::Parse("f32[4,0]")->num_elements(), 0);
}

TEST(ShapeTest, RefusesWithTheReason) {
  for (const std::string text :
       {"", "f32", "f32[", "f32]", "f32[-1]", "f32[2,]", "f32[x]", "f32[9223372036854775807,9]"}) {
    EXPECT_FALSE(TensorType::Parse(text).ok()) << text;
  }
  EXPECT_EQ(TensorType::Parse("f32[a]").status().message(),
            "tensor type: expected a text like f32[8,16], got: f32[a]");
  EXPECT_EQ(ParseDType("float").status().message(),
            "dtype: expected one of bool u8 i32 i64 f32 f64 bf16 f16, got: float");
}

TEST(ShapeTest, StridesAreRowMajor) {
  EXPECT_EQ(Strides({2, 3, 4}), (Dims{12, 4, 1}));
  EXPECT_EQ(Strides({}), (Dims{}));
}

}  // namespace
}  // namespace meshtrain::mesh
