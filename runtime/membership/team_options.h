// What a Team is made of.
#pragma once

#include <chrono>
#include <string>

#include "runtime/base/clock.h"
#include "runtime/cluster/tf_config.h"
#include "runtime/rpc/security.h"

namespace meshtrain::membership {

struct TeamOptions {
  cluster::TfConfig config;
  rpc::Security security;
  std::string job;  // "namespace/name"
  Duration join_timeout = std::chrono::minutes(10);
  Duration peer_return = std::chrono::seconds(120);
  Duration collective_deadline = std::chrono::seconds(60);  // how long one may stand still
  Duration stuck_after = std::chrono::seconds(60);
  // Of one attempt to link to all members; news of a loss ends it sooner.
  Duration link_timeout = std::chrono::seconds(30);
  int data_port = 0;                   // 0: any free one
  bool shared_memory = true;           // between processes of one host
  int threads = 0;                     // that the session computes with; 0: one per core
  std::string forced_instruction_set;  // for tests (arithmetic_agreement.h); "": what is agreed on
};

}  // namespace meshtrain::membership
