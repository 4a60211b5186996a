#include "operator/local/progress.h"

#include <netdb.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <memory>
#include <utility>

#include "operator/reconcile/progress.h"
#include "runtime/base/text.h"
#include "runtime/base/thread.h"
#include "runtime/cluster/tf_config.h"
#include "runtime/telemetry/progress_fetch.h"

namespace meshtrain::local {
namespace {

struct Target {
  std::string ip;
  int port = 0;
};

// All that "HOST:PORT" may stand for. Looking up a name takes the time that the resolver takes.
std::vector<Target> LookUp(const std::string& address) {
  std::vector<Target> targets;
  const size_t colon = address.rfind(':');
  if (colon == std::string::npos) return targets;
  const std::string host(cluster::HostOf(address));
  const auto port = ParseInt(std::string_view(address).substr(colon + 1));
  addrinfo hints{}, *found = nullptr;
  hints.ai_socktype = SOCK_STREAM;
  const char* name = host.empty() ? nullptr : host.c_str();  // none: this machine
  if (!port || ::getaddrinfo(name, "0", &hints, &found) != 0) return targets;
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> all(found, ::freeaddrinfo);
  for (const addrinfo* one = found; one != nullptr; one = one->ai_next) {
    char ip[NI_MAXHOST];
    if (::getnameinfo(one->ai_addr, one->ai_addrlen, ip, sizeof ip, nullptr, 0, NI_NUMERICHOST) ==
        0) {
      targets.push_back({ip, static_cast<int>(*port)});
    }
  }
  return targets;
}

}  // namespace

LoopbackPuller::LoopbackPuller(Duration period)
    : period_(period), event_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {}

Status LoopbackPuller::Start() {
  MT_ASSIGN_OR_RETURN(thread_, StartThread("progress", [this](std::stop_token s) { Work(s); }));
  return OkStatus();
}

LoopbackPuller::~LoopbackPuller() {
  thread_.request_stop();
  if (thread_.joinable()) thread_.join();
  if (event_ >= 0) ::close(event_);
}

void LoopbackPuller::Ask(std::vector<std::string> addresses) {
  MutexLock lock(mutex_);
  if (addresses == addresses_) return;
  addresses_ = std::move(addresses);
  ++version_;
  answer_.reset();
  changed_.NotifyAll();
}

std::optional<reconcile::ProgressSeen> LoopbackPuller::Take() {
  uint64_t count = 0;
  if (::read(event_, &count, sizeof count) < 0) count = 0;  // EAGAIN: nothing new
  MutexLock lock(mutex_);
  return std::exchange(answer_, std::nullopt);
}

void LoopbackPuller::Work(std::stop_token stop) {
  int64_t version = -1;
  std::vector<Target> targets;
  while (!stop.stop_requested()) {
    std::optional<std::vector<std::string>> newer;
    {
      // A new list is asked at once, and then every period.
      MutexLock lock(mutex_);
      const bool asking = !addresses_.empty();
      changed_.WaitFor(mutex_, stop, asking ? period_ : Duration(std::chrono::hours(1)),
                       [&]() MT_REQUIRES(mutex_) { return version != version_; });
      if (stop.stop_requested()) return;
      if (std::exchange(version, version_) != version_) newer = addresses_;
    }
    if (newer) {
      targets.clear();
      for (const std::string& address : *newer) {
        const std::vector<Target> found = LookUp(address);
        targets.insert(targets.end(), found.begin(), found.end());
      }
    }
    for (const Target& target : targets) {
      const auto body = telemetry::FetchProgress(target.ip, target.port, stop);
      if (!body.ok()) continue;
      const auto seen = reconcile::ParseProgress(*body, SystemClock().Now());
      if (!seen) continue;
      {
        MutexLock lock(mutex_);
        if (version == version_) answer_ = seen;
      }
      const uint64_t one = 1;
      if (::write(event_, &one, sizeof one) < 0) break;  // full: whoever reads will be woken anyway
      break;
    }
  }
}

}  // namespace meshtrain::local
