// Long: one class of two sides, its own thread and the threads that ask it, which share its state.
#include "runtime/collective/link/acceptor.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <pthread.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "runtime/base/check.h"
#include "runtime/base/file.h"
#include "runtime/base/log.h"
#include "runtime/base/thread.h"

namespace meshtrain::collective {
namespace {

using std::chrono::steady_clock;

constexpr uint64_t kListenerId = 1, kMemoryListenerId = 2, kWakeId = 3;
constexpr int kAcceptsAtOnce = 64;  // then those that are in get their turn
constexpr int kTickMs = 250;

std::string AddressText(const sockaddr_storage& bytes, socklen_t length) {
  if (bytes.ss_family == AF_UNIX) return "this host";
  char host[NI_MAXHOST];
  const int error = getnameinfo(reinterpret_cast<const sockaddr*>(&bytes), length, host,
                                sizeof host, nullptr, 0, NI_NUMERICHOST);
  return error == 0 ? host : "somewhere";
}

}  // namespace

Nonce FreshNonce() {
  Nonce nonce;
  size_t got = 0;
  while (got < nonce.size()) {
    const ssize_t n = getrandom(nonce.data() + got, nonce.size() - got, 0);
    MT_CHECK(n > 0 || errno == EINTR);
    if (n > 0) got += static_cast<size_t>(n);
  }
  return nonce;
}

struct Acceptor::Connection {
  uint64_t id = 0;
  Stream link;
  bool local = false;  // came through the memory socket
  std::string from;    // its address, for messages
  Stage stage = Stage::kHello;
  steady_clock::time_point deadline;
  std::string bytes;  // of the message that is being heard
  HelloBytes hello_bytes{};
  std::optional<Hello> hello;
  Nonce nonce{};
  Socket memory;
  int process = -1;  // kControl
  bool goodbye = false;

