// The process of a parameter server: a store behind a port.
//
// Pushes that arrive while a group is being written form the next group, which one sync makes
// durable. Pulls read the newest version of the store and wait for nothing, unless they ask for a
// version that is yet to come. A push that was acknowledged is seen by every pull after it.
#pragma once

#include <memory>
#include <string>

#include "runtime/base/status.h"
#include "runtime/parameter/messages/chief_watch.h"
#include "runtime/parameter/messages/transfer.h"
#include "runtime/parameter/server/store.h"

namespace meshtrain::parameter {

struct ServerOptions {
  int port = 0;  // 0: any free one
  Identity identity;
  StoreOptions store;   // `folder` on the checkpoint volume, a folder for each server
  std::string address;  // a numeric one to listen at; "": all of the host
};

// Since the process began.
struct ServerStats {
  int64_t pushes = 0;      // acknowledged, those that came again too
  int64_t stale = 0;       // refused: computed from values older than the staleness bound
  int64_t not_finite = 0;  // refused: a value that is not finite
  int64_t pulls = 0;       // answered
  int64_t pushed_bytes = 0;
  int64_t pulled_bytes = 0;
  int64_t log_bytes = 0;  // now
};

class ParameterServer {
 public:
  // Recovers what the folder holds, then listens; a log that leads to no state is set aside
  // (Store::Open). Errors: Store::Open's; kUnavailable for a port that is taken.
  static Result<std::unique_ptr<ParameterServer>> Serve(ServerOptions options);
  // Answers what is under way with kCancelled; what was acknowledged stays.
  ~ParameterServer();
  ParameterServer(const ParameterServer&) = delete;
  ParameterServer& operator=(const ParameterServer&) = delete;

  int port() const;
  // Thread-safe. Not OK: the disk failed, or stayed full for StoreOptions::no_room_timeout; nothing
  // is acknowledged any more, and the process should be started anew.
  Status health() const;
  // Thread-safe. The coordinator has said that the job is done.
  bool ended() const;
  // Thread-safe.
  ChiefSeen chief() const;
  ServerStats stats() const;

 private:
  class Impl;
  explicit ParameterServer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace meshtrain::parameter
