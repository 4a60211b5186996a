// Watches: events however they are cut, versions that are gone, stops.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <httplib.h>

#include <atomic>
#include <nlohmann/json.hpp>
#include <thread>

#include "tests/operator/kube/http_client_fixture.h"

namespace meshtrain::kube {
namespace {

using nlohmann::json;
using ::testing::ElementsAre;

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

TEST_F(HttpClientTest, AStopEndsAWaitingWatch) {
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
  stop.request_stop();
  watcher.join();
  EXPECT_EQ(status.code(), StatusCode::kCancelled);
  over_ = true;  // until here the server would have gone on
}

}  // namespace
}  // namespace meshtrain::kube
