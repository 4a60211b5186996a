#include "runtime/telemetry/progress_fetch.h"

#include <fcntl.h>
#include <netdb.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <memory>
#include <optional>
#include <utility>

#include "runtime/base/text.h"

namespace meshtrain::telemetry {
namespace {

constexpr size_t kMaxHead = 8 << 10;
constexpr size_t kMaxBody = 64 << 10;
constexpr std::chrono::milliseconds kLongest{2000};

class Exchange {
 public:
  Exchange(const std::string& ip, int port, std::stop_token stop)
      : ip_(ip),
        port_(std::to_string(port)),
        host_(ip.find(':') == std::string::npos ? ip : "[" + ip + "]"),
        where_("http://" + host_ + ":" + port_ + "/progress"),
        stop_(std::move(stop)),
        until_(std::chrono::steady_clock::now() + kLongest) {}
  ~Exchange() {
    if (fd_ >= 0) ::close(fd_);
  }
  Exchange(const Exchange&) = delete;
  Exchange& operator=(const Exchange&) = delete;

  Result<std::string> Run() {
    MT_RETURN_IF_ERROR(Connect());
    MT_RETURN_IF_ERROR(Send("GET /progress HTTP/1.0\r\nHost: " + host_ + ":" + port_ +
                            "\r\nAccept: application/json\r\n\r\n"));
    std::string text;
    size_t head = std::string::npos;
    while (head == std::string::npos) {
      if (text.size() > kMaxHead) {
        return Bad("expected headers of at most 8 KiB, got: more");
      }
      Result<bool> more = Receive(&text);
      if (!more.ok()) return more.status();
      head = text.find("\r\n\r\n");
      if (!*more && head == std::string::npos) return Bad("expected an answer, got: its beginning");
    }
    std::string_view top = std::string_view(text).substr(0, head);
    if (!top.starts_with("HTTP/1.") || top.size() < 12 || top.substr(9, 3) != "200") {
      return Bad("expected 200, got: " + std::string(top.substr(0, top.find('\r')).substr(0, 64)));
    }
    std::optional<int64_t> length;
    for (const std::string& line : Split(std::string(top), '\n')) {
      const size_t colon = line.find(':');
      if (colon == std::string::npos) continue;
      const std::string name = ToLower(line.substr(0, colon));
      const std::string_view value = Trim(std::string_view(line).substr(colon + 1));
      if (name == "content-length") length = ParseInt(value);
      if (name == "transfer-encoding" || name == "content-encoding") {
        return Bad("expected a plain body, got: " + line.substr(0, 64));
      }
    }
    text.erase(0, head + 4);
    while (!length || static_cast<int64_t>(text.size()) < *length) {
      if (text.size() > kMaxBody) break;
      Result<bool> more = Receive(&text);
      if (!more.ok()) return more.status();
      if (*more) continue;
      if (length) return Bad("expected " + std::to_string(*length) + " bytes, got: fewer");
      break;
    }
    if (text.size() > kMaxBody) return Bad("expected at most 64 KiB, got: more");
    return text;
  }

 private:
  Status Bad(const std::string& what) const { return Unavailable(where_ + ": " + what); }
  Status Errno(const char* what) const {
    return Bad(std::string(what) + ": " + std::strerror(errno));
  }

  Status Wait(short events) const {
    while (!stop_.stop_requested()) {
      const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(
          until_ - std::chrono::steady_clock::now());
      if (left.count() <= 0)
        return Bad("expected an answer within 2 s, got: none or its beginning");
      pollfd waiting{.fd = fd_, .events = events, .revents = 0};
      const int ready = ::poll(&waiting, 1, static_cast<int>(std::min<int64_t>(left.count(), 100)));
      if (ready > 0) return OkStatus();
      if (ready < 0 && errno != EINTR) return Errno("poll");
    }
    return Cancelled(where_ + ": stopped");
  }

  Status Connect() {
    addrinfo hints{}, *found = nullptr;
    hints.ai_socktype = SOCK_STREAM;
    hints.ai_flags = AI_NUMERICHOST;
    const int bad = ::getaddrinfo(ip_.c_str(), port_.c_str(), &hints, &found);
    if (bad != 0) return Bad(std::string("expected an address, got: ") + ::gai_strerror(bad));
    const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> address(found, ::freeaddrinfo);
    fd_ = ::socket(found->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd_ < 0) return Errno("socket");
    if (::connect(fd_, found->ai_addr, found->ai_addrlen) == 0) return OkStatus();
    if (errno != EINPROGRESS) return Errno("connect");
    MT_RETURN_IF_ERROR(Wait(POLLOUT));
    socklen_t size = sizeof(errno);
    int error = 0;
    ::getsockopt(fd_, SOL_SOCKET, SO_ERROR, &error, &size);
    errno = error;
    return error == 0 ? OkStatus() : Errno("connect");
  }

  Status Send(std::string_view text) {
    while (!text.empty()) {
      const ssize_t sent = ::send(fd_, text.data(), text.size(), MSG_NOSIGNAL);
      if (sent > 0) {
        text.remove_prefix(static_cast<size_t>(sent));
      } else if (errno == EAGAIN) {
        MT_RETURN_IF_ERROR(Wait(POLLOUT));
      } else if (errno != EINTR) {
        return Errno("send");
      }
    }
    return OkStatus();
  }

  // False at the end of the stream.
  Result<bool> Receive(std::string* text) {
    char bytes[8 << 10];
    while (true) {
      MT_RETURN_IF_ERROR(Wait(POLLIN));
      const ssize_t got = ::recv(fd_, bytes, sizeof bytes, 0);
      if (got > 0) text->append(bytes, static_cast<size_t>(got));
      if (got >= 0) return got > 0;
      if (errno != EAGAIN && errno != EINTR) return Errno("receive");
    }
  }

  const std::string ip_, port_, host_, where_;
  const std::stop_token stop_;
  const std::chrono::steady_clock::time_point until_;
  int fd_ = -1;
};

}  // namespace

Result<std::string> FetchProgress(const std::string& ip, int port, std::stop_token stop) {
  return Exchange(ip, port, std::move(stop)).Run();
}

}  // namespace meshtrain::telemetry
