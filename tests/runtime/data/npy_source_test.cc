// Arrays of numpy's as a source: what is read of them, and what is refused.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <numeric>

#include "runtime/data/npy.h"
#include "runtime/data/pipeline.h"
#include "runtime/data/source.h"
#include "tests/runtime/data/idx_files.h"

namespace meshtrain::data {
namespace {

using mesh::DType;
using mesh::Tensor;
using mesh::TensorType;
using ::testing::HasSubstr;

// f32[n,2,3]: element i holds i * 6, i * 6 + 1, ...
Tensor Features(int64_t n) {
  std::vector<float> values(static_cast<size_t>(n * 6));
  std::iota(values.begin(), values.end(), 0.0f);
  return Tensor::Of<float>({n, 2, 3}, values);
}
Tensor Counted(int64_t n) {
  std::vector<int64_t> values(static_cast<size_t>(n));
  std::iota(values.begin(), values.end(), 0);
  return Tensor::Of<int64_t>({n}, values);
}

class NpySourceTest : public ::testing::Test {
 protected:
  std::string Write(const std::string& name, const Tensor& tensor) {
    return folder_.Write(name, FormatNpy(tensor));
  }
  Status Error(const NpyFiles& files, int64_t take = -1) {
    return OpenSource({.from = files, .take = take}).status();
  }

