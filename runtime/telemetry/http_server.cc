#include "runtime/telemetry/http_server.h"

#include <httplib.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <exception>
#include <list>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "runtime/base/mutex.h"
#include "runtime/base/text.h"
#include "runtime/base/thread.h"

namespace meshtrain::telemetry {
namespace {

constexpr size_t kMaxConnections = 256;
constexpr size_t kMaxUnsent = 8 << 20;
constexpr size_t kMaxHead = 8 << 10;
constexpr int kSendBuffer = 64 << 10;
constexpr std::chrono::seconds kPatience{2};
constexpr std::chrono::seconds kAnswering{10};  // what a scraper waits where nobody says otherwise
// Far fewer than are held, so that one that was just accepted is asked for its request a few times
// before those behind it can push it out.
constexpr int kAcceptsPerTurn = 32;
// Of what a peer sends unasked, per turn.
constexpr size_t kDiscardedPerTurn = 64 << 10;

class Fd {
 public:
  Fd() = default;
  explicit Fd(int fd) : fd_(fd) {}
  Fd(Fd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Fd& operator=(Fd&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~Fd() {
    if (fd_ >= 0) ::close(fd_);
  }
  int get() const { return fd_; }

 private:
  int fd_ = -1;
};

enum class Phase { kRequest, kAnswer, kFarewell, kOver };

struct Connection {
  Fd fd;
  Duration until{};  // of this phase
  Phase phase = Phase::kRequest;
  std::string head;    // of the request, as far as it is in
  std::string answer;  // what is to be sent
  size_t sent = 0;     // of it
};

// What httplib reads a request from, and writes its answer to, in place of a socket.
class Memory final : public httplib::Stream {
 public:
  explicit Memory(std::string_view request) : request_(request) {}
  std::string TakeAnswer() { return std::move(answer_); }

  bool is_readable() const override { return !request_.empty(); }
  bool is_writable() const override { return true; }
  ssize_t read(char* to, size_t size) override {
    const size_t n = request_.copy(to, size);
    request_.remove_prefix(n);
    return static_cast<ssize_t>(n);
  }
  ssize_t write(const char* from, size_t size) override {
    answer_.append(from, size);
    return static_cast<ssize_t>(size);
  }
  void get_remote_ip_and_port(std::string&, int&) const override {}
  void get_local_ip_and_port(std::string&, int&) const override {}
  socket_t socket() const override { return INVALID_SOCKET; }

 private:
  std::string_view request_;
  std::string answer_;
};

// The request without what it asks of ranges, which nobody has to honour: the library would make a
// part of its answer for each of as many as fit a head, a whole page among them every time.
std::string WithoutRanges(std::string_view request) {
  constexpr std::string_view kRange = "range:";
  std::string kept;
  bool first = true, in_head = true;
  while (!request.empty()) {
    const std::string_view line =
        request.substr(0, std::min(request.find('\n'), request.size() - 1) + 1);
    request.remove_prefix(line.size());
    const bool range = in_head && !first && ToLower(line.substr(0, kRange.size())) == kRange;
    if (!range) kept += line;
    first = false;
    if (line == "\r\n") in_head = false;
  }
  return kept;
}

// From a request to its answer; what is HTTP in it is the library's.
class Http final : public httplib::Server {
 public:
  Http(const HttpServer::Pages& pages, const HttpServer::Gate& gate) {
    set_payload_max_length(0);  // nobody has anything to send
    set_default_headers({{"Cache-Control", "no-store"}});
    set_pre_routing_handler([&gate](const httplib::Request& request, httplib::Response& response) {
      const bool two = request.get_header_value_count("Host") > 1;
      if (!two && (!gate || gate(request.path, request.get_header_value("Host")))) {
        return HandlerResponse::Unhandled;
      }
      response.status = two ? 400 : 421;
      response.set_content("Host: expected one address, or one host name of this process\n",
                           "text/plain");
      return HandlerResponse::Handled;
    });
    for (const auto& [path, page] : pages) {
      Get(path, [&page](const httplib::Request&, httplib::Response& response) {
        const HttpAnswer answer = page();
        response.status = answer.status;
        response.set_content(answer.body, answer.type);
      });
    }
    set_exception_handler([](const httplib::Request&, httplib::Response& response,
                             std::exception_ptr) { response.status = 500; });
  }

  std::string Answer(std::string_view request) {
    const std::string asked = WithoutRanges(request);
    Memory memory(asked);
    bool closed = false;
    (void)process_request(memory, /*close_connection=*/true, closed, nullptr);
    return memory.TakeAnswer();
  }
};

// Where requests come in: bound and listening.
Result<Fd> Listen(const std::string& host, int port) {
  const auto bad = [&](const std::string& got) {
    return Unavailable("http: expected to listen on " + host + ":" + std::to_string(port) +
                       ", got: " + got);
  };
  addrinfo hints{}, *found = nullptr;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE | AI_NUMERICSERV;
  const int error = ::getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found);
  if (error != 0) return bad(::gai_strerror(error));
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> addresses(found, ::freeaddrinfo);
  std::string got = "no address";
  bool taken = false;
  for (const addrinfo* a = found; a != nullptr; a = a->ai_next) {
    Fd fd(::socket(a->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    const int yes = 1, no = 0;
    // Accepted sockets inherit the buffer. SO_REUSEADDR is for old connections that linger; a port
    // that someone listens on stays taken.
    if (fd.get() >= 0 && ::setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes) == 0 &&
        ::setsockopt(fd.get(), SOL_SOCKET, SO_SNDBUF, &kSendBuffer, sizeof kSendBuffer) == 0 &&
        (a->ai_family != AF_INET6 ||
         ::setsockopt(fd.get(), IPPROTO_IPV6, IPV6_V6ONLY, &no, sizeof no) == 0) &&
        ::bind(fd.get(), a->ai_addr, a->ai_addrlen) == 0 && ::listen(fd.get(), SOMAXCONN) == 0) {
      return fd;
    }
    taken = errno == EADDRINUSE;
    got = std::strerror(errno);
  }
  return taken ? bad(got).From(Origin::kPeers) : bad(got);
}

int PortOf(const Fd& listener) {
  sockaddr_storage address{};
  socklen_t size = sizeof address;
  if (::getsockname(listener.get(), reinterpret_cast<sockaddr*>(&address), &size) != 0) return -1;
  return ntohs(address.ss_family == AF_INET6
                   ? reinterpret_cast<const sockaddr_in6&>(address).sin6_port
                   : reinterpret_cast<const sockaddr_in&>(address).sin_port);
}

}  // namespace

class HttpServer::Impl {
 public:
  Impl(Fd listener, Pages pages, Clock& clock, Gate gate)
      : clock_(clock),
        pages_(std::move(pages)),
        gate_(std::move(gate)),
        http_(pages_, gate_),
        port_(PortOf(listener)),
        wake_(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)),
        listener_(std::move(listener)) {}

