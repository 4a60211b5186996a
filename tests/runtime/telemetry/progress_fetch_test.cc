#include "runtime/telemetry/progress_fetch.h"

#include <gtest/gtest.h>
#include <httplib.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <functional>
#include <stop_token>
#include <string>
#include <thread>

#include "runtime/base/clock.h"
#include "tests/support/fake_clock.h"

namespace meshtrain::telemetry {
namespace {

using meshtrain::testing::StillClock;

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
  Result<std::string> Fetch() { return FetchProgress("127.0.0.1", port_, {}, StillClock()); }

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
  EXPECT_EQ(Fetch().status().code(), StatusCode::kDataLoss);
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
void UntilItGoes(int fd) {
  char byte;
  while (::recv(fd, &byte, 1, 0) > 0) {
  }
}

TEST(ProgressFetchTest, AServerThatDripsIsLeftAfterTwoSeconds) {
  for (const std::string_view begin :
       {"HTTP/1.1 200 OK\r\nX-Drip: ", "HTTP/1.1 200 OK\r\nContent-Length: 9999\r\n\r\n"}) {
    meshtrain::testing::FakeClock clock;
    // A byte every 50 ms of that clock, and fewer than an answer may have.
    const RawServer server([&](int fd) {
      Say(fd, begin);
      for (int i = 0; i < 1000 && Say(fd, "x"); ++i) {
        clock.Advance(std::chrono::milliseconds(50));
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      }
      UntilItGoes(fd);
    });
    const Status status = FetchProgress("127.0.0.1", server.port(), {}, clock).status();
    EXPECT_GE(clock.Monotonic(), Duration(std::chrono::seconds(2)));
    EXPECT_EQ(status.code(), StatusCode::kUnavailable);
    EXPECT_NE(status.message().find("expected an answer within 2 s"), std::string::npos)
        << status.message();
  }
}

TEST(ProgressFetchTest, HeadersWithoutEndAreNotRead) {
  std::atomic<size_t> taken = 0;
  RawServer server([&](int fd) {
    const std::string line = "X-Header: " + std::string(1000, 'x') + "\r\n";
    Say(fd, "HTTP/1.1 200 OK\r\n");
    while (taken < (size_t{1} << 30) && Say(fd, line)) taken += line.size();
  });
  EXPECT_EQ(FetchProgress("127.0.0.1", server.port(), {}, StillClock()).status().code(),
            StatusCode::kDataLoss);
  // What the kernel took beside what was read.
  EXPECT_LT(taken, size_t{64} << 20);
}

TEST(ProgressFetchTest, StopEndsIt) {
  std::stop_source stop;
  RawServer server([&](int fd) {
    stop.request_stop();
    UntilItGoes(fd);
  });
  EXPECT_EQ(
      FetchProgress("127.0.0.1", server.port(), stop.get_token(), StillClock()).status().code(),
      StatusCode::kCancelled);
}

TEST(ProgressFetchTest, OnesThatDoNotAnswerHoldUpNoOther) {
  // A listener that never accepts, more of them than threads would do, and one that answers.
  const int silent = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  ASSERT_EQ(::bind(silent, reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  ASSERT_EQ(::listen(silent, 256), 0);
  socklen_t size = sizeof address;
  ::getsockname(silent, reinterpret_cast<sockaddr*>(&address), &size);
  RawServer server([](int fd) {
    char request[256];
    EXPECT_GT(::recv(fd, request, sizeof request, 0), 0);
    Say(fd, "HTTP/1.0 200 OK\r\n\r\n{}");
  });
  meshtrain::testing::FakeClock clock;
  ProgressFetches fetches(clock);
  for (int i = 0; i < 100; ++i) fetches.Start(i, "127.0.0.1", ntohs(address.sin_port));
  fetches.Start(1000, "127.0.0.1", server.port());
  const auto first = fetches.Wait(std::chrono::hours(1), {});
  ASSERT_EQ(first.size(), 1u);
  EXPECT_EQ(first[0].id, 1000);
  EXPECT_EQ(*first[0].body, "{}");
  EXPECT_EQ(fetches.under_way(), 100u);
  clock.Advance(std::chrono::seconds(2));
  size_t ended = 0;
  while (ended < 100) {
    for (const auto& answer : fetches.Wait(std::chrono::hours(1), {})) {
      EXPECT_EQ(answer.body.status().code(), StatusCode::kUnavailable);
      ++ended;
    }
  }
  EXPECT_EQ(fetches.under_way(), 0u);
  fetches.Interrupt();
  EXPECT_TRUE(fetches.Wait(std::chrono::hours(1), {}).empty()) << "returns at once";
  ::close(silent);
}

TEST(ProgressFetchTest, ANameIsNotLookedUp) {
  const Status status = FetchProgress("localhost", 80, {}).status();
  EXPECT_EQ(status.code(), StatusCode::kUnavailable);
  EXPECT_NE(status.message().find("http://localhost:80/progress: expected an address"),
            std::string::npos)
      << status.message();
}

TEST(ProgressFetchTest, AnAnswerMayEndWithTheConnection) {
  RawServer server([](int fd) {
    char request[256];
    EXPECT_GT(::recv(fd, request, sizeof request, 0), 0);
    Say(fd, "HTTP/1.0 200 OK\r\n\r\n{\"step\":");
    Say(fd, "3}");
  });
  EXPECT_EQ(*FetchProgress("127.0.0.1", server.port(), {}, StillClock()), "{\"step\":3}");
}

TEST_F(ProgressHttpTest, FollowsNoRedirect) {
  handler_ = [](httplib::Response& response) { response.set_redirect("/elsewhere"); };
  EXPECT_FALSE(Fetch().ok());
  EXPECT_FALSE(redirected_);
}

}  // namespace
}  // namespace meshtrain::telemetry
