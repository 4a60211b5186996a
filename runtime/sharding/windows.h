// Windows over split dimensions. A dimension that a factor reaches through a window
// (program::SlidingWindow) is stored in chunks like any other; what a device computes with is a
// *block*: its chunk with what lies around it, or another part altogether where strides and chunks
// do not line up. Getting from chunks to blocks is one more way to move data, a halo exchange.
//
//   window 3, stride 1, low 1 over 8 elements on 2 devices: chunks 0-3 4-7, blocks -1-4 3-8; each
//   device gets one element of its neighbour, and what lies outside is padding
//
// Blocks are of one size on every device, so the op on them is the same op with other padding; only
// where a block begins differs, and nothing but moving data knows it.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "runtime/sharding/factors.h"
#include "runtime/sharding/reshard.h"

namespace meshtrain::sharding {

// `extent` elements of a dimension for each of its shards; they may begin before it and end after.
struct Blocks {
  std::vector<int64_t> starts;
  int64_t extent = 0;
};

// A window whose factor is split.
struct SplitWindow {
  Blocks elements, positions;      // of operands
  int64_t low = 0, high = 0;       // the padding of the op on blocks
  int64_t result_extent = 0;       // of a result's dimension as that op leaves it
  std::vector<int64_t> result_at;  // where in it each shard's chunk begins; none: it is the chunk
};
SplitWindow SplitOf(const program::FactorTable& table, int window, int64_t parts);

// What an operand's dimension is needed as.
struct BlocksWanted {
  int dim = 0;
  AxisList axes;
  Blocks blocks;
  double outside = 0;
};
// Of the operand, for windows that are split.
std::vector<BlocksWanted> WantedOf(const program::FactorTable& table, const Split& split,
                                   int operand, const AxisSizes& sizes);

// The rows of a dimension of `size` elements that members of a group hand each other, by how far
// the sender stands from the receiver; shift 0 is what a member has itself.
struct HaloPiece {
  int64_t receiver = 0, sender = 0;
  int64_t from = 0;   // in the sender's chunk
  int64_t to = 0;     // in the receiver's block
  int64_t count = 0;  // rows, at least 1
};
struct HaloShift {
  int64_t shift = 0;  // sender - receiver
  int64_t rows = 0;   // of the largest piece
  std::vector<HaloPiece> pieces;
};
std::vector<HaloShift> HaloShifts(int64_t size, const Blocks& blocks);

// How blocks are made of a value: it is brought to `through`, where each of the dimensions is
// either in chunks, to be exchanged, or whole (a bit of `whole` per wish), to be cut locally.
struct BlockRoute {
  Placement through;
  uint32_t whole = 0;
  double seconds = 0;
};
// The cheapest of them, from the layouts that the value is in. `placement`: with every dimension in
// chunks.
// A gather beyond `limit` only where there is no other way.
BlockRoute PlanBlocks(std::span<const Placement> have, const Placement& placement,
                      std::span<const BlocksWanted> wanted, std::span<const int64_t> dims,
                      int64_t element_bytes, const ReshardContext& context,
                      const GatherLimit& limit);

// One dimension from chunks to blocks, of a local tensor of `local` dimensions.
struct HaloCost {
  int64_t bytes = 0;  // sent by the device that sends most
  double seconds = 0;
};
HaloCost CostOfHalo(const BlocksWanted& wanted, int64_t size, std::span<const int64_t> local,
                    int64_t element_bytes, const CostModel& cost);

}  // namespace meshtrain::sharding
