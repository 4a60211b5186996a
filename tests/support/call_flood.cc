#include "tests/support/call_flood.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <map>
#include <string_view>

namespace meshtrain::test {
namespace {

constexpr size_t kFrameHead = 9;
constexpr size_t kMostData = 16'384;     // of a frame, where nobody said otherwise
constexpr size_t kMostUnsent = 1 << 20;  // of a connection
constexpr uint8_t kData = 0, kHeaders = 1, kReset = 3, kSettings = 4, kPing = 6, kGoAway = 7,
                  kWindow = 8;
constexpr uint8_t kEndStream = 1, kAck = 1, kEndHeaders = 4;
constexpr uint16_t kMaxStreams = 3, kInitialWindow = 4;
constexpr int kTickMs = 5;
constexpr int kNewCallsPerTick = 5;  // of a connection: a flood, but not of this machine's cores

uint32_t Read32(std::string_view from) {
  uint32_t out = 0;
  for (int i = 0; i < 4; ++i) out = out << 8 | static_cast<uint8_t>(from[static_cast<size_t>(i)]);
  return out;
}

void Put32(std::string& to, uint32_t value) {
  for (int shift = 24; shift >= 0; shift -= 8) to += static_cast<char>(value >> shift);
}

std::string FrameOf(uint8_t type, uint8_t flags, uint32_t stream, std::string_view payload) {
  std::string out;
  Put32(out, static_cast<uint32_t>(payload.size()) << 8 | type);
  out += static_cast<char>(flags);
  Put32(out, stream);
  out += payload;
  return out;
}

// RFC 7541: literals that are not remembered, each shorter than 127 bytes.
void PutText(std::string& to, std::string_view text) {
  to += static_cast<char>(text.size());
  to += text;
}

}  // namespace

class CallFlood::Connection {
 public:
  explicit Connection(CallFlood& owner) : owner_(owner) {}
  ~Connection() { Close(); }
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  int fd() const { return fd_; }
  bool has_unsent() const { return !unsent_.empty(); }

  void Tick() {
    if (fd_ < 0) Connect();
    const size_t most =
        std::min<size_t>(max_streams_, static_cast<size_t>(owner_.options_.calls_per_connection));
    for (int i = 0; settled_ && i < kNewCallsPerTick && streams_.size() < most; ++i) Begin();
    Fill();
    Send();
  }

