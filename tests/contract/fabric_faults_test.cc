// Who may take part in a fabric, and what it stands: peers of other incarnations, groups and
// tokens, strangers, bytes that change on their way.
#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <thread>

#include "runtime/collective/fabric_impl.h"
#include "tests/contract/communicator_faults.h"
#include "tests/contract/communicator_processes.h"
#include "tests/contract/communicator_proxy.h"

namespace meshtrain::collective {
namespace {

using mesh::DType;
using std::chrono::milliseconds;
using std::chrono::seconds;

// --- who may take part

TEST(FabricTest, APeerWithAnotherTokenIsTurnedAway) {
  for (const int wrong : {0, 1}) {
    ProcessesOptions options;
    options.processes = 2;
    options.connect = seconds(4);
    options.adjust_options = [&](int process, FabricOptions& o) {
      if (process == wrong) o.token = "of another job";
    };
    const auto texts =
        RunProcesses(options, [&](Member& member) { return member.connected.ToString(); });
    // Worker-1 connects to worker-0: it learns that the other side does not know its token, whoever
    // of them is right.
    EXPECT_TRUE(Has(texts[1], "UNAUTHENTICATED: incarnation 1: worker-0 at 127.0.0.1:"))
        << texts[1];
    EXPECT_TRUE(Has(texts[1], "does not know this job's token")) << texts[1];
    EXPECT_TRUE(Has(texts[0], "DEADLINE_EXCEEDED")) << texts[0];
    EXPECT_TRUE(Has(texts[0], "worker-1: has not connected")) << texts[0];
    EXPECT_TRUE(
        Has(texts[0], "turned away process 1 from 127.0.0.1: it does not know this job's token"))
        << texts[0];
  }
}

TEST(FabricTest, AnOldIncarnationIsOverAndItsProcessMayJoinTheNew) {
  ProcessesOptions options;
  options.processes = 2;
  options.connected = false;
  const auto texts = RunProcesses(options, [&](Member& member) -> std::string {
    FabricGroup group = member.group;
    group.incarnation = 5;
    if (member.process == 0) {
      std::jthread late([&] { WaitUntil([&] { return member.board->flags[0].load() == 1; }); });
      const Status status = member.fabric->Connect(group, seconds(60), {});
      return status.ToString();
    }
    group.incarnation = 4;
    const Status old = member.fabric->Connect(group, seconds(60), {});
    member.board->flags[0].store(1);
    group.incarnation = 5;
    const Status status = member.fabric->Connect(group, seconds(60), {});
    return old.ToString() + " / " + status.ToString();
  });
  EXPECT_EQ(texts[0], "OK");
  EXPECT_TRUE(Has(texts[1], "FAILED_PRECONDITION: incarnation 4: worker-0 at 127.0.0.1:"))
      << texts[1];
  EXPECT_TRUE(Has(texts[1], "turns us away: incarnation 4 is over, this is 5 / OK")) << texts[1];
}

TEST(FabricTest, APeerThatIsEarlyWaitsForTheOthers) {
  ProcessesOptions options;
  options.processes = 3;
  options.connected = false;
  const auto texts = RunProcesses(options, [&](Member& member) -> std::string {
    FabricGroup group = member.group;
    Status status = member.fabric->Connect(group, seconds(60), {});
    const auto c = member.make(Line(3));
    if (status.ok()) status = SumOnes(*c, member.process);
    member.board->flags[0].fetch_add(1);
    if (!WaitUntil([&] { return member.board->flags[0].load() == 3; })) {
      return "not all got their sums";
    }
    // Worker-2 goes ahead at once; that ends the old incarnation for the others, and is no fault in
    // the new one.
    group.incarnation = 2;
    if (status.ok() && member.process == 2) status = member.fabric->Connect(group, seconds(60), {});
    if (status.ok() && member.process != 2) {
      if (!WaitUntil([&] { return !SumOnes(*c, member.process).ok(); })) {
        return "the old incarnation goes on";
      }
      std::this_thread::sleep_for(milliseconds(100 * member.process));
      status = member.fabric->Connect(group, seconds(60), {});
    }
    if (status.ok()) status = SumOnes(*c, member.process);
    return status.ToString();
  });
  for (const std::string& text : texts) EXPECT_EQ(text, "OK");
}

TEST(FabricTest, APeerOfAnotherGroupIsTurnedAway) {
  ProcessesOptions options;
  options.processes = 2;
  options.connect = seconds(4);
  options.adjust_group = [](int process, FabricGroup& group, Board&) {
    if (process == 1) group.processes[0].name = "chief-0";
  };
  const auto texts =
      RunProcesses(options, [&](Member& member) { return member.connected.ToString(); });
  EXPECT_TRUE(Has(texts[1], "FAILED_PRECONDITION")) << texts[1];
  EXPECT_TRUE(Has(texts[1], "it joined another group under incarnation 1")) << texts[1];
  EXPECT_TRUE(Has(texts[0], "worker-1: has not connected")) << texts[0];
}

TEST(FabricTest, ThoseWhoAreMissingAreNamed) {
  ProcessesOptions options;
  options.processes = 3;
  options.connected = false;
  options.leave_together = true;
  const auto texts = RunProcesses(options, [&](Member& member) -> std::string {
    if (member.process == 1) return "absent";
    return member.fabric->Connect(member.group, seconds(4), {}).ToString();
  });
  EXPECT_TRUE(Has(texts[0], "DEADLINE_EXCEEDED")) << texts[0];
  EXPECT_TRUE(Has(texts[0], "worker-1: has not connected")) << texts[0];
  EXPECT_FALSE(Has(texts[0], "worker-2: has not")) << texts[0];
  // It listens, and knows the token, but has not joined: no verdict.
  EXPECT_TRUE(Has(texts[2], "missing: worker-1 (127.0.0.1:")) << texts[2];
}

TEST(FabricTest, ConnectEndsWhenItIsStopped) {
  ProcessesOptions options;
  options.processes = 2;
  options.connected = false;
  const auto texts = RunProcesses(options, [&](Member& member) -> std::string {
    if (member.process == 1) return "absent";
    std::stop_source stop;
    std::jthread stopper([&] {
      std::this_thread::sleep_for(milliseconds(100));
      stop.request_stop();
    });
    const Status status = member.fabric->Connect(member.group, seconds(60), stop.get_token());
    return std::string(StatusCodeName(status.code()));
  });
  EXPECT_EQ(texts[0], "CANCELLED");
}

TEST(FabricTest, APortThatIsTakenIsAnError) {
  FabricOptions options;
  options.bind = "127.0.0.1";
  Result<std::unique_ptr<Fabric>> first = Fabric::Create(options);
  ASSERT_TRUE(first.ok());
  options.port = (*first)->port();
  const Status status = Fabric::Create(options).status();
  EXPECT_EQ(status.code(), StatusCode::kUnavailable);
  EXPECT_TRUE(Has(status.message(), "cannot listen on 127.0.0.1:" + std::to_string(options.port)))
      << status.ToString();
  options.bind = "localhost";
  EXPECT_EQ(Fabric::Create(options).status().code(), StatusCode::kInvalidArgument);
}

TEST(FabricTest, PeersAreFoundByName) {
  ProcessesOptions options;
  options.processes = 3;
  options.adjust_group = [](int, FabricGroup& group, Board&) {
    for (auto& peer : group.processes) {
      peer.address = "localhost" + peer.address.substr(peer.address.rfind(':'));
    }
  };
  const auto texts = RunProcesses(options, [&](Member& member) -> std::string {
    if (!member.connected.ok()) return member.connected.ToString();
    return SumOnes(*member.make(Line(3)), member.process).ToString();
  });
  for (const std::string& text : texts) EXPECT_EQ(text, "OK");
}

TEST(FabricTest, BeforeConnectEveryCallIsUnavailable) {
  FabricOptions options;
  options.bind = "127.0.0.1";
  std::unique_ptr<Fabric> fabric = std::move(*Fabric::Create(options));
  const auto c = MakeProcessCommunicator(*fabric, Line(1), 7);
  EXPECT_EQ(SumOnes(*c, 0).code(), StatusCode::kUnavailable);
  FabricGroup alone;
  alone.processes.push_back({"worker-0", "127.0.0.1:1", Fabric::HostId()});
  ASSERT_TRUE(fabric->Connect(alone, seconds(10), {}).ok());
  EXPECT_EQ(SumOnes(*c, 0), OkStatus());
  EXPECT_EQ(Fabric::HostId(), Fabric::HostId());
}

// What travels between hosts: only the leaders' bytes, and the ring's formula.
TEST(FabricTest, OnlyLeadersUseTheNetwork) {
  std::atomic<int64_t> sent[4] = {};
  ProcessesOptions options;
  options.processes = 4;
  options.hosts = {"g", "g", "h", "h"};
  const int64_t count = 1 << 20;
  const auto texts = RunProcesses(options, [&](Member& member) -> std::string {
    if (!member.connected.ok()) return member.connected.ToString();
    const Status status = SumOnes(*member.make(Line(4)), member.process, count);
    sent[member.process].store(member.fabric->impl().network.bytes_sent());
    return status.ToString();
  });
  for (const std::string& text : texts) EXPECT_EQ(text, "OK");
  EXPECT_EQ(sent[0].load(), count * 4);  // 2 (2-1)/2 of it
  EXPECT_EQ(sent[1].load(), 0);
  EXPECT_EQ(sent[2].load(), count * 4);
  EXPECT_EQ(sent[3].load(), 0);
}

// So few bytes would be doubled, where two of the three send other numbers of them.
TEST(FabricTest, ARingIsTheRingForFewBytesToo) {
  std::atomic<int64_t> sent[3] = {};
  ProcessesOptions options;
  options.processes = 3;
  options.shared_memory = false;
  const int64_t count = 300;
  const auto texts = RunProcesses(options, [&](Member& member) -> std::string {
    if (!member.connected.ok()) return member.connected.ToString();
    const auto ring = MakeProcessCommunicator(*member.fabric, Line(3), 7, /*ring=*/true);
    const Status status = SumOnes(*ring, member.process, count);
    sent[member.process].store(member.fabric->impl().network.bytes_sent());
    return status.ToString();
  });
  for (const std::string& text : texts) EXPECT_EQ(text, "OK");
  for (const auto& bytes : sent) EXPECT_EQ(bytes.load(), 2 * (3 - 1) * count * 4 / 3);
}

TEST(FabricTest, AProcessWithoutTheRingIsNamed) {
  ProcessesOptions options;
  options.processes = 2;
  options.shared_memory = false;
  const auto texts = RunProcesses(options, [&](Member& member) -> std::string {
    if (!member.connected.ok()) return member.connected.ToString();
    const auto one =
        MakeProcessCommunicator(*member.fabric, Line(2), 7, /*ring=*/member.process == 0);
    return SumOnes(*one, member.process).ToString();
  });
  for (const std::string& text : texts) EXPECT_NE(text, "OK");
}

// --- strangers

// Connections that say nothing, and some that say what they should not.
class Strangers {
 public:
  void Come(int port, int count, const std::string& say) {
    for (int i = 0; i < count; ++i) {
      const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
      sockaddr_in address{};
      address.sin_family = AF_INET;
      address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
      address.sin_port = htons(static_cast<uint16_t>(port));
      if (connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0) {
        ++came_;
        if (!say.empty()) static_cast<void>(!send(fd, say.data(), say.size(), MSG_NOSIGNAL));
      }
      fds_.push_back(fd);
    }
  }
  ~Strangers() {
    for (const int fd : fds_) close(fd);
  }
  int came() const { return came_; }

