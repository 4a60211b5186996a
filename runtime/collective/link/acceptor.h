// The one thread of a fabric: it lets peers in, and holds the control connections of those that are
// in.
//
// It listens on the data port and on a Unix socket for memory, hears hellos, and holds the control
// connections: through them it learns at once that a peer died, left or gave up, says the same of
// us, and answers where we stand.
//
// Kept true: nobody who connects can make it wait. Its sockets never block; at most kMaxHalfOpen
// connections that have not yet proved to know the token are kept, each for kHelloTimeout; one more
// ends the oldest of them. A peer that is known but early (its incarnation is not ours yet) is kept
// until we are there; a late one is told so.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "runtime/base/clock.h"
#include "runtime/base/mutex.h"
#include "runtime/base/status.h"
#include "runtime/collective/health.h"
#include "runtime/collective/link/control.h"
#include "runtime/collective/link/hello.h"
#include "runtime/collective/link/socket.h"
#include "runtime/collective/link/stream.h"
#include "runtime/wire/tls.h"

namespace meshtrain::collective {

struct AcceptorOptions {
  std::string bind;  // as FabricOptions'
  int port = 0;
  std::string token;
  int memory_fd = -1;                                     // our segment; -1: no memory is shared
  std::shared_ptr<const wire::TlsContext> tls = nullptr;  // null: links are plain
};

class Acceptor {
 public:
  static constexpr int kMaxHalfOpen = 512;
  static constexpr auto kHelloTimeout = std::chrono::seconds(5);

  // Errors: kUnavailable (port taken), kInvalidArgument (address).
  static Result<std::unique_ptr<Acceptor>> Create(AcceptorOptions options, Health& health);
  ~Acceptor();
  Acceptor(const Acceptor&) = delete;
  Acceptor& operator=(const Acceptor&) = delete;

  int port() const { return port_; }

  // --- Connect. Expect: whom to let in from now on. AwaitArrivals gives their connections.
  struct Expected {
    uint64_t incarnation = 0;
    uint32_t process = 0;  // us
    uint64_t group = 0;    // Hello::group
    std::vector<std::pair<int, LinkKind>> links;
  };
  struct Arrival {
    Stream link;
    Socket memory;  // the peer's segment, for kMemory
  };
  using Arrivals = std::map<std::pair<int, LinkKind>, Arrival>;
  void Expect(Expected expected);
  // True when all are here; false at the timeout, on `stop` and when the incarnation failed.
  bool AwaitArrivals(Duration timeout, std::stop_token stop);
  Arrivals TakeArrivals();                // those that are here
  std::vector<std::string> TurnedAway();  // since Expect: who, why, how often
  int64_t half_open_ended() const;  // since creation: connections ended before they proved anything

  // The control connections, by process.
  void Adopt(std::vector<std::pair<int, Stream>> controls);
  // To every peer.
  void Tell(ControlMessage message);
  // Tells every peer and closes the control connections, before returning. Nobody is expected then.
  void Leave(ControlMessage message);

  // Asks peers where they are; none where no answer came in time.
  std::map<int, ControlMessage> Ask(std::span<const int> processes, uint64_t collective,
                                    Duration timeout);

 private:
  struct Connection;
  enum class Stage : uint8_t { kSeal, kHello, kAnswer, kParked, kControl };

  Acceptor(AcceptorOptions options, Health& health);
  Status Open();
  void Do(std::function<void()> work);  // on the thread; returns after it was done
  void Loop(std::stop_token stop);
  void RunInbox();
  void Accept(const Socket& listener, bool local);
  void PauseAccepting(bool pause);
  void EndHalfOpen(bool all_expired);
  void Ready(uint64_t id);
  // Each gives false when the connection is to be closed.
  bool HearSeal(Connection& c);
  bool HearHello(Connection& c);
  bool HearAnswer(Connection& c);
  bool HearControl(Connection& c);
  bool Decide(Connection& c);
  bool Refuse(Connection& c, StatusCode code, const std::string& text);
  void NoteRefusal(const Connection& c, const std::string& text);
  void Handle(int process, const ControlMessage& message);
  void Send(Connection& c, const ControlMessage& message);
  void Lost(int process, const std::string& how);
  void Close(uint64_t id);
  void Watch(const Socket& socket, uint64_t id, uint32_t events);

  const AcceptorOptions options_;
  Health& health_;
  int port_ = 0;
  std::string memory_name_;
  Socket listener_, memory_listener_, wake_, epoll_;

  // The thread's own.
  uint64_t next_id_ = 8;  // smaller ones are the listeners and the wake
  std::map<uint64_t, std::unique_ptr<Connection>> connections_;
  std::deque<uint64_t> half_open_;  // oldest first; some may be gone
  int half_open_count_ = 0;
  std::optional<std::chrono::steady_clock::time_point>
      paused_until_;  // no file descriptor was left to accept with
  std::optional<Expected> expected_;
  std::map<int, uint64_t> controls_;  // process -> connection

  mutable Mutex mutex_;
  CondVar changed_;
  std::vector<std::function<void()>> inbox_ MT_GUARDED_BY(mutex_);
  uint64_t inbox_done_ MT_GUARDED_BY(mutex_) = 0, inbox_given_ MT_GUARDED_BY(mutex_) = 0;
  Arrivals arrivals_ MT_GUARDED_BY(mutex_);
  size_t awaited_ MT_GUARDED_BY(mutex_) = 0;
  std::map<std::string, int> turned_away_ MT_GUARDED_BY(mutex_);
  int64_t half_open_ended_ MT_GUARDED_BY(mutex_) = 0;
  uint64_t sequence_ MT_GUARDED_BY(mutex_) = 0;
  std::map<int, ControlMessage> answers_ MT_GUARDED_BY(mutex_);  // to the question `sequence_`

  std::jthread thread_;  // last: it ends before what it uses
};

// 32 bytes that nobody can guess.
Nonce FreshNonce();

}  // namespace meshtrain::collective
