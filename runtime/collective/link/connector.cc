#include "runtime/collective/link/connector.h"

#include <poll.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <optional>
#include <set>

#include "runtime/base/thread.h"

namespace meshtrain::collective {
namespace {

using std::chrono::steady_clock;

constexpr auto kTick = std::chrono::milliseconds(20);
constexpr auto kFirstPause = std::chrono::milliseconds(20),
               kLongestPause = std::chrono::milliseconds(500);
// From the connection to its challenge; the verdict may take as long as the peer needs to join.
constexpr auto kAnswerTime = std::chrono::seconds(5);

// One target: connects, speaks hello, waits for the verdict; after a failure again, later.
class Attempt {
 public:
  enum class State : uint8_t { kPausing, kConnecting, kSeal, kChallenge, kVerdict, kDone };

  Attempt(const ConnectOptions& options, ConnectTarget target)
      : options_(options), target_(std::move(target)) {}

  const ConnectTarget& target() const { return target_; }
  State state() const { return state_; }
  const std::string& reason() const { return reason_; }
  Acceptor::Arrival Take() { return {std::move(link_), std::move(memory_)}; }
  const std::string& memory_name() const { return memory_name_; }
  pollfd Poll() const {
    if (!link_) return {-1, 0, 0};
    const bool writes = state_ == State::kConnecting || (state_ == State::kSeal && seal_writes_);
    return {link_.fd(), static_cast<short>(writes ? POLLOUT : POLLIN), 0};
  }

  // Errors end the whole Connect.
  Status Advance(bool ready, const Resolver& resolver) {
    const auto now = steady_clock::now();
    if (state_ == State::kPausing && now >= next_) Begin(resolver);
    if (state_ == State::kConnecting && ready) {
      if (const int error = ConnectError(link_.socket()); error != 0) {
        Fail(std::strerror(error));
      } else if (link_.tls() != nullptr) {
        state_ = State::kSeal;
        return Seal();
      } else {
        SayHello();
      }
    } else if (state_ == State::kSeal && ready) {
      return Seal();
    } else if (state_ == State::kChallenge && ready) {
      return HearChallenge();
    } else if (state_ == State::kVerdict && ready) {
      return HearVerdict();
    }
    if (state_ != State::kPausing && state_ != State::kVerdict && state_ != State::kDone &&
        now >= deadline_) {
      Fail("no answer");
    }
    return OkStatus();
  }

 private:
  void Fail(const std::string& reason) {
    reason_ = reason;
    link_.Close();
    state_ = State::kPausing;
    pause_ = std::clamp<Duration>(pause_ * 2, kFirstPause, kLongestPause);
    next_ = steady_clock::now() + pause_;
  }

  void Begin(const Resolver& resolver) {
    Result<SocketAddress> address = AbstractAddress(target_.address);
    std::string host;
    if (target_.kind != LinkKind::kMemory) {
      const Result<HostPort> place = ParseHostPort(target_.address);
      if (!place.ok()) return Fail(place.status().message());
      host = place->host;
      address = resolver.Find(place->host, place->port);
    }
    if (!address.ok()) return Fail(address.status().message());
    Result<Socket> socket = StartConnect(*address);
    if (!socket.ok()) return Fail(socket.status().message());
    std::unique_ptr<wire::TlsStream> tls;
    if (options_.tls != nullptr && target_.kind != LinkKind::kMemory) {
      tls = wire::TlsStream::Connect(options_.tls, socket->fd(), host);
    }
    link_ = Stream(std::move(*socket), std::move(tls));
    memory_.Close();
    bytes_.clear();
    state_ = State::kConnecting;
    deadline_ = steady_clock::now() + kAnswerTime;
  }

  Status Seal() {
    const auto progress = link_.tls()->Handshake();
    if (!progress.ok()) return Refused(progress.status());
    if (*progress == wire::TlsStream::Advance::kDone) {
      SayHello();
    } else {
      seal_writes_ = *progress == wire::TlsStream::Advance::kWantsWrite;
    }
    return OkStatus();
  }

  // A certificate that is not trusted ends the whole Connect; all else is tried again.
  Status Refused(const Status& why) {
    if (why.code() == StatusCode::kUnauthenticated) {
      return Status(why.code(), target_.name + " at " + target_.address + ": " + why.message())
          .From(Origin::kPeers);
    }
    Fail(why.message());
    return OkStatus();
  }

