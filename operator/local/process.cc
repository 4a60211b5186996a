#include "operator/local/process.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <ctime>
#include <utility>

#include "runtime/base/file.h"
#include "runtime/base/text.h"
#include "runtime/cluster/contract.h"

namespace meshtrain::local {
namespace {

// As shells and Docker have it.
constexpr int kNotExecutable = 126;
constexpr int kNoSuchProgram = 127;

// In the guardian and the process: what stands where.
constexpr int kStatusFd = 3;
// Beyond the numbers that the children give meaning to.
constexpr int kFirstFreeFd = 10;

// What the children say on the status pipe; its end says that the guardian is gone.
struct Note {
  enum What : int32_t { kProcess = 1, kNoDirectory = 2, kNoExec = 3 };
  int32_t what = 0;
  int32_t value = 0;  // a process id, an errno
};

// All that the children need, made before the fork: between fork and exec only async-signal-safe
// calls are allowed.
struct Plan {
  const char* path = nullptr;
  char** arguments = nullptr;
  char** environment = nullptr;
  const char* directory = nullptr;  // null: ours
  int in = -1;
  int out = -1;
  int err = -1;
  int status = -1;
  pid_t parent = -1;
};

void Tell(int32_t what, int32_t value) {
  const Note note{what, value};
  // The reader may be gone, which the guardian learns otherwise.
  if (::write(kStatusFd, &note, sizeof note) < 0) return;
}

int CodeOf(const siginfo_t& end) {
  return end.si_code == CLD_EXITED ? end.si_status : 128 + end.si_status;
}

// The first process: becomes the program.
[[noreturn]] void BecomeProgram(const Plan& plan, pid_t guardian) {
  ::setpgid(0, 0);
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != guardian) ::_exit(128 + SIGKILL);
  sigset_t none;
  ::sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
  if (plan.directory != nullptr && ::chdir(plan.directory) != 0) {
    Tell(Note::kNoDirectory, errno);
    ::_exit(kNotExecutable);
  }
  ::execve(plan.path, plan.arguments, plan.environment);
  const int error = errno;
  Tell(Note::kNoExec, error);
  ::_exit(error == ENOENT ? kNoSuchProgram : kNotExecutable);
}

// Kills every child of the guardian. Returns false when it could not find out who they are.
bool KillChildren() {
  const int fd = ::open("/proc/thread-self/children", O_RDONLY | O_CLOEXEC);
  if (fd < 0) return false;
  char text[4096];
  pid_t child = 0;
  for (ssize_t n; (n = ::read(fd, text, sizeof text)) > 0;) {
    for (ssize_t i = 0; i < n; ++i) {
      if (text[i] >= '0' && text[i] <= '9') {
        child = child * 10 + (text[i] - '0');
      } else if (child > 0) {
        ::kill(child, SIGKILL);
        child = 0;
      }
    }
  }
  if (child > 0) ::kill(child, SIGKILL);
  ::close(fd);
  return true;
}

// Ends the whole tree: whoever loses its parent becomes a child of the guardian and is found in the
// next round. Gives up after ten seconds, on processes that not even SIGKILL ends. Returns the
// process's exit code.
int EndAll(pid_t process, int code) {
  sigset_t child;
  ::sigemptyset(&child);
  ::sigaddset(&child, SIGCHLD);
  // While it is not reaped, its number is nobody else's.
  ::kill(-process, SIGKILL);
  for (int round = 0; round < 400; ++round) {
    KillChildren();
    siginfo_t end;
    while (true) {
      end.si_pid = 0;
      if (::waitid(P_ALL, 0, &end, WEXITED | WNOHANG) != 0) return code;  // ECHILD: nobody is left
      if (end.si_pid == 0) break;
      if (end.si_pid == process) code = CodeOf(end);
    }
    const timespec wait{.tv_sec = 0, .tv_nsec = 25'000'000};
    ::sigtimedwait(&child, nullptr, &wait);
  }
  return code;
}

[[noreturn]] void BecomeGuardian(const Plan& plan) {
  // What is ignored here would be ignored by the program too, and SIGCHLD would take the exit codes
  // with it.
  struct sigaction by_default {};
  by_default.sa_handler = SIG_DFL;
  for (int signal = 1; signal < NSIG; ++signal) ::sigaction(signal, &by_default, nullptr);
  ::prctl(PR_SET_NAME, "meshtrain-pod");
  ::setsid();  // the terminal's signals are for us, not for it
  ::prctl(PR_SET_CHILD_SUBREAPER, 1);
  ::prctl(PR_SET_PDEATHSIG, SIGUSR1);
  ::dup2(plan.in, STDIN_FILENO);
  ::dup2(plan.out, STDOUT_FILENO);
  ::dup2(plan.err, STDERR_FILENO);
  ::dup2(plan.status, kStatusFd);
  ::fcntl(kStatusFd, F_SETFD, FD_CLOEXEC);
  ::close_range(kStatusFd + 1, ~0U, 0);
  const pid_t self = ::getpid();
  const pid_t process =
      ::_Fork();  // without the handlers that libraries of ours may have set for forks
  if (process == 0) BecomeProgram(plan, self);
  if (process < 0) {
    Tell(Note::kNoExec, errno);
    ::_exit(kNotExecutable);
  }
  ::setpgid(process, process);  // whichever of the two comes first
  Tell(Note::kProcess, process);
  // So that its output ends with it.
  for (const int fd : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) ::close(fd);

  sigset_t all;
  ::sigfillset(&all);
  while (true) {
    siginfo_t end;
    while (true) {
      end.si_pid = 0;
      if (::waitid(P_ALL, 0, &end, WEXITED | WNOHANG | WNOWAIT) != 0 || end.si_pid == 0) break;
      if (end.si_pid == process) ::_exit(EndAll(process, CodeOf(end)));
      ::waitid(P_PID, static_cast<id_t>(end.si_pid), &end, WEXITED | WNOHANG);
    }
    // Whatever else, a parent that is gone is noticed.
    if (::getppid() != plan.parent) ::_exit(EndAll(process, 128 + SIGKILL));
    const timespec wait{.tv_sec = 60, .tv_nsec = 0};
    const int signal = ::sigtimedwait(&all, nullptr, &wait);
    if (signal == SIGTERM || signal == SIGINT) ::kill(process, signal);
    if (signal == SIGUSR1 || signal == SIGUSR2) ::_exit(EndAll(process, 128 + SIGKILL));
  }
}

// --- ours

class Fd {
 public:
  explicit Fd(int fd = -1) : fd_(fd) {}
  ~Fd() { Close(); }
  Fd(Fd&& other) noexcept : fd_(other.Release()) {}
  Fd& operator=(Fd&& other) noexcept {
    Close();
    fd_ = other.Release();
    return *this;
  }
  int get() const { return fd_; }
  int Release() { return std::exchange(fd_, -1); }

