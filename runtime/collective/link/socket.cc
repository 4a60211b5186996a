#include "runtime/collective/link/socket.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <memory>
#include <string_view>

#include "runtime/base/text.h"

namespace meshtrain::collective {
namespace {

constexpr int kBacklog = 4096;  // the system cuts it to net.core.somaxconn

std::string ErrorText(int error) { return std::strerror(error); }

void SetInt(int fd, int level, int option, int value) {
  // Only speed depends on these.
  static_cast<void>(setsockopt(fd, level, option, &value, sizeof value));
}

Result<SocketAddress> Resolve(const std::string& host, int port, int flags) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = flags | AI_NUMERICSERV;
  addrinfo* found = nullptr;
  const int error = getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found);
  if (error != 0 || found == nullptr) {
    return Unavailable("cannot look up " + host + ": " +
                       (error == 0 ? "no address" : gai_strerror(error)));
  }
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> owner(found, freeaddrinfo);
  SocketAddress address;
  address.length = found->ai_addrlen;
  std::memcpy(&address.bytes, found->ai_addr, found->ai_addrlen);
  return address;
}

SocketAddress NameOf(const Socket& socket, int (*ask)(int, sockaddr*, socklen_t*)) {
  SocketAddress name;
  name.length = sizeof name.bytes;
  if (ask(socket.fd(), reinterpret_cast<sockaddr*>(&name.bytes), &name.length) != 0) return {};
  return name;
}

// The address without its port; empty for what is neither IPv4 nor IPv6.
std::string_view HostBytes(const SocketAddress& address) {
  const auto bytes = [](const auto& part) {
    return std::string_view(reinterpret_cast<const char*>(&part), sizeof part);
  };
  if (address.family() == AF_INET) {
    return bytes(reinterpret_cast<const sockaddr_in&>(address.bytes).sin_addr);
  }
  if (address.family() == AF_INET6) {
    return bytes(reinterpret_cast<const sockaddr_in6&>(address.bytes).sin6_addr);
  }
  return {};
}

bool IsLoopback(const SocketAddress& address) {
  const std::string_view host = HostBytes(address);
  if (address.family() == AF_INET) return host[0] == 127;
  return address.family() == AF_INET6 &&
         IN6_IS_ADDR_LOOPBACK(&reinterpret_cast<const sockaddr_in6&>(address.bytes).sin6_addr);
}

// Both ends of the connection have one address.
bool StaysHere(const Socket& socket) {
  const SocketAddress theirs = NameOf(socket, getpeername);
  const std::string_view host = HostBytes(theirs);
  return !host.empty() && host == HostBytes(NameOf(socket, getsockname));
}

// For bytes that do not leave this system: no path is there to be probed, and what paces its
// sending for that (BBR, the default of many systems) costs a timer and a wake-up again and again:
// of an all-reduce of 16 MB a fifth of its CPU time. Best before the connection is made, since
// pacing that has begun stays. Every Linux has Reno, for everybody.
void ForNoPath(const Socket& socket) {
  static_cast<void>(
      setsockopt(socket.fd(), IPPROTO_TCP, TCP_CONGESTION, "reno", 4));  // only speed depends on it
}

}  // namespace

void Socket::Close() {
  if (fd_ >= 0) close(fd_);
  fd_ = -1;
}

Result<HostPort> ParseHostPort(std::string_view text) {
  const auto bad = [&] {
    return InvalidArgument("address: expected HOST:PORT, got: " + std::string(text));
  };
  const size_t colon = text.rfind(':');
  if (colon == std::string_view::npos) return bad();
  std::string_view host = text.substr(0, colon);
  if (host.size() >= 2 && host.front() == '[' && host.back() == ']') {
    host = host.substr(1, host.size() - 2);
  }
  const std::optional<int64_t> port = ParseInt(text.substr(colon + 1));
  if (host.empty() || !port || *port < 1 || *port > 65535) return bad();
  return HostPort{std::string(host), static_cast<int>(*port)};
}

Result<SocketAddress> NumericAddress(const std::string& host, int port) {
  Result<SocketAddress> address = Resolve(host, port, AI_NUMERICHOST);
  if (!address.ok()) return InvalidArgument("expected a numeric address, got: " + host);
  return address;
}

Result<SocketAddress> LookUp(const std::string& host, int port) { return Resolve(host, port, 0); }

void SetPort(SocketAddress& address, int port) {
  if (address.family() == AF_INET6) {
    reinterpret_cast<sockaddr_in6&>(address.bytes).sin6_port = htons(static_cast<uint16_t>(port));
  } else {
    reinterpret_cast<sockaddr_in&>(address.bytes).sin_port = htons(static_cast<uint16_t>(port));
  }
}

SocketAddress AbstractAddress(std::string_view name) {
  SocketAddress address;
  sockaddr_un un{};
  un.sun_family = AF_UNIX;
  std::memcpy(un.sun_path + 1, name.data(), std::min(name.size(), sizeof un.sun_path - 1));
  std::memcpy(&address.bytes, &un, sizeof un);
  address.length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  return address;
}

