#include "runtime/device/queue.h"

#include <chrono>
#include <utility>

#include "runtime/base/thread.h"

namespace meshtrain::device {

Result<std::unique_ptr<Queue>> Queue::Create(std::string_view what) {
  std::unique_ptr<Queue> made(new Queue);
  MT_ASSIGN_OR_RETURN(made->thread_,
                      StartThread(what, [b = made.get()](std::stop_token stop) { b->Work(stop); }));
  return made;
}

Queue::~Queue() { (void)Finish(); }

uint64_t Queue::Begin(std::function<Status()> call) {
  uint64_t number;
  {
    MutexLock lock(mutex_);
    waiting_.push_back(std::move(call));
    number = ++begun_;
  }
  changed_.NotifyAll();
  return number;
}

Status Queue::Wait(uint64_t number) {
  MutexLock lock(mutex_);
  // The hour only bounds one look: a call ends by its own deadline.
  while (!changed_.WaitFor(mutex_, {}, std::chrono::hours(1),
                           [&]() MT_REQUIRES(mutex_) { return ended_ >= number; })) {
  }
  return error_;
}

Status Queue::Finish() {
  uint64_t last;
  {
    MutexLock lock(mutex_);
    last = begun_;
  }
  (void)Wait(last);
  MutexLock lock(mutex_);
  return std::exchange(error_, OkStatus());
}

void Queue::Work(std::stop_token stop) {
  for (;;) {
    std::function<Status()> call;
    bool skip;
    {
      MutexLock lock(mutex_);
      if (!changed_.WaitFor(mutex_, stop, std::chrono::hours(1),
                            [&]() MT_REQUIRES(mutex_) { return !waiting_.empty(); })) {
        if (stop.stop_requested()) return;
        continue;
      }
      call = std::move(waiting_.front());
      waiting_.pop_front();
      skip = !error_.ok();
    }
    const Status status = skip ? OkStatus() : call();
    {
      MutexLock lock(mutex_);
      if (!status.ok() && error_.ok()) error_ = status;
      ++ended_;
    }
    changed_.NotifyAll();
  }
}

}  // namespace meshtrain::device
