#include "runtime/collective/algorithms/choose.h"

namespace meshtrain::collective {
namespace {

constexpr int64_t kDoublingBytes = 16 << 10;
constexpr int64_t kHalvingBytes = 256 << 10;
constexpr int64_t kDirectBytes = 64 << 10;

}  // namespace

std::string_view AllReduceAlgorithmName(AllReduceAlgorithm algorithm) {
  switch (algorithm) {
    case AllReduceAlgorithm::kDoubling:
      return "doubling";
    case AllReduceAlgorithm::kHalving:
      return "halving";
    case AllReduceAlgorithm::kRing:
      return "ring";
  }
  return "?";
}

AllReduceAlgorithm ChooseAllReduce(int64_t bytes, int members) {
  if (members <= 2 || bytes <= kDoublingBytes) {
    return bytes <= kDoublingBytes ? AllReduceAlgorithm::kDoubling : AllReduceAlgorithm::kRing;
  }
  return bytes <= kHalvingBytes ? AllReduceAlgorithm::kHalving : AllReduceAlgorithm::kRing;
}

Schedule MakeAllReduce(AllReduceAlgorithm algorithm, int n, int me, int64_t count) {
  switch (algorithm) {
    case AllReduceAlgorithm::kDoubling:
      return DoublingAllReduce(n, me, count);
    case AllReduceAlgorithm::kHalving:
      return HalvingAllReduce(n, me, count);
    case AllReduceAlgorithm::kRing:
      break;
  }
  return RingAllReduce(n, me, count);
}

bool ChooseDirect(int64_t bytes, int members) { return members == 2 || bytes <= kDirectBytes; }

}  // namespace meshtrain::collective
