// A thread for what may take long, so that a server's own thread need not wait for it.
// Private to runtime/parameter/server.
#pragma once

#include <chrono>
#include <functional>
#include <list>
#include <stop_token>
#include <thread>

#include "runtime/base/clock.h"
#include "runtime/base/mutex.h"
#include "runtime/base/status.h"
#include "runtime/base/thread.h"

namespace meshtrain::parameter {

// Runs tasks one after the other on a thread of its own; those left at the end are dropped.
class TaskThread {
 public:
  Status Start() {
    MT_ASSIGN_OR_RETURN(thread_,
                        StartThread("checkpoint", [this](std::stop_token stop) { Loop(stop); }));
    return OkStatus();
  }
  void Add(std::function<void()> task) {
    MutexLock lock(mutex_);
    if (closed_) return;
    tasks_.push_back(std::move(task));
    changed_.NotifyAll();
  }
  void Close() {
    std::list<std::function<void()>> dropped;
    {
      MutexLock lock(mutex_);
      closed_ = true;
      dropped.swap(tasks_);
    }
    thread_.request_stop();
    if (thread_.joinable()) thread_.join();
  }

 private:
  void Loop(std::stop_token stop) {
    while (!stop.stop_requested()) {
      std::list<std::function<void()>> next;
      {
        MutexLock lock(mutex_);
        if (!changed_.WaitFor(mutex_, stop, std::chrono::seconds(1),
                              [&]() MT_REQUIRES(mutex_) { return !tasks_.empty(); }))
          continue;
        next.splice(next.begin(), tasks_, tasks_.begin());
      }
      next.front()();
    }
  }

  Mutex mutex_;
  CondVar changed_;
  std::list<std::function<void()>> tasks_ MT_GUARDED_BY(mutex_);
  bool closed_ MT_GUARDED_BY(mutex_) = false;
  std::jthread thread_;
};

}  // namespace meshtrain::parameter
