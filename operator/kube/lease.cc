#include "operator/kube/lease.h"

#include <nlohmann/json.hpp>
#include <random>

#include "runtime/base/log.h"
#include "runtime/base/time_text.h"

namespace meshtrain::kube {
namespace {

using nlohmann::json;

// client-go's JitterFactor for those who wait.
constexpr double kJitter = 1.2;
// Whoever ends is not kept up for longer, and its last call gets at least so much of it.
constexpr Duration kReleaseTakes = std::chrono::seconds(3);
constexpr Duration kShortestCall = std::chrono::milliseconds(100);

Duration Jittered(Duration period) {
  thread_local std::minstd_rand random(std::random_device{}());
  return Duration(static_cast<int64_t>(static_cast<double>(period.count()) *
                                       std::uniform_real_distribution<>(1.0, kJitter)(random)));
}

template <typename T>
T Field(const json& object, const char* key, T fallback) {
  const auto it = object.find(key);
  if (it == object.end()) return fallback;
  if constexpr (std::is_same_v<T, std::string>) {
    return it->is_string() ? it->get<std::string>() : fallback;
  } else {
    return it->is_number_integer() ? it->get<T>() : fallback;
  }
}

// What of a Lease's metadata is not the API server's.
std::string MarksOf(const json& metadata) {
  json marks = json::object();
  for (const char* field : {"labels", "annotations", "ownerReferences"}) {
    if (const auto found = metadata.find(field); found != metadata.end()) marks[field] = *found;
  }
  return marks.empty() ? std::string() : marks.dump();
}

Status NoLease(const std::string& name, std::string_view got) {
  return Unavailable("lease " + name +
                     ": expected a Lease, got: " + std::string(got.substr(0, 200)))
      .From(Origin::kApiServer);
}

}  // namespace

LeaderElector::LeaderElector(Client& client, Clock& clock, LeaseOptions options)
    : client_(client), clock_(clock), options_(std::move(options)) {}

std::optional<LeaderElector::Record> LeaderElector::Parse(std::string_view text) {
  const json lease = json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!lease.is_object() || !lease.contains("metadata") || !lease["metadata"].is_object()) {
    return std::nullopt;
  }
  Record record;
  record.resource_version = Field<std::string>(lease["metadata"], "resourceVersion", "");
  record.marks = MarksOf(lease["metadata"]);
  if (lease.contains("spec") && lease["spec"].is_object()) {
    const json& spec = lease["spec"];
    record.holder = Field<std::string>(spec, "holderIdentity", "");
    record.transitions = Field<int64_t>(spec, "leaseTransitions", 0);
    record.duration = BoundedSeconds(Field<int64_t>(spec, "leaseDurationSeconds", 0));
    record.acquire_time = Field<std::string>(spec, "acquireTime", "");
    record.renew_time = Field<std::string>(spec, "renewTime", "");
  }
  return record;
}

std::string LeaderElector::Body(const Record& record) const {
  json metadata = record.marks.empty() ? json::object() : json::parse(record.marks);
  metadata["name"] = options_.name;
  metadata["namespace"] = options_.ns;
  if (!record.resource_version.empty()) metadata["resourceVersion"] = record.resource_version;
  return json{{"apiVersion", "coordination.k8s.io/v1"},
              {"kind", "Lease"},
              {"metadata", metadata},
              {"spec",
               {{"holderIdentity", record.holder},
                {"leaseDurationSeconds",
                 std::chrono::duration_cast<std::chrono::seconds>(record.duration).count()},
                {"acquireTime", record.acquire_time},
                {"renewTime", record.renew_time},
                {"leaseTransitions", record.transitions}}}}
      .dump();
}

void LeaderElector::Observe(const Record& record) {
  if (seen_ == record) return;
  seen_ = record;
  seen_at_ = clock_.Monotonic();
}

