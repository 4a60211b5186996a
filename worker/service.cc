#include "worker/service.h"

#include <cstdio>

#include "runtime/base/text.h"
#include "runtime/membership/arithmetic_agreement.h"
#include "runtime/trainer/job/choices.h"
#include "runtime/trainer/job/stages.h"
#include "runtime/trainer/job/training.h"
#include "worker/evaluator.h"
#include "worker/parameter_processes.h"
#include "worker/read_manifest.h"

namespace meshtrain::worker {
namespace {

using cluster::Role;

Status Run(const trainer::JobConfig& config, std::stop_token stop) {
  MT_RETURN_IF_ERROR(
      membership::LimitInstructionSetBy(trainer::ProcessEnvironment()).From(Origin::kManifest));
  MT_ASSIGN_OR_RETURN(manifest::Manifest manifest, ReadManifest(config));
  const bool servers = manifest.strategy == "ParameterServer";
  if (!config.job.tf_config) {
    if (!servers)
      return trainer::RunTraining(config, std::move(manifest), trainer::MakeMeshJob, stop);
    return InvalidArgument(trainer::SourceName(config) +
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
    if (leads)
      return trainer::RunTraining(config, std::move(manifest), trainer::MakeServerJob, stop);
    return RunParameterWorker(config, manifest, stop);
  }
  return trainer::RunTraining(config, std::move(manifest), trainer::MakeMeshJob, stop);
}

}  // namespace

Status Serve(const trainer::JobConfig& config, std::stop_token stop) {
  const Status end = Run(config, stop);
  if (!end.ok() && end.origin() != Origin::kStop) {
    std::fprintf(stderr, "meshtrain-worker: %s\n", Printable(end.message()).c_str());
  }
  std::fflush(stdout);
  return end;
}

}  // namespace meshtrain::worker
