#include "runtime/mesh/tensor.h"

#include <gtest/gtest.h>

#include <limits>
#include <numeric>
#include <vector>

#include "runtime/base/out_of_memory.h"

namespace meshtrain::mesh {
namespace {

Tensor Counting(Dims dims) {
  Tensor t(TensorType{DType::kI32, std::move(dims)});
  const auto values = t.mutable_values<int32_t>();
  std::iota(values.begin(), values.end(), 0);
  return t;
}

std::vector<int32_t> Values(const Tensor& t) {
  return {t.values<int32_t>().begin(), t.values<int32_t>().end()};
}

TEST(TensorTest, SliceTakesABlock) {
  const Tensor t = Counting({3, 4});
  EXPECT_EQ(Values(t.Slice({1, 1}, {2, 2})), (std::vector<int32_t>{5, 6, 9, 10}));
  EXPECT_EQ(Values(t.Slice({2, 0}, {1, 4})), (std::vector<int32_t>{8, 9, 10, 11}));
  EXPECT_EQ(t.Slice({3, 0}, {0, 4}).type().num_elements(), 0);
  EXPECT_EQ(Values(Counting({}).Slice({}, {})), (std::vector<int32_t>{0}));
}

// Property: pasting every block of a grid gives the tensor back, and pasting touches nothing else.
TEST(TensorTest, PasteIsTheInverseOfSlice) {
  const Dims dims = {3, 4, 5};
  const Tensor t = Counting(dims);
  for (const Dims& block :
       {Dims{1, 1, 1}, Dims{2, 3, 2}, Dims{3, 1, 5}, Dims{1, 4, 5}, Dims{3, 4, 5}}) {
    Tensor copy(t.type());
    for (int32_t& v : copy.mutable_values<int32_t>()) v = -1;
    for (int64_t a = 0; a < dims[0]; a += block[0]) {
      for (int64_t b = 0; b < dims[1]; b += block[1]) {
        for (int64_t c = 0; c < dims[2]; c += block[2]) {
          const Dims at = {a, b, c};
          Dims sizes(3);
          for (int d = 0; d < 3; ++d) sizes[d] = std::min(block[d], dims[d] - at[d]);
          const Tensor piece = t.Slice(at, sizes);
          const std::vector<int32_t> before = Values(copy);
          copy.Paste(piece, at);
          EXPECT_EQ(Values(copy.Slice(at, sizes)), Values(piece));
          int64_t changed = 0;
          for (size_t i = 0; i < before.size(); ++i) {
            changed += before[i] != Values(copy)[i] ? 1 : 0;
          }
          EXPECT_EQ(changed, piece.type().num_elements());
        }
      }
    }
    EXPECT_EQ(Values(copy), Values(t));
  }
}

TEST(TensorTest, IsAlignedAndSharesItsBytes) {
  const Tensor t = Counting({7});
  const Tensor copy = t;
  EXPECT_EQ(t.bytes().data(), copy.bytes().data());
  EXPECT_EQ(reinterpret_cast<uintptr_t>(t.bytes().data()) % 64, 0u);
  EXPECT_EQ(t.bytes().size(), 28u);
}

#if !defined(__SANITIZE_THREAD__) && !defined(__SANITIZE_ADDRESS__)
TEST(TensorDeathTest, WhereMemoryEndsTheProgramLeavesAsItWasTold) {
  constexpr int64_t kMoreThanAnAddressHas = int64_t{1} << 57;
  EXPECT_EXIT(
      {
        ExitWhereMemoryEnds("program", 78);
        const Tensor t(TensorType{DType::kU8, {kMoreThanAnAddressHas}});
      },
      ::testing::ExitedWithCode(78), "program: expected memory on this machine");
}
#endif

TEST(TensorTest, CountsWhatIsNotFinite) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const float infinity = std::numeric_limits<float>::infinity();
  const std::vector<float> f = {0, -0.0f, nan, -nan, infinity, -infinity, 3.4e38f, -1e-45f};
  EXPECT_EQ(CountNotFinite(Tensor::Of<float>({8}, f)), 4);
  const std::vector<double> d = {1e308, -infinity, 5e-324, nan};
  EXPECT_EQ(CountNotFinite(Tensor::Of<double>({2, 2}, d)), 2);
  EXPECT_EQ(CountNotFinite(Tensor::Scalar<int32_t>(0x7f800000)), 0);
  EXPECT_EQ(CountNotFinite(Tensor()), 0);
}

TEST(TensorTest, ItemOfAnyType) {
  EXPECT_EQ(Tensor::Scalar<float>(2.5f).Item(), 2.5);
  EXPECT_EQ(Tensor::Scalar<double>(-1e300).Item(), -1e300);
  EXPECT_EQ(Tensor::Scalar<int64_t>(7).Item(), 7);
  EXPECT_EQ(Tensor::Scalar<int32_t>(-3).Item(), -3);
  EXPECT_EQ(Tensor::Scalar<uint8_t>(255).Item(), 255);
  EXPECT_EQ(Tensor::Scalar<bool>(true).Item(), 1);
}

}  // namespace
}  // namespace meshtrain::mesh
