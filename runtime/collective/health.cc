#include "runtime/collective/health.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>

#include "runtime/base/file.h"

namespace meshtrain::collective {

Status Health::Init() {
  event_ = Socket(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
  if (!event_) return ErrnoStatus(errno, "eventfd", "collective");
  const uint64_t one = 1;
  static_cast<void>(!write(event_.fd(), &one, sizeof one));  // failed() until the first Start
  return OkStatus();
}

void Health::Start(uint64_t incarnation, std::vector<std::string> names) {
  MutexLock lock(mutex_);
  left_.assign(names.size(), false);
  names_ = std::move(names);
  why_ = OkStatus();
  inside_ = false;
  missing_.clear();
  begun_.store(0, std::memory_order_relaxed);
  incarnation_.store(incarnation, std::memory_order_release);
  uint64_t count;
  static_cast<void>(!read(event_.fd(), &count, sizeof count));
  failed_.store(false, std::memory_order_release);
}

bool Health::Fail(const Status& why) {
  MutexLock lock(mutex_);
  if (failed_.load(std::memory_order_relaxed)) return false;
  why_ = why.ok() ? Unavailable("aborted") : why;
  failed_.store(true, std::memory_order_release);
  const uint64_t one = 1;
  static_cast<void>(!write(event_.fd(), &one, sizeof one));
  return true;
}

Status Health::Check() const {
  if (!failed()) return OkStatus();
  MutexLock lock(mutex_);
  return Unavailable(why_.message()).From(Origin::kPeers);
}

Status Health::why() const {
  MutexLock lock(mutex_);
  return why_;
}

std::string Health::Name(int process) const {
  MutexLock lock(mutex_);
  if (process < 0 || process >= static_cast<int>(names_.size())) {
    return "process " + std::to_string(process);
  }
  return names_[process];
}

void Health::Left(int process) {
  MutexLock lock(mutex_);
  if (process >= 0 && process < static_cast<int>(left_.size())) left_[process] = true;
}

bool Health::HasLeft(int process) const {
  MutexLock lock(mutex_);
  return process >= 0 && process < static_cast<int>(left_.size()) && left_[process];
}

uint64_t Health::Begin(uint64_t plan_hash, uint64_t call, const std::string& what) {
  const uint64_t number = begun() + 1;
  const TimePoint now = SystemClock().Now();
  MutexLock lock(mutex_);
  Mark& mark = marks_[number % kRemembered];
  mark.plan_hash = plan_hash;
  mark.call = call;
  mark.what = what;
  inside_ = true;
  since_ = now;
  begun_.store(number, std::memory_order_relaxed);
  return number;
}

void Health::End() {
  MutexLock lock(mutex_);
  inside_ = false;
  missing_.clear();
}

void Health::WaitFor(std::span<const int> processes) {
  MutexLock lock(mutex_);
  missing_.assign(processes.begin(), processes.end());
}

Waiting Health::waiting() const {
  MutexLock lock(mutex_);
  Waiting w;
  w.collective = begun();
  if (inside_) {
    w.what = marks_[w.collective % kRemembered].what;
    w.peers = missing_;
    w.since = since_;
  }
  return w;
}

Health::Now Health::now(uint64_t asked) const {
  std::string what = WhatWas(asked);
  MutexLock lock(mutex_);
  const uint64_t number = begun();
  const Mark& mark = marks_[number % kRemembered];
  return {number,         inside_, mark.plan_hash, mark.call, number == 0 ? "" : mark.what,
          std::move(what)};
}

std::string Health::WhatWas(uint64_t collective) const {
  MutexLock lock(mutex_);
  const uint64_t number = begun();
  if (collective == 0 || collective > number || collective + kRemembered <= number) return "";
  return marks_[collective % kRemembered].what;
}

}  // namespace meshtrain::collective
