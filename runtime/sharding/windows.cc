#include "runtime/sharding/windows.h"

#include <algorithm>
#include <limits>
#include <map>

#include "runtime/base/check.h"

namespace meshtrain::sharding {
namespace {

using program::FactorTable;
using program::SlidingWindow;
using program::WindowedDim;

int64_t FloorDiv(int64_t a, int64_t b) { return a >= 0 ? a / b : -CeilDiv(-a, b); }

bool NeedsElements(const FactorTable& table, int window) {
  return std::any_of(table.windowed.begin(), table.windowed.end(), [&](const WindowedDim& d) {
    return d.window == window && d.elements && !d.result;
  });
}

}  // namespace

SplitWindow SplitOf(const FactorTable& table, int window, int64_t parts) {
  const SlidingWindow& w = table.windows[window];
  const int64_t chunk = CeilDiv(table.factors[w.factor].size, parts);
  const int64_t reach = (w.size - 1) * w.dilation;  // from a window's first element to its last
  SplitWindow split;
  if (!w.counts_elements) {
    for (int64_t j = 0; j < parts; ++j) {
      split.elements.starts.push_back(j * chunk * w.stride - w.low);
    }
    split.elements.extent = (chunk - 1) * w.stride + reach + 1;
    return split;
  }
  // The positions that see a chunk of elements. They begin at one that may lie up to stride - 1
  // elements before the first that does, as many on each device.
  const int64_t positions = (chunk + w.stride - 2 + reach) / w.stride + 1;
  const bool trimmed = !NeedsElements(table, window);
  if (trimmed) {
    // Padding cuts off what the windows see before the chunk and after it.
    split.low = reach;
    split.result_extent = chunk + w.stride - 1;
    split.high = std::max<int64_t>(0, (positions - 1) * w.stride + 1 - split.result_extent);
  } else {
    split.result_extent = (positions - 1) * w.stride + reach + 1;
  }
  split.positions.extent = positions;
  split.elements.extent = split.result_extent;
  bool moved = split.result_extent != chunk;
  for (int64_t j = 0; j < parts; ++j) {
    const int64_t first = FloorDiv(j * chunk + w.low - reach, w.stride);
    const int64_t element = first * w.stride - w.low + split.low;
    split.positions.starts.push_back(first);
    split.elements.starts.push_back(element);
    split.result_at.push_back(j * chunk - element);
    moved = moved || element != j * chunk;
  }
  if (!moved) split.result_at.clear();
  return split;
}

std::vector<BlocksWanted> WantedOf(const FactorTable& table, const Split& split, int operand,
                                   const AxisSizes& sizes) {
  std::vector<BlocksWanted> wanted;
  for (const WindowedDim& d : table.windowed) {
    if (d.result || d.tensor != operand) continue;
    const AxisList& axes = split.factors[table.windows[d.window].factor];
    if (axes.empty()) continue;
    SplitWindow of = SplitOf(table, d.window, sizes.Product(axes));
    wanted.push_back({d.dim, axes, d.elements ? of.elements : of.positions, d.outside});
  }
  return wanted;
}

std::vector<HaloShift> HaloShifts(int64_t size, const Blocks& blocks) {
  const auto parts = static_cast<int64_t>(blocks.starts.size());
  const int64_t chunk = CeilDiv(size, parts);
  std::map<int64_t, HaloShift> shifts;
  for (int64_t j = 0; j < parts; ++j) {
    const int64_t begin = std::max<int64_t>(0, blocks.starts[j]);
    const int64_t end = std::min(size, blocks.starts[j] + blocks.extent);
    for (int64_t at = begin; at < end;) {
      const int64_t sender = at / chunk;
      const int64_t stop = std::min(end, (sender + 1) * chunk);
      HaloShift& shift = shifts[sender - j];
      shift.shift = sender - j;
      shift.rows = std::max(shift.rows, stop - at);
      shift.pieces.push_back({j, sender, at - sender * chunk, at - blocks.starts[j], stop - at});
      at = stop;
    }
  }
  std::vector<HaloShift> all;
  for (auto& [shift, item] : shifts) all.push_back(std::move(item));
  return all;
}

HaloCost CostOfHalo(const BlocksWanted& wanted, int64_t size, std::span<const int64_t> local,
                    int64_t element_bytes, const CostModel& cost) {
  int64_t row = element_bytes;
  for (size_t d = 0; d < local.size(); ++d) row *= static_cast<int>(d) == wanted.dim ? 1 : local[d];
  HaloCost halo;
  std::vector<int64_t> sent(wanted.blocks.starts.size());
  for (const HaloShift& shift : HaloShifts(size, wanted.blocks)) {
    if (shift.shift == 0) continue;
    halo.seconds += cost.collective_latency_seconds;
    for (const HaloPiece& piece : shift.pieces) sent[piece.sender] += shift.rows * row;
  }
  if (!sent.empty()) halo.bytes = *std::max_element(sent.begin(), sent.end());
  halo.seconds += static_cast<double>(halo.bytes) / cost.link_bytes_per_second +
                  static_cast<double>((local[wanted.dim] + wanted.blocks.extent) * row) /
                      cost.memory_bytes_per_second;
  return halo;
}

BlockRoute PlanBlocks(std::span<const Placement> have, const Placement& placement,
                      std::span<const BlocksWanted> wanted, std::span<const int64_t> dims,
                      int64_t element_bytes, const ReshardContext& context,
                      const GatherLimit& limit) {
  BlockRoute best;
  best.seconds = std::numeric_limits<double>::infinity();
  for (uint32_t whole = 0; whole < 1u << wanted.size(); ++whole) {
    BlockRoute route{.through = placement, .whole = whole};
    for (size_t k = 0; k < wanted.size(); ++k) {
      if (!(whole >> k & 1)) continue;
      for (const int axis : wanted[k].axes) route.through.Clear(axis);
    }
    route.seconds = std::numeric_limits<double>::infinity();
    for (const Placement& from : have) {
      route.seconds = std::min(
          route.seconds, ReshardSeconds(from, route.through, dims, element_bytes, context, limit));
    }
    std::vector<int64_t> local(dims.begin(), dims.end());
    for (size_t d = 0; d < local.size(); ++d) {
      local[d] = LocalExtent(route.through, static_cast<int>(d), dims[d], context.sizes);
    }
    for (size_t k = 0; k < wanted.size(); ++k) {
      if (whole >> k & 1) {
        int64_t bytes = element_bytes;
        for (size_t d = 0; d < local.size(); ++d) {
          bytes *= static_cast<int>(d) == wanted[k].dim ? wanted[k].blocks.extent : local[d];
        }
        route.seconds += 2 * static_cast<double>(bytes) / context.cost.memory_bytes_per_second;
      } else {
        route.seconds +=
            CostOfHalo(wanted[k], dims[wanted[k].dim], local, element_bytes, context.cost).seconds;
      }
      local[wanted[k].dim] = wanted[k].blocks.extent;
    }
    if (route.seconds < best.seconds) best = route;
  }
  MT_CHECK(best.seconds < std::numeric_limits<double>::infinity());
  return best;
}

}  // namespace meshtrain::sharding