  // Nothing is proven yet.
  bool half_open() const {
    return stage == Stage::kSeal || stage == Stage::kHello || stage == Stage::kAnswer;
  }
};

Acceptor::Acceptor(AcceptorOptions options, Health& health)
    : options_(std::move(options)), health_(health) {}

Result<std::unique_ptr<Acceptor>> Acceptor::Create(AcceptorOptions options, Health& health) {
  std::unique_ptr<Acceptor> acceptor(new Acceptor(std::move(options), health));
  MT_RETURN_IF_ERROR(acceptor->Open());
  Acceptor* k = acceptor.get();
  // Signals are for the program's own threads.
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  auto thread =
      StartThread("links between processes", [k](std::stop_token stop) { k->Loop(stop); });
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  MT_ASSIGN_OR_RETURN(k->thread_, std::move(thread));
  return acceptor;
}

Status Acceptor::Open() {
  if (options_.bind.empty()) {
    MT_ASSIGN_OR_RETURN(listener_, ListenEverywhere(options_.port));
  } else {
    MT_ASSIGN_OR_RETURN(const SocketAddress address, NumericAddress(options_.bind, options_.port));
    MT_ASSIGN_OR_RETURN(listener_,
                        Listen(address, options_.bind + ":" + std::to_string(options_.port)));
  }
  port_ = PortOf(listener_);
  if (options_.memory_fd >= 0) {
    const Nonce nonce = FreshNonce();
    memory_name_ = "meshtrain-";
    for (int i = 0; i < 16; ++i) {
      memory_name_ += "0123456789abcdef"[static_cast<int>(nonce[i]) >> 4];
      memory_name_ += "0123456789abcdef"[static_cast<int>(nonce[i]) & 15];
    }
    MT_ASSIGN_OR_RETURN(memory_listener_, Listen(AbstractAddress(memory_name_), "a Unix socket"));
  }
  wake_ = Socket(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
  epoll_ = Socket(epoll_create1(EPOLL_CLOEXEC));
  if (!wake_ || !epoll_) return ErrnoStatus(errno, "epoll", "collective");
  Watch(listener_, kListenerId, EPOLLIN);
  if (memory_listener_) Watch(memory_listener_, kMemoryListenerId, EPOLLIN);
  Watch(wake_, kWakeId, EPOLLIN);
  return OkStatus();
}

Acceptor::~Acceptor() {
  thread_.request_stop();
  const uint64_t one = 1;
  static_cast<void>(!write(wake_.fd(), &one, sizeof one));
}

void Acceptor::Watch(const Socket& socket, uint64_t id, uint32_t events) {
  epoll_event event{};
  event.events = events;
  event.data.u64 = id;
  MT_CHECK(epoll_ctl(epoll_.fd(), EPOLL_CTL_ADD, socket.fd(), &event) == 0);
}

// --- the other threads' side

void Acceptor::Do(std::function<void()> work) {
  uint64_t ticket;
  {
    MutexLock lock(mutex_);
    inbox_.push_back(std::move(work));
    ticket = ++inbox_given_;
  }
  const uint64_t one = 1;
  static_cast<void>(!write(wake_.fd(), &one, sizeof one));
  MutexLock lock(mutex_);
  // The thread never waits for anything but its sockets, so this is short.
  while (!changed_.WaitFor(mutex_, {}, std::chrono::seconds(1),
                           [&]() MT_REQUIRES(mutex_) { return inbox_done_ >= ticket; })) {
  }
}

void Acceptor::Expect(Expected expected) {
  {
    MutexLock lock(mutex_);
    arrivals_.clear();
    awaited_ = expected.links.size();
    turned_away_.clear();
  }
  Do([this, expected = std::move(expected)] {
    expected_ = expected;
    std::vector<uint64_t> parked;
    for (const auto& [id, c] : connections_) {
      if (c->stage == Stage::kParked) parked.push_back(id);
    }
    for (const uint64_t id : parked) {
      const auto at = connections_.find(id);
      if (at != connections_.end() && !Decide(*at->second)) Close(id);
    }
  });
}

bool Acceptor::AwaitArrivals(Duration timeout, std::stop_token stop) {
  const auto end = steady_clock::now() + timeout;
  MutexLock lock(mutex_);
  while (true) {
    // In slices: a failure of the incarnation does not come through here.
    const Duration left =
        std::min<Duration>(end - steady_clock::now(), std::chrono::milliseconds(20));
    if (changed_.WaitFor(mutex_, stop, std::max(left, Duration(0)),
                         [&]() MT_REQUIRES(mutex_) { return arrivals_.size() >= awaited_; })) {
      return true;
    }
    if (stop.stop_requested() || health_.failed() || steady_clock::now() >= end) return false;
  }
}

Acceptor::Arrivals Acceptor::TakeArrivals() {
  MutexLock lock(mutex_);
  return std::exchange(arrivals_, {});
}

std::vector<std::string> Acceptor::TurnedAway() {
  MutexLock lock(mutex_);
  std::vector<std::string> lines;
  for (const auto& [text, times] : turned_away_) {
    lines.push_back(times == 1 ? text : text + " (" + std::to_string(times) + " times)");
  }
  return lines;
}

int64_t Acceptor::half_open_ended() const {
  MutexLock lock(mutex_);
  return half_open_ended_;
}

void Acceptor::Adopt(std::vector<std::pair<int, Stream>> controls) {
  // A std::function is copied: what it holds must be too.
  auto held = std::make_shared<std::vector<std::pair<int, Stream>>>(std::move(controls));
  Do([this, held] {
    for (auto& [process, link] : *held) {
      auto c = std::make_unique<Connection>();
      const uint64_t id = c->id = next_id_++;
      c->link = std::move(link);
      c->stage = Stage::kControl;
      c->process = process;
      controls_[process] = id;
      Watch(c->link.socket(), id, EPOLLIN | EPOLLRDHUP);
      connections_.emplace(id, std::move(c));
      Ready(id);  // a sealed stream may hold what epoll will not tell of
    }
  });
}

void Acceptor::Tell(ControlMessage message) {
  {
    MutexLock lock(mutex_);
    inbox_.push_back([this, message = std::move(message)] {
      for (const auto& [process, id] : std::map(controls_)) Send(*connections_.at(id), message);
    });
    ++inbox_given_;
  }
  const uint64_t one = 1;
  static_cast<void>(!write(wake_.fd(), &one, sizeof one));
}

void Acceptor::Leave(ControlMessage message) {
  Do([this, message = std::move(message)] {
    expected_.reset();
    for (const auto& [process, id] : std::map(controls_)) {
      Send(*connections_.at(id), message);
      Close(id);
    }
    controls_.clear();
  });
}

std::map<int, ControlMessage> Acceptor::Ask(std::span<const int> processes, uint64_t collective,
                                            Duration timeout) {
  ControlMessage question;
  question.kind = ControlKind::kAsk;
  question.collective = collective;
  {
    MutexLock lock(mutex_);
    question.sequence = ++sequence_;
    answers_.clear();
  }
  const std::vector<int> asked(processes.begin(), processes.end());
  Do([this, question, asked] {
    for (const int process : asked) {
      const auto at = controls_.find(process);
      if (at != controls_.end()) Send(*connections_.at(at->second), question);
    }
  });
  MutexLock lock(mutex_);
  static_cast<void>(changed_.WaitFor(
      mutex_, {}, timeout, [&]() MT_REQUIRES(mutex_) { return answers_.size() >= asked.size(); }));
  return std::exchange(answers_, {});
}

// --- the thread's side

void Acceptor::Loop(std::stop_token stop) {
  epoll_event events[64];
  while (true) {
    const int n = epoll_wait(epoll_.fd(), events, 64, kTickMs);
    for (int i = 0; i < n; ++i) {
      const uint64_t id = events[i].data.u64;
      if (id == kWakeId) {
        uint64_t count;
        static_cast<void>(!read(wake_.fd(), &count, sizeof count));
      } else if (id == kListenerId || id == kMemoryListenerId) {
        Accept(id == kListenerId ? listener_ : memory_listener_, id == kMemoryListenerId);
      } else {
        Ready(id);
      }
    }
    RunInbox();
    EndHalfOpen(true);
    if (paused_until_ && steady_clock::now() >= *paused_until_) PauseAccepting(false);
    if (stop.stop_requested()) return;
  }
}

void Acceptor::RunInbox() {
  std::vector<std::function<void()>> work;
  {
    MutexLock lock(mutex_);
    work.swap(inbox_);
  }
  if (work.empty()) return;
  for (const auto& each : work) each();
  MutexLock lock(mutex_);
  inbox_done_ += work.size();
  changed_.NotifyAll();
}

void Acceptor::Accept(const Socket& listener, bool local) {
  for (int i = 0; i < kAcceptsAtOnce; ++i) {
    sockaddr_storage from{};
    socklen_t length = sizeof from;
    Socket socket(accept4(listener.fd(), reinterpret_cast<sockaddr*>(&from), &length,
                          SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (!socket) {
      if (errno != EMFILE && errno != ENFILE && errno != ENOBUFS && errno != ENOMEM) return;
      if (half_open_count_ ==
          0) {  // nothing of ours to close: leave the others waiting for a while
        PauseAccepting(true);
        return;
      }
      EndHalfOpen(false);
      continue;
    }
    if (half_open_count_ >= kMaxHalfOpen) EndHalfOpen(false);
    if (!local) TuneLink(socket);
    auto c = std::make_unique<Connection>();
    c->id = next_id_++;
    std::unique_ptr<wire::TlsStream> tls;
    if (options_.tls != nullptr && !local) {
      tls = wire::TlsStream::Accept(options_.tls, socket.fd());
      c->stage = Stage::kSeal;
    }
    c->link = Stream(std::move(socket), std::move(tls));
    c->local = local;
    c->from = AddressText(from, length);
    c->deadline = steady_clock::now() + kHelloTimeout;
    half_open_.push_back(c->id);
    ++half_open_count_;
    Watch(c->link.socket(), c->id, EPOLLIN | EPOLLRDHUP);
    connections_.emplace(c->id, std::move(c));
  }
}

void Acceptor::PauseAccepting(bool pause) {
  if (pause == paused_until_.has_value()) return;
  for (const auto& [socket, id] :
       {std::pair(&listener_, kListenerId), std::pair(&memory_listener_, kMemoryListenerId)}) {
    if (!*socket) continue;
    if (pause) {
      epoll_ctl(epoll_.fd(), EPOLL_CTL_DEL, socket->fd(), nullptr);
    } else {
      Watch(*socket, id, EPOLLIN);
    }
  }
  paused_until_.reset();
  if (pause) paused_until_ = steady_clock::now() + std::chrono::milliseconds(kTickMs);
}

// The oldest one, or all whose time is up.
void Acceptor::EndHalfOpen(bool all_expired) {
  const auto now = steady_clock::now();
  while (!half_open_.empty()) {
    const auto at = connections_.find(half_open_.front());
    if (at == connections_.end() || !at->second->half_open()) {
      half_open_.pop_front();
      continue;
    }
    if (all_expired && at->second->deadline > now) return;
    Close(half_open_.front());
    half_open_.pop_front();
    if (!all_expired) return;
  }
}

void Acceptor::Close(uint64_t id) {
  const auto at = connections_.find(id);
  if (at == connections_.end()) return;
  if (at->second->half_open()) {
    --half_open_count_;
    MutexLock lock(mutex_);
    ++half_open_ended_;
  }
  if (at->second->stage == Stage::kControl) {
    const auto control = controls_.find(at->second->process);
    if (control != controls_.end() && control->second == id) controls_.erase(control);
  }
  connections_.erase(at);  // closing takes it out of epoll
}

void Acceptor::Ready(uint64_t id) {
  const auto at = connections_.find(id);
  if (at == connections_.end()) return;
  Connection& c = *at->second;
  bool keep = true;
  switch (c.stage) {
    case Stage::kSeal:
      keep = HearSeal(c);
      break;
    case Stage::kHello:
      keep = HearHello(c);
      break;
    case Stage::kAnswer:
      keep = HearAnswer(c);
      break;
    case Stage::kParked:
      keep = false;
      break;  // it has nothing to say before our verdict: it closed
    case Stage::kControl:
      keep = HearControl(c);
      break;
  }
  if (!keep) Close(id);
}

bool Acceptor::HearSeal(Connection& c) {
  const auto progress = c.link.tls()->Handshake();
  if (!progress.ok()) {
    // A scanner's bytes, or a peer that went away, are no peer that was refused.
    if (progress.status().code() == StatusCode::kUnauthenticated) {
      NoteRefusal(c, progress.status().message());
    }
    return false;
  }
  if (*progress != wire::TlsStream::Advance::kDone) return true;
  c.stage = Stage::kHello;
  return HearHello(c);  // it may have come with the last of the handshake
}

bool Acceptor::HearHello(Connection& c) {
  std::byte buffer[kHelloBytes];
  const int64_t n = c.link.Receive(buffer, kHelloBytes - c.bytes.size());
  if (n < 0) return false;
  c.bytes.append(reinterpret_cast<const char*>(buffer), static_cast<size_t>(n));
  if (c.bytes.size() < kHelloBytes) return true;
  std::memcpy(c.hello_bytes.data(), c.bytes.data(), kHelloBytes);
  c.bytes.clear();
  Result<Hello> hello = DecodeHello(c.hello_bytes);
  if (!hello.ok() || (hello->kind == LinkKind::kMemory) != c.local) return false;
  c.hello = *hello;
  c.nonce = FreshNonce();
  const Proof proof = Prove(options_.token, Role::kAcceptor, c.hello_bytes, c.nonce);
  std::byte challenge[kChallengeBytes];
  std::memcpy(challenge, c.nonce.data(), kNonceBytes);
  std::memcpy(challenge + kNonceBytes, proof.data(), kProofBytes);
  c.stage = Stage::kAnswer;
  return c.link.SendWhole(challenge, kChallengeBytes);
}

bool Acceptor::HearAnswer(Connection& c) {
  std::byte buffer[kProofBytes];
  const size_t room = kProofBytes - c.bytes.size();
  const int64_t n =
      c.local ? ReceiveWithFd(c.link.fd(), buffer, room, c.memory) : c.link.Receive(buffer, room);
  if (n < 0) return false;
  c.bytes.append(reinterpret_cast<const char*>(buffer), static_cast<size_t>(n));
  if (c.bytes.size() < kProofBytes) return true;
  Proof proof;
  std::memcpy(proof.data(), c.bytes.data(), kProofBytes);
  c.bytes.clear();
  if (!SameProof(proof, Prove(options_.token, Role::kConnector, c.hello_bytes, c.nonce))) {
    return Refuse(c, StatusCode::kUnauthenticated, "it does not know this job's token");
  }
  if (c.hello->kind == LinkKind::kMemory && !c.memory) {
    return Refuse(c, StatusCode::kInvalidArgument, "it gave no memory on a memory connection");
  }
  --half_open_count_;
  c.stage = Stage::kParked;
  // A peer that tries again has given up its last try.
  for (const auto& [id, other] : connections_) {
    if (other->stage == Stage::kParked && id != c.id && other->hello->from == c.hello->from &&
        other->hello->kind == c.hello->kind) {
      Close(id);
      break;
    }
  }
  return Decide(c);
}

// What becomes of a peer that has proved itself. False: it is closed.
bool Acceptor::Decide(Connection& c) {
  const Hello& hello = *c.hello;
  if (!expected_ || hello.incarnation > expected_->incarnation) return true;  // until we are there
  if (hello.incarnation < expected_->incarnation) {
    return Refuse(c, StatusCode::kFailedPrecondition,
                  "incarnation " + std::to_string(hello.incarnation) + " is over, this is " +
                      std::to_string(expected_->incarnation));
  }
  const std::pair<int, LinkKind> link(static_cast<int>(hello.from), hello.kind);
  if (hello.to != expected_->process || hello.group != expected_->group ||
      std::find(expected_->links.begin(), expected_->links.end(), link) == expected_->links.end()) {
    return Refuse(
        c, StatusCode::kFailedPrecondition,
        "it joined another group under incarnation " + std::to_string(hello.incarnation) +
            ": names, hosts or the use of shared memory differ, or the order of the processes");
  }
  const std::string verdict = EncodeVerdict(StatusCode::kOk, memory_name_);
  const bool sent = c.local
                        ? SendWithFd(c.link.fd(), verdict.data(), verdict.size(),
                                     hello.kind == LinkKind::kMemory ? options_.memory_fd : -1) ==
                              static_cast<int64_t>(verdict.size())
                        : c.link.SendWhole(verdict.data(), verdict.size());
  if (!sent) return false;
  epoll_ctl(epoll_.fd(), EPOLL_CTL_DEL, c.link.fd(), nullptr);
  MutexLock lock(mutex_);
  arrivals_[link] = Arrival{std::move(c.link), std::move(c.memory)};
  changed_.NotifyAll();
  return false;  // the rest of it
}

bool Acceptor::Refuse(Connection& c, StatusCode code, const std::string& text) {
  const std::string verdict = EncodeVerdict(code, text);
  static_cast<void>(c.link.SendWhole(verdict.data(), verdict.size()));
  NoteRefusal(c, text);
  return false;
}

void Acceptor::NoteRefusal(const Connection& c, const std::string& text) {
  const std::string who = c.hello ? "process " + std::to_string(c.hello->from) : "a process";
  const std::string line = who + " from " + c.from + ": " + text;
  LogWarning("a connection was turned away", {{"who", line}});
  MutexLock lock(mutex_);
  ++turned_away_[line];
}

bool Acceptor::HearControl(Connection& c) {
  char buffer[4096];
  while (true) {
    const int64_t n = c.link.Receive(buffer, sizeof buffer);
    if (n == 0) return true;
    if (n < 0) {
      if (!c.goodbye) Lost(c.process, n == -2 ? "its connection closed" : c.link.Why());
      return false;
    }
    c.bytes.append(buffer, static_cast<size_t>(n));
    ControlMessage message;
    while (true) {
      Result<bool> taken = TakeControl(c.bytes, message);
      if (!taken.ok()) {
        Lost(c.process, taken.status().message());
        return false;
      }
      if (!*taken) break;
      if (message.kind == ControlKind::kGoodbye) c.goodbye = true;
      const uint64_t id = c.id;
      Handle(c.process, message);
      if (connections_.find(id) == connections_.end()) {
        return true;  // Handle's answer could not be sent
      }
    }
  }
}

void Acceptor::Handle(int process, const ControlMessage& message) {
  switch (message.kind) {
    case ControlKind::kFailed:
      health_.Fail(Status(message.code == StatusCode::kOk ? StatusCode::kUnavailable : message.code,
                          health_.Name(process) + ": " + message.text));
      return;
    case ControlKind::kGoodbye:
      health_.Left(process);
      return;
    case ControlKind::kAsk: {
      const Health::Now now = health_.now(message.collective);
      ControlMessage answer;
      answer.kind = ControlKind::kAnswer;
      answer.sequence = message.sequence;
      answer.collective = now.begun;
      answer.inside = now.inside;
      answer.plan_hash = now.plan_hash;
      answer.call = now.call;
      answer.text = now.what;
      answer.asked = now.asked;
      const auto at = controls_.find(process);
      if (at != controls_.end()) Send(*connections_.at(at->second), answer);
      return;
    }
    case ControlKind::kAnswer: {
      MutexLock lock(mutex_);
      if (message.sequence == sequence_) answers_[process] = message;
      changed_.NotifyAll();
      return;
    }
  }
}

// A message is small: one that does not fit means a peer that has not read for very long.
void Acceptor::Send(Connection& c, const ControlMessage& message) {
  const std::string bytes = EncodeControl(message);
  if (c.link.SendWhole(bytes.data(), bytes.size())) return;
  if (!c.goodbye) Lost(c.process, "its connection takes no more");
  Close(c.id);
}

void Acceptor::Lost(int process, const std::string& how) {
  const Status why = Unavailable(health_.Name(process) + " is lost: " + how);
  if (!health_.Fail(why)) return;
  ControlMessage message;
  message.kind = ControlKind::kFailed;
  message.code = why.code();
  message.text = why.message();
  Tell(std::move(message));
}

}  // namespace meshtrain::collective