  const TempFolder folder_;
};

TEST_F(NpySourceTest, ReadsTheElementsThatAreAskedFor) {
  const NpyFiles files{Write("x.npy", Features(50)), Write("y.npy", Counted(50))};
  const auto source = OpenSource({.from = files, .take = 40}).value();
  EXPECT_EQ(source->size(), 40);
  EXPECT_EQ(source->element(), (std::vector<TensorType>{{DType::kF32, {2, 3}}, {DType::kI64, {}}}));
  // In any order, some next to each other, one of them twice.
  const int64_t asked[] = {39, 7, 8, 9, 0, 8};
  ASSERT_EQ(source->Load(asked), OkStatus());
  for (const int64_t i : asked) {
    float x[6];
    int64_t y = -1;
    std::memcpy(x, source->Row(0, i).data(), sizeof x);
    std::memcpy(&y, source->Row(1, i).data(), sizeof y);
    EXPECT_EQ(x[0], static_cast<float>(i * 6));
    EXPECT_EQ(x[5], static_cast<float>(i * 6 + 5));
    EXPECT_EQ(y, i);
  }
  EXPECT_DEATH(source->Row(0, 1), "");
}

TEST_F(NpySourceTest, BatchesAreThoseOfTheArraysInMemory) {
  const Tensor x = Features(21), y = Counted(21);
  const std::vector<Stage> stages = {MapStage{{Scale{0.5}}}, ShuffleStage{.buffer = 9, .seed = 4},
                                     BatchStage{4}, PrefetchStage{}};
  auto files = Pipeline::Create(
      {.source = {.from = NpyFiles{Write("x.npy", x), Write("y.npy", y)}}, .stages = stages});
  auto memory = Pipeline::Create({.source = {.from = MemoryArrays{{x, y}}}, .stages = stages});
  ASSERT_TRUE(files.ok()) << files.status().ToString();
  EXPECT_EQ((*files)->BatchTypes(4), (*memory)->BatchTypes(4));
  for (int i = 0; i < 15; ++i) {
    const auto a = (*files)->Next(), b = (*memory)->Next();
    ASSERT_TRUE(a.ok() && b.ok());
    ASSERT_EQ(a->has_value(), b->has_value());
    if (!*a) continue;
    for (int c = 0; c < 2; ++c) {
      const auto left = (*a)->components[c].bytes(), right = (*b)->components[c].bytes();
      EXPECT_TRUE(std::equal(left.begin(), left.end(), right.begin(), right.end()));
    }
  }
}

TEST_F(NpySourceTest, EachPartHasItsOwnElements) {
  const NpyFiles files{Write("x.npy", Features(8)), Write("y.npy", Counted(8))};
  std::vector<int64_t> seen;
  for (int64_t part = 0; part < 3; ++part) {
    auto pipeline =
        Pipeline::Create({.source = {.from = files, .take = 7, .first = part, .every = 3},
                          .stages = {BatchStage{9}}});
    const auto batch = (*pipeline)->Next().value();
    for (const int64_t y : batch->components[1].values<int64_t>()) seen.push_back(y);
  }
  EXPECT_EQ(seen, (std::vector<int64_t>{0, 3, 6, 1, 4, 2, 5}));
  const auto none = [&](int64_t first, int64_t every) {
    return OpenSource({.from = files, .first = first, .every = every}).status().message();
  };
  EXPECT_THAT(none(8, 9), HasSubstr("expected an element for each of 9 parts, got: 8"));
  EXPECT_THAT(none(-1, 2), HasSubstr("got: -1, every 2"));
  EXPECT_THAT(none(0, 0), HasSubstr("got: 0, every 0"));
}

TEST_F(NpySourceTest, MoreFilesAreMoreComponents) {
  const std::string x = Write("x.npy", Features(5)), y = Write("y.npy", Counted(5));
  const auto odd = Tensor::Of<uint8_t>({5}, std::vector<uint8_t>{0, 1, 0, 1, 0});
  NpyFiles files{x, y, {}, {{"mask", Write("m.npy", Features(5))}, {"odd", Write("o.npy", odd)}}};
  auto pipeline = Pipeline::Create({.source = {.from = files}, .stages = {BatchStage{4}}}).value();
  EXPECT_EQ(pipeline->component_names(), (std::vector<std::string>{"x", "y", "mask", "odd"}));
  EXPECT_EQ(pipeline->BatchTypes(4)[2].ToString(), "f32[4,2,3]");
  EXPECT_EQ(pipeline->BatchTypes(4)[3].ToString(), "u8[4]");  // as it is in the file
  ASSERT_TRUE(pipeline->Next().ok());
  const auto last = pipeline->Next().value();
  EXPECT_EQ((*last)["y"].values<int64_t>()[0], 4);
  EXPECT_EQ((*last)["mask"].values<float>()[0], 24.0f);
  EXPECT_EQ((*last)["odd"].values<uint8_t>()[0], 0);
  // A mistake is of the file that it is in.
  pipeline->ExpectClasses({{"odd", 1}});
  ASSERT_TRUE(pipeline->Next().ok());  // the end of the pass
  EXPECT_EQ(pipeline->Next().status(),
            InvalidArgument(files.more[1].file + ": example 1: label 1, but 1 classes"));
  files.more[1].file = Write("four.npy", Counted(4));
  EXPECT_EQ(Error(files), InvalidArgument(folder_.At("four.npy") +
                                          ": expected 5 elements, as many as examples in " + x +
                                          ", got: i64[4]"));
  files.more[1] = {"mask", y};
  EXPECT_THAT(Error(files).message(), HasSubstr("`mask` twice"));
}

TEST_F(NpySourceTest, LabelsMayBeArraysAndAreNeverCut) {
  const auto y = Tensor::Of<float>({2, 2}, std::vector<float>{1, 2, 3, 4.5f});
  NpyFiles files{Write("x.npy", Features(2)), Write("y.npy", y)};
  auto whole = Pipeline::Create({.source = {.from = files}, .stages = {BatchStage{2}}}).value();
  EXPECT_EQ(whole->BatchTypes(2)[1].ToString(), "f32[2,2]");
  EXPECT_EQ((*whole->Next())->components[1].values<float>()[3], 4.5f);
  files.labels_as = DType::kI32;
  auto cut = Pipeline::Create({.source = {.from = files}, .stages = {BatchStage{2}}}).value();
  EXPECT_EQ(
      cut->Next().status(),
      InvalidArgument(files.labels + ": example 1: label 4.5, which labels_as: i32 would cut"));
  // Bytes are class numbers.
  const auto bytes = Tensor::Of<uint8_t>({2}, std::vector<uint8_t>{3, 250});
  auto classes =
      Pipeline::Create({.source = {.from = NpyFiles{files.images, Write("b.npy", bytes)}},
                        .stages = {BatchStage{2}}})
          .value();
  EXPECT_EQ((*classes->Next())->components[1].values<int32_t>()[1], 250);
}

TEST_F(NpySourceTest, SaysWhatIsWrongWithAFile) {
  const std::string x = Write("x.npy", Features(3)), y = Write("y.npy", Counted(3));
  EXPECT_EQ(Error({folder_.At("none.npy"), y}).code(), StatusCode::kNotFound);
  EXPECT_EQ(Error({x, Write("four.npy", Counted(4))}),
            InvalidArgument(folder_.At("four.npy") +
                            ": expected 3 labels, as many as examples in " + x + ", got: i64[4]"));
  EXPECT_THAT(Error({Write("one.npy", Tensor::Scalar<float>(1)), y}).message(),
              HasSubstr("one.npy: expected an array of examples, [N, ...], got: one number"));
  EXPECT_THAT(Error({Write("e.npy", Features(0)), Write("f.npy", Counted(0))}).message(),
              HasSubstr("e.npy: expected at least one element, got: f32[0,2,3]"));
  EXPECT_THAT(Error({x, y}, 0).message(), HasSubstr("of which 0 are taken"));
  std::string cut = FormatNpy(Features(3));
  cut.resize(cut.size() - 1);
  EXPECT_EQ(Error({folder_.Write("cut.npy", cut), y}),
            DataLoss(folder_.At("cut.npy") +
                     ": byte 128: expected the elements of an array of shape (3, 2, 3), got: 71 "
                     "bytes"));
}

TEST_F(NpySourceTest, AFileThatChangesWhileItIsReadIsAnError) {
  const std::string x = Write("x.npy", Features(3)), y = Write("y.npy", Counted(3));
  const auto source = OpenSource({.from = NpyFiles{x, y}}).value();
  std::filesystem::resize_file(x, 128 + 30);
  const int64_t first[] = {0}, second[] = {1};
  EXPECT_EQ(source->Load(first), OkStatus());
  EXPECT_EQ(
      source->Load(second),
      DataLoss(x + ": byte 158: expected the array as it was opened, f32[3,2,3], got: its end"));
  std::string flags = FormatNpy(Tensor(TensorType{DType::kBool, {3}}));
  flags.back() = '\2';
  flags[flags.size() - 2] = flags[flags.size() - 3] = '\0';
  const std::string bools = folder_.Write("b.npy", flags);
  const auto wrong = OpenSource({.from = NpyFiles{bools, y}}).value();
  const int64_t last[] = {2};
  EXPECT_EQ(wrong->Load(last), DataLoss(bools + ": byte 130: expected a bool, 0 or 1, got: 2"));
}

}  // namespace
}  // namespace meshtrain::data
