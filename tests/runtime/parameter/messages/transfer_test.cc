// Frames over loopback: whole, in pieces, refused, cancelled, cut off.
#include "runtime/parameter/messages/transfer.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <fstream>
#include <iostream>
#include <optional>
#include <random>
#include <thread>

#include "runtime/base/file.h"
#include "runtime/base/mutex.h"
#include "runtime/rpc/grpc_internal.h"
#include "tests/support/call_flood.h"
#include "tests/support/shadow_memory.h"

namespace meshtrain::parameter {
namespace {

using mesh::DType;
using mesh::Tensor;
using mesh::TensorType;
using std::chrono::hours;
using std::chrono::milliseconds;
using std::chrono::seconds;

const Identity kUs = {.job = "ns/job", .security = {.token = "secret"}};

// The head of a test's request: sizes of its tensors in bytes, separated by spaces.
std::vector<TensorType> TypesOf(std::string_view head) {
  std::vector<TensorType> types;
  int64_t size = -1;
  for (const char c : std::string(head) + " ") {
    if (c == ' ') {
      if (size >= 0) types.push_back({DType::kU8, {size}});
      size = -1;
    } else {
      size = std::max<int64_t>(size, 0) * 10 + (c - '0');
    }
  }
  return types;
}

Tensor RandomBytes(std::mt19937_64& random, int64_t size) {
  Tensor t(TensorType{DType::kU8, {size}});
  for (uint8_t& b : t.mutable_values<uint8_t>()) b = static_cast<uint8_t>(random());
  return t;
}

// Answers Echo with what it got, Fail with an error, and keeps what Hold asks until it is let go.
class EchoServer {
 public:
  explicit EchoServer(const Identity& identity = kUs, int port = 0) {
    const auto types = [](std::string_view head) -> Result<std::vector<TensorType>> {
      if (head == "refuse") return NotFound("no such thing");
      return TypesOf(head);
    };
    std::map<std::string, Method> methods;
    methods["/test/Echo"] = {types, [](Request request, Reply reply) {
                               Frame frame{request.head, {}};
                               for (const Tensor& t : request.payload) {
                                 frame.payload.push_back(PieceOf(t));
                               }
                               reply(std::move(frame));
                             }};
    methods["/test/Fail"] = {nullptr,
                             [](Request, Reply reply) { reply(Aborted("read again, got: 7")); }};
    methods["/test/Hold"] = {nullptr, [this](Request request, Reply reply) {
                               MutexLock lock(mutex_);
                               if (ending_) return;
                               left_ = request.left;
                               held_.push_back(std::move(reply));
                               changed_.NotifyAll();
                             }};
    auto listener = Listener::Create({.port = port}, identity, std::move(methods));
    EXPECT_TRUE(listener.ok()) << listener.status().ToString();
    listener_ = std::move(*listener);
  }
  // The listener waits for the calls that it has, so one that comes as late as this is let go too.
  ~EchoServer() {
    {
      MutexLock lock(mutex_);
      ending_ = true;
    }
    LetGo();
  }

  std::string address() const { return "127.0.0.1:" + std::to_string(listener_->port()); }
  int port() const { return listener_->port(); }
  // False after a minute without one.
  bool WaitForHeld() {
    MutexLock lock(mutex_);
    return changed_.WaitFor(mutex_, {}, seconds(60), [&] { return !held_.empty(); });
  }
  Duration left() {
    MutexLock lock(mutex_);
    return left_;
  }
  void LetGo() {
    MutexLock lock(mutex_);
    held_.clear();
  }

