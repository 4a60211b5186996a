// The connections of a gRPC server on which no call has been proven yet: a stranger's are no
// others. Each may stay for kProveWithin, and at most kMost are kept; one more ends the oldest. Who
// means well says its first call at once, so it is the silent that go; and none goes within
// kLeastStay, for which new ones wait in the kernel's queue.
//
// gRPC owns the connections. What is kept here is a second descriptor of each, until it is proven
// or over: shutting that down ends the connection for gRPC too. Thread-safe.
#pragma once

#include <sys/socket.h>

#include <cstddef>
#include <cstdint>
#include <list>
#include <optional>
#include <string>

#include "runtime/base/clock.h"
#include "runtime/base/mutex.h"
#include "runtime/base/status.h"

namespace meshtrain::rpc {

class HalfOpen {
 public:
  static constexpr size_t kMost = 256;
  static constexpr Duration kProveWithin = std::chrono::seconds(10);
  static constexpr Duration kLeastStay = std::chrono::milliseconds(250);

  HalfOpen() = default;
  ~HalfOpen();
  HalfOpen(const HalfOpen&) = delete;
  HalfOpen& operator=(const HalfOpen&) = delete;

  // A connection that was just accepted, and who its other end is; where there are kMost, the
  // oldest ends. Errors: kUnavailable (no file descriptor is left).
  Status Add(int fd, const sockaddr_storage& peer, Duration now);
  // A call of this peer ("ipv4:10.0.0.1:4711", as gRPC names it) was proven.
  void Prove(const std::string& peer);
  // Ends those whose time is up, and forgets those that their peers have ended.
  void EndExpired(Duration now);
  // Until when nobody new is to be accepted; nothing: there is room.
  std::optional<Duration> FullUntil(Duration now) const;

  size_t size() const;
  int64_t ended() const;  // since creation: connections that were ended unproven

 private:
  struct Connection {
    int fd = -1;
    std::string peer;
    Duration since{};
  };
  void EndOldest() MT_REQUIRES(mutex_);

  mutable Mutex mutex_;
  std::list<Connection> connections_ MT_GUARDED_BY(mutex_);  // the oldest first
  int64_t ended_ MT_GUARDED_BY(mutex_) = 0;
};

// As gRPC names a peer, without IPv6's brackets, escapes and scope: "ipv4:10.0.0.1:4711",
// "ipv6:fe80::1:4711". An IPv4 address within IPv6 is an IPv4 address.
std::string PeerName(const sockaddr_storage& peer);
// gRPC's own words for a peer, in that form.
std::string PlainPeerName(const std::string& peer);

}  // namespace meshtrain::rpc
