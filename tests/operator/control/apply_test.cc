#include "operator/control/apply.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "tests/support/fake_api.h"
#include "tests/support/fake_clock.h"

namespace meshtrain::control {
namespace {

using nlohmann::json;
using testing::FakeApi;

json JobJson(const std::string& uid) {
  const json container = {{"name", "trainer"}, {"image", "i"}};
  const json pod = {{"spec", {{"containers", json::array({container})}}}};
  return {{"apiVersion", "meshtrain.dev/v1"},
          {"kind", "TrainingJob"},
          {"metadata", {{"name", "mnist"}, {"namespace", "ml"}, {"uid", uid}}},
          {"spec", {{"replicaSpecs", {{"worker", {{"template", pod}}}}}}}};
}

class ApplyTest : public ::testing::Test {
 protected:
  void SetUp() override {
    api_.Put(TrainingJobs(), JobJson("u1").dump());
    store_.WroteJob(api_.Peek(TrainingJobs(), "ml", "mnist"));
    api_.Put(kube::Pods(), json{{"metadata",
                                 {{"name", "mnist-worker-0"},
                                  {"namespace", "ml"},
                                  {"uid", "p1"},
                                  {"finalizers", {"example.com/wait"}}}}}
                               .dump());
  }
  Applied Apply(reconcile::Write write, int64_t change) {
    const auto view = store_.View("ml/mnist");
    return applier_.Apply(*view->job,
                          {.actions = {{reconcile::Phase::kRemove, std::move(write), "a reason"}}},
                          {}, change, {});
  }
  Applied Adopt() { return Apply(reconcile::AdoptPod{.name = "mnist-worker-0", .uid = "p1"}, 1); }
  int Calls(const std::string& verb, const std::string& plural = "pods") {
    const auto calls = api_.calls();
    return static_cast<int>(std::count_if(calls.begin(), calls.end(), [&](const auto& call) {
      return call.verb == verb && call.plural == plural;
    }));
  }

