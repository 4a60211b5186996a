// A coordinator's cluster for tests: servers and workers in this process, each behind a port of its
// own.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "runtime/parameter/chief/coordinator.h"
#include "runtime/parameter/server/server.h"
#include "runtime/parameter/worker/worker_server.h"

namespace meshtrain::parameter {

inline const Identity& TestIdentity() {
  static const Identity identity = {.job = "tests/parameter", .security = {.token = "a token"}};
  return identity;
}

class TestCluster {
 public:
  // `folder`: where servers keep their logs; "": nowhere.
  TestCluster(int servers, int workers, std::string folder = "") : folder_(std::move(folder)) {
    servers_.resize(static_cast<size_t>(servers));
    workers_.resize(static_cast<size_t>(workers));
    server_ports_.resize(servers_.size(), 0);
    worker_ports_.resize(workers_.size(), 0);
    for (int s = 0; s < servers; ++s) StartServer(s);
    for (int w = 0; w < workers; ++w) StartWorker(w);
  }

  // On the port that it had before.
  void StartServer(int server) {
    StoreOptions store;
    if (!folder_.empty()) store.folder = folder_ + "/ps-" + std::to_string(server);
    auto made = ParameterServer::Serve({server_ports_[server], TestIdentity(), store});
    ASSERT_TRUE(made.ok()) << made.status().ToString();
    servers_[server] = std::move(*made);
    server_ports_[server] = servers_[server]->port();
  }
  const ParameterServer& server(int server) const { return *servers_[server]; }
  const WorkerServer& worker(int worker) const { return *workers_[worker]; }
  void StopServer(int server) { servers_[server].reset(); }
  void StartWorker(int worker) {
    WorkerOptions options{.port = worker_ports_[worker], .executor = {.identity = TestIdentity()}};
    options.executor.session.threads = 1;
    options.executor.rpc_timeout = std::chrono::seconds(20);
    auto made = WorkerServer::Serve(std::move(options));
    ASSERT_TRUE(made.ok()) << made.status().ToString();
    workers_[worker] = std::move(*made);
    worker_ports_[worker] = workers_[worker]->port();
  }
  void StopWorker(int worker) { workers_[worker].reset(); }

  cluster::ClusterSpec spec() const {
    cluster::ClusterSpec spec;
    for (size_t s = 0; s < servers_.size(); ++s) {
      spec.hosts[cluster::Role::kPs][static_cast<int32_t>(s)] =
          "127.0.0.1:" + std::to_string(server_ports_[s]);
    }
    for (size_t w = 0; w < workers_.size(); ++w) {
      spec.hosts[cluster::Role::kWorker][static_cast<int32_t>(w)] =
          "127.0.0.1:" + std::to_string(worker_ports_[w]);
    }
    return spec;
  }
  // Short times, so that a test that goes wrong ends.
  CoordinatorOptions options() const {
    CoordinatorOptions options;
    options.cluster = spec();
    options.identity = TestIdentity();
    options.start_timeout = std::chrono::seconds(60);
    options.return_timeout = std::chrono::seconds(60);
    options.step_timeout = std::chrono::seconds(120);
    // Nobody stands still here, but the machine may be busy.
    options.lost_after = std::chrono::seconds(10);
    return options;
  }

 private:
  std::string folder_;
  std::vector<std::unique_ptr<ParameterServer>> servers_;
  std::vector<std::unique_ptr<WorkerServer>> workers_;
  std::vector<int> server_ports_, worker_ports_;
};

}  // namespace meshtrain::parameter
