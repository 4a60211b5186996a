// A Controller in trouble: conflicts, lost answers, its own death, objects that somebody deleted,
// an etcd of before.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "operator/control/controller.h"
#include "tests/operator/control/controller_fixture.h"
#include "tests/support/fake_api.h"
#include "tests/support/small_program.h"

namespace meshtrain::control {
namespace {

using nlohmann::json;
using testing::FakeApi;
using ::testing::IsEmpty;
using ::testing::SizeIs;

TEST_F(ControllerTest, DecidesAgainAfterAConflict) {
  std::atomic<int> conflicts = 0;
  api_.SetFault([&](const FakeApi::Call& call, bool after) {
    const bool hit = !after && call.subresource == "status" && conflicts++ < 2;
    return hit ? Aborted("the object has been modified") : OkStatus();
  });
  Start();
  api_.Put(TrainingJobs(), JobText("mnist", 1));
  ASSERT_TRUE(Eventually([&] { return api_.All(kube::Pods()).size() == 1; }));
  EXPECT_TRUE(Eventually([&] { return conflicts >= 3; }));
  Stop();
}

TEST_F(ControllerTest, ReadsAJobAnewWhenItsStatusWriteGotNoAnswer) {
  // Silence, then a failing read: nothing may be decided in between, for the write may have
  // happened.
  std::atomic<int> lost = 0, failed_reads = 0;
  api_.SetFault([&](const FakeApi::Call& call, bool after) {
    if (after && call.subresource == "status" && lost == 0) {
      return ++lost, Unavailable("answer lost");
    }
    if (!after && call.verb == "get" && call.plural == "trainingjobs" && failed_reads < 2) {
      return ++failed_reads, Unavailable("down");
    }
    return OkStatus();
  });
  Start();
  api_.Put(TrainingJobs(), JobText("mnist", 2));
  ASSERT_TRUE(Eventually(
      [&] { return lost == 1 && failed_reads == 2 && Condition("mnist", "Created") == "True"; }));
  Settle();
  std::vector<std::string> of_the_job;
  for (const FakeApi::Call& call : api_.calls()) {
    if (call.plural == "trainingjobs" && (call.verb == "get" || call.verb == "patch")) {
      of_the_job.push_back(call.verb);
    }
  }
  EXPECT_THAT(of_the_job, ::testing::ElementsAre("patch", "get", "get", "get"));
  Stop();
}

// Who is asked for is gone, and before the answer is heard another job has its name.
TEST_F(ControllerTest, AJobMadeAgainWhileTheOneBeforeIsAskedForIsNotTakenForGone) {
  std::atomic<bool> asked = false;
  json next = json::parse(JobText("mnist", 1));
  next["metadata"]["uid"] = "another";
  api_.SetFault([&](const FakeApi::Call& call, bool after) {
    if (call.plural != "trainingjobs" || asked) return OkStatus();
    if (after && call.subresource == "status") return Unavailable("answer lost");
    if (after || call.verb != "get") return OkStatus();
    api_.Remove(TrainingJobs(), "ml", "mnist");
    api_.Put(TrainingJobs(), next.dump());
    EXPECT_TRUE(Eventually([&] {
      const auto view = controller_->store().View("ml/mnist");
      return view && view->job->metadata.uid == "another";
    }));
    asked = true;
    return NotFound("trainingjobs \"mnist\" not found");
  });
  Start();
  api_.Put(TrainingJobs(), JobText("mnist", 1));
  EXPECT_TRUE(Eventually([&] { return asked && Condition("mnist", "Created") == "True"; }))
      << api_.Peek(TrainingJobs(), "ml", "mnist");
  EXPECT_EQ(Job("mnist")["metadata"]["uid"], "another");
  Stop();
}

TEST_F(ControllerTest, GoesOnAfterBeingKilledAtAnyWrite) {
  // The process ends right after its n-th write (whose answer it never sees); the next one finishes
  // the work.
  for (int n = 1; n <= 6; ++n) {
    const std::string name = "job" + std::to_string(n);
    std::atomic<int> writes = 0;
    std::atomic<bool> dead = false;
    api_.SetFault([&](const FakeApi::Call& call, bool after) {
      const bool write = call.verb == "create" || call.verb == "patch" || call.verb == "delete";
      if (dead) return FailedPrecondition("this process is dead");
      if (after && write && call.plural != "events" && ++writes == n) {
        dead = true;
        return FailedPrecondition("killed");
      }
      return OkStatus();
    });
    Start();
    api_.Put(TrainingJobs(), JobText(name, 3));
    ASSERT_TRUE(Eventually([&] { return dead || api_.All(kube::Pods()).size() == 3u * n; }));
    Stop();
    api_.SetFault({});
    Start();
    ASSERT_TRUE(Eventually([&] { return api_.All(kube::Pods()).size() == 3u * n; })) << n;
    ASSERT_TRUE(Eventually([&] { return Condition(name, "Created") == "True"; })) << n;
    Settle();
    EXPECT_THAT(api_.All(kube::Services()), SizeIs(n));
    Stop();
  }
}

TEST_F(ControllerTest, ATokenThatSomebodyDeletedRestartsAllTogether) {
  Start();
  json job = json::parse(JobText("mnist", 2));
  job["spec"]["program"] = json::parse(testing_support::kProgram);
  api_.Put(TrainingJobs(), job.dump());
  ASSERT_TRUE(Eventually([&] { return api_.All(kube::Pods()).size() == 2; }));
  for (const char* name : {"mnist-worker-0", "mnist-worker-1"}) SetPhase(name, Running());
  ASSERT_TRUE(Eventually([&] { return Condition("mnist", "Running") == "True"; }));
  const kube::Resource secrets{"", "v1", "secrets"};
  const auto uid_of = [&](const kube::Resource& resource, const std::string& name) {
    const std::string text = api_.Peek(resource, "ml", name);
    return text.empty() ? "" : json::parse(text)["metadata"]["uid"].get<std::string>();
  };
  ASSERT_EQ(api_.All(secrets).size(), 1u);
  const std::string token = json::parse(api_.All(secrets)[0])["metadata"]["name"];
  const std::string first = uid_of(secrets, token), zero = uid_of(kube::Pods(), "mnist-worker-0");
  Settle();
  api_.Remove(secrets, "ml", token);
  SetPhase("mnist-worker-1", Ended(138));
  // Pods on a node go when their kubelet says so.
  ASSERT_TRUE(Eventually([&] {
    for (const char* name : {"mnist-worker-0", "mnist-worker-1"}) {
      const std::string text = api_.Peek(kube::Pods(), "ml", name);
      if (text.find("deletionTimestamp") != std::string::npos) {
        api_.Remove(kube::Pods(), "ml", name);
      }
    }
    const std::string now = uid_of(kube::Pods(), "mnist-worker-0");
    return !now.empty() && now != zero && api_.All(kube::Pods()).size() == 2;
  })) << api_.Peek(TrainingJobs(), "ml", "mnist");
  EXPECT_NE(uid_of(secrets, token), first);
  EXPECT_NE(uid_of(secrets, token), "");
}

TEST_F(ControllerTest, AsksOnceForAPodThatDoesNotGo) {
  // Its finalizer keeps it, its node is gone: only force helps, and even that does not.
  Start();
  api_.Put(TrainingJobs(), JobText("mnist", 2));
  ASSERT_TRUE(Eventually([&] { return api_.All(kube::Pods()).size() == 2; }));
  for (const char* name : {"mnist-worker-0", "mnist-worker-1"}) SetPhase(name, Running());
  ASSERT_TRUE(Eventually([&] { return Condition("mnist", "Running") == "True"; }));
  json pod = json::parse(api_.Peek(kube::Pods(), "ml", "mnist-worker-1"));
  pod["metadata"]["finalizers"] = {"example.com/wait"};
  api_.Put(kube::Pods(), pod.dump());
  Settle();
  api_.ForgetCalls();
  api_.Remove(kube::Nodes(), "", "n1");
  const auto count = [&](const std::string& verb, const std::string& name) {
    int n = 0;
    for (const FakeApi::Call& call : api_.calls()) n += call.verb == verb && call.name == name;
    return n;
  };
  ASSERT_TRUE(Eventually([&] { return count("delete", "mnist-worker-1") > 0; }));
  Settle();
  EXPECT_EQ(count("delete", "mnist-worker-1"), 1);
  EXPECT_NE(api_.Peek(kube::Pods(), "ml", "mnist-worker-1"), "");
  // The world changes, the pod does not; not again within a second at the least.
  for (int i = 0; i < 5; ++i) {
    SetPhase("mnist-worker-1", {{"phase", "Running"}, {"reason", "try " + std::to_string(i)}});
    Settle();
  }
  EXPECT_LE(count("delete", "mnist-worker-1"), 3);
}

TEST_F(ControllerTest, ANodeThatTheServerKnowsIsNotGoneThoughTheWatchDoesNotTellOfIt) {
  // Versions of nodes are far ahead of those of pods, as with an etcd of their own, and the watch
  // of nodes is stuck.
  api_.SetFault([](const FakeApi::Call& call, bool) {
    return call.verb == "watch" && call.plural == "nodes" ? Unavailable("stuck") : OkStatus();
  });
  Start();
  api_.Put(TrainingJobs(), JobText("mnist", 1));
  ASSERT_TRUE(Eventually([&] { return api_.All(kube::Pods()).size() == 1; }));
  api_.Put(kube::Nodes(), R"({"metadata":{"name":"n2"},"status":{"conditions":[
    {"type":"Ready","status":"True"}]}})");
  json pod = json::parse(api_.Peek(kube::Pods(), "ml", "mnist-worker-0"));
  pod["spec"]["nodeName"] = "n2";
  pod["status"] = Running();
  api_.Put(kube::Pods(), pod.dump());
  ASSERT_TRUE(Eventually([&] { return Condition("mnist", "Running") == "True"; }));
  Settle();
  for (const FakeApi::Call& call : Writes()) EXPECT_NE(call.verb, "delete") << call.name;
  Stop();
}

