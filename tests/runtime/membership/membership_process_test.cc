// Membership between processes that are killed, stopped and replaced.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <thread>

#include "runtime/base/file.h"
#include "runtime/base/text.h"
#include "runtime/cluster/contract.h"
#include "runtime/rpc/grpc_internal.h"
#include "tests/runtime/membership/forwarder.h"
#include "tests/runtime/membership/membership_testing.h"
#include "tests/runtime/membership/peer_process.h"
#include "tests/support/call_flood.h"
#include "tests/support/flood.h"
#include "tests/support/shadow_memory.h"

namespace meshtrain::membership {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::HasSubstr;
using ::testing::Optional;
using ::testing::StartsWith;

class MembershipProcessTest : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = ::testing::TempDir() + "membership_process_test." + std::to_string(getpid());
    ASSERT_TRUE(MakeDirectories(folder_).ok());
    ASSERT_TRUE(WriteFileAtomically(folder_ + "/token", "s3cret\n").ok());
    ASSERT_TRUE(WriteFileAtomically(folder_ + "/other_token", "guess\n").ok());
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  std::unique_ptr<PeerProcess> Start(cluster::TaskId task,
                                     std::map<std::string, std::string> more = {}) {
    std::map<std::string, std::string> environment = {
        {std::string(cluster::kEnvTfConfig),
         cluster::FormatTfConfig({.cluster = cluster_, .task = task})},
        {std::string(cluster::kEnvTokenFile), folder_ + "/token"},
        {std::string(cluster::kEnvJob), "ml/test"}};
    for (auto& [name, value] : more) environment[name] = value;
    return std::make_unique<PeerProcess>(MEMBERSHIP_PEER, environment, Log(task));
  }
  std::string Log(cluster::TaskId task) const {
    return folder_ + "/" + cluster::ToString(task) + ".log";
  }
  std::string LogText(cluster::TaskId task) const { return ReadFile(Log(task)).value(); }

  // The id that all of them join; 0 where one does not.
  static uint64_t ExpectJoined(const std::vector<PeerProcess*>& peers) {
    uint64_t id = 0;
    for (PeerProcess* peer : peers) {
      const auto line = peer->Expect("");
      if (!line || !line->starts_with("joined ")) {
        ADD_FAILURE() << "expected joined, got: " << line.value_or("nothing");
        return 0;
      }
      const auto here = static_cast<uint64_t>(ParseInt(Split(*line, ' ')[1]).value_or(0));
      if (id != 0) {
        EXPECT_EQ(here, id) << *line;
      }
      id = here;
    }
    return id;
  }
  // Each says who was lost, and not before `since`. Prints how soon.
  static void ExpectLost(const std::vector<PeerProcess*>& peers, const std::string& why,
                         Duration since, const std::string& what) {
    for (PeerProcess* peer : peers) {
      const auto line = peer->Expect("lost ");
      ASSERT_TRUE(line.has_value());
      const auto words = Split(*line, ' ');
      const Duration took = Duration(ParseInt(words[1]).value_or(0)) - since;
      std::cout << what << ": named after "
                << std::chrono::duration_cast<milliseconds>(took).count() << " ms: " << *line
                << "\n";
      EXPECT_THAT(*line, AllOf(HasSubstr("UNAVAILABLE"), HasSubstr(why)));
      EXPECT_GE(took, Duration(0));
    }
  }
  static void ExpectAgree(const std::vector<PeerProcess*>& peers) {
    for (size_t i = 0; i < peers.size(); ++i) peers[i]->Tell("agree plan " + std::to_string(i));
    for (PeerProcess* peer : peers) {
      EXPECT_THAT(peer->Expect("agreed"), Optional(std::string("agreed 0,1,2")));
    }
  }
  void StartAll(const std::map<std::string, std::string>& more = {}) { StartAll(more, more); }
  void StartAll(const std::map<std::string, std::string>& chiefs,
                const std::map<std::string, std::string>& more) {
    chief_ = Start(Chief(), chiefs);
    worker_ = Start(Worker(0), more);
    other_ = Start(Worker(1), more);
    first_ = ExpectJoined({chief_.get(), worker_.get(), other_.get()});
    ASSERT_NE(first_, 0u);
  }
  static Duration Now() { return SystemClock().Monotonic(); }

