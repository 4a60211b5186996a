#include "runtime/data/npy.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace meshtrain::data {
namespace {

using mesh::DType;
using mesh::Tensor;
using mesh::TensorType;
using ::testing::HasSubstr;

// A file as numpy writes it: numpy.save of the given header's array.
std::string File(std::string header, std::string_view elements, char version = 1) {
  const size_t front = version == 1 ? 10 : 12;
  header.append((64 - (front + header.size() + 1) % 64) % 64, ' ');
  header += '\n';
  std::string out = "\x93NUMPY";
  out += version;
  out += '\0';
  out += static_cast<char>(header.size() & 0xff);
  out += static_cast<char>(header.size() >> 8 & 0xff);
  if (version > 1) out += std::string{static_cast<char>(header.size() >> 16), '\0'};
  return out + header + std::string(elements);
}

TEST(NpyTest, WritesWhatNumpyWrites) {
  const float values[] = {1, 2, 3, 4, 5, 6};
  const std::string bytes = FormatNpy(Tensor::Of<float>({3, 2}, values));
  EXPECT_EQ(bytes, File("{'descr': '<f4', 'fortran_order': False, 'shape': (3, 2), }",
                        {reinterpret_cast<const char*>(values), sizeof values}));
  EXPECT_EQ((bytes.size() - sizeof values) % 64, 0u);
  const int64_t whole[] = {7};
  EXPECT_THAT(FormatNpy(Tensor::Of<int64_t>({1}, whole)), HasSubstr("'shape': (1,), }"));
}

TEST(NpyTest, ReadsBackEveryTypeAndRank) {
  for (const DType dtype : mesh::kAllDTypes) {
    if (dtype == DType::kBF16) continue;  // numpy has none
    for (const mesh::Dims& dims : std::vector<mesh::Dims>{{}, {3}, {2, 3, 4}, {0, 5}}) {
      Tensor tensor(TensorType{dtype, dims});
      std::byte next{0};
      for (std::byte& byte : tensor.mutable_bytes()) {
        byte = next;
        next = std::byte(std::to_integer<int>(next) ^ 1);
      }
      const auto read = ParseNpy(FormatNpy(tensor), "x.npy");
      ASSERT_TRUE(read.ok()) << read.status().ToString();
      EXPECT_EQ(read->type(), tensor.type());
      EXPECT_EQ(std::vector(read->bytes().begin(), read->bytes().end()),
                std::vector(tensor.bytes().begin(), tensor.bytes().end()));
    }
  }
}

TEST(NpyTest, ReadsNewerVersionsAndOtherSpellings) {
  const auto read = ParseNpy(
      File("{\"descr\": \"|u1\", \"fortran_order\": False, \"shape\": (2,)}", "ab", 2), "x");
  ASSERT_TRUE(read.ok()) << read.status().ToString();
  EXPECT_EQ(read->type(), (TensorType{DType::kU8, {2}}));
}

struct Bad {
  std::string name, bytes, says;
  StatusCode code = StatusCode::kDataLoss;
};
class BadNpyTest : public ::testing::TestWithParam<Bad> {};

TEST_P(BadNpyTest, IsRefusedWithTheReason) {
  const auto read = ParseNpy(GetParam().bytes, "x.npy");
  ASSERT_FALSE(read.ok());
  EXPECT_EQ(read.status().code(), GetParam().code);
  EXPECT_THAT(read.status().message(), HasSubstr("x.npy: "));
  EXPECT_THAT(read.status().message(), HasSubstr(GetParam().says));
}

constexpr auto kBad = StatusCode::kInvalidArgument;
INSTANTIATE_TEST_SUITE_P(
    Files, BadNpyTest,
    ::testing::Values(
        Bad{"Empty", "", "expected a .npy file"},
        Bad{"Other", "PK\x03\x04 and so on", "expected a .npy file"},
        Bad{"Version", File("{}", "", 9), "expected version 1, 2 or 3"},
        Bad{"Header", File("{'descr': '<f4'}", ""), "expected a header with descr"},
        Bad{"Fortran", File("{'descr': '<f4', 'fortran_order': True, 'shape': (1,)}", "abcd"),
            "got: Fortran order", kBad},
        Bad{"Pickled", File("{'descr': '|O', 'fortran_order': False, 'shape': (1,)}", "abcd"),
            "got: '|O' (Python objects, pickled)", kBad},
        Bad{"LongHeader", File(std::string(70 << 10, ' '), "", 2),
            "byte 8: expected a header of at most 65536 bytes, got: ", kBad},
        Bad{"BigEndian", File("{'descr': '>f4', 'fortran_order': False, 'shape': (1,)}", "abcd"),
            "got: '>f4'", kBad},
        Bad{"ShortWholes", File("{'descr': '<i2', 'fortran_order': False, 'shape': (2,)}", "abcd"),
            "got: '<i2'", kBad},
        Bad{"CutOff", File("{'descr': '<f4', 'fortran_order': False, 'shape': (2,)}", "abcd"),
            "an array of shape (2,), got: 4 bytes"},
        Bad{"TooLong", File("{'descr': '<f4', 'fortran_order': False, 'shape': (1,)}", "abcdefgh"),
            "an array of shape (1,), got: 8 bytes"},
        Bad{"Overflow",
            File("{'descr': '<f4', 'fortran_order': False, 'shape': (4611686018427387904, 4, 2)}",
                 ""),
            "got: 0 bytes"},
        Bad{"Negative", File("{'descr': '<f4', 'fortran_order': False, 'shape': (-1,)}", ""),
            "expected a header with descr"}),
    [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace meshtrain::data
