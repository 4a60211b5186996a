#include "operator/kube/credentials.h"

#include <fcntl.h>
#include <openssl/evp.h>
#include <poll.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "runtime/base/file.h"
#include "runtime/base/text.h"
#include "runtime/base/time_text.h"

extern char** environ;

namespace meshtrain::kube {
namespace {

using nlohmann::json;

constexpr int64_t kMaxBytes = 1 << 20;
constexpr Duration kShortestUse = std::chrono::minutes(1);

std::string EncodeBase64(std::string_view text) {
  std::string out((text.size() + 2) / 3 * 4 + 1, '\0');
  const int n = EVP_EncodeBlock(reinterpret_cast<unsigned char*>(out.data()),
                                reinterpret_cast<const unsigned char*>(text.data()),
                                static_cast<int>(text.size()));
  out.resize(n);
  return out;
}

// What the plugin reads in KUBERNETES_EXEC_INFO.
std::string ExecInfo(const ExecPlugin& plugin, const ClientConfig& cluster) {
  json spec = {{"interactive", false}};
  if (plugin.provide_cluster_info) {
    json info = {{"server", cluster.server},
                 {"insecure-skip-tls-verify", cluster.insecure_skip_tls_verify}};
    if (!cluster.tls_server_name.empty()) info["tls-server-name"] = cluster.tls_server_name;
    std::string ca = cluster.ca_data;
    if (ca.empty() && !cluster.ca_file.empty()) {
      if (auto text = ReadFile(cluster.ca_file, kMaxBytes); text.ok()) ca = *text;
    }
    if (!ca.empty()) info["certificate-authority-data"] = EncodeBase64(ca);
    spec["cluster"] = info;
  }
  return json{{"apiVersion", plugin.api_version}, {"kind", "ExecCredential"}, {"spec", spec}}
      .dump();
}

struct Pipe {
  int read_end = -1, write_end = -1;
  ~Pipe() {
    CloseWrite();
    if (read_end >= 0) close(read_end);
  }
  void CloseWrite() {
    if (write_end >= 0) close(write_end);
    write_end = -1;
  }
};

// Reads until the end of file or `end`, monotonic.
Status ReadAll(int fd, Duration end, std::string& out) {
  char buffer[4096];
  while (true) {
    const auto left =
        std::chrono::duration_cast<std::chrono::milliseconds>(end - SystemClock().Monotonic());
    if (left.count() <= 0) return DeadlineExceeded("expected an answer in time, got: none");
    pollfd waiting{fd, POLLIN, 0};
    if (poll(&waiting, 1, static_cast<int>(left.count())) <= 0) continue;
    const ssize_t n = read(fd, buffer, sizeof buffer);
    if (n == 0) return OkStatus();
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return ErrnoStatus(errno, "read", "exec plugin");
    out.append(buffer, static_cast<size_t>(n));
    if (out.size() > static_cast<size_t>(kMaxBytes)) {
      return ResourceExhausted("expected at most 1 MiB, got: more");
    }
  }
}

// Waits for the end of a child until `end`, monotonic.
Status WaitFor(pid_t pid, Duration end, int& exit_status) {
  constexpr Duration kLook = std::chrono::milliseconds(2);
  while (true) {
    const pid_t ended = waitpid(pid, &exit_status, WNOHANG);
    if (ended == pid) return OkStatus();
    if (ended < 0 && errno != EINTR) return ErrnoStatus(errno, "wait", "exec plugin");
    if (SystemClock().Monotonic() >= end) {
      return DeadlineExceeded(
          "expected its end in time, got: it has closed its output and runs on");
    }
    SystemClock().SleepFor(kLook, {});
  }
}

}  // namespace

Result<ExecCredential> ParseExecCredential(std::string_view text, std::string_view api_version) {
  const json parsed = json::parse(text, nullptr, /*allow_exceptions=*/false);
  const auto refuse = [](const std::string& why) {
    return Status(StatusCode::kUnauthenticated, "exec plugin: expected " + why);
  };
  if (!parsed.is_object() || parsed.value("kind", json()) != "ExecCredential") {
    return refuse("an ExecCredential on standard output, got: something else");
  }
  if (parsed.value("apiVersion", json()) != json(api_version)) {
    return refuse("apiVersion " + std::string(api_version) +
                  ", got: " + parsed.value("apiVersion", json()).dump());
  }
  const json status = parsed.value("status", json::object());
  const auto field = [&](const char* key) {
    const auto it = status.is_object() ? status.find(key) : status.end();
    return status.is_object() && it != status.end() && it->is_string() ? it->get<std::string>()
                                                                       : std::string();
  };
  ExecCredential out{.token = field("token"),
                     .certificate = field("clientCertificateData"),
                     .key = field("clientKeyData"),
                     .expires = TimePoint::max()};
  if (out.token.empty() && (out.certificate.empty() || out.key.empty())) {
    return refuse("status.token or a client certificate with its key, got: neither");
  }
  if (const std::string expires = field("expirationTimestamp"); !expires.empty()) {
    // A year that ParseTime does not read is as good as never.
    std::string near = expires;
    if (ParseInt(near.substr(0, 4)).value_or(0) > 2150) near.replace(0, 4, "2150");
    const auto time = ParseTime(near);
    if (!time) return refuse("an RFC 3339 status.expirationTimestamp, got: " + expires);
    out.expires = *time;
  }
  return out;
}

Result<ExecCredential> RunExecPlugin(const ExecPlugin& plugin, const ClientConfig& cluster,
                                     Duration timeout) {
  const std::string where = "exec plugin " + plugin.command;
  Pipe pipe;
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return ErrnoStatus(errno, "pipe", where);
  pipe.read_end = ends[0];
  pipe.write_end = ends[1];

  std::vector<std::string> environment;
  for (char** e = environ; *e != nullptr; ++e) environment.emplace_back(*e);
  for (const auto& [name, value] : plugin.env) environment.push_back(name + "=" + value);
  environment.push_back("KUBERNETES_EXEC_INFO=" + ExecInfo(plugin, cluster));
  std::vector<std::string> arguments = {plugin.command};
  arguments.insert(arguments.end(), plugin.args.begin(), plugin.args.end());
  const auto pointers = [](std::vector<std::string>& strings) {
    std::vector<char*> out;
    for (std::string& s : strings) out.push_back(s.data());
    out.push_back(nullptr);
    return out;
  };
  std::vector<char*> argv = pointers(arguments);
  std::vector<char*> envp = pointers(environment);

  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_adddup2(&actions, pipe.write_end, STDOUT_FILENO);
  pid_t pid = 0;
  const int error =
      posix_spawnp(&pid, plugin.command.c_str(), &actions, nullptr, argv.data(), envp.data());
  posix_spawn_file_actions_destroy(&actions);
  if (error != 0) {
    return Status(StatusCode::kUnauthenticated,
                  ErrnoStatus(error, "cannot start", where).message());
  }
  pipe.CloseWrite();

  std::string output;
  int exit_status = 0;
  const Duration end = SystemClock().Monotonic() + timeout;
  Status ended = ReadAll(pipe.read_end, end, output);
  if (ended.ok()) ended = WaitFor(pid, end, exit_status);
  if (!ended.ok()) {
    kill(pid, SIGKILL);
    while (waitpid(pid, &exit_status, 0) < 0 && errno == EINTR) {
    }
    return Status(StatusCode::kUnauthenticated, where + ": " + ended.message());
  }
  if (!WIFEXITED(exit_status) || WEXITSTATUS(exit_status) != 0) {
    return Status(StatusCode::kUnauthenticated,
                  where + ": expected exit code 0, got: " +
                      (WIFEXITED(exit_status) ? std::to_string(WEXITSTATUS(exit_status))
                                              : "signal " + std::to_string(WTERMSIG(exit_status))));
  }
  Result<ExecCredential> credential = ParseExecCredential(output, plugin.api_version);
  if (!credential.ok()) return credential.status().At(plugin.command);
  return credential;
}

Credentials::Credentials(ClientConfig config, Clock& clock)
    : config_(std::move(config)), clock_(clock) {}

// The lock is held while files are read and a plugin runs: whoever needs a credential has to wait
// for it anyway, and one run serves them all.
Result<Credential> Credentials::Current() {
  MutexLock lock(mutex_);
  const TimePoint now = clock_.Now();
  if (have_ && now < fetch_again_) return current_;
  Result<Credential> fetched = Fetch(now);
  if (!fetched.ok()) {
    // A file that is being replaced, or a plugin that fails once: the last credential may still be
    // good.
    if (!have_ || config_.exec) return fetched;
    fetch_again_ = now + std::chrono::seconds(1);
    return current_;
  }
  have_ = true;
  current_ = *fetched;
  return fetched;
}

void Credentials::Refused(const Credential& credential) {
  MutexLock lock(mutex_);
  if (have_ && credential == current_) fetch_again_ = TimePoint::min();
}

Result<Credential> Credentials::Fetch(TimePoint now) {
  Credential out;
  // Ours only once all has come: a plugin that fails is run again at the next call.
  TimePoint again = TimePoint::max();
  const auto read = [&](const std::string& file, const std::string& data,
                        std::string& text) -> Status {
    text = data;
    if (file.empty()) return OkStatus();
    MT_ASSIGN_OR_RETURN(text, ReadFile(file, kMaxBytes));
    again = now + std::chrono::minutes(1);
    return OkStatus();
  };
  MT_RETURN_IF_ERROR(
      read(config_.client_certificate_file, config_.client_certificate_data, out.certificate));
  MT_RETURN_IF_ERROR(read(config_.client_key_file, config_.client_key_data, out.key));
  std::string token;
  MT_RETURN_IF_ERROR(read(config_.token_file, config_.token, token));
  token = std::string(Trim(token));
  if (config_.exec) {
    MT_ASSIGN_OR_RETURN(ExecCredential plugin,
                        RunExecPlugin(*config_.exec, config_, std::chrono::minutes(1)));
    if (!plugin.token.empty()) token = plugin.token;
    if (!plugin.certificate.empty()) {
      out.certificate = plugin.certificate;
      out.key = plugin.key;
    }
    // A little early, so that no request leaves with a credential that expires on its way; but not
    // for every request where our clock and the plugin's are far apart. One that the server refuses
    // is fetched anew at once.
    if (plugin.expires != TimePoint::max()) {
      again = std::max(plugin.expires - std::chrono::seconds(10), now + kShortestUse);
    }
  }
  if (!token.empty()) {
    out.authorization = "Bearer " + token;
  } else if (!config_.username.empty()) {
    out.authorization = "Basic " + EncodeBase64(config_.username + ":" + config_.password);
  }
  fetch_again_ = again;
  return out;
}

}  // namespace meshtrain::kube
