#include <bit>

#include "runtime/collective/algorithms/schedule.h"

namespace meshtrain::collective {
namespace {

// Doubling and halving want a power of two. Of n = power + rest members, the first 2 * rest stand
// in pairs: the odd one gives its input to the even one, and gets the result from it in the end.
// Those that remain are numbered 0 .. power-1.
struct Fold {
  int power, rest;
  explicit Fold(int n)
      : power(static_cast<int>(std::bit_floor(static_cast<unsigned>(n)))), rest(n - power) {}
  bool Gives(int member) const { return member < 2 * rest && member % 2 == 1; }
  bool Takes(int member) const { return member < 2 * rest && member % 2 == 0; }
  int Number(int member) const { return member < 2 * rest ? member / 2 : member - rest; }
  int Member(int number) const { return number < rest ? 2 * number : number + rest; }
};

// The round before and the one after: every member has both, most of them empty, so that rounds
// keep their numbers.
Round FoldIn(const Fold& fold, int me, int64_t count) {
  Round round;
  if (fold.Gives(me)) {
    round.to = me - 1;
    round.send = {Memory::kInput, 0, count};
  } else if (fold.Takes(me)) {
    round.from = me + 1;
    round.receive = {Memory::kOutput, 0, count};
    round.operand = {Memory::kInput, 0, count};
    round.reduce = true;
  }
  return round;
}

Round FoldOut(const Fold& fold, int me, int64_t count) {
  Round round;
  if (fold.Takes(me)) {
    round.to = me + 1;
    round.send = {Memory::kOutput, 0, count};
  } else if (fold.Gives(me)) {
    round.from = me - 1;
    round.receive = {Memory::kOutput, 0, count};
  }
  return round;
}

}  // namespace

Schedule DoublingAllReduce(int n, int me, int64_t count) {
  Schedule schedule;
  schedule.ordered = true;
  if (n == 1) {
    schedule.rounds.push_back(
        {.receive = {Memory::kOutput, 0, count}, .operand = {Memory::kInput, 0, count}});
    return schedule;
  }
  const Fold fold(n);
  if (fold.rest > 0) schedule.rounds.push_back(FoldIn(fold, me, count));
  Memory mine = fold.Takes(me) ? Memory::kOutput : Memory::kInput;
  for (int distance = 1; distance < fold.power; distance *= 2) {
    Round round;
    if (!fold.Gives(me)) {
      const int number = fold.Number(me), partner = number ^ distance;
      round.to = round.from = fold.Member(partner);
      round.send = {mine, 0, count};
      round.operand = {mine, 0, count};
      round.receive = {Memory::kOutput, 0, count};
      round.reduce = true;
      round.incoming_left = partner < number;
      mine = Memory::kOutput;
    }
    schedule.rounds.push_back(round);
  }
  if (fold.rest > 0) schedule.rounds.push_back(FoldOut(fold, me, count));
  return schedule;
}

Schedule HalvingAllReduce(int n, int me, int64_t count) {
  if (n == 1) return RingAllReduce(1, me, count);
  const Fold fold(n);
  Schedule schedule;
  if (fold.rest > 0) schedule.rounds.push_back(FoldIn(fold, me, count));
  const std::vector<int64_t> bounds = EvenBounds(count, fold.power);
  const auto parts = [&](Memory memory, int first, int last) {
    return Part{memory, bounds[first], bounds[last] - bounds[first]};
  };
  const int number = fold.Number(me);
  Memory mine = fold.Takes(me) ? Memory::kOutput : Memory::kInput;
  int first = 0, last = fold.power;  // the parts that are still ours to reduce
  for (int distance = fold.power / 2; distance > 0; distance /= 2) {
    Round round;
    if (!fold.Gives(me)) {
      const int middle = (first + last) / 2;
      const bool lower = (number & distance) == 0;
      round.to = round.from = fold.Member(number ^ distance);
      round.send = lower ? parts(mine, middle, last) : parts(mine, first, middle);
      (lower ? last : first) = middle;
      round.operand = parts(mine, first, last);
      round.receive = parts(Memory::kOutput, first, last);
      round.reduce = true;
      mine = Memory::kOutput;
    }
    schedule.rounds.push_back(round);
  }
  for (int distance = 1; distance < fold.power; distance *= 2) {
    Round round;
    if (!fold.Gives(me)) {
      const bool lower = (number & distance) == 0;
      round.to = round.from = fold.Member(number ^ distance);
      round.send = parts(Memory::kOutput, first, last);
      round.receive = lower ? parts(Memory::kOutput, last, last + distance)
                            : parts(Memory::kOutput, first - distance, first);
      (lower ? last : first) += lower ? distance : -distance;
    }
    schedule.rounds.push_back(round);
  }
  if (fold.rest > 0) schedule.rounds.push_back(FoldOut(fold, me, count));
  return schedule;
}

}  // namespace meshtrain::collective
