// Plays all members of a schedule against the plain sum, under the least kind conditions: a message
// is taken only when its receiver is at the round that expects it, and nothing is buffered.
#include "runtime/collective/algorithms/schedule.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <functional>
#include <iostream>
#include <random>
#include <string>

#include "runtime/collective/algorithms/choose.h"

namespace meshtrain::collective {
namespace {

uint64_t Seed() {
  const char* given = std::getenv("MT_TEST_SEED");
  const uint64_t seed = given != nullptr ? std::strtoull(given, nullptr, 10) : 4711;
  std::cout << "MT_TEST_SEED=" << seed << "\n";
  return seed;
}

// Values are words over the members whose parts are in them, in the order of the operations: "0123"
// or "(1 0)". Bits are equal on all members only if the words are.
using Word = std::string;
using Words = std::vector<Word>;

Word Combine(const Word& left, const Word& right) { return "(" + left + "+" + right + ")"; }
// Which inputs a word holds, each once.
std::string Inputs(const Word& word) {
  std::string digits;
  for (const char c : word) {
    if (c >= '0' && c <= '9') digits += c;
  }
  std::sort(digits.begin(), digits.end());
  return digits;
}

struct Player {
  Schedule schedule;
  Words input, output, scratch;
  bool in_place = false;
  size_t at = 0;                               // round
  bool sent = false, received = false;         // of that round
  Words outgoing;                              // what the round sends, as it stood before the round
  int64_t sent_count = 0, received_count = 0;  // elements, in all
  int sends = 0;

