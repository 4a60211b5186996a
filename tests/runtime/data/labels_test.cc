#include "runtime/data/labels.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

namespace meshtrain::data {
namespace {

using mesh::DType;
using mesh::Tensor;

TEST(LabelsTest, BatchesCarryTheFilesTypeUnlessAnotherIsAskedFor) {
  EXPECT_EQ(LabelType({}, DType::kF32), DType::kF32);
  EXPECT_EQ(LabelType({}, DType::kF64), DType::kF64);
  EXPECT_EQ(LabelType({}, DType::kI32), DType::kI32);
  EXPECT_EQ(LabelType({}, DType::kU8), DType::kI32);
  EXPECT_EQ(LabelType(DType::kI64, DType::kF32), DType::kI64);
}

template <typename T>
Status Kept(T label, DType to) {
  return CheckKept(mesh::DTypeOf<T>::value, std::as_bytes(std::span(&label, 1)), to, 4711, "y.idx");
}

TEST(LabelsTest, AConversionThatCutsALabelNamesIt) {
  EXPECT_EQ(Kept(2.5f, DType::kI32),
            InvalidArgument("y.idx: example 4711: label 2.5, which labels_as: i32 would cut"));
  EXPECT_EQ(Kept(-0.25, DType::kI64),
            InvalidArgument("y.idx: example 4711: label -0.25, which labels_as: i64 would cut"));
  for (const float bad : {2147483648.0f, std::nanf(""), std::numeric_limits<float>::infinity()}) {
    EXPECT_EQ(Kept(bad, DType::kI32).code(), StatusCode::kInvalidArgument) << bad;
  }
  EXPECT_EQ(Kept(-2147483648.0f, DType::kI32), OkStatus());
  EXPECT_EQ(Kept(2147483648.0f, DType::kI64), OkStatus());
  EXPECT_EQ(Kept(7.0, DType::kI32), OkStatus());
  EXPECT_EQ(Kept(2.5, DType::kF32), OkStatus());
  EXPECT_EQ(Kept(uint8_t{200}, DType::kI32), OkStatus());
  EXPECT_EQ(
      Kept(int64_t{21474836480}, DType::kI32),
      InvalidArgument("y.idx: example 4711: label 21474836480, which labels_as: i32 would cut"));
  EXPECT_EQ(Kept(int32_t{-1}, DType::kU8).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(Kept(int64_t{-2147483648}, DType::kI32), OkStatus());
  EXPECT_EQ(Kept(int64_t{255}, DType::kU8), OkStatus());
  EXPECT_EQ(Kept(std::numeric_limits<int64_t>::max(), DType::kF32), OkStatus());
}

TEST(LabelsTest, ALabelOutsideTheClassesIsNamedByItsExample) {
  const std::vector<int64_t> examples = {12, 4711, 3};
  const auto check = [&](const Tensor& labels) {
    return CheckClasses(labels, 5, examples, "y.idx");
  };
  EXPECT_EQ(check(Tensor::Of<int32_t>({3}, std::vector<int32_t>{4, 0, 1})), OkStatus());
  EXPECT_EQ(check(Tensor::Of<int32_t>({3}, std::vector<int32_t>{4, 9, 1})),
            InvalidArgument("y.idx: example 4711: label 9, but 5 classes"));
  EXPECT_EQ(check(Tensor::Of<int64_t>({3}, std::vector<int64_t>{-1, 9, 1})),
            InvalidArgument("y.idx: example 12: label -1, but 5 classes"));
  EXPECT_EQ(check(Tensor::Of<uint8_t>({3}, std::vector<uint8_t>{0, 1, 5})),
            InvalidArgument("y.idx: example 3: label 5, but 5 classes"));
  // Two labels of an example.
  EXPECT_EQ(check(Tensor::Of<int32_t>({3, 2}, std::vector<int32_t>{0, 1, 2, 7, 3, 4})),
            InvalidArgument("y.idx: example 4711: label 7, but 5 classes"));
  // Any labels.
  EXPECT_EQ(CheckClasses(Tensor::Of<float>({1}, std::vector<float>{-7}), 0, {}, "y.idx"),
            OkStatus());
}

TEST(LabelsTest, WithTwoClassesFractionsAreProbabilities) {
  const std::vector<int64_t> examples = {0, 1};
  const auto check = [&](float a, float b) {
    return CheckClasses(Tensor::Of<float>({2}, std::vector<float>{a, b}), 2, examples, "y.idx");
  };
  EXPECT_EQ(check(0.25f, 1), OkStatus());
  EXPECT_EQ(check(0, 1.5f), InvalidArgument("y.idx: example 1: label 1.5, but 2 classes"));
  EXPECT_EQ(check(std::nanf(""), 0), InvalidArgument("y.idx: example 0: label nan, but 2 classes"));
}

TEST(LabelsTest, ClassesOfTrainingAndTestAreTheSame) {
  using Names = std::vector<std::string>;
  const auto check = [](const Names& train, const Names& test) {
    return CheckSameClasses(train, test, "train", "test");
  };
  EXPECT_EQ(check({"cat", "dog"}, {"cat", "dog"}), OkStatus());
  EXPECT_EQ(check({}, {"cat"}), OkStatus());
  EXPECT_EQ(check({"cat"}, {}), OkStatus());
  const std::string expected = "test: expected the classes of train, of which number ";
  EXPECT_EQ(check({"cat", "dog"}, {"cat", "fish"}),
            InvalidArgument(expected + "1 is `dog`, got: `fish`"));
  EXPECT_EQ(check({"cat", "dog"}, {"cat"}), InvalidArgument(expected + "1 is `dog`, got: none"));
  EXPECT_EQ(check({"cat"}, {"cat", "dog"}), InvalidArgument(expected + "1 is none, got: `dog`"));
}

}  // namespace
}  // namespace meshtrain::data
