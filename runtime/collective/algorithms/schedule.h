// Algorithms of collectives as values: for each member of a group, the list of messages that it
// sends and receives, and what it does with what it received. Pure; network.cc carries them out, a
// test plays all members against the plain sum.
//
// Kept true:
//   - A member takes its rounds in order, and within a round sends and receives at once. Round s of
//   a member matches round s of its partner: what `to` is sent at round s, that member receives at
//   its round s, count for count. Hence no buffering is needed for progress: the member that is
//   least far always finds its partners at its round.
//   - A send reads its memory as it stood before its round; what is received is in place after the
//     round.
//   - Every element of an all-reduce's result is computed by one member and then copied, except in
//     DoublingAllReduce, where all members apply the same operations to the same operands in the
//     same order: left is the lower member's. Either way all members end with the same bits.
// Counts and offsets are in elements (of any width). A part may be empty: then no message is sent.
//
// Sources: ring, halving and doubling after Thakur, Rabenseifner and Gropp, Optimization of
// Collective Communication Operations in MPICH, IJHPCA 2005.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace meshtrain::collective {

// What the caller gave to send, where the result goes, and memory for what lies between. Input may
// be the output.
enum class Memory : uint8_t { kInput, kOutput, kScratch };

struct Part {
  Memory memory = Memory::kInput;
  int64_t begin = 0;
  int64_t count = 0;
  friend bool operator==(const Part&, const Part&) = default;
};

struct Round {
  int to = -1;  // member; -1: sends nothing
  Part send;
  int from = -1;  // member; -1: receives nothing, but copies `operand` to `receive` where that is
                  // not empty
  Part receive;
  bool reduce = false;         // receive = operand (op) incoming, instead of receive = incoming
  Part operand;                // as long as `receive`
  bool incoming_left = false;  // receive = incoming (op) operand
};

struct Schedule {
  std::vector<Round> rounds;
  int64_t scratch = 0;   // elements
  bool ordered = false;  // reductions need FindOrderedReduce
};

struct Range {
  int64_t begin = 0;
  int64_t count = 0;
};

// Part i of `count` elements in n nearly equal ones: begins at count * i / n.
Range PartOf(int64_t count, int64_t n, int64_t i);
// Their bounds: n + 1 of them.
std::vector<int64_t> EvenBounds(int64_t count, int n);

// --- all-reduce of `count` elements
// 2 (n-1) rounds, 2 (n-1)/n of the input from each member.
Schedule RingAllReduce(int n, int me, int64_t count);
// About log2(n) rounds of the whole input (two more when n is no power of two): for few bytes.
Schedule DoublingAllReduce(int n, int me, int64_t count);
// About 2 log2(n) rounds; for a power of two the ring's bytes, else up to twice the input more from
// some.
Schedule HalvingAllReduce(int n, int me, int64_t count);

// --- reduce-scatter: the input is n parts (bounds: n + 1 offsets), member m's output is the
// reduction of part m.
Schedule RingReduceScatter(std::span<const int64_t> bounds, int me);
// The same bytes in messages that depend on nothing: for few bytes.
Schedule DirectReduceScatter(std::span<const int64_t> bounds, int me);

// --- all-gather: member m's input is part m of everyone's output.
Schedule RingAllGather(std::span<const int64_t> bounds, int me);
Schedule DirectAllGather(std::span<const int64_t> bounds, int me);

// --- all-to-all: sends[p] of the input goes to member p, receives[p] of the output comes from it
// (p == me: a copy). What p is sent must be as long as what it receives of us; empty where there is
// nothing.
Schedule PairwiseAllToAll(std::span<const Range> sends, std::span<const Range> receives, int me);

// --- broadcast of the root's input to everyone's output, along a binomial tree.
Schedule TreeBroadcast(int n, int me, int root, int64_t count);

}  // namespace meshtrain::collective
