// Threads that one caller at a time spreads loops over: a fork and a join around a loop whose
// pieces are taken one by one, on the threads of Eigen's pool.
//
// Kept true: the caller takes part, and never waits for a thread that has not begun a piece, so
// that a thread which the system holds back costs nothing. After a loop the threads look for the
// next one for a short while (kSpin in the .cc), then sleep. Called from inside a loop, or while
// another thread's loop runs, a loop runs on its caller alone. Which thread runs a piece is never
// part of a result.
#pragma once

#include <cstdint>
#include <memory>
#include <type_traits>

#include "runtime/base/status.h"

namespace meshtrain::device::cpu {

class Pool {
 public:
  // `threads` counts the caller; 0: one per core that this process may use. Where the system has
  // not so many to give, loops run on their caller, and health() says so.
  explicit Pool(int threads = 0);
  ~Pool();
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  int threads() const { return threads_; }
  const Status& health() const { return health_; }

  // Calls body(i) once for each i in [0, pieces). `body` must not throw. Thread-safe.
  template <typename Body>
  void Run(int64_t pieces, const Body& body) {
    Dispatch(
        pieces, [](const void* b, int64_t i) { (*static_cast<const Body*>(b))(i); }, &body);
  }

  // Calls body(begin, end) for pieces that cover [0, n). Pieces start at multiples of `grain` (at
  // least 1) and there are at most a few per thread; a loop of less than two grains runs on the
  // caller.
  template <typename Body>
  void For(int64_t n, int64_t grain, const Body& body) {
    if (n <= 0) return;
    const int64_t pieces = Pieces(n, grain);
    if (pieces <= 1) {
      body(int64_t{0}, n);
      return;
    }
    const int64_t grains = (n + grain - 1) / grain;
    Run(pieces, [&](int64_t i) {
      const int64_t begin = grains * i / pieces * grain;
      const int64_t end = grains * (i + 1) / pieces * grain;
      body(begin, end < n ? end : n);
    });
  }

 private:
  using Call = void (*)(const void* body, int64_t piece);
  int64_t Pieces(int64_t n, int64_t grain) const;
  void Dispatch(int64_t pieces, Call call, const void* body);

  struct Impl;
  int threads_;
  Status health_;
  std::unique_ptr<Impl> impl_;
};

}  // namespace meshtrain::device::cpu
