// A mutex that clang's thread-safety analysis understands (preset `tidy`): name what it guards with
// MT_GUARDED_BY. Hold no lock across I/O, a callback or a collective.
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <stop_token>

#if defined(__clang__)
#define MT_THREAD_ANNOTATION_(x) __attribute__((x))
#else
#define MT_THREAD_ANNOTATION_(x)
#endif

#define MT_GUARDED_BY(mutex) MT_THREAD_ANNOTATION_(guarded_by(mutex))
#define MT_REQUIRES(...) MT_THREAD_ANNOTATION_(requires_capability(__VA_ARGS__))
#define MT_EXCLUDES(...) MT_THREAD_ANNOTATION_(locks_excluded(__VA_ARGS__))

namespace meshtrain {

class MT_THREAD_ANNOTATION_(capability("mutex")) Mutex {
 public:
  void lock() MT_THREAD_ANNOTATION_(acquire_capability()) { mutex_.lock(); }
  void unlock() MT_THREAD_ANNOTATION_(release_capability()) { mutex_.unlock(); }

 private:
  std::mutex mutex_;
};

class MT_THREAD_ANNOTATION_(scoped_lockable) MutexLock {
 public:
  explicit MutexLock(Mutex& mutex) MT_THREAD_ANNOTATION_(acquire_capability(mutex))
      : mutex_(mutex) {
    mutex_.lock();
  }
  ~MutexLock() MT_THREAD_ANNOTATION_(release_capability()) { mutex_.unlock(); }
  MutexLock(const MutexLock&) = delete;
  MutexLock& operator=(const MutexLock&) = delete;

 private:
  Mutex& mutex_;
};

// Waits with a deadline and a stop token, never without.
class CondVar {
 public:
  void NotifyOne() { wake_.notify_one(); }
  void NotifyAll() { wake_.notify_all(); }
  // Called with `mutex` held. Returns predicate() at the end: false means time is up or `stop` was
  // requested.
  template <typename Predicate>
  bool WaitFor(Mutex& mutex, std::stop_token stop, std::chrono::nanoseconds timeout,
               Predicate predicate) MT_REQUIRES(mutex) {
    return wake_.wait_for(mutex, stop, timeout, std::move(predicate));
  }

 private:
  std::condition_variable_any wake_;
};

}  // namespace meshtrain
