#include "operator/control/informer.h"

#include <algorithm>
#include <random>

#include "runtime/base/log.h"
#include "runtime/base/text.h"

namespace meshtrain::control {
namespace {

constexpr Duration kFirstBackoff = std::chrono::milliseconds(800);
constexpr Duration kLongestBackoff = std::chrono::seconds(30);
constexpr Duration kForgetBackoffAfter = std::chrono::minutes(2);

// Exponential with a jitter of 1: between once and twice the step.
class Backoff {
 public:
  explicit Backoff(Clock& clock) : clock_(clock), random_(std::random_device{}()) {}
  Duration Next() {
    const Duration now = clock_.Monotonic();
    if (now - last_ > kForgetBackoffAfter) step_ = kFirstBackoff;
    last_ = now;
    const Duration step = step_;
    step_ = std::min(step_ * 2, kLongestBackoff);
    return step +
           Duration(static_cast<int64_t>(static_cast<double>(step.count()) *
                                         std::uniform_real_distribution<>(0.0, 1.0)(random_)));
  }

 private:
  Clock& clock_;
  std::minstd_rand random_;
  Duration step_ = kFirstBackoff;
  Duration last_{};
};

// Between 5 and 10 minutes, so that the watches of many processes do not end together.
Duration WatchTimeout() {
  thread_local std::minstd_rand random(std::random_device{}());
  return std::chrono::seconds(std::uniform_int_distribution<>(300, 600)(random));
}

}  // namespace

Informer::Informer(kube::Client& client, Clock& clock, InformerOptions options, Sink sink)
    : client_(client), clock_(clock), options_(std::move(options)), sink_(std::move(sink)) {}

Status Informer::ListOnce(std::stop_token stop) {
  ++lists_;
  sink_.begin_list();
  Result<std::string> version = client_.List(
      options_.resource, {.ns = options_.ns, .label_selector = options_.label_selector},
      sink_.listed, sink_.begin_list, {.stop = stop, .timeout = std::chrono::seconds(60)});
  if (!version.ok()) return version.status();
  sink_.end_list(ParseInt(*version).value_or(0));
  version_ = *version;
  synced_ = true;
  return OkStatus();
}

void Informer::Run(std::stop_token stop) {
  Backoff backoff(clock_);
  const std::string& kind = options_.resource.plural;
  bool listed_for_410 = false;
  while (!stop.stop_requested()) {
    Status status;
    if (version_.empty()) {
      status = ListOnce(stop);
    } else {
      ++watches_;
      const Duration start = clock_.Monotonic();
      int64_t events = 0;
      status = client_.Watch(
          options_.resource,
          {.ns = options_.ns,
           .label_selector = options_.label_selector,
           .resource_version = version_,
           .server_timeout = WatchTimeout()},
          [&](kube::WatchEventType type, std::string_view version, std::string_view object) {
            ++events;
            listed_for_410 = false;
            sink_.watched(type, ParseInt(version).value_or(0), object);
            version_ = version;
          },
          stop);
      // A server that ends each stream at once would otherwise be asked in a circle.
      if (status.ok() && events == 0 && clock_.Monotonic() - start < std::chrono::seconds(1)) {
        status = Unavailable("watch ended at once");
      }
      if (status.code() == StatusCode::kOutOfRange) {
        version_.clear();
        if (!listed_for_410) {
          listed_for_410 = true;
          LogInfo("watch too old, listing again", {{"kind", kind}});
          continue;
        }
      }
    }
    if (status.ok() || stop.stop_requested()) continue;
    const bool absent =
        status.code() == StatusCode::kNotFound || status.code() == StatusCode::kPermissionDenied;
    LogWarning(version_.empty() ? "cannot list" : "watch ended",
               {{"kind", kind}, {"error", status.ToString()}});
    const bool patient = absent && (synced_ || !options_.needed);
    clock_.SleepFor(patient ? options_.absent_retry : backoff.Next(), stop);
  }
}

}  // namespace meshtrain::control
