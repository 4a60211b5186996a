// Verbs and the codes of their answers; what is sent again, and what is not sent at all.
#include "operator/kube/http_client.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <httplib.h>

#include <nlohmann/json.hpp>
#include <thread>

#include "tests/operator/kube/http_client_fixture.h"

namespace meshtrain::kube {
namespace {

using nlohmann::json;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

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
           {500, "InternalError", "x", StatusCode::kUnknown},
           {503, "ServiceUnavailable", "x", StatusCode::kUnavailable},
           {504, "Timeout", "x", StatusCode::kDeadlineExceeded},
       }) {
    handler_ = [&](const httplib::Request&, httplib::Response& response) {
      response.status = c.http;
      response.set_content(
          json{{"kind", "Status"}, {"reason", c.reason}, {"message", c.message}}.dump(), "j");
    };
    const Status status = client.Create(Pods(), "ml", "{}", {}).status();
    EXPECT_EQ(status.code(), c.want) << c.http;
    EXPECT_EQ(status.origin(), Origin::kApiServer) << c.http;
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
  const Status status = MakeClient().Create(Pods(), "ml", "{}", {}).status();
  EXPECT_EQ(status.code(), StatusCode::kUnavailable) << status.ToString();
  EXPECT_EQ(status.origin(), Origin::kApiServer);
  EXPECT_EQ(lines().size(), 1u);
}

TEST_F(HttpClientTest, AsksBeforeEachWriteButNotBeforeReads) {
  HttpClientOptions options;
  options.may_write = [] { return FailedPrecondition("lease lost"); };
  Client& client = MakeClient(options);
  const Status made = client.Create(Pods(), "ml", "{}", {}).status();
  EXPECT_EQ(made.code(), StatusCode::kFailedPrecondition) << made.ToString();
  EXPECT_EQ(made.origin(), std::nullopt);  // not the server's
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

TEST_F(HttpClientTest, GivesUpAtTheDeadline) {
  handler_ = [&](const httplib::Request&, httplib::Response&) {
    while (!over_) std::this_thread::sleep_for(std::chrono::milliseconds(5));
  };
  const Status status =
      MakeClient().Get(Pods(), "ml", "p", {.timeout = std::chrono::milliseconds(100)}).status();
  over_ = true;
  EXPECT_EQ(status.code(), StatusCode::kDeadlineExceeded) << status.ToString();
  EXPECT_EQ(status.origin(), Origin::kApiServer);
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