 private:
  std::vector<int> fds_;
  int came_ = 0;
};

TEST(FabricTest, AThousandIdleConnectionsDoNotHurt) {
  ProcessesOptions options;
  options.processes = 3;
  options.connected = false;
  Strangers strangers;
  std::atomic<int64_t> ended{0};
  options.in_parent = [&](Board& board) {
    ASSERT_TRUE(WaitUntil([&] { return board.rows[0].port.load() != 0; }));
    strangers.Come(board.rows[0].port.load(), 1000, "");
    strangers.Come(board.rows[0].port.load(), 20,
                   "GET / HTTP/1.1\r\nHost: worker-0\r\nAccept: everything at all\r\n\r\n");
    board.flags[0].store(1);
    // More of them while the others talk.
    ASSERT_TRUE(WaitUntil([&] { return board.flags[1].load() == 1; }));
    strangers.Come(board.rows[0].port.load(), 500, "x");
    board.flags[0].store(2);
  };
  const auto texts = RunProcesses(options, [&](Member& member) -> std::string {
    if (!WaitUntil([&] { return member.board->flags[0].load() == 1; })) return "no strangers";
    Status status = member.fabric->Connect(member.group, seconds(60), {});
    if (!status.ok()) return status.ToString();
    const auto c = member.make(Line(3));
    for (int i = 0; i < 50 && status.ok(); ++i) status = SumOnes(*c, member.process);
    member.board->flags[1].store(1);
    if (!WaitUntil([&] { return member.board->flags[0].load() == 2; })) return "no more strangers";
    for (int i = 0; i < 50 && status.ok(); ++i) status = SumOnes(*c, member.process);
    if (member.process == 0) {
      // Never more than so many are kept.
      const Acceptor& acceptor = *member.fabric->impl().acceptor;
      WaitUntil([&] { return acceptor.half_open_ended() >= 1520 - Acceptor::kMaxHalfOpen; });
      ended.store(acceptor.half_open_ended());
    }
    return status.ToString();
  });
  for (const std::string& text : texts) EXPECT_EQ(text, "OK");
  EXPECT_EQ(strangers.came(), 1520);
  EXPECT_GE(ended.load(), 1520 - Acceptor::kMaxHalfOpen);
}

// --- bytes that change on their way

// Worker-1 reaches worker-0 through the proxy.
TEST(FabricTest, AFlippedBitInAPayloadIsNamedAndEndsTheIncarnation) {
  // In a payload or in a header of either direction. The hello is 132 bytes to the acceptor, up to
  // 500 from it; what comes then on the data connection are frames.
  struct Case {
    int64_t at;
    bool towards_connector;
    int sees;  // who receives it
  };
  for (const Case& k : {Case{500'000, true, 1}, Case{500'000, false, 0}}) {
    BitFlipper proxy(k.at, k.towards_connector);
    ProcessesOptions options;
    options.processes = 3;
    options.shared_memory = false;
    options.adjust_group = [&](int process, FabricGroup& group, Board& board) {
      proxy.Target(board.rows[0].port.load());
      if (process == 1) group.processes[0].address = "127.0.0.1:" + std::to_string(proxy.port());
    };
    const auto texts = RunProcesses(options, [&](Member& member) -> std::string {
      if (!member.connected.ok()) return member.connected.ToString();
      const auto c = member.make(Line(3));
      for (int i = 0; i < 200; ++i) {
        // Around the ring 0 -> 1 -> 2 -> 0, and back.
        Status status = SumOnes(*c, member.process, 300'000);
        if (status.ok()) {
          std::vector<float> send(30'000, 1), receive(30'000);
          const int64_t back[] = {1, 2, 0};
          const Participant us{member.process, reinterpret_cast<std::byte*>(send.data()),
                               reinterpret_cast<std::byte*>(receive.data())};
          status = c->Permute({{0}, DType::kF32, "permute of %5"}, back, 30'000, {&us, 1});
          if (status.ok() && receive != send) return "wrong bytes";
        }
        if (!status.ok()) return status.ToString() + " / " + SumOnes(*c, member.process).ToString();
      }
      return "no error";
    });
    EXPECT_GE(proxy.flipped(), 1);
    for (int p = 0; p < 3; ++p) {
      EXPECT_TRUE(Has(texts[p], "bytes were changed on their way from worker-" +
                                    std::to_string(1 - k.sees) + " to worker-" +
                                    std::to_string(k.sees)) ||
                  Has(texts[p], "the frame's header was changed on its way"))
          << texts[p];
      EXPECT_TRUE(Has(texts[p], "(collective ")) << texts[p];
      EXPECT_EQ(texts[p].rfind("UNAVAILABLE", 0), 0u) << texts[p];
      EXPECT_TRUE(Has(texts[p], " / UNAVAILABLE")) << texts[p];
    }
  }
}

}  // namespace
}  // namespace meshtrain::collective