 private:
  void Close() {
    if (fd_ >= 0) ::close(fd_);
  }
  int fd_;
};

// Takes over `fd` under a number that the children do not use.
Fd Raised(int fd, bool close_original) {
  const int raised = ::fcntl(fd, F_DUPFD_CLOEXEC, kFirstFreeFd);
  if (close_original && fd >= 0) ::close(fd);
  return Fd(raised);
}

Status MakePipe(Fd* read_end, Fd* write_end) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return ErrnoStatus(errno, "cannot make a pipe", "process");
  ::fcntl(ends[0], F_SETFL, O_NONBLOCK);
  *read_end = Raised(ends[0], true);
  *write_end = Raised(ends[1], true);
  if (read_end->get() < 0 || write_end->get() < 0) {
    return ErrnoStatus(errno, "cannot make a pipe", "process");
  }
  return OkStatus();
}

std::string Variable(const std::vector<std::string>& environment, std::string_view name) {
  for (auto it = environment.rbegin(); it != environment.rend(); ++it) {
    if (it->starts_with(name) && it->size() > name.size() && (*it)[name.size()] == '=') {
      return it->substr(name.size() + 1);
    }
  }
  return {};
}

bool IsExecutable(const std::string& path) {
  struct stat info;
  return ::stat(path.c_str(), &info) == 0 && S_ISREG(info.st_mode) &&
         ::access(path.c_str(), X_OK) == 0;
}

// The file that a shell would run.
Result<std::string> FindProgram(const Command& command) {
  const std::string& name = command.arguments.front();
  const auto in_directory = [&](const std::string& path) {
    return path.starts_with('/') || command.directory.empty() ? path
                                                              : command.directory + "/" + path;
  };
  if (name.find('/') != std::string::npos) {
    const std::string path = in_directory(name);
    if (IsExecutable(path)) return name;  // the process is in its folder by then
    if (::access(path.c_str(), F_OK) != 0) {
      return NotFound(name + ": expected a program, got: no such file");
    }
    return PermissionDenied(name + ": expected a program, got: a file that is not executable");
  }
  const std::string path = Variable(command.environment, "PATH");
  if (!name.empty()) {
    for (const std::string& folder : Split(path, ':')) {
      const std::string candidate = (folder.empty() ? "." : folder) + "/" + name;
      if (IsExecutable(in_directory(candidate))) return candidate;
    }
  }
  return NotFound(name + ": expected a program in PATH, got: none in " + path);
}