  std::string folder_;
  ReservedPort port_;
  cluster::ClusterSpec cluster_ = ChiefAndWorkers(port_.address(), 2);
  std::unique_ptr<PeerProcess> chief_, worker_, other_;
  uint64_t first_ = 0;
};

TEST_F(MembershipProcessTest, AKilledWorkerIsNamedAndItsReturnMakesTheNextIncarnation) {
  StartAll();
  const Duration since = Now();
  other_->Signal(SIGKILL);
  ExpectLost({chief_.get(), worker_.get()}, "worker-1 lost: connection closed", since,
             "kill -9 of a worker");
  const Duration back = Now();
  other_ = Start(Worker(1));
  EXPECT_GT(ExpectJoined({chief_.get(), worker_.get(), other_.get()}), first_);
  std::cout << "together again " << std::chrono::duration_cast<milliseconds>(Now() - back).count()
            << " ms after the return\n";
  ExpectAgree({chief_.get(), worker_.get(), other_.get()});
}

TEST_F(MembershipProcessTest, AStoppedWorkerIsNamedReplacedAndRefusedWhenItComesBack) {
  StartAll();
  const Duration since = Now();
  other_->Signal(SIGSTOP);
  ExpectLost({chief_.get(), worker_.get()}, "worker-1 lost: silent for", since,
             "SIGSTOP of a worker");
  const auto replacement = Start(Worker(1));
  EXPECT_GT(ExpectJoined({chief_.get(), worker_.get(), replacement.get()}), first_);
  other_->Signal(SIGCONT);
  EXPECT_THAT(other_->Expect("lost "), Optional(HasSubstr("worker-1 lost")));
  EXPECT_THAT(other_->Expect("failed "),
              Optional(AllOf(HasSubstr("FAILED_PRECONDITION"), HasSubstr("stale incarnation"))));
  EXPECT_EQ(other_->Wait(), 1);
  ExpectAgree({chief_.get(), worker_.get(), replacement.get()});
}

TEST_F(MembershipProcessTest, AStoppedWorkerThatWasNotReplacedComesBack) {
  StartAll();
  other_->Signal(SIGSTOP);
  ExpectLost({chief_.get(), worker_.get()}, "worker-1 lost: silent for", Now(),
             "SIGSTOP of a worker");
  other_->Signal(SIGCONT);
  EXPECT_THAT(other_->Expect("lost "), Optional(HasSubstr("worker-1 lost")));
  EXPECT_GT(ExpectJoined({chief_.get(), worker_.get(), other_.get()}), first_);
  ExpectAgree({chief_.get(), worker_.get(), other_.get()});
}

// Short beside the time after which silence is a loss, whatever else the machine does.
TEST_F(MembershipProcessTest, AShortPauseIsNoLoss) {
  StartAll({{"PEER_LOST_AFTER_MS", "60000"}});
  other_->Signal(SIGSTOP);
  std::this_thread::sleep_for(milliseconds(300));
  other_->Signal(SIGCONT);
  chief_->Signal(SIGSTOP);
  std::this_thread::sleep_for(milliseconds(300));
  chief_->Signal(SIGCONT);
  ExpectAgree({chief_.get(), worker_.get(), other_.get()});
}

TEST_F(MembershipProcessTest, AKilledChiefIsNamedAndItsSuccessorGathersTheOthers) {
  StartAll();
  const Duration since = Now();
  chief_->Signal(SIGKILL);
  ExpectLost({worker_.get(), other_.get()}, "chief-0 lost: connection closed", since,
             "kill -9 of the chief");
  const Duration back = Now();
  chief_ = Start(Chief());
  EXPECT_GT(ExpectJoined({chief_.get(), worker_.get(), other_.get()}), first_);
  std::cout << "together again " << std::chrono::duration_cast<milliseconds>(Now() - back).count()
            << " ms after the return\n";
  ExpectAgree({chief_.get(), worker_.get(), other_.get()});
}

