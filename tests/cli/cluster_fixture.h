// A server whose answers a test gives, and the verbs of a cluster against it.
#pragma once

#include <gtest/gtest.h>
#include <httplib.h>
#include <signal.h>

#include <map>
#include <mutex>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "cli/verbs.h"
#include "runtime/cluster/contract.h"
#include "tests/cli/manifests.h"

namespace meshtrain::cli {

using nlohmann::json;

inline constexpr char kJobs[] = "/apis/meshtrain.dev/v1/namespaces/ml/trainingjobs";
inline constexpr char kPods[] = "/api/v1/namespaces/ml/pods";
// Later than now, so that every age is 0 s.
inline constexpr char kLater[] = "2149-01-01T00:00:00Z";

inline json JobJson(const std::string& name, const json& status) {
  return {{"apiVersion", "meshtrain.dev/v1"},
          {"kind", "TrainingJob"},
          {"metadata", {{"name", name}, {"namespace", "ml"}, {"creationTimestamp", kLater}}},
          {"spec", {{"replicaSpecs", {{"worker", {{"replicas", 2}}}, {"ps", {{"replicas", 1}}}}}}},
          {"status", status}};
}
inline json Condition(const std::string& type, const std::string& reason,
                      const std::string& message) {
  return json::array({{{"type", type},
                       {"status", "True"},
                       {"reason", reason},
                       {"message", message},
                       {"lastTransitionTime", kLater}}});
}
inline json RunningStatus() {
  return {{"phase", "Running"},
          {"ready", "2/3"},
          {"restarts", 1},
          {"progress", {{"step", 120}, {"totalSteps", 400}, {"loss", 0.25}, {"accuracy", 0.875}}}};
}
inline json EndedStatus() {
  return {{"phase", "Succeeded"}, {"conditions", Condition("Succeeded", "Done", "")}};
}
inline std::string ListOf(const std::vector<json>& items) {
  return json{{"metadata", {{"resourceVersion", "5"}}}, {"items", items}}.dump();
}

// No thread that is started meanwhile is ended by them; a verb takes them where it waits.
class SignalsBlocked {
 public:
  SignalsBlocked() {
    sigset_t set;
    ::sigemptyset(&set);
    for (const int signal : {SIGINT, SIGTERM}) ::sigaddset(&set, signal);
    ::pthread_sigmask(SIG_BLOCK, &set, &before_);
  }
  ~SignalsBlocked() { ::pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  SignalsBlocked(const SignalsBlocked&) = delete;
  SignalsBlocked& operator=(const SignalsBlocked&) = delete;

 private:
  sigset_t before_;
};

class ClusterVerbsTest : public ManifestTest {
 protected:
  ClusterVerbsTest() {
    const auto handle = [this](const httplib::Request& request, httplib::Response& response) {
      std::string plain = request.method + " " + request.path, asked = plain;
      for (const auto& [name, value] : request.params) {
        if (name != "limit") asked += " " + name + "=" + value;
      }
      const std::lock_guard lock(mutex_);
      asked_.push_back(request.body.empty() ? asked : asked + " " + request.body);
      if (const auto first = first_answers_.find(asked); first != first_answers_.end()) {
        response.set_content(first->second.front(), "application/json");
        if (response.body.empty()) response.status = 503;
        first->second.erase(first->second.begin());
        if (first->second.empty()) first_answers_.erase(first);
        return;
      }
      auto answer = answers_.find(asked);
      if (answer == answers_.end()) answer = answers_.find(plain);
      response.status = answer == answers_.end() ? 404 : answer->second.first;
      response.set_content(
          answer == answers_.end()
              ? R"({"kind":"Status","code":404,"reason":"NotFound","message":"not found"})"
              : answer->second.second,
          "application/json");
    };
    server_.Get(".*", handle);
    server_.Post(".*", handle);
    server_.Patch(".*", handle);
    const int port = server_.bind_to_any_port("127.0.0.1");
    config_ = Write("config",
                    "current-context: c\nusers: [{name: u, user: {token: t}}]\n"
                    "clusters: [{name: c, cluster: {server: 'http://127.0.0.1:" +
                        std::to_string(port) +
                        "'}}]\n"
                        "contexts: [{name: c, context: {cluster: c, user: u, namespace: ml}}]\n");
    thread_ = std::thread([this] { server_.listen_after_bind(); });
    while (!server_.is_running()) std::this_thread::yield();
  }
  ~ClusterVerbsTest() override {
    server_.stop();
    thread_.join();
  }

  void Answer(const std::string& asked, const std::string& body, int status = 200) {
    answers_[asked] = {status, body};
  }
  void Answer(const json& job) {
    Answer("GET " + std::string(kJobs) + "/" + job["metadata"]["name"].get<std::string>(),
           job.dump());
  }
  int Verb(std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), "meshtrain");
    arguments.insert(arguments.end(), {"--kubeconfig", config_});
    std::vector<const char*> argv;
    for (const std::string& argument : arguments) argv.push_back(argument.c_str());
    std::ostringstream out, err;
    ForgetWhatWasAsked();
    const int code =
        RunCommand(static_cast<int>(argv.size()), argv.data(), {.out = out, .err = err});
    out_ = out.str();
    err_ = err.str();
    return code;
  }

  void ForgetWhatWasAsked() {
    const std::lock_guard lock(mutex_);
    asked_.clear();
  }

  const SignalsBlocked blocked_;  // before the server's threads
  std::mutex mutex_;
  std::map<std::string, std::pair<int, std::string>> answers_;
  // Given once each, before those; an empty one: 503.
  std::map<std::string, std::vector<std::string>> first_answers_;
  std::vector<std::string> asked_;  // "GET /path name=value", in order, with the body of a write
  std::string config_, out_, err_;
  httplib::Server server_;
  std::thread thread_;
};

inline json Pod(const std::string& role, int index) {
  const std::string name = "mnist-" + role + "-" + std::to_string(index);
  return {
      {"metadata",
       {{"name", name},
        {"uid", name},
        {"labels", {{cluster::kLabelRole, role}, {cluster::kLabelIndex, std::to_string(index)}}},
        {"annotations", {{"kubectl.kubernetes.io/default-container", "trainer"}}}}},
      {"status", {{"phase", "Running"}}}};
}

}  // namespace meshtrain::cli
