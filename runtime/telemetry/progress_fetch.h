// Bounded reads of processes' /progress. A process is the user's: it may drip bytes, send headers
// without end or never answer, so neither the time nor the bytes of the whole exchange are left to
// it.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <list>
#include <stop_token>
#include <string>
#include <vector>

#include "runtime/base/clock.h"
#include "runtime/base/status.h"

namespace meshtrain::telemetry {

// The longest that one read takes.
inline constexpr Duration kLongestFetch = std::chrono::seconds(2);

// GET http://IP:PORT/progress: the body, of at most 64 KiB, or why there is none (kUnavailable, or
// kDataLoss for an answer past its limits, with the address). Ends within kLongestFetch, and within
// 0.1 s of `stop` (kCancelled). Asked as HTTP/1.0, so that the answer is not chunked and ends with
// the connection; follows no redirect. `ip`: an IPv4 or IPv6 address; names are not looked up.
Result<std::string> FetchProgress(const std::string& ip, int port, std::stop_token stop,
                                  Clock& clock = SystemClock());

// Many such reads at once on the caller's thread. One that gets no answer costs a socket for
// kLongestFetch and holds up no other. For one thread; Interrupt is for any.
class ProgressFetches {
 public:
  struct Answer {
    int64_t id = 0;
    Result<std::string> body;
  };
  explicit ProgressFetches(Clock& clock = SystemClock());
  ~ProgressFetches();
  ProgressFetches(const ProgressFetches&) = delete;
  ProgressFetches& operator=(const ProgressFetches&) = delete;

  // Begins a read; `id` is the caller's name for it. Its end comes from Wait.
  void Start(int64_t id, const std::string& ip, int port);
  // Waits until a read has ended, `most` has passed, Interrupt was called or stop; returns those
  // that have ended.
  std::vector<Answer> Wait(Duration most, std::stop_token stop);
  void Interrupt();
  size_t under_way() const { return exchanges_.size(); }

 private:
  class Exchange;
  Clock& clock_;
  std::list<Exchange> exchanges_;
  int wake_ = -1;  // an eventfd
};

}  // namespace meshtrain::telemetry
