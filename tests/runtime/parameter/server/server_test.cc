// A server over the wire, without coordinator or worker.
#include "runtime/parameter/server/server.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "tests/runtime/parameter/cluster_testing.h"
#include "tests/runtime/parameter/server/store_testing.h"
#include "tests/support/temp_folder.h"

namespace meshtrain::parameter {
namespace {

using namespace testing_store;  // NOLINT: the test's own words
using std::chrono::milliseconds;
using std::chrono::seconds;
using testing_folder::TempFolder;

// A caller of one server, with the sample job on it.
class Client {
 public:
  explicit Client(int port)
      : peer_(Peer::Create("127.0.0.1:" + std::to_string(port), TestIdentity()).value()) {}

  template <typename Message>
  Result<std::string> Call(const char* method, const Message& message,
                           Duration timeout = seconds(20)) {
    return peer_->CallAndWait(method, {Encode(message), {}}, timeout, {});
  }
  Status SetUp(int64_t term) {
    MT_RETURN_IF_ERROR(Call(kServerSetUp, SetUpRequest{.term = term}).status());
    const std::vector<Definition> definitions = SampleDefinitions();
    for (size_t i = 0; i < definitions.size(); ++i) {
      MT_RETURN_IF_ERROR(
          Call(kServerDefine, DefineRequest{term, static_cast<int64_t>(i), definitions[i]})
              .status());
    }
    return OkStatus();
  }
  Result<PushReply> Push(PushId id) {
    const auto push = SamplePush(1, id, 1.0f, id.seq);
    Frame frame{Encode(push.request), {}};
    for (const Tensor& value : push.values) frame.payload.push_back(PieceOf(value));
    MT_ASSIGN_OR_RETURN(const std::string head,
                        peer_->CallAndWait(kServerPush, std::move(frame), seconds(20), {}));
    return Decode<PushReply>(head);
  }
  struct Pulled {
    PullReply reply;
    std::vector<Tensor> values;
  };
  Result<Pulled> Pull(const PullRequest& request, Duration timeout = seconds(20)) {
    Pulled pulled;
    MT_RETURN_IF_ERROR(
        peer_
            ->CallAndWait(kServerPull, {Encode(request), {}}, timeout, {},
                          [&](std::string_view head) -> Result<std::vector<std::span<std::byte>>> {
                            MT_ASSIGN_OR_RETURN(pulled.reply, Decode<PullReply>(head));
                            for (const TensorType& type : pulled.reply.types) {
                              pulled.values.emplace_back(type);
                            }
                            std::vector<std::span<std::byte>> to;
                            for (Tensor& t : pulled.values) to.push_back(t.mutable_bytes());
                            return to;
                          })
            .status());
    return pulled;
  }
  Result<ServerPingReply> Ping() {
    MT_ASSIGN_OR_RETURN(const std::string head,
                        peer_->CallAndWait(kServerPing, {}, seconds(20), {}));
    return Decode<ServerPingReply>(head);
  }

