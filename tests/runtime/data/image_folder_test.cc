// A folder of PNG images for each class: which examples it holds, when they are read, and what is
// refused.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "runtime/data/pipeline.h"
#include "runtime/data/source.h"
#include "tests/runtime/data/idx_files.h"
#include "tests/runtime/data/png_files.h"

namespace meshtrain::data {
namespace {

namespace fs = std::filesystem;
using mesh::DType;
using mesh::TensorType;
using ::testing::HasSubstr;

// An image of 2 x 3 pixels, all of this grey.
std::string Plain(int grey) { return Png(2, 3, kPngGrey, std::vector<int>(6, grey)); }

class ImageFolderTest : public ::testing::Test {
 protected:
  // "cats/a.png"; makes the class's folder.
  std::string Write(const std::string& name, const std::string& bytes) {
    fs::create_directories(fs::path(folder_.At("train/" + name)).parent_path());
    return folder_.Write("train/" + name, bytes);
  }
  // Three classes, one of them without images; labels and greys as in `kWant`.
  void WriteThree() {
    Write("dog/1.png", Plain(40));
    Write("cat/b.PNG", Plain(20));
    Write("cat/a.png", Plain(10));
    Write("cat/.hidden", "no image");
    Write("dog/10.png", Plain(30));
    fs::create_directories(root_ + "/bird");
    folder_.Write("train/README.txt", "no class");
  }
  std::unique_ptr<Pipeline> Make(std::vector<Stage> stages, int64_t channels = 1) {
    auto made = Pipeline::Create(
        {.source = {.from = ImageFolder{root_, channels}}, .stages = std::move(stages)});
    EXPECT_TRUE(made.ok()) << made.status().ToString();
    return std::move(*made);
  }
  Status Error(int64_t channels = 1, int64_t take = -1) {
    return OpenSource({.from = ImageFolder{root_, channels}, .take = take}).status();
  }