TEST_F(ControllerTest, ComesToWhatAFreshProcessSeesAfterAnOlderEtcdWasRestored) {
  Start();
  api_.Put(TrainingJobs(), JobText("before", 2));
  ASSERT_TRUE(Eventually([&] { return api_.All(kube::Pods()).size() == 2; }));
  Settle();
  api_.Snapshot();
  // All of this will not have been.
  api_.Put(TrainingJobs(), JobText("after", 3));
  ASSERT_TRUE(Eventually([&] { return api_.All(kube::Pods()).size() == 5; }));
  api_.Remove(kube::Pods(), "ml", "before-worker-1");
  Settle();
  api_.Restore();
  ASSERT_TRUE(Eventually([&] { return controller_->store().jobs() == 1; }));
  ASSERT_TRUE(Eventually([&] { return controller_->store().pods() == 2; }));
  // And it goes on from there: another job gets its pods.
  api_.Put(TrainingJobs(), JobText("later", 2));
  ASSERT_TRUE(Eventually([&] { return api_.All(kube::Pods()).size() == 4; }));
  Settle();
  EXPECT_EQ(api_.Peek(TrainingJobs(), "ml", "after"), "");
  // A fresh process finds nothing to do.
  Stop();
  api_.ForgetCalls();
  Start();
  ASSERT_TRUE(Eventually([&] { return controller_->Ready().ok(); }));
  Settle();
  EXPECT_THAT(Writes(), IsEmpty());
}

