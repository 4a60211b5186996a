// The share of labels among the classes with the largest predictions, against counting them.
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <random>

#include "runtime/sharding/sharding.h"
#include "runtime/train/loss.h"
#include "tests/support/interpreter/interpreter.h"

namespace meshtrain::train {
namespace {

using meshtrain::testing::Array;
using meshtrain::testing::Interpret;
using meshtrain::testing::StepInput;
using program::Builder;
using program::DType;
using program::TensorType;

constexpr int64_t kExamples = 40, kClasses = 12, kBest = 3;

program::Program Trace() {
  Builder b("metric");
  const Builder::Scope scope(b);
  const Value y = b.Input("y", {DType::kI32, {kExamples}});
  const Value shares = b.Input("shares", {DType::kF32, {kExamples, kClasses}});
  const Value p = b.Input("p", {DType::kF32, {kExamples, kClasses}});
  b.Output("sparse", metrics::SparseTopKCategoricalAccuracy("it", kBest).of_batch(y, p, {}));
  b.Output("dense", metrics::TopKCategoricalAccuracy("it", kBest).of_batch(shares, p, {}));
  auto program = b.Build();
  EXPECT_TRUE(program.ok()) << program.status().ToString();
  return *std::move(program);
}

TEST(TopKTest, CountsLabelsAmongTheLargestWhateverIsSplit) {
  std::mt19937_64 random(4);
  StepInput feed;
  Array& y = feed.inputs["y"] = Array({DType::kI32, {kExamples}});
  Array& shares = feed.inputs["shares"] = Array({DType::kF32, {kExamples, kClasses}});
  Array& p = feed.inputs["p"] = Array({DType::kF32, {kExamples, kClasses}});
  for (auto& v : p.at) v = static_cast<int>(random() % 15) - 7;  // some are equal
  int right = 0;
  for (int64_t i = 0; i < kExamples; ++i) {
    const auto label = static_cast<int64_t>(random() % kClasses);
    y.at[i] = label;
    shares.at[i * kClasses + label] = 1;
    if (i == 0) p.at[label] = std::numeric_limits<double>::infinity();  // not right
    const auto row = p.at.begin() + i * kClasses;
    const auto above = std::count_if(row, row + kClasses, [&](auto v) { return v > row[label]; });
    right += i > 0 && above < kBest;
  }
  ASSERT_GT(right, 5);
  const program::Program program = Trace();
  const double want = static_cast<double>(static_cast<float>(right) / kExamples);
  const auto whole = Interpret(program, feed);
  ASSERT_TRUE(whole.ok()) << whole.status().ToString();
  for (const char* name : {"sparse", "dense"}) {
    EXPECT_NEAR(static_cast<double>(whole->outputs.at(name).at[0]), want, 1e-6) << name;
  }
  for (const auto& [axes, layout] :
       {std::pair{"model=4", "{*, model}"}, {"batch=3", "{batch, *}"}}) {  // uneven
    const mesh::Mesh mesh = *mesh::Mesh::Parse(axes);
    sharding::Given given;
    given.inputs.insert_or_assign("p", *mesh::Layout::Parse(layout, mesh));
    const auto partitioned = sharding::Shard(program, mesh, given);
    ASSERT_TRUE(partitioned.ok()) << partitioned.status().ToString();
    const auto got = Interpret(*partitioned, feed, 1);
    ASSERT_TRUE(got.ok()) << got.status().ToString();
    for (const char* name : {"sparse", "dense"}) {
      EXPECT_NEAR(static_cast<double>(got->outputs.at(name).at[0]), want, 1e-6) << axes << name;
    }
  }
}

TEST(TopKTest, TheNamesOfAManifestAskForFive) {
  EXPECT_EQ(metrics::SparseTopKCategoricalAccuracy().name, "sparse_top_k_categorical_accuracy");
  EXPECT_EQ(metrics::TopKCategoricalAccuracy().name, "top_k_categorical_accuracy");
}

}  // namespace
}  // namespace meshtrain::train
