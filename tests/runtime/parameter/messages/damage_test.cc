// Bytes that change between two processes: noticed, counted, sent again, never applied.
#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <random>

#include "tests/runtime/membership/flipping_proxy.h"
#include "tests/runtime/parameter/cluster_testing.h"
#include "tests/runtime/parameter/jobs_testing.h"
#include "tests/runtime/parameter/must.h"
#include "tests/runtime/parameter/seed.h"
#include "tests/support/temp_folder.h"

namespace meshtrain::parameter {
namespace {

using membership::FlippingProxy;
using mesh::DType;
using mesh::Tensor;
using mesh::TensorType;
using std::chrono::seconds;
using testing_folder::TempFolder;

// Answers with the tensor of bytes that it got; the head is its size.
class Echo {
 public:
  Echo() {
    std::map<std::string, Method> methods;
    methods["/test/Echo"] = {
        [](std::string_view head) -> Result<std::vector<TensorType>> {
          return std::vector<TensorType>{{DType::kU8, {std::stoll(std::string(head))}}};
        },
        [this](Request request, Reply reply) {
          ++handled_;
          reply(Frame{request.head, {PieceOf(request.payload[0])}});
        }};
    listener_ = Must(Listener::Create({}, TestIdentity(), std::move(methods)));
  }
  int port() const { return listener_->port(); }
  int handled() const { return handled_; }

