// Eigen's event count holds fences, which the thread sanitizer does not follow. They order its
// sleeping and waking only; what threads hand each other goes through atomics.
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wtsan"
#endif

#include "runtime/device/cpu/pool.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <mutex>
#include <thread>
#include <unsupported/Eigen/CXX11/ThreadPool>
#include <vector>

#include "runtime/base/check.h"
#include "runtime/base/cores.h"
#include "runtime/device/cpu/gemm.h"

namespace meshtrain::device::cpu {
namespace {

// How long a thread looks for the next loop before it sleeps: longer than the pauses inside a step
// and between two steps, short enough that an idle process is idle.
constexpr std::chrono::microseconds kSpin{100};
// Pieces per thread of a loop: more even out threads of unequal speed, fewer cost less.
constexpr int64_t kPiecesPerThread = 3;
constexpr uint64_t kMaxPieces = 0xFFFF;

thread_local bool inside_loop = false;

}  // namespace

// The loop in progress is one word: its number (32 bits), the next piece (16) and how many there
// are (16). A piece is taken by adding one to the middle. Who took a piece may read `call` and
// `body`: they change only for the next loop, which begins after the last piece of this one was
// done.
struct Pool::Impl {
  explicit Impl(int helpers) : awake(helpers) {
    if (helpers > 0) eigen = std::make_unique<Eigen::ThreadPool>(helpers, /*allow_spinning=*/false);
  }

  static uint64_t Next(uint64_t w) { return w >> 16 & 0xFFFF; }
  static uint64_t Total(uint64_t w) { return w & 0xFFFF; }

  // Takes and runs one piece. False when there is none.
  bool Step() {
    uint64_t w = word.load(std::memory_order_acquire);
    while (Next(w) < Total(w)) {
      if (word.compare_exchange_weak(w, w + (uint64_t{1} << 16), std::memory_order_acq_rel,
                                     std::memory_order_acquire)) {
        call(body, static_cast<int64_t>(Next(w)));
        done.fetch_add(1, std::memory_order_acq_rel);
        return true;
      }
    }
    return false;
  }

  // A helper's turn: runs pieces until none has come for kSpin.
  void Help(int helper) {
    const OneOpenMpThread one;
    inside_loop = true;
    for (;;) {
      auto last = std::chrono::steady_clock::now();
      for (int idle = 0;; ++idle) {
        if (Step()) {
          last = std::chrono::steady_clock::now();
          idle = 0;
          continue;
        }
        Pause();
        if (idle % 32 == 31 && std::chrono::steady_clock::now() - last > kSpin) break;
      }
      // Sleep, unless a loop began while we made up our mind: its caller has then seen us awake.
      awake[helper].store(false, std::memory_order_seq_cst);
      const uint64_t w = word.load(std::memory_order_seq_cst);
      if (Next(w) >= Total(w) || awake[helper].exchange(true, std::memory_order_seq_cst)) break;
    }
    inside_loop = false;
  }

  void Wake() {
    for (size_t h = 0; h < awake.size(); ++h) {
      if (awake[h].load(std::memory_order_seq_cst) ||
          awake[h].exchange(true, std::memory_order_seq_cst)) {
        continue;
      }
      eigen->Schedule([this, h] { Help(static_cast<int>(h)); });
    }
  }

  alignas(64) std::atomic<uint64_t> word{0};
  alignas(64) std::atomic<int64_t> done{0};
  alignas(64) Call call = nullptr;
  const void* body = nullptr;
  std::mutex owner;  // of the loop in progress
  std::vector<std::atomic<bool>> awake;
  std::unique_ptr<Eigen::ThreadPool> eigen;  // last: its threads use the rest
};

Pool::Pool(int threads)
    : threads_(threads > 0 ? threads : UsableCores()),
      impl_(std::make_unique<Impl>(threads_ - 1)) {}

Pool::~Pool() = default;

int64_t Pool::Pieces(int64_t n, int64_t grain) const {
  MT_CHECK(grain > 0);
  if (threads_ == 1) return 1;
  return std::min<int64_t>(n / grain, threads_ * kPiecesPerThread);
}

void Pool::Dispatch(int64_t pieces, Call call, const void* body) {
  const auto alone = [&] {
    for (int64_t i = 0; i < pieces; ++i) call(body, i);
  };
  if (pieces <= 1 || threads_ == 1 || inside_loop || pieces > static_cast<int64_t>(kMaxPieces)) {
    return alone();
  }
  std::unique_lock<std::mutex> lock(impl_->owner, std::try_to_lock);
  if (!lock.owns_lock()) return alone();

  Impl& p = *impl_;
  inside_loop = true;
  p.call = call;
  p.body = body;
  p.done.store(0, std::memory_order_relaxed);
  const uint64_t number = (p.word.load(std::memory_order_relaxed) >> 32) + 1;
  p.word.store(number << 32 | static_cast<uint64_t>(pieces), std::memory_order_seq_cst);
  p.Wake();
  while (p.Step()) {
  }
  // The last pieces are running elsewhere. Give the core away when that takes long: their thread
  // may want it.
  for (int spins = 0; p.done.load(std::memory_order_acquire) < pieces; ++spins) {
    if (spins < 4000) {
      Pause();
    } else {
      std::this_thread::yield();
    }
  }
  inside_loop = false;
}

}  // namespace meshtrain::device::cpu
