#include "operator/control/controller.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <thread>

#include "tests/support/fake_api.h"
#include "tests/support/small_program.h"

namespace meshtrain::control {
namespace {

using nlohmann::json;
using testing::FakeApi;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

std::string JobText(const std::string& name, int workers) {
  const json container = {{"name", "trainer"}, {"image", "i"}};
  const json pod = {{"spec", {{"containers", json::array({container})}}}};
  return json{{"apiVersion", "meshtrain.dev/v1"},
              {"kind", "TrainingJob"},
              {"metadata",
               {{"name", name},
                {"namespace", "ml"},
                {"generation", 1},
                {"creationTimestamp", "2026-01-02T03:04:05Z"}}},
              {"spec",
               {{"replicaSpecs",
                 {{"worker",
                   {{"replicas", workers}, {"restartPolicy", "OnFailure"}, {"template", pod}}}}}}}}
      .dump();
}

// The machine's clock, which a test may set forward.
class ShiftedClock : public Clock {
 public:
  TimePoint Now() const override { return SystemClock().Now() + Duration(shift_.load()); }
  Duration Monotonic() const override {
    return SystemClock().Monotonic() + Duration(shift_.load());
  }
  bool SleepFor(Duration how_long, std::stop_token stop) override {
    return SystemClock().SleepFor(how_long, stop);
  }
  void Shift(Duration by) { shift_ += by.count(); }

 private:
  std::atomic<int64_t> shift_ = 0;
};

class ControllerTest : public ::testing::Test {
 protected:
  void SetUp() override {
    // What SetPhase binds pods to.
    api_.Put(kube::Nodes(), R"({"metadata":{"name":"n1"},"status":{"conditions":[
      {"type":"Ready","status":"True"}]}})");
  }
  void Start() {
    stop_ = std::stop_source();
    events_ = std::make_unique<kube::EventRecorder>(api_, SystemClock(), "test");
    ControllerOptions options;
    options.helpers = 4;
    options.pull_progress = false;
    options.watch_nodes = true;
    options.on_rest = [this] { ++rests_; };
    controller_ = std::make_unique<Controller>(api_, *events_, clock_, metrics_, options);
    thread_ = std::thread([this] { controller_->Run(stop_.get_token()); });
  }
  void Stop() {
    stop_.request_stop();
    if (thread_.joinable()) thread_.join();
    controller_.reset();
    events_.reset();
  }
  void TearDown() override { Stop(); }

  template <typename Predicate>
  bool Eventually(Predicate predicate) {
    for (int i = 0; i < 5000; ++i) {
      if (predicate()) return true;
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return false;
  }
  json Job(const std::string& name) { return json::parse(api_.Peek(TrainingJobs(), "ml", name)); }
  // "True", "False" or "" of a condition.
  std::string Condition(const std::string& name, const std::string& type) {
    const json job = Job(name);
    if (!job.contains("status")) return "";
    for (const json& condition : job["status"].value("conditions", json::array())) {
      if (condition["type"] == type) return condition["status"];
    }
    return "";
  }
  void SetPhase(const std::string& pod, const json& status) {
    json object = json::parse(api_.Peek(kube::Pods(), "ml", pod));
    object["status"] = status;
    object["spec"]["nodeName"] = "n1";
    api_.Put(kube::Pods(), object.dump());
  }
  // Quiet for a while: whatever would still happen has happened.
  void Settle() {
    int quiet = 0;
    size_t calls = 0;
    Eventually([&] {
      const size_t now = Writes().size();
      quiet = controller_->idle() && now == calls ? quiet + 1 : 0;
      calls = now;
      return quiet > 30;
    });
  }
  std::vector<FakeApi::Call> Writes(bool with_events = false) {
    std::vector<FakeApi::Call> out;
    for (const FakeApi::Call& call : api_.calls()) {
      const bool read = call.verb == "get" || call.verb == "list" || call.verb == "watch" ||
                        call.verb == "version";
      if (!read && (with_events || call.plural != "events")) out.push_back(call);
    }
    return out;
  }

  FakeApi api_;
  ShiftedClock clock_;
  std::atomic<int> rests_ = 0;
  Metrics metrics_{"fake"};
  std::stop_source stop_;
  std::unique_ptr<kube::EventRecorder> events_;
  std::unique_ptr<Controller> controller_;
  std::thread thread_;
};

json Running() {
  return {{"phase", "Running"}, {"conditions", {{{"type", "Ready"}, {"status", "True"}}}}};
}
json Ended(int code) {
  return {{"phase", code == 0 ? "Succeeded" : "Failed"},
          {"containerStatuses",
           {{{"name", "trainer"},
             {"restartCount", 0},
             {"state",
              {{"terminated",
                {{"exitCode", code},
                 {"reason", "Error"},
                 {"finishedAt", "2026-01-02T03:05:00Z"}}}}}}}}};
}

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
  const auto lists = [this] {
    const auto calls = api_.calls();
    return std::count_if(calls.begin(), calls.end(),
                         [](const FakeApi::Call& call) { return call.verb == "list"; });
  };
  ASSERT_TRUE(Eventually([&] { return lists() >= 4; })) << "pods, Services, jobs, nodes: anew";
  Settle();
  EXPECT_THAT(Writes(true), IsEmpty());
  // Another process that starts on the settled world has nothing to do either.
  Stop();
  api_.ForgetCalls();
  Start();
  ASSERT_TRUE(Eventually([&] { return controller_->synced(); }));
  Settle();
  EXPECT_THAT(Writes(true), IsEmpty());
}

TEST_F(ControllerTest, RestsOnceAfterEachTimeOfWork) {
  Start();
  api_.Put(TrainingJobs(), JobText("mnist", 2));
  ASSERT_TRUE(Eventually([&] { return api_.All(kube::Pods()).size() == 2; }));
  // Worker 0 leads: once it runs all is told. One timer is left: a status may be written again 5 s
  // after the first.
  SetPhase("mnist-worker-1", Running());
  SetPhase("mnist-worker-0", Running());
  ASSERT_TRUE(Eventually([&] { return Condition("mnist", "Running") == "True"; }));
  std::this_thread::sleep_for(std::chrono::milliseconds(7500));
  const int rests = rests_;
  EXPECT_GE(rests, 1);
  std::this_thread::sleep_for(std::chrono::milliseconds(2500));
  EXPECT_EQ(rests_, rests) << "nothing has happened since";
  SetPhase("mnist-worker-1", Ended(0));
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
  ASSERT_TRUE(Eventually([&] { return controller_->synced(); }));
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
