// One child process with everything that it starts, as a container holds them: they live no longer
// than the process itself, and none of them longer than ours.
//
// Between us and the process stands a guardian, a fork of ours that does nothing but wait
// (process.cc). It adopts what the process leaves behind, kills all of it when the process ends,
// when it is asked to, or when we are gone however that came about (PR_SET_PDEATHSIG), and it
// leaves with the process's exit code. Should somebody kill the guardian, the process dies with it,
// and Process kills its group.
//
// Not thread-safe; the thread that calls Start must outlive the process, because the kernel sends
// the signal when that thread ends.
#pragma once

#include <sys/types.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "runtime/base/status.h"

namespace meshtrain::local {

struct Command {
  std::vector<std::string>
      arguments;  // the first is the program: a path, or a name to look up in PATH
  std::vector<std::string>
      environment;               // NAME=VALUE; all that it gets, and its PATH is the one looked up
  std::string directory;         // to run in; empty: ours
  bool inherits_output = false;  // stdout and stderr are ours; else they are pipes
};

class Process {
 public:
  // Its standard input is empty. Errors: kNotFound for a program or folder that is not there,
  // kPermissionDenied for one that is not executable, kUnavailable when no process can be made.
  static Result<std::unique_ptr<Process>> Start(const Command& command);
  // Kills what still runs and waits until it is gone.
  ~Process();
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;

  // SIGTERM or SIGINT, to the process alone, as a kubelet does.
  void Signal(int signal);
  // SIGKILL to all of it. Returns at once.
  void Kill();

  // Readable when Poll has something to find out.
  int status_fd() const { return status_; }
  // The exit code once it and all that it started are gone; 128 + signal where one ended it.
  // nullopt while it runs.
  std::optional<int> Poll();
  // What kept the program from being executed; empty where nothing did. Known when Poll gives a
  // code.
  const std::string& start_error() const { return start_error_; }

  // Nonblocking read ends of its output; -1 where it has ours.
  int stdout_fd() const { return out_; }
  int stderr_fd() const { return err_; }

 private:
  Process() = default;
  int Reap();

  pid_t guardian_ = -1;
  pid_t process_ = -1;  // as told by the guardian
  int status_ = -1;
  int out_ = -1;
  int err_ = -1;
  std::optional<int> code_;
  std::string program_;
  std::string start_error_;
};

}  // namespace meshtrain::local
