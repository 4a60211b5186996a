// Teams whose members are lost at the worst moments; processes as threads, over real links.
#include "runtime/membership/team.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <future>

#include "runtime/membership/team_options.h"
#include "tests/runtime/membership/membership_testing.h"

namespace meshtrain::membership {
namespace {

using std::chrono::seconds;
using ::testing::AllOf;
using ::testing::HasSubstr;

class TeamTest : public ::testing::Test {
 protected:
  std::unique_ptr<Team> Make(cluster::TaskId task, Duration peer_return = seconds(60)) {
    auto team = Team::Create({.config = {.cluster = cluster_, .task = task},
                              .security = {.token = "s3cret"},
                              .job = "ml/test",
                              .join_timeout = seconds(60),
                              .peer_return = peer_return,
                              // Longer than any test: only news of a loss can end it.
                              .link_timeout = std::chrono::hours(1)});
    EXPECT_TRUE(team.ok()) << team.status().ToString();
    return team.ok() ? std::move(*team) : nullptr;
  }
  // A member that never links: nobody listens where it says that its data goes.
  std::unique_ptr<Membership> MakeUnlinked(cluster::TaskId task) {
    MembershipOptions options = OptionsFor(cluster_, task);
    options.data_address = nowhere_.address();
    return Membership::Create(std::move(options)).value();
  }
  static std::future<Result<Incarnation>> Join(Team& team) {
    return std::async(std::launch::async, [&team] { return team.Join(-1, {}); });
  }

  ReservedPort port_, worker_port_, other_port_, nowhere_;
  cluster::ClusterSpec cluster_ = [this] {
    cluster::ClusterSpec cluster = ChiefAndWorkers(port_.address(), 0);
    cluster.hosts[cluster::Role::kWorker][0] = worker_port_.address();
    cluster.hosts[cluster::Role::kWorker][1] = other_port_.address();
    return cluster;
  }();
};

TEST_F(TeamTest, AMemberThatIsLostWhileTheFirstLinksAreMadeIsNamed) {
  const auto chief = Make(Chief(), seconds(2)), worker = Make(Worker(0), seconds(2));
  auto chiefs = Join(*chief), workers = Join(*worker);
  auto lost = MakeUnlinked(Worker(1));
  ASSERT_TRUE(lost->Join(-1, {}).ok());  // all are here, and begin to link
  lost.reset();
  for (auto* joining : {&chiefs, &workers}) {
    const auto joined = joining->get();
    EXPECT_EQ(joined.status().code(), StatusCode::kDeadlineExceeded);
    // Who gives up first may be missed by the other too.
    EXPECT_THAT(joined.status().message(),
                AllOf(HasSubstr("missing: "), HasSubstr("worker-1 (lost: connection closed)")));
  }
}

TEST_F(TeamTest, AMemberThatIsLostWhileLaterLinksAreMadeIsNamedAndWaitedFor) {
  const auto chief = Make(Chief()), worker = Make(Worker(0));
  auto other = Make(Worker(1));
  auto chiefs = Join(*chief), workers = Join(*worker), others = Join(*other);
  const auto first = chiefs.get();
  ASSERT_TRUE(first.ok()) << first.status().ToString();
  ASSERT_TRUE(workers.get().ok());
  ASSERT_TRUE(others.get().ok());

  other.reset();
  chiefs = Join(*chief);
  workers = Join(*worker);
  for (int again = 0; again < 3; ++again) {
    const auto lost = MakeUnlinked(Worker(1));
    const auto joined = lost->Join(-1, {});
    ASSERT_TRUE(joined.ok()) << joined.status().ToString();
    EXPECT_GT(joined->id, first->id);
  }
  other = Make(Worker(1));
  others = Join(*other);
  const auto last = others.get();
  ASSERT_TRUE(last.ok()) << last.status().ToString();
  for (auto* joining : {&chiefs, &workers}) {
    const auto joined = joining->get();
    ASSERT_TRUE(joined.ok()) << joined.status().ToString();
    EXPECT_EQ(joined->id, last->id);
  }
  // The links hold: a small collective over them.
  std::vector<std::future<Result<float>>> largest;
  for (Team* team : {chief.get(), worker.get(), other.get()}) {
    largest.push_back(std::async(
        std::launch::async, [team] { return team->Largest(static_cast<float>(team->process())); }));
  }
  for (auto& one : largest) {
    const auto value = one.get();
    ASSERT_TRUE(value.ok()) << value.status().ToString();
    EXPECT_EQ(*value, 2);
  }
}

TEST_F(TeamTest, AStopEndsLinking) {
  const auto chief = Make(Chief()), worker = Make(Worker(0));
  std::stop_source stop;
  auto chiefs = std::async(std::launch::async, [&] { return chief->Join(-1, stop.get_token()); });
  auto workers = std::async(std::launch::async, [&] { return worker->Join(-1, stop.get_token()); });
  const auto silent = MakeUnlinked(Worker(1));
  ASSERT_TRUE(silent->Join(-1, {}).ok());
  stop.request_stop();
  EXPECT_EQ(chiefs.get().status().code(), StatusCode::kCancelled);
  EXPECT_EQ(workers.get().status().code(), StatusCode::kCancelled);
}

}  // namespace
}  // namespace meshtrain::membership