TEST_F(MembershipProcessTest, AStoppedChiefThatWasNotReplacedGathersTheOthersAgain) {
  StartAll();
  const Duration since = Now();
  chief_->Signal(SIGSTOP);
  ExpectLost({worker_.get(), other_.get()}, "chief-0 lost: silent for", since,
             "SIGSTOP of the chief");
  chief_->Signal(SIGCONT);
  EXPECT_TRUE(chief_->Expect("lost ").has_value());
  EXPECT_GT(ExpectJoined({chief_.get(), worker_.get(), other_.get()}), first_);
  ExpectAgree({chief_.get(), worker_.get(), other_.get()});
}

// A name that leads to another process now: a port that leads to one chief's, then to the other's.
TEST_F(MembershipProcessTest, AReplacedChiefThatComesBackIsRefused) {
  const ReservedPort old_port, new_port;
  Forwarder name(port_.port(), old_port.port());
  chief_ = Start(Chief(), {{"PEER_SERVE_PORT", std::to_string(old_port.port())}});
  worker_ = Start(Worker(0));
  other_ = Start(Worker(1));
  first_ = ExpectJoined({chief_.get(), worker_.get(), other_.get()});
  ASSERT_NE(first_, 0u);
  const Duration since = Now();
  chief_->Signal(SIGSTOP);
  ExpectLost({worker_.get(), other_.get()}, "chief-0 lost: silent for", since,
             "SIGSTOP of the chief");
  name.Lead(new_port.port());
  const auto successor = Start(Chief(), {{"PEER_SERVE_PORT", std::to_string(new_port.port())}});
  EXPECT_GT(ExpectJoined({successor.get(), worker_.get(), other_.get()}), first_);
  chief_->Signal(SIGCONT);
  EXPECT_THAT(chief_->Expect("failed "),
              Optional(AllOf(HasSubstr("FAILED_PRECONDITION"), HasSubstr("stale incarnation"))));
  EXPECT_EQ(chief_->Wait(), 1);
  ExpectAgree({successor.get(), worker_.get(), other_.get()});
}

TEST_F(MembershipProcessTest, WithoutPeerReturnTheSurvivorsGiveUpAtOnce) {
  StartAll({{"PEER_RETURN_MS", "0"}});
  other_->Signal(SIGKILL);
  // The chief may be gone before the other survivor has heard the first news.
  EXPECT_THAT(chief_->Expect("failed "),
              Optional(AllOf(HasSubstr("UNAVAILABLE"), HasSubstr("worker-1 lost"))));
  EXPECT_THAT(worker_->Expect("failed "),
              Optional(AllOf(HasSubstr("UNAVAILABLE"),
                             AnyOf(HasSubstr("worker-1 lost"), HasSubstr("chief-0 lost")))));
  for (PeerProcess* peer : {chief_.get(), worker_.get()}) EXPECT_EQ(peer->Wait(), 1);
}

TEST_F(MembershipProcessTest, SurvivorsThatWaitedLongEnoughSayWhoIsMissing) {
  // The chief last: who gives up after it could only say that the chief is gone.
  StartAll({{"PEER_RETURN_MS", "5000"}}, {{"PEER_RETURN_MS", "1500"}});
  other_->Signal(SIGKILL);
  for (PeerProcess* peer : {worker_.get(), chief_.get()}) {
    const auto line = peer->Expect("failed ");
    EXPECT_THAT(line, Optional(HasSubstr("DEADLINE_EXCEEDED")));
    EXPECT_THAT(line, Optional(HasSubstr("worker-1 (lost: connection closed)")));
  }
}

TEST_F(MembershipProcessTest, WhoLeavesIsNotLost) {
  StartAll();
  other_->Tell("leave");
  EXPECT_THAT(other_->Expect("left"), Optional(std::string("left")));
  EXPECT_EQ(other_->Wait(), 0);
  worker_->Tell("agree plan x");
  EXPECT_THAT(worker_->Expect(""),
              Optional(AllOf(StartsWith("disagreed UNAVAILABLE"), HasSubstr("worker-1 left"))));
  for (PeerProcess* peer : {chief_.get(), worker_.get()}) peer->Tell("leave");
  for (PeerProcess* peer : {chief_.get(), worker_.get()}) {
    EXPECT_THAT(peer->Expect(""), Optional(std::string("left")));  // and no "lost" before
    EXPECT_EQ(peer->Wait(), 0);
  }
}

