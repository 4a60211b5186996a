#include "operator/kube/lease.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "tests/support/fake_api.h"
#include "tests/support/fake_clock.h"

namespace meshtrain::kube {
namespace {

using nlohmann::json;
using std::chrono::seconds;
using testing::FakeApi;
using testing::FakeClock;

LeaseOptions Options(const std::string& identity) {
  return {.ns = "sys", .name = "op", .identity = identity};
}

json Spec(const FakeApi& api) { return json::parse(api.Peek(Leases(), "sys", "op"))["spec"]; }

TEST(LeaseTest, TakesAFreeLeaseAndRenewsWithOneCallEach) {
  FakeApi api;
  FakeClock clock;
  LeaderElector a(api, clock, Options("a"));
  EXPECT_FALSE(a.Held());
  ASSERT_TRUE(a.Acquire({}).ok());
  EXPECT_TRUE(a.Held());
  EXPECT_EQ(Spec(api)["holderIdentity"], "a");
  EXPECT_EQ(Spec(api)["leaseDurationSeconds"], 15);
  const json before = Spec(api);
  api.ForgetCalls();
  std::stop_source stop;
  int sleeps = 0;
  clock.on_sleep = [&](Duration) {
    if (++sleeps == 4) stop.request_stop();
  };
  EXPECT_EQ(a.Hold(stop.get_token()).code(), StatusCode::kCancelled);
  EXPECT_EQ(api.calls().size(), 3u);
  EXPECT_EQ(Spec(api)["acquireTime"], before["acquireTime"]);
  EXPECT_NE(Spec(api)["renewTime"], before["renewTime"]);
  EXPECT_TRUE(a.Held());
}

// As one that a chart has made, empty, and finds again by its annotations.
TEST(LeaseTest, LeavesWhatOthersWroteIntoItsMetadata) {
  FakeApi api;
  FakeClock clock;
  const json marks = {{"labels", {{"app", "op"}}}, {"annotations", {{"release", "r"}}}};
  json lease = {{"metadata", marks}};
  lease["metadata"]["name"] = "op";
  lease["metadata"]["namespace"] = "sys";
  api.Put(Leases(), lease.dump());
  LeaderElector a(api, clock, Options("a"));
  ASSERT_TRUE(a.Acquire({}).ok());
  std::stop_source stop;
  clock.on_sleep = [&](Duration) { stop.request_stop(); };
  EXPECT_EQ(a.Hold(stop.get_token()).code(), StatusCode::kCancelled);
  EXPECT_TRUE(a.Release().ok());
  const json metadata = json::parse(api.Peek(Leases(), "sys", "op"))["metadata"];
  EXPECT_EQ(metadata["labels"], marks["labels"]);
  EXPECT_EQ(metadata["annotations"], marks["annotations"]);
}

TEST(LeaseTest, WaitsForALivingHolderAndFollowsADeadOne) {
  FakeApi api;
  FakeClock clock;
  LeaderElector a(api, clock, Options("a")), b(api, clock, Options("b"));
  ASSERT_TRUE(a.Acquire({}).ok());
  const Duration start = clock.Monotonic();
  std::string holder;
  ASSERT_TRUE(b.Acquire({}, [&](const std::string& h) { holder = h; }).ok());
  EXPECT_EQ(holder, "a");
  EXPECT_GE(clock.Monotonic() - start, seconds(15));
  EXPECT_LT(clock.Monotonic() - start, seconds(19));
  EXPECT_EQ(Spec(api)["holderIdentity"], "b");
  EXPECT_EQ(Spec(api)["leaseTransitions"], 1);
  EXPECT_FALSE(a.Held()) << "a was stopped all the while; it must not write now";
  EXPECT_EQ(a.Hold({}).code(), StatusCode::kFailedPrecondition);
}

TEST(LeaseTest, DoesNotTrustTheHoldersClock) {
  FakeApi api;
  FakeClock clock;
  // The holder's clock is a year behind: its renewTime looks long expired.
  api.Put(Leases(), R"({"metadata":{"name":"op","namespace":"sys"},"spec":{"holderIdentity":"x",
    "leaseDurationSeconds":15,"renewTime":"2025-01-01T00:00:00.000000Z","leaseTransitions":4}})");
  LeaderElector a(api, clock, Options("a"));
  const Duration start = clock.Monotonic();
  ASSERT_TRUE(a.Acquire({}).ok());
  EXPECT_GE(clock.Monotonic() - start, seconds(15));
  EXPECT_EQ(Spec(api)["leaseTransitions"], 5);
}

