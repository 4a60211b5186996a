// What the verbs that speak to a cluster share: their flags, the connection, and what an error of
// the API server means for the exit code.
#pragma once

#include <iosfwd>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>

#include "cli/verbs.h"
#include "operator/api/training_job.h"
#include "operator/kube/client.h"
#include "runtime/base/clock.h"
#include "runtime/base/status.h"

namespace meshtrain::cli {

struct ClusterFlags {
  std::string kubeconfig, context, ns;
  bool quiet = false;    // results and errors only
  bool verbose = false;  // every request, on stderr
};
// --kubeconfig, --context, --namespace, --quiet, --verbose.
void AddClusterFlags(CLI::App* verb, ClusterFlags* flags);

// A check of CLI11's: what is wrong with a job's name, which empty would name the list of all.
std::string CheckJobName(const std::string& name);

struct Cluster {
  std::unique_ptr<kube::Client> client;
  std::string ns;  // the flag's, else the context's, else "default"
};
// Does not connect yet. Errors: kInvalidArgument, kNotFound where no kubeconfig can be used.
Result<Cluster> Connect(const ClusterFlags& flags, const Console& console);

inline kube::Resource TrainingJobs() { return {"meshtrain.dev", "v1", "trainingjobs"}; }
inline constexpr std::string_view kJobPrefix = "trainingjob.meshtrain.dev/";

// Errors: kNotFound: `trainingjob "mnist": not found in namespace ml`.
Result<std::string> GetJobText(Cluster& cluster, const std::string& name,
                               std::stop_token stop = {});
// What the API server says of a job. Errors: FromJson's, of Origin::kApiServer.
Result<api::TrainingJob> JobOf(std::string_view answer);
Result<api::TrainingJob> GetJob(Cluster& cluster, const std::string& name,
                                std::stop_token stop = {});

// For verbs that wait for a job, and look at it every second. A server that does not answer, as
// while it is being upgraded, is asked again ever less often, for five minutes.
class Patience {
 public:
  // After a look: sleeps, and returns true where the server is to be asked again; false for an
  // error that is not kUnavailable or kDeadlineExceeded, and when it lasts too long.
  bool Rest(const Status& answer, const std::stop_token& stop);

 private:
  std::optional<Duration> silent_since_;
  Duration pause_{};
};

// The end of a verb that waits and was stopped; of kStop.
Status NoLongerWaiting(const std::string& job);
// Of kOutput.
Status CannotPrint();

// The exit code of a verb that spoke to the API server, after "meshtrain VERB: MESSAGE" on stderr.
// `signal`: that stopped it; 0: none is known.
int EndOfCall(const char* verb, const Status& status, const Console& console, int signal = 0);
// What stands below the help of the command line.
std::string ExitCodesHelp();

}  // namespace meshtrain::cli
