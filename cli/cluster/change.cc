#include "cli/cluster/change.h"

#include <ostream>

#include "cli/manifest.h"

namespace meshtrain::cli {

Status ChangeEach(const ChangeFlags& flags, const char* verb, const std::string& done,
                  const ChangeJob& change, const Console& console) {
  MT_ASSIGN_OR_RETURN(Cluster cluster, Connect(flags.cluster, console));
  Status first;
  for (const std::string& name : flags.names) {
    const auto job = GetJob(cluster, name);
    const Status status = job.ok() ? change(cluster, *job) : job.status();
    if (status.ok()) {
      if (!flags.cluster.quiet) console.out << kJobPrefix << name << " " << done << "\n";
      continue;
    }
    if (first.ok()) {
      first = status;
    } else {
      PrintError(verb, status, console.err);
    }
  }
  return first;
}

Status SetSuspend(const ChangeFlags& flags, const char* verb, bool suspend,
                  const Console& console) {
  return ChangeEach(
      flags, verb, suspend ? "suspended" : "resumed",
      [suspend](Cluster& cluster, const api::TrainingJob& job) -> Status {
        if (api::IsFinished(job.status)) {
          return FailedPrecondition(
              "trainingjob \"" + job.metadata.name +
              "\": expected a job that has not ended, got: " + job.status.phase);
        }
        return cluster.client
            ->Patch(TrainingJobs(), cluster.ns, job.metadata.name, "", kube::PatchType::kMerge,
                    std::string(R"({"spec":{"runPolicy":{"suspend":)") +
                        (suspend ? "true" : "false") + "}}}",
                    {})
            .status();
      },
      console);
}

}  // namespace meshtrain::cli
