// Lists that come in pages: large, expired, cut off, without end.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <httplib.h>

#include "tests/operator/kube/http_client_fixture.h"

namespace meshtrain::kube {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

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

}  // namespace
}  // namespace meshtrain::kube
