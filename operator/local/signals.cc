#include "operator/local/signals.h"

#include <pthread.h>
#include <sys/signalfd.h>
#include <unistd.h>

namespace meshtrain::local {

StopSignals::StopSignals() {
  sigset_t set;
  ::sigemptyset(&set);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) ::sigaddset(&set, signal);
  struct sigaction hangup;
  if (::sigaction(SIGHUP, nullptr, &hangup) == 0 && hangup.sa_handler == SIG_IGN) {
    ::sigdelset(&set, SIGHUP);
  }
  struct sigaction ignore {};
  ignore.sa_handler = SIG_IGN;
  ::sigaction(SIGPIPE, &ignore, &pipe_before_);
  ::sigaction(SIGXFSZ, &ignore, &size_before_);
  ::pthread_sigmask(SIG_BLOCK, &set, &before_);
  fd_ = ::signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
}

StopSignals::~StopSignals() {
  // What came too late to be taken is not delivered when the mask goes back: it was for the run
  // that is over.
  while (Take()) {
  }
  if (fd_ >= 0) ::close(fd_);
  ::pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  ::sigaction(SIGPIPE, &pipe_before_, nullptr);
  ::sigaction(SIGXFSZ, &size_before_, nullptr);
}

std::optional<int> StopSignals::Take() {
  signalfd_siginfo info;
  if (::read(fd_, &info, sizeof info) != static_cast<ssize_t>(sizeof info)) return std::nullopt;
  return static_cast<int>(info.ssi_signo);
}

}  // namespace meshtrain::local