  void SayHello() {
    Hello hello;
    hello.kind = target_.kind;
    hello.incarnation = options_.incarnation;
    hello.from = options_.process;
    hello.to = static_cast<uint32_t>(target_.process);
    hello.group = options_.group;
    hello.nonce = FreshNonce();
    EncodeHello(hello, hello_);
    state_ = State::kChallenge;
    if (!link_.SendWhole(hello_.data(), hello_.size())) Fail("closed");
  }

  // Adds to bytes_ up to `wanted`; false: not all there yet, or failed, for good where refused_.
  bool Hear(size_t wanted) {
    char buffer[kVerdictHeaderBytes + kVerdictMaxText];
    const size_t room = std::min(wanted - bytes_.size(), sizeof buffer);
    const bool local = target_.kind == LinkKind::kMemory;
    const int64_t n =
        local ? ReceiveWithFd(link_.fd(), buffer, room, memory_) : link_.Receive(buffer, room);
    if (n < 0) {
      const std::string why = n == -2 ? "it closed the connection"
                              : local ? std::strerror(errno)
                                      : link_.Why();
      refused_ = Refused(link_.refused() ? link_.tls()->error() : Unavailable(why));
      return false;
    }
    bytes_.append(buffer, static_cast<size_t>(n));
    return bytes_.size() == wanted;
  }

  Status HearChallenge() {
    if (!Hear(kChallengeBytes)) return refused_;
    Nonce nonce;
    Proof proof;
    std::memcpy(nonce.data(), bytes_.data(), kNonceBytes);
    std::memcpy(proof.data(), bytes_.data() + kNonceBytes, kProofBytes);
    bytes_.clear();
    const bool known = SameProof(proof, Prove(options_.token, Role::kAcceptor, hello_, nonce));
    Proof answer{};
    if (known) answer = Prove(options_.token, Role::kConnector, hello_, nonce);
    const bool sent =
        target_.kind == LinkKind::kMemory
            ? SendWithFd(link_.fd(), answer.data(), answer.size(),
                         known ? options_.memory_fd : -1) == static_cast<int64_t>(answer.size())
            : link_.SendWhole(answer.data(), answer.size());
    if (!known) {
      return Status(StatusCode::kUnauthenticated,
                    target_.name + " at " + target_.address +
                        " does not know this job's token: another job's process, or "
                        "another token")
          .From(Origin::kPeers);
    }
    state_ = State::kVerdict;
    if (!sent) Fail("closed");
    return OkStatus();
  }

  Status HearVerdict() {
    if (bytes_.size() < kVerdictHeaderBytes && !Hear(kVerdictHeaderBytes)) return refused_;
    const Result<VerdictHeader> header = DecodeVerdictHeader(bytes_);
    if (!header.ok()) return header.status().At(target_.name);
    if (bytes_.size() < kVerdictHeaderBytes + header->length &&
        !Hear(kVerdictHeaderBytes + header->length)) {
      return refused_;
    }
    const std::string text = bytes_.substr(kVerdictHeaderBytes);
    if (header->code != StatusCode::kOk) {
      if (header->code == StatusCode::kFailedPrecondition ||
          header->code == StatusCode::kUnauthenticated) {
        return Status(header->code,
                      target_.name + " at " + target_.address + " turns us away: " + text)
            .From(Origin::kPeers);
      }
      Fail(text);
      return OkStatus();
    }
    if (target_.kind == LinkKind::kMemory && !memory_) {
      Fail("it gave no memory");
      return OkStatus();
    }
    memory_name_ = text;
    state_ = State::kDone;
    return OkStatus();
  }

