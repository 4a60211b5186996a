// What goes wrong between processes, and that it ends in an error that names who and where: soon,
// in every process, and not in a hang. Every test sees to it that its fault happened.
#include "tests/contract/communicator_faults.h"

#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <thread>

#include "tests/contract/communicator_processes.h"

namespace meshtrain::collective {
namespace {

using mesh::DType;
using mesh::Reduction;
using std::chrono::milliseconds;
using std::chrono::seconds;
using std::chrono::steady_clock;

// The ways between processes, for faults that all of them must stand.
struct Way {
  std::string name;
  bool shared_memory;
  std::vector<std::string> hosts;  // of three
  friend std::ostream& operator<<(std::ostream& out, const Way& way) { return out << way.name; }
};
const Way kWays[] = {{"shared", true, {"h", "h", "h"}},
                     {"tcp", false, {"h", "h", "h"}},
                     {"both", true, {"g", "h", "h"}}};

ProcessesOptions Three(const Way& way, bool forked) {
  ProcessesOptions options;
  options.processes = 3;
  options.forked = forked;
  options.shared_memory = way.shared_memory;
  options.hosts = way.hosts;
  return options;
}

class FaultsOnEveryWay : public ::testing::TestWithParam<Way> {};
INSTANTIATE_TEST_SUITE_P(Ways, FaultsOnEveryWay, ::testing::ValuesIn(kWays),
                         [](const auto& info) { return info.param.name; });

// --- a process that dies

TEST_P(FaultsOnEveryWay, AKilledProcessIsNamedByAllOthersSoon) {
  for (const int64_t count : {1000, 3'000'000}) {
    ProcessesOptions options = Three(GetParam(), true);
    options.leave_together = false;
    options.in_parent = [](Board& board) {
      // In the middle of whatever it does.
      ASSERT_TRUE(WaitUntil([&] { return board.flags[0].load() >= 3; }));
      kill(board.rows[2].pid.load(), SIGKILL);
    };
    const auto texts = RunProcesses(options, [&](Member& member) -> std::string {
      if (!member.connected.ok()) return member.connected.ToString();
      const auto c = member.make(Line(3));
      const auto begin = steady_clock::now();
      while (steady_clock::now() - begin < seconds(60)) {
        const Status status = SumOnes(*c, member.process, count);
        if (status.ok()) {
          if (member.process == 2) member.board->flags[0].fetch_add(1);
          continue;
        }
        const Status later = SumOnes(*c, member.process);
        return status.ToString() + " / " + later.ToString();
      }
      return "no error";
    });
    EXPECT_EQ(texts[2], "died of signal 9");
    for (const int p : {0, 1}) {
      EXPECT_TRUE(Has(texts[p], "UNAVAILABLE: all_reduce of %31")) << texts[p];
      EXPECT_TRUE(Has(texts[p], "worker-2 is lost: its connection closed")) << texts[p];
      EXPECT_TRUE(Has(texts[p], " / UNAVAILABLE")) << texts[p];
    }
  }
}

TEST_P(FaultsOnEveryWay, SurvivorsGoOnWithTheNextIncarnationAndAProcessInItsPlace) {
  // Process 3 takes the place of worker-2 in incarnation 2.
  ProcessesOptions options;
  options.processes = 4;
  options.forked = true;
  options.shared_memory = GetParam().shared_memory;
  options.connected = false;
  options.leave_together = false;
  const auto texts = RunProcesses(options, [&](Member& member) -> std::string {
    const auto group_of = [&](uint64_t incarnation, std::vector<int> who) {
      FabricGroup group;
      group.incarnation = incarnation;
      for (size_t p = 0; p < who.size(); ++p) {
        if (who[p] == member.process) group.process = static_cast<int>(p);
        FabricGroup::Peer peer = member.group.processes[who[p]];
        peer.name = WorkerName(static_cast<int>(p));
        peer.host = GetParam().hosts[p];
        group.processes.push_back(peer);
      }
      return group;
    };
    const auto c = member.make(Line(3));
    const std::span<std::byte> bucket = c->BucketMemory(400'000);
    const auto in_bucket = [&](int place) -> Status {
      if (bucket.empty()) return OkStatus();
      float* data = reinterpret_cast<float*>(bucket.data());
      std::fill(data, data + 100'000, 2.0f);
      const Participant us{place, bucket.data(), bucket.data()};
      MT_RETURN_IF_ERROR(
          c->AllReduce({{0}, DType::kF32, "bucket"}, Reduction::kSum, 100'000, {&us, 1}));
      return std::all_of(data, data + 100'000, [](float x) { return x == 6.0f; })
                 ? OkStatus()
                 : Internal("a wrong sum");
    };
    if (member.process < 3) {
      Status status = member.fabric->Connect(group_of(1, {0, 1, 2}), seconds(60), {});
      if (status.ok()) status = SumOnes(*c, member.process);
      if (status.ok()) status = in_bucket(member.process);
      if (!status.ok()) return status.ToString();
      member.board->flags[0].fetch_add(1);
      if (!WaitUntil([&] { return member.board->flags[0].load() == 3; })) {
        return "not all got their sums";
      }
      if (member.process == 2) raise(SIGKILL);
      status = SumOnes(*c, member.process);
      if (status.code() != StatusCode::kUnavailable) return "first: " + status.ToString();
    }
    Status status = member.fabric->Connect(group_of(2, {0, 1, 3}), seconds(60), {});
    const int place = std::min(member.process, 2);
    if (status.ok()) status = SumOnes(*c, place);
    if (status.ok()) status = in_bucket(place);
    if (status.ok()) status = SumOnes(*c, place, 500'000);
    if (member.fabric->waiting().collective != (bucket.empty() ? 2u : 3u)) {
      return "collectives are not counted anew";
    }
    return status.ok() ? "" : status.ToString();
  });
  EXPECT_EQ(texts[2], "died of signal 9");
  for (const int p : {0, 1, 3}) EXPECT_EQ(texts[p], "") << p;
}

// --- a process that stands still

char StateOf(int pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
  std::string text;
  std::getline(file, text);
  const size_t at = text.rfind(')');
  return at == std::string::npos || at + 2 >= text.size() ? '?' : text[at + 2];
}

TEST_P(FaultsOnEveryWay,
       AStoppedProcessIsNamedByAllOthersAtTheDeadlineAndSpoilsNothingWhenItWakes) {
  for (const int64_t count : {1000, 3'000'000}) {
    ProcessesOptions options = Three(GetParam(), true);
    options.deadline = seconds(3);
    options.in_parent = [](Board& board) {
      ASSERT_TRUE(WaitUntil([&] { return board.flags[0].load() >= 3; }));
      const int pid = board.rows[2].pid.load();
      kill(pid, SIGSTOP);
      EXPECT_TRUE(WaitUntil([&] { return StateOf(pid) == 'T'; }));
      // The others fail, and are in the next incarnation, before it wakes.
      EXPECT_TRUE(WaitUntil([&] { return board.flags[1].load() == 2; }));
      EXPECT_EQ(StateOf(pid), 'T');
      kill(pid, SIGCONT);
    };
    const auto texts = RunProcesses(options, [&](Member& member) -> std::string {
      if (!member.connected.ok()) return member.connected.ToString();
      const auto c = member.make(Line(3));
      Status status;
      const auto begin = steady_clock::now();
      while (status.ok() && steady_clock::now() - begin < seconds(60)) {
        status = SumOnes(*c, member.process, count);
        if (member.process == 2) member.board->flags[0].fetch_add(1);
      }
      if (member.process < 2) member.board->flags[1].fetch_add(1);
      FabricGroup next = member.group;
      next.incarnation = 2;
      Status again = member.fabric->Connect(next, seconds(60), {});
      if (again.ok()) again = SumOnes(*c, member.process, count);
      return status.ToString() + " / " + again.ToString();
    });
    for (const int p : {0, 1}) {
      EXPECT_TRUE(Has(texts[p], "all_reduce of %31 (collective ")) << texts[p];
      EXPECT_TRUE(Has(texts[p], "nothing came for 3.0 s: worker-2 does not answer")) << texts[p];
      EXPECT_TRUE(Has(texts[p], " / OK")) << texts[p];
    }
    EXPECT_TRUE(Has(texts[2], "UNAVAILABLE: ")) << texts[2];
    EXPECT_TRUE(Has(texts[2], " / OK")) << texts[2];
  }
}

TEST_P(FaultsOnEveryWay, AProcessThatIsAliveButDoesNotComeIsNamedWithWhereItIs) {
  ProcessesOptions options = Three(GetParam(), false);
  options.deadline = seconds(3);
  const auto texts = RunProcesses(options, [&](Member& member) -> std::string {
    if (!member.connected.ok()) return member.connected.ToString();
    const auto c = member.make(Line(3));
    Status status = SumOnes(*c, member.process, 10, "all_reduce of %7");
    if (member.process == 1) {  // computes for ever
      // What the others gave before they gave up may still be there for the first call.
      WaitUntil([&] { return member.board->done.load() == 2; });
      WaitUntil([&] { return !(status = SumOnes(*c, member.process)).ok(); });
      return status.ToString();
    }
    return SumOnes(*c, member.process).ToString();
  });
  for (const int p : {0, 2}) {
    EXPECT_TRUE(Has(texts[p],
                    "nothing came for 3.0 s: worker-1 has not come: it is past collective 1 "
                    "(all_reduce of %7)"))
        << texts[p];
    EXPECT_TRUE(Has(texts[p], "all_reduce of %31 (collective 2)")) << texts[p];
  }
  EXPECT_TRUE(Has(texts[1], "UNAVAILABLE")) << texts[1];
}

TEST_P(FaultsOnEveryWay, WaitingSaysForWhom) {
  ProcessesOptions options = Three(GetParam(), false);
  options.connect = seconds(60);
  const auto texts = RunProcesses(options, [&](Member& member) -> std::string {
    if (!member.connected.ok()) return member.connected.ToString();
    const auto c = member.make(Line(3));
    if (member.process == 1) {
      // Until the others are seen waiting.
      if (!WaitUntil([&] { return member.board->flags[0].load() == 2; })) {
        return "the others did not wait";
      }
      return SumOnes(*c, member.process).ToString();
    }
    std::jthread watcher([&] {
      WaitUntil([&] {
        const Waiting w = member.fabric->waiting();
        return w.collective == 1 && w.what == "all_reduce of %31" && !w.peers.empty();
      });
      member.board->flags[0].fetch_add(1);
    });
    const Status status = SumOnes(*c, member.process);
    watcher.join();
    const Waiting after = member.fabric->waiting();
    return after.what.empty() && after.peers.empty() && after.collective == 1 ? status.ToString()
                                                                              : "still waiting";
  });
  for (const std::string& text : texts) EXPECT_EQ(text, "OK");
}

// --- programs that diverge

TEST_P(FaultsOnEveryWay, AnotherPlanIsAnErrorThatNamesBoth) {
  const auto texts = RunProcesses(Three(GetParam(), false), [&](Member& member) -> std::string {
    if (!member.connected.ok()) return member.connected.ToString();
    const auto c =
        MakeProcessCommunicator(*member.fabric, Line(3), member.process == 2 ? 0xbad : 0x600d);
    return SumOnes(*c, member.process).ToString();
  });
  int named = 0;
  for (int p = 0; p < 3; ++p) {
    EXPECT_FALSE(Has(texts[p], "OK")) << texts[p];
    EXPECT_TRUE(Has(texts[p], "another plan: worker-")) << texts[p];
    EXPECT_TRUE(Has(texts[p], "0000000000000bad") && Has(texts[p], "000000000000600d")) << texts[p];
    named += Has(texts[p], "FAILED_PRECONDITION");
  }
  EXPECT_GE(named, 1);  // by the ones who saw it; the others are told
}

TEST_P(FaultsOnEveryWay, AnotherOrderOfCollectivesIsAnErrorThatNamesBoth) {
  // One that leaves a collective out, one that makes another, one that makes it longer.
  for (const int kind : {0, 1, 2}) {
    const auto texts = RunProcesses(Three(GetParam(), false), [&](Member& member) -> std::string {
      if (!member.connected.ok()) return member.connected.ToString();
      const auto c = member.make(Line(3));
      Status status = SumOnes(*c, member.process);
      const bool other = member.process == 2;
      if (status.ok() && !(kind == 0 && other)) {
        const std::string what = kind == 1 && other ? "all_reduce of %9" : "all_reduce of %8";
        status = SumOnes(*c, member.process, kind == 2 && other ? 2000 : 1000, what);
      }
      if (status.ok()) status = SumOnes(*c, member.process, 1000, "all_reduce of %12");
      return status.ToString();
    });
    for (int p = 0; p < 3; ++p) {
      EXPECT_TRUE(Has(texts[p], "programs diverge: worker-")) << kind << ": " << texts[p];
      EXPECT_TRUE(Has(texts[p], "is at collective 2 (all_reduce of %")) << kind << ": " << texts[p];
      EXPECT_TRUE(Has(texts[p], "we are at collective 2 (all_reduce of %"))
          << kind << ": " << texts[p];
      EXPECT_TRUE(Has(texts[p], "%8")) << kind << ": " << texts[p];
      EXPECT_TRUE(kind == 2 || Has(texts[p], kind == 0 ? "%12" : "%9")) << kind << ": " << texts[p];
    }
  }
}

// --- abort, and leaving

TEST_P(FaultsOnEveryWay, AbortWakesEverybodyAndTheNextConnectMendsIt) {
  const auto texts = RunProcesses(Three(GetParam(), false), [&](Member& member) -> std::string {
    if (!member.connected.ok()) return member.connected.ToString();
    const auto c = member.make(Line(3));
    Status status = SumOnes(*c, member.process);
    if (!status.ok()) return status.ToString();
    std::string text;
    if (member.process == 2) {
      // The others are in a collective that we never begin.
      if (!WaitUntil([&] { return member.board->flags[0].load() == 2; })) {
        return "the others did not wait";
      }
      member.fabric->Abort(Unavailable("the watcher says so"));
      text = SumOnes(*c, member.process).ToString();
    } else {
      std::jthread watcher([&] {
        WaitUntil([&] { return !member.fabric->waiting().peers.empty(); });
        member.board->flags[0].fetch_add(1);
      });
      text = SumOnes(*c, member.process).ToString();
      const std::string later = SumOnes(*c, member.process).ToString();
      if (!Has(later, "UNAVAILABLE")) return "later: " + later;
    }
    // Of the abort, and of no deadline.
    if (!Has(text, "UNAVAILABLE") || !Has(text, "the watcher says so")) return text;
    FabricGroup next = member.group;
    next.incarnation = 2;
    status = member.fabric->Connect(next, seconds(60), {});
    if (status.ok()) status = SumOnes(*c, member.process, 100'000);
    return status.ToString();
  });
  for (const std::string& text : texts) EXPECT_EQ(text, "OK");
}

// What wakes a call is the abort and no deadline. How long that takes is printed.
TEST_P(FaultsOnEveryWay, AbortEndsACallThatWaits) {
  std::atomic<int64_t> begun{0}, ended{0};
  ProcessesOptions options = Three(GetParam(), false);
  options.processes = 2;
  options.hosts.resize(2);
  const auto texts = RunProcesses(options, [&](Member& member) -> std::string {
    if (!member.connected.ok()) return member.connected.ToString();
    const auto c = member.make(Line(2));
    if (member.process == 1) {
      WaitUntil([&] { return member.board->flags[0].load() == 1; });
      return "";
    }
    std::jthread aborter([&] {
      WaitUntil([&] { return !member.fabric->waiting().peers.empty(); });
      begun.store(steady_clock::now().time_since_epoch().count());
      member.fabric->Abort(Unavailable("the watcher says so"));
    });
    const Status status = SumOnes(*c, member.process);
    ended.store(steady_clock::now().time_since_epoch().count());
    member.board->flags[0].store(1);
    const bool aborted =
        status.code() == StatusCode::kUnavailable && Has(status.ToString(), "the watcher says so");
    return aborted ? "" : status.ToString();
  });
  for (const std::string& text : texts) EXPECT_EQ(text, "");
  std::cout << "abort took " << static_cast<double>(ended.load() - begun.load()) * 1e-6 << " ms\n";
}

TEST_P(FaultsOnEveryWay, AProcessThatLeavesIsNotLostUntilItIsNeeded) {
  ProcessesOptions options = Three(GetParam(), false);
  options.leave_together = false;
  const auto texts = RunProcesses(options, [&](Member& member) -> std::string {
    if (!member.connected.ok()) return member.connected.ToString();
    const auto c = member.make(Line(3));
    Status status = SumOnes(*c, member.process, 200'000);
    if (!status.ok() || member.process == 2) return status.ToString();
    std::this_thread::sleep_for(milliseconds(200));
    return SumOnes(*c, member.process).ToString();
  });
  EXPECT_EQ(texts[2], "OK");
  for (const int p : {0, 1}) {
    EXPECT_TRUE(Has(texts[p], "UNAVAILABLE: all_reduce of %31")) << texts[p];
    EXPECT_TRUE(Has(texts[p], "has left the job")) << texts[p];
  }
}

// Incarnation after incarnation, each ended by one of the processes in the middle of its
// collectives.
TEST_P(FaultsOnEveryWay, ManyIncarnationsLeaveNothingOpen) {
  const auto open_files = [] {
    int64_t count = 0;
    for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
      static_cast<void>(entry);
      ++count;
    }
    return count;
  };
  const int64_t before = open_files();
  std::atomic<int> aborted{0};
  const auto texts = RunProcesses(Three(GetParam(), false), [&](Member& member) -> std::string {
    const auto c = member.make(Line(3));
    Status status = member.connected;
    for (uint64_t incarnation = 1; incarnation <= 12; ++incarnation) {
      if (!status.ok()) return std::to_string(incarnation) + ": " + status.ToString();
      std::jthread aborter;
      if (static_cast<int>(incarnation % 3) == member.process) {
        aborter = std::jthread([&] {
          WaitUntil([&] { return member.fabric->waiting().collective > 20; });
          member.fabric->Abort(Unavailable("again"));
          aborted.fetch_add(1);
        });
      }
      const auto begin = steady_clock::now();
      int64_t sums = 0;
      while (status.ok() && steady_clock::now() - begin < seconds(60)) {
        status = SumOnes(*c, member.process, sums % 5 == 0 ? 100'000 : 100);
        ++sums;
      }
      // Who was slow to look may find that the others, aborted before it, have gone on already.
      const bool ended =
          Has(status.message(), "again") || Has(status.message(), "another incarnation");
      if (status.code() != StatusCode::kUnavailable || !ended) return status.ToString();
      FabricGroup next = member.group;
      next.incarnation = incarnation + 1;
      if (aborter.joinable()) aborter.join();
      status = member.fabric->Connect(next, seconds(60), {});
    }
    return status.ToString();
  });
  for (const std::string& text : texts) EXPECT_EQ(text, "OK");
  EXPECT_EQ(aborted.load(), 12);
  EXPECT_EQ(open_files(), before);
}

}  // namespace
}  // namespace meshtrain::collective
