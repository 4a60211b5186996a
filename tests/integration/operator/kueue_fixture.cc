#include "tests/integration/operator/kueue_fixture.h"

#include <signal.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>

#include "runtime/base/file.h"

namespace meshtrain::testing {
namespace {

constexpr const char* kScript = MT_SOURCE_DIR "/scripts/kubernetes/kueue";

// Where it was built, as scripts/kubernetes/env.sh works it out.
const std::string& Prefix() {
  static const std::string prefix = [] {
    const CommandResult result =
        RunCommand({"bash", "-c", ". \"$1\" && printf %s \"$KUEUE_PREFIX\"", "_",
                    std::string(MT_SOURCE_DIR) + "/scripts/kubernetes/env.sh"});
    return result.exit_code == 0 ? result.out : std::string();
  }();
  return prefix;
}

}  // namespace

bool KueueProcess::Available(std::string* why) {
  if (std::filesystem::exists(Prefix() + "/complete")) return true;
  *why = "Kueue was not built: scripts/kubernetes/build-peers kueue";
  return false;
}

std::unique_ptr<KueueProcess> KueueProcess::Start(ApiServer& api) {
  auto process = std::unique_ptr<KueueProcess>(new KueueProcess);
  char folder[] = "/tmp/meshtrain-kueue.XXXXXX";
  EXPECT_NE(mkdtemp(folder), nullptr);
  process->folder_ = folder;
  const std::string server = "KUBECONFIG=" + api.kubeconfig(), state = process->folder_ + "/state";
  // The child must not outlive a test that is killed.
  const pid_t parent = getpid();
  process->pid_ = fork();
  if (process->pid_ == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(1);
    execlp("env", "env", server.c_str(), kScript, state.c_str(), nullptr);
    _exit(127);
  }
  bool ready = false, ended = false;
  for (int i = 0; i < 600 && !ready && !ended; ++i) {
    SystemClock().SleepFor(std::chrono::milliseconds(200), {});
    ready = std::filesystem::exists(state + "/ready");
    ended = waitpid(process->pid_, nullptr, WNOHANG) == process->pid_;
  }
  if (ended) process->pid_ = -1;
  EXPECT_TRUE(ready && !ended) << "Kueue did not answer";
  return process;
}

KueueProcess::~KueueProcess() {
  if (pid_ > 0) {
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
  if (::testing::Test::HasFailure()) {
    const auto log = ReadFile(folder_ + "/state/log");
    std::fprintf(stderr, "--- Kueue's log\n%s---\n", log.ok() ? log->c_str() : "none");
  }
  std::filesystem::remove_all(folder_);
}

}  // namespace meshtrain::testing
