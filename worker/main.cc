// meshtrain-worker: one training process.
#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <thread>
#include <variant>

#include "runtime/base/clock.h"
#include "runtime/base/out_of_memory.h"
#include "runtime/base/thread.h"
#include "runtime/cluster/contract.h"
#include "runtime/cluster/exit_code.h"
#include "worker/apply.h"
#include "worker/config.h"
#include "worker/service.h"

namespace {

// A supervisor may send SIGTERM to every process, also to those that pass it on: within this time
// it is one request.
constexpr meshtrain::Duration kOneRequest = std::chrono::seconds(2);

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
    // A file that may not grow further is the write's error.
    ::signal(SIGXFSZ, SIG_IGN);
  }
  // Errors: kUnavailable (no thread).
  meshtrain::Status Start() {
    const auto watch = [this](std::stop_token done) {
      meshtrain::Duration asked_at{};
      while (!done.stop_requested()) {
        const timespec wait{.tv_sec = 0, .tv_nsec = 50'000'000};
        const int signal = ::sigtimedwait(&set_, nullptr, &wait);
        if (signal <= 0) continue;
        const meshtrain::Duration now = meshtrain::SystemClock().Monotonic();
        if (stop_.stop_requested()) {
          if (signal == SIGTERM && now - asked_at < kOneRequest) continue;
          ::_exit(meshtrain::cluster::ExitCodeOf(meshtrain::cluster::Stopped(), signal));
        }
        signal_ = signal;
        asked_at = now;
        stop_.request_stop();
      }
    };
    MT_ASSIGN_OR_RETURN(thread_, meshtrain::StartThread("signals", watch));
    return meshtrain::OkStatus();
  }
  std::stop_token token() const { return stop_.get_token(); }
  int signal() const { return signal_; }  // that asked to stop

 private:
  sigset_t set_;
  std::stop_source stop_;
  std::atomic<int> signal_{SIGTERM};
  std::jthread thread_;  // last: it uses the members above
};

// What the arguments ask for: one process of a job, or a trained model that is applied.
template <typename Config>
int Run(const std::variant<Config, int>& parsed,
        meshtrain::Status (*run)(const Config& config, std::stop_token stop)) {
  if (const int* exit_code = std::get_if<int>(&parsed)) return *exit_code;
  meshtrain::ExitWhereMemoryEnds("meshtrain-worker", meshtrain::cluster::kExitBadConfig);
  Signals signals;
  if (const meshtrain::Status started = signals.Start(); !started.ok()) {
    std::fprintf(stderr, "meshtrain-worker: %s\n", started.message().c_str());
    return meshtrain::cluster::ExitCodeOf(started);
  }
  const meshtrain::Status end = run(std::get<Config>(parsed), signals.token());
  return meshtrain::cluster::ExitCodeOf(end, signals.signal());
}

}  // namespace

int main(int argc, char** argv) {
  namespace worker = meshtrain::worker;
  if (worker::AsksToApply(argc, argv)) return Run(worker::ParseApply(argc, argv), worker::Apply);
  return Run(worker::ParseArguments(argc, argv), worker::Serve);
}
