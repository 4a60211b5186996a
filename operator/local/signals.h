// SIGINT, SIGTERM and SIGHUP as something to poll, instead of something that interrupts. Where
// SIGHUP was ignored (nohup) it stays so.
#pragma once

#include <signal.h>

#include <optional>

namespace meshtrain::local {

// Blocks them in this thread and in those that it starts later; make one before any other thread
// exists. Ignores SIGPIPE and SIGXFSZ: a write says itself that nobody reads, or that its file may
// not grow. All are as before at its end.
class StopSignals {
 public:
  StopSignals();
  ~StopSignals();
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;

  int fd() const { return fd_; }
  // The next signal that came; nothing where none did.
  std::optional<int> Take();

 private:
  int fd_ = -1;
  sigset_t before_;
  struct sigaction pipe_before_, size_before_;
};

}  // namespace meshtrain::local
