// How a process of a host tells the others how far it has come, and waits for them.
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "runtime/base/cores.h"
#include "runtime/collective/memory/shm.h"

namespace meshtrain::collective {
namespace {

using std::chrono::steady_clock;

// A sleeper looks up at least this often, for an end of the incarnation that came between its check
// and its sleep.
constexpr auto kLookUp = std::chrono::milliseconds(5);

// A sleep and a wake take two to three times as long.
constexpr auto kSpin = std::chrono::microseconds(30);

void FutexWait(const std::atomic<uint32_t>& word, uint32_t seen, std::chrono::nanoseconds timeout) {
  timespec wait{timeout.count() / 1'000'000'000, timeout.count() % 1'000'000'000};
  syscall(SYS_futex, &word, FUTEX_WAIT, seen, &wait, nullptr, 0);
}
void FutexWake(const std::atomic<uint32_t>& word) {
  syscall(SYS_futex, &word, FUTEX_WAKE, INT32_MAX, nullptr, nullptr, 0);
}

}  // namespace

void SharedMemory::Start(int processes, uint64_t incarnation) {
  peers_.clear();
  peers_.resize(processes);
  for (Use& use : uses_) use = {};
  here_ = 1;
  spins_ = false;
  own_.head().incarnation.store(incarnation, std::memory_order_seq_cst);
  // Whoever reads what is written from here on also reads the new incarnation (Part::End).
  std::atomic_thread_fence(std::memory_order_release);
  own_.head().ticket.store(0, std::memory_order_seq_cst);
  own_.head().sleeps_on.store(0, std::memory_order_seq_cst);
}

void SharedMemory::Attach(int process, PeerSegment segment) {
  peers_[process] = std::move(segment);
  spins_ = ++here_ <= UsableCores();
}

void SharedMemory::Post(uint64_t ticket, std::span<const int> members, int me) {
  SegmentHead& head = own_.head();
  head.ticket.store(ticket, std::memory_order_release);
  head.tick.fetch_add(1, std::memory_order_seq_cst);
  // Either a waiter's sleep sees the new tick, or its sleeps_on is seen here (both are sequentially
  // consistent).
  const auto us = static_cast<uint32_t>(members[me]) + 1;
  for (int m = 0; m < static_cast<int>(members.size()); ++m) {
    if (m != me && peers_[members[m]].head().sleeps_on.load(std::memory_order_seq_cst) == us) {
      FutexWake(head.tick);
      return;
    }
  }
}

Status SharedMemory::Await(const Call& call, int process, uint64_t ticket, bool small) {
  if (Reached(process, ticket)) return OkStatus();
  if (spins_) {
    const SteadyTime end = steady_clock::now() + kSpin;
    do {
      for (int i = 0; i < 64; ++i) Pause();
      if (Reached(process, ticket)) return OkStatus();
    } while (steady_clock::now() < end);
  }
  for (int left = small ? yielder_.Begin() : 0; left > 0; --left) {
    yielder_.Yield();
    if (Reached(process, ticket)) return OkStatus();
  }
  call.health->WaitFor({&process, 1});
  const SegmentHead& peer = peers_[process].head();
  std::atomic<uint32_t>& sleeps_on = own_.head().sleeps_on;
  const SteadyTime begin = steady_clock::now();
  while (true) {
    sleeps_on.store(static_cast<uint32_t>(process) + 1, std::memory_order_seq_cst);
    const uint32_t seen = peer.tick.load(std::memory_order_seq_cst);
    const bool reached = Reached(process, ticket);
    if (!reached && !call.health->failed()) FutexWait(peer.tick, seen, kLookUp);
    sleeps_on.store(0, std::memory_order_relaxed);
    if (reached || Reached(process, ticket)) return OkStatus();
    MT_RETURN_IF_ERROR(call.health->Check());
    if (call.health->HasLeft(process)) {
      // It may have given this on its way out, since we looked.
      if (Reached(process, ticket)) return OkStatus();
      return Unavailable(call.health->Name(process) + " has left the job").From(Origin::kPeers);
    }
    if (steady_clock::now() - begin >= call.deadline) return call.diagnosis->Late(process);
  }
}

}  // namespace meshtrain::collective
