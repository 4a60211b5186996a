#include "runtime/parameter/worker/dataset.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>

namespace meshtrain::parameter {
namespace {

using mesh::Tensor;

Dataset Numbers(int64_t n, ShardPolicy policy, bool shuffle = false) {
  std::vector<int32_t> values;
  for (int32_t i = 0; i < n; ++i) values.push_back(i);
  Dataset dataset{
      "numbers", {{data::MemoryArrays{{Tensor::Of<int32_t>({n}, values)}}}, {}}, policy};
  if (shuffle) dataset.spec.stages.push_back(data::ShuffleStage{n, 3});
  dataset.spec.stages.push_back(data::BatchStage{2});
  return dataset;
}

std::vector<int32_t> OnePass(const Dataset& dataset, int worker, int workers) {
  const auto pipeline = MakePipeline(dataset, worker, workers);
  EXPECT_TRUE(pipeline.ok()) << pipeline.status().ToString();
  std::vector<int32_t> out;
  for (;;) {
    const auto batch = (*pipeline)->Next();
    EXPECT_TRUE(batch.ok());
    if (!*batch) return out;
    const auto values = (*batch)->components[0].values<int32_t>();
    out.insert(out.end(), values.begin(), values.end());
  }
}

TEST(DatasetTest, ByElementEachWorkerHasItsOwn) {
  const Dataset dataset = Numbers(7, ShardPolicy::kByElement);
  EXPECT_EQ(OnePass(dataset, 0, 3), (std::vector<int32_t>{0, 3, 6}));
  EXPECT_EQ(OnePass(dataset, 1, 3), (std::vector<int32_t>{1, 4}));
  EXPECT_EQ(OnePass(dataset, 2, 3), (std::vector<int32_t>{2, 5}));
  EXPECT_EQ(MakePipeline(dataset, 7, 8).status().code(), StatusCode::kInvalidArgument);
  // Of a part: of 1, 4, 7, 10, 13.
  Dataset part = Numbers(15, ShardPolicy::kByElement);
  part.spec.source.first = 1;
  part.spec.source.every = 3;
  EXPECT_EQ(OnePass(part, 0, 2), (std::vector<int32_t>{1, 7, 13}));
  EXPECT_EQ(OnePass(part, 1, 2), (std::vector<int32_t>{4, 10}));
}

// Each worker went through what it had, and nobody said that it was not the same.
TEST(DatasetTest, AnotherNumberOfExamplesThanTheChiefsIsRefused) {
  Dataset whole = Numbers(7, ShardPolicy::kWhole);
  whole.examples = 7;
  EXPECT_TRUE(MakePipeline(whole, 1, 3).ok());
  whole.examples = 8;
  const Status other = MakePipeline(whole, 1, 3).status();
  EXPECT_EQ(other.code(), StatusCode::kInvalidArgument) << other.ToString();
  EXPECT_EQ(other.origin(), Origin::kInput);
  EXPECT_EQ(other.message(),
            "dataset numbers: data: expected 8 examples, as the chief's copy has, got: 7 (each "
            "process needs the same files)");
  for (const int64_t examples : {7, 15}) {
    Dataset dealt = Numbers(examples, ShardPolicy::kByElement);
    dealt.examples = examples;
    for (int w = 0; w < 3; ++w) EXPECT_TRUE(MakePipeline(dealt, w, 3).ok()) << examples << " " << w;
  }
  Dataset dealt = Numbers(7, ShardPolicy::kByElement);
  dealt.examples = 8;
  EXPECT_TRUE(MakePipeline(dealt, 0, 3).ok()) << "0, 3, 6 of either";
  EXPECT_EQ(MakePipeline(dealt, 1, 3).status().origin(), Origin::kInput);
}

TEST(DatasetTest, WholeEachWorkerHasAnOrderOfItsOwn) {
  const Dataset dataset = Numbers(50, ShardPolicy::kWhole, true);
  std::set<std::vector<int32_t>> orders;
  for (int w = 0; w < 4; ++w) {
    const std::vector<int32_t> pass = OnePass(dataset, w, 4);
    EXPECT_EQ(std::set<int32_t>(pass.begin(), pass.end()).size(), 50u);
    orders.insert(pass);
    EXPECT_EQ(OnePass(dataset, w, 4), pass);
  }
  EXPECT_EQ(orders.size(), 4u);
  // Worker 0 goes through it as a single process does.
  EXPECT_EQ(OnePass(dataset, 0, 4), OnePass(dataset, 0, 1));
  EXPECT_EQ(SpecOf(dataset, 0, 4).stages.size(), dataset.spec.stages.size());
}

TEST(DatasetTest, FilesAreDealtOutWithTheirLabels) {
  Dataset dataset{"digits",
                  {{data::IdxFiles{MT_TESTDATA "/mlp/digits5120-images-idx3-ubyte.gz",
                                   MT_TESTDATA "/mlp/digits5120-labels-idx1-ubyte.gz"},
                    101},
                   {data::MapStage{{data::Scale{1.0 / 255}}}, data::BatchStage{101}}},
                  ShardPolicy::kWhole};
  const auto all = (*MakePipeline(dataset, 0, 1))->Next().value();
  dataset.policy = ShardPolicy::kByElement;
  for (int w = 0; w < 2; ++w) {
    const auto part = (*MakePipeline(dataset, w, 2))->Next().value();
    ASSERT_EQ(part->size, w == 0 ? 51 : 50);
    EXPECT_EQ(part->components[1].type().dtype, mesh::DType::kI32);
    for (int64_t i = 0; i < part->size; ++i) {
      ASSERT_EQ(part->components[1].values<int32_t>()[i],
                all->components[1].values<int32_t>()[w + 2 * i]);
      ASSERT_EQ(part->components[0].values<float>()[i * 784 + 400],
                all->components[0].values<float>()[(w + 2 * i) * 784 + 400]);
    }
  }
}

TEST(DatasetTest, TextsAreDealtOutByWindows) {
  Dataset dataset{"text",
                  {{data::TextFile{.file = MT_TESTDATA "/charlm/golden.json", .length = 16}, 9},
                   {data::BatchStage{9}}},
                  ShardPolicy::kWhole};
  const auto all = (*MakePipeline(dataset, 0, 1))->Next().value();
  dataset.policy = ShardPolicy::kByElement;
  for (int w = 0; w < 2; ++w) {
    const auto part = (*MakePipeline(dataset, w, 2))->Next().value();
    ASSERT_EQ(part->size, w == 0 ? 5 : 4);
    for (int64_t i = 0; i < part->size * 16; ++i) {
      const int64_t whole = (w + 2 * (i / 16)) * 16 + i % 16;
      ASSERT_EQ((*part)["x"].values<uint8_t>()[i], (*all)["x"].values<uint8_t>()[whole]);
      ASSERT_EQ((*part)["y"].values<int32_t>()[i], (*all)["y"].values<int32_t>()[whole]);
    }
  }
}

TEST(DatasetTest, AWrongLabelHasItsNumberInTheFileWhoeverReadsIt) {
  Dataset dataset{"digits",
                  {{data::IdxFiles{MT_TESTDATA "/mlp/digits5120-images-idx3-ubyte.gz",
                                   MT_TESTDATA "/mlp/digits5120-labels-idx1-ubyte.gz"},
                    101},
                   {data::BatchStage{101}},
                   {{"y", 10}}},
                  ShardPolicy::kWhole};
  const auto all = (*MakePipeline(dataset, 0, 1))->Next().value();
  const auto labels = all->components[1].values<int32_t>();
  const int32_t most = *std::max_element(labels.begin(), labels.end());
  const auto first = std::find(labels.begin(), labels.end(), most) - labels.begin();
  dataset.spec.classes = {{"y", most}};
  const Status want =
      InvalidArgument(std::string(MT_TESTDATA "/mlp/digits5120-labels-idx1-ubyte.gz: example ") +
                      std::to_string(first) + ": label " + std::to_string(most) + ", but " +
                      std::to_string(most) + " classes");
  EXPECT_EQ((*MakePipeline(dataset, 1, 2))->Next().status(), want);
  dataset.policy = ShardPolicy::kByElement;
  EXPECT_EQ((*MakePipeline(dataset, static_cast<int>(first % 3), 3))->Next().status(), want);
}

}  // namespace
}  // namespace meshtrain::parameter
