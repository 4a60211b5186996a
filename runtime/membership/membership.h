// Who takes part in a job, and since when: the rendezvous of the mesh's processes (chief and
// workers), their health, and small agreements between them.
//
// The first of them (the chief, else the first worker of TF_CONFIG) serves at the port of its
// TF_CONFIG address; everybody, itself included, is its client, through one stream that lasts from
// the first Join to Leave. While all are well they share one *incarnation*, numbered by an id that
// only rises. When one is lost, is stuck, or joins anew, the incarnation is over for all of them:
// OnLost is called, Agree fails, and who wants to go on calls Join. A process that was replaced
// meanwhile (stopped, and its task started anew elsewhere) is refused with "stale incarnation".
//
//   first Join ----> member of incarnation N ----> OnLost(why) ----> Join ----> member of
//   incarnation N+1 ...
//
// Thread-safe. Join, Agree and Leave are each called by one thread at a time; a second call
// meanwhile is an error (kFailedPrecondition). No call outlasts its deadline, and a stop request
// ends each at once.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <stop_token>
#include <string>
#include <vector>

#include "runtime/base/clock.h"
#include "runtime/base/status.h"
#include "runtime/cluster/stop_grace.h"
#include "runtime/cluster/tf_config.h"
#include "runtime/rpc/security.h"

namespace meshtrain::membership {

struct MembershipOptions {
  cluster::TfConfig config;  // us and the peers; ps and evaluator are no members
  rpc::Security security;
  std::string job;           // "namespace/name": a peer of another job is refused by name
  std::string data_address;  // of our Fabric: HOST:PORT others reach us at
  std::string host;          // Fabric::HostId()
  int serve_port = 0;        // where we listen, if we serve; 0: the port of our TF_CONFIG address
  Duration join_timeout = std::chrono::minutes(10);  // first start: pods come up one by one
  Duration peer_return = std::chrono::seconds(
      120);  // peerReturnSeconds: how long Join waits after a loss; 0: not at all
  // After so long a Join says in the log whom it waits for; then again, each time after twice as
  // long.
  Duration say_after = std::chrono::seconds(5);
  Duration heartbeat = std::chrono::milliseconds(100);
  Duration lost_after = cluster::kLostAfter;
  Duration stuck_after =
      std::chrono::seconds(60);  // alive, but its progress stands still while others wait for it
};

struct Member {
  cluster::TaskId task;
  std::string data_address;
  std::string host;
  int64_t checkpoint_step = 0;  // as it said in Join
  uint64_t instance = 0;        // which process of the task: a random number
  friend bool operator==(const Member&, const Member&) = default;
};

struct Incarnation {
  // Rises with every change of membership, also over restarts of the process that serves: at least
  // the wall clock's milliseconds at that process' start, and above every id that a joiner was a
  // member of. Below 2^53.
  uint64_t id = 0;
  int process = 0;  // our place: chief first, then workers by index
  std::vector<Member> members;
  friend bool operator==(const Incarnation&, const Incarnation&) = default;
};

class Membership {
 public:
  // Listens, where we are the one that serves; connects only when joining.
  // Errors: kInvalidArgument (a task that is no member, an address without a port); kUnavailable
  // (port taken); of the certificate files.
  static Result<std::unique_ptr<Membership>> Create(MembershipOptions options);
  // Without Leave before, the others see us as lost.
  ~Membership();
  Membership(const Membership&) = delete;
  Membership& operator=(const Membership&) = delete;

  // Waits until every member is here and agrees on the next incarnation. Until we were a member
  // once: join_timeout; later: peer_return, counted from this call. In an incarnation that is still
  // good it gives that up, for everybody (what to do when the data's links failed first). Errors:
  // kDeadlineExceeded naming who is missing; kUnavailable at once where peer_return is 0, naming
  // who was lost; kPermissionDenied (token); kFailedPrecondition (another job or cluster or
  // version; "stale incarnation": our task has a newer process); kCancelled.
  Result<Incarnation> Join(int64_t checkpoint_step, std::stop_token stop);

  // All-gather of small texts (up to 1 MiB) within the incarnation, in the order of processes:
  // compare plan hashes, agree on the resume step, collect checkpoint parts, pass a stop request.
  // Every member calls the same sequence of names: else an error names two that differ. It succeeds
  // for all or fails for all that are still there: the first deadline, or stop request, of one of
  // them ends it for everybody. Errors: kUnavailable naming who was lost or left; kDeadlineExceeded
  // naming who did not come; kFailedPrecondition (names differ, no incarnation); kInvalidArgument
  // (too long); kCancelled.
  Result<std::vector<std::string>> Agree(const std::string& name, const std::string& text,
                                         Duration timeout, std::stop_token stop);

  // Where we stand, for those who look for a stuck member: call it often, it only stores.
  // `collective`: how many were begun in this incarnation. `waiting_at`: the instruction that waits
  // for others; empty: we compute. While Agree waits, that is what we wait at.
  void ReportProgress(int64_t step, uint64_t collective, std::string waiting_at);
  // Our own time in the step that ended last, without waiting for others.
  void ReportStepTime(Duration own);
  // What each member reported so in the incarnation at hand, in seconds and in the order of
  // processes; 0 where it has not yet. At most a heartbeat old. Empty where another process serves.
  std::vector<double> StepSeconds() const;
  // What we do by ourselves that may take longer than `stuck_after`, such as writing to a slow
  // volume; "": nothing of the kind any more. Until then we are not taken for stuck.
  void ReportBusy(std::string with);

  // Each `callback` is called at most once per incarnation, on a thread of ours, when a member (or
  // we, for the others) is lost or stuck: kUnavailable naming it ("worker-2 lost: connection
  // closed", "worker-2 stands at step 41 in all_reduce of %31; 3 others wait for it");
  // kFailedPrecondition where we were replaced. Also for a loss before this call, whoever was told
  // of it. It must not block for long, and not destroy the Membership.
  void OnLost(std::function<void(const Status&)> callback);

  // Leaves on purpose (done, or SIGTERM after saving): the others are not alarmed; what they Agree
  // on says who left. Returns when that is noted, or at `timeout` with kDeadlineExceeded. Ends
  // every call under way with kCancelled; the Membership is of no more use. The process that serves
  // ends its server with it.
  Status Leave(Duration timeout);

 private:
  class Impl;
  explicit Membership(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace meshtrain::membership
