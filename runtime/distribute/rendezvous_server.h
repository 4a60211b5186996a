// The rendezvous of a job as a gRPC service: carries what members say to the roster, and its
// answers back.
#pragma once

#include <memory>
#include <string>

#include "runtime/distribute/roster.h"
#include "runtime/distribute/security.h"

namespace meshtrain::distribute {

struct RendezvousServerOptions {
  int port = 0;  // 0: any free one
  Security security;
  std::string job;
  RosterOptions roster;
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

}  // namespace meshtrain::distribute
