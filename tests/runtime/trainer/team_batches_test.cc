// A process that waits for a batch and the others that step with it; processes as threads.
#include "runtime/trainer/team_batches.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <future>

#include "runtime/base/mutex.h"
#include "runtime/membership/membership.h"
#include "runtime/membership/team_options.h"
#include "tests/runtime/membership/membership_testing.h"

namespace meshtrain::trainer {
namespace {

using membership::Team;
using std::chrono::seconds;
using ::testing::HasSubstr;

// A volume that gives nothing.
class NoBatches final : public train::BatchSource {
 public:
  Result<std::optional<train::Batch>> Next(std::stop_token stop) override {
    MutexLock lock(mutex_);
    (void)never_.WaitFor(mutex_, stop, seconds(60), [] { return false; });
    if (!stop.stop_requested()) return DeadlineExceeded("no batch").From(Origin::kInput);
    return Cancelled("stopped").From(Origin::kStop);
  }

 private:
  Mutex mutex_;
  CondVar never_;
};

class TeamBatchesTest : public ::testing::Test {
 protected:
  TeamBatchesTest() {
    auto chiefs = std::async(std::launch::async, [this] { return chief_->Join(-1, {}); });
    const auto worker = worker_->Join(-1, {});
    const auto chief = chiefs.get();
    EXPECT_TRUE(chief.ok() && worker.ok()) << chief.status().ToString();
  }
  std::unique_ptr<Team> Make(cluster::TaskId task) {
    auto team = Team::Create({.config = {.cluster = cluster_, .task = task},
                              .security = {.token = "s3cret"},
                              .job = "ml/test",
                              .join_timeout = seconds(60),
                              .peer_return = seconds(60)});
    EXPECT_TRUE(team.ok()) << team.status().ToString();
    return team.ok() ? std::move(*team) : nullptr;
  }

  membership::ReservedPort port_, worker_port_;
  cluster::ClusterSpec cluster_ = [this] {
    cluster::ClusterSpec cluster = membership::ChiefAndWorkers(port_.address(), 0);
    cluster.hosts[cluster::Role::kWorker][0] = worker_port_.address();
    return cluster;
  }();
  std::unique_ptr<Team> chief_ = Make(membership::Chief());
  std::unique_ptr<Team> worker_ = Make(membership::Worker(0));
  NoBatches none_;
};

// It waited on, and was itself missing where the others joined again.
TEST_F(TeamBatchesTest, WhoWaitsHearsThatAnotherIsLost) {
  TeamBatches batches(none_, *chief_);
  EXPECT_TRUE(chief_->loss().ok());
  auto waiting = std::async(std::launch::async, [&] { return batches.Next({}).status(); });
  worker_.reset();
  const Status lost = waiting.get();
  EXPECT_TRUE(Team::IsLoss(lost)) << lost.ToString();
  EXPECT_THAT(lost.message(), HasSubstr("waiting for a batch: worker-0 lost"));
  EXPECT_EQ(batches.Next({}).status(), lost) << "nothing more comes in this incarnation";
}

TEST_F(TeamBatchesTest, AStopIsTheStopsError) {
  TeamBatches batches(none_, *chief_);
  std::stop_source stop;
  auto waiting =
      std::async(std::launch::async, [&] { return batches.Next(stop.get_token()).status(); });
  stop.request_stop();
  const Status stopped = waiting.get();
  EXPECT_EQ(stopped.code(), StatusCode::kCancelled) << stopped.ToString();
  EXPECT_EQ(stopped.origin(), Origin::kStop);
}

}  // namespace
}  // namespace meshtrain::trainer