TEST_F(MembershipProcessTest, ATakenPortIsSaid) {
  chief_ = Start(Chief());
  // It serves when a worker hears of it.
  worker_ = Start(Worker(0));
  other_ = Start(Worker(1));
  ExpectJoined({chief_.get(), worker_.get(), other_.get()});
  const auto second = Start(Chief());
  EXPECT_THAT(second->Expect("failed "),
              Optional(AllOf(HasSubstr("UNAVAILABLE"), HasSubstr("Address already in use"))));
}

TEST_F(MembershipProcessTest, AWrongTokenAndAnotherJobAreRefusedOnBothSides) {
  StartAll();
  const auto guesser =
      Start(Worker(1), {{std::string(cluster::kEnvTokenFile), folder_ + "/other_token"}});
  EXPECT_THAT(guesser->Expect(""),
              Optional(AllOf(HasSubstr("PERMISSION_DENIED"), HasSubstr("token"))));
  std::this_thread::sleep_for(milliseconds(1100));  // the log says one refusal a second
  const auto stranger = Start(Worker(1), {{std::string(cluster::kEnvJob), "ml/other"}});
  EXPECT_THAT(stranger->Expect(""),
              Optional(AllOf(HasSubstr("FAILED_PRECONDITION"),
                             HasSubstr("expected job \"ml/test\", got: \"ml/other\""))));
  EXPECT_EQ(guesser->Wait(), 1);
  EXPECT_EQ(stranger->Wait(), 1);
  EXPECT_THAT(LogText(Chief()),
              AllOf(HasSubstr("PERMISSION_DENIED"), HasSubstr("got: \\\"ml/other")));
  ExpectAgree({chief_.get(), worker_.get(), other_.get()});
}

// Connections to 127.0.0.1:port that say nothing.
std::vector<int> ConnectIdle(int port, int count) {
  rlimit limit{};
  getrlimit(RLIMIT_NOFILE, &limit);
  if (limit.rlim_cur < limit.rlim_max) {
    limit.rlim_cur = limit.rlim_max;
    setrlimit(RLIMIT_NOFILE, &limit);
  }
  sockaddr_in address{.sin_family = AF_INET, .sin_port = htons(static_cast<uint16_t>(port))};
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  std::vector<int> out;
  const Duration end = SystemClock().Monotonic() + seconds(60);
  while (static_cast<int>(out.size()) < count && SystemClock().Monotonic() < end) {
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd >= 0 && connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0) {
      out.push_back(fd);
      continue;
    }
    if (fd >= 0) close(fd);
    std::this_thread::sleep_for(milliseconds(10));  // nobody listens yet
  }
  return out;
}

TEST_F(MembershipProcessTest, AThousandIdleConnectionsDoNotStopIt) {
  chief_ = Start(Chief());
  const auto idle = ConnectIdle(port_.port(), 1000);
  ASSERT_EQ(idle.size(), 1000u);
  worker_ = Start(Worker(0));
  other_ = Start(Worker(1));
  ExpectJoined({chief_.get(), worker_.get(), other_.get()});
  ExpectAgree({chief_.get(), worker_.get(), other_.get()});
  for (const int fd : idle) close(fd);
}

// A line of /proc/PID/status, in MiB.
int64_t MiBOf(const PeerProcess& process, const std::string& key) {
  const auto text = ReadFile("/proc/" + std::to_string(process.pid()) + "/status");
  if (!text.ok()) return -1;
  const size_t at = text->find(key + ":");
  return at == std::string::npos ? -1 : std::stoll(text->substr(at + key.size() + 1)) / 1024;
}

int64_t OpenFiles(const PeerProcess& process) {
  const std::filesystem::directory_iterator files("/proc/" + std::to_string(process.pid()) + "/fd");
  return std::distance(begin(files), end(files));
}

