// The HTTP client against the real server: TLS, credentials, pages, watches, compaction.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <thread>

#include "operator/kube/http_client.h"
#include "runtime/base/file.h"
#include "tests/support/api_server.h"

namespace meshtrain::testing {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

kube::Resource ConfigMaps() { return {"", "v1", "configmaps"}; }

class ClientTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    std::string why;
    if (!ApiServer::Available(&why)) return;
    auto started = ApiServer::Start(/*controllers=*/false);
    ASSERT_TRUE(started.ok()) << started.status().ToString();
    api_ = *std::move(started);
  }
  static void TearDownTestSuite() { api_.reset(); }
  void SetUp() override {
    std::string why;
    if (!ApiServer::Available(&why)) GTEST_SKIP() << why;
    ASSERT_TRUE(api_);
  }
  kube::Client& client() { return api_->client(); }
  Result<std::string> CreateMap(const std::string& name) {
    return client().Create(ConfigMaps(), "default",
                           json{{"metadata", {{"name", name}}}, {"data", {{"k", "v"}}}}.dump(), {});
  }
  static std::unique_ptr<ApiServer> api_;
};
std::unique_ptr<ApiServer> ClientTest::api_;

TEST_F(ClientTest, CreatesPatchesAndDeletesUnderPreconditions) {
  const auto made = CreateMap("a");
  ASSERT_TRUE(made.ok()) << made.status().ToString();
  const json object = json::parse(*made);
  EXPECT_EQ(CreateMap("a").status().code(), StatusCode::kAlreadyExists);
  const std::string stale =
      json{{"metadata", {{"resourceVersion", "1"}}}, {"data", {{"k", "w"}}}}.dump();
  EXPECT_EQ(client()
                .Patch(ConfigMaps(), "default", "a", "", kube::PatchType::kMerge, stale, {})
                .status()
                .code(),
            StatusCode::kAborted);
  const auto patched = client().Patch(ConfigMaps(), "default", "a", "", kube::PatchType::kMerge,
                                      R"({"data":{"k":"w"}})", {});
  ASSERT_TRUE(patched.ok());
  EXPECT_EQ(json::parse(*patched)["data"]["k"], "w");
  EXPECT_EQ(client().Delete(ConfigMaps(), "default", "a", {.uid = "other"}, {}).status().code(),
            StatusCode::kAborted);
  EXPECT_TRUE(
      client().Delete(ConfigMaps(), "default", "a", {.uid = object["metadata"]["uid"]}, {}).ok());
  EXPECT_EQ(client().Get(ConfigMaps(), "default", "a", {}).status().code(), StatusCode::kNotFound);
}

TEST_F(ClientTest, ListsInPagesThenWatchesFromThere) {
  for (int i = 0; i < 7; ++i) ASSERT_TRUE(CreateMap("page-" + std::to_string(i)).ok());
  int listed = 0;
  const auto version = client().List(
      ConfigMaps(),
      {.ns = "default", .field_selector = "metadata.name!=kube-root-ca.crt", .chunk = 2},
      [&](std::string_view) { ++listed; }, [] {}, {});
  ASSERT_TRUE(version.ok()) << version.status().ToString();
  EXPECT_EQ(listed, 7);
  std::stop_source stop;
  std::vector<std::string> seen;
  std::jthread writer([&] { EXPECT_TRUE(CreateMap("later").ok()); });
  const Status status = client().Watch(
      ConfigMaps(), {.ns = "default", .resource_version = *version},
      [&](kube::WatchEventType, std::string_view, std::string_view object) {
        seen.push_back(json::parse(object)["metadata"]["name"]);
        stop.request_stop();
      },
      stop.get_token());
  EXPECT_EQ(status.code(), StatusCode::kCancelled);
  EXPECT_THAT(seen, ::testing::ElementsAre("later"));
}

TEST_F(ClientTest, SeesTheEndOfAWatchAndACompactedVersion) {
  const auto quiet = [](kube::WatchEventType, std::string_view, std::string_view) {};
  const auto version = client().List(
      ConfigMaps(), {}, [](std::string_view) {}, [] {}, {});
  ASSERT_TRUE(version.ok());
  EXPECT_TRUE(client()
                  .Watch(ConfigMaps(),
                         {.resource_version = *version, .server_timeout = std::chrono::seconds(1)},
                         quiet, {})
                  .ok());
  // Events are the one kind that the API server does not keep in its own memory: etcd's compaction
  // shows at once.
  ASSERT_TRUE(CreateMap("before-compaction").ok());
  ASSERT_TRUE(api_->Compact().ok());
  const Status old = client().Watch(
      kube::Events(), {.resource_version = "2", .server_timeout = std::chrono::seconds(1)}, quiet,
      {});
  EXPECT_EQ(old.code(), StatusCode::kOutOfRange) << old.ToString();
}

TEST_F(ClientTest, TrustsOnlyTheGivenAuthorityAndHost) {
  const auto get = [&](const kube::ClientConfig& config) {
    auto client = kube::NewHttpClient(config, {}, SystemClock());
    EXPECT_TRUE(client.ok());
    return (*client)->Get(ConfigMaps(), "default", "none", {}).status().code();
  };
  kube::ClientConfig config = api_->config();
  EXPECT_EQ(get(config), StatusCode::kNotFound);
  config.ca_file = "";  // the system's authorities do not know this cluster
  EXPECT_EQ(get(config), StatusCode::kUnavailable);
  config.insecure_skip_tls_verify = true;
  EXPECT_EQ(get(config), StatusCode::kNotFound);
  config = api_->config();
  config.tls_server_name = "kubernetes.default.svc";
  EXPECT_EQ(get(config), StatusCode::kNotFound);
  config.tls_server_name = "evil.example";
  EXPECT_EQ(get(config), StatusCode::kUnavailable);
  // Inline PEM works as files do.
  config = api_->config();
  config.ca_data = *ReadFile(config.ca_file);
  config.client_certificate_data = *ReadFile(config.client_certificate_file);
  config.client_key_data = *ReadFile(config.client_key_file);
  config.ca_file = config.client_certificate_file = config.client_key_file = "";
  EXPECT_EQ(get(config), StatusCode::kNotFound);
  config.client_certificate_data = config.client_key_data = "";
  config.token = "wrong";
  EXPECT_EQ(get(config), StatusCode::kUnauthenticated);
}

}  // namespace
}  // namespace meshtrain::testing
