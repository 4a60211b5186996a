#include "operator/kube/events.h"

#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "runtime/base/log.h"
#include "runtime/base/time_text.h"

namespace meshtrain::kube {
namespace {

using nlohmann::json;

constexpr size_t kMaxKnown = 4096;
constexpr size_t kSimilarBeforeCombined = 10;
constexpr Duration kSimilarWindow = std::chrono::minutes(10);
constexpr double kBurst = 25;
constexpr double kTokensPerSecond = 1.0 / 300;
constexpr size_t kMaxWaiting = 1000;
constexpr size_t kMaxMessage = 1024;  // the API server refuses longer ones
constexpr std::string_view kCombined = "(combined from similar events): ";

// Forgetting everything now and then bounds memory; the price is that a repeated event is created
// once more.
template <typename Map>
void Bound(Map& map) {
  if (map.size() > kMaxKnown) map.clear();
}

}  // namespace

std::optional<EventCorrelator::Send> EventCorrelator::Correlate(const Event& event, TimePoint now) {
  Bound(known_);
  Bound(similar_);
  Bound(buckets_);
  Event sent = event;
  if (sent.message.size() > kMaxMessage) sent.message.resize(kMaxMessage);

  Event kind = sent;
  kind.message.clear();
  Similar& similar = similar_[kind];
  if (now - similar.last > kSimilarWindow) similar.messages.clear();
  similar.last = now;
  similar.messages.emplace(sent.message, true);
  const bool combine = similar.messages.size() >= kSimilarBeforeCombined;
  if (combine) {
    // Any of them may grow the set further only by its key, and one key more is not needed.
    if (similar.messages.size() > kSimilarBeforeCombined) similar.messages.erase(sent.message);
    sent.message = std::string(kCombined) + sent.message;
    if (sent.message.size() > kMaxMessage) sent.message.resize(kMaxMessage);
  }
  Event key = sent;
  if (combine) key.message = kCombined;

  auto [at, is_new] = buckets_.try_emplace(sent.about, Bucket{kBurst, now});
  Bucket& bucket = at->second;
  if (!is_new) {
    const double seconds = std::chrono::duration<double>(now - bucket.last).count();
    bucket.tokens = std::min(kBurst, bucket.tokens + std::max(0.0, seconds) * kTokensPerSecond);
    bucket.last = now;
  }

  Known& known = known_[key];
  if (known.count == 0) {
    char suffix[40];
    std::snprintf(suffix, sizeof suffix, ".%llx%llx",
                  static_cast<unsigned long long>(now.time_since_epoch().count()),
                  static_cast<unsigned long long>(named_++ & 0xff));
    // An object's name may be as long as an event's; the suffix must fit.
    known.event_name = sent.about.name.substr(0, 253 - sizeof suffix) + suffix;
    known.first = now;
  }
  ++known.count;
  if (bucket.tokens < 1) return std::nullopt;
  bucket.tokens -= 1;
  return Send{.event_name = known.event_name,
              .event = sent,
              .count = known.count,
              .first = known.first,
              .last = now};
}

EventRecorder::EventRecorder(Client& client, Clock& clock, std::string component)
    : client_(client),
      clock_(clock),
      component_(std::move(component)),
      thread_([this](std::stop_token stop) { Run(stop); }) {}

EventRecorder::~EventRecorder() = default;

void EventRecorder::Record(Event event) {
  MutexLock lock(mutex_);
  if (waiting_.size() >= kMaxWaiting) {
    ++dropped_;
    return;
  }
  waiting_.push_back(std::move(event));
  changed_.NotifyAll();
}

bool EventRecorder::Flush(Duration timeout) {
  MutexLock lock(mutex_);
  return changed_.WaitFor(mutex_, std::stop_token(), timeout,
                          [this]() MT_REQUIRES(mutex_) { return waiting_.empty() && !busy_; });
}

void EventRecorder::Run(std::stop_token stop) {
  while (!stop.stop_requested()) {
    std::list<Event> next;
    int64_t dropped = 0;
    {
      MutexLock lock(mutex_);
      busy_ = false;
      changed_.NotifyAll();
      changed_.WaitFor(mutex_, stop, std::chrono::hours(1),
                       [this]() MT_REQUIRES(mutex_) { return !waiting_.empty(); });
      if (stop.stop_requested()) return;
      if (waiting_.empty()) continue;
      next.splice(next.begin(), waiting_, waiting_.begin());
      busy_ = true;
      std::swap(dropped, dropped_);
    }
    if (dropped > 0) LogWarning("events dropped", {{"count", std::to_string(dropped)}});
    SendOne(next.front(), stop);
  }
}

void EventRecorder::SendOne(const Event& event, std::stop_token stop) {
  const auto send = correlator_.Correlate(event, clock_.Now());
  if (!send) return;
  const Event& e = send->event;
  const CallOptions call{.stop = stop, .timeout = std::chrono::seconds(10)};
  if (send->count > 1) {
    const json patch = {
        {"count", send->count}, {"lastTimestamp", FormatTime(send->last)}, {"message", e.message}};
    const Status patched =
        client_
            .Patch(Events(), e.about.ns, send->event_name, "", PatchType::kMerge,
                   patch.dump(-1, ' ', false, json::error_handler_t::replace), call)
            .status();
    // Events live for an hour: one that has gone is made again.
    if (patched.code() != StatusCode::kNotFound) {
      if (!patched.ok() && !stop.stop_requested()) {
        LogWarning("event not sent", {{"error", patched.ToString()}});
      }
      return;
    }
  }
  const json body = {{"apiVersion", "v1"},
                     {"kind", "Event"},
                     {"metadata", {{"name", send->event_name}, {"namespace", e.about.ns}}},
                     {"involvedObject",
                      {{"apiVersion", e.about.api_version},
                       {"kind", e.about.kind},
                       {"namespace", e.about.ns},
                       {"name", e.about.name},
                       {"uid", e.about.uid}}},
                     {"type", e.warning ? "Warning" : "Normal"},
                     {"reason", e.reason},
                     {"message", e.message},
                     {"count", send->count},
                     {"firstTimestamp", FormatTime(send->first)},
                     {"lastTimestamp", FormatTime(send->last)},
                     {"source", {{"component", component_}}},
                     {"reportingComponent", component_}};
  const Status created =
      client_
          .Create(Events(), e.about.ns, body.dump(-1, ' ', false, json::error_handler_t::replace),
                  call)
          .status();
  if (!created.ok() && created.code() != StatusCode::kAlreadyExists && !stop.stop_requested()) {
    LogWarning("event not sent", {{"error", created.ToString()}});
  }
}

}  // namespace meshtrain::kube
