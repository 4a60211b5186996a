#include "tests/contract/communicator_suite.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>

#include "tests/contract/communicator_part.h"

namespace meshtrain::collective {
namespace {

using namespace suite;  // NOLINT: the test's own words
using mesh::DType;
using mesh::Reduction;

// None, one element, a few, more than one block, more than one round of shared memory or frame of
// the network.
const int64_t kCounts[] = {0, 1, 5, 9001, 300'011};
// Four members' payloads of so many floats are more than any cache holds.
constexpr int64_t kPastCaches = 2'200'003;
const DType kDTypes[] = {DType::kF32, DType::kF64,  DType::kI32, DType::kI64,
                         DType::kU8,  DType::kBF16, DType::kF16};
// The largest on one group: it takes long, and groups differ in who sends what to whom, not in how.
bool Skips(const Communicator& c, const std::vector<int>& axes, int64_t count) {
  return count > 10'000 && (c.mesh().ToString() != "batch=4" || axes != std::vector<int>{0});
}

TEST_P(CommunicatorSuite, AllReduceGivesEachMemberTheReductionOfItsGroup) {
  ForEachNumberOfProcesses(GetParam(), [](Member& member) {
    return ForEachGroup(member, [&](Communicator& c, const std::vector<int>& axes) -> std::string {
      std::vector<int64_t> counts(std::begin(kCounts), std::end(kCounts));
      counts.push_back(kPastCaches);
      for (const int64_t count : counts) {
        if (Skips(c, axes, count)) continue;
        for (const DType dtype : kDTypes) {
          if (count != 5 && dtype != DType::kF32) continue;
          for (const Reduction reduction : {Reduction::kSum, Reduction::kMax, Reduction::kMin}) {
            if (count != 5 && reduction != Reduction::kSum) continue;
            for (const Where where : {Where::kApart, Where::kInPlace, Where::kBucket}) {
              if (count == 5 && where != Where::kInPlace && dtype != DType::kF64) continue;
              if (count == kPastCaches && where != Where::kBucket) continue;
              Part part(member, c, dtype, count, count, where);
              const Status status =
                  c.AllReduce({axes, dtype, "test"}, reduction, count, part.participants());
              if (!status.ok()) return status.ToString();
              const std::string text = part.Check(
                  axes, count, [&](const std::vector<int64_t>& group, int64_t, int64_t i) {
                    double want = Element(group[0], i);
                    for (size_t k = 1; k < group.size(); ++k) {
                      want = Reduce(reduction, want, Element(group[k], i));
                    }
                    return want;
                  });
              if (!text.empty()) {
                return std::to_string(count) + " " + std::string(DTypeName(dtype)) + ": " + text;
              }
            }
          }
        }
      }
      return "";
    });
  });
}

TEST_P(CommunicatorSuite, AllGatherJoinsTheGroupInItsOrder) {
  ForEachNumberOfProcesses(GetParam(), [](Member& member) {
    return ForEachGroup(member, [&](Communicator& c, const std::vector<int>& axes) -> std::string {
      const int64_t n = SizeOf(c, axes);
      for (const int64_t count : kCounts) {
        if (Skips(c, axes, count)) continue;
        Part part(member, c, DType::kF32, count, n * count, Where::kApart);
        const Status status = c.AllGather({axes, DType::kF32, "test"}, count, part.participants());
        if (!status.ok()) return status.ToString();
        const std::string text =
            part.Check(axes, n * count, [&](const std::vector<int64_t>& group, int64_t, int64_t i) {
              return Element(group[i / count], i % count);
            });
        if (!text.empty()) return std::to_string(count) + ": " + text;
      }
      return "";
    });
  });
}

TEST_P(CommunicatorSuite, ReduceScatterGivesEachMemberItsBlockReduced) {
  ForEachNumberOfProcesses(GetParam(), [](Member& member) {
    return ForEachGroup(member, [&](Communicator& c, const std::vector<int>& axes) -> std::string {
      const int64_t n = SizeOf(c, axes);
      for (const int64_t count : kCounts) {
        if (Skips(c, axes, count)) continue;
        for (const Reduction reduction : {Reduction::kSum, Reduction::kMax}) {
          if (count > 5 && reduction != Reduction::kSum) continue;
          Part part(member, c, DType::kF64, n * count, count, Where::kApart);
          const Status status =
              c.ReduceScatter({axes, DType::kF64, "test"}, reduction, count, part.participants());
          if (!status.ok()) return status.ToString();
          const std::string text = part.Check(
              axes, count, [&](const std::vector<int64_t>& group, int64_t place, int64_t i) {
                const int64_t at = place * count + i;
                double want = Element(group[0], at);
                for (size_t k = 1; k < group.size(); ++k) {
                  want = Reduce(reduction, want, Element(group[k], at));
                }
                return want;
              });
          if (!text.empty()) return std::to_string(count) + ": " + text;
        }
      }
      return "";
    });
  });
}

TEST_P(CommunicatorSuite, AllToAllSendsBlockIToMemberI) {
  ForEachNumberOfProcesses(GetParam(), [](Member& member) {
    return ForEachGroup(member, [&](Communicator& c, const std::vector<int>& axes) -> std::string {
      const int64_t n = SizeOf(c, axes);
      for (const int64_t count : kCounts) {
        if (Skips(c, axes, count)) continue;
        Part part(member, c, DType::kI32, n * count, n * count, Where::kApart);
        const Status status = c.AllToAll({axes, DType::kI32, "test"}, count, part.participants());
        if (!status.ok()) return status.ToString();
        const std::string text = part.Check(
            axes, n * count, [&](const std::vector<int64_t>& group, int64_t place, int64_t i) {
              return Element(group[i / count], place * count + i % count);
            });
        if (!text.empty()) return std::to_string(count) + ": " + text;
      }
      return "";
    });
  });
}

TEST_P(CommunicatorSuite, BroadcastGivesEveryoneTheRoots) {
  ForEachNumberOfProcesses(GetParam(), [](Member& member) {
    return ForEachGroup(member, [&](Communicator& c, const std::vector<int>& axes) -> std::string {
      const int64_t n = SizeOf(c, axes);
      for (const int64_t count : kCounts) {
        if (Skips(c, axes, count)) continue;
        for (int64_t root = count > 5 ? n - 1 : 0; root < n; ++root) {
          for (const Where where : {Where::kApart, Where::kInPlace}) {
            Part part(member, c, DType::kI64, count, count, where);
            const Status status =
                c.Broadcast({axes, DType::kI64, "test"}, root, count, part.participants());
            if (!status.ok()) return status.ToString();
            const std::string text =
                part.Check(axes, count, [&](const std::vector<int64_t>& group, int64_t, int64_t i) {
                  return Element(group[root], i);
                });
            if (!text.empty()) {
              return std::to_string(count) + " root " + std::to_string(root) + ": " + text;
            }
          }
        }
      }
      return "";
    });
  });
}

TEST_P(CommunicatorSuite, PermuteGivesEachMemberItsSourceOrZeros) {
  ForEachNumberOfProcesses(GetParam(), [](Member& member) {
    return ForEachGroup(member, [&](Communicator& c, const std::vector<int>& axes) -> std::string {
      const int64_t n = SizeOf(c, axes);
      // To the right, to the left around, all from the last, and nothing at all.
      std::vector<std::vector<int64_t>> patterns(4, std::vector<int64_t>(n));
      for (int64_t m = 0; m < n; ++m) {
        patterns[0][m] = m - 1;
        patterns[1][m] = (m + 1) % n;
        patterns[2][m] = n - 1;
        patterns[3][m] = -1;
      }
      for (const int64_t count : kCounts) {
        if (Skips(c, axes, count)) continue;
        for (const auto& source_of : patterns) {
          if (count > 9001 && &source_of != &patterns[1]) continue;
          Part part(member, c, DType::kF32, count, count, Where::kApart);
          const Status status =
              c.Permute({axes, DType::kF32, "test"}, source_of, count, part.participants());
          if (!status.ok()) return status.ToString();
          const std::string text = part.Check(
              axes, count, [&](const std::vector<int64_t>& group, int64_t place, int64_t i) {
                const int64_t source = source_of[place];
                return source < 0 ? 0.0 : Element(group[source], i);
              });
          if (!text.empty()) return ::testing::PrintToString(source_of) + ": " + text;
        }
      }
      return "";
    });
  });
}

std::string Digest(const std::string& bytes) {
  return std::to_string(std::hash<std::string>{}(bytes)) + " ";
}

// Magnitudes far apart, so that another order of adding gives other bits; NaNs of different
// payloads and infinities of both signs, zeros of both signs. Sizes of every algorithm.
TEST_P(CommunicatorSuite, AllReducesAreEqualBitForBitOnEveryMemberAndFromRunToRun) {
  for (int processes = 1; processes <= GetParam().max_processes; ++processes) {
    SCOPED_TRACE(std::to_string(processes) + " processes");
    const std::vector<std::string> texts =
        GetParam().run(processes, [&](Member& member) -> std::string {
          if (!member.connected.ok()) return member.connected.ToString();
          const std::unique_ptr<Communicator> c =
              member.make(MeshOf("batch=8", processes, Deal::kBlocks));
          std::string text;
          for (const int64_t count : {3, 1000, 7001, 150'000}) {
            for (const Reduction reduction : {Reduction::kSum, Reduction::kMax}) {
              for (int run = 0; run < 2; ++run) {
                Part part(member, *c, DType::kF32, count, count,
                          run == 0 ? Where::kApart : Where::kBucket);
                for (int64_t r = 0; r < 8; ++r) {
                  for (int64_t i = 0; i < count; ++i) {
                    part.Set(r, i,
                             std::ldexp(1.0 + 1e-7 * static_cast<double>(i * r),
                                        static_cast<int>(r * i % 29)));
                  }
                  part.Set(r, 0, r % 2 == 0 ? 0.0 : -0.0);
                  part.Set(r, 1, r >= 3 ? std::nan(std::to_string(100 + r).c_str()) : 1.0);
                  part.Set(r, 2, r == 5 ? -INFINITY : r == 6 ? INFINITY : 2.0);
                }
                const Status status =
                    c->AllReduce({{0}, DType::kF32, "test"}, reduction, count, part.participants());
                if (!status.ok()) return status.ToString();
                const std::vector<int64_t> ranks = c->mesh().LocalRanks(member.process);
                for (const int64_t r : ranks) {
                  if (part.bytes(r, count) != part.bytes(ranks[0], count)) {
                    return "two devices of one process differ";
                  }
                }
                const std::string digest = Digest(part.bytes(ranks[0], count));
                if (run == 1 && !text.ends_with(digest)) return "two runs differ";
                text += digest;
              }
            }
          }
          return text;
        });
    for (int p = 0; p < processes; ++p) EXPECT_EQ(texts[p], texts[0]) << "process " << p;
    EXPECT_EQ(std::count(texts[0].begin(), texts[0].end(), ' '), 4 * 2 * 2) << texts[0];
  }
}

TEST_P(CommunicatorSuite, MaxKeepsNan) {
  ForEachNumberOfProcesses(GetParam(), [](Member& member) -> std::string {
    const std::unique_ptr<Communicator> c =
        member.make(MeshOf("batch=4", member.processes, Deal::kBlocks));
    for (int64_t bad = 0; bad < 4; ++bad) {
      Part part(member, *c, DType::kF32, 2, 2, Where::kApart);
      part.Set(bad, 1, std::numeric_limits<double>::quiet_NaN());
      const Status status =
          c->AllReduce({{0}, DType::kF32, "test"}, Reduction::kMax, 2, part.participants());
      if (!status.ok()) return status.ToString();
      for (const int64_t r : c->mesh().LocalRanks(member.process)) {
        if (std::isnan(part.received(r, 0)) || !std::isnan(part.received(r, 1))) {
          return "NaN on rank " + std::to_string(bad);
        }
      }
    }
    return "";
  });
}

TEST_P(CommunicatorSuite, CountsTheBytesOfTheRing) {
  struct Case {
    const char* what;
    int64_t send, receive;
    std::function<int64_t(int64_t rank)> want;
    std::function<Status(Communicator& c, std::span<const Participant> p)> call;
  };
  const std::vector<int> axes = {0};  // 4 members of batch=4,model=2
  const std::vector<int64_t> right = {-1, 0, 1, 1};
  const Case cases[] = {
      {"all_reduce", 100, 100, [](int64_t) { return 2 * 3 * 400 / 4; },
       [&](Communicator& c, auto p) {
         return c.AllReduce({axes, DType::kF32, "t"}, Reduction::kSum, 100, p);
       }},
      {"all_gather", 100, 400, [](int64_t) { return 3 * 400; },
       [&](Communicator& c, auto p) {
         return c.AllGather({axes, DType::kF32, "t"}, 100, p);
       }},
      {"reduce_scatter", 400, 100, [](int64_t) { return 3 * 400; },
       [&](Communicator& c, auto p) {
         return c.ReduceScatter({axes, DType::kF32, "t"}, Reduction::kSum, 100, p);
       }},
      {"all_to_all", 400, 400, [](int64_t) { return 3 * 400; },
       [&](Communicator& c, auto p) {
         return c.AllToAll({axes, DType::kF32, "t"}, 100, p);
       }},
      {"broadcast", 100, 100, [](int64_t r) { return r / 2 == 2 ? 400 : 0; },
       [&](Communicator& c, auto p) {
         return c.Broadcast({axes, DType::kF32, "t"}, 2, 100, p);
       }},
      {"permute", 100, 100, [](int64_t r) { return r / 2 == 0   ? 400
                                                   : r / 2 == 1 ? 800
                                                                : 0; },
       [&](Communicator& c, auto p) {
         return c.Permute({axes, DType::kF32, "t"}, right, 100, p);
       }},
  };
  ForEachNumberOfProcesses(GetParam(), [&](Member& member) -> std::string {
    for (const Case& k : cases) {
      const std::unique_ptr<Communicator> c =
          member.make(MeshOf("batch=4,model=2", member.processes, Deal::kBlocks));
      const std::vector<int64_t> ours = c->mesh().LocalRanks(member.process);
      Part part(member, *c, DType::kF32, k.send, k.receive, Where::kApart);
      for (int i = 0; i < 2; ++i) {
        const Status status = k.call(*c, part.participants());
        if (!status.ok()) return status.ToString();
      }
      for (int64_t r = 0; r < 8; ++r) {
        const bool local = std::find(ours.begin(), ours.end(), r) != ours.end();
        const int64_t want = local ? 2 * k.want(r) : 0;
        if (c->BytesSent(r) != want) {
          return std::string(k.what) + " rank " + std::to_string(r) + ": expected " +
                 std::to_string(want) + ", got: " + std::to_string(c->BytesSent(r));
        }
      }
    }
    return "";
  });
}

// Calls of every kind, size and group after one another, the same in every process: what one leaves
// behind (slots, frames, buckets) must not reach the next.
TEST_P(CommunicatorSuite, ManyCallsInARowDoNotDisturbEachOther) {
  const char* given = std::getenv("MT_TEST_SEED");
  const uint64_t seed = given != nullptr ? std::strtoull(given, nullptr, 10) : 20261;
  SCOPED_TRACE("MT_TEST_SEED=" + std::to_string(seed));
  ForEachNumberOfProcesses(GetParam(), [&](Member& member) -> std::string {
    std::mt19937_64 random(seed);
    const std::unique_ptr<Communicator> c =
        member.make(MeshOf("a=2,b=2,c=2", member.processes, Deal::kBlocks));
    const std::vector<std::vector<int>> all_axes = {{0},    {1},    {2},      {0, 1},
                                                    {1, 2}, {2, 0}, {0, 1, 2}};
    for (int call = 0; call < 150; ++call) {
      const std::vector<int>& axes = all_axes[random() % all_axes.size()];
      const int64_t n = SizeOf(*c, axes);
      const int64_t counts[] = {1, 17, 3000, 20'000, 150'000};
      const int64_t count = counts[random() % (call % 10 == 0 ? 5 : 3)];
      const uint64_t kind = random() % 3;
      Part part(member, *c, DType::kF32, kind == 1 ? n * count : count,
                kind == 1 ? n * count : count,
                kind == 0 && random() % 2 == 0 ? Where::kInPlace : Where::kApart);
      Status status;
      std::string text;
      const GroupCall what{axes, DType::kF32, "call " + std::to_string(call)};
      if (kind == 0) {
        status = c->AllReduce(what, Reduction::kSum, count, part.participants());
      } else if (kind == 1) {
        status = c->AllToAll(what, count, part.participants());
      } else {
        status = c->Broadcast(what, call % n, count, part.participants());
      }
      if (!status.ok()) return status.ToString();
      text = part.Check(axes, kind == 1 ? n * count : count,
                        [&](const std::vector<int64_t>& group, int64_t place, int64_t i) {
                          if (kind == 1) {
                            return Element(group[i / count], place * count + i % count);
                          }
                          if (kind == 2) return Element(group[call % n], i);
                          double sum = 0;
                          for (const int64_t m : group) sum += Element(m, i);
                          return sum;
                        });
      if (!text.empty()) return "call " + std::to_string(call) + ": " + text;
    }
    return "";
  });
}

TEST_P(CommunicatorSuite, RefusesCallsThatMakeNoSense) {
  ForEachNumberOfProcesses(GetParam(), [](Member& member) -> std::string {
    const std::unique_ptr<Communicator> c =
        member.make(MeshOf("batch=4,model=2", member.processes, Deal::kBlocks));
    Part part(member, *c, DType::kF32, 32, 32, Where::kApart);
    const auto p = part.participants();
    const std::vector<int64_t> wrong = {0, 1, 2, 4};
    const Status statuses[] = {
        c->AllReduce({{2}, DType::kF32, "t"}, Reduction::kSum, 8, p),
        c->AllReduce({{0, 0}, DType::kF32, "t"}, Reduction::kSum, 8, p),
        c->AllReduce({{0}, DType::kBool, "t"}, Reduction::kSum, 8, p),
        c->AllReduce({{0}, DType::kF32, "t"}, Reduction::kSum, 8, p.subspan(1)),
        c->AllReduce({{0}, DType::kF32, "t"}, Reduction::kSum, -1, p),
        c->Broadcast({{0}, DType::kF32, "t"}, 4, 8, p),
        c->Permute({{0}, DType::kF32, "t"}, wrong, 8, p),
        c->Permute({{1}, DType::kF32, "t"}, wrong, 8, p),
    };
    int i = 0;
    for (const Status& status : statuses) {
      if (status.code() != StatusCode::kInvalidArgument) {
        return std::to_string(i) + ": " + status.ToString();
      }
      ++i;
    }
    // None of them counts as a collective: the next one works.
    return c->AllReduce({{0}, DType::kF32, "t"}, Reduction::kSum, 8, p).ToString() == "OK"
               ? ""
               : "the next one failed";
  });
}

}  // namespace
}  // namespace meshtrain::collective
