// Which algorithm for how many bytes between how many members. Pure.
#pragma once

#include <cstdint>
#include <string_view>

#include "runtime/collective/algorithms/schedule.h"

namespace meshtrain::collective {

enum class AllReduceAlgorithm : uint8_t { kDoubling, kHalving, kRing };
std::string_view AllReduceAlgorithmName(
    AllReduceAlgorithm algorithm);  // "doubling", "halving", "ring"

// For an all-reduce of `bytes` between `members` processes over the network.
AllReduceAlgorithm ChooseAllReduce(int64_t bytes, int members);
Schedule MakeAllReduce(AllReduceAlgorithm algorithm, int n, int me, int64_t count);

// Whether gathering or scattering goes directly from each to each instead of around the ring;
// `bytes` of the whole.
bool ChooseDirect(int64_t bytes, int members);

}  // namespace meshtrain::collective
