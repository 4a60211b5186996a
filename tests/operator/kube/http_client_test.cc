#include "operator/kube/http_client.h"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <httplib.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <mutex>
#include <nlohmann/json.hpp>
#include <thread>

namespace meshtrain::kube {
namespace {

using nlohmann::json;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// A plain HTTP server whose answers a test scripts. TLS is tested against the real API server
// (tests/integration).
class HttpClientTest : public ::testing::Test {
 protected:
  using Handler = std::function<void(const httplib::Request&, httplib::Response&)>;

  void SetUp() override {
    const auto handle = [this](const httplib::Request& request, httplib::Response& response) {
      {
        std::lock_guard lock(mutex_);
        lines_.push_back(request.method + " " + request.target);
        last_ = request;
      }
      handler_(request, response);
    };
    server_.Get(".*", handle);
    server_.Post(".*", handle);
    server_.Put(".*", handle);
    server_.Patch(".*", handle);
    server_.Delete(".*", handle);
    server_.set_keep_alive_max_count(5000);
    server_.set_tcp_nodelay(true);
    port_ = server_.bind_to_any_port("127.0.0.1");
    ASSERT_GT(port_, 0);
    thread_ = std::thread([this] { server_.listen_after_bind(); });
    while (!server_.is_running()) std::this_thread::yield();
  }
  void TearDown() override {
    client_.reset();
    server_.stop();
    thread_.join();
  }

  Client& MakeClient(HttpClientOptions options = {}, ClientConfig config = {}) {
    config.server = "http://127.0.0.1:" + std::to_string(port_) + config.server;
    auto client = NewHttpClient(config, options, SystemClock());
    EXPECT_TRUE(client.ok()) << client.status().ToString();
    client_ = *std::move(client);
    return *client_;
  }
  std::vector<std::string> lines() {
    std::lock_guard lock(mutex_);
    return lines_;
  }

