// Kubeflow's TFJob (kubeflow.org/v1) as a TrainingJob. Pure: a tree to a tree.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/status.h"
#include "runtime/manifest/node.h"

namespace meshtrain::cli {

struct TfJobOptions {
  // Host names as TFJob gave them (JOB-ROLE-INDEX.NAMESPACE.svc), with a Service per replica:
  // `tfConfig.compat: kubeflow-v1`.
  bool keep_host_names = false;
};

// What a person should know of a field that is not simply the same in a TrainingJob.
struct TfJobNote {
  manifest::Place place;  // in the TFJob
  std::string path;       // in the TFJob: "spec.enableDynamicWorker"
  std::string says;
  bool left_out = false;  // the TrainingJob does not say it
};

struct ConvertedJob {
  manifest::Node job;
  std::vector<TfJobNote> notes;  // in the order of the text
};

// Every field of `tfjob` is in the job or in a note. Errors: kInvalidArgument for what is no TFJob,
// and for values of a kind that their fields do not have, a line each:
//   FILE:2:7: kind: expected TFJob, got: PyTorchJob
Result<ConvertedJob> FromTfJob(const manifest::Node& tfjob, const TfJobOptions& options,
                               std::string_view file = {});

// Whether the document says of itself that it is a TFJob.
bool IsTfJob(const manifest::Node& document);

}  // namespace meshtrain::cli
