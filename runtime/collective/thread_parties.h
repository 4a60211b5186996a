// Where threads of one process meet for collectives. Each party (a replica on a thread of its own)
// has a communicator for its ranks; the last party to arrive makes one call on the communicator
// behind it, for all of them together.
//
//   ThreadParties thread_parties(parties, options);
//   auto mine = thread_parties.Join(1, {1}, signature, behind);   // one per party
//
// Kept true: every party's call is compared with the first one's, and with its signature; parties
// that would do different things are an error naming both, never a hang. A party waits at most
// `deadline` for the others to arrive (then kDeadlineExceeded naming who is missing), and after
// that for the one call under way, which ends by the deadline of the communicator behind. After an
// error or Abort every call gives kUnavailable, until Reset; only a call that the communicator
// behind refuses to all alike (kInvalidArgument) leaves them whole.
//
// A communicator that Join made belongs to one thread at a time; the parties together are
// thread-safe.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "runtime/base/clock.h"
#include "runtime/base/status.h"
#include "runtime/collective/communicator.h"

namespace meshtrain::collective {

struct ThreadPartiesOptions {
  Duration deadline = std::chrono::seconds(60);
};

class ThreadParties {
 public:
  // Who meets, by name for messages: "replica 0", "replica 1".
  explicit ThreadParties(std::vector<std::string> parties, ThreadPartiesOptions options = {});
  ~ThreadParties();
  ThreadParties(const ThreadParties&) = delete;
  ThreadParties& operator=(const ThreadParties&) = delete;

  // The communicator of one party for its ranks of a mesh, which no other party has. `behind`
  // serves the ranks of all parties; any party's may be used for a call, so they are alike.
  // `signature`: of what the party is about to do (a plan's hash), equal for those that go
  // together.
  std::unique_ptr<Communicator> Join(int party, const std::vector<int64_t>& ranks,
                                     uint64_t signature, std::shared_ptr<Communicator> behind);

  // Every waiting and every later call ends in kUnavailable with this message, until Reset. A call
  // that all parties have reached still ends by itself.
  void Abort(const Status& why);
  // Makes it whole again. Not while a party is in a call.
  void Reset();

 private:
  class Impl;
  class Seat;
  std::shared_ptr<Impl> impl_;
};

}  // namespace meshtrain::collective
