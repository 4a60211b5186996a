// What the operator, or the local runner, tells a training process through its environment
// (runtime/cluster/contract.h): the job's program, who the peers are, and where checkpoints go.
#pragma once

#include <chrono>
#include <optional>
#include <string>

#include "runtime/base/clock.h"
#include "runtime/base/status.h"
#include "runtime/cluster/tf_config.h"
#include "runtime/membership/environment.h"

namespace meshtrain::trainer {

using membership::Environment;
using membership::ProcessEnvironment;

struct JobEnvironment {
  // TF_CONFIG, with the cluster of MESHTRAIN_CLUSTER_FILE where that names a file. Nothing for a
  // lone process.
  std::optional<cluster::TfConfig> tf_config;
  std::string job;       // "namespace/name"; "" outside of a job
  int32_t attempt = 0;   // which start of the job this is
  std::string strategy;  // "": the manifest's
  Duration peer_return =
      std::chrono::seconds(120);  // how long to wait for a lost peer; 0: not at all
  std::string termination_log;    // the file for the last progress; "": none
  // The manifest as JSON, put together from MESHTRAIN_PROGRAM and its neighbours; "" where there is
  // no program.
  std::string manifest;

  // Processes that hold devices of the mesh: chief and workers.
  int64_t mesh_processes() const;
  // Our place among them, chief first; nothing for a ps or an evaluator.
  std::optional<int> process() const;
};

// Errors: kInvalidArgument naming the variable; those of reading the cluster's file.
Result<JobEnvironment> ReadEnvironment(const Environment& environment);

}  // namespace meshtrain::trainer