 private:
  std::atomic<int> handled_ = 0;
  std::unique_ptr<Listener> listener_;
};

// Sends so many random bytes; an error, or kDataLoss where they came back as others.
Status SendAndCompare(Peer& peer, std::mt19937_64& random, int64_t size,
                      Repeat repeat = Repeat::kAllowed) {
  Tensor sent(TensorType{DType::kU8, {size}});
  for (uint8_t& b : sent.mutable_values<uint8_t>()) b = static_cast<uint8_t>(random());
  Tensor got(sent.type());
  std::atomic<bool> done = false;
  Result<std::string> head = Internal("not set");
  peer.Call(
      "/test/Echo", {std::to_string(size), {PieceOf(sent)}}, seconds(60),
      [&](std::string_view) {
        return Result<std::vector<std::span<std::byte>>>(
            std::vector<std::span<std::byte>>{got.mutable_bytes()});
      },
      [&](Result<std::string> answer) {
        head = std::move(answer);
        done = true;
        done.notify_all();
      },
      repeat);
  done.wait(false);
  if (!head.ok()) return head.status();
  const bool same = std::memcmp(sent.bytes().data(), got.bytes().data(), sent.bytes().size()) == 0;
  return same && *head == std::to_string(size) ? OkStatus() : DataLoss("other bytes came back");
}

TEST(DamageTest, WhatChangedOnTheWayIsSentAgain) {
  Echo server;
  const uint64_t seed = testing_seed::FromEnvironment();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937_64 random(seed);
  const int64_t before = DamagedFrames();
  int64_t flipped = 0;
  {
    FlippingProxy line(server.port(), {.requests = 0.2, .answers = 0.2}, seed);
    const auto peer = Must(Peer::Create(line.address(), TestIdentity()));
    for (int i = 0; i < 300; ++i) {
      const Status status = SendAndCompare(*peer, random, static_cast<int64_t>(random() % 3000));
      ASSERT_TRUE(status.ok()) << status.ToString();
    }
    flipped += line.flipped();
  }
  {
    // Several messages each way, so a smaller share of them.
    FlippingProxy line(server.port(), {.requests = 0.03, .answers = 0.03}, seed);
    const auto peer = Must(Peer::Create(line.address(), TestIdentity()));
    for (int i = 0; i < 20; ++i) {
      const Status status = SendAndCompare(*peer, random, (int64_t{5} << 19) + i);
      ASSERT_TRUE(status.ok()) << status.ToString();
    }
    flipped += line.flipped();
  }
  const int64_t damaged = DamagedFrames() - before;
  EXPECT_GT(flipped, 60);
  EXPECT_GT(damaged, 60);
  EXPECT_LE(damaged, flipped) << "a frame of several messages may have more than one";
}

TEST(DamageTest, ALineThatChangesEverythingIsUnavailableAndNothingIsHandled) {
  Echo server;
  FlippingProxy line(server.port(), {.requests = 1}, 1);
  const auto peer = Must(Peer::Create(line.address(), TestIdentity()));
  std::mt19937_64 random(1);
  const Status status = SendAndCompare(*peer, random, 100);
  EXPECT_EQ(status.code(), StatusCode::kUnavailable);
  EXPECT_NE(status.message().find("bytes changed on the way"), std::string::npos)
      << status.ToString();
  EXPECT_EQ(server.handled(), 0);
  EXPECT_EQ(line.flipped(), 9) << "once, and eight times again";
}

TEST(DamageTest, WhatMayNotBeRepeatedIsHandledOnce) {
  Echo server;
  FlippingProxy line(server.port(), {.answers = 1}, 1);
  const auto peer = Must(Peer::Create(line.address(), TestIdentity()));
  std::mt19937_64 random(1);
  EXPECT_EQ(SendAndCompare(*peer, random, 100, Repeat::kNever).code(), StatusCode::kUnavailable);
  EXPECT_EQ(server.handled(), 1);
  // Nobody has handled a request that was damaged: that one may always come again.
  FlippingProxy there(server.port(), {.requests = 0.5}, 1);
  const auto other = Must(Peer::Create(there.address(), TestIdentity()));
  for (int i = 0; i < 30; ++i) {
    const Status status = SendAndCompare(*other, random, 100, Repeat::kNever);
    ASSERT_TRUE(status.ok()) << status.ToString();
  }
  EXPECT_GT(there.flipped(), 5);
  EXPECT_EQ(server.handled(), 31);
}

// Every variable and slot of a digits MLP after 40 steps, one at a time.
std::map<std::string, Tensor> Train(const CoordinatorOptions& options,
                                    std::vector<double>* losses) {
  const auto coordinator = Must(Coordinator::Create(options));
  const BatchTypes types[] = {{F32({50, 28, 28}), {DType::kI32, {50}}}};
  const Training training = Must(coordinator->DefineTraining(
      DigitsRecipe(train::Adam({.common = {.learning_rate = 0.003}}), 32), types));
  const PerWorker data = Must(coordinator->CreatePerWorkerDataset("train", DigitsData(50)));
  for (int i = 0; i < 40; ++i) {
    const RemoteValue value = Must(coordinator->Schedule(training.step, {data}));
    losses->push_back(LossOf(Must(coordinator->Fetch(value, {}, seconds(60)))));
  }
  EXPECT_TRUE(coordinator->Join({}, seconds(60)).ok());
  EXPECT_EQ(coordinator->stats().steps_rerun, 0);
  std::map<std::string, Tensor> states;
  for (const auto& [name, parts] : coordinator->planner().states()) {
    states.emplace(name, Must(coordinator->Read(name)));
  }
  return states;
}

void ExpectSame(const std::map<std::string, Tensor>& a, const std::map<std::string, Tensor>& b) {
  ASSERT_EQ(a.size(), b.size());
  for (const auto& [name, value] : a) {
    const Tensor& other = b.at(name);
    ASSERT_EQ(value.type(), other.type()) << name;
    EXPECT_EQ(std::memcmp(value.bytes().data(), other.bytes().data(), value.bytes().size()), 0)
        << name;
  }
}

TEST(DamageTest, TrainingOverABadLineIsTheUndisturbedTraining) {
  const uint64_t seed = testing_seed::FromEnvironment();
  SCOPED_TRACE("seed " + std::to_string(seed));
  const auto options_of = [](const TestCluster& cluster) {
    CoordinatorOptions options = cluster.options();
    options.partitioner = MinSize{8192, 3};
    options.seed = 11;
    return options;
  };
  std::vector<double> want_losses, losses;
  const TestCluster calm(2, 1);
  const auto want = Train(options_of(calm), &want_losses);

  const TempFolder folder;
  TestCluster cluster(2, 1, folder.path());
  CoordinatorOptions options = options_of(cluster);
  std::vector<std::unique_ptr<FlippingProxy>> lines;
  for (auto& [index, address] : options.cluster.hosts[cluster::Role::kPs]) {
    const int port = std::stoi(address.substr(address.rfind(':') + 1));
    lines.push_back(std::make_unique<FlippingProxy>(
        port, FlippingProxy::Share{.requests = 0.1, .answers = 0.1}, seed + 100 * lines.size()));
    address = lines.back()->address();
  }
  const int64_t before = DamagedFrames();
  const auto states = Train(options, &losses);
  EXPECT_EQ(losses, want_losses);
  ExpectSame(states, want);
  EXPECT_EQ(states.at("optimizer.iterations").Item(), 40);
  int64_t flipped = 0;
  for (const auto& line : lines) {
    EXPECT_GT(line->flipped(), 0);
    flipped += line->flipped();
  }
  const int64_t damaged = DamagedFrames() - before;
  std::printf("%lld bits flipped, %lld frames damaged\n", static_cast<long long>(flipped),
              static_cast<long long>(damaged));
  EXPECT_GT(damaged, 0);
  EXPECT_LE(damaged, flipped);

  // And what the servers logged, of what lies whole on one of them.
  int compared = 0;
  for (int s = 0; s < 2; ++s) {
    EXPECT_GE(cluster.server(s).stats().pushes, 40);
    cluster.StopServer(s);
    StoreOptions logged;
    logged.folder = folder.path() + "/ps-" + std::to_string(s);
    const auto store = Must(Store::Open(logged));
    for (const auto& [name, value] : store->newest()->values) {
      const auto whole = want.find(name);
      if (whole == want.end() || whole->second.type() != value.type()) continue;
      const auto bytes = value.bytes();
      EXPECT_EQ(std::memcmp(bytes.data(), whole->second.bytes().data(), bytes.size()), 0) << name;
      ++compared;
    }
  }
  EXPECT_GT(compared, 0);
}

}  // namespace
}  // namespace meshtrain::parameter
