#include "operator/control/progress_puller.h"

#include <httplib.h>

#include <algorithm>

namespace meshtrain::control {
namespace {
constexpr size_t kMaxBytes = 64 << 10;
}  // namespace

Result<std::string> FetchProgressOverHttp(const ProgressTarget& target, std::stop_token stop) {
  httplib::Client client(target.ip, target.port);
  client.set_connection_timeout(std::chrono::seconds(1));
  client.set_read_timeout(std::chrono::seconds(1));
  client.set_follow_location(false);
  client.set_decompress(false);
  std::string body;
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(2);
  std::stop_callback on_stop(stop, [&] { client.stop(); });
  const httplib::Result result =
      client.Get("/progress",
                 httplib::Headers{{"Accept", "application/json"}, {"Accept-Encoding", "identity"}},
                 [&](const char* data, size_t size) {
                   body.append(data, size);
                   return body.size() <= kMaxBytes && std::chrono::steady_clock::now() < until;
                 });
  const std::string where = "http://" + target.ip + ":" + std::to_string(target.port) + "/progress";
  if (!result) {
    return Unavailable(where + ": expected an answer, got: " + httplib::to_string(result.error()));
  }
  if (result->status != 200) {
    return Unavailable(where + ": expected 200, got: " + std::to_string(result->status));
  }
  return body;
}

ProgressPuller::ProgressPuller(const Store& store, Clock& clock, FetchProgress fetch,
                               ParseProgress parse,
                               std::function<void(const std::string& key)> wake, Duration period)
    : store_(store),
      clock_(clock),
      fetch_(std::move(fetch)),
      parse_(std::move(parse)),
      wake_(std::move(wake)),
      period_(period),
      queue_(clock) {}

void ProgressPuller::Follow(const std::string& key) {
  const auto target = store_.Leader(key);
  if (!target) return;
  {
    MutexLock lock(mutex_);
    if (!followed_.try_emplace(key).second) return;
  }
  queue_.AddAfter(key, period_);
}

void ProgressPuller::Forget(const std::string& key) {
  MutexLock lock(mutex_);
  followed_.erase(key);
}

std::optional<reconcile::ProgressSeen> ProgressPuller::Last(const std::string& key) const {
  MutexLock lock(mutex_);
  const auto it = followed_.find(key);
  return it == followed_.end() ? std::nullopt : it->second.last;
}

void ProgressPuller::Run(std::stop_token stop) {
  while (const auto key = queue_.Take(stop)) {
    const auto target = store_.Leader(*key);
    if (!target) {
      // Between two attempts, or over: the next look at the job with a leader follows it again.
      Forget(*key);
      queue_.Done(*key);
      continue;
    }
    const Result<std::string> text = fetch_(*target, stop);
    bool changed = false;
    Duration next = period_;
    {
      MutexLock lock(mutex_);
      const auto it = followed_.find(*key);
      if (it == followed_.end()) {
        queue_.Done(*key);
        continue;
      }
      Followed& followed = it->second;
      if (followed.pod_uid != target->pod_uid) followed = {.pod_uid = target->pod_uid};
      std::optional<reconcile::ProgressSeen> parsed;
      if (text.ok()) parsed = parse_(*text, clock_.Now());
      if (parsed) {
        followed.failures = 0;
        changed = *text != followed.text;
        followed.text = *text;
        followed.last = std::move(parsed);
      } else {
        ++followed.failures;
        next = std::min(period_ * 12, period_ * (1 << std::min(followed.failures, 4)));
      }
    }
    if (changed) wake_(*key);
    queue_.Done(*key);
    queue_.AddAfter(*key, next);
  }
}

}  // namespace meshtrain::control