 private:
  Mutex mutex_;
  CondVar changed_;
  std::vector<Reply> held_;
  bool ending_ = false;
  Duration left_{};
  std::unique_ptr<Listener> listener_;
};

// The last gRPC object of a process, gone as soon as its call has told its end: gRPC's threads end
// with it, and used to end themselves.
TEST(TransferTest, APeerMayGoAsSoonAsItsCallHasEnded) {
  for (int i = 0; i < 20; ++i) {
    auto peer = Peer::Create("127.0.0.1:1", {.job = "tests/transfer", .security = {}});
    ASSERT_TRUE(peer.ok()) << peer.status().ToString();
    const auto answer = (*peer)->CallAndWait("/x/y", {}, std::chrono::seconds(30), {});
    EXPECT_EQ(answer.status().code(), StatusCode::kUnavailable) << answer.status().ToString();
    peer->reset();
  }
}

TEST(TransferTest, TensorsComeBackBitForBit) {
  EchoServer server;
  const auto peer = Peer::Create(server.address(), kUs);
  ASSERT_TRUE(peer.ok()) << peer.status().ToString();
  std::mt19937_64 random(1);
  const int64_t chunk = int64_t{1} << 20;
  // Below and above what is copied; on, before and behind the ends of messages; nothing.
  for (const std::vector<int64_t>& sizes : {std::vector<int64_t>{},
                                            {0},
                                            {1},
                                            {2047, 2048, 2049},
                                            {chunk},
                                            {chunk - 1, 1, 1},
                                            {0, chunk + 1, 0, 3 * chunk},
                                            {5 * chunk + 17, 100000, 3}}) {
    Frame request;
    std::vector<Tensor> sent, got;
    for (const int64_t size : sizes) {
      request.head += std::to_string(size) + " ";
      sent.push_back(RandomBytes(random, size));
      got.emplace_back(TensorType{DType::kU8, {size}});
      request.payload.push_back(PieceOf(sent.back()));
    }
    const std::string head = request.head;
    const auto answer = (*peer)->CallAndWait(
        "/test/Echo", std::move(request), seconds(20), {}, [&](std::string_view h) {
          EXPECT_EQ(h, head);
          std::vector<std::span<std::byte>> parts;
          for (Tensor& t : got) parts.push_back(t.mutable_bytes());
          return Result<std::vector<std::span<std::byte>>>(std::move(parts));
        });
    ASSERT_TRUE(answer.ok()) << answer.status().ToString();
    EXPECT_EQ(*answer, head);
    for (size_t i = 0; i < sizes.size(); ++i) {
      ASSERT_EQ(std::memcmp(sent[i].bytes().data(), got[i].bytes().data(), sent[i].bytes().size()),
                0)
          << head;
    }
  }
}

TEST(TransferTest, RowsAreAPartOfTheTensor) {
  const std::vector<float> values = {0, 1, 2, 3, 4, 5};
  const Tensor t = Tensor::Of<float>({3, 2}, values);
  const Piece rows = RowsOf(t, 1, 2);
  ASSERT_EQ(rows.bytes.size(), 16u);
  EXPECT_EQ(std::memcmp(rows.bytes.data(), values.data() + 2, 16), 0);
  EXPECT_EQ(RowsOf(Tensor::Scalar(1.0f), 0, 1).bytes.size(), 4u);
}

TEST(TransferTest, ErrorsKeepTheirCode) {
  EchoServer server;
  const auto peer = Peer::Create(server.address(), kUs);
  const auto failed = (*peer)->CallAndWait("/test/Fail", {}, seconds(20), {});
  EXPECT_EQ(failed.status(), Aborted(server.address() + ": read again, got: 7"));
  EXPECT_EQ((*peer)->CallAndWait("/test/Echo", {"refuse", {}}, seconds(20), {}).status().code(),
            StatusCode::kNotFound);
  EXPECT_EQ((*peer)->CallAndWait("/test/None", {}, seconds(20), {}).status().code(),
            StatusCode::kUnimplemented);
  // More and less payload than the head says.
  const Tensor t = Tensor::Scalar<uint8_t>(1);
  EXPECT_EQ((*peer)->CallAndWait("/test/Echo", {"", {PieceOf(t)}}, seconds(20), {}).status().code(),
            StatusCode::kInvalidArgument);
  EXPECT_EQ(
      (*peer)->CallAndWait("/test/Echo", {"9", {PieceOf(t)}}, seconds(20), {}).status().code(),
      StatusCode::kInvalidArgument);
  // A payload that the caller has no place for.
  EXPECT_EQ(
      (*peer)->CallAndWait("/test/Echo", {"1", {PieceOf(t)}}, seconds(20), {}).status().code(),
      StatusCode::kInvalidArgument);
}

TEST(TransferTest, AnotherJobAndAWrongTokenAreRefused) {
  EchoServer server;
  Identity other = kUs;
  other.job = "ns/other";
  EXPECT_EQ((*Peer::Create(server.address(), other))
                ->CallAndWait("/test/Echo", {}, seconds(20), {})
                .status()
                .code(),
            StatusCode::kFailedPrecondition);
  other = kUs;
  other.security.token = "guess";
  EXPECT_EQ((*Peer::Create(server.address(), other))
                ->CallAndWait("/test/Echo", {}, seconds(20), {})
                .status()
                .code(),
            StatusCode::kPermissionDenied);
}

TEST(TransferTest, ACallEndsWithItsDeadlineOrItsStop) {
  EchoServer server;
  const auto peer = Peer::Create(server.address(), kUs);
  ASSERT_TRUE((*peer)->CallAndWait("/test/Echo", {}, seconds(20), {}).ok());  // connected
  EXPECT_EQ((*peer)->CallAndWait("/test/Hold", {}, seconds(1), {}).status().code(),
            StatusCode::kDeadlineExceeded);
  server.LetGo();
  std::stop_source stop;
  std::jthread stopper([&] {
    EXPECT_TRUE(server.WaitForHeld());
    stop.request_stop();
  });
  EXPECT_EQ((*peer)->CallAndWait("/test/Hold", {}, seconds(60), stop.get_token()).status().code(),
            StatusCode::kCancelled);
}

TEST(TransferTest, AServerKnowsHowLongItsCallerWaits) {
  EchoServer server;
  const auto peer = Peer::Create(server.address(), kUs);
  std::jthread dropper([&] {
    EXPECT_TRUE(server.WaitForHeld());
    server.LetGo();
  });
  EXPECT_EQ((*peer)->CallAndWait("/test/Hold", {}, hours(10), {}).status().code(),
            StatusCode::kCancelled);
  EXPECT_GT(server.left(), Duration(hours(9)));
  EXPECT_LT(server.left(), Duration(hours(11))) << "gRPC rounds it up";
}

TEST(TransferTest, ADroppedReplyIsAnAnswer) {
  EchoServer server;
  const auto peer = Peer::Create(server.address(), kUs);
  std::jthread dropper([&] {
    EXPECT_TRUE(server.WaitForHeld());
    server.LetGo();
  });
  EXPECT_EQ((*peer)->CallAndWait("/test/Hold", {}, seconds(60), {}).status().code(),
            StatusCode::kCancelled);
}

TEST(TransferTest, APeerThatIsGoneIsUnavailableAndComesBack) {
  auto server = std::make_unique<EchoServer>();
  const int port = server->port();
  const auto peer = Peer::Create(server->address(), kUs);
  ASSERT_TRUE((*peer)->CallAndWait("/test/Echo", {}, seconds(20), {}).ok());
  server.reset();
  EXPECT_EQ((*peer)->CallAndWait("/test/Echo", {}, seconds(20), {}).status().code(),
            StatusCode::kUnavailable);
  server = std::make_unique<EchoServer>(kUs, port);
  bool back = false;
  for (int i = 0; i < 100 && !back; ++i) {
    back = (*peer)->CallAndWait("/test/Echo", {}, seconds(20), {}).ok();
    if (!back) SystemClock().SleepFor(milliseconds(100), {});
  }
  EXPECT_TRUE(back);
}

TEST(TransferTest, ManyCallsAtOnceFromManyThreads) {
  EchoServer server;
  const auto peer = Peer::Create(server.address(), kUs);
  std::atomic<int> good{0};
  {
    std::vector<std::jthread> threads;
    for (int t = 0; t < 4; ++t) {
      threads.emplace_back([&, t] {
        std::mt19937_64 random(static_cast<uint64_t>(t));
        for (int i = 0; i < 30; ++i) {
          const int64_t size = static_cast<int64_t>(random() % 300000);
          const Tensor sent = RandomBytes(random, size);
          Tensor got(sent.type());
          const auto answer =
              (*peer)->CallAndWait("/test/Echo", {std::to_string(size), {PieceOf(sent)}},
                                   seconds(30), {}, [&](std::string_view) {
                                     return Result<std::vector<std::span<std::byte>>>(
                                         std::vector<std::span<std::byte>>{got.mutable_bytes()});
                                   });
          if (answer.ok() &&
              std::memcmp(sent.bytes().data(), got.bytes().data(), sent.bytes().size()) == 0) {
            ++good;
          }
        }
      });
    }
  }
  EXPECT_EQ(good.load(), 120);
}

TEST(TransferTest, APeerThatEndsCancelsItsCalls) {
  EchoServer server;
  auto peer = Peer::Create(server.address(), kUs);
  std::atomic<int> ended{0};
  for (int i = 0; i < 3; ++i) {
    (*peer)->Call("/test/Hold", {}, seconds(60), nullptr, [&](Result<std::string> result) {
      EXPECT_EQ(result.status().code(), StatusCode::kCancelled);
      ++ended;
    });
  }
  EXPECT_TRUE(server.WaitForHeld());
  peer->reset();
  EXPECT_EQ(ended.load(), 3);
}

// A line of /proc/self/status, in MiB.
int64_t MiB(const std::string& key) {
  const std::string text = ReadFile("/proc/self/status").value();
  return std::stoll(text.substr(text.find(key + ":") + key.size() + 1)) / 1024;
}

TEST(TransferTest, UnfinishedCallsOfStrangersTakeNoMemory) {
  EchoServer server;
  std::ofstream("/proc/self/clear_refs") << "5";  // the peak begins anew
  const int64_t before = MiB("VmRSS");
  {
    test::CallFlood flood(
        {.port = server.port(),
         .method = "/test/Echo",
         .metadata = {{"meshtrain-protocol", std::to_string(rpc::kProtocolVersion)},
                      {"meshtrain-job", "ns/job"}}});
    ASSERT_TRUE(flood.WaitForCalls(1500, seconds(60)))
        << flood.calls_ended() << " ended, " << flood.calls_full() << " full";
    // Who is known is served meanwhile. On a busy machine its connection may have to be begun anew.
    const auto peer = Peer::Create(server.address(), kUs).value();
    const auto end = std::chrono::steady_clock::now() + seconds(60);
    Result<std::string> answer = Unavailable("not called");
    while (answer.status().code() == StatusCode::kUnavailable &&
           std::chrono::steady_clock::now() < end) {
      answer = peer->CallAndWait("/test/Echo", Frame{"", {}}, seconds(60), {});
    }
    EXPECT_TRUE(answer.ok()) << answer.status().ToString();
    std::cout << flood.calls_ended() << " calls, " << (flood.bytes_sent() >> 20)
              << " MiB sent, peak " << MiB("VmHWM") << " MiB of " << before << "\n";
  }
  EXPECT_LT(MiB("VmHWM") - before, 128 * testing::kShadow) << "the flood's own buffers among them";
}

}  // namespace
}  // namespace meshtrain::parameter
