// Loopback ports that processes started later will listen on.
//
// What is guaranteed while a PortReservation lives:
//   - the kernel gives none of its ports to anybody who asks for "any free port", nor uses it for
//     an outgoing connection: they lie outside of net.ipv4.ip_local_port_range;
//   - no other PortReservation in this network namespace, of any process or user, holds it: each
//     port is claimed by an abstract UNIX socket named after it, which the kernel takes back when
//     its holder dies;
//   - when it was taken nobody listened there, on loopback or on any address.
// What is not: a program that asks for this very number may come first. Servers need no special
// socket option, since nothing of ours is bound to the port itself.
#pragma once

#include <random>
#include <vector>

#include "runtime/base/status.h"

namespace meshtrain::local {

class PortReservation {
 public:
  PortReservation();
  ~PortReservation();
  PortReservation(PortReservation&& other) noexcept
      : random_(other.random_), claims_(std::move(other.claims_)) {
    other.claims_.clear();
  }
  PortReservation& operator=(PortReservation&&) = delete;

  // One more port. Errors: kResourceExhausted when none was found in many tries.
  Result<int> Take();

 private:
  std::mt19937_64 random_;
  std::vector<int> claims_;  // sockets
};

// The ports to choose from: unprivileged, clear of well-known ones and of the kernel's own range
// `low..high`; of those below it where there are enough, else of those above; where the range
// leaves too few, all. Pure.
struct PortRange {
  int first = 0;
  int last = 0;
  friend bool operator==(const PortRange&, const PortRange&) = default;
};
PortRange ChoosePortRange(int low, int high);

// Nobody is bound to it, on any address.
bool IsFreePort(int port);

}  // namespace meshtrain::local
