// Where blocks of split windows lie, and what a convolution split in space exchanges.
#include "runtime/sharding/windows.h"

#include <gtest/gtest.h>

#include <set>

#include "runtime/program/ops.h"
#include "runtime/sharding/sharding.h"
#include "tests/support/interpreter/interpreter.h"

namespace meshtrain::sharding {
namespace {

using Ints = std::vector<int64_t>;
using program::Builder;
using program::DType;
using program::FactorTable;
using program::Value;

FactorTable TableOf(program::SlidingWindow window, int64_t size, bool elements_needed = false) {
  FactorTable table;
  table.factors = {{size, program::FactorKind::kMap}};
  table.windows = {window};
  if (elements_needed) table.windowed = {{.window = 0, .elements = true}};
  return table;
}

TEST(WindowsTest, ForwardBlocksReachAsFarAsTheirWindows) {
  // 8 elements, window of 3 with one element of padding on both sides: 8 positions on 2 devices.
  const SplitWindow split = SplitOf(TableOf({.size = 3, .low = 1}, 8), 0, 2);
  EXPECT_EQ(split.elements.starts, (Ints{-1, 3}));
  EXPECT_EQ(split.elements.extent, 6);
  EXPECT_EQ(split.low, 0);
  EXPECT_EQ(split.high, 0);
  EXPECT_TRUE(split.result_at.empty());
}

TEST(WindowsTest, PoolingInHalvesNeedsNoNeighbour) {
  const SplitWindow split = SplitOf(TableOf({.size = 2, .stride = 2}, 14), 0, 2);
  EXPECT_EQ(split.elements.starts, (Ints{0, 14}));
  EXPECT_EQ(split.elements.extent, 14);
  const std::vector<HaloShift> shifts = HaloShifts(28, split.elements);
  ASSERT_EQ(shifts.size(), 1u);
  EXPECT_EQ(shifts[0].shift, 0);
}

// The gradient of a window of 3 with stride 2: shards of 5 elements begin at even and odd ones.
TEST(WindowsTest, GradientsOfStridesLeaveBlocksThatAreCut) {
  const program::SlidingWindow window{.counts_elements = true, .size = 3, .stride = 2, .low = 1};
  const SplitWindow split = SplitOf(TableOf(window, 10), 0, 2);
  EXPECT_EQ(split.positions.starts, (Ints{-1, 2}));
  EXPECT_EQ(split.positions.extent, 4);
  EXPECT_EQ(split.low, 2);
  EXPECT_EQ(split.result_extent, 6);
  EXPECT_EQ(split.elements.starts, (Ints{-1, 5}));
  EXPECT_EQ(split.result_at, (Ints{1, 0}));
}

TEST(WindowsTest, HalosComeFromAsFarAsWindowsReach) {
  // Chunks 0-1 2-3 4-5 6; each block begins three elements before its own.
  const std::vector<HaloShift> shifts = HaloShifts(7, {{-3, -1, 1, 3}, 5});
  ASSERT_EQ(shifts.size(), 3u);
  EXPECT_EQ(shifts[0].shift, -2);
  EXPECT_EQ(shifts[0].rows, 1);
  EXPECT_EQ(shifts[1].shift, -1);
  EXPECT_EQ(shifts[1].rows, 2);
  EXPECT_EQ(shifts[2].shift, 0);
  int64_t first = 0;
  for (const HaloPiece& piece : shifts[0].pieces) {
    EXPECT_EQ(piece.sender, piece.receiver - 2);
    first += piece.count;
  }
  EXPECT_EQ(first, 2);
}

// An image split by rows: the planner takes the neighbours' rows, not the whole image, and gives
// what one device gives, forward and backward.
TEST(WindowsTest, ConvolutionsSplitInSpaceExchangeRows) {
  Builder b("net");
  Builder::Scope scope(b);
  const Value x = b.Input("x", {DType::kF64, {2, 16, 16, 2}});
  const Value kernel = b.Input("kernel", {DType::kF64, {3, 3, 2, 3}});
  Value y = program::Conv(x, kernel, {.padding = program::Padding::kSame});
  y = program::WindowMax(y, {.sizes = {3, 3}, .strides = {2, 2}});
  y = program::WindowMean(y, {.sizes = {2, 2}, .padding = program::Padding::kSame});
  const Value loss = program::ReduceSum(program::Square(y));
  const std::vector<Value> wrt = {x, kernel};
  const auto gradients = b.Gradient(loss, std::span<const Value>(wrt));
  b.Output("loss", loss);
  b.Output("dx", gradients[0]);
  b.Output("dk", gradients[1]);
  const auto program = b.Build();
  ASSERT_TRUE(program.ok()) << program.status().ToString();

  testing::StepInput input;
  for (const program::Port& port : program->inputs) {
    testing::Array array(program->type(port.value));
    for (size_t i = 0; i < array.at.size(); ++i) {
      array.at[i] = static_cast<double>(i * 37 % 101) / 32 - 1.5;
    }
    input.inputs[port.name] = array;
  }
  const auto want = testing::Interpret(*program, input);
  ASSERT_TRUE(want.ok()) << want.status().ToString();
  for (const char* text : {"h=2", "h=3", "h=2,w=2", "h=2,w=2,n=2"}) {
    SCOPED_TRACE(text);
    const Mesh mesh = *Mesh::Parse(text);
    const std::string n = mesh.FindAxis("n") ? "n" : "*", w = mesh.FindAxis("w") ? "w" : "*";
    Given given;
    given.inputs.insert_or_assign("x", *Layout::Parse("{" + n + ", h, " + w + ", *}", mesh));
    given.outputs.insert_or_assign("dx", *Layout::Parse("{" + n + ", h, " + w + ", *}", mesh));
    // As between hosts: bytes are dear.
    const Options options{.cost = {.link_bytes_per_second = 1e7, .collective_latency_seconds = 0}};
    const auto partitioned = Shard(*program, mesh, given, options);
    ASSERT_TRUE(partitioned.ok()) << partitioned.status().ToString();
    std::set<std::string> kinds;
    for (const program::Op& op : partitioned->local.ops) kinds.insert(op.kind);
    EXPECT_TRUE(kinds.contains("halo")) << partitioned->local.ToString();
    EXPECT_FALSE(kinds.contains("all_gather")) << partitioned->local.ToString();
    const auto got = testing::Interpret(*partitioned, input);
    ASSERT_TRUE(got.ok()) << got.status().ToString();
    for (const auto& [name, array] : want->outputs) {
      EXPECT_LT(Difference(got->outputs.at(name), array), 1e-12) << name;
    }
  }
}

}  // namespace
}  // namespace meshtrain::sharding
