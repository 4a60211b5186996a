// Leader election on a coordination.k8s.io/v1 Lease, with client-go's protocol and constants: a
// holder renews every 2 s; others take over when the record has not changed for 15 s by their own
// clock (timestamps of other machines are never trusted); a holder that could not renew for 10 s
// stops before anybody can follow it. A holder that ends gracefully empties the record, so that its
// successor need not wait.
#pragma once

#include <atomic>
#include <functional>
#include <optional>
#include <stop_token>
#include <string>

#include "operator/kube/client.h"
#include "runtime/base/clock.h"
#include "runtime/base/status.h"

namespace meshtrain::kube {

struct LeaseOptions {
  std::string ns;
  std::string name;
  std::string identity;  // unique per process
  Duration lease_duration = std::chrono::seconds(15);
  Duration renew_deadline = std::chrono::seconds(10);
  Duration retry_period = std::chrono::seconds(2);
};

class LeaderElector {
 public:
  // `client` should serve nothing else: a renewal must not wait behind other requests.
  LeaderElector(Client& client, Clock& clock, LeaseOptions options);

  // Blocks until this process holds the lease, or stop (kCancelled). Calls `on_wait(holder)` when
  // another holder is first seen.
  Status Acquire(std::stop_token stop,
                 const std::function<void(const std::string& holder)>& on_wait = {});

  // Keeps the lease. Returns kCancelled on stop (the lease is still held; call Release when all
  // writes have ended), or kFailedPrecondition when it was lost.
  Status Hold(std::stop_token stop);

  // Gives the lease away, if it is still ours. Nothing may be written after.
  Status Release();

  // Whether a write may go out now. Any thread; false from renew_deadline after the last renewal
  // that succeeded was *sent*, whatever this process did meanwhile (it may have been stopped).
  bool Held() const;

 private:
  struct Record {
    std::string holder;
    int64_t transitions = 0;
    Duration duration{};
    std::string acquire_time;
    std::string renew_time;
    std::string resource_version;
    std::string marks;  // labels, annotations and owners that others gave it, as JSON: they stay
    friend bool operator==(const Record&, const Record&) = default;
  };
  // One try. OK: the lease is ours. kFailedPrecondition: somebody else's.
  Status TryOnce(std::stop_token stop);
  std::string Body(const Record& record) const;
  void Observe(const Record& record);
  static std::optional<Record> Parse(std::string_view text);

  Client& client_;
  Clock& clock_;
  const LeaseOptions options_;
  std::optional<Record> seen_;  // as last seen, and when it last changed by our clock
  Duration seen_at_{};
  std::atomic<int64_t> held_until_{INT64_MIN};  // Monotonic nanoseconds
};

}  // namespace meshtrain::kube
