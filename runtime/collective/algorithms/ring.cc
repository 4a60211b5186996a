#include <algorithm>

#include "runtime/collective/algorithms/schedule.h"

namespace meshtrain::collective {
namespace {

int Wrap(int i, int n) { return (i % n + n) % n; }

// n messages travel at once, each from member to member around the ring.
Round Around(int n, int me) {
  Round round;
  round.to = Wrap(me + 1, n);
  round.from = Wrap(me - 1, n);
  return round;
}

Part Of(Memory memory, std::span<const int64_t> bounds, int part) {
  return {memory, bounds[part], bounds[part + 1] - bounds[part]};
}

}  // namespace

Range PartOf(int64_t count, int64_t n, int64_t i) {
  // count * i would overflow from 2^63 / n elements on: quotient and remainder apart do not.
  const auto bound = [&](int64_t k) { return count / n * k + count % n * k / n; };
  return {bound(i), bound(i + 1) - bound(i)};
}

std::vector<int64_t> EvenBounds(int64_t count, int n) {
  std::vector<int64_t> bounds;
  for (int i = 0; i < n; ++i) bounds.push_back(PartOf(count, n, i).begin);
  bounds.push_back(count);
  return bounds;
}

Schedule RingAllReduce(int n, int me, int64_t count) {
  Schedule schedule;
  if (n == 1) {
    schedule.rounds.push_back(
        {.receive = {Memory::kOutput, 0, count}, .operand = {Memory::kInput, 0, count}});
    return schedule;
  }
  const std::vector<int64_t> bounds = EvenBounds(count, n);
  // Part p starts at member p and gathers the others' shares on its way; after n - 1 rounds it is
  // whole at member p - 1.
  for (int s = 0; s < n - 1; ++s) {
    Round round = Around(n, me);
    round.send = Of(s == 0 ? Memory::kInput : Memory::kOutput, bounds, Wrap(me - s, n));
    round.receive = Of(Memory::kOutput, bounds, Wrap(me - s - 1, n));
    round.operand = Of(Memory::kInput, bounds, Wrap(me - s - 1, n));
    round.reduce = true;
    schedule.rounds.push_back(round);
  }
  for (int s = 0; s < n - 1; ++s) {
    Round round = Around(n, me);
    round.send = Of(Memory::kOutput, bounds, Wrap(me + 1 - s, n));
    round.receive = Of(Memory::kOutput, bounds, Wrap(me - s, n));
    schedule.rounds.push_back(round);
  }
  return schedule;
}

Schedule RingReduceScatter(std::span<const int64_t> bounds, int me) {
  const int n = static_cast<int>(bounds.size()) - 1;
  Schedule schedule;
  const Part own = Of(Memory::kInput, bounds, me);
  const Part result = {Memory::kOutput, 0, own.count};
  if (n == 1) {
    schedule.rounds.push_back({.receive = result, .operand = own});
    return schedule;
  }
  int64_t largest = 0;
  for (int p = 0; p < n; ++p) largest = std::max(largest, bounds[p + 1] - bounds[p]);
  schedule.scratch = n > 2 ? 2 * largest : 0;
  // Part p starts at member p + 1 and arrives whole at member p. On its way it lies in one half of
  // the scratch while the one before it leaves from the other.
  for (int s = 0; s < n - 1; ++s) {
    Round round = Around(n, me);
    const int sent = Wrap(me - 1 - s, n), received = Wrap(me - 2 - s, n);
    round.send = Of(Memory::kInput, bounds, sent);
    if (s > 0) round.send = {Memory::kScratch, (s - 1) % 2 * largest, round.send.count};
    round.operand = Of(Memory::kInput, bounds, received);
    round.receive =
        s == n - 2 ? result : Part{Memory::kScratch, s % 2 * largest, round.operand.count};
    round.reduce = true;
    schedule.rounds.push_back(round);
  }
  return schedule;
}

Schedule RingAllGather(std::span<const int64_t> bounds, int me) {
  const int n = static_cast<int>(bounds.size()) - 1;
  Schedule schedule;
  const Part mine = Of(Memory::kOutput, bounds, me);
  schedule.rounds.push_back({.receive = mine, .operand = {Memory::kInput, 0, mine.count}});
  for (int s = 0; s < n - 1; ++s) {
    Round round = Around(n, me);
    round.send = Of(Memory::kOutput, bounds, Wrap(me - s, n));
    if (s == 0) round.send = {Memory::kInput, 0, mine.count};
    round.receive = Of(Memory::kOutput, bounds, Wrap(me - s - 1, n));
    schedule.rounds.push_back(round);
  }
  return schedule;
}

}  // namespace meshtrain::collective
