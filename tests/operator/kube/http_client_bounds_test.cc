// Answers without end, or that drip: none is read past its limit.
#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <nlohmann/json.hpp>
#include <thread>

#include "operator/kube/http_client.h"

namespace meshtrain::kube {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

// Accepts one connection, reads a request's head, says `first`, then `endless` again and again
// until the peer has had enough.
class EndlessServer {
 public:
  EndlessServer(std::string first, std::string endless) {
    listener_ = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    EXPECT_EQ(bind(listener_, reinterpret_cast<sockaddr*>(&address), size), 0);
    EXPECT_EQ(listen(listener_, 4), 0);
    getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &size);
    port_ = ntohs(address.sin_port);
    thread_ = std::thread([this, first = std::move(first), endless = std::move(endless)] {
      const int peer = accept(listener_, nullptr, nullptr);
      if (peer < 0) return;
      char bytes[4096];
      std::string head;
      while (head.find("\r\n\r\n") == std::string::npos) {
        const ssize_t n = recv(peer, bytes, sizeof bytes, 0);
        if (n <= 0) break;
        head.append(bytes, static_cast<size_t>(n));
      }
      std::string more;
      while (more.size() < (256 << 10)) more += endless;
      bool there = send(peer, first.data(), first.size(), MSG_NOSIGNAL) > 0;
      while (there) {
        const ssize_t n = send(peer, more.data(), more.size(), MSG_NOSIGNAL);
        there = n > 0;
        if (there) sent_ += static_cast<size_t>(n);
      }
      close(peer);
    });
  }
  ~EndlessServer() {
    shutdown(listener_, SHUT_RDWR);
    close(listener_);
    thread_.join();
  }
  std::string url() const { return "http://127.0.0.1:" + std::to_string(port_); }
  size_t sent() const { return sent_; }

 private:
  int listener_ = -1, port_ = 0;
  std::atomic<size_t> sent_ = 0;
  std::thread thread_;
};

constexpr char kHead[] = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n";

TEST(HttpClientBoundsTest, AnAnswerWithoutEndIsLeftWhateverItIsMadeOf) {
  struct Case {
    std::string name, first, endless;
    size_t most;
    bool watch = false;
  };
  const std::string chunked = std::string(kHead) + "Transfer-Encoding: chunked\r\n\r\n";
  const std::string kilobyte(1024, 'x');
  // A chunk of 1 KiB without a line's end.
  const std::string chunk = "400\r\n" + kilobyte + "\r\n";
  for (const Case& c : std::vector<Case>{
           {"status line", "HTTP/1.1 200 ", kilobyte, kMaxHead},
           {"header line", std::string(kHead) + "X: ", kilobyte, kMaxHead},
           {"headers", kHead, "X: y\r\n", kMaxHead},
           {"body", std::string(kHead) + "\r\n", kilobyte, kMaxObject},
           {"long body", std::string(kHead) + "Content-Length: 99999999999\r\n\r\n", kilobyte,
            kMaxObject},
           {"chunks", chunked, chunk, kMaxObject},
           {"chunk size", chunked, "0000000", kMaxObject},
           {"error's body", "HTTP/1.1 500 E\r\n\r\n", kilobyte, kMaxObject},
           {"watch's head", std::string(kHead) + "X: ", kilobyte, kMaxHead, true},
           {"watch's line", chunked, chunk, kMaxObject, true},
           {"watch's line as a body", std::string(kHead) + "\r\n", kilobyte, kMaxObject, true},
           {"watch's chunk size", chunked, "0000000", kMaxObject, true},
       }) {
    SCOPED_TRACE(c.name);
    EndlessServer server(c.first, c.endless);
    ClientConfig config;
    config.server = server.url();
    auto client = NewHttpClient(config, {}, SystemClock());
    ASSERT_TRUE(client.ok());
    const Status status =
        c.watch ? (*client)->Watch(Pods(), {.resource_version = "1"},
                                   [](WatchEventType, std::string_view, std::string_view) {}, {})
                : (*client)->Get(Pods(), "ml", "p", {}).status();
    EXPECT_EQ(status.code(), StatusCode::kDataLoss) << status.ToString();
    EXPECT_THAT(status.message(), HasSubstr("got: more"));
    // What the kernels hold between the two besides.
    EXPECT_LT(server.sent(), c.most + (16 << 20));
  }
}

TEST(HttpClientBoundsTest, AWatchMayTellMoreThanOneObjectsWorth) {
  std::string event = R"({"type":"BOOKMARK","object":{"metadata":{"resourceVersion":"8","x":")";
  event += std::string(1 << 20, 'x') + "\"}}}\n";
  EndlessServer server(std::string(kHead) + "\r\n", event);
  ClientConfig config;
  config.server = server.url();
  auto client = NewHttpClient(config, {}, SystemClock());
  ASSERT_TRUE(client.ok());
  std::stop_source stop;
  int events = 0;
  const Status status = (*client)->Watch(
      Pods(), {.resource_version = "1"},
      [&](WatchEventType, std::string_view, std::string_view) {
        if (++events == 40) stop.request_stop();
      },
      stop.get_token());
  EXPECT_EQ(status.code(), StatusCode::kCancelled) << status.ToString();
}

TEST(HttpClientBoundsTest, AnAnswerThatDripsEndsWithItsCall) {
  // Each byte comes in time for one read; the call's time is for all of them.
  class Drip : public Clock {
   public:
    TimePoint Now() const override { return SystemClock().Now(); }
    Duration Monotonic() const override { return Duration(ticks_ += 1'000'000'000); }
    bool SleepFor(Duration d, std::stop_token stop) override {
      return SystemClock().SleepFor(d, stop);
    }
    mutable std::atomic<int64_t> ticks_ = 0;  // a second for each look at it
  } clock;
  EndlessServer server(std::string(kHead) + "\r\n", "x");
  ClientConfig config;
  config.server = server.url();
  auto client = NewHttpClient(config, {}, clock);
  ASSERT_TRUE(client.ok());
  const Status status =
      (*client)->Get(Pods(), "ml", "p", {.timeout = std::chrono::seconds(50)}).status();
  EXPECT_EQ(status.code(), StatusCode::kDeadlineExceeded) << status.ToString();
}

}  // namespace
}  // namespace meshtrain::kube
