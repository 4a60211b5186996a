#include "operator/control/progress_puller.h"

#include <gtest/gtest.h>
#include <httplib.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <thread>
#include <vector>

#include "operator/reconcile/progress.h"

namespace meshtrain::control {
namespace {

void PutRunningLeader(Store& store, const std::string& uid, int version) {
  store.WroteJob(
      R"({"apiVersion":"meshtrain.dev/v1","kind":"TrainingJob","metadata":{"name":"mnist","namespace":"ml",
    "uid":"j1","resourceVersion":")" +
      std::to_string(version) + R"("},"spec":{"replicaSpecs":{"worker":{"template":
    {"spec":{"containers":[{"name":"trainer","image":"i"}]}}}}}})");
  store.WrotePod(R"({"metadata":{"name":"mnist-worker-0","namespace":"ml","uid":")" + uid +
                 R"(","resourceVersion":")" + std::to_string(version + 1) +
                 R"(","labels":{"meshtrain.dev/leader":"true"},"ownerReferences":[{
    "kind":"TrainingJob","name":"mnist","uid":"j1","controller":true}]},"spec":{"containers":[{"name":"trainer","ports":[
    {"name":"meshtrain-http","containerPort":2280}]}]},"status":{"phase":"Running","podIP":"10.0.0.9"}})");
}

TEST(ProgressPullerTest, AsksTheLeaderOncePerPeriodAndWakesTheJobWhenItMoved) {
  constexpr Duration kPeriod = std::chrono::milliseconds(10);
  Store store([](const std::string&) {});
  PutRunningLeader(store, "p1", 1);
  std::atomic<int> asked = 0, woken = 0;
  std::stop_source stop;
  ProgressPuller puller(
      store, SystemClock(),
      [&](const ProgressTarget& target, std::stop_token) -> Result<std::string> {
        EXPECT_EQ(target, (ProgressTarget{"10.0.0.9", 2280, "p1"}));
        const int n = ++asked;
        if (n == 4) stop.request_stop();
        return R"({"step":)" + std::to_string(n < 3 ? 10 : 20) + "}";
      },
      reconcile::ParseProgress,
      [&](const std::string& key) {
        EXPECT_EQ(key, "ml/mnist");
        ++woken;
      },
      kPeriod);
  const Duration start = SystemClock().Monotonic();
  for (int i = 0; i < 10; ++i) puller.Follow("ml/mnist");
  puller.Follow("ml/other");
  puller.Run(stop.get_token());
  EXPECT_EQ(asked, 4);
  EXPECT_GE(SystemClock().Monotonic() - start, 4 * kPeriod);
  EXPECT_EQ(woken, 2);
  ASSERT_TRUE(puller.Last("ml/mnist"));
  EXPECT_EQ(puller.Last("ml/mnist")->progress.step, 20);
}

TEST(ProgressPullerTest, AsksASilentPodLessAndLess) {
  constexpr Duration kPeriod = std::chrono::milliseconds(2);
  Store store([](const std::string&) {});
  PutRunningLeader(store, "p1", 1);
  std::vector<Duration> at;
  std::stop_source stop;
  ProgressPuller puller(
      store, SystemClock(),
      [&](const ProgressTarget&, std::stop_token) -> Result<std::string> {
        at.push_back(SystemClock().Monotonic());
        if (at.size() == 6) stop.request_stop();
        return Unavailable("nobody there");
      },
      reconcile::ParseProgress, [](const std::string&) { FAIL() << "nothing was learnt"; },
      kPeriod);
  puller.Follow("ml/mnist");
  puller.Run(stop.get_token());
  EXPECT_GE(at[1] - at[0], 2 * kPeriod);
  EXPECT_GE(at[5] - at[4], 12 * kPeriod);
  EXPECT_FALSE(puller.Last("ml/mnist"));
}

class ProgressHttpTest : public ::testing::Test {
 protected:
  void SetUp() override {
    server_.Get("/progress", [this](const httplib::Request&, httplib::Response& response) {
      handler_(response);
    });
    server_.Get("/elsewhere",
                [this](const httplib::Request&, httplib::Response&) { redirected_ = true; });
    port_ = server_.bind_to_any_port("127.0.0.1");
    thread_ = std::thread([this] { server_.listen_after_bind(); });
    while (!server_.is_running()) std::this_thread::yield();
  }
  void TearDown() override {
    server_.stop();
    thread_.join();
  }
  Result<std::string> Fetch() { return FetchProgressOverHttp({"127.0.0.1", port_, "u"}, {}); }