  // Bounded by what each connection may take, though not by us.
  ~Impl() { (void)Stop(std::chrono::minutes(1)); }

  Status Begin() {
    if (wake_.get() < 0) {
      return Unavailable(std::string("http: expected an event descriptor, got: ") +
                         std::strerror(errno));
    }
    MT_ASSIGN_OR_RETURN(thread_, StartThread("http", [this](const std::stop_token&) {
                          Run();
                          {
                            MutexLock lock(mutex_);
                            ended_ = true;
                          }
                          changed_.NotifyAll();
                        }));
    return OkStatus();
  }

  Status Stop(Duration timeout) {
    if (!thread_.joinable()) return OkStatus();
    stopping_ = true;
    const uint64_t one = 1;
    (void)!::write(wake_.get(), &one, sizeof one);  // full is awake as well
    MutexLock lock(mutex_);
    if (changed_.WaitFor(mutex_, {}, std::max(timeout, Duration(0)),
                         [this]() MT_REQUIRES(mutex_) { return ended_; })) {
      return OkStatus();
    }
    return DeadlineExceeded(
        "http: expected every answer to leave in time, got: some still being made or sent");
  }

  int port() const { return port_; }

 private:
  void Run() {
    std::vector<pollfd> polled;
    Duration last = Duration::max();  // of an answer, once stopping
    for (;;) {
      if (stopping_) {
        listener_ = Fd();
        last = std::min(last, clock_.Monotonic() + kPatience);
        // Whoever has its answer has been told to go; whoever has not asked is not waited for.
        connections_.remove_if([](const Connection& c) { return c.phase != Phase::kAnswer; });
        if (connections_.empty()) return;
      }
      Duration now = clock_.Monotonic();
      Duration next = now + std::chrono::minutes(1);
      const bool listening = !stopping_ && now >= listen_again_;
      if (!listening) next = std::max(now, std::min(next, listen_again_));
      polled = {{.fd = stopping_ ? -1 : wake_.get(), .events = POLLIN, .revents = 0},
                {.fd = listening ? listener_.get() : -1, .events = POLLIN, .revents = 0}};
      for (const Connection& c : connections_) {
        next = std::min({next, c.until, last});
        const short events = c.phase == Phase::kAnswer ? POLLOUT : POLLIN;
        polled.push_back({.fd = c.fd.get(), .events = events, .revents = 0});
      }
      const auto wait = std::chrono::ceil<std::chrono::milliseconds>(next - now);
      (void)::poll(polled.data(), polled.size(),
                   static_cast<int>(std::max<int64_t>(wait.count(), 0)));
      now = clock_.Monotonic();
      size_t i = 2;
      for (Connection& c : connections_) {
        if (polled[i++].revents != 0 && c.phase != Phase::kOver) Advance(c, now);
        if (now >= std::min(c.until, last) && c.phase != Phase::kOver) Reset(c);
      }
      Forget();
      if (polled[1].revents != 0) Accept(now);
    }
  }

