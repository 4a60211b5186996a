// meshtrain-worker: one training process.
#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <thread>
#include <variant>

#include "runtime/cluster/contract.h"
#include "worker/config.h"
#include "worker/service.h"

namespace {

// Turns SIGTERM and SIGINT into a request to stop. A second signal ends the process at once.
class Signals {
 public:
  // Before any other thread exists: they all inherit the blocked set.
  Signals() {
    sigemptyset(&set_);
    sigaddset(&set_, SIGTERM);
    sigaddset(&set_, SIGINT);
    pthread_sigmask(SIG_BLOCK, &set_, nullptr);
    ::signal(SIGPIPE, SIG_IGN);
    thread_ = std::jthread([this](std::stop_token done) {
      while (!done.stop_requested()) {
        const timespec wait{.tv_sec = 0, .tv_nsec = 50'000'000};
        const int signal = ::sigtimedwait(&set_, nullptr, &wait);
        if (signal <= 0) continue;
        const int exit_code = signal == SIGINT ? meshtrain::cluster::kExitInterrupted
                                               : meshtrain::cluster::kExitTerminated;
        if (stop_.stop_requested()) ::_exit(exit_code);
        exit_code_ = exit_code;
        stop_.request_stop();
      }
    });
  }
  std::stop_token token() const { return stop_.get_token(); }
  int exit_code() const { return exit_code_; }

 private:
  sigset_t set_;
  std::stop_source stop_;
  std::atomic<int> exit_code_{meshtrain::cluster::kExitTerminated};
  std::jthread thread_;  // last: it uses the members above
};

}  // namespace

int main(int argc, char** argv) {
  const auto parsed = meshtrain::worker::ParseArguments(argc, argv);
  if (const int* exit_code = std::get_if<int>(&parsed)) return *exit_code;
  Signals signals;
  return meshtrain::worker::Serve(std::get<meshtrain::worker::Config>(parsed), signals.token(),
                                  [&] { return signals.exit_code(); });
}
