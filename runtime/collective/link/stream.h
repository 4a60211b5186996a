// A connection between two processes, plain or sealed (wire/tls.h), behind one face. For one thread
// at a time.
#pragma once

#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "runtime/collective/link/socket.h"
#include "runtime/wire/tls.h"

namespace meshtrain::collective {

class Stream {
 public:
  Stream() = default;
  // `tls`: over the socket's descriptor, its handshake done; null: plain.
  explicit Stream(Socket socket, std::unique_ptr<wire::TlsStream> tls = nullptr)
      : socket_(std::move(socket)), tls_(std::move(tls)) {}

  explicit operator bool() const { return static_cast<bool>(socket_); }
  int fd() const { return socket_.fd(); }
  const Socket& socket() const { return socket_; }
  wire::TlsStream* tls() { return tls_.get(); }  // null: plain
  void Close() {
    tls_.reset();
    socket_.Close();
  }

  // Sends what fits of the parts, in order; 0: nothing. -1: Why(). What was taken of a sealed
  // stream may still be held: it is gone when Flush says so.
  int64_t Send(std::span<const iovec> parts);
  int64_t Send(const void* data, size_t bytes);
  // Whether all that was taken is gone; -1: Why().
  int Flush();
  // Whether a small message went out whole.
  bool SendWhole(const void* data, size_t bytes);

  // Receives what is there, up to the parts' room. 0: nothing, and nothing is held back; -1: Why();
  // -2: the peer closed.
  int64_t Receive(std::span<const iovec> parts);
  int64_t Receive(void* data, size_t bytes);

  // Of the call that gave -1 or -2.
  std::string Why() const { return why_; }
  // Whether that was because one side does not trust the other's certificate.
  bool refused() const;

 private:
  int64_t Failed(int64_t result);

  Socket socket_;
  std::unique_ptr<wire::TlsStream> tls_;
  std::string why_;
};

}  // namespace meshtrain::collective
