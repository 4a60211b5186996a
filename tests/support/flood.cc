#include "tests/support/flood.h"

#include <arpa/inet.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

namespace meshtrain::test {
namespace {

Duration Now() { return SystemClock().Monotonic(); }

int Connect(int port) {
  const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  const sockaddr_in to{.sin_family = AF_INET,
                       .sin_port = htons(static_cast<uint16_t>(port)),
                       .sin_addr = {htonl(INADDR_LOOPBACK)},
                       .sin_zero = {}};
  if (fd >= 0 && ::connect(fd, reinterpret_cast<const sockaddr*>(&to), sizeof to) != 0 &&
      errno != EINPROGRESS) {
    ::close(fd);
    return -1;
  }
  return fd;
}

// Both ends of each connection may be in this process.
Status AllowDescriptors(rlim_t wanted) {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur < wanted) {
    limit.rlim_cur = std::min(wanted, limit.rlim_max);
    (void)::setrlimit(RLIMIT_NOFILE, &limit);
  }
  if (limit.rlim_cur >= wanted) return OkStatus();
  return Unavailable("flood: expected leave for " + std::to_string(wanted) +
                     " descriptors (ulimit -Hn), got: " + std::to_string(limit.rlim_cur));
}

}  // namespace

Result<std::unique_ptr<Flood>> Flood::Start(int port, int connections, std::string first) {
  MT_RETURN_IF_ERROR(AllowDescriptors(static_cast<rlim_t>(2 * connections + 200)));
  auto flood = std::unique_ptr<Flood>(new Flood(port, std::move(first)));
  flood->peers_.resize(connections);
  const Duration until = Now() + std::chrono::seconds(5);
  while (flood->Look() < connections && Now() < until) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  Flood* f = flood.get();
  flood->thread_ = std::jthread([f](const std::stop_token& stop) {
    while (SystemClock().SleepFor(std::chrono::milliseconds(100), stop)) f->Look();
  });
  return flood;
}

Flood::~Flood() {
  if (thread_.joinable()) {
    thread_.request_stop();
    thread_.join();
  }
  for (const Peer& peer : peers_) {
    if (peer.fd >= 0) ::close(peer.fd);
  }
}

void Flood::Peer::Say(const std::string& first) {
  pollfd look{.fd = fd, .events = POLLOUT, .revents = 0};
  if (said || ::poll(&look, 1, 0) <= 0 || look.revents != POLLOUT) return;
  said = ::send(fd, first.data(), first.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(first.size());
  ever = ever || said;
}

int64_t Flood::Look() {
  for (Peer& peer : peers_) {
    std::array<char, 64> answer;
    const ssize_t n = ::recv(peer.fd, answer.data(), answer.size(), 0);
    const bool open = errno == EAGAIN || errno == EWOULDBLOCK || errno == ENOTCONN;
    if (n == 0 || (n < 0 && !open)) {
      if (peer.fd >= 0) ::close(peer.fd);
      peer.fd = Connect(port_);
      peer.said = false;
    }
    peer.Say(first_);
  }
  return std::count_if(peers_.begin(), peers_.end(), [](const Peer& peer) { return peer.ever; });
}

Result<std::string> Get(int port, const std::string& path, Duration timeout,
                        const std::string& host) {
  const auto bad = [&](const std::string& got) {
    return Unavailable("GET " + path + ": expected an answer within " +
                       std::to_string(timeout / std::chrono::milliseconds(1)) + " ms, got: " + got);
  };
  const Duration until = Now() + timeout;
  const int fd = Connect(port);
  if (fd < 0) return bad(std::strerror(errno));
  std::string ask = "GET " + path + " HTTP/1.1\r\nHost: " + host + "\r\n\r\n", answer;
  Status status = OkStatus();
  for (;;) {
    pollfd wait{
        .fd = fd, .events = static_cast<short>(ask.empty() ? POLLIN : POLLOUT), .revents = 0};
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(until - Now());
    if (left.count() <= 0 || ::poll(&wait, 1, static_cast<int>(left.count())) <= 0) {
      status = bad(answer.empty() ? "none" : "its beginning");
      break;
    }
    std::array<char, 4096> buffer;
    const ssize_t n = ask.empty() ? ::recv(fd, buffer.data(), buffer.size(), 0)
                                  : ::send(fd, ask.data(), ask.size(), MSG_NOSIGNAL);
    if (n < 0) {
      status = bad(std::strerror(errno));
      break;
    }
    if (!ask.empty()) {
      ask.erase(0, static_cast<size_t>(n));
      continue;
    }
    answer.append(buffer.data(), static_cast<size_t>(n));
    // A server may keep the connection: these answers say how long they are.
    const size_t head = answer.find("\r\n\r\n"), length = answer.find("Content-Length: ");
    const bool whole = head != std::string::npos && length < head &&
                       answer.size() >= head + 4 + std::stoul(answer.substr(length + 16));
    if (n == 0 || whole) break;
  }
  ::close(fd);
  if (!status.ok()) return status;
  if (answer.empty()) return bad("an end without one");
  return answer;
}

}  // namespace meshtrain::test
