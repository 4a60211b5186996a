#include "runtime/trainer/job/choices.h"

#include <unistd.h>

#include <filesystem>
#include <system_error>
#include <utility>

#include "runtime/base/check.h"
#include "runtime/base/text.h"
#include "runtime/checkpoint/weights.h"
#include "runtime/cluster/contract.h"
#include "runtime/trainer/generate.h"

namespace meshtrain::trainer {
namespace {

namespace fs = std::filesystem;

// Whether both are one folder, there or not.
bool IsSame(const fs::path& a, const fs::path& b) {
  std::error_code error;
  const auto full = [&](const fs::path& path) {  // without a slash at its end
    return fs::weakly_canonical((fs::absolute(path, error) / "").parent_path(), error);
  };
  const fs::path one = full(a), other = full(b);
  return !error && one == other;
}

// Whose output folder is the job's.
bool IsLeader(const cluster::TfConfig& config) {
  if (config.task.role == cluster::Role::kChief) return true;
  return config.task == cluster::TaskId{cluster::Role::kWorker, 0} &&
         config.cluster.count(cluster::Role::kChief) == 0;
}

}  // namespace

std::string SourceName(const JobConfig& config) {
  if (!config.manifest_name.empty()) return config.manifest_name;
  return config.file.empty() ? std::string(cluster::kEnvProgram) : config.file;
}

std::string JobName(const manifest::Manifest& manifest) {
  return manifest.name.empty() ? "program" : manifest.name;
}

std::string CheckpointFolder::advice() const {
  return own ? "give another --output, or `checkpoint.resume: Never` to begin anew"
             : "give another `checkpoint.path`";
}

CheckpointFolder CheckpointFolderOf(const JobConfig& config, const manifest::Manifest& manifest) {
  const std::string own = config.output + "/checkpoints";
  const std::string& named = manifest.checkpoint.path;
  if (named.empty()) return {.path = own, .own = true, .shared = false};
  bool is_own = IsSame(named, own);
  if (const auto& tf_config = config.job.tf_config; !is_own && tf_config && !IsLeader(*tf_config)) {
    const fs::path output = fs::path(config.output).lexically_normal();
    const fs::path folder = output.has_filename() ? output : output.parent_path();
    is_own = folder.filename() == cluster::ToString(tf_config->task) &&
             IsSame(named, folder.parent_path() / "checkpoints");
  }
  return {.path = named, .own = is_own, .shared = true};
}

Status CheckBatches(const recipe::Declared& program, const data::Pipeline& train,
                    const data::Pipeline* test) {
  const auto batches = [](const data::Pipeline& data) {
    return recipe::Batches{data.BatchTypes(data.batch_size()), data.batch_sizes()};
  };
  return program.CheckBatches(batches(train),
                              test == nullptr ? std::nullopt : std::optional(batches(*test)));
}

Status CheckMeshJob(const manifest::Manifest& manifest, const JobConfig& config) {
  const std::string file = SourceName(config);
  if (manifest.program.processes > 1 && !config.job.tf_config) {
    return InvalidArgument(file + ": its mesh lies in " +
                           std::to_string(manifest.program.processes) +
                           " processes: expected TF_CONFIG to say who they are, got: none");
  }
  if (!config.job.process()) {
    return InvalidArgument(
        "TF_CONFIG: expected a chief or a worker, or the strategy ParameterServer, got: " +
        cluster::ToString(config.job.tf_config->task));
  }
  if (manifest.program.strict && config.isolated) {
    return Unimplemented(file +
                         ": program.numerics: strict holds where the devices share memory, "
                         "not with --isolated");
  }
  return OkStatus();
}

MeshRunner::Trace TraceOf(const recipe::Declared& program) {
  return [program](const std::vector<mesh::TensorType>& types) -> Result<TracedSteps> {
    MT_ASSIGN_OR_RETURN(recipe::Traced traced, program.Trace(types));
    sharding::Given layouts;
    layouts.inputs = std::move(traced.layouts.inputs);
    layouts.states = std::move(traced.layouts.states);
    return TracedSteps{std::move(traced.programs), std::move(layouts)};
  };
}

mesh::TensorType OneText(mesh::TensorType batch) {
  if (batch.rank() > 0) batch.dims[0] = 1;
  return batch;
}

Result<WriteText> PlanText(const manifest::Program& program, const recipe::TracedPrediction& next,
                           Engine& engine) {
  MT_CHECK(program.generate.has_value());
  const manifest::Generate& asked = *program.generate;
  const std::string where = program.Where("generate.prompt");
  auto prompt = manifest::CharacterNumbers(program, asked.prompt);
  if (!prompt.ok()) return prompt.status().At(where);
  const program::Program& traced = next.prediction.program;
  for (const auto& [input, rows] : next.prediction.rows) {
    for (size_t i = 0; i < prompt->size(); ++i) {
      if ((*prompt)[i] < rows) continue;
      return InvalidArgument(where + ": expected characters of the " + std::to_string(rows) +
                             " that the model knows, got: `" + Excerpt(asked.prompt.substr(i, 1)) +
                             "` at byte " + std::to_string(i));
    }
  }
  MT_ASSIGN_OR_RETURN(const size_t number, engine.AddPrediction(next.prediction, /*whole=*/true));
  const GenerateOptions options{.length = asked.length,
                                .temperature = asked.temperature,
                                .seed = asked.seed.value_or(program.seed)};
  const WindowLogits windows(engine, number, traced.type(traced.inputs[0].value),
                             traced.type(traced.outputs[0].value).dims[1]);
  NextLogits logits = windows;
  if (next.by_id && engine.keeps()) {
    MT_ASSIGN_OR_RETURN(const size_t by_id, engine.AddPrediction(*next.by_id, /*whole=*/true));
    logits = KeptLogits(engine, by_id, windows);
  }
  return WriteText(
      [options, logits, prompt = *std::move(prompt), text = asked.prompt,
       characters = manifest::Characters(program)](std::stop_token stop) -> Result<std::string> {
        // Each time from the start: where a process was lost, a new one remembers nothing, and all
        // of them must ask for the same.
        MT_ASSIGN_OR_RETURN(const std::vector<int64_t> ids,
                            WriteIds(prompt, options, NextLogits(logits), stop));
        std::string written = text;
        for (const int64_t id : ids) written += characters[static_cast<size_t>(id)];
        return written;
      });
}

Result<std::vector<mesh::Tensor>> InitialWeightsOf(const manifest::Program& program,
                                                   std::span<const nn::Parameter> parameters) {
  if (program.initial_weights.empty()) return std::vector<mesh::Tensor>();
  std::vector<mesh::NamedType> wanted;
  for (const nn::Parameter& p : parameters) wanted.push_back({p.name(), p.type()});
  return checkpoint::LoadWeights(program.initial_weights, wanted);
}

std::set<std::string, std::less<>> OwnHostNames(const JobConfig& config) {
  std::set<std::string, std::less<>> names;
  const auto add = [&](std::string_view name) {
    if (!name.empty()) names.insert(ToLower(name));
  };
  add(config.host);
  char machine[256] = "";
  if (::gethostname(machine, sizeof machine - 1) == 0) add(machine);
  if (config.job.tf_config) {
    const std::string address = config.job.tf_config->cluster.host(config.job.tf_config->task);
    add(address.substr(0, address.rfind(':')));
  }
  return names;
}

std::string ModelPath(const JobConfig& config) { return config.output + "/model.safetensors"; }

}  // namespace meshtrain::trainer
