#include "operator/kube/http_client.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <httplib.h>

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
    server_.set_keep_alive_max_count(1000);
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

TEST_F(HttpClientTest, ListsInPagesAndStartsAgainWhenATokenExpired) {
  handler_ = [&](const httplib::Request& request, httplib::Response& response) {
    const bool second = request.has_param("continue");
    if (second) {
      response.status = 410;
      response.set_content(R"({"code":410,"reason":"Expired","message":"gone"})", "j");
    } else if (request.has_param("limit")) {
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
                  "GET /api/v1/namespaces/ml/pods?labelSelector=a%3Db"));
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
