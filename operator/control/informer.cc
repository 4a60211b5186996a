#include "operator/control/informer.h"

#include <algorithm>
#include <random>
#include <utility>

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
  sink_.end_list(ParseInt(*version).value_or(0), anew_);
  version_ = *version;
  anew_ = check_ = false;
  synced_ = true;
  return OkStatus();
}

Status Informer::WatchOnce(std::stop_token stop) {
  ++watches_;
  const Duration start = clock_.Monotonic();
  int64_t events = 0;
  Status status = client_.Watch(
      options_.resource,
      {.ns = options_.ns,
       .label_selector = options_.label_selector,
       .resource_version = version_,
       .server_timeout = WatchTimeout()},
      [&](kube::WatchEventType type, std::string_view version, std::string_view object) {
        ++events;
        listed_for_410_ = false;
        sink_.watched(type, ParseInt(version).value_or(0), object);
        version_ = version;
      },
      stop);
  // A server that ends each stream at once would otherwise be asked in a circle.
  if (status.ok() && events == 0 && clock_.Monotonic() - start < std::chrono::seconds(1)) {
    status = Unavailable("watch ended at once");
  }
  check_ = !status.ok();
  return status;
}

Status Informer::CheckVersion(std::stop_token stop) {
  Result<std::string> now = client_.Version(options_.resource, options_.ns, {.stop = stop});
  if (!now.ok()) {
    // Whatever became of the server, it may be another one that comes back.
    const StatusCode code = now.status().code();
    const bool away = code == StatusCode::kUnavailable || code == StatusCode::kUnknown;
    if (away && !std::exchange(anew_, true)) BeUnsure();
    return now.status();
  }
  check_ = false;
  const auto was = ParseInt(version_), is = ParseInt(*now);
  if (was && is && *is < *was) {
    LogWarning("versions fell, listing anew",
               {{"kind", options_.resource.plural}, {"was", version_}, {"is", *now}});
    anew_ = true;
  } else if (anew_) {
    LogInfo("the server was away, listing anew", {{"kind", options_.resource.plural}});
  }
  if (anew_) {
    version_.clear();
    BeUnsure();
    if (sink_.in_doubt) sink_.in_doubt();
  }
  return OkStatus();
}

void Informer::Doubt() {
  MutexLock lock(mutex_);
  ++doubts_;
  until_doubt_.request_stop();
}

bool Informer::sure() const {
  MutexLock lock(mutex_);
  return checked_ == doubts_;
}

std::stop_source Informer::UntilDoubt(uint64_t& doubts) {
  MutexLock lock(mutex_);
  doubts = doubts_;
  if (checked_ != doubts_ && !version_.empty()) check_ = true;
  until_doubt_ = std::stop_source();
  return until_doubt_;
}

void Informer::BeUnsure() {
  MutexLock lock(mutex_);
  ++doubts_;
}

void Informer::BeSure(uint64_t doubts) {
  MutexLock lock(mutex_);
  checked_ = std::max(checked_, doubts);
}

void Informer::Run(std::stop_token stop) {
  Backoff backoff(clock_);
  const std::string& kind = options_.resource.plural;
  const std::string of = options_.ns.empty() ? "all" : options_.ns;
  while (!stop.stop_requested()) {
    uint64_t doubts = 0;
    std::stop_source pause = UntilDoubt(doubts);
    const std::stop_callback ends(stop, [&pause] { pause.request_stop(); });
    const bool list = version_.empty();
    const bool checked = !list && check_;
    const Status status = list      ? ListOnce(stop)
                          : checked ? CheckVersion(stop)
                                    : WatchOnce(pause.get_token());
    if (status.ok() && !version_.empty() && (list || checked)) BeSure(doubts);
    if (status.ok() || stop.stop_requested()) continue;
    if (!list && !checked && pause.stop_requested()) continue;
    if (!list && status.code() == StatusCode::kOutOfRange) {
      version_.clear();
      if (!listed_for_410_) {
        listed_for_410_ = true;
        LogInfo("watch too old, listing again", {{"kind", kind}});
        continue;
      }
    }
    // At once: the longer it takes, the more may be written, and the less do versions that fell
    // show.
    if (!list && !version_.empty() && !checked) (void)CheckVersion(stop).ok();
    const bool absent =
        status.code() == StatusCode::kNotFound || status.code() == StatusCode::kPermissionDenied;
    if (absent) BeSure(doubts);  // nothing is known of it
    const char* what = list ? "cannot list" : "watch ended";
    // What a server must not do is an error; what networks do is not.
    const bool broken = status.code() == StatusCode::kDataLoss;
    Log(broken ? LogLevel::kError : LogLevel::kWarning, what,
        {{"kind", kind}, {"namespace", of}, {"error", status.ToString()}});
    const bool patient = absent && (synced_ || !options_.needed);
    clock_.SleepFor(patient ? options_.absent_retry : backoff.Next(), pause.get_token());
  }
}

}  // namespace meshtrain::control
