#include "runtime/telemetry/endpoints.h"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <httplib.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <thread>

#include "tests/support/flood.h"

namespace meshtrain::telemetry {
namespace {

struct Server {
  std::atomic<bool> ready = false;
  std::unique_ptr<Endpoints> endpoints;

  Server() {
    auto started =
        Endpoints::Start({}, {.metrics = [] { return std::string("meshtrain_steps_total 1\n"); },
                              .progress = [] { return std::string("{\"step\":7}"); },
                              .ready = [this] { return ready.load(); }});
    EXPECT_TRUE(started.ok()) << started.status().ToString();
    endpoints = *std::move(started);
  }
};

httplib::Result Get(int port, const std::string& path) {
  return httplib::Client("127.0.0.1", port).Get(path);
}

int HttpStatus(int port, const std::string& path) {
  const auto result = Get(port, path);
  return result ? result->status : -1;
}

TEST(EndpointsTest, AnswersEachPath) {
  Server server;
  const int port = server.endpoints->port();
  EXPECT_EQ(Get(port, "/metrics")->body, "meshtrain_steps_total 1\n");
  EXPECT_THAT(Get(port, "/metrics")->get_header_value("Content-Type"),
              ::testing::HasSubstr("version=0.0.4"));
  EXPECT_EQ(Get(port, "/progress")->body, "{\"step\":7}");
  EXPECT_EQ(Get(port, "/progress")->get_header_value("Content-Type"), "application/json");
  EXPECT_EQ(HttpStatus(port, "/healthz"), 200);
  EXPECT_EQ(HttpStatus(port, "/readyz"), 503);
  server.ready = true;
  EXPECT_EQ(HttpStatus(port, "/readyz"), 200);
  EXPECT_EQ(HttpStatus(port, "/"), 404);  // no page was given
  EXPECT_EQ(HttpStatus(port, "/run.json"), 404);
  EXPECT_EQ(HttpStatus(port, "/../etc/passwd"), 404);
  httplib::Client client("127.0.0.1", port);
  EXPECT_EQ(client.Post("/progress", std::string(100, 'x'), "text/plain")->status, 413);
  EXPECT_EQ(server.endpoints->Stop(), OkStatus());
  EXPECT_EQ(HttpStatus(port, "/healthz"), -1);
  EXPECT_EQ(server.endpoints->Stop(), OkStatus());
}

// A page of somebody else's whose name was resolved to our address learns nothing.
TEST(EndpointsTest, AnswersForItsOwnHostNamesAlone) {
  const auto endpoints =
      Endpoints::Start({.names = {"mnist-chief-0.mnist.ml.svc"}},
                       {.metrics = [] { return std::string("meshtrain_steps_total 1\n"); },
                        .progress = [] { return std::string("{}"); },
                        .page = [] { return std::string("<p>loss"); },
                        .run = [] { return std::string("{\"title\":\"run\"}"); }});
  ASSERT_TRUE(endpoints.ok());
  const int port = (*endpoints)->port();
  const auto of = [&](const std::string& path, const std::string& host) {
    const auto answer = test::Get(port, path, std::chrono::seconds(60), host);
    return answer.ok() ? answer->substr(9, 3) : answer.status().ToString();
  };
  for (const char* path : {"/", "/run.json", "/progress", "/metrics"}) {
    EXPECT_EQ(of(path, "mnist-chief-0.mnist.ml.svc:2280"), "200") << path;
    EXPECT_EQ(of(path, "localhost:2280"), "200") << path;
    EXPECT_EQ(of(path, "127.0.0.1"), "200") << path;
    EXPECT_EQ(of(path, "rebound.example:2280"), "421") << path;
    EXPECT_EQ(of(path, "localhost\r\nHost: rebound.example"), "400") << path;
  }
  EXPECT_EQ(Get(port, "/run.json")->body, "{\"title\":\"run\"}");
  EXPECT_EQ(Get(port, "/run.json")->get_header_value("Content-Type"), "application/json");
  EXPECT_EQ(of("/healthz", "rebound.example"), "200") << "a probe may have any";
  EXPECT_EQ(of("/nowhere", "rebound.example"), "421") << "not even which pages there are";
}

TEST(EndpointsTest, StopsAtOnceEvenRightAfterTheStart) {
  for (int i = 0; i < 20; ++i) {
    Server server;
    EXPECT_EQ(server.endpoints->Stop(), OkStatus());
  }
}

TEST(EndpointsTest, AnAddressThatIsTakenIsAnError) {
  Server server;
  const int fd = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{
      .sin_family = AF_INET, .sin_port = 0, .sin_addr = {htonl(INADDR_LOOPBACK)}, .sin_zero = {}};
  ASSERT_EQ(::bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  ASSERT_EQ(::listen(fd, 1), 0);
  socklen_t length = sizeof address;
  ASSERT_EQ(::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &length), 0);
  const auto second = Endpoints::Start({.port = ntohs(address.sin_port)}, {});
  EXPECT_EQ(second.status().code(), StatusCode::kUnavailable);
  ::close(fd);
}

TEST(EndpointsTest, AThrowingHandlerIsAnswered) {
  auto endpoints =
      Endpoints::Start({}, {.progress = []() -> std::string { throw std::runtime_error("no"); }});
  ASSERT_TRUE(endpoints.ok());
  EXPECT_EQ(HttpStatus((*endpoints)->port(), "/progress"), 500);
  EXPECT_EQ(HttpStatus((*endpoints)->port(), "/healthz"), 200);
}

TEST(EndpointsTest, AProbeAndAScrapeAreAnsweredBesideAThousandThatNeverAsk) {
  Server server;
  const int port = server.endpoints->port();
  for (const char* first : {"", "G"}) {
    const auto flood = test::Flood::Start(port, 1000, first);
    ASSERT_TRUE(flood.ok()) << flood.status().ToString();
    for (int i = 0; i < 10; ++i) {
      for (const char* path : {"/healthz", "/metrics"}) {
        const auto answer = test::Get(port, path, std::chrono::seconds(60));
        ASSERT_TRUE(answer.ok()) << answer.status().ToString();
        EXPECT_THAT(*answer, ::testing::StartsWith("HTTP/1.1 200 "));
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(30));  // past some that come again
    }
  }
}

TEST(EndpointsTest, ManyClientsAtOnceAreServed) {
  Server server;
  std::atomic<int> good = 0;
  {
    std::vector<std::jthread> clients;
    for (int i = 0; i < 8; ++i) {
      clients.emplace_back([&] {
        for (int k = 0; k < 20; ++k)
          good += HttpStatus(server.endpoints->port(), "/progress") == 200;
      });
    }
  }
  EXPECT_EQ(good, 160);
}

}  // namespace
}  // namespace meshtrain::telemetry
