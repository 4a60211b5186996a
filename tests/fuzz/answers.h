// A server on the loopback that answers whatever it is asked with given bytes, and ends the
// connection. One for a whole run of a fuzz target; it ends with the process.
#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <deque>
#include <string>
#include <thread>
#include <utility>

#include "runtime/base/mutex.h"
#include "tests/fuzz/fuzz.h"

namespace meshtrain::fuzz {

class Answers {
 public:
  Answers() : listener_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    FUZZ_CHECK(listener_ >= 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    FUZZ_CHECK(::bind(listener_, reinterpret_cast<sockaddr*>(&address), size) == 0);
    FUZZ_CHECK(::listen(listener_, 128) == 0);
    FUZZ_CHECK(::getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &size) == 0);
    port_ = ntohs(address.sin_port);
    thread_ = std::jthread([this](std::stop_token stop) { Serve(stop); });
  }
  ~Answers() {
    thread_.request_stop();
    ::shutdown(listener_, SHUT_RDWR);  // ends accept
    thread_.join();
    ::close(listener_);
  }
  Answers(const Answers&) = delete;
  Answers& operator=(const Answers&) = delete;

  int port() const { return port_; }

  // The next connection gets the first of `bytes`, and so on; those after the last of them get the
  // last one again.
  void Next(std::deque<std::string> bytes) {
    MutexLock lock(mutex_);
    bytes_ = std::move(bytes);
  }

 private:
  void Serve(const std::stop_token& stop) {
    while (!stop.stop_requested()) {
      const int fd = ::accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
      if (fd < 0) continue;
      Answer(fd);
      ::close(fd);
    }
  }

  void Answer(int fd) {
    std::string request;
    char block[4096];
    while (request.find("\r\n\r\n") == std::string::npos) {
      const ssize_t n = ::recv(fd, block, sizeof block, 0);
      if (n <= 0) return;
      request.append(block, static_cast<size_t>(n));
    }
    std::string bytes;
    {
      MutexLock lock(mutex_);
      bytes = bytes_.front();
      if (bytes_.size() > 1) bytes_.pop_front();
    }
    std::string_view rest = bytes;
    while (!rest.empty()) {
      const ssize_t n = ::send(fd, rest.data(), rest.size(), MSG_NOSIGNAL);
      if (n <= 0) return;  // it has heard enough
      rest.remove_prefix(static_cast<size_t>(n));
    }
    // Whoever asked reads all of it before the connection is gone.
    (void)::shutdown(fd, SHUT_WR);
    while (::recv(fd, block, sizeof block, 0) > 0) {
    }
  }

  const int listener_;
  int port_ = 0;
  Mutex mutex_;
  std::deque<std::string> bytes_ MT_GUARDED_BY(mutex_) = {""};
  std::jthread thread_;
};

}  // namespace meshtrain::fuzz