Result<Socket> ListenEverywhere(int port) {
  const std::string what = "port " + std::to_string(port);
  SocketAddress address;
  sockaddr_in6 any{.sin6_family = AF_INET6};
  std::memcpy(&address.bytes, &any, sizeof any);
  address.length = sizeof any;
  SetPort(address, port);
  Result<Socket> both = Listen(address, what);
  if (both.ok() || errno == EADDRINUSE || errno == EACCES) return both;
  MT_ASSIGN_OR_RETURN(const SocketAddress four, NumericAddress("0.0.0.0", port));
  return Listen(four, what);
}

Result<Socket> Listen(const SocketAddress& address, std::string_view what) {
  const auto failed = [&](const char* step) {
    const bool taken = errno == EADDRINUSE;
    const Status error = Unavailable("cannot listen on " + std::string(what) + ": " + step + ": " +
                                     ErrorText(errno));
    return taken ? error.From(Origin::kPeers) : error;
  };
  Socket socket(::socket(address.family(), SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!socket) return failed("socket");
  if (address.family() != AF_UNIX) {
    SetInt(socket.fd(), SOL_SOCKET, SO_REUSEADDR, 1);  // a restarted process gets its port back
    if (address.family() == AF_INET6) SetInt(socket.fd(), IPPROTO_IPV6, IPV6_V6ONLY, 0);
    TuneLink(socket);  // accepted sockets inherit; the window's scale is agreed on early
    if (IsLoopback(address)) ForNoPath(socket);
  }
  if (bind(socket.fd(), reinterpret_cast<const sockaddr*>(&address.bytes), address.length) != 0) {
    return failed("bind");
  }
  if (listen(socket.fd(), kBacklog) != 0) return failed("listen");
  return socket;
}

int PortOf(const Socket& socket) {
  sockaddr_storage bytes{};
  socklen_t length = sizeof bytes;
  if (getsockname(socket.fd(), reinterpret_cast<sockaddr*>(&bytes), &length) != 0) return 0;
  if (bytes.ss_family == AF_INET6) {
    return ntohs(reinterpret_cast<const sockaddr_in6&>(bytes).sin6_port);
  }
  return ntohs(reinterpret_cast<const sockaddr_in&>(bytes).sin_port);
}

Result<Socket> StartConnect(const SocketAddress& address) {
  Socket socket(::socket(address.family(), SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!socket) return Unavailable("socket: " + ErrorText(errno));
  if (IsLoopback(address)) ForNoPath(socket);
  if (connect(socket.fd(), reinterpret_cast<const sockaddr*>(&address.bytes), address.length) !=
          0 &&
      errno != EINPROGRESS) {
    return Unavailable("connect: " + ErrorText(errno));
  }
  if (address.family() != AF_UNIX) TuneLink(socket);
  return socket;
}

int ConnectError(const Socket& socket) {
  int error = 0;
  socklen_t length = sizeof error;
  return getsockopt(socket.fd(), SOL_SOCKET, SO_ERROR, &error, &length) == 0 ? error : errno;
}

void TuneLink(const Socket& socket) {
  SetInt(socket.fd(), IPPROTO_TCP, TCP_NODELAY, 1);
  if (StaysHere(socket)) ForNoPath(socket);
}

int64_t SendSome(int fd, const void* data, size_t bytes) {
  const ssize_t n = send(fd, data, bytes, MSG_NOSIGNAL | MSG_DONTWAIT);
  if (n >= 0) return n;
  return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR ? 0 : -1;
}

int64_t ReceiveSome(int fd, void* data, size_t bytes) {
  const ssize_t n = recv(fd, data, bytes, MSG_DONTWAIT);
  if (n > 0) return n;
  if (n == 0) return bytes == 0 ? 0 : -2;
  return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR ? 0 : -1;
}

int64_t SendWithFd(int fd, const void* data, size_t bytes, int passed) {
  if (passed < 0) return SendSome(fd, data, bytes);
  iovec io{const_cast<void*>(data), bytes};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &io;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  cmsghdr* header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(sizeof(int));
  std::memcpy(CMSG_DATA(header), &passed, sizeof passed);
  const ssize_t n = sendmsg(fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
  if (n >= 0) return n;
  return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR ? 0 : -1;
}

int64_t ReceiveWithFd(int fd, void* data, size_t bytes, Socket& passed) {
  iovec io{data, bytes};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &io;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  const ssize_t n = recvmsg(fd, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  if (n < 0) return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR ? 0 : -1;
  for (cmsghdr* header = CMSG_FIRSTHDR(&message); header != nullptr;
       header = CMSG_NXTHDR(&message, header)) {
    if (header->cmsg_level == SOL_SOCKET && header->cmsg_type == SCM_RIGHTS &&
        header->cmsg_len == CMSG_LEN(sizeof(int))) {
      int got = -1;
      std::memcpy(&got, CMSG_DATA(header), sizeof got);
      passed = Socket(got);
    }
  }
  return n == 0 && bytes > 0 ? -2 : n;
}

}  // namespace meshtrain::collective
