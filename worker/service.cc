#include "worker/service.h"

#include <cstdio>

#include "runtime/base/text.h"
#include "runtime/membership/arithmetic_agreement.h"
#include "worker/engine.h"
#include "worker/evaluator.h"
#include "worker/parameter_processes.h"
#include "worker/role.h"
#include "worker/training.h"

namespace meshtrain::worker {
namespace {

using cluster::Role;

Status CheckDevices(const Config& config, const manifest::Manifest& manifest) {
  const mesh::DeviceKind kind = manifest.program.devices.kind;
  if (kind == mesh::DeviceKind::kCpu) return OkStatus();
  return Unimplemented(SourceName(config) +
                       ": program.devices.kind: this worker computes on cpu, got: " +
                       std::string(mesh::DeviceKindName(kind)));
}

Status Run(const Config& config, std::stop_token stop) {
  MT_RETURN_IF_ERROR(
      membership::LimitInstructionSetBy(ProcessEnvironment()).From(Origin::kManifest));
  MT_ASSIGN_OR_RETURN(manifest::Manifest manifest, ReadManifest(config));
  MT_RETURN_IF_ERROR(CheckDevices(config, manifest).From(Origin::kManifest));
  const bool servers = manifest.strategy == "ParameterServer";
  if (!config.job.tf_config) {
    if (!servers) return RunTraining(config, std::move(manifest), MakeMeshEngine, stop);
    return InvalidArgument(SourceName(config) +
                           ": spec.strategy: ParameterServer needs chief, worker and ps processes: "
                           "expected TF_CONFIG to say who they are, got: none")
        .From(Origin::kManifest);
  }
  const cluster::ClusterSpec& cluster = config.job.tf_config->cluster;
  const cluster::TaskId task = config.job.tf_config->task;
  if (task.role == Role::kEvaluator) {
    return RunEvaluator(config, std::move(manifest), stop);
  }
  if (servers) {
    if (cluster.count(Role::kPs) == 0) {
      return InvalidArgument("TF_CONFIG: cluster.ps: ParameterServer needs at least one, got: none")
          .From(Origin::kManifest);
    }
    if (task.role == Role::kPs) return RunParameterServer(config, manifest, stop);
    // Without a chief worker 0 is that too.
    const bool leads =
        task.role == Role::kChief || (cluster.count(Role::kChief) == 0 && task.index == 0);
    if (leads) return RunTraining(config, std::move(manifest), MakeServerEngine, stop);
    return RunParameterWorker(config, manifest, stop);
  }
  return RunTraining(config, std::move(manifest), MakeMeshEngine, stop);
}

}  // namespace

Status Serve(const Config& config, std::stop_token stop) {
  const Status end = Run(config, stop);
  if (!end.ok() && end.origin() != Origin::kStop) {
    std::fprintf(stderr, "meshtrain-worker: %s\n", Printable(end.message()).c_str());
  }
  std::fflush(stdout);
  return end;
}

}  // namespace meshtrain::worker
