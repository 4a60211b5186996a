// The coordinator's side of the servers: calls that go to each of them, and what it knows of their
// state.
//
// A call to a server that is away is made again until its time is over; with none, it is made once.
// Every call may be repeated safely. So is one to a server whose disk does not take it, which may
// have room in a moment: where it never has, the error is that server's, of Origin::kOutput.
// Thread-safe, but for SetUp, which comes first, or after NewestSession.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <stop_token>
#include <string>
#include <vector>

#include "runtime/base/mutex.h"
#include "runtime/base/status.h"
#include "runtime/checkpoint/index.h"
#include "runtime/parameter/chief/planner.h"
#include "runtime/parameter/messages/messages.h"
#include "runtime/parameter/messages/transfer.h"

namespace meshtrain::parameter {

class ServerGroup {
 public:
  static Result<std::unique_ptr<ServerGroup>> Create(const std::vector<std::string>& addresses,
                                                     const Identity& identity,
                                                     Duration rpc_timeout);
  // Waits for the calls under way first: their answers are noted here.
  ~ServerGroup() { peers_.clear(); }

  int size() const { return static_cast<int>(peers_.size()); }
  const std::string& address(int server) const { return peers_[server]->address(); }

  // The newest term that any of them is in; 0: none is in one. Waits for all. Errors: as SetUp.
  Result<int64_t> NewestSession(Duration timeout, std::stop_token stop);
  // Begins a term on all of them. Errors: kUnavailable naming the server that did not answer in
  // time; a server's.
  Status SetUp(const SetUpRequest& request, Duration timeout, std::stop_token stop);
  // The job is done, or goes on with another chief. Who does not hear it in time lives on.
  void End(bool goes_on, Duration timeout);
  Status Define(const std::vector<Definition>& definitions, Duration timeout, std::stop_token stop);

  // A state by its parts, put together; of copies, the one that is saved.
  Result<mesh::Tensor> Read(const std::vector<Planner::Part>& parts, Duration timeout,
                            std::stop_token stop);
  // In all its parts and copies; durable on return.
  Status Write(const std::vector<Planner::Part>& parts, const mesh::Tensor& value, Duration timeout,
               std::stop_token stop);

  // See store.h. No step may run between Cut's beginning and its end.
  // `incarnations`: Store::Fence's. Committed is for those that `cuts_log`.
  Status Cut(int64_t step, const std::string& folder, std::vector<int64_t> incarnations,
             bool cuts_log, Duration timeout, std::stop_token stop);
  // A server has what it cut for one try: a disk's error is WriteParts' at once, and
  // kFailedPrecondition is of a server that has come back without its cut.
  Result<std::vector<checkpoint::Index>> WriteParts(
      int64_t step, const std::string& program_hash,
      const std::map<std::string, std::string>& metadata, Duration timeout, std::stop_token stop);
  Status Committed(int64_t step, Duration timeout, std::stop_token stop);

  // What each server has acknowledged at least.
  std::vector<int64_t> versions() const;
  void NoteVersions(const std::vector<int64_t>& versions);

  // Asks one server how it is: OK, or kUnavailable and the like (away), or kDataLoss: it is there,
  // but not with the state that it acknowledged.
  // `lost`: whom the chief misses, for the server to know; `incarnations`: Store::Fence's.
  void Ping(int server, std::vector<std::string> lost, std::vector<int64_t> incarnations,
            Duration timeout, std::function<void(Status)> done);
  // The newest answer's, for figures.
  int64_t log_bytes() const;

 private:
  ServerGroup(std::vector<std::unique_ptr<Peer>> peers, Duration rpc_timeout);
  // Whether a call is made again that a server answered with an error of its disk.
  enum class Again : uint8_t { kAlways, kUnlessAnswered };
  // One request each (none: that server is left out); answers in their places.
  Result<std::vector<std::string>> CallEach(const char* method,
                                            const std::vector<std::optional<Frame>>& requests,
                                            Duration timeout, Duration rpc_timeout,
                                            std::stop_token stop,
                                            const std::vector<Land>& lands = {},
                                            Again again = Again::kAlways);
  template <typename Message>
  std::vector<std::optional<Frame>> ToAll(const Message& message) const;

  std::vector<std::unique_ptr<Peer>> peers_;
  const Duration rpc_timeout_;
  mutable Mutex mutex_;
  int64_t term_ MT_GUARDED_BY(mutex_) = 0;
  int64_t definitions_ MT_GUARDED_BY(mutex_) = 0;
  int64_t next_write_ MT_GUARDED_BY(mutex_) = 0;
  std::set<int64_t> open_writes_ MT_GUARDED_BY(mutex_);  // numbers of those under way
  std::vector<int64_t> versions_ MT_GUARDED_BY(mutex_);
  std::vector<int64_t> log_bytes_ MT_GUARDED_BY(mutex_);
  std::string cut_versions_ MT_GUARDED_BY(mutex_);  // kVersionsKey of the last cut
};

}  // namespace meshtrain::parameter
