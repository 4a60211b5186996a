// A stop token that SIGINT and SIGTERM request, for verbs that wait. Made before other threads are.
#pragma once

#include <atomic>
#include <stop_token>
#include <thread>

#include "operator/local/signals.h"
#include "runtime/base/clock.h"

namespace meshtrain::cli {

class StopOnSignal {
 public:
  StopOnSignal()
      : watcher_([this](const std::stop_token& end) {
          while (!end.stop_requested()) {
            if (const auto signal = signals_.Take()) {
              signal_ = *signal;
              stop_.request_stop();
            }
            SystemClock().SleepFor(std::chrono::milliseconds(50), end);
          }
        }) {}

  std::stop_token token() const { return stop_.get_token(); }
  int signal() const { return signal_; }  // that came; 0: none

 private:
  local::StopSignals signals_;
  std::stop_source stop_;
  std::atomic<int> signal_ = 0;
  std::jthread watcher_;  // last: it uses the others
};

}  // namespace meshtrain::cli
