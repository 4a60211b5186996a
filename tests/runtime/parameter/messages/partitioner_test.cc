#include "runtime/parameter/messages/partitioner.h"

#include <gtest/gtest.h>

#include <map>
#include <random>

#include "tests/runtime/parameter/seed.h"

namespace meshtrain::parameter {
namespace {

using mesh::Dims;
using mesh::DType;
using mesh::TensorType;

struct Case {
  std::string name;
  Partitioner partitioner;
  Dims dims;
  int64_t want;
};

class CountShardsTest : public ::testing::TestWithParam<Case> {};

TEST_P(CountShardsTest, IsTensorFlows) {
  EXPECT_EQ(CountShards(GetParam().partitioner, {DType::kF32, GetParam().dims}), GetParam().want);
}

// What TensorFlow's partitioners return for f32 (sharded_variable.py's own examples, and those of
// peers/strategies.py worked out by its formulas).
const Case kCases[] = {
    {"FixedOfTenRows", FixedShards{2}, {10, 3}, 2},
    {"FixedOfFewerRows", FixedShards{8}, {3, 100}, 3},
    {"MinSizeCapped", MinSize{4, 2}, {6, 1}, 2},
    {"MinSizeOneRowEach", MinSize{4, 10}, {6, 1}, 6},
    {"MinSizeDefaultCap", MinSize{}, {1024, 1024}, 1},
    {"MinSizeOfAMegabyte", MinSize{256 << 10, 16}, {1024, 1024}, 16},
    {"MinSizeRoundsUp", MinSize{1024, 8}, {1000}, 4},  // 4000 bytes
    {"MinSizeOfAScalarRow", MinSize{256, 2}, {4}, 1},  // 16 bytes
    {"MinSizeKernel", MinSize{256 << 10, 2}, {784, 700}, 2},
    {"MinSizeOfOneRow", MinSize{256 << 10, 2}, {1, 100000}, 1},
    {"MinSizeOfThree", MinSize{1024, 8}, {2, 3, 4096}, 2},
    {"MaxSizeOneRowEach", MaxSize{4}, {6, 1}, 6},
    {"MaxSizeCapped", MaxSize{4, 2}, {6, 1}, 2},
    {"MaxSizeAllInOne", MaxSize{1024}, {6, 1}, 1},
    {"MaxSizeKernel", MaxSize{4096}, {784, 700}, 784},  // a row is 2800 bytes
    {"MaxSizeKernelCapped", MaxSize{4096, 3}, {784, 700}, 3},
    {"MaxSizeRowsOfSixteenBytes", MaxSize{4096}, {100, 4}, 1},
    {"MaxSizeSixteenRowsAShard", MaxSize{4096}, {20, 64}, 2},
    {"MaxSizeRowTooLong", MaxSize{4096}, {2, 3, 4096}, 2},
    {"WholeNeverCuts", Whole{}, {1000, 1000}, 1},
    {"ScalarIsNeverCut", FixedShards{4}, {}, 1},
    {"NothingIsNeverCut", MaxSize{4}, {0, 4}, 1},
    {"NoColumnsIsNeverCut", FixedShards{2}, {4, 0}, 1},
};
INSTANTIATE_TEST_SUITE_P(Partitioner, CountShardsTest, ::testing::ValuesIn(kCases),
                         [](const auto& info) { return info.param.name; });

TEST(PlaceShardsTest, PlacesAsTheReferenceRun) {
  // fixtures/reference-runs/parameter_server.json, chief + 2 workers + 2 ps: where v0 .. v4 went
  // there, v0 on 0.
  const std::vector<mesh::NamedType> variables = {{"v0", {DType::kF32, {4}}},
                                                  {"v1", {DType::kF32, {100, 4}}},
                                                  {"v2", {DType::kF32, {7, 64}}},
                                                  {"v3", {DType::kF32, {1000}}},
                                                  {"v4", {DType::kF32, {}}}};
  const auto shards = PlaceShards(variables, MinSize{256, 2}, 2);
  ASSERT_TRUE(shards.ok()) << shards.status().ToString();
  std::vector<std::string> got;
  for (const Shard& s : *shards) {
    got.push_back(s.name + " " + s.type.ToString() + " from " + std::to_string(s.row) + " on " +
                  std::to_string(s.server));
  }
  EXPECT_EQ(got, (std::vector<std::string>{
                     "v0 f32[4] from 0 on 0", "v1/part_0 f32[50,4] from 0 on 1",
                     "v1/part_1 f32[50,4] from 50 on 0", "v2/part_0 f32[4,64] from 0 on 1",
                     "v2/part_1 f32[3,64] from 4 on 0", "v3/part_0 f32[500] from 0 on 1",
                     "v3/part_1 f32[500] from 500 on 0", "v4 f32[] from 0 on 1"}));
}

TEST(PlaceShardsTest, GoesOnWhereTheLastPlacementEnded) {
  const std::vector<mesh::NamedType> one = {{"a", {DType::kF32, {4}}}};
  EXPECT_EQ((*PlaceShards(one, Whole{}, 3, 2))[0].server, 2);
  EXPECT_EQ((*PlaceShards(one, Whole{}, 3, 3))[0].server, 0);
}

TEST(PlaceShardsTest, RefusesWhatMakesNoSense) {
  const std::vector<mesh::NamedType> twice = {{"a", {DType::kF32, {4}}}, {"a", {DType::kF32, {4}}}};
  EXPECT_EQ(PlaceShards(twice, Whole{}, 1).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(PlaceShards({}, Whole{}, 0).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(PlaceShards({}, FixedShards{0}, 1).status().message(),
            "partitioner: shards: expected at least 1, got: 0");
  EXPECT_EQ(PlaceShards({}, MinSize{0, 1}, 1).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(PlaceShards({}, MinSize{1, 0}, 1).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(PlaceShards({}, MaxSize{}, 1).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(PlaceShards({}, MaxSize{1, -1}, 1).status().code(), StatusCode::kInvalidArgument);
}

TEST(PlacePropertyTest, ShardsCoverEveryVariableOnceAndServersEvenly) {
  const uint64_t seed = testing_seed::FromEnvironment();
  for (uint64_t s = seed; s < seed + 300; ++s) {
    SCOPED_TRACE("MT_TEST_SEED=" + std::to_string(s));
    std::mt19937_64 random(s);
    const auto below = [&](int64_t n) {
      return static_cast<int64_t>(random() % static_cast<uint64_t>(n));
    };
    std::vector<mesh::NamedType> variables;
    for (int64_t v = below(8); v >= 0; --v) {
      Dims dims;
      for (int64_t d = below(4); d > 0; --d) dims.push_back(below(12));
      variables.push_back(
          {"v" + std::to_string(v), {below(2) != 0 ? DType::kF32 : DType::kF64, dims}});
    }
    const Partitioner all[] = {Whole{}, FixedShards{1 + below(6)},
                               MinSize{1 + below(64), 1 + below(6)},
                               MaxSize{1 + below(64), below(6)}};
    const Partitioner& partitioner = all[below(4)];
    const int servers = static_cast<int>(1 + below(5));
    const auto shards = PlaceShards(variables, partitioner, servers);
    ASSERT_TRUE(shards.ok()) << shards.status().ToString();
    std::map<int, int64_t> rows;
    std::map<int, int64_t> longest, shortest;
    std::vector<int64_t> held(servers, 0);
    std::set<std::string> names;
    for (const Shard& shard : *shards) {
      EXPECT_TRUE(names.insert(shard.name).second);
      const TensorType& whole = variables[shard.variable].type;
      ASSERT_EQ(shard.type.rank(), whole.rank());
      EXPECT_EQ(shard.type.dtype, whole.dtype);
      ++held[shard.server];
      if (whole.rank() == 0) {
        EXPECT_EQ(shard.parts, 1);
        continue;
      }
      EXPECT_EQ(Dims(shard.type.dims.begin() + 1, shard.type.dims.end()),
                Dims(whole.dims.begin() + 1, whole.dims.end()));
      EXPECT_EQ(shard.row, rows[shard.variable]);
      EXPECT_EQ(shard.offsets()[0], shard.row);
      rows[shard.variable] += shard.type.dims[0];
      if (shard.part == 0) longest[shard.variable] = shard.type.dims[0];
      shortest[shard.variable] = shard.type.dims[0];
      if (shard.parts > 1) {
        EXPECT_GE(shard.type.dims[0], 1);
        // What each promises of its shards, beside the first shard's one extra row.
        if (const auto* p = std::get_if<MaxSize>(&partitioner);
            p != nullptr && p->max_shards == 0) {
          const int64_t row_bytes = whole.num_bytes() / whole.dims[0];
          // One row is the least that a shard can be.
          if (shard.type.dims[0] > 1 && row_bytes <= p->max_shard_bytes) {
            EXPECT_LE(shard.type.num_bytes(), p->max_shard_bytes) << shard.name;
          }
        }
        if (const auto* p = std::get_if<FixedShards>(&partitioner)) {
          EXPECT_LE(shard.parts, p->shards);
        }
      }
    }
    for (const auto& [v, n] : rows) {
      EXPECT_EQ(n, variables[v].type.dims[0]);
      EXPECT_LE(longest[v] - shortest[v], 1);
    }
    EXPECT_LE(
        *std::max_element(held.begin(), held.end()) - *std::min_element(held.begin(), held.end()),
        1);
    EXPECT_EQ(*PlaceShards(variables, partitioner, servers), *shards);
  }
}

}  // namespace
}  // namespace meshtrain::parameter