 private:
  std::unique_ptr<Peer> peer_;
};

std::unique_ptr<ParameterServer> ServeAt(const std::string& folder = "", int port = 0) {
  auto server = ParameterServer::Serve({port, TestIdentity(), {.folder = folder}});
  EXPECT_TRUE(server.ok()) << server.status().ToString();
  return server.ok() ? std::move(*server) : nullptr;
}

TEST(ServerTest, WhatWasPushedIsPulled) {
  const auto server = ServeAt();
  Client client(server->port());
  EXPECT_EQ(client.Ping()->term, 0);
  EXPECT_EQ(client.Push({0, 1, 0}).status().code(), StatusCode::kFailedPrecondition);
  ASSERT_TRUE(client.SetUp(1).ok());
  EXPECT_EQ(client.Push({0, 1, 0})->version, 1);
  EXPECT_TRUE(client.Push({0, 1, 0})->repeated_push);
  const auto pulled = client.Pull({1, {"n", "w/part_1"}, 1, -1});
  ASSERT_TRUE(pulled.ok()) << pulled.status().ToString();
  EXPECT_EQ(pulled->reply.version, 1);
  EXPECT_EQ(pulled->values[0].Item(), 1);
  EXPECT_EQ(pulled->values[1].dims(), (mesh::Dims{2, 2}));
  EXPECT_TRUE(client.Pull({1, {"n"}, 0, 1})->reply.unchanged);
  EXPECT_EQ(client.Pull({1, {"none"}, 0, -1}).status().code(), StatusCode::kFailedPrecondition);
  EXPECT_EQ(client.Pull({2, {"n"}, 0, -1}).status().code(), StatusCode::kFailedPrecondition);
  EXPECT_EQ(client.Pull({1, {"optimizer.iterations"}, 0, -1}).status().code(),
            StatusCode::kFailedPrecondition)
      << "slots stay on the server";
  const auto ping = client.Ping();
  EXPECT_EQ(ping->version, 1);
  EXPECT_EQ(ping->definitions, 2);
  EXPECT_TRUE(server->health().ok());
}

// A coordinator that pings right after SetUp took the answer of before for the loss of what was
// acknowledged.
TEST(ServerTest, PingsKnowWhatWasAnswered) {
  const auto server = ServeAt();
  Client client(server->port());
  for (int64_t term = 1; term <= 200; ++term) {
    ASSERT_TRUE(client.SetUp(term).ok());
    ASSERT_EQ(client.Ping()->term, term);
    ASSERT_EQ(client.Ping()->definitions, 2);
  }
}

TEST(ServerTest, APingEndsTheIncarnationsOfLostWorkers) {
  const auto server = ServeAt();
  Client client(server->port());
  ASSERT_TRUE(client.SetUp(1).ok());
  ASSERT_TRUE(client.Push({0, 1, 0}).ok());
  ASSERT_TRUE(client.Push({1, 1, 0}).ok());
  ASSERT_TRUE(client.Call(kServerPing, PingRequest{{"worker-0"}, 1, {2, 1}}).ok());
  EXPECT_EQ(client.Push({0, 1, 1}).status().code(), StatusCode::kFailedPrecondition);
  EXPECT_TRUE(client.Push({1, 1, 1}).ok());
  EXPECT_TRUE(client.Push({0, 2, 0}).ok());
  EXPECT_EQ(client.Ping()->version, 4);
}

TEST(ServerTest, APullWaitsForItsVersion) {
  const auto server = ServeAt();
  Client client(server->port());
  ASSERT_TRUE(client.SetUp(1).ok());
  EXPECT_EQ(client.Pull({1, {"n"}, 1, -1}, milliseconds(300)).status().code(),
            StatusCode::kDeadlineExceeded);
  std::atomic<int64_t> got{-1};
  std::jthread puller([&] {
    Client other(server->port());
    const auto pulled = other.Pull({1, {"n"}, 2, -1});
    if (pulled.ok()) got = pulled->reply.version;
  });
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(client.Push({0, 1, i}).ok());
  puller.join();
  EXPECT_GE(got.load(), 2);
  // Who waits while the term ends is told so.
  std::jthread waiter([&] {
    Client other(server->port());
    EXPECT_EQ(other.Pull({1, {"n"}, 99, -1}).status().code(), StatusCode::kFailedPrecondition);
  });
  SystemClock().SleepFor(milliseconds(100), {});
  ASSERT_TRUE(client.SetUp(2).ok());
}

TEST(ServerTest, PushesOfManyClientsAreAllAppliedAndDurable) {
  const TempFolder folder;
  auto server = ServeAt(folder.path());
  {
    Client client(server->port());
    ASSERT_TRUE(client.SetUp(1).ok());
    std::vector<std::jthread> pushers;
    for (int worker = 0; worker < 6; ++worker) {
      pushers.emplace_back([&, worker] {
        Client other(server->port());
        for (int i = 0; i < 20; ++i) {
          const auto pushed = other.Push({worker, 1, i});
          EXPECT_TRUE(pushed.ok()) << pushed.status().ToString();
        }
      });
    }
    pushers.clear();
    EXPECT_EQ(client.Pull({1, {"n"}, 0, -1})->values[0].Item(), 120);
  }
  const int port = server->port();
  server.reset();
  server = ServeAt(folder.path(), port);
  Client client(port);
  EXPECT_EQ(client.Ping()->version, 120);
  EXPECT_EQ(client.Pull({1, {"n"}, 0, -1})->values[0].Item(), 120);
}

TEST(ServerTest, WritesWhatItCut) {
  const TempFolder folder;
  const auto server = ServeAt(folder.path() + "/ps-0");
  Client client(server->port());
  ASSERT_TRUE(client.SetUp(1).ok());
  EXPECT_EQ(client.Call(kServerWrite, WriteRequest{1, 5}).status().code(),
            StatusCode::kFailedPrecondition);
  ASSERT_TRUE(client.Push({0, 1, 0}).ok());
  ASSERT_TRUE(client.Call(kServerCut, CutRequest{1, 5, folder.path()}).ok());
  ASSERT_TRUE(client.Push({0, 1, 1}).ok());  // is not in it
  const auto written = client.Call(kServerWrite, WriteRequest{1, 5, "hash", {{"epoch", "1"}}});
  ASSERT_TRUE(written.ok()) << written.status().ToString();
  const auto index = checkpoint::Index::ParsePart(Decode<WriteReply>(*written)->index, "part");
  ASSERT_TRUE(index.ok()) << index.status().ToString();
  EXPECT_EQ(index->variables.size(), 5u);
  EXPECT_EQ(index->metadata.at("epoch"), "1");
  EXPECT_EQ(client.Ping()->version, 2);
}

TEST(ServerTest, EndsInTheMiddleOfEverything) {
  auto server = ServeAt();
  Client client(server->port());
  ASSERT_TRUE(client.SetUp(1).ok());
  std::jthread puller([&, port = server->port()] {
    Client other(port);
    EXPECT_FALSE(other.Pull({1, {"n"}, 1000, -1}).ok());
  });
  std::atomic<bool> pushed{false};
  std::jthread pusher([&, port = server->port()] {
    Client other(port);
    for (int i = 0; other.Push({0, 1, i}).ok(); ++i) pushed = true;
  });
  for (int i = 0; i < 1000 && !pushed; ++i) SystemClock().SleepFor(milliseconds(10), {});
  server.reset();
  puller.join();
  pusher.join();
  EXPECT_TRUE(pushed);
}

}  // namespace
}  // namespace meshtrain::parameter
