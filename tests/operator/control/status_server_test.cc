#include "operator/control/status_server.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <httplib.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "operator/control/metrics.h"
#include "tests/support/flood.h"

namespace meshtrain::control {
namespace {

using ::testing::HasSubstr;

TEST(StatusServerTest, EndsAsSoonAsItHasBegun) {
  for (int i = 0; i < 100; ++i) {
    EXPECT_TRUE(StatusServer::Start("127.0.0.1:0", {.metrics = [] { return ""; },
                                                    .healthy = [] { return OkStatus(); },
                                                    .ready = [] { return OkStatus(); }})
                    .ok());
  }
}

TEST(StatusServerTest, ServesMetricsAndProbes) {
  Metrics metrics("api:6443");
  metrics.OnRequest("POST", "201", std::chrono::milliseconds(3));
  metrics.OnRequest("WATCH", "200", std::chrono::minutes(7));
  metrics.SetLeader("op", true);
  metrics.ForQueue().added();
  api::JobStatus before, after;
  after.conditions[api::ConditionType::kSucceeded] = {.status = true};
  before.phase = "Running";
  after.phase = "Succeeded";
  after.restarts = 3;
  api::TrainingJob job;
  job.metadata.namespace_name = "ml";
  job.metadata.created = TimePoint(std::chrono::seconds(1000));
  before.conditions[api::ConditionType::kRunning] = {
      .status = true, .last_transition = TimePoint(std::chrono::seconds(1100))};
  after.conditions[api::ConditionType::kSucceeded].last_transition =
      TimePoint(std::chrono::seconds(1140));
  metrics.OnStatus(job, before, after);
  metrics.OnStatus(job, after, after);
  metrics.OnPodEventTold(std::chrono::milliseconds(20));
  std::atomic<bool> ready = false;
  auto server = StatusServer::Start(
      "127.0.0.1:0", {.metrics = [&] { return metrics.Text(); },
                      .healthy = [] { return OkStatus(); },
                      .ready = [&] { return ready ? OkStatus() : Unavailable("not yet"); }});
  ASSERT_TRUE(server.ok()) << server.status().ToString();
  httplib::Client client("127.0.0.1", (*server)->port());
  EXPECT_EQ(client.Get("/healthz")->status, 200);
  EXPECT_EQ(client.Get("/readyz")->status, 503);
  ready = true;
  EXPECT_EQ(client.Get("/readyz")->status, 200);
  const std::string text = client.Get("/metrics")->body;
  for (const char* line :
       {"rest_client_requests_total{code=\"201\",host=\"api:6443\",method=\"POST\"} 1",
        "rest_client_requests_total{code=\"200\",host=\"api:6443\",method=\"GET\"} 1",
        "leader_election_master_status{name=\"op\"} 1",
        "workqueue_adds_total{name=\"trainingjob\"} 1",
        "meshtrain_jobs_condition_total{condition=\"Succeeded\",namespace=\"ml\"} 1",
        "meshtrain_jobs_condition_total{condition=\"Failed\",namespace=\"ml\"} 0",
        "meshtrain_restarts_total{namespace=\"ml\"} 3",
        "meshtrain_job_phase_seconds_sum{namespace=\"ml\",phase=\"Running\"} 40",
        "meshtrain_job_phase_seconds_count{namespace=\"ml\",phase=\"Running\"} 1",
        "meshtrain_operator_pod_event_to_status_seconds_bucket{le=\"0.025\"} 1",
        "meshtrain_operator_pod_event_to_status_seconds_bucket{le=\"0.01\"} 0",
        "# TYPE process_cpu_seconds_total counter"}) {
    EXPECT_THAT(text, HasSubstr(line));
  }
}

TEST(StatusServerTest, AProbeAndAScrapeAreAnsweredBesideAThousandThatNeverAsk) {
  Metrics metrics("api:6443");
  auto server = StatusServer::Start("127.0.0.1:0", {.metrics = [&] { return metrics.Text(); },
                                                    .healthy = [] { return OkStatus(); },
                                                    .ready = [] { return OkStatus(); }});
  ASSERT_TRUE(server.ok()) << server.status().ToString();
  for (const char* first : {"", "G"}) {
    const auto flood = test::Flood::Start((*server)->port(), 1000, first);
    ASSERT_TRUE(flood.ok()) << flood.status().ToString();
    for (int i = 0; i < 10; ++i) {
      for (const char* path : {"/healthz", "/readyz", "/metrics"}) {
        const auto answer = test::Get((*server)->port(), path, std::chrono::seconds(60));
        ASSERT_TRUE(answer.ok()) << answer.status().ToString();
        EXPECT_THAT(*answer, ::testing::StartsWith("HTTP/1.1 200 "));
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(30));  // past some that come again
    }
  }
}

TEST(StatusServerTest, WithoutAHostServesBothFamilies) {
  auto server = StatusServer::Start(":0", {.metrics = [] { return std::string(); },
                                           .healthy = [] { return OkStatus(); },
                                           .ready = [] { return OkStatus(); }});
  ASSERT_TRUE(server.ok()) << server.status().ToString();
  EXPECT_EQ(httplib::Client("127.0.0.1", (*server)->port()).Get("/healthz")->status, 200);
  // As on a host that has no IPv4 address at all.
  const auto answer = httplib::Client("::1", (*server)->port()).Get("/healthz");
  if (!answer) GTEST_SKIP() << "this machine has no IPv6";
  EXPECT_EQ(answer->status, 200);
}

TEST(StatusServerTest, RefusesBadAndTakenAddresses) {
  const StatusServer::Handlers handlers{.metrics = [] { return std::string(); },
                                        .healthy = [] { return OkStatus(); },
                                        .ready = [] { return OkStatus(); }};
  EXPECT_EQ(StatusServer::Start("nowhere", handlers).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(StatusServer::Start("x:99999", handlers).status().code(), StatusCode::kInvalidArgument);
  const auto first = StatusServer::Start("127.0.0.1:0", handlers);
  ASSERT_TRUE(first.ok());
  EXPECT_EQ(StatusServer::Start("127.0.0.1:" + std::to_string((*first)->port()), handlers)
                .status()
                .code(),
            StatusCode::kUnavailable);
}

}  // namespace
}  // namespace meshtrain::control