  void Ready() {
    std::array<char, 65'536> buffer;
    for (;;) {
      const ssize_t n = ::recv(fd_, buffer.data(), buffer.size(), 0);
      if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == ENOTCONN)) break;
      if (n <= 0) return Close();
      heard_.append(buffer.data(), static_cast<size_t>(n));
    }
    while (fd_ >= 0 && heard_.size() >= kFrameHead) {
      const size_t size = Read32(heard_) >> 8;
      if (heard_.size() < kFrameHead + size) break;
      const std::string payload = heard_.substr(kFrameHead, size);
      const auto type = static_cast<uint8_t>(heard_[3]);
      const auto flags = static_cast<uint8_t>(heard_[4]);
      const uint32_t stream = Read32(std::string_view(heard_).substr(5)) & 0x7fffffff;
      heard_.erase(0, kFrameHead + size);
      Hear(type, flags, stream, payload);
    }
  }

 private:
  struct Stream {
    size_t left = 0;  // of its message, without the last byte
    size_t sent = 0;
    int64_t window = 0;
  };

  void Connect() {
    fd_ = ::socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    const sockaddr_in to{.sin_family = AF_INET,
                         .sin_port = htons(static_cast<uint16_t>(owner_.options_.port)),
                         .sin_addr = {htonl(INADDR_LOOPBACK)},
                         .sin_zero = {}};
    if (fd_ >= 0 && ::connect(fd_, reinterpret_cast<const sockaddr*>(&to), sizeof to) != 0 &&
        errno != EINPROGRESS) {
      return Close();
    }
    unsent_ = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + FrameOf(kSettings, 0, 0, "");
  }

  void Close() {
    if (fd_ >= 0) ::close(fd_);
    if (fd_ >= 0 && settled_) ++owner_.cut_;
    for (const auto& [id, stream] : streams_) {
      if (stream.left > 0) owner_.Through(owner_.ended_);
    }
    streams_.clear();
    unsent_.clear();
    heard_.clear();
    fd_ = -1;
    next_ = 1;
    window_ = initial_window_ = 65'535;
    max_streams_ = 1 << 30;
    settled_ = false;
  }

  void Begin() {
    std::string headers = "\x83\x86";  // POST, http
    headers += '\x04';
    PutText(headers, owner_.options_.method);
    headers += '\x01';
    PutText(headers, "127.0.0.1");
    std::vector<std::pair<std::string, std::string>> all = {{"te", "trailers"},
                                                            {"content-type", "application/grpc"}};
    all.insert(all.end(), owner_.options_.metadata.begin(), owner_.options_.metadata.end());
    for (const auto& [name, value] : all) {
      headers += '\0';
      PutText(headers, name);
      PutText(headers, value);
    }
    unsent_ += FrameOf(kHeaders, kEndHeaders, next_, headers);
    streams_[next_] = {.left = 5 + owner_.options_.message_bytes - 1, .window = initial_window_};
    next_ += 2;
  }

  // What the windows allow of every call's message.
  void Fill() {
    for (auto& [id, stream] : streams_) {
      while (stream.left > 0 && unsent_.size() < kMostUnsent) {
        const auto size = static_cast<size_t>(std::min<int64_t>(
            {static_cast<int64_t>(std::min(stream.left, kMostData)), stream.window, window_}));
        if (size == 0 || stream.window <= 0 || window_ <= 0) break;
        std::string bytes(size, 'x');
        if (stream.sent == 0 && size >= 5) {
          std::string head(1, '\0');  // not compressed
          Put32(head, static_cast<uint32_t>(owner_.options_.message_bytes));
          bytes.replace(0, head.size(), head);
        }
        unsent_ += FrameOf(kData, 0, id, bytes);
        stream.sent += size;
        stream.left -= size;
        stream.window -= static_cast<int64_t>(size);
        window_ -= static_cast<int64_t>(size);
        owner_.bytes_ += static_cast<int64_t>(size);
        if (stream.left == 0) owner_.Through(owner_.full_);
      }
    }
  }

  void Send() {
    while (fd_ >= 0 && !unsent_.empty()) {
      const ssize_t n = ::send(fd_, unsent_.data(), unsent_.size(), MSG_NOSIGNAL);
      if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == ENOTCONN)) return;
      if (n <= 0) return Close();
      unsent_.erase(0, static_cast<size_t>(n));
    }
  }

  void Hear(uint8_t type, uint8_t flags, uint32_t stream, const std::string& payload) {
    if (type == kSettings && (flags & kAck) == 0) {
      for (size_t at = 0; at + 6 <= payload.size(); at += 6) {
        const uint32_t key = Read32(std::string(2, '\0') + payload.substr(at, 2));
        const uint32_t value = Read32(std::string_view(payload).substr(at + 2));
        if (key == kMaxStreams) max_streams_ = value;
        if (key == kInitialWindow) {
          for (auto& [id, one] : streams_) one.window += value - initial_window_;
          initial_window_ = value;
        }
      }
      settled_ = true;
      unsent_ += FrameOf(kSettings, kAck, 0, "");
    } else if (type == kPing && (flags & kAck) == 0) {
      unsent_ += FrameOf(kPing, kAck, 0, payload);
    } else if (type == kWindow && payload.size() == 4) {
      const auto more = static_cast<int64_t>(Read32(payload) & 0x7fffffff);
      if (stream == 0) {
        window_ += more;
      } else if (const auto at = streams_.find(stream); at != streams_.end()) {
        at->second.window += more;
      }
    } else if (type == kReset || (type == kHeaders && (flags & kEndStream) != 0)) {
      if (const auto at = streams_.find(stream); at != streams_.end()) {
        if (at->second.left > 0) owner_.Through(owner_.ended_);
        streams_.erase(at);
      }
    } else if (type == kGoAway) {
      Close();
    }
  }

  CallFlood& owner_;
  int fd_ = -1;
  bool settled_ = false;  // the server has spoken
  std::string unsent_, heard_;
  uint32_t next_ = 1;
  int64_t window_ = 65'535, initial_window_ = 65'535;
  size_t max_streams_ = 1 << 30;
  std::map<uint32_t, Stream> streams_;
};

CallFlood::CallFlood(CallFloodOptions options) : options_(std::move(options)) {
  thread_ = std::jthread([this](std::stop_token stop) { Run(std::move(stop)); });
}

CallFlood::~CallFlood() = default;

void CallFlood::Through(std::atomic<int64_t>& kind) {
  ++kind;
  const MutexLock lock(mutex_);
  changed_.NotifyAll();
}

bool CallFlood::WaitForCalls(int64_t calls, Duration patience) {
  MutexLock lock(mutex_);
  return changed_.WaitFor(mutex_, {}, patience, [&] { return ended_ + full_ >= calls; });
}

void CallFlood::Run(std::stop_token stop) {
  std::vector<std::unique_ptr<Connection>> connections;
  for (int i = 0; i < options_.connections; ++i) {
    connections.push_back(std::make_unique<Connection>(*this));
  }
  while (!stop.stop_requested()) {
    std::vector<pollfd> polled;
    for (const auto& one : connections) {
      one->Tick();
      const short events = one->has_unsent() ? POLLIN | POLLOUT : POLLIN;
      polled.push_back({.fd = one->fd(), .events = events, .revents = 0});
    }
    (void)::poll(polled.data(), polled.size(), kTickMs);
    for (size_t i = 0; i < connections.size(); ++i) {
      if (connections[i]->fd() >= 0 && polled[i].revents != 0) connections[i]->Ready();
    }
  }
}

}  // namespace meshtrain::test
