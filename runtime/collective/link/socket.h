// File descriptors of sockets: one owner each, never blocking, closed on exec.
#pragma once

#include <sys/socket.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include "runtime/base/status.h"

namespace meshtrain::collective {

class Socket {
 public:
  Socket() = default;
  explicit Socket(int fd) : fd_(fd) {}
  Socket(Socket&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Socket& operator=(Socket&& other) noexcept {
    if (this != &other) {
      Close();
      fd_ = std::exchange(other.fd_, -1);
    }
    return *this;
  }
  ~Socket() { Close(); }
  explicit operator bool() const { return fd_ >= 0; }
  int fd() const { return fd_; }
  void Close();

 private:
  int fd_ = -1;
};

struct SocketAddress {
  sockaddr_storage bytes{};
  socklen_t length = 0;
  int family() const { return bytes.ss_family; }
};

// "HOST:PORT" or "[IPv6]:PORT" -> its halves. Errors: kInvalidArgument.
struct HostPort {
  std::string host;
  int port = 0;
};
Result<HostPort> ParseHostPort(std::string_view text);

// A numeric host; nothing is looked up. Errors: kInvalidArgument.
Result<SocketAddress> NumericAddress(const std::string& host, int port);
// Looks the name up: blocks as long as the system's resolver does. Errors: kUnavailable.
Result<SocketAddress> LookUp(const std::string& host, int port);
void SetPort(SocketAddress& address, int port);
// Of an abstract Unix socket (no file).
SocketAddress AbstractAddress(std::string_view name);

// Errors: kUnavailable naming the address; of Origin::kPeers where the port is taken.
Result<Socket> Listen(const SocketAddress& address, std::string_view what);
// At all addresses of the host, IPv6 and IPv4; at IPv4's alone where it has no IPv6.
Result<Socket> ListenEverywhere(int port);
int PortOf(const Socket& socket);
// A connection under way: it is made, or has failed, when the socket can be written to
// (ConnectError tells).
Result<Socket> StartConnect(const SocketAddress& address);
int ConnectError(const Socket& socket);  // 0: made

// No delay of small messages, and between two ends of one address nothing that paces the sending
// (elsewhere the system's choice of congestion control stays). For a connection that is made;
// Listen and StartConnect call it. Buffers are left to the system's tuning, which grants more than
// may be asked for.
void TuneLink(const Socket& socket);

// Sends what fits, possibly nothing. -1: error in errno, other than "would block". A closed peer
// raises no signal.
int64_t SendSome(int fd, const void* data, size_t bytes);
// Receives what is there. 0: nothing yet; -1: error in errno; -2: the peer closed.
int64_t ReceiveSome(int fd, void* data, size_t bytes);
// The same with a file descriptor beside the bytes (-1: none).
int64_t SendWithFd(int fd, const void* data, size_t bytes, int passed);
int64_t ReceiveWithFd(int fd, void* data, size_t bytes, Socket& passed);

}  // namespace meshtrain::collective