Status LeaderElector::TryOnce(std::stop_token stop) {
  const Duration sent = clock_.Monotonic();
  const std::string now = FormatTimeMicros(clock_.Now());
  const CallOptions call{.stop = stop, .timeout = options_.renew_deadline / 2};
  Record ours{.holder = options_.identity,
              .duration = options_.lease_duration,
              .acquire_time = now,
              .renew_time = now};

  const auto won = [&](const std::string& answer) {
    if (const auto record = Parse(answer)) Observe(*record);
    held_until_ = (sent + options_.renew_deadline).count();
    return OkStatus();
  };

  // A holder knows the record that it wrote last, and saves the read.
  if (seen_ && seen_->holder == options_.identity && Held()) {
    ours.transitions = seen_->transitions;
    ours.acquire_time = seen_->acquire_time;
    ours.resource_version = seen_->resource_version;
    ours.marks = seen_->marks;
    Result<std::string> answer =
        client_.Update(Leases(), options_.ns, options_.name, Body(ours), call);
    if (answer.ok()) return won(*answer);
    if (answer.status().code() != StatusCode::kAborted &&
        answer.status().code() != StatusCode::kNotFound) {
      return answer.status();
    }
  }

  Result<std::string> found = client_.Get(Leases(), options_.ns, options_.name, call);
  if (!found.ok()) {
    if (found.status().code() != StatusCode::kNotFound) return found.status();
    ours.resource_version.clear();
    Result<std::string> created = client_.Create(Leases(), options_.ns, Body(ours), call);
    if (!created.ok()) return created.status();
    return won(*created);
  }
  const auto record = Parse(*found);
  if (!record) {
    return NoLease(options_.name, *found);
  }
  Observe(*record);
  const bool mine = record->holder == options_.identity;
  const bool expired = clock_.Monotonic() >=
                       seen_at_ + std::max(record->duration, Duration(std::chrono::seconds(1)));
  if (!record->holder.empty() && !mine && !expired) {
    held_until_ = INT64_MIN;
    return FailedPrecondition("lease " + options_.name + ": held by " + record->holder);
  }
  ours.resource_version = record->resource_version;
  ours.marks = record->marks;
  ours.transitions = mine ? record->transitions : record->transitions + 1;
  if (mine) ours.acquire_time = record->acquire_time;
  Result<std::string> answer =
      client_.Update(Leases(), options_.ns, options_.name, Body(ours), call);
  if (!answer.ok()) return answer.status();
  return won(*answer);
}

Status LeaderElector::Acquire(std::stop_token stop,
                              const std::function<void(const std::string& holder)>& on_wait) {
  std::string told;
  while (!stop.stop_requested()) {
    const Status status = TryOnce(stop);
    if (status.ok()) return status;
    if (seen_ && !seen_->holder.empty() && seen_->holder != told && on_wait) {
      told = seen_->holder;
      on_wait(told);
    }
    if (status.code() != StatusCode::kFailedPrecondition && status.code() != StatusCode::kAborted &&
        status.code() != StatusCode::kCancelled) {
      LogWarning("cannot take the lease", {{"error", status.ToString()}});
    }
    clock_.SleepFor(Jittered(options_.retry_period), stop);
  }
  return Cancelled("lease " + options_.name + ": stopped while waiting for it");
}

Status LeaderElector::Hold(std::stop_token stop) {
  while (true) {
    if (!clock_.SleepFor(options_.retry_period, stop)) {
      return Cancelled("lease " + options_.name + ": stopped");
    }
    if (!Held()) break;
    const Status status = TryOnce(stop);
    if (status.ok()) continue;
    if (status.code() == StatusCode::kFailedPrecondition) return status.At("lost");
    if (stop.stop_requested()) return Cancelled("lease " + options_.name + ": stopped");
    LogWarning("cannot renew the lease", {{"error", status.ToString()}});
  }
  return FailedPrecondition("lease " + options_.name + ": not renewed in time");
}

Status LeaderElector::Release() {
  if (!Held() || !seen_ || seen_->holder != options_.identity) return OkStatus();
  held_until_ = INT64_MIN;
  const Duration end = clock_.Monotonic() + kReleaseTakes;
  const auto call = [&] {
    return CallOptions{.timeout = std::max(end - clock_.Monotonic(), kShortestCall)};
  };
  const auto empty = [&](const Record& ours) {
    const std::string now = FormatTimeMicros(clock_.Now());
    // A second, not the whole duration: whoever still reads the record as a holder's need not wait.
    const Record record{.holder = "",
                        .transitions = ours.transitions,
                        .duration = std::chrono::seconds(1),
                        .acquire_time = now,
                        .renew_time = now,
                        .resource_version = ours.resource_version,
                        .marks = ours.marks};
    return client_.Update(Leases(), options_.ns, options_.name, Body(record), call()).status();
  };
  const Status given = empty(*seen_);
  if (given.code() != StatusCode::kAborted) return given;
  // A renewal whose answer we did not wait for, or did not get, may have come through: then the
  // record is ours, but newer than the one that we know.
  MT_ASSIGN_OR_RETURN(const std::string found,
                      client_.Get(Leases(), options_.ns, options_.name, call()));
  const auto record = Parse(found);
  if (!record) {
    return NoLease(options_.name, found);
  }
  return record->holder == options_.identity ? empty(*record) : OkStatus();
}

bool LeaderElector::Held() const { return clock_.Monotonic().count() < held_until_.load(); }

}  // namespace meshtrain::kube
