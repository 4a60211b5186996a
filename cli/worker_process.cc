#include "cli/worker_process.h"

#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <filesystem>
#include <optional>

#include "operator/local/process.h"
#include "operator/local/signals.h"
#include "runtime/cluster/exit_code.h"

namespace meshtrain::cli {

std::string WorkerPath() {
  std::error_code error;
  const auto self = std::filesystem::read_symlink("/proc/self/exe", error);
  return error ? "meshtrain-worker" : (self.parent_path() / "meshtrain-worker").string();
}

Result<int> RunWorker(const std::vector<std::string>& arguments) {
  local::StopSignals signals;  // before the child: it gets its signals from us
  local::Command command{.arguments = {WorkerPath()}, .inherits_output = true};
  command.arguments.insert(command.arguments.end(), arguments.begin(), arguments.end());
  for (char** variable = environ; *variable != nullptr; ++variable) {
    command.environment.emplace_back(*variable);
  }
  MT_ASSIGN_OR_RETURN(const auto child, local::Process::Start(command));
  std::optional<int> code;
  bool hung_up = false;
  while (!(code = child->Poll())) {
    pollfd fds[] = {{child->status_fd(), POLLIN, 0}, {signals.fd(), POLLIN, 0}};
    ::poll(fds, 2, -1);
    while (const std::optional<int> signal = signals.Take()) {
      // The worker's terminal is not ours: to it a hang-up is a stop like another.
      hung_up = hung_up || *signal == SIGHUP;
      child->Signal(*signal == SIGHUP ? SIGTERM : *signal);
    }
  }
  if (!child->start_error().empty()) return FailedPrecondition(child->start_error());
  const bool stopped = *code == cluster::ExitCodeOf(cluster::Stopped(), SIGTERM);
  return hung_up && stopped ? cluster::ExitCodeOf(cluster::Stopped(), SIGHUP) : *code;
}

}  // namespace meshtrain::cli
