#include "tests/runtime/membership/forwarder.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <string>
#include <utility>
#include <vector>

#include "runtime/base/check.h"

namespace meshtrain::membership {
namespace {

sockaddr_in Loopback(int port) {
  sockaddr_in out{.sin_family = AF_INET, .sin_port = htons(static_cast<uint16_t>(port))};
  out.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return out;
}

void Wake(int fd) {
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = write(fd, &one, sizeof one);
}

constexpr size_t kMostWaiting = size_t{1} << 20;

}  // namespace

Forwarder::Forwarder(int port, int target)
    : listener_(socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0)),
      wake_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
      target_(target) {
  const int on = 1;
  MT_CHECK(setsockopt(listener_, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) == 0);
  const sockaddr_in address = Loopback(port);
  MT_CHECK(bind(listener_, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0);
  MT_CHECK(listen(listener_, 64) == 0);
  thread_ = std::jthread([this](std::stop_token stop) { Run(std::move(stop)); });
}

Forwarder::~Forwarder() {
  thread_.request_stop();
  Wake(wake_);
  thread_.join();
  for (const Pair& pair : pairs_) {
    close(pair.caller);
    close(pair.target);
  }
  close(listener_);
  close(wake_);
}

void Forwarder::Lead(int target) {
  MutexLock lock(mutex_);
  target_ = target;
}

void Forwarder::Block(bool to_target, bool to_caller) {
  MutexLock lock(mutex_);
  block_to_target_ = to_target;
  block_to_caller_ = to_caller;
  Wake(wake_);
}

void Forwarder::Cut() {
  MutexLock lock(mutex_);
  cut_ = true;
  Wake(wake_);
}

void Forwarder::Accept() {
  const int caller = accept4(listener_, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC);
  if (caller < 0) return;
  int port = 0;
  {
    MutexLock lock(mutex_);
    port = target_;
  }
  const int target = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const sockaddr_in address = Loopback(port);
  // Of the loopback: it succeeds or is refused at once.
  if (connect(target, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) {
    close(target);
    close(caller);
    return;
  }
  fcntl(target, F_SETFL, O_NONBLOCK);
  pairs_.push_back({.caller = caller, .target = target});
}

void Forwarder::Move(int from, int to, std::string& waiting, bool readable, bool& over) {
  if (readable) {
    char buffer[65536];
    const ssize_t size = read(from, buffer, sizeof buffer);
    if (size > 0) waiting.append(buffer, static_cast<size_t>(size));
    if (size == 0 || (size < 0 && errno != EAGAIN)) over = true;
  }
  if (waiting.empty()) return;
  const ssize_t size = send(to, waiting.data(), waiting.size(), MSG_NOSIGNAL);
  if (size > 0) waiting.erase(0, static_cast<size_t>(size));
  if (size < 0 && errno != EAGAIN) over = true;
}

void Forwarder::Run(std::stop_token stop) {
  while (!stop.stop_requested()) {
    bool block_to_target = false, block_to_caller = false, cut = false;
    {
      MutexLock lock(mutex_);
      block_to_target = block_to_target_;
      block_to_caller = block_to_caller_;
      cut = std::exchange(cut_, false);
    }
    std::vector<pollfd> polled = {{listener_, POLLIN, 0}, {wake_, POLLIN, 0}};
    for (auto pair = pairs_.begin(); pair != pairs_.end();) {
      if (cut || (pair->over && pair->to_target.empty() && pair->to_caller.empty())) {
        close(pair->caller);
        close(pair->target);
        pair = pairs_.erase(pair);
        continue;
      }
      const auto events = [](bool read, bool write) {
        return static_cast<short>((read ? POLLIN : 0) | (write ? POLLOUT : 0));
      };
      const bool from_caller =
          !pair->over && !block_to_target && pair->to_target.size() < kMostWaiting;
      const bool from_target =
          !pair->over && !block_to_caller && pair->to_caller.size() < kMostWaiting;
      const short caller = events(from_caller, !pair->to_caller.empty() && !block_to_caller);
      const short target = events(from_target, !pair->to_target.empty() && !block_to_target);
      // A negative number: not even what cannot be asked for (an end) is told, while nothing may
      // pass.
      polled.push_back({caller != 0 ? pair->caller : -1, caller, 0});
      polled.push_back({target != 0 ? pair->target : -1, target, 0});
      ++pair;
    }
    if (poll(polled.data(), polled.size(), 1000) <= 0) continue;
    uint64_t count = 0;
    [[maybe_unused]] const ssize_t drained = read(wake_, &count, sizeof count);
    size_t at = 2;
    for (Pair& pair : pairs_) {
      const short caller = polled[at++].revents;
      const short target = polled[at++].revents;
      if (!block_to_target) {
        Move(pair.caller, pair.target, pair.to_target, caller & (POLLIN | POLLHUP | POLLERR),
             pair.over);
      }
      if (!block_to_caller) {
        Move(pair.target, pair.caller, pair.to_caller, target & (POLLIN | POLLHUP | POLLERR),
             pair.over);
      }
      if (pair.over && !block_to_target && !block_to_caller) {
        pair.to_target.clear();
        pair.to_caller.clear();
      }
    }
    if (polled[0].revents != 0) Accept();
  }
}

}  // namespace meshtrain::membership
