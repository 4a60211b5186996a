#include "tests/runtime/membership/membership_testing.h"

#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <utility>

#include "runtime/base/check.h"

namespace meshtrain::membership {

ReservedPort::ReservedPort() : fd_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
  const int on = 1;
  MT_CHECK(setsockopt(fd_, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) == 0);
  sockaddr_in address{.sin_family = AF_INET};
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  MT_CHECK(bind(fd_, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0);
  socklen_t size = sizeof address;
  MT_CHECK(getsockname(fd_, reinterpret_cast<sockaddr*>(&address), &size) == 0);
  port_ = ntohs(address.sin_port);
}

ReservedPort::ReservedPort(ReservedPort&& other) noexcept
    : fd_(std::exchange(other.fd_, -1)), port_(other.port_) {}

ReservedPort::~ReservedPort() {
  if (fd_ >= 0) close(fd_);
}

cluster::ClusterSpec ChiefAndWorkers(const std::string& chief_address, int workers) {
  cluster::ClusterSpec out;
  out.hosts[cluster::Role::kChief][0] = chief_address;
  for (int i = 0; i < workers; ++i) {
    out.hosts[cluster::Role::kWorker][i] = "worker-" + std::to_string(i) + ":2222";
  }
  return out;
}

Environment EnvironmentOf(std::map<std::string, std::string> variables) {
  return [variables = std::move(variables)](std::string_view name) -> std::optional<std::string> {
    const auto it = variables.find(std::string(name));
    return it == variables.end() ? std::nullopt : std::optional(it->second);
  };
}

Environment EnvironmentOfWorker(const std::vector<ReservedPort>& ports, int index) {
  std::string hosts;
  for (const ReservedPort& p : ports) hosts += (hosts.empty() ? "\"" : ",\"") + p.address() + "\"";
  return EnvironmentOf({{"TF_CONFIG", "{\"cluster\":{\"worker\":[" + hosts +
                                          "]},\"task\":{\"type\":\"worker\",\"index\":" +
                                          std::to_string(index) + "}}"}});
}

Status ThreadBarrier::ArriveAndWait() {
  MutexLock lock(mutex_);
  --missing_;
  all_here_.NotifyAll();
  if (all_here_.WaitFor(mutex_, {}, std::chrono::minutes(1),
                        [this]() MT_REQUIRES(mutex_) { return missing_ <= 0; })) {
    return OkStatus();
  }
  return DeadlineExceeded("meeting: " + std::to_string(missing_) + " did not come");
}

MembershipOptions OptionsFor(const cluster::ClusterSpec& cluster, cluster::TaskId task) {
  return {.config = {.cluster = cluster, .task = task},
          .security = {.token = "s3cret"},
          .job = "ml/test",
          .data_address = "data-of-" + cluster::ToString(task) + ":1",
          .host = "host-of-" + cluster::ToString(task),
          .join_timeout = std::chrono::seconds(60),
          .peer_return = std::chrono::seconds(60)};
}

}  // namespace meshtrain::membership