  const ConnectOptions& options_;
  const ConnectTarget target_;
  State state_ = State::kPausing;
  steady_clock::time_point next_{}, deadline_;
  Duration pause_{};
  std::string reason_ = "not tried yet";
  Stream link_;
  bool seal_writes_ = false;  // the handshake waits for room to write
  Status refused_;            // by a certificate; OK: not
  Socket memory_;
  HelloBytes hello_{};
  std::string bytes_, memory_name_;
};

}  // namespace

struct Resolver::Known {
  Mutex mutex;
  CondVar changed;
  std::map<std::string, Result<SocketAddress>> addresses MT_GUARDED_BY(mutex);
};

Status Resolver::Start(std::vector<std::string> hosts) {
  thread_ = {};  // the old one ends first
  known_ = std::make_shared<Known>();
  std::set<std::string> names;
  for (const std::string& host : hosts) {
    if (!NumericAddress(host, 1).ok()) names.insert(host);
  }
  if (names.empty()) return OkStatus();
  auto look_up = [known = known_, names = std::move(names)](std::stop_token stop) mutable {
    while (!names.empty() && !stop.stop_requested()) {
      for (auto name = names.begin(); name != names.end() && !stop.stop_requested();) {
        Result<SocketAddress> address = LookUp(*name, 1);
        const bool found = address.ok();
        {
          MutexLock lock(known->mutex);
          known->addresses.insert_or_assign(*name, std::move(address));
        }
        name = found ? names.erase(name) : std::next(name);
      }
      if (names.empty()) return;
      MutexLock lock(known->mutex);
      static_cast<void>(known->changed.WaitFor(known->mutex, stop, std::chrono::milliseconds(300),
                                               [] { return false; }));
    }
  };
  MT_ASSIGN_OR_RETURN(thread_, StartThread("names of peers", std::move(look_up)));
  return OkStatus();
}

Result<SocketAddress> Resolver::Find(const std::string& host, int port) const {
  Result<SocketAddress> numeric = NumericAddress(host, port);
  if (numeric.ok()) return numeric;
  std::optional<SocketAddress> found;
  {
    MutexLock lock(known_->mutex);
    const auto at = known_->addresses.find(host);
    if (at == known_->addresses.end()) return Unavailable("its name is being looked up");
    if (!at->second.ok()) return at->second.status();
    found = *at->second;
  }
  SetPort(*found, port);
  return *found;
}

Status ConnectAll(const ConnectOptions& options, std::vector<ConnectTarget> targets,
                  Resolver& resolver, const Health& health, Duration timeout, std::stop_token stop,
                  Acceptor::Arrivals& made, std::vector<std::string>& missing) {
  const auto end = steady_clock::now() + timeout;
  std::vector<std::string> hosts;
  std::vector<std::unique_ptr<Attempt>> attempts;
  for (ConnectTarget& target : targets) {
    MT_ASSIGN_OR_RETURN(const HostPort place, ParseHostPort(target.address));
    hosts.push_back(place.host);
    attempts.push_back(std::make_unique<Attempt>(options, std::move(target)));
  }
  MT_RETURN_IF_ERROR(resolver.Start(std::move(hosts)));
  std::vector<pollfd> fds;
  while (!attempts.empty()) {
    fds.clear();
    for (const auto& attempt : attempts) fds.push_back(attempt->Poll());
    const size_t polled = fds.size();
    poll(fds.data(), fds.size(), static_cast<int>(kTick.count()));
    for (size_t i = 0; i < polled; ++i) {
      Attempt& attempt = *attempts[i];
      MT_RETURN_IF_ERROR(attempt.Advance(fds[i].revents != 0, resolver));
      if (attempt.state() != Attempt::State::kDone) continue;
      const ConnectTarget& target = attempt.target();
      made[{target.process, target.kind}] = attempt.Take();
      if (target.kind == LinkKind::kData && target.memory) {
        attempts.push_back(std::make_unique<Attempt>(
            options,
            ConnectTarget{target.process, LinkKind::kMemory, target.name, attempt.memory_name()}));
      }
    }
    std::erase_if(attempts,
                  [](const auto& attempt) { return attempt->state() == Attempt::State::kDone; });
    if (attempts.empty()) break;
    Status status;
    if (stop.stop_requested()) {
      status = Cancelled("connecting to the job's processes was stopped").From(Origin::kStop);
    } else if (health.failed()) {
      status = health.Check();
    } else if (steady_clock::now() >= end) {
      status =
          DeadlineExceeded("not all of the job's processes could be reached").From(Origin::kPeers);
    }
    if (status.ok()) continue;
    for (const auto& attempt : attempts) {
      missing.push_back(attempt->target().name + " (" + attempt->target().address +
                        "): " + attempt->reason());
    }
    return status;
  }
  return OkStatus();
}

}  // namespace meshtrain::collective
