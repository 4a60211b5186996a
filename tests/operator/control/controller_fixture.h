// A Controller of its own thread over a FakeApi, for its tests: jobs, pods and their phases as
// JSON, and the writes that it made.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>
#include <stop_token>
#include <string>
#include <thread>
#include <vector>

#include "operator/control/controller.h"
#include "tests/support/fake_api.h"

namespace meshtrain::control {

using nlohmann::json;
using testing::FakeApi;

inline std::string JobText(const std::string& name, int workers, const std::string& ns = "ml") {
  const json container = {{"name", "trainer"}, {"image", "i"}};
  const json pod = {{"spec", {{"containers", json::array({container})}}}};
  return json{{"apiVersion", "meshtrain.dev/v1"},
              {"kind", "TrainingJob"},
              {"metadata",
               {{"name", name},
                {"namespace", ns},
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
    options.namespaces = namespaces_;
    options.watch_nodes = namespaces_.empty();
    options.settings = settings_;
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
    for (int i = 0; i < 60000; ++i) {  // a minute and more
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

  // How many lists were asked for since ForgetCalls.
  int64_t Lists() {
    const std::vector<FakeApi::Call> calls = api_.calls();
    return std::count_if(calls.begin(), calls.end(),
                         [](const FakeApi::Call& call) { return call.verb == "list"; });
  }

  FakeApi api_;
  reconcile::Settings settings_;  // of the next Start
  std::set<std::string> namespaces_;
  ShiftedClock clock_;
  std::atomic<int> rests_ = 0;
  Metrics metrics_{"fake"};
  std::stop_source stop_;
  std::unique_ptr<kube::EventRecorder> events_;
  std::unique_ptr<Controller> controller_;
  std::thread thread_;
};

inline json Running() {
  return {{"phase", "Running"}, {"conditions", {{{"type", "Ready"}, {"status", "True"}}}}};
}
inline json Ended(int code) {
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

}  // namespace meshtrain::control
