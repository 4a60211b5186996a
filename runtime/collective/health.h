// What a fabric knows about the incarnation it is in: whether it still holds and if not why, which
// peers are gone, and what this process is doing. Shared by the thread that issues collectives, the
// acceptor's thread and whoever aborts or watches. Thread-safe, except as said.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "runtime/base/clock.h"
#include "runtime/base/mutex.h"
#include "runtime/base/status.h"
#include "runtime/collective/fabric.h"
#include "runtime/collective/link/frame.h"
#include "runtime/collective/link/socket.h"

namespace meshtrain::collective {

class Health {
 public:
  // Errors: kUnavailable (no file descriptor left).
  Status Init();

  // A new incarnation, which holds. Not while a collective runs.
  void Start(uint64_t incarnation, std::vector<std::string> names);
  // Before the first Start and after Fail.
  bool failed() const { return failed_.load(std::memory_order_acquire); }
  // The first reason is kept. True for the call that gave it.
  bool Fail(const Status& why);
  // kUnavailable of Origin::kPeers with the reason that Fail was given; OK while the incarnation
  // holds.
  Status Check() const;
  Status why() const;  // the reason with its own code
  // A file descriptor that can be read from while failed().
  int event() const { return event_.fd(); }

  uint64_t incarnation() const { return incarnation_.load(std::memory_order_acquire); }
  std::string Name(int process) const;

  // A peer that left by itself: no loss, unless somebody needs bytes of it.
  void Left(int process);
  bool HasLeft(int process) const;

  // The issuing thread only. Begin gives the collective's number.
  uint64_t Begin(uint64_t plan_hash, uint64_t call, const std::string& what);
  void End();
  void WaitFor(std::span<const int> processes);  // whose bytes are missing; cleared by End
  uint64_t begun() const { return begun_.load(std::memory_order_relaxed); }

  Waiting waiting() const;
  // Where this process stands, for a peer that asks about one of the last collectives.
  struct Now {
    uint64_t begun = 0;
    bool inside = false;     // of number `begun`
    uint64_t plan_hash = 0;  // of it
    uint64_t call = 0;
    std::string what;   // of it
    std::string asked;  // what the collective was that was asked for; empty where it is forgotten
  };
  Now now(uint64_t asked) const;
  std::string WhatWas(uint64_t collective) const;

 private:
  static constexpr size_t kRemembered = 64;
  struct Mark {
    uint64_t plan_hash = 0, call = 0;
    std::string what;
  };

  std::atomic<bool> failed_{true};
  std::atomic<uint64_t> incarnation_{0};
  std::atomic<uint64_t> begun_{0};
  Socket event_;
  mutable Mutex mutex_;
  Status why_ MT_GUARDED_BY(mutex_) = Unavailable("not connected to the job's other processes");
  std::vector<std::string> names_ MT_GUARDED_BY(mutex_);
  std::vector<bool> left_ MT_GUARDED_BY(mutex_);
  bool inside_ MT_GUARDED_BY(mutex_) = false;
  TimePoint since_ MT_GUARDED_BY(mutex_);
  std::vector<int> missing_ MT_GUARDED_BY(mutex_);
  std::array<Mark, kRemembered> marks_ MT_GUARDED_BY(mutex_);  // by number, modulo
};

}  // namespace meshtrain::collective
