#include "tests/support/api_server.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <thread>

#include "operator/kube/http_client.h"
#include "operator/kube/json_slice.h"
#include "runtime/base/file.h"
#include "runtime/base/text.h"

extern char** environ;

namespace meshtrain::testing {
namespace {

std::string Script(const std::string& name) {
  return std::string(MT_SOURCE_DIR) + "/scripts/kubernetes/" + name;
}

// The folder of binaries, as scripts/kubernetes/env.sh works it out.
const std::string& BinFolder() {
  static const std::string folder = [] {
    const CommandResult result =
        RunCommand({"bash", "-c", ". \"$1\" && printf %s \"$KUBE_BIN\"", "_", Script("env.sh")});
    return result.exit_code == 0 ? result.out : std::string();
  }();
  return folder;
}

}  // namespace

CommandResult RunCommand(const std::vector<std::string>& argv,
                         const std::vector<std::pair<std::string, std::string>>& env,
                         const std::string& input, std::chrono::seconds timeout) {
  std::vector<std::string> environment;
  for (char** e = environ; *e != nullptr; ++e) environment.emplace_back(*e);
  for (const auto& [name, value] : env) environment.push_back(name + "=" + value);
  std::vector<std::string> arguments = argv;
  std::vector<char*> argv_pointers, env_pointers;
  for (std::string& s : arguments) argv_pointers.push_back(s.data());
  argv_pointers.push_back(nullptr);
  for (auto it = environment.rbegin(); it != environment.rend(); ++it) {
    env_pointers.push_back(it->data());
  }
  env_pointers.push_back(nullptr);

  // The input goes through an unlinked file, so that neither side can block the other.
  char in_path[] = "/tmp/meshtrain-input.XXXXXX";
  const int in = mkostemp(in_path, O_CLOEXEC);
  unlink(in_path);
  if (write(in, input.data(), input.size()) != static_cast<ssize_t>(input.size())) return {};
  lseek(in, 0, SEEK_SET);
  int out[2];
  if (pipe2(out, O_CLOEXEC) != 0) return {};
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, in, 0);
  posix_spawn_file_actions_adddup2(&actions, out[1], 1);
  posix_spawn_file_actions_adddup2(&actions, out[1], 2);
  pid_t pid = 0;
  const int error = posix_spawnp(&pid, argv_pointers[0], &actions, nullptr, argv_pointers.data(),
                                 env_pointers.data());
  posix_spawn_file_actions_destroy(&actions);
  close(in);
  close(out[1]);
  CommandResult result;
  if (error != 0) {
    close(out[0]);
    result.out = argv[0] + ": cannot start";
    return result;
  }
  const auto end = std::chrono::steady_clock::now() + timeout;
  bool late = false;
  while (true) {
    const auto left =
        std::chrono::ceil<std::chrono::milliseconds>(end - std::chrono::steady_clock::now());
    pollfd ready = {.fd = out[0], .events = POLLIN, .revents = 0};
    const int polled = poll(&ready, 1, static_cast<int>(std::max<int64_t>(left.count(), 0)));
    if (polled < 0 && errno == EINTR) continue;
    if (polled == 0) {
      late = true;
      kill(pid, SIGKILL);
      result.out += "\n" + argv[0] + ": expected to end within " + std::to_string(timeout.count()) +
                    " s; killed";
      break;
    }
    char buffer[4096];
    const ssize_t n = read(out[0], buffer, sizeof buffer);
    if (n <= 0) break;
    result.out.append(buffer, static_cast<size_t>(n));
  }
  close(out[0]);
  int status = 0;
  waitpid(pid, &status, 0);
  result.exit_code = late ? 137 : WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  return result;
}

bool ApiServer::Available(std::string* why) {
  if (std::filesystem::exists(BinFolder() + "/kube")) return true;
  *why = "kube-apiserver was not built: scripts/kubernetes/build";
  return false;
}

