#include "runtime/telemetry/progress_fetch.h"

#include <fcntl.h>
#include <netdb.h>
#include <poll.h>
#include <sys/eventfd.h>
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

}  // namespace

// One request and its answer, as far as they are. Nothing in it waits.
class ProgressFetches::Exchange {
 public:
  Exchange(int64_t id, const std::string& ip, int port, Duration until)
      : id_(id),
        until_(until),
        host_(ip.find(':') == std::string::npos ? ip : "[" + ip + "]"),
        where_("http://" + host_ + ":" + std::to_string(port) + "/progress"),
        request_("GET /progress HTTP/1.0\r\nHost: " + host_ + ":" + std::to_string(port) +
                 "\r\nAccept: application/json\r\n\r\n") {
    if (Status status = Connect(ip, std::to_string(port)); !status.ok()) End(std::move(status));
  }
  ~Exchange() {
    if (fd_ >= 0) ::close(fd_);
  }
  Exchange(const Exchange&) = delete;
  Exchange& operator=(const Exchange&) = delete;

  int64_t id() const { return id_; }
  int fd() const { return fd_; }
  short events() const { return connecting_ || sent_ < request_.size() ? POLLOUT : POLLIN; }
  Duration until() const { return until_; }
  bool ended() const { return ended_.has_value(); }
  Result<std::string> TakeEnd() { return *std::move(ended_); }
  const std::string& where() const { return where_; }

  // Does what can be done now.
  void Advance() {
    if (Status status = TryAdvance(); !status.ok()) End(std::move(status));
  }
  void TimeIsUp() { End(Bad("expected an answer within 2 s, got: none or its beginning")); }

 private:
  Status Bad(const std::string& what) const { return Unavailable(where_ + ": " + what); }
  Status TooMuch(const char* what) const { return DataLoss(where_ + ": " + what); }
  Status Errno(const char* what) const {
    return Bad(std::string(what) + ": " + std::strerror(errno));
  }
  void End(Result<std::string> result) {
    if (!ended_) ended_.emplace(std::move(result));
  }

  Status Connect(const std::string& ip, const std::string& port) {
    addrinfo hints{}, *found = nullptr;
    hints.ai_socktype = SOCK_STREAM;
    hints.ai_flags = AI_NUMERICHOST;
    const int bad = ::getaddrinfo(ip.c_str(), port.c_str(), &hints, &found);
    if (bad != 0) return Bad(std::string("expected an address, got: ") + ::gai_strerror(bad));
    const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> address(found, ::freeaddrinfo);
    fd_ = ::socket(found->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd_ < 0) return Errno("socket");
    connecting_ = ::connect(fd_, found->ai_addr, found->ai_addrlen) != 0;
    return !connecting_ || errno == EINPROGRESS ? OkStatus() : Errno("connect");
  }

  Status TryAdvance() {
    if (connecting_) {
      socklen_t size = sizeof(errno);
      int error = 0;
      ::getsockopt(fd_, SOL_SOCKET, SO_ERROR, &error, &size);
      errno = error;
      if (error != 0) return Errno("connect");
      connecting_ = false;
    }
    if (sent_ < request_.size()) {
      const ssize_t sent =
          ::send(fd_, request_.data() + sent_, request_.size() - sent_, MSG_NOSIGNAL);
      if (sent < 0 && errno != EAGAIN && errno != EINTR) return Errno("send");
      if (sent > 0) sent_ += static_cast<size_t>(sent);
      return OkStatus();
    }
    // One read a turn, so that whoever sends without end takes turns with the others.
    char bytes[8 << 10];
    const ssize_t got = ::recv(fd_, bytes, sizeof bytes, 0);
    if (got < 0) return errno == EAGAIN || errno == EINTR ? OkStatus() : Errno("receive");
    text_.append(bytes, static_cast<size_t>(got));
    return Read(/*over=*/got == 0);
  }

  Status Read(bool over) {
    if (!in_body_) {
      const size_t head = text_.find("\r\n\r\n");
      if (head == std::string::npos) {
        if (text_.size() > kMaxHead) return TooMuch("expected headers of at most 8 KiB, got: more");
        return over ? Bad("expected an answer, got: its beginning") : OkStatus();
      }
      MT_RETURN_IF_ERROR(ReadHead(std::string_view(text_).substr(0, head)));
      text_.erase(0, head + 4);
      in_body_ = true;
    }
    if (text_.size() > kMaxBody) return TooMuch("expected at most 64 KiB, got: more");
    if (length_ && static_cast<int64_t>(text_.size()) >= *length_) {
      End(std::move(text_));
    } else if (over) {
      if (length_) return Bad("expected " + std::to_string(*length_) + " bytes, got: fewer");
      End(std::move(text_));
    }
    return OkStatus();
  }

