// Where a TPU is and what it is made of, as far as a process can tell from what it is given and
// from the variables that Cloud TPU machines and GKE set. Talks to nobody.
//
//   ""              KUBE_GOOGLE_CLOUD_TPU_ENDPOINTS, else TPU_WORKER_HOSTNAMES (then as "local"),
//                   else TPU_NAME
//   "local"         this host's chips, and those of the hosts in TPU_WORKER_HOSTNAMES; we are
//                   TPU_WORKER_ID
//   "grpc://10.0.0.2:8470,grpc://10.0.0.3:8470"   hosts that run a TPU's server; the port is 8470
//                                                 where none is given
//
// A TPU's size follows from TPU_CHIPS_PER_HOST_BOUNDS ("2,2,1") and, without it, from TPU_TOPOLOGY
// ("4x4").
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/base/status.h"
#include "runtime/membership/environment.h"
#include "runtime/mesh/mesh.h"
#include "runtime/strategy/options.h"

namespace meshtrain::strategy {

struct TpuCluster {
  bool local = false;  // we run on its hosts, one process on each; else they are servers elsewhere
  std::vector<std::string> hosts;  // local: names, in the order of their numbers; else HOST:PORT
  int worker = 0;                  // our number among them, where `local`
  std::string accelerator_type;    // "v5litepod-16"; "" where it is not said
  int64_t chips_per_host = 0;      // 0 where it is not said: the backend knows

  // "2 hosts with 4 chips each (v5litepod-8)".
  std::string ToString() const;
};

// Errors: kInvalidArgument naming the variable or the address that is wrong, or what was looked for
// in vain; kUnimplemented for a TPU's name, which only Cloud TPU's own service can look up.
Result<TpuCluster> ResolveTpu(
    const TpuClusterResolver& resolver,
    const membership::Environment& environment = membership::ProcessEnvironment());

// The mesh of the strategy: one axis, `batch`, over every chip, host after host. Errors:
// kFailedPrecondition where the number of chips is not known.
Result<mesh::Mesh> TpuMesh(const TpuCluster& cluster);

}  // namespace meshtrain::strategy