  void Accept(Duration now) {
    for (int i = 0; i < kAcceptsPerTurn; ++i) {
      Fd fd(::accept4(listener_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
      if (fd.get() < 0) {
        if (errno == EAGAIN || errno == EWOULDBLOCK) return;
        if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) {
          // One of ours makes place. Without any it is others who have it all, and they take time.
          if (connections_.empty()) {
            listen_again_ = now + std::chrono::milliseconds(100);
          } else {
            Reset(connections_.front());
            Forget();
          }
          return;
        }
        continue;  // that one has gone already
      }
      const int yes = 1;
      (void)::setsockopt(fd.get(), IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
      connections_.emplace_back();
      Connection& c = connections_.back();
      c.fd = std::move(fd);
      c.until = now + kPatience;
      Advance(c, now);  // most have asked by now
      Forget();
      if (connections_.size() > kMaxConnections) {
        Reset(connections_.front());
        Forget();
      }
    }
  }

  // Does what can be done without waiting.
  void Advance(Connection& c, Duration now) {
    if (c.phase == Phase::kRequest) Read(c, now);
    if (c.phase == Phase::kAnswer) Write(c, now);
    if (c.phase == Phase::kAnswer) BoundUnsent(c);
    if (c.phase == Phase::kFarewell) Discard(c);
  }

  // `newest` stays, so that one large answer can leave.
  void BoundUnsent(const Connection& newest) {
    size_t unsent = 0;
    for (const Connection& c : connections_) unsent += c.answer.size();
    for (auto c = connections_.begin(); unsent > kMaxUnsent && c != connections_.end(); ++c) {
      if (&*c == &newest || c->phase != Phase::kAnswer) continue;
      unsent -= c->answer.size();
      Reset(*c);
    }
  }

  void Forget() {
    connections_.remove_if([](const Connection& c) { return c.phase == Phase::kOver; });
  }

  void Read(Connection& c, Duration now) {
    std::array<char, 4096> buffer;
    while (c.phase == Phase::kRequest) {
      const ssize_t n = ::recv(c.fd.get(), buffer.data(), buffer.size(), 0);
      if (n < 0 && errno == EINTR) continue;
      if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return;
      if (n <= 0) return End(c);
      const size_t looked_at = c.head.size() - std::min<size_t>(c.head.size(), 3);
      c.head.append(buffer.data(), static_cast<size_t>(n));
      const size_t end = c.head.find("\r\n\r\n", looked_at);
      if (end == std::string::npos && c.head.size() <= kMaxHead) continue;
      if (end == std::string::npos || end > kMaxHead) return Reset(c);
      c.answer = http_.Answer(c.head);
      std::string().swap(c.head);  // gives the memory back
      c.phase = Phase::kAnswer;
      // After the page was made, which took its time.
      c.until = std::max(now, clock_.Monotonic()) + kAnswering;
    }
  }

  void Write(Connection& c, Duration now) {
    while (c.sent < c.answer.size()) {
      const ssize_t n =
          ::send(c.fd.get(), c.answer.data() + c.sent, c.answer.size() - c.sent, MSG_NOSIGNAL);
      if (n < 0 && errno == EINTR) continue;
      if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return;
      if (n < 0) return End(c);
      c.sent += static_cast<size_t>(n);
    }
    // Closing with bytes unread would reset the connection and lose the answer on its way, so the
    // peer closes first.
    (void)::shutdown(c.fd.get(), SHUT_WR);
    std::string().swap(c.answer);
    c.phase = Phase::kFarewell;
    c.until = now + kPatience;
  }

  static void Discard(Connection& c) {
    std::array<char, 4096> buffer;
    for (size_t got = 0; got < kDiscardedPerTurn; got += buffer.size()) {
      const ssize_t n = ::recv(c.fd.get(), buffer.data(), buffer.size(), 0);
      if (n < 0 && errno == EINTR) continue;
      if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return;
      if (n <= 0) return End(c);
    }
  }

  static void End(Connection& c) { c = Connection{.phase = Phase::kOver}; }

  // Ends it without leaving the kernel anything to send.
  static void Reset(Connection& c) {
    const linger none{.l_onoff = 1, .l_linger = 0};
    (void)::setsockopt(c.fd.get(), SOL_SOCKET, SO_LINGER, &none, sizeof none);
    End(c);
  }

  Clock& clock_;
  const Pages pages_;
  const Gate gate_;
  Http http_;
  const int port_;
  const Fd wake_;
  std::atomic<bool> stopping_ = false;
  // Of the thread alone, once it runs.
  Fd listener_;
  Duration listen_again_{};
  std::list<Connection> connections_;  // the oldest first
  Mutex mutex_;
  CondVar changed_;
  bool ended_ MT_GUARDED_BY(mutex_) = false;
  std::jthread thread_;  // last
};

HttpServer::HttpServer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
HttpServer::~HttpServer() = default;

Result<std::unique_ptr<HttpServer>> HttpServer::Start(const std::string& host, int port,
                                                      Pages pages, Clock& clock, Gate gate) {
  Result<Fd> listener = Listen(host, port);
  if (!listener.ok()) return listener.status();
  auto impl =
      std::make_unique<Impl>(*std::move(listener), std::move(pages), clock, std::move(gate));
  MT_RETURN_IF_ERROR(impl->Begin());
  return std::unique_ptr<HttpServer>(new HttpServer(std::move(impl)));
}

int HttpServer::port() const { return impl_->port(); }
Status HttpServer::Stop(Duration timeout) { return impl_->Stop(timeout); }

}  // namespace meshtrain::telemetry
