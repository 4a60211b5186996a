#include "operator/local/progress.h"

#include <httplib.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <utility>

#include "operator/reconcile/progress.h"
#include "runtime/base/text.h"

namespace meshtrain::local {
namespace {

// As the operator's: operator/control/progress_puller.h.
constexpr size_t kMaxBytes = 64 << 10;
constexpr std::chrono::seconds kPatience{1};

std::optional<std::string> Get(const std::string& address, std::stop_token stop) {
  const size_t colon = address.rfind(':');
  const auto port = ParseInt(std::string_view(address).substr(colon + 1));
  if (colon == std::string::npos || !port) return std::nullopt;
  httplib::Client client(address.substr(0, colon), static_cast<int>(*port));
  client.set_connection_timeout(kPatience);
  client.set_read_timeout(kPatience);
  client.set_follow_location(false);
  client.set_decompress(false);
  std::string body;
  const auto until = std::chrono::steady_clock::now() + 2 * kPatience;
  std::stop_callback on_stop(stop, [&] { client.stop(); });
  const httplib::Result result =
      client.Get("/progress",
                 httplib::Headers{{"Accept", "application/json"}, {"Accept-Encoding", "identity"}},
                 [&](const char* data, size_t size) {
                   body.append(data, size);
                   return body.size() <= kMaxBytes && std::chrono::steady_clock::now() < until;
                 });
  if (!result || result->status != 200) return std::nullopt;
  return body;
}

}  // namespace

ProgressPuller::ProgressPuller(Duration period)
    : period_(period),
      event_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
      thread_([this](std::stop_token stop) { Work(stop); }) {}

ProgressPuller::~ProgressPuller() {
  thread_.request_stop();
  thread_.join();
  if (event_ >= 0) ::close(event_);
}

void ProgressPuller::Ask(std::vector<std::string> addresses) {
  MutexLock lock(mutex_);
  if (addresses == addresses_) return;
  addresses_ = std::move(addresses);
  ++version_;
  answer_.reset();
  changed_.NotifyAll();
}

std::optional<reconcile::ProgressSeen> ProgressPuller::Take() {
  uint64_t count = 0;
  if (::read(event_, &count, sizeof count) < 0) count = 0;  // EAGAIN: nothing new
  MutexLock lock(mutex_);
  return std::exchange(answer_, std::nullopt);
}

void ProgressPuller::Work(std::stop_token stop) {
  int64_t version = -1;
  while (!stop.stop_requested()) {
    std::vector<std::string> addresses;
    {
      // A new list is asked at once, and then every period.
      MutexLock lock(mutex_);
      const bool asking = !addresses_.empty();
      changed_.WaitFor(mutex_, stop, asking ? period_ : Duration(std::chrono::hours(1)),
                       [&]() MT_REQUIRES(mutex_) { return version != version_; });
      if (stop.stop_requested()) return;
      addresses = addresses_;
      version = version_;
    }
    for (const std::string& address : addresses) {
      const auto body = Get(address, stop);
      if (!body) continue;
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
