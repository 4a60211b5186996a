// What a Controller makes of jobs when nothing goes wrong, and how soon it rests.
#include "operator/control/controller.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "tests/operator/control/controller_fixture.h"
#include "tests/support/fake_api.h"

namespace meshtrain::control {
namespace {

using nlohmann::json;
using testing::FakeApi;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

TEST_F(ControllerTest, RunsAJobToItsEndWithFewWrites) {
  Start();
  api_.Put(TrainingJobs(), JobText("mnist", 3));
  ASSERT_TRUE(Eventually([&] { return api_.All(kube::Pods()).size() == 3; }));
  EXPECT_TRUE(Eventually([&] { return api_.All(kube::Services()).size() == 1; }));
  for (int i = 0; i < 3; ++i) SetPhase("mnist-worker-" + std::to_string(i), Running());
  ASSERT_TRUE(Eventually([&] { return Condition("mnist", "Running") == "True"; }))
      << api_.Peek(TrainingJobs(), "ml", "mnist");
  Settle();
  for (int i = 0; i < 3; ++i) SetPhase("mnist-worker-" + std::to_string(i), Ended(0));
  ASSERT_TRUE(Eventually([&] { return Condition("mnist", "Succeeded") == "True"; }));
  Settle();
  EXPECT_NE(Condition("mnist", "Running"), "True");
  // 3 pods + 1 service, and the status few times: the issue allows pods + 6.
  EXPECT_LE(Writes().size(), 3u + 6u);
}

// The look that finds the time over writes the status too: the edit is a new generation.
TEST_F(ControllerTest, ATtlThatIsGivenAfterItHasPassedDeletesTheJob) {
  Start();
  api_.Put(TrainingJobs(), JobText("mnist", 1));
  ASSERT_TRUE(Eventually([&] { return api_.All(kube::Pods()).size() == 1; }));
  SetPhase("mnist-worker-0", Ended(0));
  ASSERT_TRUE(Eventually([&] { return Condition("mnist", "Succeeded") == "True"; }));
  Settle();
  clock_.Shift(std::chrono::hours(1));
  json job = Job("mnist");
  job["spec"]["runPolicy"]["ttlSecondsAfterFinished"] = 60;
  job["metadata"]["generation"] = 2;
  api_.Put(TrainingJobs(), job.dump());
  EXPECT_TRUE(Eventually([&] { return api_.Peek(TrainingJobs(), "ml", "mnist").empty(); }))
      << api_.Peek(TrainingJobs(), "ml", "mnist");
  Stop();
}

// Counts alone are told at most every 5 s; the time until then is part of the measure.
TEST_F(ControllerTest, APodEventThatIsToldLaterIsMeasuredUntilThen) {
  const auto measured = [&](const std::string& what) {
    const std::string text = metrics_.Text();
    const std::string name = "\nmeshtrain_operator_pod_event_to_status_seconds_" + what + " ";
    const size_t at = text.find(name);
    return at == std::string::npos ? -1 : std::atof(text.c_str() + at + name.size());
  };
  Start();
  api_.Put(TrainingJobs(), JobText("mnist", 2));
  ASSERT_TRUE(Eventually([&] { return api_.All(kube::Pods()).size() == 2; }));
  SetPhase("mnist-worker-0", Running());
  ASSERT_TRUE(Eventually([&] { return Condition("mnist", "Running") == "True"; }));
  Settle();
  const double count = measured("count"), sum = measured("sum");
  SetPhase("mnist-worker-1", Running());
  Settle();
  EXPECT_EQ(measured("count"), count) << "it is not told yet";
  clock_.Shift(std::chrono::seconds(100));
  api_.Put(TrainingJobs(), api_.Peek(TrainingJobs(), "ml", "mnist"));  // before the timer's time
  ASSERT_TRUE(Eventually([&] { return measured("count") == count + 1; }));
  EXPECT_GE(measured("sum"), sum + 100);
}

TEST_F(ControllerTest, LeavesASettledJobAlone) {
  Start();
  api_.Put(TrainingJobs(), JobText("mnist", 2));
  ASSERT_TRUE(Eventually([&] { return api_.All(kube::Pods()).size() == 2; }));
  Settle();
  events_->Flush(std::chrono::seconds(10));
  api_.ForgetCalls();
  api_.CutWatches();
  api_.Compact();
  ASSERT_TRUE(Eventually([&] { return Lists() >= 4; })) << "pods, Services, jobs, nodes: anew";
  Settle();
  EXPECT_THAT(Writes(true), IsEmpty());
  // Another process that starts on the settled world has nothing to do either.
  Stop();
  api_.ForgetCalls();
  Start();
  ASSERT_TRUE(Eventually([&] { return controller_->Ready().ok(); }));
  Settle();
  EXPECT_THAT(Writes(true), IsEmpty());
}

TEST_F(ControllerTest, OfAListOfNamespacesItReadsThemAlone) {
  namespaces_ = {"ml", "bio"};
  for (const char* ns : {"ml", "bio", "other"}) {
    api_.Put(TrainingJobs(), JobText("before", 1, ns));
  }
  Start();
  ASSERT_TRUE(Eventually([&] { return controller_->Ready().ok(); }));
  for (const char* ns : {"ml", "bio", "other"}) {
    api_.Put(TrainingJobs(), JobText("after", 2, ns));
  }
  ASSERT_TRUE(Eventually([&] { return api_.All(kube::Pods()).size() == 6; }));
  Settle();
  for (const char* pod : {"before-worker-0", "after-worker-0", "after-worker-1"}) {
    EXPECT_NE(api_.Peek(kube::Pods(), "ml", pod), "");
    EXPECT_NE(api_.Peek(kube::Pods(), "bio", pod), "");
    EXPECT_EQ(api_.Peek(kube::Pods(), "other", pod), "");
  }
  // What one namespace is listed anew by leaves the other's objects known: nothing is made twice.
  const size_t pods = api_.All(kube::Pods()).size();
  api_.ForgetCalls();
  api_.CutWatches();
  api_.Compact();
  ASSERT_TRUE(Eventually([&] { return Lists() >= 6; })) << "pods, Services, jobs, of each";
  Settle();
  EXPECT_EQ(api_.All(kube::Pods()).size(), pods);
  EXPECT_THAT(Writes(), IsEmpty());
  for (const FakeApi::Call& call : api_.calls()) {
    EXPECT_TRUE(call.ns == "ml" || call.ns == "bio")
        << call.verb << " " << call.plural << " of '" << call.ns << "'";
  }
}

// As when somebody deletes a namespace with its RoleBinding, and the operator is started anew.
TEST_F(ControllerTest, ANamespaceThatCannotBeReadKeepsNoOtherWaiting) {
  namespaces_ = {"ml", "bio"};
  std::atomic<bool> refuses = true;
  api_.SetFault([&](const FakeApi::Call& call, bool) {
    // Its jobs are seen, and one of them has a pod that is not.
    const bool refused = refuses && call.ns == "bio" && call.plural == "pods";
    return refused ? PermissionDenied("pods is forbidden") : OkStatus();
  });
  api_.Put(TrainingJobs(), JobText("mnist", 1));
  api_.Put(TrainingJobs(), JobText("mnist", 1, "bio"));
  Start();
  ASSERT_TRUE(Eventually([&] { return api_.All(kube::Pods()).size() == 1; }));
  EXPECT_NE(api_.Peek(kube::Pods(), "ml", "mnist-worker-0"), "");
  EXPECT_THAT(controller_->Ready().message(), HasSubstr("pods in bio"));
  const auto written = [&] {
    const auto writes = Writes(true);
    return std::count_if(writes.begin(), writes.end(),
                         [](const FakeApi::Call& call) { return call.ns == "bio"; });
  };
  ASSERT_TRUE(Eventually([&] { return controller_->store().jobs() == 2; }));
  Settle();
  EXPECT_EQ(written(), 0) << "of a job whose pods are not known nothing is decided";
  refuses = false;
  ASSERT_TRUE(Eventually([&] { return api_.All(kube::Pods()).size() == 2; }));
  EXPECT_TRUE(Eventually([&] { return controller_->Ready().ok(); }));
  Stop();
}

TEST(RestWatchTest, RestsOnceAfterEachTimeOfWork) {
  RestWatch watch;
  EXPECT_FALSE(watch.RestsNow(0, true)) << "there was no work";
  EXPECT_FALSE(watch.RestsNow(3, true)) << "it has just worked";
  EXPECT_FALSE(watch.RestsNow(3, false)) << "more is due";
  EXPECT_FALSE(watch.RestsNow(4, true));
  EXPECT_TRUE(watch.RestsNow(4, true));
  EXPECT_FALSE(watch.RestsNow(4, true)) << "nothing has happened since";
  EXPECT_FALSE(watch.RestsNow(5, true));
  EXPECT_TRUE(watch.RestsNow(5, true));
}

TEST_F(ControllerTest, RestsAfterEachTimeOfWork) {
  Start();
  api_.Put(TrainingJobs(), JobText("mnist", 2));
  ASSERT_TRUE(Eventually([&] { return api_.All(kube::Pods()).size() == 2; }));
  ASSERT_TRUE(Eventually([&] { return rests_ > 0; }));
  const int rests = rests_;
  SetPhase("mnist-worker-1", Running());
  EXPECT_TRUE(Eventually([&] { return rests_ > rests; }));
}

TEST_F(ControllerTest, TakesAPodThatAlreadyExistsAsMade) {
  // Every creation's answer is lost once.
  std::atomic<int> lost = 0;
  api_.SetFault([&](const FakeApi::Call& call, bool after) {
    const bool lose = after && call.verb == "create" && call.plural != "events" && lost++ < 4;
    return lose ? Unavailable("answer lost") : OkStatus();
  });
  Start();
  api_.Put(TrainingJobs(), JobText("mnist", 3));
  ASSERT_TRUE(Eventually([&] { return api_.All(kube::Pods()).size() == 3 && lost >= 4; }));
  Settle();
  std::set<std::string> uids;
  for (const std::string& pod : api_.All(kube::Pods())) {
    uids.insert(json::parse(pod)["metadata"]["uid"]);
  }
  EXPECT_THAT(uids, SizeIs(3));
  Stop();  // before what the fault captured goes away
}

TEST_F(ControllerTest, JobsOfOneNameInTwoNamespacesAreTwoJobs) {
  Start();
  for (const char* ns : {"ml", "nlp"}) {
    json job = json::parse(JobText("mnist", 2));
    job["metadata"]["namespace"] = ns;
    job["metadata"]["uid"] = std::string("job-in-") + ns;
    api_.Put(TrainingJobs(), job.dump());
  }
  const auto uid = [&](const char* ns, const char* pod) {
    const std::string text = api_.Peek(kube::Pods(), ns, pod);
    return text.empty() ? "" : json::parse(text)["metadata"]["uid"].get<std::string>();
  };
  ASSERT_TRUE(Eventually([&] { return api_.All(kube::Pods()).size() == 4; }));
  const std::string zero = uid("nlp", "mnist-worker-0"), one = uid("nlp", "mnist-worker-1"),
                    failed = uid("ml", "mnist-worker-1");
  SetPhase("mnist-worker-0", Running());
  SetPhase("mnist-worker-1", Ended(138));
  ASSERT_TRUE(Eventually([&] {
    if (api_.Peek(kube::Pods(), "ml", "mnist-worker-1").find("deletionTimestamp") !=
        std::string::npos) {
      api_.Remove(kube::Pods(), "ml", "mnist-worker-1");
    }
    const std::string now = uid("ml", "mnist-worker-1");
    return !now.empty() && now != failed;
  }));
  api_.Remove(TrainingJobs(), "ml", "mnist");
  Settle();
  EXPECT_EQ(uid("nlp", "mnist-worker-0"), zero);
  EXPECT_EQ(uid("nlp", "mnist-worker-1"), one);
  const json other = json::parse(api_.Peek(TrainingJobs(), "nlp", "mnist"));
  EXPECT_EQ(other["status"].value("restarts", 0), 0);
}

TEST_F(ControllerTest, IsNotHealthyWhileItsWorkStands) {
  std::atomic<bool> hangs = true;
  std::atomic<int> hanging = 0;
  api_.SetFault([&](const FakeApi::Call& call, bool after) {
    if (after || call.verb != "create" || call.plural != "pods") return OkStatus();
    ++hanging;
    while (hangs) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    return OkStatus();
  });
  Start();
  api_.Put(TrainingJobs(), JobText("mnist", 1));
  ASSERT_TRUE(Eventually([&] { return hanging == 1; }));
  EXPECT_TRUE(controller_->Healthy().ok()) << "it has just begun";
  clock_.Shift(Controller::kStands);
  EXPECT_THAT(controller_->Healthy().message(), HasSubstr("expected work to move on"));
  // Another job that moves shows that it is not the loop that stands.
  api_.Put(TrainingJobs(), JobText("small", 0));
  EXPECT_TRUE(Eventually([&] { return controller_->Healthy().ok(); }));
  clock_.Shift(Controller::kStands);
  EXPECT_FALSE(controller_->Healthy().ok());
  hangs = false;
  EXPECT_TRUE(Eventually([&] { return controller_->Healthy().ok(); }));
  Settle();
  clock_.Shift(std::chrono::hours(24));
  EXPECT_TRUE(controller_->Healthy().ok()) << "nothing to do is not standing";
  Stop();
}

TEST_F(ControllerTest, ABigJobDoesNotDelayASmallOne) {
  api_.SetFault([](const FakeApi::Call& call, bool after) {
    if (after && call.verb == "create" && call.plural == "pods") {
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
    return OkStatus();
  });
  Start();
  api_.Put(TrainingJobs(), JobText("big", 600));
  ASSERT_TRUE(Eventually([&] { return api_.All(kube::Pods()).size() > 50; }));
  const size_t before = api_.All(kube::Pods()).size();
  api_.Put(TrainingJobs(), JobText("small", 1));
  ASSERT_TRUE(Eventually([&] { return !api_.Peek(kube::Pods(), "ml", "small-worker-0").empty(); }));
  // Counted in the big job's creations, not in seconds, so that a busy machine does not matter.
  EXPECT_LT(api_.All(kube::Pods()).size() - before, 200u);
}

}  // namespace
}  // namespace meshtrain::control
