#include "tests/runtime/membership/peer_process.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <thread>

#include "runtime/base/check.h"

extern char** environ;  // NOLINT: POSIX's

namespace meshtrain::membership {

PeerProcess::PeerProcess(const std::string& program,
                         const std::map<std::string, std::string>& environment,
                         const std::string& log) {
  int in[2], out[2];
  MT_CHECK(pipe2(in, O_CLOEXEC) == 0 && pipe2(out, O_CLOEXEC) == 0);
  const int error = open(log.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
  MT_CHECK(error >= 0);
  std::vector<std::string> variables;
  for (char** variable = environ; *variable != nullptr; ++variable) {
    variables.emplace_back(*variable);
  }
  for (const auto& [name, value] : environment) variables.push_back(name + "=" + value);
  std::vector<char*> pointers;
  for (std::string& variable : variables) pointers.push_back(variable.data());
  pointers.push_back(nullptr);
  char* arguments[] = {const_cast<char*>(program.c_str()), nullptr};
  pid_ = fork();
  MT_CHECK(pid_ >= 0);
  if (pid_ == 0) {
    // Only what is safe between fork and exec.
    dup2(in[0], 0);
    dup2(out[1], 1);
    dup2(error, 2);
    execve(program.c_str(), arguments, pointers.data());
    _exit(127);
  }
  close(in[0]);
  close(out[1]);
  close(error);
  in_ = in[1];
  out_ = out[0];
}

PeerProcess::~PeerProcess() {
  if (!exit_) {
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
  close(in_);
  close(out_);
}

std::optional<std::string> PeerProcess::Expect(const std::string& start, Duration patience) {
  const Duration end = SystemClock().Monotonic() + patience;
  for (;;) {
    for (size_t line_end; (line_end = unread_.find('\n')) != std::string::npos;) {
      std::string line = unread_.substr(0, line_end);
      unread_.erase(0, line_end + 1);
      if (line.starts_with(start)) return line;
    }
    const auto left =
        std::chrono::duration_cast<std::chrono::milliseconds>(end - SystemClock().Monotonic())
            .count();
    pollfd waiting{out_, POLLIN, 0};
    if (left <= 0 || poll(&waiting, 1, static_cast<int>(left)) <= 0) return std::nullopt;
    char buffer[4096];
    const ssize_t size = read(out_, buffer, sizeof buffer);
    if (size <= 0) return std::nullopt;
    unread_.append(buffer, static_cast<size_t>(size));
  }
}

void PeerProcess::Tell(const std::string& line) {
  const std::string text = line + "\n";
  MT_CHECK(write(in_, text.data(), text.size()) == static_cast<ssize_t>(text.size()));
}

void PeerProcess::Signal(int signal) { MT_CHECK(kill(pid_, signal) == 0); }

std::optional<int> PeerProcess::Wait(Duration patience) {
  const Duration end = SystemClock().Monotonic() + patience;
  while (!exit_ && SystemClock().Monotonic() < end) {
    int status = 0;
    if (waitpid(pid_, &status, WNOHANG) == pid_) {
      exit_ = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    } else {
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
  }
  return exit_;
}

}  // namespace meshtrain::membership
