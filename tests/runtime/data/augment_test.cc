// Flips and crops: what they make of an image, and that nothing but the seed, the pass and the
// example's number decides what is drawn.
#include "runtime/data/augment.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <numeric>
#include <set>

#include "runtime/data/cursor.h"
#include "runtime/data/pipeline.h"

namespace meshtrain::data {
namespace {

using mesh::DType;
using mesh::Tensor;
using mesh::TensorType;
using Bytes = std::vector<uint8_t>;

// u8[2,3]:  1 2 3
//           4 5 6
const TensorType kSmall{DType::kU8, {2, 3}};
const Bytes kPixels = {1, 2, 3, 4, 5, 6};

Bytes RunOn(const Augmentation& op, int64_t example, int64_t pass = 0) {
  Bytes out(static_cast<size_t>(op.output().num_bytes()), 99);
  op.Run(example, pass, std::as_bytes(std::span(kPixels)), std::as_writable_bytes(std::span(out)));
  return out;
}

// How often each result comes, of many examples.
std::map<Bytes, int> Results(const MapOp& op, int examples) {
  const auto made = Augmentation::Create(op, kSmall, 5, 0);
  EXPECT_TRUE(made.ok()) << made.status().ToString();
  std::map<Bytes, int> seen;
  for (int i = 0; i < examples; ++i) ++seen[RunOn(*made, i)];
  return seen;
}

TEST(AugmentTest, AFlipMirrorsEverySecondImage) {
  const auto across = Results(RandomFlip{}, 4000);
  ASSERT_EQ(across.size(), 2u);
  EXPECT_NEAR(across.at(kPixels), 2000, 150);
  EXPECT_TRUE(across.contains(Bytes{3, 2, 1, 6, 5, 4}));
  const auto both = Results(RandomFlip{.horizontal = true, .vertical = true}, 4000);
  ASSERT_EQ(both.size(), 4u);
  for (const auto& [image, count] : both) EXPECT_NEAR(count, 1000, 130);
  EXPECT_TRUE(both.contains(Bytes{6, 5, 4, 3, 2, 1}));
  EXPECT_TRUE(both.contains(Bytes{4, 5, 6, 1, 2, 3}));
}

TEST(AugmentTest, ACropIsAnyPartWithZerosAround) {
  const auto inside = Results(RandomCrop{{.height = 2, .width = 2}}, 1000);
  EXPECT_EQ(inside.size(), 2u);
  EXPECT_TRUE(inside.contains(Bytes{1, 2, 4, 5}));
  EXPECT_TRUE(inside.contains(Bytes{2, 3, 5, 6}));
  const auto around = Results(RandomCrop{{.height = 2, .width = 3, .padding = 1}}, 9000);
  ASSERT_EQ(around.size(), 9u);
  for (const auto& [image, count] : around) EXPECT_NEAR(count, 1000, 130);
  EXPECT_TRUE(around.contains(kPixels));
  EXPECT_TRUE(around.contains(Bytes{0, 0, 0, 0, 1, 2}));
  EXPECT_TRUE(around.contains(Bytes{5, 6, 0, 0, 0, 0}));
  // A window larger than the image, and one that may miss it.
  const auto larger = Results(RandomCrop{{.height = 4, .width = 5, .padding = 1}}, 10);
  EXPECT_EQ(
      larger,
      (std::map<Bytes, int>{{{0, 0, 0, 0, 0, 0, 1, 2, 3, 0, 0, 4, 5, 6, 0, 0, 0, 0, 0, 0}, 10}}));
  EXPECT_EQ(Results(RandomCrop{{.height = 1, .width = 1, .padding = 4}}, 20000).size(), 7u);
}

TEST(AugmentTest, TheMiddleIsTheSameForAll) {
  const auto middle = [](const Window& window) {
    const auto seen = Results(CenterCrop{window}, 20);
    EXPECT_EQ(seen.size(), 1u);
    return seen.begin()->first;
  };
  EXPECT_EQ(middle({.height = 2, .width = 1}), (Bytes{2, 5}));
  EXPECT_EQ(middle({.height = 1, .width = 2}), (Bytes{1, 2}));
  EXPECT_EQ(middle({.height = 2, .width = 3, .padding = 4}), kPixels);
  EXPECT_EQ(middle({.height = 2, .width = 5, .padding = 1}), (Bytes{0, 1, 2, 3, 0, 0, 4, 5, 6, 0}));
}

TEST(AugmentTest, PixelsOfSeveralBytesStayWhole) {
  const std::vector<float> image = {1, 2, 3, 4, 5, 6, 7, 8};  // 2 x 2 pixels of 2 channels
  const auto flip = Augmentation::Create(RandomFlip{}, {DType::kF32, {2, 2, 2}}, 5, 0).value();
  std::set<std::vector<float>> seen;
  for (int i = 0; i < 20; ++i) {
    std::vector<float> out(8);
    flip.Run(i, 0, std::as_bytes(std::span(image)), std::as_writable_bytes(std::span(out)));
    seen.insert(out);
  }
  EXPECT_EQ(seen, (std::set<std::vector<float>>{image, {3, 4, 1, 2, 7, 8, 5, 6}}));
}

// What is drawn is part of what a checkpoint promises across machines and versions.
TEST(AugmentTest, WhatIsDrawnIsFrozen) {
  const TensorType image{DType::kU8, {1, 251}};
  Bytes numbers(251);
  std::iota(numbers.begin(), numbers.end(), uint8_t{0});
  const auto drawn = [&](uint64_t seed, uint32_t stream, int64_t example, int64_t pass) {
    const auto crop =
        Augmentation::Create(RandomCrop{{.height = 1, .width = 1}}, image, seed, stream).value();
    Bytes out(1);
    crop.Run(example, pass, std::as_bytes(std::span(numbers)),
             std::as_writable_bytes(std::span(out)));
    return static_cast<int>(out[0]);
  };
  std::vector<int> all;
  for (int i = 0; i < 4; ++i) all.push_back(drawn(7, 0, i, 0));
  all.push_back(drawn(7, 0, 0, 1));
  all.push_back(drawn(7, 1, 0, 0));
  all.push_back(drawn(8, 0, 0, 0));
  all.push_back(drawn(uint64_t{1} << 40, 0, int64_t{1} << 40, int64_t{1} << 40));
  EXPECT_EQ(all, (std::vector<int>{26, 127, 8, 52, 92, 4, 95, 201}));
}

TEST(AugmentTest, RefusesWhatDoesNotFit) {
  struct Case {
    MapOp op;
    TensorType image;
    std::string says;
  };
  const TensorType wide{DType::kU8, {28, 32, 3}};
  for (const Case& c : std::vector<Case>{
           {RandomFlip{},
            {DType::kF32, {784}},
            "expected images [height, width] or [height, width, channels], got: "
            "f32[784]"},
           {RandomCrop{{32, 32}}, wide,
            "expected a size of at most [28, 32], of images u8[28,32,3], got: "
            "[32, 32]"},
           {CenterCrop{{32, 37, 2}}, wide,
            "expected a size of at most [32, 36], of images u8[28,32,3] with 2 "
            "of "
            "padding, got: [32, 37]"},
           {RandomCrop{{0, 3}}, wide, "expected a size of at least [1, 1], got: [0, 3]"},
           {RandomCrop{{1, 1, -1}}, wide, "expected a padding of 0 to 1048576, got: -1"}}) {
    EXPECT_EQ(Augmentation::Create(c.op, c.image, 0, 0).status(), InvalidArgument(c.says));
  }
}

TEST(AugmentTest, EvaluationIsWithoutChance) {
  const auto ops = ForEvaluation({Scale{0.5}, RandomFlip{}, RandomCrop{{3, 4, 5}}, Cast{}});
  ASSERT_EQ(ops.size(), 3u);
  EXPECT_EQ(std::get<Scale>(ops[0]).factor, 0.5);
  EXPECT_EQ(std::get<CenterCrop>(ops[1]).window.padding, 5);
  EXPECT_EQ(std::get<CenterCrop>(ops[1]).window.width, 4);
  EXPECT_TRUE(std::holds_alternative<Cast>(ops[2]));
}

// --- in pipelines

constexpr int64_t kExamples = 23;

// u8[23,6,5,3] of which no two rows are equal, and their numbers.
MemoryArrays Images() {
  Tensor x(TensorType{DType::kU8, {kExamples, 6, 5, 3}});
  std::vector<int64_t> y(kExamples);
  std::iota(y.begin(), y.end(), 0);
  uint32_t state = 1;
  for (uint8_t& value : x.mutable_values<uint8_t>()) {
    state = state * 1664525 + 1013904223;
    value = static_cast<uint8_t>(state >> 24);
  }
  return {.components = {x, Tensor::Of<int64_t>({kExamples}, y)}};
}

MapStage Augmenting(uint64_t seed = 3) {
  return {.ops = {RandomCrop{{6, 5, 2}}, Scale{1.0 / 255}, RandomFlip{}, Normalize{{0.5}, {0.25}}},
          .seed = seed};
}

// (pass, example) -> its image.
using Seen = std::map<std::pair<int64_t, int64_t>, std::vector<float>>;

// Adds what the next `passes` passes give; each example once in each.
void Collect(Pipeline& pipeline, int64_t passes, Seen* seen) {
  for (int64_t pass = pipeline.cursor().epoch, end = pass + passes; pass < end;) {
    const auto batch = pipeline.Next();
    ASSERT_TRUE(batch.ok()) << batch.status().ToString();
    if (!*batch) {
      ++pass;
      continue;
    }
    const auto images = (**batch)["x"].values<float>();
    const auto numbers = (**batch)["y"].values<int64_t>();
    for (size_t i = 0; i < numbers.size(); ++i) {
      const auto image = images.subspan(i * 90, 90);
      const bool fresh =
          seen->emplace(std::pair(pass, numbers[i]), std::vector(image.begin(), image.end()))
              .second;
      ASSERT_TRUE(fresh) << "example " << numbers[i] << " twice in pass " << pass;
    }
  }
}

std::unique_ptr<Pipeline> Make(std::vector<Stage> stages, SourceSpec source = {.from = Images()}) {
  auto made = Pipeline::Create({.source = std::move(source), .stages = std::move(stages)});
  EXPECT_TRUE(made.ok()) << made.status().ToString();
  return std::move(*made);
}

Seen Reference() {
  Seen seen;
  Collect(*Make({Augmenting(), BatchStage{1}}), 3, &seen);
  EXPECT_EQ(seen.size(), 3u * kExamples);
  return seen;
}

TEST(AugmentTest, ImagesAreTheSameInWhateverBatchesTheyCome) {
  const Seen want = Reference();
  for (const int64_t batch : {2, 5, 23, 40}) {
    for (const uint64_t order : {0, 1, 2}) {
      std::vector<Stage> stages = {Augmenting(), BatchStage{batch}, PrefetchStage{}};
      if (order > 0) stages.insert(stages.begin() + 1, ShuffleStage{.buffer = 9, .seed = order});
      Seen seen;
      Collect(*Make(stages), 3, &seen);
      EXPECT_EQ(seen, want) << batch << " " << order;
    }
  }
}

TEST(AugmentTest, ImagesAreTheSameWhoeverOfSeveralProcessesMakesThem) {
  const Seen want = Reference();
  for (const int64_t processes : {1, 2, 4}) {
    // Each takes every nth example of the source.
    Seen dealt;
    for (int64_t p = 0; p < processes; ++p) {
      SourceSpec mine{.from = Images(), .first = p, .every = processes};
      Collect(*Make({Augmenting(), BatchStage{3}}, std::move(mine)), 3, &dealt);
    }
    EXPECT_EQ(dealt, want) << processes;
    // Each uses its rows of every batch; the rest is zeros.
    const std::vector<Stage> stages = {Augmenting(), ShuffleStage{.buffer = 23, .seed = 4},
                                       BatchStage{7}};
    Seen cut;
    for (int64_t p = 0; p < processes; ++p) {
      const auto used = [=](int64_t size) {
        const int64_t chunk = (size + processes - 1) / processes;
        return std::pair(std::min(size, p * chunk), std::min(size, (p + 1) * chunk));
      };
      auto pipeline = Make(stages);
      pipeline->UseOnly(used);
      for (int64_t pass = 0; pass < 3;) {
        const auto batch = pipeline->Next();
        ASSERT_TRUE(batch.ok());
        if (!*batch) {
          ++pass;
          continue;
        }
        const auto [begin, end] = used((*batch)->size);
        const auto images = (**batch)["x"].values<float>();
        for (int64_t i = 0; i < (*batch)->size; ++i) {
          const auto image = images.subspan(static_cast<size_t>(i) * 90, 90);
          const int64_t number = (**batch)["y"].values<int64_t>()[static_cast<size_t>(i)];
          if (i < begin || i >= end) {
            EXPECT_EQ(number, 0);
            continue;
          }
          EXPECT_TRUE(
              cut.emplace(std::pair(pass, number), std::vector(image.begin(), image.end())).second);
        }
      }
    }
    EXPECT_EQ(cut, want) << processes;
  }
}

TEST(AugmentTest, ImagesAreTheSameAfterARestart) {
  const std::vector<Stage> stages = {Augmenting(), ShuffleStage{.buffer = 23, .seed = 4},
                                     BatchStage{5}, PrefetchStage{2}};
  const Seen want = Reference();
  for (const int at : {1, 3, 5, 6, 8, 13}) {
    auto first = Make(stages);
    Seen seen;
    for (int i = 0; i < at; ++i) {
      const auto batch = first->Next().value();
      if (!batch) continue;
      const int64_t pass = first->cursor().epoch;
      for (int64_t e = 0; e < batch->size; ++e) {
        const auto image = (*batch)["x"].values<float>().subspan(static_cast<size_t>(e) * 90, 90);
        seen[{pass, batch->elements[static_cast<size_t>(e)]}] = {image.begin(), image.end()};
      }
    }
    auto second = Make(stages);
    ASSERT_EQ(second->Restore(first->cursor()), OkStatus());
    Collect(*second, 3 - first->cursor().epoch, &seen);
    EXPECT_EQ(seen, want) << at;
  }
}

TEST(AugmentTest, EachPassAndEachSeedHasImagesOfItsOwn) {
  const Seen want = Reference();
  int same_as_before = 0;
  for (int64_t e = 0; e < kExamples; ++e) {
    for (const int64_t pass : {1, 2}) {
      same_as_before += want.at({pass, e}) == want.at({pass - 1, e});
    }
  }
  EXPECT_LT(same_as_before, 8) << "of 46; one in 50 is by chance";
  Seen other;
  Collect(*Make({Augmenting(4), BatchStage{1}}), 3, &other);
  int same = 0;
  for (const auto& [at, image] : want) same += other.at(at) == image;
  EXPECT_LT(same, 12) << "of 69";
  // A repeated run through the source is a pass, too.
  std::vector<std::vector<float>> once;
  auto repeated = Make({Augmenting(), BatchStage{23}, RepeatStage{}});
  for (int64_t pass = 0; pass < 3; ++pass) {
    const auto batch = repeated->Next().value();
    const auto image = (*batch)["x"].values<float>().first(90);
    EXPECT_EQ(std::vector(image.begin(), image.end()), want.at({pass, 0})) << pass;
  }
}

TEST(AugmentTest, AnImageAndItsMaskStayOne) {
  MemoryArrays arrays = Images();
  arrays.components[1] = arrays.components[0];
  arrays.names = {"image", "mask"};
  const std::vector<MapOp> ops = {RandomFlip{.vertical = true}, RandomCrop{{3, 3, 1}}};
  auto pipeline = Make({MapStage{.ops = ops, .component = 0, .seed = 9},
                        MapStage{.ops = ops, .component = 1, .seed = 9}, BatchStage{23}},
                       {.from = arrays});
  const auto batch = pipeline->Next().value();
  EXPECT_EQ((*batch)["image"].type().ToString(), "u8[23,3,3,3]");
  const auto image = (*batch)["image"].bytes(), mask = (*batch)["mask"].bytes();
  EXPECT_TRUE(std::equal(image.begin(), image.end(), mask.begin()));
}

}  // namespace
}  // namespace meshtrain::data
