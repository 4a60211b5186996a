#include "runtime/rpc/half_open.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>
#include <vector>

namespace meshtrain::rpc {
namespace {

std::string_view PortIn(std::string_view peer) {
  const size_t colon = peer.rfind(':');
  return colon == std::string_view::npos ? peer : peer.substr(colon + 1);
}

}  // namespace

HalfOpen::~HalfOpen() {
  MutexLock lock(mutex_);
  for (const Connection& connection : connections_) close(connection.fd);
}

Status HalfOpen::Add(int fd, const sockaddr_storage& peer, Duration now) {
  const int second = fcntl(fd, F_DUPFD_CLOEXEC, 0);
  if (second < 0) {
    return Unavailable(std::string("a connection: expected a descriptor, got: ") +
                       std::strerror(errno));
  }
  MutexLock lock(mutex_);
  if (connections_.size() >= kMost) EndOldest();
  connections_.push_back({.fd = second, .peer = PeerName(peer), .since = now});
  return OkStatus();
}

void HalfOpen::EndOldest() {
  const Connection& oldest = connections_.front();
  shutdown(oldest.fd, SHUT_RDWR);
  close(oldest.fd);
  connections_.pop_front();
  ++ended_;
}

void HalfOpen::Prove(const std::string& peer) {
  const std::string name = PlainPeerName(peer);
  MutexLock lock(mutex_);
  // Where the two ways of naming a peer should ever differ, its port tells.
  size_t found = std::erase_if(connections_, [&](const Connection& c) {
    if (c.peer == name) close(c.fd);
    return c.peer == name;
  });
  if (found > 0) return;
  std::erase_if(connections_, [&](const Connection& c) {
    const bool same = PortIn(c.peer) == PortIn(name);
    if (same) close(c.fd);
    return same;
  });
}

void HalfOpen::EndExpired(Duration now) {
  MutexLock lock(mutex_);
  while (!connections_.empty() && now - connections_.front().since >= kProveWithin) EndOldest();
  std::vector<pollfd> polled;
  for (const Connection& c : connections_) {
    polled.push_back({.fd = c.fd, .events = POLLRDHUP, .revents = 0});
  }
  if (polled.empty() || poll(polled.data(), polled.size(), 0) <= 0) return;
  size_t i = 0;
  std::erase_if(connections_, [&](const Connection& c) {
    const bool over = polled[i++].revents != 0;
    if (over) close(c.fd);
    return over;
  });
}

std::optional<Duration> HalfOpen::FullUntil(Duration now) const {
  MutexLock lock(mutex_);
  if (connections_.size() < kMost) return std::nullopt;
  const Duration until = connections_.front().since + kLeastStay;
  return until > now ? std::optional(until) : std::nullopt;
}

size_t HalfOpen::size() const {
  MutexLock lock(mutex_);
  return connections_.size();
}

int64_t HalfOpen::ended() const {
  MutexLock lock(mutex_);
  return ended_;
}

std::string PeerName(const sockaddr_storage& peer) {
  char text[INET6_ADDRSTRLEN] = "";
  if (peer.ss_family == AF_INET) {
    const auto& four = reinterpret_cast<const sockaddr_in&>(peer);
    inet_ntop(AF_INET, &four.sin_addr, text, sizeof text);
    return std::string("ipv4:") + text + ":" + std::to_string(ntohs(four.sin_port));
  }
  const auto& six = reinterpret_cast<const sockaddr_in6&>(peer);
  const std::string port = ":" + std::to_string(ntohs(six.sin6_port));
  if (IN6_IS_ADDR_V4MAPPED(&six.sin6_addr)) {
    inet_ntop(AF_INET, &six.sin6_addr.s6_addr[12], text, sizeof text);
    return std::string("ipv4:") + text + port;
  }
  inet_ntop(AF_INET6, &six.sin6_addr, text, sizeof text);
  return std::string("ipv6:") + text + port;
}

std::string PlainPeerName(const std::string& peer) {
  std::string out;
  for (size_t i = 0; i < peer.size();) {
    const std::string_view rest = std::string_view(peer).substr(i);
    if (rest.starts_with("%5B") || rest.starts_with("%5D")) {
      i += 3;
    } else if (rest.front() == '[' || rest.front() == ']') {
      ++i;
    } else if (rest.front() == '%') {  // a scope, up to the bracket
      const size_t end = std::min(rest.find(']'), rest.find("%5D"));
      i = end == std::string_view::npos ? peer.size() : i + end;
    } else {
      out += peer[i++];
    }
  }
  return out;
}

}  // namespace meshtrain::rpc
