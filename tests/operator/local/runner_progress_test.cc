// The progress that a run asks its leader for.
#include <gmock/gmock.h>
#include <httplib.h>
#include <signal.h>
#include <unistd.h>

#include <nlohmann/json.hpp>
#include <thread>

#include "tests/operator/local/runner_fixture.h"

namespace meshtrain::local {
namespace {

using api::ConditionType;
using cluster::Role;
using ::testing::HasSubstr;
using testing_support::MakeJob;

// Stands at step 3, and answers so at any free port.
class ProgressServer {
 public:
  ProgressServer() {
    server_.Get("/progress", [](const httplib::Request&, httplib::Response& response) {
      response.set_content(R"({"step":3,"totalSteps":10,"loss":0.25,"stoppedRank":"worker-1"})",
                           "application/json");
    });
    port = std::to_string(server_.bind_to_any_port("127.0.0.1"));
    thread_ = std::thread([this] { server_.listen_after_bind(); });
    while (!server_.is_running()) std::this_thread::yield();
  }
  ~ProgressServer() {
    server_.stop();
    thread_.join();
  }
  std::string port;

 private:
  const StopSignals before_threads_;  // the server's threads are not to take the run's signals
  httplib::Server server_;
  std::thread thread_;
};

TEST_F(RunnerTest, ProgressIsPulledAndAStallIsSeen) {
  const ProgressServer server;
  const auto job =
      MakeJob("mnist")
          .Chief()
          .Template(Role::kChief,
                    ShellTemplate("exec sleep 1000",
                                  R"("ports":[{"name":"meshtrain-http","containerPort":)" +
                                      server.port + "}]"))
          .With([](api::TrainingJob& j) { j.spec.run_policy.progress_deadline_seconds = 3; })
          .Build();
  RunnerOptions options = Quick();
  api::JobStatus stalled;
  options.on_settled = [&](const api::TrainingJob& now, const reconcile::Observed&) {
    const bool stands = api::IsTrue(now.status, ConditionType::kStalled) && now.status.progress;
    if (!stands || stalled.progress) return;
    stalled = now.status;
    ::kill(::getpid(), SIGTERM);
  };
  const Played played = Play(job, options);
  EXPECT_EQ(played.ending.exit_code, 143);
  ASSERT_TRUE(stalled.progress);
  EXPECT_EQ(stalled.progress->step, 3);
  EXPECT_EQ(stalled.conditions.at(ConditionType::kStalled).message,
            "step 3 has not moved on for 3 s or more; worker-1 stopped first");
  EXPECT_THAT(played.err, HasSubstr("warning: JobStalled: step 3"));
}

TEST_F(RunnerTest, ProgressIsPulledFromTheMetricsAddressWhichMayBeAName) {
  const ProgressServer server;
  RunnerOptions options = Quick();
  options.launch.metrics_address = "localhost:" + server.port;
  bool seen = false;
  options.on_settled = [&](const api::TrainingJob& now, const reconcile::Observed&) {
    if (now.status.progress && !std::exchange(seen, true)) ::kill(::getpid(), SIGTERM);
  };
  const auto job =
      MakeJob("mnist")
          .Chief()
          .With([](api::TrainingJob& j) { j.spec.run_policy.active_deadline_seconds = 60; })
          .Build();
  const Played played = Play(WithScript(job, "exec sleep 1000"), options);
  EXPECT_EQ(played.ending.exit_code, 143);
  ASSERT_TRUE(played.ending.status.progress);
  EXPECT_EQ(played.ending.status.progress->step, 3);
}

}  // namespace
}  // namespace meshtrain::local
