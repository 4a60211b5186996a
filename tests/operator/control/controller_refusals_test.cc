// What the server refuses a Controller, and names that belong to others.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "operator/control/controller.h"
#include "tests/operator/control/controller_fixture.h"
#include "tests/support/fake_api.h"

namespace meshtrain::control {
namespace {

using nlohmann::json;
using testing::FakeApi;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

TEST_F(ControllerTest, SaysInTheStatusWhatAQuotaRefused) {
  std::atomic<bool> full = true;
  api_.SetFault([&](const FakeApi::Call& call, bool) {
    const bool refuse = full && call.verb == "create" && call.name == "mnist-worker-2";
    return refuse ? ResourceExhausted("pods \"mnist-worker-2\" is forbidden: exceeded quota: q")
                  : OkStatus();
  });
  Start();
  api_.Put(TrainingJobs(), JobText("mnist", 3));
  ASSERT_TRUE(Eventually([&] {
    return api_.Peek(TrainingJobs(), "ml", "mnist").find("exceeded quota") != std::string::npos;
  })) << api_.Peek(TrainingJobs(), "ml", "mnist");
  EXPECT_EQ(Condition("mnist", "Waiting"), "True");
  full = false;
  ASSERT_TRUE(Eventually([&] { return api_.All(kube::Pods()).size() == 3; }));
  EXPECT_TRUE(Eventually([&] { return Condition("mnist", "Waiting") != "True"; }));
  Stop();
}

// As an admission webhook with the failurePolicy Fail that is down.
TEST_F(ControllerTest, SaysInTheStatusThatTheServerCannotMakeAPod) {
  std::atomic<bool> down = true;
  std::atomic<int> tries = 0;
  api_.SetFault([&](const FakeApi::Call& call, bool after) {
    if (!down || after || call.verb != "create" || call.plural != "pods") return OkStatus();
    ++tries;
    return Status(StatusCode::kUnknown,
                  "POST /api/v1/namespaces/ml/pods: HTTP 500: Internal error occurred: failed "
                  "calling webhook \"pods.example.com\"");
  });
  Start();
  api_.Put(TrainingJobs(), JobText("mnist", 1));
  ASSERT_TRUE(Eventually([&] { return Condition("mnist", "Waiting") == "True"; }))
      << api_.Peek(TrainingJobs(), "ml", "mnist");
  const json status = Job("mnist")["status"];
  EXPECT_EQ(Condition("mnist", "Created"), "True");
  EXPECT_TRUE(status.contains("startTime")) << "its deadlines have begun";
  EXPECT_THAT(status.dump(), HasSubstr("\"reason\":\"ServerError\""));
  EXPECT_THAT(status.dump(), HasSubstr("pods \\\"mnist-worker-0\\\": Internal error occurred"));
  events_->Flush(std::chrono::seconds(10));
  EXPECT_TRUE(Eventually([&] {
    for (const std::string& event : api_.All(kube::Events())) {
      if (event.find("ServerError") != std::string::npos) return true;
    }
    return false;
  }));
  // As any refusal: after 1 s, 2 s, ... 60 s, whatever number of times before.
  for (int i = 0; i < 10; ++i) {
    const int before = tries;
    clock_.Shift(std::chrono::seconds(61));
    json touched = Job("mnist");
    touched["metadata"]["annotations"]["touched"] = std::to_string(i);
    api_.Put(TrainingJobs(), touched.dump());
    ASSERT_TRUE(Eventually([&] { return tries > before; })) << i;
    Settle();
    EXPECT_EQ(tries, before + 1) << i;
  }
  down = false;
  clock_.Shift(std::chrono::seconds(61));
  json touched = Job("mnist");
  touched["metadata"]["annotations"]["touched"] = "last";
  api_.Put(TrainingJobs(), touched.dump());
  EXPECT_TRUE(Eventually([&] { return api_.All(kube::Pods()).size() == 1; }));
  EXPECT_TRUE(Eventually([&] { return Condition("mnist", "Waiting") == "False"; }));
  Stop();
}

TEST_F(ControllerTest, ARefusalOfWhatIsWantedNoMoreIsForgotten) {
  api_.SetFault([&](const FakeApi::Call& call, bool) {
    const bool refuse = call.verb == "create" && call.name == "mnist-worker-2";
    return refuse ? ResourceExhausted("exceeded quota: q") : OkStatus();
  });
  Start();
  api_.Put(TrainingJobs(), JobText("mnist", 3));
  ASSERT_TRUE(Eventually([&] { return Condition("mnist", "Waiting") == "True"; }));
  json job = Job("mnist");
  job["spec"]["replicaSpecs"]["worker"]["replicas"] = 2;
  api_.Put(TrainingJobs(), job.dump());
  EXPECT_TRUE(Eventually([&] { return Condition("mnist", "Waiting") == "False"; }));
  Stop();
}

// Deleted and made again between two looks: who replaces a job does not wait for what stood in the
// way of the one before.
TEST_F(ControllerTest, AJobOfTheSameNameBeginsWithoutTheRefusalsOfTheOneBefore) {
  std::atomic<bool> full = true;
  std::atomic<int> refusals = 0;
  api_.SetFault([&](const FakeApi::Call& call, bool) {
    const bool refuse = full && call.verb == "create" && call.name == "mnist-worker-0";
    refusals += refuse ? 1 : 0;
    return refuse ? ResourceExhausted("exceeded quota: q") : OkStatus();
  });
  Start();
  api_.Put(TrainingJobs(), JobText("mnist", 1));
  // Several times in a row, so that the next try is to wait.
  ASSERT_TRUE(Eventually([&] {
    clock_.Shift(std::chrono::seconds(2));
    json touched = Job("mnist");
    touched["metadata"]["annotations"]["touched"] = std::to_string(refusals);
    api_.Put(TrainingJobs(), touched.dump());
    return refusals >= 5;
  })) << refusals;
  Settle();
  full = false;
  json next = json::parse(JobText("mnist", 1));
  next["metadata"]["uid"] = "another";
  api_.Put(TrainingJobs(), next.dump());
  api_.Remove(kube::Services(), "ml", "mnist");  // went with the first job
  EXPECT_TRUE(Eventually([&] {
    const std::string pod = api_.Peek(kube::Pods(), "ml", "mnist-worker-0");
    return !pod.empty() && json::parse(pod)["metadata"]["ownerReferences"][0]["uid"] == "another";
  })) << api_.Peek(TrainingJobs(), "ml", "mnist");
  Stop();
  for (const std::string& event : api_.All(kube::Events())) {
    if (event.find("another") == std::string::npos) continue;
    EXPECT_EQ(event.find("exceeded quota"), std::string::npos) << event;
  }
}

TEST_F(ControllerTest, LeavesAForeignPodOfThatNameAlone) {
  const std::string foreign =
      R"({"metadata":{"name":"mnist-worker-0","namespace":"ml","uid":"theirs"},"spec":{}})";
  api_.Put(kube::Pods(), foreign);
  Start();
  api_.Put(TrainingJobs(), JobText("mnist", 1));
  ASSERT_TRUE(Eventually([&] { return Condition("mnist", "Waiting") == "True"; }))
      << api_.Peek(TrainingJobs(), "ml", "mnist");
  EXPECT_EQ(json::parse(api_.Peek(kube::Pods(), "ml", "mnist-worker-0"))["metadata"]["uid"],
            "theirs");
  for (const FakeApi::Call& call : Writes()) {
    EXPECT_FALSE(call.plural == "pods" && call.verb != "create") << call.verb;
  }
}

TEST_F(ControllerTest, MakesNothingBesideAForeignServiceOfItsName) {
  // Without our labels: no watch shows it, the creation's answer is the first to tell.
  api_.Put(kube::Services(),
           R"({"metadata":{"name":"mnist","namespace":"ml","uid":"theirs"},"spec":{}})");
  Start();
  api_.Put(TrainingJobs(), JobText("mnist", 2));
  ASSERT_TRUE(Eventually([&] { return Condition("mnist", "Waiting") == "True"; }));
  EXPECT_TRUE(Eventually([&] { return api_.All(kube::Pods()).empty(); }))
      << api_.All(kube::Pods()).front();
  Settle();
  EXPECT_THAT(api_.All(kube::Pods()), IsEmpty());
  EXPECT_THAT(api_.Peek(TrainingJobs(), "ml", "mnist"), HasSubstr("an object of somebody else"));
  EXPECT_EQ(json::parse(api_.Peek(kube::Services(), "ml", "mnist"))["metadata"]["uid"], "theirs");
  // A new process leaves it at that.
  Stop();
  api_.ForgetCalls();
  Start();
  Settle();
  EXPECT_THAT(api_.All(kube::Pods()), IsEmpty());
  for (const FakeApi::Call& call : Writes()) EXPECT_NE(call.plural, "pods") << call.verb;
  // And when the name is free, the job runs.
  api_.Remove(kube::Services(), "ml", "mnist");
  api_.Put(TrainingJobs(),
           api_.Peek(TrainingJobs(), "ml", "mnist"));  // wakes it before the next try is due
  EXPECT_TRUE(Eventually([&] { return api_.All(kube::Pods()).size() == 2; }));
  EXPECT_TRUE(Eventually([&] { return Condition("mnist", "Waiting") != "True"; }));
}

}  // namespace
}  // namespace meshtrain::control
