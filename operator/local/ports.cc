#include "operator/local/ports.h"

#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <cstring>
#include <string>

#include "runtime/base/file.h"

namespace meshtrain::local {
namespace {

constexpr int kFirst = 10000;
constexpr int kLast = 65535;
constexpr int kEnough = 2000;

PortRange RangeHere() {
  int low = 32768;
  int high = 60999;
  if (const auto text = ReadFile("/proc/sys/net/ipv4/ip_local_port_range", 4096); text.ok()) {
    std::sscanf(text->c_str(), "%d %d", &low, &high);
  }
  return ChoosePortRange(low, high);
}

// The claim's socket; -1 where somebody else has it.
int Claim(int port) {
  const int fd = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return -1;
  sockaddr_un address{.sun_family = AF_UNIX};
  const std::string name = "meshtrain-port-" + std::to_string(port);
  std::memcpy(address.sun_path + 1, name.data(),
              name.size());  // a leading zero: abstract (unix(7))
  const auto size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  if (::bind(fd, reinterpret_cast<sockaddr*>(&address), size) == 0) return fd;
  ::close(fd);
  return -1;
}

}  // namespace

PortRange ChoosePortRange(int low, int high) {
  if (low - kFirst >= kEnough) return {kFirst, low - 1};
  if (kLast - high >= kEnough) return {std::max(high + 1, kFirst), kLast};
  return {kFirst, kLast};
}

bool IsFreePort(int port) {
  const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return false;
  sockaddr_in address{.sin_family = AF_INET, .sin_port = htons(static_cast<uint16_t>(port))};
  address.sin_addr.s_addr = htonl(INADDR_ANY);
  const bool bound = ::bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0;
  ::close(fd);
  return bound;
}

PortReservation::PortReservation() : random_(std::random_device()()) {}

PortReservation::~PortReservation() {
  for (const int claim : claims_) ::close(claim);
}

Result<int> PortReservation::Take() {
  const PortRange range = RangeHere();
  std::uniform_int_distribution<int> any(range.first, range.last);
  for (int tries = 0; tries < 1000; ++tries) {
    const int port = any(random_);
    const int claim = Claim(port);
    if (claim < 0) continue;
    if (IsFreePort(port)) {
      claims_.push_back(claim);
      return port;
    }
    ::close(claim);
  }
  return ResourceExhausted("loopback: expected a free port in " + std::to_string(range.first) +
                           "-" + std::to_string(range.last) +
                           ", got: none in 1000 tries (are file descriptors left?)");
}

}  // namespace meshtrain::local
