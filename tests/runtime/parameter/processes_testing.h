// Servers and workers as processes, which can be killed.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "tests/runtime/parameter/cluster_testing.h"

extern char** environ;

namespace meshtrain::parameter {

// A parameter_process. Ends with this object, or with the test, whose end closes its standard
// input.
class Process {
 public:
  explicit Process(std::vector<std::string> arguments) {
    int in[2], out[2];
    if (::pipe2(in, O_CLOEXEC) != 0 || ::pipe2(out, O_CLOEXEC) != 0) std::abort();
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, in[0], 0);
    posix_spawn_file_actions_adddup2(&actions, out[1], 1);
    arguments.insert(arguments.begin(), MT_PARAMETER_PROCESS);
    std::vector<char*> argv;
    for (std::string& a : arguments) argv.push_back(a.data());
    argv.push_back(nullptr);
    if (::posix_spawn(&pid_, argv[0], &actions, nullptr, argv.data(), environ) != 0) pid_ = -1;
    posix_spawn_file_actions_destroy(&actions);
    ::close(in[0]);
    ::close(out[1]);
    stdin_ = in[1];
    std::string line;
    char c = 0;
    while (::read(out[0], &c, 1) == 1 && c != '\n') line += c;
    ::close(out[0]);
    port_ = std::atoi(line.c_str());
  }
  ~Process() {
    Kill();
    ::close(stdin_);
  }
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;

  int port() const { return port_; }
  // kill -9, and gone on return.
  void Kill() {
    if (pid_ <= 0) return;
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
    pid_ = -1;
  }
  void Signal(int number) { ::kill(pid_, number); }

 private:
  pid_t pid_ = -1;
  int stdin_ = -1;
  int port_ = 0;
};

class ProcessCluster {
 public:
  ProcessCluster(int servers, int workers, std::string folder, int threads = 1)
      : folder_(std::move(folder)), threads_(std::to_string(threads)) {
    servers_.resize(static_cast<size_t>(servers));
    workers_.resize(static_cast<size_t>(workers));
    server_ports_.resize(servers_.size(), 0);
    worker_ports_.resize(workers_.size(), 0);
    for (int s = 0; s < servers; ++s) StartServer(s);
    for (int w = 0; w < workers; ++w) StartWorker(w);
  }

  void StartServer(int server) {
    const std::string folder = folder_.empty() ? "-" : folder_ + "/ps-" + std::to_string(server);
    servers_[server] = std::make_unique<Process>(
        std::vector<std::string>{"ps", std::to_string(server_ports_[server]), folder, threads_});
    ASSERT_NE(servers_[server]->port(), 0);
    server_ports_[server] = servers_[server]->port();
  }
  void StartWorker(int worker) {
    workers_[worker] = std::make_unique<Process>(
        std::vector<std::string>{"worker", std::to_string(worker_ports_[worker]), threads_});
    ASSERT_NE(workers_[worker]->port(), 0);
    worker_ports_[worker] = workers_[worker]->port();
  }
  Process& server(int server) { return *servers_[server]; }
  Process& worker(int worker) { return *workers_[worker]; }

  CoordinatorOptions options() const {
    CoordinatorOptions options;
    for (size_t s = 0; s < servers_.size(); ++s) {
      options.cluster.hosts[cluster::Role::kPs][static_cast<int32_t>(s)] =
          "127.0.0.1:" + std::to_string(server_ports_[s]);
    }
    for (size_t w = 0; w < workers_.size(); ++w) {
      options.cluster.hosts[cluster::Role::kWorker][static_cast<int32_t>(w)] =
          "127.0.0.1:" + std::to_string(worker_ports_[w]);
    }
    options.identity = TestIdentity();
    options.start_timeout = std::chrono::seconds(60);
    options.return_timeout = std::chrono::seconds(60);
    options.step_timeout = std::chrono::seconds(120);
    return options;
  }

 private:
  std::string folder_;
  std::string threads_;
  std::vector<std::unique_ptr<Process>> servers_, workers_;
  std::vector<int> server_ports_, worker_ports_;
};

}  // namespace meshtrain::parameter
