// What a fabric is made of; for the communicators that stand on it and for tests.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "runtime/collective/call.h"
#include "runtime/collective/fabric.h"
#include "runtime/collective/health.h"
#include "runtime/collective/link/acceptor.h"
#include "runtime/collective/link/connector.h"
#include "runtime/collective/link/network.h"
#include "runtime/collective/memory/segment.h"
#include "runtime/collective/memory/shm.h"
#include "runtime/collective/transport.h"

namespace meshtrain::collective {

struct Fabric::Impl final : Diagnosis {
  Status Connect(const FabricGroup& wanted, Duration timeout, std::stop_token stop);
  void Abort(const Status& why);

  // One collective of a communicator: body(call) carries it out; call.peers is still to be filled.
  // An error ends the incarnation, here and at the peers.
  using Body = std::function<Status(Call& call)>;
  Status Run(const GroupCall& group_call, uint64_t plan_hash, uint64_t digest, const Body& body);

  Status Late(int process) override;
  Status Diverges(FrameDifference difference, const FrameHeader& got,
                  const FrameHeader& want) override;

  Status Join(const FabricGroup& wanted, Duration timeout, std::stop_token stop);
  Status Attach(Acceptor::Arrivals links);

  FabricOptions options;
  Health health;
  std::unique_ptr<Segment> segment;  // null: no memory is shared
  std::optional<SharedMemory> shared;
  Network network;
  std::optional<Transport> transport;
  Resolver resolver;
  std::unique_ptr<Acceptor> acceptor;

  // Written by Connect, read by the issuing thread.
  FabricGroup group;
  std::vector<int> host_of;  // per process: a number, equal for those that share memory
  uint64_t connects =
      0;  // successful or not: what communicators remember of the group is of one of them
  const Call* running = nullptr;
  std::atomic<bool> busy{false};
};

}  // namespace meshtrain::collective