  httplib::Server server_;
  std::function<void(httplib::Response&)> handler_;
  std::atomic<bool> redirected_ = false;
  int port_ = 0;
  std::thread thread_;
};

TEST_F(ProgressHttpTest, TakesASmallAnswerOnly) {
  handler_ = [](httplib::Response& response) {
    response.set_content(R"({"step":1})", "application/json");
  };
  EXPECT_EQ(*Fetch(), R"({"step":1})");
  handler_ = [](httplib::Response& response) {
    response.set_content(std::string(1 << 20, 'x'), "j");
  };
  EXPECT_EQ(Fetch().status().code(), StatusCode::kUnavailable);
}

// Answers one connection by hand: `serve` gets the socket.
class RawServer {
 public:
  explicit RawServer(std::function<void(int fd)> serve) {
    listener_ = ::socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(::bind(listener_, reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
    EXPECT_EQ(::listen(listener_, 1), 0);
    socklen_t size = sizeof address;
    ::getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &size);
    port_ = ntohs(address.sin_port);
    thread_ = std::thread([this, serve = std::move(serve)] {
      const int fd = ::accept(listener_, nullptr, nullptr);
      serve(fd);
      ::close(fd);
    });
  }
  ~RawServer() {
    thread_.join();
    ::close(listener_);
  }
  int port() const { return port_; }

 private:
  int listener_ = -1;
  int port_ = 0;
  std::thread thread_;
};
bool Say(int fd, std::string_view text) {
  return ::send(fd, text.data(), text.size(), MSG_NOSIGNAL) > 0;
}

TEST(ProgressFetchTest, AServerThatDripsIsLeftAfterTwoSeconds) {
  for (const std::string_view begin :
       {"HTTP/1.1 200 OK\r\nX-Drip: ", "HTTP/1.1 200 OK\r\nContent-Length: 9999\r\n\r\n"}) {
    RawServer server([&](int fd) {
      Say(fd, begin);
      // Until the other side has gone.
      for (int i = 0; i < 200 && Say(fd, "x"); ++i) {
        std::this_thread::sleep_for(std::chrono::milliseconds(50));
      }
    });
    const Duration start = SystemClock().Monotonic();
    const auto got = FetchProgressOverHttp({"127.0.0.1", server.port(), "u"}, {});
    EXPECT_EQ(got.status().code(), StatusCode::kUnavailable);
    const Duration took = SystemClock().Monotonic() - start;
    EXPECT_GE(took, std::chrono::milliseconds(1900));
    EXPECT_LT(took, std::chrono::seconds(8)) << "the server drips for ten seconds";
  }
}

TEST(ProgressFetchTest, HeadersWithoutEndAreNotRead) {
  std::atomic<size_t> taken = 0;
  RawServer server([&](int fd) {
    const std::string line = "X-Header: " + std::string(1000, 'x') + "\r\n";
    Say(fd, "HTTP/1.1 200 OK\r\n");
    while (taken < (size_t{1} << 30) && Say(fd, line)) taken += line.size();
  });
  EXPECT_EQ(FetchProgressOverHttp({"127.0.0.1", server.port(), "u"}, {}).status().code(),
            StatusCode::kUnavailable);
  // What the kernel took beside what was read.
  EXPECT_LT(taken, size_t{64} << 20);
}

TEST(ProgressFetchTest, AnAnswerMayEndWithTheConnection) {
  RawServer server([](int fd) {
    char request[256];
    EXPECT_GT(::recv(fd, request, sizeof request, 0), 0);
    Say(fd, "HTTP/1.0 200 OK\r\n\r\n{\"step\":");
    Say(fd, "3}");
  });
  EXPECT_EQ(*FetchProgressOverHttp({"127.0.0.1", server.port(), "u"}, {}), "{\"step\":3}");
}

TEST_F(ProgressHttpTest, FollowsNoRedirect) {
  handler_ = [](httplib::Response& response) { response.set_redirect("/elsewhere"); };
  EXPECT_FALSE(Fetch().ok());
  EXPECT_FALSE(redirected_);
}

}  // namespace
}  // namespace meshtrain::control
