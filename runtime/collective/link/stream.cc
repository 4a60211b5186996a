#include "runtime/collective/link/stream.h"

#include <cerrno>
#include <cstring>

namespace meshtrain::collective {
namespace {

msghdr MessageOf(std::span<const iovec> parts) {
  msghdr message{};
  message.msg_iov = const_cast<iovec*>(parts.data());
  message.msg_iovlen = parts.size();
  return message;
}

bool WouldBlock() { return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR; }

}  // namespace

int64_t Stream::Failed(int64_t result) {
  if (result == -2) {
    why_ = "closed";
  } else if (result == -1) {
    why_ = tls_ ? tls_->error().message() : std::strerror(errno);
  }
  return result;
}

bool Stream::refused() const {
  return tls_ != nullptr && tls_->error().code() == StatusCode::kUnauthenticated;
}

int64_t Stream::Send(std::span<const iovec> parts) {
  if (!tls_) {
    const msghdr message = MessageOf(parts);
    const ssize_t n = sendmsg(fd(), &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    return n >= 0 ? n : Failed(WouldBlock() ? 0 : -1);
  }
  int64_t sent = 0;
  for (const iovec& part : parts) {
    const int64_t n = tls_->Send(part.iov_base, part.iov_len);
    if (n < 0) return Failed(n);
    sent += n;
    if (static_cast<size_t>(n) < part.iov_len) break;
  }
  return sent;
}

int64_t Stream::Send(const void* data, size_t bytes) {
  const iovec part{const_cast<void*>(data), bytes};
  return Send({&part, 1});
}

int Stream::Flush() {
  if (!tls_) return 1;
  if (!tls_->Flush()) return static_cast<int>(Failed(-1));
  return tls_->unsent() ? 0 : 1;
}

bool Stream::SendWhole(const void* data, size_t bytes) {
  return Send(data, bytes) == static_cast<int64_t>(bytes) && Flush() == 1;
}

int64_t Stream::Receive(std::span<const iovec> parts) {
  if (!tls_) {
    msghdr message = MessageOf(parts);
    const ssize_t n = recvmsg(fd(), &message, MSG_DONTWAIT);
    if (n > 0) return n;
    return Failed(n == 0 ? -2 : WouldBlock() ? 0 : -1);
  }
  int64_t got = 0;
  for (const iovec& part : parts) {
    const int64_t n = tls_->Receive(part.iov_base, part.iov_len);
    // What came before an end is heard first.
    if (n < 0) return got > 0 ? got : Failed(n);
    got += n;
    if (static_cast<size_t>(n) < part.iov_len) break;
  }
  return got;
}

int64_t Stream::Receive(void* data, size_t bytes) {
  if (bytes == 0) return 0;
  const iovec part{data, bytes};
  return Receive({&part, 1});
}

}  // namespace meshtrain::collective
