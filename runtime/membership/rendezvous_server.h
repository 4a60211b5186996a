// The rendezvous of a job as a gRPC service: carries what members say to the roster, and its
// answers back.
//
// What strangers can make it hold is bounded: who does not prove itself (CallGate) is refused
// before a message is read. Who does has `first_word_within` for the first message of a call, and
// to say that it has an answer, 8 calls at a time over one connection, and all together a few for
// each task; more are refused.
#pragma once

#include <memory>
#include <string>

#include "runtime/membership/roster.h"
#include "runtime/rpc/security.h"

namespace meshtrain::membership {

struct RendezvousServerOptions {
  std::string address;  // a numeric one to listen at; "": all of the host
  int port = 0;         // 0: any free one
  rpc::Security security;
  std::string job;
  RosterOptions roster;
  Duration first_word_within = std::chrono::seconds(10);
};

class RendezvousServer {
 public:
  // Listens at once. Errors: kUnavailable (port taken); of the certificate files.
  static Result<std::unique_ptr<RendezvousServer>> Create(RendezvousServerOptions options);
  ~RendezvousServer();

  int port() const;
  std::vector<double> StepSeconds() const;  // Roster::StepSeconds
  // Ends every stream and call; returns when they have ended, at the latest after `grace`.
  void Stop(Duration grace);

 private:
  class Impl;
  explicit RendezvousServer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace meshtrain::membership