  FakeApi api_;
  testing::FakeClock clock_;
  Store store_{[](const std::string&) {}};
  kube::EventRecorder events_{api_, clock_, "test"};
  FanOut fan_out_{0};
  Applier applier_{api_, events_, store_, fan_out_, clock_};
};

TEST_F(ApplyTest, AdoptsForAJobThatIsThere) {
  EXPECT_TRUE(Adopt().status.ok());
  EXPECT_EQ(Calls("patch"), 1);
}

TEST_F(ApplyTest, AdoptsNothingForAJobThatIsBeingDeleted) {
  json job = json::parse(api_.Peek(TrainingJobs(), "ml", "mnist"));
  job["metadata"]["deletionTimestamp"] = "2026-01-02T03:04:05Z";
  job["metadata"]["finalizers"] = {"orphan"};
  api_.Put(TrainingJobs(), job.dump());
  EXPECT_EQ(Adopt().status.code(), StatusCode::kAborted);
  EXPECT_EQ(Calls("patch"), 0);
  EXPECT_TRUE(store_.View("ml/mnist")->job->metadata.deleted) << "nobody need ask again";
}

TEST_F(ApplyTest, AdoptsNothingForAJobThatIsGoneOrAnother) {
  api_.Remove(TrainingJobs(), "ml", "mnist");
  EXPECT_EQ(Adopt().status.code(), StatusCode::kAborted);
  EXPECT_TRUE(store_.View("ml/mnist")->job->metadata.deleted);
  api_.Put(TrainingJobs(), JobJson("u2").dump());
  EXPECT_EQ(Adopt().status.code(), StatusCode::kAborted);
  EXPECT_EQ(store_.View("ml/mnist")->job->metadata.uid, "u2");
  EXPECT_EQ(Calls("patch"), 0);
}

// By its time to live, after the status that the same look decided on.
TEST_F(ApplyTest, AJobIsDeletedAsItsOwnStatusLeftItAndAsNobodyElseDid) {
  const auto apply = [&] {
    const auto view = store_.View("ml/mnist");
    const api::ObjectMeta& meta = view->job->metadata;
    reconcile::PatchStatus patch{.resource_version = meta.resource_version};
    patch.status.phase = "Succeeded";
    const reconcile::DeleteJob remove{.uid = meta.uid, .resource_version = meta.resource_version};
    return applier_.Apply(*view->job,
                          {.actions = {{reconcile::Phase::kDecide, patch, ""},
                                       {reconcile::Phase::kReport, remove, ""}}},
                          {}, 1, {});
  };
  // Somebody edits the job once its status is written.
  api_.SetFault([&](const FakeApi::Call& call, bool after) {
    if (call.subresource == "status" && after) {
      api_.Put(TrainingJobs(), api_.Peek(TrainingJobs(), "ml", "mnist"));
    }
    return OkStatus();
  });
  const Applied late = apply();
  EXPECT_EQ(late.status.code(), StatusCode::kAborted);
  EXPECT_TRUE(late.read_job_anew);
  EXPECT_FALSE(store_.View("ml/mnist")->job->metadata.deleted) << "it is still there";
  api_.SetFault({});

  store_.WroteJob(api_.Peek(TrainingJobs(), "ml", "mnist"));
  clock_.Advance(std::chrono::seconds(1));
  json job = json::parse(api_.Peek(TrainingJobs(), "ml", "mnist"));
  job["status"]["phase"] = "Failed";
  api_.Put(TrainingJobs(), job.dump());
  store_.WroteJob(api_.Peek(TrainingJobs(), "ml", "mnist"));
  const Applied done = apply();
  EXPECT_TRUE(done.status.ok()) << done.status.ToString();
  EXPECT_TRUE(done.told);
  EXPECT_EQ(api_.Peek(TrainingJobs(), "ml", "mnist"), "");
  EXPECT_TRUE(store_.View("ml/mnist")->job->metadata.deleted);
}

TEST_F(ApplyTest, APodThatDoesNotGoIsAskedOnceBetweenTwoChangesOfTheWorld) {
  const reconcile::DeletePod force{.name = "mnist-worker-0", .uid = "p1", .grace_seconds = 0};
  for (int i = 0; i < 20; ++i) {
    EXPECT_TRUE(Apply(force, 1).status.ok());
    clock_.Advance(std::chrono::minutes(1));
  }
  EXPECT_EQ(Calls("delete"), 1);
  EXPECT_NE(api_.Peek(kube::Pods(), "ml", "mnist-worker-0"), "") << "its finalizer keeps it";
  EXPECT_TRUE(Apply(force, 2).status.ok());
  EXPECT_EQ(Calls("delete"), 2);
  // Another one at once, however fast the world changes.
  const Applied again = Apply(force, 3);
  EXPECT_EQ(again.status.code(), StatusCode::kCancelled) << "nor is what comes after it";
  EXPECT_EQ(again.look_again_in, std::chrono::seconds(1));
  EXPECT_EQ(Calls("delete"), 2);
}

// What no watch tells of is asked for again though nothing was told, if the decision says so.
TEST_F(ApplyTest, ARepeatedQuestionIsSentOnceASecondHasPassed) {
  const reconcile::CreateSecret probe{
      .name = "t", .key = "token", .body = R"({"metadata":{"name":"t"}})", .probe = true};
  const auto apply = [&](bool repeat) {
    reconcile::Outcome outcome;
    outcome.actions.push_back(
        {.phase = reconcile::Phase::kPrepare, .write = probe, .why = "test", .repeat = repeat});
    return applier_.Apply(*store_.View("ml/mnist")->job, outcome, {}, 1, {});
  };
  api_.Put({"", "v1", "secrets"}, R"({"metadata":{"namespace":"ml","name":"t"}})");
  EXPECT_TRUE(apply(false).status.ok());
  clock_.Advance(std::chrono::minutes(5));
  EXPECT_TRUE(apply(false).status.ok());
  EXPECT_EQ(Calls("create", "secrets"), 1);
  EXPECT_TRUE(apply(true).status.ok());
  EXPECT_EQ(Calls("create", "secrets"), 2);
  EXPECT_FALSE(apply(true).status.ok());
  EXPECT_EQ(Calls("create", "secrets"), 2);
}

TEST_F(ApplyTest, EachWriteIsALineWithItsReason) {
  ::testing::internal::CaptureStderr();
  const reconcile::DeletePod remove{.name = "mnist-worker-0", .uid = "p1"};
  EXPECT_TRUE(Apply(remove, 1).status.ok());
  EXPECT_TRUE(Apply(remove, 1).status.ok());  // not sent: no line
  api_.SetFault([](const FakeApi::Call& call, bool) {
    return call.verb == "create" ? PermissionDenied("no") : OkStatus();
  });
  EXPECT_FALSE(
      Apply(reconcile::CreateService{.name = "mnist", .body = R"({"metadata":{"name":"mnist"}})"},
            1)
          .status.ok());
  api_.SetFault({});
  const std::string log = ::testing::internal::GetCapturedStderr();
  EXPECT_EQ(std::count(log.begin(), log.end(), '\n'), 2) << log;
  EXPECT_NE(log.find("level=info msg=done job=ml/mnist what=\"delete pod mnist-worker-0"),
            std::string::npos)
      << log;
  EXPECT_NE(log.find("why=\"a reason\""), std::string::npos) << log;
  EXPECT_NE(log.find("level=warning msg=\"not done\" job=ml/mnist what=\"create service mnist\""),
            std::string::npos)
      << log;
}

// Each job says every few seconds how far it is.
TEST_F(ApplyTest, ThatAStepIsAheadIsNoLine) {
  const auto log_of = [&](const api::JobStatus& status) {
    ::testing::internal::CaptureStderr();
    EXPECT_TRUE(Apply(reconcile::PatchStatus{.status = status}, 1).status.ok());
    return ::testing::internal::GetCapturedStderr();
  };
  const int before = Calls("patch", "trainingjobs");
  api::JobStatus status = store_.View("ml/mnist")->job->status;
  status.phase = "Running";
  EXPECT_NE(log_of(status).find("patch status Running"), std::string::npos);
  status = store_.View("ml/mnist")->job->status;
  status.progress = api::ProgressStatus{.step = 120};
  status.last_reconcile_time = clock_.Now();
  EXPECT_EQ(log_of(status), "");
  status = store_.View("ml/mnist")->job->status;
  status.progress->step = 240;
  status.ready = "1/2";
  EXPECT_NE(log_of(status).find("patch status Running"), std::string::npos);
  EXPECT_EQ(Calls("patch", "trainingjobs") - before, 3);
}

TEST_F(ApplyTest, ARefusalIsRememberedForItsBackOff) {
  api_.SetFault([](const FakeApi::Call& call, bool) {
    return call.verb == "create" ? ResourceExhausted("exceeded quota: q") : OkStatus();
  });
  const reconcile::CreateService create{.name = "mnist",
                                        .body = R"({"metadata":{"name":"mnist"}})"};
  const auto creations = [&] {
    const auto calls = api_.calls();
    return std::count_if(calls.begin(), calls.end(),
                         [](const auto& call) { return call.verb == "create"; });
  };
  for (int i = 0; i < 20; ++i) {
    const Applied refused = Apply(create, 1);
    EXPECT_EQ(refused.status.code(), StatusCode::kResourceExhausted);
    ASSERT_TRUE(refused.refused);
    EXPECT_EQ(refused.refused->what, "services \"mnist\"");
    EXPECT_EQ(refused.refused->reason, "ExceededQuota");
    EXPECT_EQ(refused.look_again_in, std::chrono::seconds(1));
  }
  EXPECT_EQ(creations(), 1);
  clock_.Advance(std::chrono::seconds(1));
  EXPECT_EQ(Apply(create, 1).look_again_in, std::chrono::seconds(2));
  EXPECT_EQ(creations(), 2);
  api_.SetFault({});
}

TEST_F(ApplyTest, AChildThatPodsMountIsFoundMissing) {
  reconcile::CreateSecret secret{.name = "mnist-token-1",
                                 .key = "token",
                                 .body = R"({"metadata":{"name":"mnist-token-1"}})",
                                 .probe = true};
  const kube::Resource secrets{"", "v1", "secrets"}, claims{"", "v1", "persistentvolumeclaims"};
  const Applied missing = Apply(secret, 1);
  EXPECT_EQ(missing.status.code(), StatusCode::kNotFound);
  EXPECT_EQ(missing.lost_child, (reconcile::LostChild{"secret \"mnist-token-1\"", 0}));
  EXPECT_FALSE(missing.refused);
  EXPECT_TRUE(api_.All(secrets).empty()) << "asked, not made";
  // Then it is made, at once, and is there from then on.
  secret.probe = false;
  EXPECT_TRUE(Apply(secret, 1).status.ok());
  EXPECT_EQ(api_.All(secrets).size(), 1u);
  secret.probe = true;
  clock_.Advance(std::chrono::seconds(2));
  const Applied there = Apply(secret, 3);
  EXPECT_TRUE(there.status.ok()) << there.status.ToString();
  EXPECT_FALSE(there.lost_child);
  // A large job's cluster file likewise.
  reconcile::CreateConfigMap map{
      .name = "mnist-cluster-1-2",
      .body = R"({"metadata":{"name":"mnist-cluster-1-2","namespace":"ml",
      "ownerReferences":[{"kind":"TrainingJob","name":"mnist","uid":"u1","controller":true}]}})",
      .probe = true};
  const kube::Resource maps{"", "v1", "configmaps"};
  EXPECT_EQ(Apply(map, 3).lost_child, (reconcile::LostChild{"configmap \"mnist-cluster-1-2\"", 0}));
  EXPECT_TRUE(api_.All(maps).empty()) << "asked, not made";
  map.probe = false;
  EXPECT_TRUE(Apply(map, 3).status.ok());
  map.probe = true;
  clock_.Advance(std::chrono::seconds(2));
  EXPECT_FALSE(Apply(map, 5).lost_child);
  // A claim that is going away is held by the pods that mount it.
  api_.Put(claims, R"({"metadata":{"name":"mnist-checkpoint-1","namespace":"ml",
      "deletionTimestamp":"2026-01-02T03:04:05Z","ownerReferences":[
      {"kind":"TrainingJob","name":"mnist","uid":"u1","controller":true}]}})");
  const Applied going =
      Apply(reconcile::CreateClaim{.name = "mnist-checkpoint-1",
                                   .body = R"({"metadata":{"name":"mnist-checkpoint-1"}})"},
            3);
  EXPECT_EQ(going.lost_child,
            (reconcile::LostChild{"persistentvolumeclaim \"mnist-checkpoint-1\"", 0}));
}

TEST_F(ApplyTest, AStatusThatTheServerDropsIsNotWrittenAgainAndAgain) {
  // As a field that the schema does not know.
  const auto text = api_.Peek(TrainingJobs(), "ml", "mnist");
  reconcile::PatchStatus patch;
  patch.status.phase = "Running";
  const auto writes = [&] {
    const auto calls = api_.calls();
    return std::count_if(calls.begin(), calls.end(),
                         [](const auto& call) { return call.subresource == "status"; });
  };
  const auto view = store_.View("ml/mnist");
  for (int i = 0; i < 10; ++i) {
    patch.status.last_reconcile_time = clock_.Now();
    EXPECT_TRUE(
        applier_.Apply(*view->job, {.actions = {{reconcile::Phase::kDecide, patch, ""}}}, {}, 1, {})
            .status.ok());
    clock_.Advance(std::chrono::seconds(2));
  }
  EXPECT_EQ(writes(), 1);
}

}  // namespace
}  // namespace meshtrain::control