Result<std::unique_ptr<ApiServer>> ApiServer::Start(bool controllers) {
  auto server = std::unique_ptr<ApiServer>(new ApiServer);
  char folder[] = "/tmp/meshtrain-cluster.XXXXXX";
  if (mkdtemp(folder) == nullptr) return Unavailable("mkdtemp failed");
  server->folder_ = folder;
  std::vector<std::string> command = {Script("cluster"), "start", server->folder_, "--owner",
                                      std::to_string(getpid())};
  if (controllers) command.push_back("--controllers");
  const CommandResult started = RunCommand(command, {}, "", std::chrono::minutes(5));
  if (started.exit_code != 0) {
    return Unavailable("scripts/kubernetes/cluster start: " + started.out);
  }
  server->kubeconfig_ = server->folder_ + "/kubeconfig";
  MT_ASSIGN_OR_RETURN(const std::string url, ReadFile(server->folder_ + "/etcd.url"));
  server->etcd_url_ = std::string(Trim(url));
  MT_ASSIGN_OR_RETURN(server->config_, kube::LoadKubeconfig(server->kubeconfig_, ""));
  MT_ASSIGN_OR_RETURN(server->client_, kube::NewHttpClient(server->config_, {}, SystemClock()));
  return server;
}

ApiServer::~ApiServer() {
  if (folder_.empty()) return;
  client_.reset();
  RunCommand({Script("cluster"), "stop", folder_});
  if (std::getenv("MT_KEEP_CLUSTER_LOGS") == nullptr) std::filesystem::remove_all(folder_);
}

CommandResult ApiServer::Kubectl(std::vector<std::string> args, const std::string& input) const {
  const bool waits = !args.empty() && args[0] == "wait";
  args.insert(args.begin(), BinFolder() + "/kubectl");
  CommandResult result = RunCommand(args, {{"KUBECONFIG", kubeconfig_}}, input);
  // `wait` takes an object that has no conditions yet, a CRD just made, for a mistake.
  constexpr int kTries = 300;
  for (int i = 0; i < kTries && waits && result.exit_code != 0 &&
                  result.out.find(".status.conditions accessor error") != std::string::npos;
       ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    result = RunCommand(args, {{"KUBECONFIG", kubeconfig_}}, input);
  }
  return result;
}

CommandResult ApiServer::Helm(std::vector<std::string> args) const {
  args.insert(args.begin(), BinFolder() + "/helm");
  return RunCommand(args, {{"KUBECONFIG", kubeconfig_},
                           {"HELM_CACHE_HOME", folder_ + "/helm/cache"},
                           {"HELM_CONFIG_HOME", folder_ + "/helm/config"},
                           {"HELM_DATA_HOME", folder_ + "/helm/data"}});
}

Status ApiServer::Save() {
  const CommandResult done = RunCommand({Script("cluster"), "save", folder_});
  return done.exit_code == 0 ? OkStatus() : Unavailable("cluster save: " + done.out);
}

Status ApiServer::Restore() {
  const CommandResult done =
      RunCommand({Script("cluster"), "restore", folder_}, {}, "", std::chrono::minutes(5));
  return done.exit_code == 0 ? OkStatus() : Unavailable("cluster restore: " + done.out);
}

Status ApiServer::Compact() {
  // etcd's gateway takes JSON; int64 are strings there.
  MT_ASSIGN_OR_RETURN(const std::string page,
                      client_->List(
                          kube::Pods(), {.chunk = 1}, [](std::string_view) {}, [] {}, {}));
  const std::string body = R"({"revision":")" + page + R"(","physical":true})";
  const CommandResult done =
      RunCommand({"curl", "-fsS", "-X", "POST", "-d", body, etcd_url_ + "/v3/kv/compaction"});
  if (done.exit_code != 0) return Unavailable("etcd compaction: " + done.out);
  return OkStatus();
}

}  // namespace meshtrain::testing
