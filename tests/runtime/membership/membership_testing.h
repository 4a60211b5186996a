// What the tests of membership share: ports that stay ours, configurations of small jobs.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "runtime/base/mutex.h"
#include "runtime/cluster/tf_config.h"
#include "runtime/membership/environment.h"
#include "runtime/membership/membership.h"

namespace meshtrain::membership {

// A port of the loopback that the kernel gives to nobody else while this lives, but at which others
// may listen: bound with SO_REUSEADDR, and never listened at.
class ReservedPort {
 public:
  ReservedPort();
  ~ReservedPort();
  ReservedPort(ReservedPort&& other) noexcept;
  ReservedPort& operator=(ReservedPort&&) = delete;
  int port() const { return port_; }
  std::string address() const { return "127.0.0.1:" + std::to_string(port_); }

 private:
  int fd_ = -1;
  int port_ = 0;
};

// A chief at `chief_address` and `workers` workers (whose addresses nobody connects to).
cluster::ClusterSpec ChiefAndWorkers(const std::string& chief_address, int workers);
inline cluster::TaskId Chief() { return {cluster::Role::kChief, 0}; }
inline cluster::TaskId Worker(int index) { return {cluster::Role::kWorker, index}; }

// An environment of these variables alone.
Environment EnvironmentOf(std::map<std::string, std::string> variables);
// Of worker `index` of those at `ports`.
Environment EnvironmentOfWorker(const std::vector<ReservedPort>& ports, int index);

// Where the threads of a test wait for each other, so that none of them is gone while another still
// joins (which would then join anew, and wait for one that does not come back).
class ThreadBarrier {
 public:
  explicit ThreadBarrier(int threads) : missing_(threads) {}
  // Returns once all have come; kDeadlineExceeded after a minute.
  Status ArriveAndWait();

 private:
  Mutex mutex_;
  CondVar all_here_;
  int missing_ MT_GUARDED_BY(mutex_);
};

// Of job "ml/test", with short times and the token "s3cret".
MembershipOptions OptionsFor(const cluster::ClusterSpec& cluster, cluster::TaskId task);

}  // namespace meshtrain::membership