TEST_F(ControllerTest, NothingIsDecidedByWhatWillNotHaveBeen) {
  Start();
  api_.Put(TrainingJobs(), JobText("before", 1));
  ASSERT_TRUE(Eventually([&] { return api_.All(kube::Pods()).size() == 1; }));
  SetPhase("before-worker-0", Running());
  ASSERT_TRUE(Eventually([&] { return Condition("before", "Running") == "True"; }));
  Settle();
  api_.Snapshot();
  SetPhase("before-worker-0", Ended(0));
  ASSERT_TRUE(Eventually([&] { return Condition("before", "Succeeded") == "True"; }));
  Settle();
  // Pods answer later than jobs: the pod that ended is known for longer than the job's end.
  std::atomic<bool> pods_answer = false;
  api_.SetFault([&](const FakeApi::Call& call, bool) {
    return call.plural != "pods" || pods_answer ? OkStatus() : Unavailable("down");
  });
  api_.Restore();
  ASSERT_TRUE(Eventually([&] {
    const auto view = controller_->store().View("ml/before");
    return view && !api::IsFinished(view->job->status);
  }));
  api_.Put(TrainingJobs(), JobText("before", 1));  // a reason to look at it
  Settle();
  EXPECT_EQ(Condition("before", "Succeeded"), "");
  EXPECT_FALSE(controller_->sure());
  pods_answer = true;
  ASSERT_TRUE(Eventually([&] { return controller_->sure(); }));
  EXPECT_TRUE(Eventually([&] { return Condition("before", "Running") == "True"; }));
  Settle();
  EXPECT_EQ(Condition("before", "Succeeded"), "");
  EXPECT_EQ(api_.All(kube::Pods()).size(), 1u);
  Stop();
}

}  // namespace
}  // namespace meshtrain::control