  const TempFolder folder_;
  const std::string root_ = folder_.At("train");
};

// (label, first value) of a pass.
std::vector<std::pair<int, int>> Pass(Pipeline& pipeline) {
  std::vector<std::pair<int, int>> out;
  for (;;) {
    const auto batch = pipeline.Next();
    EXPECT_TRUE(batch.ok()) << batch.status().ToString();
    if (!batch.ok() || !*batch) return out;
    const auto labels = (**batch)["y"].values<int32_t>();
    const auto pixels = (**batch)["x"].values<uint8_t>();
    for (size_t i = 0; i < labels.size(); ++i) {
      out.emplace_back(labels[i], pixels[i * pixels.size() / labels.size()]);
    }
  }
}
const std::vector<std::pair<int, int>> kWant = {{1, 10}, {1, 20}, {2, 40}, {2, 30}};

TEST_F(ImageFolderTest, ClassesAndFilesAreInTheOrderOfTheirNames) {
  WriteThree();
  auto pipeline = Make({BatchStage{3}});
  EXPECT_EQ(pipeline->BatchTypes(3),
            (std::vector<TensorType>{{DType::kU8, {3, 2, 3, 1}}, {DType::kI32, {3}}}));
  EXPECT_EQ(Pass(*pipeline), kWant);
  EXPECT_EQ(Make({BatchStage{1}}, 4)->BatchTypes(1)[0].ToString(), "u8[1,2,3,4]");
  const auto two = OpenSource({.from = ImageFolder{root_, 3}, .take = 2}).value();
  EXPECT_EQ(two->size(), 2);
  // In any order, whether decoded images stay or not.
  for (const bool cached : {false, true}) {
    std::vector<Stage> stages = {ShuffleStage{.buffer = 4, .seed = 1}, BatchStage{2}};
    if (cached) stages.push_back(CacheStage{});
    auto shuffled = Make(stages);
    for (int pass = 0; pass < 3; ++pass) {
      auto got = Pass(*shuffled);
      std::sort(got.begin(), got.end());
      EXPECT_EQ(got, (std::vector<std::pair<int, int>>{{1, 10}, {1, 20}, {2, 30}, {2, 40}}));
    }
  }
}

TEST_F(ImageFolderTest, AnImageIsDecodedWhenItsBatchIsMade) {
  WriteThree();
  const std::string bad = Write("dog/1.png", "\x89PNG\r\n\x1a\nand no more");
  for (const bool prefetch : {false, true}) {
    std::vector<Stage> stages = {BatchStage{2}};
    if (prefetch) stages.push_back(PrefetchStage{1});
    auto pipeline = Make(stages);
    ASSERT_TRUE(pipeline->Next().ok());
    const Status error = pipeline->Next().status();
    EXPECT_EQ(error.code(), StatusCode::kDataLoss);
    EXPECT_THAT(error.message(), HasSubstr(bad + ": byte "));
    EXPECT_EQ(pipeline->Next().status(), error);
  }
  // Who uses the other rows of a batch alone does not read it.
  auto others = Make({BatchStage{4}});
  others->UseOnly([](int64_t size) { return std::pair<int64_t, int64_t>(3, size); });
  EXPECT_EQ(Pass(*others), (std::vector<std::pair<int, int>>{{0, 0}, {0, 0}, {0, 0}, {2, 30}}));
}

TEST_F(ImageFolderTest, DecodedImagesStayWhereTheyAreCached) {
  WriteThree();
  for (const bool cached : {false, true}) {
    std::vector<Stage> stages = {BatchStage{4}};
    if (cached) stages.push_back(CacheStage{});
    auto pipeline = Make(stages);
    EXPECT_EQ(Pass(*pipeline), kWant);
    Write("cat/b.PNG", Plain(21));
    EXPECT_EQ(Pass(*pipeline)[1], (std::pair(1, cached ? 20 : 21)));
    Write("cat/b.PNG", Plain(20));
  }
}

TEST_F(ImageFolderTest, WhatIsEvaluatedOnHasTheSameClasses) {
  WriteThree();
  fs::copy(root_, folder_.At("test"), fs::copy_options::recursive);
  const auto of = [&](const std::string& name) {
    return Pipeline::Create(
               {.source = {.from = ImageFolder{folder_.At(name)}}, .stages = {BatchStage{1}}})
        .value();
  };
  EXPECT_EQ(CheckSameClasses(*of("train"), *of("test")), OkStatus());
  fs::remove(folder_.At("test/bird"));
  EXPECT_EQ(CheckSameClasses(*of("train"), *of("test")),
            InvalidArgument(folder_.At("test") + ": expected the classes of " + root_ +
                            ", of which number 0 is `bird`, got: `cat`")
                .From(Origin::kInput));
}

TEST_F(ImageFolderTest, SaysWhatIsWrong) {
  EXPECT_EQ(Error().code(), StatusCode::kNotFound);
  EXPECT_THAT(Error().message(), HasSubstr(root_ + ": cannot read the folder"));
  fs::create_directories(root_ + "/cat");
  EXPECT_EQ(Error(), InvalidArgument(root_ + ": expected at least one .png file in a class's "
                                             "folder, got: none"));
  const std::string image = Write("cat/a.png", Plain(1));
  EXPECT_EQ(Error(), OkStatus());
  EXPECT_THAT(Error(1, 0).message(), HasSubstr("of which 0 are taken"));
  EXPECT_EQ(Error(2), InvalidArgument("data: image_folder: expected 1, 3 or 4 channels, got: 2"));
  const std::string loose = folder_.Write("train/b.png", Plain(1));
  EXPECT_EQ(Error(),
            InvalidArgument(root_ + ": expected a folder for each class, got: the image b.png"));
  fs::remove(loose);
  const std::string photo = Write("cat/b.jpg", "x");
  EXPECT_EQ(Error(), InvalidArgument(root_ + "/cat: expected .png files, got: b.jpg"));
  fs::remove(photo);
  fs::create_directories(root_ + "/cat/more.png");
  EXPECT_EQ(Error(),
            InvalidArgument(root_ + "/cat: expected .png files, got: the folder more.png"));
  fs::remove(root_ + "/cat/more.png");
  const std::string other = Write("dog/a.png", Png(2, 4, kPngGrey, std::vector<int>(8, 1)));
  EXPECT_EQ(Make({BatchStage{2}})->Next().status(),
            InvalidArgument(other + ": byte 16: expected 2 rows of 3 pixels, as " + image +
                            " has, got: 2 of 4"));
  fs::remove(other);
  Write("cat/a.png", "GIF89a");
  EXPECT_EQ(Error(), DataLoss(image + ": byte 0: expected a PNG image, got: other bytes"));
}

}  // namespace
}  // namespace meshtrain::data
