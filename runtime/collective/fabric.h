// Links between the processes of a job, for collectives: frames over TCP between hosts, shared
// memory within one.
//
// A Fabric lives as long as its process. Connect joins it to the peers of one incarnation
// (membership as rendezvous agreed on it); after Abort, or an error, Connect with the next
// incarnation makes it whole again. Frames carry incarnation, plan hash, collective id, length and
// checksum: a peer that runs another plan, or is one collective ahead, is an error that names both,
// never a hang; a stale incarnation's connection or frame is refused.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <stop_token>
#include <string>
#include <vector>

#include "runtime/base/clock.h"
#include "runtime/base/status.h"
#include "runtime/collective/communicator.h"
#include "runtime/mesh/mesh.h"
#include "runtime/wire/tls.h"

namespace meshtrain::collective {

struct FabricOptions {
  // Where the data port listens: a numeric address, IPv4 or IPv6; "": all of the host, of both.
  std::string bind;
  int port = 0;       // 0: any free one
  std::string token;  // the job's secret: a peer that does not prove it knows it is refused
  // Seals the links that leave this process' memory, both ways; null: they are plain. The same in
  // every process. Who connects asks for a certificate of the host in the peer's address.
  std::shared_ptr<const wire::TlsContext> tls = nullptr;
  // Of one collective: how long it may go without a byte from those it waits for.
  Duration deadline = std::chrono::seconds(60);
  bool shared_memory = true;  // between processes of one host; the same in every process
};

// The processes of one incarnation, in the order of mesh::Device::process.
struct FabricGroup {
  struct Peer {
    std::string name;     // "worker-3", for messages
    std::string address;  // HOST:PORT of its data port
    std::string host;     // equal for processes that can share memory (Fabric::HostId)
  };
  uint64_t incarnation = 0;
  int process = 0;  // our place
  std::vector<Peer> processes;
};

// What this process waits for, for those who watch its progress.
struct Waiting {
  uint64_t collective = 0;  // how many collectives were begun in this incarnation
  std::string what;         // GroupCall::what of the one under way; empty: none
  std::vector<int> peers;   // processes whose bytes are missing
  TimePoint since;
};

class Fabric {
 public:
  // Listens. Errors: kUnavailable (port taken).
  static Result<std::unique_ptr<Fabric>> Create(FabricOptions options);
  ~Fabric();
  Fabric(const Fabric&) = delete;
  Fabric& operator=(const Fabric&) = delete;

  int port() const;
  // Of this machine, as far as memory can be shared: processes in other network namespaces (other
  // pods) have another id.
  static std::string HostId();

  // Links to every peer, at the latest at `timeout`. Not while a collective runs.
  // Errors: kDeadlineExceeded naming the peers that are missing; kUnauthenticated (a peer does not
  // know the token, or its certificate is not trusted, or ours is not by it); kFailedPrecondition
  // (a peer is past this incarnation, or joined another group); kInvalidArgument; kCancelled.
  Status Connect(const FabricGroup& group, Duration timeout, std::stop_token stop);
  // From any thread: every blocked and every later call ends in kUnavailable with this message,
  // until the next Connect. The peers are told, so that theirs end too.
  void Abort(const Status& why);
  Waiting waiting() const;  // from any thread

  struct Impl;
  Impl& impl() { return *impl_; }  // for the communicators of this folder

 private:
  explicit Fabric(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

// The communicator of this process for one plan's mesh, whose devices name their process. `fabric`
// must outlive it; it stays valid over Connects (same number of processes). Devices of this process
// reduce among themselves first. The communicators of one fabric share its order of collectives:
// one thread issues them all. `ring`: sums between hosts go around a ring, however few their bytes,
// and not as is fastest; the same in every process, else the first collective is an error.
std::unique_ptr<Communicator> MakeProcessCommunicator(Fabric& fabric, mesh::Mesh mesh,
                                                      uint64_t plan_hash, bool ring = false);

}  // namespace meshtrain::collective