// What a server may grow by under any flood.
constexpr int64_t kFloodMiB = 64 * testing::kShadow + testing::kHeldBackMiB;

// The first 2 MiB of 1,500 calls made 2,918 MiB of 48 where the proof was looked at only when a
// whole message was there.
TEST_F(MembershipProcessTest, UnfinishedCallsOfStrangersTakeNoMemory) {
  chief_ = Start(Chief());
  ConnectIdle(port_.port(), 1);  // it serves
  const int64_t before = MiBOf(*chief_, "VmRSS");
  ASSERT_GT(before, 0);
  for (const std::string method : {"Agree", "Attend"}) {
    test::CallFlood flood(
        {.port = port_.port(),
         .method = "/meshtrain.v1.Rendezvous/" + method,
         .metadata = {{"meshtrain-protocol", std::to_string(rpc::kProtocolVersion)},
                      {"meshtrain-job", "ml/test"}}});
    ASSERT_TRUE(flood.WaitForCalls(1500, seconds(60)))
        << flood.calls_ended() << " ended, " << flood.calls_full() << " full";
    if (method == "Attend") {
      // The job comes together meanwhile, and agrees.
      worker_ = Start(Worker(0));
      other_ = Start(Worker(1));
      ExpectJoined({chief_.get(), worker_.get(), other_.get()});
      ExpectAgree({chief_.get(), worker_.get(), other_.get()});
    }
    EXPECT_EQ(flood.calls_full(), 0) << "a stranger's message was taken whole";
    std::cout << method << ": " << flood.calls_ended() << " calls, " << (flood.bytes_sent() >> 20)
              << " MiB sent, peak " << MiBOf(*chief_, "VmHWM") << " MiB of " << before << "\n";
  }
  EXPECT_LT(MiBOf(*chief_, "VmHWM") - before, kFloodMiB);
}

TEST_F(MembershipProcessTest, ConnectionsOfStrangersAreFewAndShort) {
  chief_ = Start(Chief());
  ConnectIdle(port_.port(), 1);
  const int64_t before = MiBOf(*chief_, "VmRSS");
  // As far as HTTP/2's preface, so that gRPC has them; they come again when they are ended, as fast
  // as a program that is not sanitized ends them.
  constexpr int kConnections = 1000 / testing::kShadow;
  const auto flood =
      test::Flood::Start(port_.port(), kConnections,
                         "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + std::string("\0\0\0\4\0\0\0\0\0", 9));
  ASSERT_TRUE(flood.ok()) << flood.status().ToString();
  worker_ = Start(Worker(0));
  other_ = Start(Worker(1));
  ExpectJoined({chief_.get(), worker_.get(), other_.get()});
  ExpectAgree({chief_.get(), worker_.get(), other_.get()});
  // Each takes two descriptors until it proves itself; what gRPC has yet to close comes on top.
  EXPECT_LT(OpenFiles(*chief_), 900);
  std::cout << kConnections << " connections: " << OpenFiles(*chief_) << " files, peak "
            << MiBOf(*chief_, "VmHWM") << " MiB of " << before << "\n";
  EXPECT_LT(MiBOf(*chief_, "VmHWM") - before, kFloodMiB);
}

TEST_F(MembershipProcessTest, ItOutlivesAShortageOfFileDescriptors) {
  chief_ = Start(Chief(), {{"PEER_MAX_FILES", "256"}});
  const auto idle = ConnectIdle(port_.port(), 1000);
  ASSERT_EQ(idle.size(), 1000u);
  const Duration since = Now();
  worker_ = Start(Worker(0));
  other_ = Start(Worker(1));
  ExpectJoined({chief_.get(), worker_.get(), other_.get()});
  std::cout << "together " << std::chrono::duration_cast<milliseconds>(Now() - since).count()
            << " ms after 1000 idle connections to a process that may open 256 files\n";
  ExpectAgree({chief_.get(), worker_.get(), other_.get()});
  EXPECT_THAT(LogText(Chief()), HasSubstr("too many open files"));
  for (const int fd : idle) close(fd);
}

}  // namespace
}  // namespace meshtrain::membership