TEST(LeaseTest, IsGivenAwayAtOnceByAGracefulHolder) {
  FakeApi api;
  FakeClock clock;
  LeaderElector a(api, clock, Options("a")), b(api, clock, Options("b"));
  ASSERT_TRUE(a.Acquire({}).ok());
  ASSERT_TRUE(a.Release().ok());
  EXPECT_FALSE(a.Held());
  const Duration start = clock.Monotonic();
  ASSERT_TRUE(b.Acquire({}).ok());
  EXPECT_LT(clock.Monotonic() - start, seconds(1));
  ASSERT_TRUE(a.Release().ok()) << "a second release must not take it from b";
  EXPECT_EQ(Spec(api)["holderIdentity"], "b");
}

TEST(LeaseTest, IsGivenAwayAlthoughAStopCutARenewalThatCameThrough) {
  FakeApi api;
  FakeClock clock;
  LeaderElector a(api, clock, Options("a")), b(api, clock, Options("b"));
  ASSERT_TRUE(a.Acquire({}).ok());
  const json before = Spec(api);
  std::stop_source stop;
  api.SetFault([&](const FakeApi::Call& call, bool after) {
    if (!after || call.verb != "update") return OkStatus();
    stop.request_stop();
    return Cancelled("stopped");
  });
  ASSERT_EQ(a.Hold(stop.get_token()).code(), StatusCode::kCancelled);
  ASSERT_NE(Spec(api)["renewTime"], before["renewTime"]) << "the renewal did not come through";
  api.SetFault({});
  const Status released = a.Release();
  EXPECT_TRUE(released.ok()) << released.ToString();
  EXPECT_EQ(Spec(api)["holderIdentity"], "");
  const Duration start = clock.Monotonic();
  ASSERT_TRUE(b.Acquire({}).ok());
  EXPECT_LT(clock.Monotonic() - start, seconds(1));
}

TEST(LeaseTest, AReleaseThatComesTooLateLeavesTheLeaseToItsNewHolder) {
  FakeApi api;
  FakeClock clock;
  LeaderElector a(api, clock, Options("a"));
  ASSERT_TRUE(a.Acquire({}).ok());
  api.Put(Leases(), R"({"metadata":{"name":"op","namespace":"sys"},"spec":{"holderIdentity":"b",
    "leaseDurationSeconds":15,"leaseTransitions":1}})");
  const Status released = a.Release();
  EXPECT_TRUE(released.ok()) << released.ToString();
  EXPECT_EQ(Spec(api)["holderIdentity"], "b");
}

TEST(LeaseTest, StopsBeforeAnybodyCanFollowWhenItCannotRenew) {
  FakeApi api;
  FakeClock clock;
  LeaderElector a(api, clock, Options("a"));
  ASSERT_TRUE(a.Acquire({}).ok());
  const Duration start = clock.Monotonic();
  api.SetFault([](const FakeApi::Call&, bool) { return Unavailable("down"); });
  EXPECT_EQ(a.Hold({}).code(), StatusCode::kFailedPrecondition);
  EXPECT_FALSE(a.Held());
  EXPECT_GE(clock.Monotonic() - start, seconds(10));
  EXPECT_LT(clock.Monotonic() - start, seconds(15));
}

TEST(LeaseTest, KeepsTheLeaseWhenOnlyTheAnswerWasLost) {
  FakeApi api;
  FakeClock clock;
  LeaderElector a(api, clock, Options("a"));
  int lost = 0;
  api.SetFault([&](const FakeApi::Call& call, bool after) {
    const bool lose = after && call.verb != "get" && lost++ % 2 == 0;
    return lose ? Unavailable("answer lost") : OkStatus();
  });
  ASSERT_TRUE(a.Acquire({}).ok());
  std::stop_source stop;
  int sleeps = 0;
  clock.on_sleep = [&](Duration) {
    if (++sleeps == 20) stop.request_stop();
  };
  EXPECT_EQ(a.Hold(stop.get_token()).code(), StatusCode::kCancelled);
  EXPECT_TRUE(a.Held());
  EXPECT_GT(lost, 5);
  EXPECT_EQ(Spec(api)["leaseTransitions"], 0);
}

}  // namespace
}  // namespace meshtrain::kube
