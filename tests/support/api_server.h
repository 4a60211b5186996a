// A real kube-apiserver and etcd on loopback for the length of a test (scripts/kubernetes), and
// kubectl to speak to it.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "operator/kube/client.h"
#include "operator/kube/config.h"
#include "runtime/base/status.h"

namespace meshtrain::testing {

struct CommandResult {
  int exit_code = -1;
  std::string out;  // standard output and error together
};

// Runs a command and waits for its end; one that takes longer than `timeout` is killed (exit code
// 137, and `out` says so).
CommandResult RunCommand(const std::vector<std::string>& argv,
                         const std::vector<std::pair<std::string, std::string>>& env = {},
                         const std::string& input = "",
                         std::chrono::seconds timeout = std::chrono::seconds(120));

class ApiServer {
 public:
  // Whether the binaries are there; if not, tests skip with `why` (scripts/kubernetes/build makes
  // them).
  static bool Available(std::string* why);

  // Takes about 3 s; `controllers` adds the garbage collector and its kind. Ends with the object,
  // or with this process.
  static Result<std::unique_ptr<ApiServer>> Start(bool controllers);
  ~ApiServer();

  const std::string& kubeconfig() const { return kubeconfig_; }
  const std::string& etcd_url() const { return etcd_url_; }
  const kube::ClientConfig& config() const { return config_; }  // cluster-admin
  kube::Client& client() { return *client_; }

  // kubectl with `args`; `input` goes to its standard input.
  CommandResult Kubectl(std::vector<std::string> args, const std::string& input = "") const;

  // helm with `args`; its own files go into this server's folder.
  CommandResult Helm(std::vector<std::string> args) const;

  // Forgets all history before now, as etcd's compaction does: old watches answer 410.
  Status Compact();

  // Notes what etcd holds; sets etcd back to that, under the same address, as a restore from a
  // backup does: its revisions fall. The server and its controllers start anew.
  Status Save();
  Status Restore();

 private:
  ApiServer() = default;

  std::string folder_, kubeconfig_, etcd_url_;
  kube::ClientConfig config_;
  std::unique_ptr<kube::Client> client_;
};

}  // namespace meshtrain::testing
