#include "runtime/data/map.h"

#include <gtest/gtest.h>

#include <bit>
#include <limits>
#include <numeric>

namespace meshtrain::data {
namespace {

using mesh::DType;
using mesh::Tensor;

std::vector<uint8_t> AllBytes() {
  std::vector<uint8_t> all(256);
  std::iota(all.begin(), all.end(), uint8_t{0});
  return all;
}

std::vector<float> RunU8(const std::vector<MapOp>& ops) {
  const auto chain = MapChain::Create(ops, DType::kU8, 1);
  EXPECT_TRUE(chain.ok()) << chain.status().ToString();
  EXPECT_EQ(chain->output(), DType::kF32);
  const std::vector<uint8_t> in = AllBytes();
  std::vector<float> out(256);
  chain->Run(std::as_bytes(std::span(in)), std::as_writable_bytes(std::span(out)));
  return out;
}

TEST(MapTest, ScaleByOneOver255IsDivisionBitForBit) {
  const std::vector<float> got = RunU8({Scale{0.00392156862745098}});
  int products_differ = 0;
  for (int i = 0; i < 256; ++i) {
    const float want = static_cast<float>(i) / 255.0f;
    EXPECT_EQ(std::bit_cast<uint32_t>(got[i]), std::bit_cast<uint32_t>(want)) << i;
    products_differ += static_cast<float>(i) * 0.00392156862745098f != want;
  }
  EXPECT_GT(products_differ, 0);  // else this test would prove nothing
}

TEST(MapTest, OtherFactorsMultiply) {
  const std::vector<float> got = RunU8({Scale{0.3}});
  for (int i = 0; i < 256; ++i) EXPECT_EQ(got[i], static_cast<float>(i) * 0.3f);
}

TEST(MapTest, OpsRunInOrder) {
  const std::vector<float> got =
      RunU8({Scale{1.0 / 255}, Normalize{.mean = {0.5}, .deviation = {0.25}}});
  EXPECT_EQ(got[255], 2.0f);
  EXPECT_EQ(got[0], -2.0f);
  const std::vector<float> other =
      RunU8({Normalize{.mean = {0.5}, .deviation = {0.25}}, Scale{1.0 / 255}});
  EXPECT_EQ(other[0], -2.0f / 255.0f);
}

TEST(MapTest, TableEqualsOpsOnFloats) {
  const std::vector<MapOp> ops = {Scale{1.0 / 255},
                                  Normalize{.mean = {0.1307}, .deviation = {0.3081}}};
  std::vector<float> floats(256);
  std::iota(floats.begin(), floats.end(), 0.0f);
  const auto chain = MapChain::Create(ops, DType::kF32, 1);
  ASSERT_TRUE(chain.ok());
  std::vector<float> out(256);
  chain->Run(std::as_bytes(std::span(floats)), std::as_writable_bytes(std::span(out)));
  EXPECT_EQ(out, RunU8(ops));
}

TEST(MapTest, CastsSaturate) {
  const std::vector<float> in = {-3.9f, 2.9f, 300.0f, 1e20f,
                                 std::numeric_limits<float>::quiet_NaN()};
  const Tensor x = Tensor::Of<float>({5}, in);
  const auto u8 = ApplyMap(Cast{DType::kU8}, x);
  EXPECT_EQ(std::vector<uint8_t>(u8.values<uint8_t>().begin(), u8.values<uint8_t>().end()),
            (std::vector<uint8_t>{0, 2, 255, 255, 0}));
  const auto i32 = ApplyMap(Cast{DType::kI32}, x);
  EXPECT_EQ(std::vector<int32_t>(i32.values<int32_t>().begin(), i32.values<int32_t>().end()),
            (std::vector<int32_t>{-3, 2, 300, std::numeric_limits<int32_t>::max(), 0}));
  EXPECT_EQ(ApplyMap(Cast{DType::kU8}, Tensor::Scalar<int64_t>(-7)).Item(), 0);
  EXPECT_EQ(ApplyMap(Cast{DType::kF64}, Tensor::Scalar<int64_t>(-7)).Item(), -7);
}

TEST(MapTest, NormalizesByChannel) {
  const std::vector<MapOp> ops = {Scale{1.0 / 255},
                                  Normalize{.mean = {0.5, 0.25, 1}, .deviation = {2}},
                                  Normalize{.mean = {0}, .deviation = {1, 2, 4}}};
  std::vector<uint8_t> bytes(3 * 256);
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<uint8_t>(i * 7);
  const std::vector<float> floats(bytes.begin(), bytes.end());
  std::vector<float> of_bytes(bytes.size()), of_floats(bytes.size());
  MapChain::Create(ops, DType::kU8, 3)
      .value()
      .Run(std::as_bytes(std::span(bytes)), std::as_writable_bytes(std::span(of_bytes)));
  MapChain::Create(ops, DType::kF32, 3)
      .value()
      .Run(std::as_bytes(std::span(floats)), std::as_writable_bytes(std::span(of_floats)));
  EXPECT_EQ(of_bytes, of_floats);
  const float mean[] = {0.5f, 0.25f, 1}, deviation[] = {1, 2, 4};
  for (size_t i = 0; i < bytes.size(); ++i) {
    EXPECT_EQ(of_floats[i], (floats[i] / 255.0f - mean[i % 3]) / 2.0f / deviation[i % 3]) << i;
  }
  // In double precision too.
  const Tensor wide = Tensor::Of<double>({1, 3}, std::vector<double>{1, 2, 3});
  const Tensor y = ApplyMap(ops[1], wide);
  EXPECT_EQ(std::vector<double>(y.values<double>().begin(), y.values<double>().end()),
            (std::vector<double>{0.25, 0.875, 1}));
}

TEST(MapTest, RefusesBadNumbers) {
  const auto message = [](MapOp op, int64_t channels) {
    const Status status = MapChain::Create({std::move(op)}, DType::kU8, channels).status();
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    return status.message();
  };
  EXPECT_EQ(message(Normalize{.mean = {0}, .deviation = {0}}, 1),
            "map: normalize: expected a deviation above 0, got: 0.000000");
  EXPECT_EQ(message(Normalize{.mean = {0, 0}, .deviation = {1}}, 3),
            "map: normalize: expected one mean, or one for each channel (3), got: 2");
  EXPECT_EQ(message(Normalize{.mean = {0}, .deviation = {}}, 1),
            "map: normalize: expected one deviation, or one for each channel (1), got: 0");
  EXPECT_EQ(message(Scale{std::numeric_limits<double>::infinity()}, 1),
            "map: scale: expected a finite factor, got: inf");
}

}  // namespace
}  // namespace meshtrain::data