std::vector<char*> Pointers(const std::vector<std::string>& texts) {
  std::vector<char*> out;
  for (const std::string& text : texts) out.push_back(const_cast<char*>(text.c_str()));
  out.push_back(nullptr);
  return out;
}

}  // namespace

Result<std::unique_ptr<Process>> Process::Start(const Command& command) {
  if (command.arguments.empty()) {
    return InvalidArgument("process: expected a program, got: no argument");
  }
  if (!command.directory.empty()) {
    struct stat info;
    if (::stat(command.directory.c_str(), &info) != 0 || !S_ISDIR(info.st_mode)) {
      return NotFound(command.directory + ": expected a folder to run in, got: none");
    }
  }
  MT_ASSIGN_OR_RETURN(const std::string path, FindProgram(command));
  std::vector<char*> arguments = Pointers(command.arguments);
  std::vector<char*> environment = Pointers(command.environment);

  Fd out_read, out_write, err_read, err_write, status_read, status_write;
  MT_RETURN_IF_ERROR(MakePipe(&status_read, &status_write));
  if (command.inherits_output) {
    out_write = Raised(STDOUT_FILENO, false);
    err_write = Raised(STDERR_FILENO, false);
  } else {
    MT_RETURN_IF_ERROR(MakePipe(&out_read, &out_write));
    MT_RETURN_IF_ERROR(MakePipe(&err_read, &err_write));
  }
  const Fd in = Raised(::open("/dev/null", O_RDONLY | O_CLOEXEC), true);
  const Plan plan{.path = path.c_str(),
                  .arguments = arguments.data(),
                  .environment = environment.data(),
                  .directory = command.directory.empty() ? nullptr : command.directory.c_str(),
                  .in = in.get(),
                  .out = out_write.get(),
                  .err = err_write.get(),
                  .status = status_write.get(),
                  .parent = ::getpid()};
  // The guardian takes signals by waiting for them, from its first moment on.
  sigset_t all, before;
  ::sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &before);
  const pid_t guardian = ::fork();
  if (guardian == 0) BecomeGuardian(plan);
  const int error = errno;
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  if (guardian < 0) return Unavailable(path + ": cannot make a process: " + std::strerror(error));

  auto process = std::unique_ptr<Process>(new Process);
  process->guardian_ = guardian;
  process->program_ = path;
  process->status_ = status_read.Release();
  process->out_ = out_read.Release();
  process->err_ = err_read.Release();
  return process;
}

Process::~Process() {
  if (!code_) {
    Kill();
    // The guardian gives up after ten seconds.
    pollfd end{.fd = status_, .events = POLLIN};
    while (!Poll()) {
      if (::poll(&end, 1, 15'000) == 0) break;
    }
  }
  for (const int fd : {status_, out_, err_}) {
    if (fd >= 0) ::close(fd);
  }
}

void Process::Signal(int signal) {
  if (!code_) ::kill(guardian_, signal);
}

void Process::Kill() {
  if (!code_) ::kill(guardian_, SIGUSR2);
}

std::optional<int> Process::Poll() {
  if (code_) return code_;
  while (true) {
    Note note;
    const ssize_t n = ::read(status_, &note, sizeof note);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return std::nullopt;  // EAGAIN
    if (n < static_cast<ssize_t>(sizeof note)) return code_ = Reap();
    if (note.what == Note::kProcess) process_ = note.value;
    if (note.what == Note::kNoDirectory) {
      start_error_ = program_ + ": its folder: " + std::strerror(note.value);
    }
    if (note.what == Note::kNoExec) start_error_ = program_ + ": " + std::strerror(note.value);
  }
}

// The pipe's other end is closed, so the guardian is gone or about to be.
int Process::Reap() {
  int status = 0;
  while (::waitpid(guardian_, &status, 0) < 0) {
    if (errno != EINTR) return cluster::kExitInternal;
  }
  if (WIFEXITED(status)) return WEXITSTATUS(status);
  if (process_ > 0) ::kill(-process_, SIGKILL);
  return 128 + WTERMSIG(status);
}

}  // namespace meshtrain::local