  httplib::Server server_;
  Handler handler_ = [](const httplib::Request&, httplib::Response& response) {
    response.set_content("{}", "j");
  };
  std::mutex mutex_;
  std::vector<std::string> lines_;
  httplib::Request last_;
  std::unique_ptr<Client> client_;
  int port_ = 0;
  std::atomic<bool> over_ = false;  // handlers that wait outlive the test's body
  std::thread thread_;
};

TEST_F(HttpClientTest, SpeaksEachVerb) {
  ClientConfig config;
  config.server = "/base/";
  config.token = "secret";
  Client& client = MakeClient({}, config);
  const Resource jobs{"meshtrain.dev", "v1", "trainingjobs"};
  ASSERT_TRUE(client.Get(jobs, "ml", "mnist", {}).ok());
  EXPECT_EQ(last_.get_header_value("Authorization"), "Bearer secret");
  ASSERT_TRUE(client.Create(Pods(), "ml", R"({"a":1})", {}).ok());
  EXPECT_EQ(last_.body, R"({"a":1})");
  EXPECT_EQ(last_.get_header_value("Content-Type"), "application/json");
  ASSERT_TRUE(client.Patch(jobs, "ml", "mnist", "status", PatchType::kMerge, "{}", {}).ok());
  EXPECT_EQ(last_.get_header_value("Content-Type"), "application/merge-patch+json");
  ASSERT_TRUE(client.Update(Leases(), "ml", "l", "{}", {}).ok());
  ASSERT_TRUE(client.Delete(Pods(), "ml", "p", {.uid = "u1", .grace_seconds = 0}, {}).ok());
  EXPECT_EQ(json::parse(last_.body)["preconditions"]["uid"], "u1");
  EXPECT_EQ(json::parse(last_.body)["gracePeriodSeconds"], 0);
  EXPECT_THAT(
      lines(),
      ElementsAre("GET /base/apis/meshtrain.dev/v1/namespaces/ml/trainingjobs/mnist",
                  "POST /base/api/v1/namespaces/ml/pods",
                  "PATCH /base/apis/meshtrain.dev/v1/namespaces/ml/trainingjobs/mnist/status",
                  "PUT /base/apis/coordination.k8s.io/v1/namespaces/ml/leases/l",
                  "DELETE /base/api/v1/namespaces/ml/pods/p"));
}

TEST_F(HttpClientTest, ADryRunMakesNothing) {
  EXPECT_TRUE(MakeClient().Create(Pods(), "ml", "{}", {.dry_run = true}).ok());
  EXPECT_THAT(lines(), ElementsAre("POST /api/v1/namespaces/ml/pods?dryRun=All"));
}

TEST_F(HttpClientTest, TurnsAnswersIntoCodes) {
  Client& client = MakeClient();
  struct Case {
    int http;
    std::string reason, message;
    StatusCode want;
  };
  for (const Case& c : std::vector<Case>{
           {400, "BadRequest", "x", StatusCode::kInvalidArgument},
           {401, "Unauthorized", "x", StatusCode::kUnauthenticated},
           {403, "Forbidden", "x", StatusCode::kPermissionDenied},
           {403, "Forbidden", "pods \"a\" is forbidden: exceeded quota: q",
            StatusCode::kResourceExhausted},
           {404, "NotFound", "x", StatusCode::kNotFound},
           {409, "AlreadyExists", "x", StatusCode::kAlreadyExists},
           {409, "Conflict", "x", StatusCode::kAborted},
           {410, "Expired", "x", StatusCode::kOutOfRange},
           {422, "Invalid", "x", StatusCode::kInvalidArgument},
           {500, "InternalError", "x", StatusCode::kUnavailable},
           {504, "Timeout", "x", StatusCode::kDeadlineExceeded},
       }) {
    handler_ = [&](const httplib::Request&, httplib::Response& response) {
      response.status = c.http;
      response.set_content(
          json{{"kind", "Status"}, {"reason", c.reason}, {"message", c.message}}.dump(), "j");
    };
    const Status status = client.Create(Pods(), "ml", "{}", {}).status();
    EXPECT_EQ(status.code(), c.want) << c.http;
    EXPECT_THAT(status.message(), HasSubstr(c.message));
  }
}

TEST_F(HttpClientTest, AMessageWithoutEndIsToldInPart) {
  handler_ = [&](const httplib::Request&, httplib::Response& response) {
    response.status = 403;
    response.set_content(json{{"message", std::string(30'000, 'm') + " exceeded quota: q"}}.dump(),
                         "j");
  };
  const Status status = MakeClient().Create(Pods(), "ml", "{}", {}).status();
  EXPECT_EQ(status.code(), StatusCode::kResourceExhausted) << "all of it is read";
  EXPECT_LT(status.message().size(), 5000u);
  EXPECT_THAT(status.message(), HasSubstr("mmm... (30018 bytes)"));
}

TEST_F(HttpClientTest, ComesBackWhenTheServerSaysSo) {
  int tries = 0;
  handler_ = [&](const httplib::Request&, httplib::Response& response) {
    if (++tries < 3) {
      response.status = tries == 1 ? 429 : 503;
      response.set_header("Retry-After", "0");
    }
    response.set_content("{\"ok\":1}", "j");
  };
  std::vector<std::string> codes;
  HttpClientOptions options;
  options.on_request = [&](std::string_view verb, std::string_view code, Duration) {
    codes.push_back(std::string(verb) + " " + std::string(code));
  };
  EXPECT_EQ(*MakeClient(options).Create(Pods(), "ml", "{}", {}), "{\"ok\":1}");
  EXPECT_THAT(codes, ElementsAre("POST 429", "POST 503", "POST 200"));
}

TEST_F(HttpClientTest, DoesNotRepeatAWriteThatMayHaveHappened) {
  handler_ = [](const httplib::Request&, httplib::Response& response) { response.status = 500; };
  EXPECT_EQ(MakeClient().Create(Pods(), "ml", "{}", {}).status().code(), StatusCode::kUnavailable);
  EXPECT_EQ(lines().size(), 1u);
}

TEST_F(HttpClientTest, AsksBeforeEachWriteButNotBeforeReads) {
  HttpClientOptions options;
  options.may_write = [] { return FailedPrecondition("lease lost"); };
  Client& client = MakeClient(options);
  EXPECT_EQ(client.Create(Pods(), "ml", "{}", {}).status().code(), StatusCode::kFailedPrecondition);
  EXPECT_EQ(client.Delete(Pods(), "ml", "p", {}, {}).status().code(),
            StatusCode::kFailedPrecondition);
  EXPECT_TRUE(client.Get(Pods(), "ml", "p", {}).ok());
  EXPECT_THAT(lines(), ElementsAre("GET /api/v1/namespaces/ml/pods/p"));
}

// A process may sleep for longer than its lease while a connection is made.
TEST_F(HttpClientTest, AWriteWhoseTimeIsOverOnceItsConnectionIsMadeIsNotSent) {
  for (const int fine : {1, 2}) {  // before the connection is made; before the head goes out
    int asked = 0;
    HttpClientOptions options;
    options.may_write = [&] {
      return ++asked <= fine ? OkStatus() : FailedPrecondition("lease lost");
    };
    const std::string body(100000, ' ');
    EXPECT_EQ(MakeClient(options).Create(Pods(), "ml", body, {}).status().code(),
              StatusCode::kFailedPrecondition);
    EXPECT_EQ(asked, fine + 1);
  }
  EXPECT_THAT(lines(), ::testing::IsEmpty());
}

TEST_F(HttpClientTest, ListsInPagesAndStartsAgainWhenATokenExpired) {
  int again = 0;
  handler_ = [&](const httplib::Request& request, httplib::Response& response) {
    const bool second = request.has_param("continue");
    if (second) {
      response.status = 410;
      response.set_content(R"({"code":410,"reason":"Expired","message":"gone"})", "j");
    } else if (!again++) {
      response.set_content(
          R"({"metadata":{"resourceVersion":"5","continue":"a/b="},"items":[{"n":1},{"n":2}]})",
          "j");
    } else {
      response.set_content(
          R"({"metadata":{"resourceVersion":"9"},"items":[{"n":1},{"n":2},{"n":3}]})", "j");
    }
  };
  std::vector<std::string> items;
  const auto version = MakeClient().List(
      Pods(), {.ns = "ml", .label_selector = "a=b", .chunk = 2},
      [&](std::string_view item) { items.emplace_back(item); }, [&] { items.clear(); }, {});
  ASSERT_TRUE(version.ok()) << version.status().ToString();
  EXPECT_EQ(*version, "9");
  EXPECT_THAT(items, ElementsAre(R"({"n":1})", R"({"n":2})", R"({"n":3})"));
  EXPECT_THAT(
      lines(),
      ElementsAre("GET /api/v1/namespaces/ml/pods?labelSelector=a%3Db&limit=2",
                  "GET /api/v1/namespaces/ml/pods?labelSelector=a%3Db&limit=2&continue=a%2Fb%3D",
                  "GET /api/v1/namespaces/ml/pods?labelSelector=a%3Db&limit=2"));
}

TEST_F(HttpClientTest, TellsTheVersionOfAKind) {
  handler_ = [](const httplib::Request&, httplib::Response& response) {
    response.set_content(R"({"metadata":{"resourceVersion":"71","continue":"x"},"items":[{}]})",
                         "j");
  };
  EXPECT_EQ(*MakeClient().Version(Pods(), "ml", {}), "71");
  EXPECT_THAT(lines(), ElementsAre("GET /api/v1/namespaces/ml/pods?limit=1"));
}

TEST_F(HttpClientTest, AListThatNeverEndsIsLeft) {
  // Full pages for ever, and short ones for ever.
  for (const int objects : {2, 0}) {
    int pages = 0;
    handler_ = [&](const httplib::Request&, httplib::Response& response) {
      response.set_content(R"({"metadata":{"resourceVersion":"5","continue":")" +
                               std::to_string(++pages) + R"("},"items":[)" +
                               (objects == 2 ? "{},{}" : "") + "]}",
                           "j");
    };
    const auto version = MakeClient().List(
        Pods(), {.chunk = 2}, [](std::string_view) {}, [] {}, {});
    EXPECT_EQ(version.status().code(), StatusCode::kDataLoss);
    EXPECT_THAT(version.status().message(), HasSubstr("expected a list that ends"));
    EXPECT_EQ(pages, objects == 2 ? kMaxPages : kMaxShortPages + 1);
  }
}

TEST_F(HttpClientTest, AListThatStartsAgainForEverIsLeft) {
  handler_ = [&](const httplib::Request& request, httplib::Response& response) {
    if (request.has_param("continue")) {
      response.status = 410;
      response.set_content(R"({"code":410,"reason":"Expired","message":"gone"})", "j");
    } else {
      response.set_content(R"({"metadata":{"resourceVersion":"5","continue":"x"},"items":[{}]})",
                           "j");
    }
  };
  const auto version = MakeClient().List(
      Pods(), {.chunk = 1}, [](std::string_view) {}, [] {}, {});
  EXPECT_EQ(version.status().code(), StatusCode::kOutOfRange);
  EXPECT_EQ(lines().size(), 6u);
}

TEST_F(HttpClientTest, APageThatIsTooLargeIsAskedForInSmallerOnes) {
  const std::string large(kMaxPage, ' ');
  handler_ = [&](const httplib::Request& request, httplib::Response& response) {
    const bool few = std::stoi(request.get_param_value("limit")) <= 62;
    response.set_content(
        (few ? "" : large) + R"({"metadata":{"resourceVersion":"5"},"items":[{}]})", "j");
  };
  int items = 0;
  const auto version = MakeClient().List(
      Pods(), {}, [&](std::string_view) { ++items; }, [] {}, {});
  EXPECT_TRUE(version.ok()) << version.status().ToString();
  EXPECT_EQ(items, 1);
  EXPECT_THAT(lines(), ElementsAre("GET /api/v1/pods?limit=500", "GET /api/v1/pods?limit=62"));
}

TEST_F(HttpClientTest, RefusesAListThatWasCutOff) {
  handler_ = [](const httplib::Request&, httplib::Response& response) {
    response.set_content(R"({"metadata":{"resourceVersion":"5"},"items":[{"n":1},{"n")", "j");
  };
  const auto version = MakeClient().List(
      Pods(), {}, [](std::string_view) {}, [] {}, {});
  EXPECT_EQ(version.status().code(), StatusCode::kUnavailable);
}

// Streams the chunks, then ends.
void Stream(httplib::Response& response, std::vector<std::string> chunks) {
  response.set_chunked_content_provider("application/json",
                                        [chunks](size_t, httplib::DataSink& sink) {
                                          for (const std::string& chunk : chunks) {
                                            sink.write(chunk.data(), chunk.size());
                                          }
                                          sink.done();
                                          return true;
                                        });
}

TEST_F(HttpClientTest, WatchesEventsHoweverTheyAreCut) {
  const std::string text =
      R"({"type":"ADDED","object":{"metadata":{"name":"a","resourceVersion":"6"}}})"
      "\n"
      R"({"type":"BOOKMARK","object":{"metadata":{"resourceVersion":"8"}}})"
      "\n"
      R"({"type":"DELETED","object":{"metadata":{"name":"a","resourceVersion":"9"}}})"
      "\n";
  for (const size_t cut : {size_t{1}, size_t{7}, size_t{80}, text.size()}) {
    std::vector<std::string> chunks;
    for (size_t at = 0; at < text.size(); at += cut) chunks.push_back(text.substr(at, cut));
    handler_ = [&](const httplib::Request&, httplib::Response& response) {
      Stream(response, chunks);
    };
    std::vector<std::string> seen;
    const Status status = MakeClient().Watch(
        Pods(), {.ns = "ml", .resource_version = "5", .server_timeout = std::chrono::seconds(9)},
        [&](WatchEventType type, std::string_view version, std::string_view) {
          seen.push_back(std::to_string(static_cast<int>(type)) + "@" + std::string(version));
        },
        {});
    EXPECT_TRUE(status.ok()) << status.ToString();
    EXPECT_THAT(seen, ElementsAre("0@6", "3@8", "2@9")) << cut;
  }
  EXPECT_EQ(lines()[0],
            "GET "
            "/api/v1/namespaces/ml/"
            "pods?watch=1&allowWatchBookmarks=true&resourceVersion=5&timeoutSeconds=9");
}

TEST_F(HttpClientTest, ReportsAnOldVersionFromTheAnswerAndFromTheStream) {
  const auto watch = [&] {
    return MakeClient().Watch(Pods(), {.resource_version = "1"},
                              [](WatchEventType, std::string_view, std::string_view) {}, {});
  };
  handler_ = [](const httplib::Request&, httplib::Response& response) {
    response.status = 410;
    response.set_content(R"({"code":410,"message":"too old"})", "j");
  };
  EXPECT_EQ(watch().code(), StatusCode::kOutOfRange);
  handler_ = [](const httplib::Request&, httplib::Response& response) {
    Stream(response,
           {R"({"type":"ERROR","object":{"kind":"Status","code":410,"message":"too old"}})", "\n"});
  };
  EXPECT_EQ(watch().code(), StatusCode::kOutOfRange);
}

TEST_F(HttpClientTest, StopsAWaitingWatchAtOnce) {
  std::atomic<bool> streaming = false;
  handler_ = [&](const httplib::Request&, httplib::Response& response) {
    response.set_chunked_content_provider("j", [this, &streaming](size_t, httplib::DataSink& sink) {
      streaming = true;
      while (!over_ && sink.is_writable()) {
        std::this_thread::sleep_for(std::chrono::milliseconds(5));
      }
      sink.done();
      return true;
    });
  };
  Client& client = MakeClient();
  Status status;
  std::stop_source stop;
  std::thread watcher([&] {
    status = client.Watch(
        Pods(), {.resource_version = "1"},
        [](WatchEventType, std::string_view, std::string_view) {}, stop.get_token());
  });
  while (!streaming) std::this_thread::yield();
  const auto before = std::chrono::steady_clock::now();
  stop.request_stop();
  watcher.join();
  EXPECT_LT(std::chrono::steady_clock::now() - before, std::chrono::seconds(2));
  EXPECT_EQ(status.code(), StatusCode::kCancelled);
  over_ = true;
}

TEST_F(HttpClientTest, GivesUpAtTheDeadline) {
  handler_ = [&](const httplib::Request&, httplib::Response&) {
    while (!over_) std::this_thread::sleep_for(std::chrono::milliseconds(5));
  };
  const Status status =
      MakeClient().Get(Pods(), "ml", "p", {.timeout = std::chrono::milliseconds(100)}).status();
  over_ = true;
  EXPECT_EQ(status.code(), StatusCode::kDeadlineExceeded) << status.ToString();
}

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
    Duration Monotonic() const override { return Duration(ticks_ += 1'000'000); }
    bool SleepFor(Duration d, std::stop_token stop) override {
      return SystemClock().SleepFor(d, stop);
    }
    mutable std::atomic<int64_t> ticks_ = 0;  // a millisecond for each look at it
  } clock;
  EndlessServer server(std::string(kHead) + "\r\n", "x");
  ClientConfig config;
  config.server = server.url();
  auto client = NewHttpClient(config, {}, clock);
  ASSERT_TRUE(client.ok());
  const Status status =
      (*client)->Get(Pods(), "ml", "p", {.timeout = std::chrono::milliseconds(50)}).status();
  EXPECT_EQ(status.code(), StatusCode::kDeadlineExceeded) << status.ToString();
}

TEST(HttpClientConfigTest, RefusesWhatItCannotUse) {
  struct Case {
    ClientConfig config;
    std::string want;
  };
  ClientConfig no_scheme, bad_port, half_pair;
  no_scheme.server = "10.0.0.1";
  bad_port.server = "https://a:b";
  half_pair.server = "https://a";
  half_pair.client_certificate_data = "x";
  for (const Case& c : {Case{no_scheme, "got: 10.0.0.1"}, Case{bad_port, "got: https://a:b"},
                        Case{half_pair, "only one of them"}}) {
    const auto client = NewHttpClient(c.config, {}, SystemClock());
    ASSERT_FALSE(client.ok());
    EXPECT_THAT(client.status().message(), HasSubstr(c.want));
  }
}

}  // namespace
}  // namespace meshtrain::kube