  Words& Of(Memory memory) {
    return memory == Memory::kInput && !in_place ? input
           : memory == Memory::kScratch          ? scratch
                                                 : output;
  }
  Words Read(const Part& part) {
    Words& from = Of(part.memory);
    EXPECT_LE(part.begin + part.count, static_cast<int64_t>(from.size()));
    return Words(from.begin() + part.begin, from.begin() + part.begin + part.count);
  }
  void Write(const Part& part, const Words& words) {
    Words& to = Of(part.memory);
    EXPECT_EQ(part.count, static_cast<int64_t>(words.size()));
    EXPECT_LE(part.begin + part.count, static_cast<int64_t>(to.size()));
    std::copy(words.begin(), words.end(), to.begin() + part.begin);
  }
  bool Sends() const { return schedule.rounds[at].to >= 0 && schedule.rounds[at].send.count > 0; }
  bool Receives() const {
    return schedule.rounds[at].from >= 0 && schedule.rounds[at].receive.count > 0;
  }
  bool done() const { return at == schedule.rounds.size(); }
  void Begin() {
    if (done()) return;
    const Round& round = schedule.rounds[at];
    sent = !Sends();
    received = !Receives();
    outgoing = Sends() ? Read(round.send) : Words{};
    if (round.from < 0 && round.receive.count > 0) Write(round.receive, Read(round.operand));
  }
  void Take(const Words& incoming) {
    const Round& round = schedule.rounds[at];
    Words result = incoming;
    if (round.reduce) {
      const Words operand = Read(round.operand);
      for (size_t i = 0; i < result.size(); ++i) {
        result[i] = round.incoming_left ? Combine(incoming[i], operand[i])
                                        : Combine(operand[i], incoming[i]);
      }
    }
    Write(round.receive, result);
    received = true;
  }
};

// In an order that the seed decides. Fails the test when all are stuck or a message is not what its
// receiver expects.
void Play(std::vector<Player>& players, std::mt19937_64& random) {
  for (Player& p : players) p.Begin();
  const int n = static_cast<int>(players.size());
  std::vector<int> order(n);
  for (int i = 0; i < n; ++i) order[i] = i;
  while (true) {
    bool moved = false, all_done = true;
    std::shuffle(order.begin(), order.end(), random);
    for (const int me : order) {
      Player& p = players[me];
      if (p.done()) continue;
      all_done = false;
      if (!p.sent) {
        Player& peer = players[p.schedule.rounds[p.at].to];
        // Taken only when the peer is at the same round and expects it.
        if (!peer.done() && peer.at == p.at && !peer.received) {
          const Round& expects = peer.schedule.rounds[peer.at];
          ASSERT_EQ(expects.from, me) << "round " << p.at;
          ASSERT_EQ(expects.receive.count, p.schedule.rounds[p.at].send.count) << "round " << p.at;
          peer.Take(p.outgoing);
          p.sent = true;
          p.sent_count += static_cast<int64_t>(p.outgoing.size());
          peer.received_count += static_cast<int64_t>(p.outgoing.size());
          ++p.sends;
          moved = true;
        }
      }
      if (p.sent && p.received) {
        ++p.at;
        p.Begin();
        moved = true;
      }
    }
    if (all_done) return;
    ASSERT_TRUE(moved) << "all members wait for each other";
  }
}

std::vector<Player> Players(int n, int64_t input, int64_t output, bool in_place,
                            const std::function<Schedule(int me)>& make) {
  std::vector<Player> players(n);
  for (int me = 0; me < n; ++me) {
    Player& p = players[me];
    p.schedule = make(me);
    p.in_place = in_place;
    p.input.assign(input, std::string(1, static_cast<char>('0' + me)));
    p.output.assign(output, in_place ? std::string(1, static_cast<char>('0' + me)) : "?");
    p.scratch.assign(p.schedule.scratch, "?");
  }
  return players;
}

std::string Everyone(int n) { return std::string("0123456789").substr(0, n); }

// Counts of every kind for n members: none, fewer than members, just as many, uneven, more.
std::vector<int64_t> Counts(int n, std::mt19937_64& random) {
  return {0, 1, n - 1, n, n + 1, 7 * n - 2, static_cast<int64_t>(random() % 100)};
}

TEST(ScheduleTest, AllReducesGiveEveryMemberTheSameWordOfAllInputs) {
  std::mt19937_64 random(Seed());
  for (int n = 1; n <= 9; ++n) {
    for (const int64_t count : Counts(n, random)) {
      for (const bool in_place : {false, true}) {
        for (const auto algorithm : {AllReduceAlgorithm::kRing, AllReduceAlgorithm::kDoubling,
                                     AllReduceAlgorithm::kHalving}) {
          SCOPED_TRACE(std::string(AllReduceAlgorithmName(algorithm)) + " n=" + std::to_string(n) +
                       " count=" + std::to_string(count) + (in_place ? " in place" : ""));
          auto players = Players(n, count, count, in_place,
                                 [&](int me) { return MakeAllReduce(algorithm, n, me, count); });
          Play(players, random);
          if (HasFatalFailure()) return;
          for (int64_t i = 0; i < count; ++i) {
            ASSERT_EQ(Inputs(players[0].output[i]), Everyone(n));
            for (const Player& p : players) {
              // Doubling: every member computes, but the same word. Else one computes and the
              // others copy.
              ASSERT_EQ(p.output[i], players[0].output[i]) << i;
            }
          }
        }
      }
    }
  }
}

TEST(ScheduleTest, RingAndHalvingSendTheBytesOfTheRingFormula) {
  std::mt19937_64 random(Seed());
  for (int n = 2; n <= 9; ++n) {
    const int64_t count = 24 * n;  // that n divides
    auto ring =
        Players(n, count, count, false, [&](int me) { return RingAllReduce(n, me, count); });
    Play(ring, random);
    for (const Player& p : ring) {
      EXPECT_EQ(p.sent_count, 2 * (n - 1) * count / n);
      EXPECT_EQ(p.received_count, 2 * (n - 1) * count / n);
      EXPECT_EQ(p.sends, 2 * (n - 1));
    }
  }
  for (const int n : {2, 4, 8}) {
    const int64_t count = 24 * n;
    auto halving =
        Players(n, count, count, false, [&](int me) { return HalvingAllReduce(n, me, count); });
    Play(halving, random);
    for (const Player& p : halving) {
      EXPECT_EQ(p.sent_count, 2 * (n - 1) * count / n);
      EXPECT_EQ(p.sends, n == 2 ? 2 : n == 4 ? 4 : 6);  // 2 log2(n)
    }
    auto doubling =
        Players(n, count, count, false, [&](int me) { return DoublingAllReduce(n, me, count); });
    Play(doubling, random);
    for (const Player& p : doubling) EXPECT_EQ(p.sends, n == 2 ? 1 : n == 4 ? 2 : 3);  // log2(n)
  }
  // Uneven counts: within one element a round.
  auto uneven = Players(7, 100, 100, false, [&](int me) { return RingAllReduce(7, me, 100); });
  Play(uneven, random);
  for (const Player& p : uneven) EXPECT_LE(std::abs(p.sent_count - 2 * 6 * 100 / 7), 12);
}

std::vector<int64_t> RandomBounds(int n, std::mt19937_64& random) {
  std::vector<int64_t> bounds = {0};
  for (int i = 0; i < n; ++i) {
    bounds.push_back(bounds.back() + static_cast<int64_t>(random() % 4 == 0 ? 0 : random() % 9));
  }
  return bounds;
}

TEST(ScheduleTest, ReduceScattersGiveEachMemberItsPart) {
  std::mt19937_64 random(Seed());
  for (int n = 1; n <= 9; ++n) {
    for (int round = 0; round < 4; ++round) {
      const std::vector<int64_t> bounds = RandomBounds(n, random);
      for (const bool ring : {true, false}) {
        SCOPED_TRACE((ring ? "ring n=" : "direct n=") + std::to_string(n));
        auto players = Players(n, bounds[n], bounds[n], false, [&](int me) {
          return ring ? RingReduceScatter(bounds, me) : DirectReduceScatter(bounds, me);
        });
        Play(players, random);
        if (HasFatalFailure()) return;
        for (int me = 0; me < n; ++me) {
          EXPECT_EQ(players[me].sent_count, bounds[n] - (bounds[me + 1] - bounds[me]));
          for (int64_t i = 0; i < bounds[me + 1] - bounds[me]; ++i) {
            ASSERT_EQ(Inputs(players[me].output[i]), Everyone(n));
          }
        }
      }
    }
  }
}

TEST(ScheduleTest, ReduceScatterTakesTheRightElements) {
  std::mt19937_64 random(Seed());
  for (int n = 2; n <= 9; ++n) {
    const std::vector<int64_t> bounds = RandomBounds(n, random);
    for (const bool ring : {true, false}) {
      auto players = Players(n, bounds[n], bounds[n], false, [&](int me) {
        return ring ? RingReduceScatter(bounds, me) : DirectReduceScatter(bounds, me);
      });
      for (Player& p : players) {
        for (int64_t i = 0; i < bounds[n]; ++i) p.input[i] = "e" + std::string(i, '\'');
      }
      Play(players, random);
      if (HasFatalFailure()) return;
      for (int me = 0; me < n; ++me) {
        for (int64_t i = 0; i < bounds[me + 1] - bounds[me]; ++i) {
          const Word& word = players[me].output[i];
          // n times the element's own mark and nothing else.
          EXPECT_EQ(std::count(word.begin(), word.end(), 'e'), n);
          EXPECT_EQ(std::count(word.begin(), word.end(), '\''), n * (bounds[me] + i));
        }
      }
    }
  }
}

TEST(ScheduleTest, AllGathersJoinTheParts) {
  std::mt19937_64 random(Seed());
  for (int n = 1; n <= 9; ++n) {
    for (int round = 0; round < 4; ++round) {
      const std::vector<int64_t> bounds = RandomBounds(n, random);
      for (const bool ring : {true, false}) {
        auto players = Players(n, bounds[n], bounds[n], false, [&](int me) {
          return ring ? RingAllGather(bounds, me) : DirectAllGather(bounds, me);
        });
        for (int me = 0; me < n; ++me) {
          for (int64_t i = 0; i < bounds[me + 1] - bounds[me]; ++i) {
            players[me].input[i] = std::to_string(me) + "." + std::to_string(i);
          }
        }
        Play(players, random);
        if (HasFatalFailure()) return;
        for (const Player& p : players) {
          for (int m = 0; m < n; ++m) {
            for (int64_t i = bounds[m]; i < bounds[m + 1]; ++i) {
              ASSERT_EQ(p.output[i], std::to_string(m) + "." + std::to_string(i - bounds[m]));
            }
          }
        }
      }
    }
  }
}

TEST(ScheduleTest, AllToAllTakesEachPairsElements) {
  std::mt19937_64 random(Seed());
  for (int n = 1; n <= 9; ++n) {
    std::vector<std::vector<int64_t>> counts(n, std::vector<int64_t>(n));
    for (auto& row : counts) {
      for (int64_t& c : row) c = static_cast<int64_t>(random() % 3 == 0 ? 0 : random() % 5);
    }
    const auto ranges = [&](const std::function<int64_t(int)>& count) {
      std::vector<Range> made;
      int64_t at = 0;
      for (int p = 0; p < n; ++p) {
        made.push_back({at, count(p)});
        at += count(p);
      }
      return made;
    };
    const auto sends = [&](int me) { return ranges([&](int p) { return counts[me][p]; }); };
    const auto receives = [&](int me) { return ranges([&](int p) { return counts[p][me]; }); };
    auto players = Players(n, 50, 50, false,
                           [&](int me) { return PairwiseAllToAll(sends(me), receives(me), me); });
    for (int me = 0; me < n; ++me) {
      for (int p = 0; p < n; ++p) {
        const Range r = sends(me)[p];
        for (int64_t i = 0; i < r.count; ++i) {
          players[me].input[r.begin + i] =
              std::to_string(me) + ">" + std::to_string(p) + "." + std::to_string(i);
        }
      }
    }
    Play(players, random);
    if (HasFatalFailure()) return;
    for (int me = 0; me < n; ++me) {
      for (int p = 0; p < n; ++p) {
        const Range r = receives(me)[p];
        for (int64_t i = 0; i < r.count; ++i) {
          ASSERT_EQ(players[me].output[r.begin + i],
                    std::to_string(p) + ">" + std::to_string(me) + "." + std::to_string(i));
        }
      }
    }
  }
}

TEST(ScheduleTest, BroadcastReachesAllFromEveryRootInLogarithmicallyManySteps) {
  std::mt19937_64 random(Seed());
  for (int n = 1; n <= 9; ++n) {
    for (int root = 0; root < n; ++root) {
      for (const int64_t count : {0, 1, 17}) {
        auto players = Players(n, count, count, false,
                               [&](int me) { return TreeBroadcast(n, me, root, count); });
        Play(players, random);
        if (HasFatalFailure()) return;
        for (const Player& p : players) {
          EXPECT_LE(p.sends, 4);
          for (const Word& word : p.output) ASSERT_EQ(word, std::to_string(root));
        }
      }
    }
  }
}

// Every member has as many rounds as the others: numbers match.
TEST(ScheduleTest, MembersHaveEquallyManySteps) {
  for (int n = 1; n <= 9; ++n) {
    for (const auto algorithm :
         {AllReduceAlgorithm::kRing, AllReduceAlgorithm::kDoubling, AllReduceAlgorithm::kHalving}) {
      for (int me = 1; me < n; ++me) {
        EXPECT_EQ(MakeAllReduce(algorithm, n, me, 100).rounds.size(),
                  MakeAllReduce(algorithm, n, 0, 100).rounds.size());
      }
    }
  }
}

TEST(ScheduleTest, PartsAreNearlyEqualAndCoverAll) {
  for (const int64_t count :
       {int64_t{0}, int64_t{1}, int64_t{7}, int64_t{100}, (int64_t{1} << 62) + 3}) {
    for (int n = 1; n <= 9; ++n) {
      int64_t next = 0;
      for (int i = 0; i < n; ++i) {
        const Range part = PartOf(count, n, i);
        EXPECT_EQ(part.begin, next);
        EXPECT_LE(std::abs(part.count - count / n), 1);
        next += part.count;
      }
      EXPECT_EQ(next, count);
      EXPECT_EQ(EvenBounds(count, n).back(), count);
    }
  }
}

TEST(ChooseTest, SmallAllReducesDoubleAndLargeOnesGoAround) {
  EXPECT_EQ(ChooseAllReduce(1024, 4), AllReduceAlgorithm::kDoubling);
  EXPECT_EQ(ChooseAllReduce(64 << 20, 4), AllReduceAlgorithm::kRing);
  // More members never ask for an algorithm of more rounds at the same size, nor more bytes for one
  // of more bytes.
  for (int n = 2; n <= 64; n *= 2) {
    auto before = AllReduceAlgorithm::kDoubling;
    for (int64_t bytes = 1; bytes <= 1 << 28; bytes *= 2) {
      const auto now = ChooseAllReduce(bytes, n);
      EXPECT_GE(static_cast<int>(now), static_cast<int>(before)) << bytes;
      before = now;
    }
  }
}

}  // namespace
}  // namespace meshtrain::collective
