// The connecting half of joining an incarnation: links to the processes before ours, all at once.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <stop_token>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "runtime/base/clock.h"
#include "runtime/base/mutex.h"
#include "runtime/base/status.h"
#include "runtime/collective/health.h"
#include "runtime/collective/link/acceptor.h"
#include "runtime/collective/link/hello.h"
#include "runtime/collective/link/socket.h"
#include "runtime/collective/link/stream.h"
#include "runtime/wire/tls.h"

namespace meshtrain::collective {

// Names of hosts to addresses, on a thread of its own: the system's resolver knows no deadline.
// Thread-safe.
class Resolver {
 public:
  // Begins to look up the names that are no numeric addresses, again and again until all are known.
  // Forgets what it knew. Errors: kUnavailable (no thread).
  Status Start(std::vector<std::string> hosts);
  // The address, once it is known; kUnavailable with the last error until then.
  Result<SocketAddress> Find(const std::string& host, int port) const;

 private:
  struct Known;
  std::shared_ptr<Known> known_;
  std::jthread thread_;
};

struct ConnectTarget {
  int process = 0;
  LinkKind kind = LinkKind::kData;
  std::string name;     // of the peer, for messages
  std::string address;  // HOST:PORT
  bool memory = false;  // for kData: also connect to its memory socket
};

struct ConnectOptions {
  std::string token;
  uint64_t incarnation = 0;
  uint32_t process = 0;  // us
  uint64_t group = 0;    // Hello::group
  int memory_fd = -1;
  std::shared_ptr<const wire::TlsContext> tls = nullptr;  // null: links are plain
};

// Connects to all targets; tries again where nobody answers yet. `made` holds what was reached,
// also on error. `missing` gets a line for each target that was not, with the last reason. Errors:
// kDeadlineExceeded, kCancelled, kUnavailable (the incarnation failed); at once kUnauthenticated
// (the target does not know the token, or says that we do not; the
// certificate of one is not trusted by the other) and kFailedPrecondition (it refuses
// our incarnation or group).
Status ConnectAll(const ConnectOptions& options, std::vector<ConnectTarget> targets,
                  Resolver& resolver, const Health& health, Duration timeout, std::stop_token stop,
                  Acceptor::Arrivals& made, std::vector<std::string>& missing);

}  // namespace meshtrain::collective
