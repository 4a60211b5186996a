#include "runtime/collective/algorithms/schedule.h"

namespace meshtrain::collective {

Schedule DirectReduceScatter(std::span<const int64_t> bounds, int me) {
  const int n = static_cast<int>(bounds.size()) - 1;
  const Part own = {Memory::kInput, bounds[me], bounds[me + 1] - bounds[me]};
  const Part result = {Memory::kOutput, 0, own.count};
  Schedule schedule;
  if (n == 1) schedule.steps.push_back({.receive = result, .operand = own});
  for (int s = 1; s < n; ++s) {
    Step step;
    step.to = (me + s) % n;
    step.send = {Memory::kInput, bounds[step.to], bounds[step.to + 1] - bounds[step.to]};
    step.from = (me - s + n) % n;
    step.receive = result;
    step.operand = s == 1 ? own : result;
    step.reduce = true;
    schedule.steps.push_back(step);
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
  schedule.steps.push_back({.receive = {Memory::kOutput, receives[me].begin, receives[me].count},
                            .operand = {Memory::kInput, sends[me].begin, sends[me].count}});
  for (int s = 1; s < n; ++s) {
    Step step;
    step.to = (me + s) % n;
    step.send = {Memory::kInput, sends[step.to].begin, sends[step.to].count};
    step.from = (me - s + n) % n;
    step.receive = {Memory::kOutput, receives[step.from].begin, receives[step.from].count};
    schedule.steps.push_back(step);
  }
  return schedule;
}

Schedule TreeBroadcast(int n, int me, int root, int64_t count) {
  const int number = (me - root + n) % n;  // the root is 0
  Schedule schedule;
  Memory mine = Memory::kInput;
  if (number == 0) {
    schedule.steps.push_back(
        {.receive = {Memory::kOutput, 0, count}, .operand = {Memory::kInput, 0, count}});
  } else {
    schedule.steps.emplace_back();
    mine = Memory::kOutput;
  }
  // After the round of `distance`, numbers below 2 * distance have it.
  for (int distance = 1; distance < n; distance *= 2) {
    Step step;
    if (number < distance && number + distance < n) {
      step.to = (number + distance + root) % n;
      step.send = {mine, 0, count};
    } else if (number >= distance && number < 2 * distance) {
      step.from = (number - distance + root) % n;
      step.receive = {Memory::kOutput, 0, count};
    }
    schedule.steps.push_back(step);
  }
  return schedule;
}

}  // namespace meshtrain::collective
