// Eigen's event count holds fences, which the thread sanitizer does not follow. They order its
// sleeping and waking only; what threads hand each other goes through atomics.
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wtsan"
#endif

#include "runtime/device/cpu/pool.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <functional>
#include <mutex>
#include <semaphore>
#include <thread>
#include <unsupported/Eigen/CXX11/ThreadPool>
#include <utility>
#include <vector>

#include "runtime/base/check.h"
#include "runtime/base/cores.h"
#include "runtime/base/thread.h"
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

// A thread that runs one function, once it is given it. Without one it ends with nothing done.
class Helper {
 public:
  Status Start() {
    MT_ASSIGN_OR_RETURN(thread_, StartThread("computing", [this](const std::stop_token&) {
                          work_.acquire();
                          if (run_) run_();
                        }));
    return OkStatus();
  }
  ~Helper() {
    if (!given_) work_.release();
  }
  void Give(std::function<void()> run) {
    run_ = std::move(run);
    given_ = true;
    work_.release();
  }

 private:
  std::binary_semaphore work_{0};
  std::function<void()> run_;
  bool given_ = false;
  std::jthread thread_;  // last: it uses the rest
};

// Where Eigen's pool gets its threads: they exist before it does. It makes its own in its
// constructor, and cannot be taken down again when one of them cannot be made.
struct Threads : Eigen::StlThreadEnvironment {
  class EnvThread {
   public:
    explicit EnvThread(std::unique_ptr<Helper> helper) : helper_(std::move(helper)) {}
    void OnCancel() {}

   private:
    std::unique_ptr<Helper> helper_;
  };
  EnvThread* CreateThread(std::function<void()> run) {
    std::unique_ptr<Helper> helper = std::move(helpers->back());
    helpers->pop_back();
    helper->Give(std::move(run));
    return new EnvThread(std::move(helper));  // Eigen's to delete
  }
  std::vector<std::unique_ptr<Helper>>* helpers = nullptr;
};
using EigenPool = Eigen::ThreadPoolTempl<Threads>;

}  // namespace

// The loop in progress is one word: its number (32 bits), the next piece (16) and how many there
// are (16). A piece is taken by adding one to the middle. Who took a piece may read `call` and
// `body`: they change only for the next loop, which begins after the last piece of this one was
// done.
struct Pool::Impl {
  explicit Impl(int helpers) : awake(helpers) {}

  Status Start() {
    std::vector<std::unique_ptr<Helper>> helpers;
    for (size_t i = 0; i < awake.size(); ++i) {
      helpers.push_back(std::make_unique<Helper>());
      MT_RETURN_IF_ERROR(helpers.back()->Start());
    }
    if (helpers.empty()) return OkStatus();
    Threads threads;
    threads.helpers = &helpers;
    eigen = std::make_unique<EigenPool>(static_cast<int>(awake.size()), /*allow_spinning=*/false,
                                        threads);
    return OkStatus();
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
  std::unique_ptr<EigenPool> eigen;  // last: its threads use the rest
};

Pool::Pool(int threads)
    : threads_(threads > 0 ? threads : UsableCores()), impl_(std::make_unique<Impl>(threads_ - 1)) {
  health_ = impl_->Start();
  if (!health_.ok()) threads_ = 1;
}

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
