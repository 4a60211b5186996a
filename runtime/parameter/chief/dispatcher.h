// Sends steps to workers as schedule.h decides, and watches over workers and servers.
//
// Everything that happens (an answer, a silence, a new step) becomes an event of the schedule;
// nothing is decided here, but what counts as an event: a call's status code, a ping's answer, a
// time that is over.
//
// Thread-safe.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <stop_token>
#include <string>
#include <utility>
#include <vector>

#include "runtime/base/status.h"
#include "runtime/cluster/stop_grace.h"
#include "runtime/mesh/tensor.h"
#include "runtime/parameter/chief/server_group.h"
#include "runtime/parameter/messages/messages.h"
#include "runtime/parameter/messages/transfer.h"

namespace meshtrain::parameter {

struct DispatcherOptions {
  std::vector<std::string> workers;  // addresses
  Identity identity;
  int64_t term = 0;
  int in_flight = 1;           // steps that a worker holds at once
  int max_attempts = 10;       // see schedule.h
  int64_t max_queued = 10000;  // Submit waits where so many steps wait for a worker
  Duration step_timeout = std::chrono::minutes(10);   // of one step on one worker
  Duration set_up_timeout = std::chrono::minutes(5);  // of making a worker ready
  Duration start_timeout = std::chrono::minutes(10);  // for the first worker to come
  Duration return_timeout =
      std::chrono::seconds(120);  // for one to come back, when all are lost; and for a server
  Duration ping = std::chrono::milliseconds(100);
  // Of silence; a connection that breaks counts at once. With `ping` twice, for the others to hear
  // of it, whoever stands still is named by all within two seconds.
  Duration lost_after = cluster::kLostAfter;
};

// What a step gave. Set once.
struct StepOutcome {
  Status status;
  int worker = -1;
  std::vector<std::pair<std::string, mesh::Tensor>> outputs;
};

// An argument of a step.
struct Argument {
  RunArgument::Kind kind = RunArgument::Kind::kTensor;
  int64_t entry = 0;
  mesh::Tensor tensor;
};

struct DispatcherStats {
  int64_t steps_done = 0;
  int64_t steps_rerun = 0;
  int64_t workers_lost = 0;
  int64_t servers_lost = 0;
  int64_t pulled_bytes = 0;
  int64_t pushed_bytes = 0;
  int workers_ready = 0;
  std::vector<int64_t> worker_steps;  // done, by worker
};

class Dispatcher {
 public:
  // `servers` must outlive it.
  static Result<std::unique_ptr<Dispatcher>> Create(DispatcherOptions options,
                                                    ServerGroup* servers);
  ~Dispatcher();
  Dispatcher(const Dispatcher&) = delete;
  Dispatcher& operator=(const Dispatcher&) = delete;

  int workers() const;
  // For every worker the same, or one each; returns the entry's number. `cursors`: where each
  // worker's copy of a dataset goes on; "", or no list: at its front.
  int64_t AddEntry(const Entry& entry, const std::vector<std::string>& cursors = {});
  int64_t AddEntries(std::vector<Entry> by_worker);
  // How far each worker has come in each dataset.
  struct Cursor {
    int worker = 0;
    int64_t entry = 0;
    std::string cursor;
  };
  std::vector<Cursor> cursors() const;
  // By worker: the oldest incarnation whose pushes still count (Store::Fence).
  std::vector<int64_t> live_incarnations() const;

  class Handle;
  // Queues a step. Errors: the job's, which is told once (as Join's); kDeadlineExceeded, kCancelled
  // while it waits for room.
  Result<std::shared_ptr<Handle>> Submit(std::vector<int64_t> functions,
                                         std::vector<Argument> arguments, Duration timeout,
                                         std::stop_token stop);
  // Until every step has ended; the job's error if there was one, which is then forgotten. Errors:
  // also kDeadlineExceeded, kCancelled: the steps go on.
  Status Join(Duration timeout, std::stop_token stop);
  // Whether every step has ended. Errors: as Join's, without waiting.
  Result<bool> Done();
  // The outcome of one step, when there is one.
  Result<StepOutcome> Wait(const Handle& step, Duration timeout, std::stop_token stop);

  // OK, or kUnavailable naming a server that has been away for so long, whether a step wants it or
  // not.
  Status ServersWithin(Duration away) const;

  // Closes the gate and waits until no step runs, nor one is left that a server may have a part of.
  // Open it again whatever this returns.
  Status CloseGate(Duration timeout, std::stop_token stop);
  void OpenGate();

  // Tells every worker that the job is done, or that it goes on with another chief. Who does not
  // hear it in time lives on.
  void EndWorkers(bool goes_on, Duration timeout);

  DispatcherStats stats() const;

 private:
  class Impl;
  explicit Dispatcher(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

// A step that was submitted.
class Dispatcher::Handle {
 public:
  int64_t step() const { return step_; }

 private:
  friend class Dispatcher::Impl;
  explicit Handle(int64_t step) : step_(step) {}
  const int64_t step_;
  std::shared_ptr<const StepOutcome> outcome_;  // under the dispatcher's lock
};

}  // namespace meshtrain::parameter
