#include "runtime/collective/algorithms/schedule.h"

namespace meshtrain::collective {

Schedule DirectReduceScatter(std::span<const int64_t> bounds, int me) {
  const int n = static_cast<int>(bounds.size()) - 1;
  const Part own = {Memory::kInput, bounds[me], bounds[me + 1] - bounds[me]};
  const Part result = {Memory::kOutput, 0, own.count};
  Schedule schedule;
  if (n == 1) schedule.rounds.push_back({.receive = result, .operand = own});
  for (int s = 1; s < n; ++s) {
    Round round;
    round.to = (me + s) % n;
    round.send = {Memory::kInput, bounds[round.to], bounds[round.to + 1] - bounds[round.to]};
    round.from = (me - s + n) % n;
    round.receive = result;
    round.operand = s == 1 ? own : result;
    round.reduce = true;
    schedule.rounds.push_back(round);
  }
  return schedule;
}

Schedule DirectAllGather(std::span<const int64_t> bounds, int me) {
  const int n = static_cast<int>(bounds.size()) - 1;
  const int64_t mine = bounds[me + 1] - bounds[me];
  std::vector<Range> sends(n, {0, mine}), receives;
  for (int p = 0; p < n; ++p) receives.push_back({bounds[p], bounds[p + 1] - bounds[p]});
  return PairwiseAllToAll(sends, receives, me);
}

Schedule PairwiseAllToAll(std::span<const Range> sends, std::span<const Range> receives, int me) {
  const int n = static_cast<int>(sends.size());
  Schedule schedule;
  schedule.rounds.push_back({.receive = {Memory::kOutput, receives[me].begin, receives[me].count},
                             .operand = {Memory::kInput, sends[me].begin, sends[me].count}});
  for (int s = 1; s < n; ++s) {
    Round round;
    round.to = (me + s) % n;
    round.send = {Memory::kInput, sends[round.to].begin, sends[round.to].count};
    round.from = (me - s + n) % n;
    round.receive = {Memory::kOutput, receives[round.from].begin, receives[round.from].count};
    schedule.rounds.push_back(round);
  }
  return schedule;
}

Schedule TreeBroadcast(int n, int me, int root, int64_t count) {
  const int number = (me - root + n) % n;  // the root is 0
  Schedule schedule;
  Memory mine = Memory::kInput;
  if (number == 0) {
    schedule.rounds.push_back(
        {.receive = {Memory::kOutput, 0, count}, .operand = {Memory::kInput, 0, count}});
  } else {
    schedule.rounds.emplace_back();
    mine = Memory::kOutput;
  }
  // After the round of `distance`, numbers below 2 * distance have it.
  for (int distance = 1; distance < n; distance *= 2) {
    Round round;
    if (number < distance && number + distance < n) {
      round.to = (number + distance + root) % n;
      round.send = {mine, 0, count};
    } else if (number >= distance && number < 2 * distance) {
      round.from = (number - distance + root) % n;
      round.receive = {Memory::kOutput, 0, count};
    }
    schedule.rounds.push_back(round);
  }
  return schedule;
}

}  // namespace meshtrain::collective
