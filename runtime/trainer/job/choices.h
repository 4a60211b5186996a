// What a job's manifest and configuration decide together: how its program is traced and begins,
// where it saves, and what its errors call the manifest.
#pragma once

#include <functional>
#include <set>
#include <span>
#include <stop_token>
#include <string>
#include <vector>

#include "runtime/base/status.h"
#include "runtime/data/pipeline.h"
#include "runtime/recipe/recipe.h"
#include "runtime/trainer/engine.h"
#include "runtime/trainer/job/config.h"
#include "runtime/trainer/mesh_runner.h"

namespace meshtrain::trainer {

// What errors call the manifest: its file, or the variable that holds it.
std::string SourceName(const JobConfig& config);
// Of the manifest, or "program".
std::string JobName(const manifest::Manifest& manifest);
// Where checkpoints go.
struct CheckpointFolder {
  std::string path;
  bool own = false;     // it is `checkpoints` of the job's output, named by the manifest or not
  bool shared = false;  // the manifest names it: every process writes and reads its own shards
  // What to do about a checkpoint in it that the job cannot go on from.
  std::string advice() const;
};
// In every process of a job whose output folders are those that `meshtrain run` and the operator
// give them: the leader's, and ROLE-INDEX in it.
CheckpointFolder CheckpointFolderOf(const JobConfig& config, const manifest::Manifest& manifest);

// Declared::CheckBatches of what was opened; `test`: null where there is none.
Status CheckBatches(const recipe::Declared& program, const data::Pipeline& train,
                    const data::Pipeline* test);

// Whether this process can take its part in a job over a mesh. Errors: kInvalidArgument, of who it
// is; kUnimplemented, of what the command line does not go with.
Status CheckMeshJob(const manifest::Manifest& manifest, const JobConfig& config);

// What Engine::Compile takes for the program: traced as the manifest lays it out. Errors: the
// trace's, with the place in the manifest.
MeshRunner::Trace TraceOf(const recipe::Declared& program);

// Plans what `generate` asks for, which must be there; `next`: of Declared::TraceNext, whose
// weights the engine has, and which it outlives. The function gives the prompt and what the model
// writes behind it; all processes of the engine call it. Errors: the engine's; kInvalidArgument for
// a prompt that is not of data.train's characters. The function's: WriteIds'.
using WriteText = std::function<Result<std::string>(std::stop_token stop)>;
Result<WriteText> PlanText(const manifest::Program& program, const recipe::TracedPrediction& next,
                           Engine& engine);
// A text of one window, of batches of this type.
mesh::TensorType OneText(mesh::TensorType batch);

// The weights' first values where the manifest names a file of them; empty where it does not.
// Errors: LoadWeights'.
Result<std::vector<mesh::Tensor>> InitialWeightsOf(const manifest::Program& program,
                                                   std::span<const nn::Parameter> parameters);

// Names by which the process's web server is asked, in lower case: the host of --metrics-address,
// the machine's own, and in a cluster the one that its peers are told.
std::set<std::string, std::less<>> OwnHostNames(const JobConfig& config);

// Where the trained weights go.
std::string ModelPath(const JobConfig& config);

}  // namespace meshtrain::trainer
