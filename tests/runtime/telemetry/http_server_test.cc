#include "runtime/telemetry/http_server.h"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <httplib.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <optional>
#include <stdexcept>
#include <thread>
#include <vector>

#include "tests/support/fake_clock.h"
#include "tests/support/flood.h"

namespace meshtrain::telemetry {
namespace {

using meshtrain::testing::StillClock;
using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::HasSubstr;
using ::testing::StartsWith;

// Longer than anything takes that does not hang.
constexpr seconds kPatience{60};

std::unique_ptr<HttpServer> Serve(const std::string& page = "hello\n",
                                  Clock& clock = StillClock()) {
  auto server = HttpServer::Start(
      "127.0.0.1", 0,
      {{"/page", [page]() -> HttpAnswer { return {.type = "text/plain", .body = page}; }}}, clock);
  EXPECT_TRUE(server.ok()) << server.status().ToString();
  return *std::move(server);
}

// A client that decides for itself when to send and when to read; no wait is longer than kPatience.
class Peer {
 public:
  explicit Peer(int port, int receive_buffer = 0) : fd_(::socket(AF_INET, SOCK_STREAM, 0)) {
    if (receive_buffer > 0) {
      ::setsockopt(fd_, SOL_SOCKET, SO_RCVBUF, &receive_buffer, sizeof receive_buffer);
    }
    const timeval patience{.tv_sec = kPatience.count(), .tv_usec = 0};
    ::setsockopt(fd_, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    ::setsockopt(fd_, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience);
    const sockaddr_in to{.sin_family = AF_INET,
                         .sin_port = htons(static_cast<uint16_t>(port)),
                         .sin_addr = {htonl(INADDR_LOOPBACK)},
                         .sin_zero = {}};
    EXPECT_EQ(::connect(fd_, reinterpret_cast<const sockaddr*>(&to), sizeof to), 0);
  }
  ~Peer() { ::close(fd_); }
  Peer(const Peer&) = delete;
  Peer& operator=(const Peer&) = delete;

  bool Say(const std::string& text) const {
    return ::send(fd_, text.data(), text.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(text.size());
  }
  // What comes until the server ends the connection; nullopt when it has not in time.
  std::optional<std::string> Hear() const {
    std::string all;
    std::array<char, 4096> buffer;
    for (;;) {
      const ssize_t n = ::recv(fd_, buffer.data(), buffer.size(), 0);
      if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return std::nullopt;
      if (n <= 0) return all;
      all.append(buffer.data(), static_cast<size_t>(n));
    }
  }
  bool Ended() const {
    pollfd look{.fd = fd_, .events = POLLIN, .revents = 0};
    return ::poll(&look, 1, 0) > 0;
  }

 private:
  const int fd_;
};

std::string Ask(int port, const std::string& text) {
  const Peer peer(port);
  EXPECT_TRUE(peer.Say(text));
  return peer.Hear().value_or("still open");
}

TEST(HttpServerTest, AnswersWhatItIsAskedAndEndsTheConnection) {
  const auto server = Serve();
  const int port = server->port();
  EXPECT_EQ(Ask(port, "GET /page HTTP/1.1\r\nHost: x\r\n\r\n"),
            "HTTP/1.1 200 OK\r\nCache-Control: no-store\r\nConnection: close\r\n"
            "Content-Length: 6\r\nContent-Type: text/plain\r\n\r\nhello\n");
  EXPECT_THAT(Ask(port, "GET /page?a=b HTTP/1.0\r\n\r\n"), HasSubstr("\r\n\r\nhello\n"));
  EXPECT_THAT(
      Ask(port, "HEAD /page HTTP/1.1\r\n\r\n"),
      ::testing::AllOf(HasSubstr("Content-Length: 6\r\n"), ::testing::EndsWith("\r\n\r\n")));
  EXPECT_THAT(Ask(port, "GET /pages HTTP/1.1\r\n\r\n"), StartsWith("HTTP/1.1 404 "));
  EXPECT_THAT(Ask(port, "POST /page HTTP/1.1\r\nContent-Length: 0\r\n\r\n"),
              StartsWith("HTTP/1.1 404 "));
  EXPECT_THAT(Ask(port, "POST /page HTTP/1.1\r\nContent-Length: 3\r\n\r\nabc"),
              StartsWith("HTTP/1.1 413 "));
  for (const char* bad :
       {"\r\n\r\n", "GET\r\n\r\n", "GET /page\r\n\r\n", "GET /page FTP/1.1\r\n\r\n"}) {
    EXPECT_THAT(Ask(port, bad), StartsWith("HTTP/1.1 400 "));
  }
  EXPECT_EQ(Ask(port, "GET /page HTTP/1.1\r\nX: " + std::string(9000, 'x') + "\r\n\r\n"), "");
}

// Each of as many as fit a head would be a part of the answer.
TEST(HttpServerTest, RangesAreNotHonoured) {
  const std::string page(100'000, 'x');
  const auto server = Serve(page);
  std::string many = "bytes=0-";
  while (many.size() < 8000) many += ",0-";
  for (const std::string& range : {std::string("bytes=0-9"), std::string("what"), many}) {
    for (const char* name : {"Range", "rANGE"}) {
      const std::string answer =
          Ask(server->port(), "GET /page HTTP/1.1\r\nHost: x\r\n" + std::string(name) + ": " +
                                  range + "\r\nX: y\r\n\r\n");
      EXPECT_THAT(answer, StartsWith("HTTP/1.1 200 ")) << range.substr(0, 20);
      EXPECT_THAT(answer, ::testing::EndsWith("\r\n\r\n" + page)) << answer.size() << " bytes";
    }
  }
}

TEST(HttpServerTest, ARequestMayComeInPieces) {
  const auto server = Serve();
  const Peer peer(server->port());
  for (const char piece : std::string("GET /page HTTP/1.1\r\n\r\n")) {
    EXPECT_TRUE(peer.Say(std::string(1, piece)));
    std::this_thread::sleep_for(milliseconds(5));
  }
  EXPECT_THAT(peer.Hear().value_or("still open"), HasSubstr("\r\n\r\nhello\n"));
}

TEST(HttpServerTest, AScraperThatWouldKeepItsConnectionIsAnsweredEachTime) {
  const auto server = Serve();
  httplib::Client client("127.0.0.1", server->port());
  client.set_keep_alive(true);
  for (int i = 0; i < 10; ++i) EXPECT_EQ(client.Get("/page")->body, "hello\n");
}

TEST(HttpServerTest, AnAnswerLargerThanAnyBufferArrivesWhole) {
  const std::string page(20 << 20, 'x');
  const auto server = Serve(page);
  const std::string answer = Ask(server->port(), "GET /page HTTP/1.1\r\n\r\n");
  ASSERT_GT(answer.size(), page.size());
  EXPECT_EQ(answer.compare(answer.size() - page.size(), page.size(), page), 0);
}

TEST(HttpServerTest, ATrickleHasTheSameDeadlineAsSilence) {
  meshtrain::testing::FakeClock clock;
  const auto server = Serve("hello\n", clock);
  const Peer silent(server->port()), trickle(server->port());
  EXPECT_TRUE(trickle.Say("GET /page HTTP/1.1\r\nX: "));
  // Whoever comes later is answered later, so a look at the page shows that both are in, and that
  // the server has read the clock.
  const auto look = [&] {
    const auto answer = test::Get(server->port(), "/page", kPatience);
    EXPECT_TRUE(answer.ok()) << answer.status().ToString();
  };
  look();
  for (int i = 0; i < 19; ++i) {
    clock.Advance(milliseconds(100));
    EXPECT_TRUE(trickle.Say("x"));
    look();
    ASSERT_FALSE(trickle.Ended()) << i;
    ASSERT_FALSE(silent.Ended()) << i;
  }
  clock.Advance(milliseconds(100));
  (void)trickle.Say("x");
  EXPECT_EQ(trickle.Hear(), "");
  EXPECT_EQ(silent.Hear(), "");
}

TEST(HttpServerTest, BeyondItsBoundTheOldestConnectionGoes) {
  const auto server = Serve();
  const Peer oldest(server->port());
  EXPECT_TRUE(oldest.Say("G"));
  ASSERT_TRUE(test::Get(server->port(), "/page", kPatience).ok());
  EXPECT_FALSE(oldest.Ended());
  std::vector<std::unique_ptr<Peer>> others;
  for (int i = 0; i < 256; ++i) others.push_back(std::make_unique<Peer>(server->port()));
  EXPECT_EQ(oldest.Hear(), "");
  EXPECT_FALSE(others.back()->Ended());
  EXPECT_TRUE(others.back()->Say("GET /page HTTP/1.1\r\n\r\n"));
  EXPECT_THAT(others.back()->Hear().value_or("still open"), HasSubstr("hello\n"));
}

TEST(HttpServerTest, WhoeverReadsNothingKeepsNobodyWaiting) {
  std::atomic<int> made = 0;
  auto server = HttpServer::Start(
      "127.0.0.1", 0,
      {{"/large",
        [&made]() -> HttpAnswer {
          ++made;
          return {.type = "text/plain", .body = std::string(1 << 20, 'x')};
        }},
       {"/healthz", []() -> HttpAnswer { return {.type = "text/plain", .body = "ok\n"}; }}},
      StillClock());
  ASSERT_TRUE(server.ok());
  const int port = (*server)->port();
  std::vector<std::unique_ptr<Peer>> peers;
  for (int i = 0; i < 100; ++i) {
    peers.push_back(std::make_unique<Peer>(port, /*receive_buffer=*/4096));
    EXPECT_TRUE(peers.back()->Say("GET /large HTTP/1.1\r\n\r\n"));
    if (i % 10 == 0) {
      const auto answer = test::Get(port, "/healthz", kPatience);
      EXPECT_TRUE(answer.ok()) << answer.status().ToString();
    }
  }
  // Eight answers are held at most: the first to ask has been dropped for those who came later.
  EXPECT_GE(made, 90);
  EXPECT_LT(peers.front()->Hear().value_or("").size(), size_t{1} << 20);
}

TEST(HttpServerTest, StopLetsAnAnswerInProgressLeave) {
  const std::string page(4 << 20, 'x');
  const auto server = Serve(page);
  const Peer peer(server->port(), /*receive_buffer=*/4096), silent(server->port());
  EXPECT_TRUE(peer.Say("GET /page HTTP/1.1\r\n\r\n"));
  while (!peer.Ended()) std::this_thread::sleep_for(milliseconds(1));  // the beginning is there
  EXPECT_EQ(server->Stop(milliseconds(10)).code(), StatusCode::kDeadlineExceeded);
  EXPECT_GT(peer.Hear().value_or("").size(), page.size());
  EXPECT_EQ(server->Stop(kPatience), OkStatus());
  EXPECT_EQ(silent.Hear(), "");
}

TEST(HttpServerTest, StopWaitsLittleForWhoeverReadsNothing) {
  meshtrain::testing::FakeClock clock;
  const auto server = Serve(std::string(4 << 20, 'x'), clock);
  const Peer silent(server->port()), peer(server->port(), /*receive_buffer=*/4096);
  EXPECT_TRUE(peer.Say("GET /page HTTP/1.1\r\n\r\n"));
  while (!peer.Ended()) std::this_thread::sleep_for(milliseconds(1));  // the beginning is there
  EXPECT_EQ(server->Stop(milliseconds(10)).code(), StatusCode::kDeadlineExceeded);
  EXPECT_EQ(silent.Hear(), "");  // it knows that it stops
  clock.Advance(seconds(2));     // of the 10 that an answer has otherwise
  EXPECT_EQ(server->Stop(kPatience), OkStatus());
}

TEST(HttpServerTest, AThrowingPageIsAnswered) {
  auto server = HttpServer::Start(
      "127.0.0.1", 0, {{"/page", []() -> HttpAnswer { throw std::runtime_error("no"); }}},
      StillClock());
  ASSERT_TRUE(server.ok());
  EXPECT_THAT(Ask((*server)->port(), "GET /page HTTP/1.1\r\n\r\n"), StartsWith("HTTP/1.1 500 "));
}

TEST(HttpServerTest, AnAddressThatIsTakenOrUnknownIsAnError) {
  const auto server = Serve();
  EXPECT_EQ(HttpServer::Start("127.0.0.1", server->port(), {}).status().code(),
            StatusCode::kUnavailable);
  EXPECT_EQ(HttpServer::Start("192.0.2.1", 0, {}).status().code(), StatusCode::kUnavailable);
}

}  // namespace
}  // namespace meshtrain::telemetry
