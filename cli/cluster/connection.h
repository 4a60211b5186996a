// What the verbs that speak to a cluster share: their flags, the connection, and what an error of
// the API server means for the exit code.
#pragma once

#include <iosfwd>
#include <memory>
#include <string>

#include "cli/verbs.h"
#include "operator/api/training_job.h"
#include "operator/kube/client.h"
#include "runtime/base/status.h"

namespace meshtrain::cli {

struct ClusterFlags {
  std::string kubeconfig, context, ns;
  bool quiet = false;    // results and errors only
  bool verbose = false;  // every request, on stderr
};
// --kubeconfig, --context, --namespace, --quiet, --verbose.
void AddClusterFlags(CLI::App* verb, ClusterFlags* flags);

struct Cluster {
  std::unique_ptr<kube::Client> client;
  std::string ns;  // the flag's, else the context's, else "default"
};
// Does not connect yet. Errors: kInvalidArgument, kNotFound where no kubeconfig can be used.
Result<Cluster> Connect(const ClusterFlags& flags, const Console& console);

inline kube::Resource TrainingJobs() { return {"meshtrain.dev", "v1", "trainingjobs"}; }
inline constexpr std::string_view kJobPrefix = "trainingjob.meshtrain.dev/";

// Errors: kNotFound: `trainingjob "mnist": not found in namespace ml`.
Result<std::string> GetJobText(Cluster& cluster, const std::string& name);
Result<api::TrainingJob> GetJob(Cluster& cluster, const std::string& name);

// The exit code of a verb that spoke to the API server, after "meshtrain VERB: MESSAGE" on stderr.
int EndOfCall(const char* verb, const Status& status, const Console& console);
// What stands below the help of the command line.
std::string ExitCodesHelp();

}  // namespace meshtrain::cli
