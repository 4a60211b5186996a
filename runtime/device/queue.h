// A thread that runs calls one after another beside the caller's own work: collectives that mostly
// wait for a network while the caller goes on computing, or all the work of devices of their own.
//
// Kept true: calls run in the order in which they were begun. One thread begins and waits; no call
// is left when the object goes.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <stop_token>
#include <string_view>
#include <thread>

#include "runtime/base/mutex.h"
#include "runtime/base/status.h"

namespace meshtrain::device {

class Queue {
 public:
  // `what`: for whom, in messages. Errors: kUnavailable (no thread).
  static Result<std::unique_ptr<Queue>> Create(std::string_view what);
  ~Queue();  // after the last call
  Queue(const Queue&) = delete;
  Queue& operator=(const Queue&) = delete;

  // Numbers count up from 1.
  uint64_t Begin(std::function<Status()> call);
  // Returns when call `number`, and all before it, have ended (each by its own deadline). After an
  // error no call is made any more, and every Wait gives it.
  Status Wait(uint64_t number);
  // Waits for all; gives the first error and forgets it.
  Status Finish();

 private:
  Queue() = default;
  void Work(std::stop_token stop);

  Mutex mutex_;
  CondVar changed_;
  std::deque<std::function<Status()>> waiting_ MT_GUARDED_BY(mutex_);
  uint64_t begun_ MT_GUARDED_BY(mutex_) = 0;
  uint64_t ended_ MT_GUARDED_BY(mutex_) = 0;
  Status error_ MT_GUARDED_BY(mutex_);
  std::jthread thread_;  // last: it uses all of the above
};

}  // namespace meshtrain::device