  Status ReadHead(std::string_view top) {
    if (!top.starts_with("HTTP/1.") || top.size() < 12 || top.substr(9, 3) != "200") {
      return Bad("expected 200, got: " + std::string(top.substr(0, top.find('\r')).substr(0, 64)));
    }
    for (const std::string& line : Split(std::string(top), '\n')) {
      const size_t colon = line.find(':');
      if (colon == std::string::npos) continue;
      const std::string name = ToLower(line.substr(0, colon));
      const std::string_view value = Trim(std::string_view(line).substr(colon + 1));
      if (name == "content-length") length_ = ParseInt(value);
      if (name == "transfer-encoding" || name == "content-encoding") {
        return Bad("expected a plain body, got: " + line.substr(0, 64));
      }
    }
    return OkStatus();
  }

  const int64_t id_;
  const Duration until_;
  const std::string host_, where_, request_;
  int fd_ = -1;
  bool connecting_ = false, in_body_ = false;
  size_t sent_ = 0;
  std::string text_;  // of the answer, as far as it is in and not read yet
  std::optional<int64_t> length_;
  std::optional<Result<std::string>> ended_;
};

ProgressFetches::ProgressFetches(Clock& clock)
    : clock_(clock), wake_(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) {}

ProgressFetches::~ProgressFetches() {
  if (wake_ >= 0) ::close(wake_);
}

void ProgressFetches::Start(int64_t id, const std::string& ip, int port) {
  exchanges_.emplace_back(id, ip, port, clock_.Monotonic() + kLongestFetch);
}

void ProgressFetches::Interrupt() {
  const uint64_t one = 1;
  (void)!::write(wake_, &one, sizeof one);
}

std::vector<ProgressFetches::Answer> ProgressFetches::Wait(Duration most, std::stop_token stop) {
  const std::stop_callback on_stop(stop, [this] { Interrupt(); });
  const Duration end = clock_.Monotonic() + std::min<Duration>(most, std::chrono::hours(1));
  std::vector<Answer> answers;
  while (true) {
    const Duration now = clock_.Monotonic();
    for (auto at = exchanges_.begin(); at != exchanges_.end();) {
      if (now >= at->until()) at->TimeIsUp();
      if (at->ended()) {
        answers.push_back({at->id(), at->TakeEnd()});
        at = exchanges_.erase(at);
      } else {
        ++at;
      }
    }
    if (!answers.empty() || stop.stop_requested() || now >= end) return answers;
    Duration next = end;
    std::vector<pollfd> polled = {{.fd = wake_, .events = POLLIN, .revents = 0}};
    for (const Exchange& exchange : exchanges_) {
      next = std::min(next, exchange.until());
      polled.push_back({.fd = exchange.fd(), .events = exchange.events(), .revents = 0});
    }
    const auto wait = std::chrono::ceil<std::chrono::milliseconds>(next - now);
    (void)::poll(polled.data(), polled.size(), static_cast<int>(wait.count()));
    size_t i = 1;
    for (Exchange& exchange : exchanges_) {
      if (polled[i++].revents != 0) exchange.Advance();
    }
    if (polled[0].revents != 0) {
      uint64_t count = 0;
      (void)!::read(wake_, &count, sizeof count);
      if (std::none_of(exchanges_.begin(), exchanges_.end(),
                       [](const Exchange& exchange) { return exchange.ended(); })) {
        return answers;
      }
    }
  }
}

Result<std::string> FetchProgress(const std::string& ip, int port, std::stop_token stop,
                                  Clock& clock) {
  ProgressFetches fetches(clock);
  fetches.Start(0, ip, port);
  while (!stop.stop_requested()) {
    std::vector<ProgressFetches::Answer> answers = fetches.Wait(kLongestFetch, stop);
    if (!answers.empty()) return std::move(answers.front().body);
  }
  return Cancelled("http://" + ip + ":" + std::to_string(port) + "/progress: stopped");
}

}  // namespace meshtrain::telemetry
