// The operator as a process, under its own ServiceAccount and the RBAC of deploy/base, against a
// real API server. The test plays user (kubectl, HTTP) and kubelet (pod status).
#pragma once

#include <gtest/gtest.h>
#include <sys/types.h>

#include <chrono>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "operator/control/apply.h"
#include "runtime/base/mutex.h"
#include "tests/support/api_server.h"

namespace meshtrain::testing {

// One operator process. Killed with the object. A signal may come from any thread, also while
// another waits for the end.
class OperatorProcess {
 public:
  OperatorProcess(const std::string& kubeconfig, std::vector<std::string> flags);
  ~OperatorProcess();

  void Signal(int signal) const;
  // Waits for its end: the exit code, 128 + signal, or -1 when it did not end in time.
  int Wait(std::chrono::seconds timeout);
  std::string Log() const;
  int metrics_port() const;  // once "serving" is logged; 0 before
  // A number from /metrics; the first line that starts with `prefix`. -1 where there is none.
  double Metric(const std::string& prefix) const;
  // -1 once its end was waited for.
  pid_t pid() const {
    MutexLock lock(mutex_);
    return pid_;
  }

 private:
  mutable Mutex mutex_;  // so that no signal goes to a pid that was given back
  pid_t pid_ MT_GUARDED_BY(mutex_) = -1;
  std::string log_path_;
};

class OperatorTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite();
  static void TearDownTestSuite();
  static void StartApiServer();  // alone, without the CRD and deploy/base
  void SetUp() override;
  void TearDown() override;

  // Starts an operator; the first call in a test waits until it leads.
  OperatorProcess& StartOperator(bool wait_until_leading = true);
  void StopOperators();

  static ApiServer& api() { return *api_; }
  // kubectl in this test's namespace; fails the test when it fails.
  std::string Kubectl(std::vector<std::string> args, const std::string& input = "");
  CommandResult TryKubectl(std::vector<std::string> args, const std::string& input = "");

  // Until the server serves the CRD's kind; fails the test when it does not.
  static void AwaitCrd(const std::string& name);

  template <typename Predicate>
  static bool Eventually(Predicate predicate,
                         std::chrono::seconds timeout = std::chrono::seconds(20)) {
    const auto end = std::chrono::steady_clock::now() + timeout;
    while (!predicate()) {
      if (std::chrono::steady_clock::now() > end) return false;
      SystemClock().SleepFor(std::chrono::milliseconds(20), {});
    }
    return true;
  }

  // A job of chief (where > 0), workers and what `spec` adds or replaces (a merge patch on spec).
  void ApplyJob(const std::string& name, int chiefs, int workers,
                const nlohmann::json& spec = nlohmann::json::object());
  nlohmann::json Get(const kube::Resource& resource, const std::string& name);  // null where absent
  std::vector<nlohmann::json> Pods(const std::string& job);
  std::string Condition(const std::string& job, const std::string& type);  // "True", "False", ""
  std::string Message(const std::string& job, const std::string& type);
  bool WaitForPods(const std::string& job, size_t count);
  bool WaitForCondition(const std::string& job, const std::string& type);
  // The kubelet's part; false where the pod is gone meanwhile.
  bool TrySetRunning(const std::string& pod);
  bool TrySetEnded(const std::string& pod, int exit_code);
  void SetRunning(const std::string& pod) { EXPECT_TRUE(TrySetRunning(pod)) << pod; }
  void SetEnded(const std::string& pod, int exit_code) {
    EXPECT_TRUE(TrySetEnded(pod, exit_code)) << pod;
  }

  // A kubeconfig of the operator's ServiceAccount for a server (an ApiProxy) in place of the real
  // one.
  static std::string KubeconfigFor(const std::string& server);

  static std::unique_ptr<ApiServer> api_;
  static std::string operator_kubeconfig_, operator_token_;
  std::string ns_;
  std::vector<std::unique_ptr<OperatorProcess>> operators_;
};

}  // namespace meshtrain::testing
