#include "worker/role.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cstdio>

#include "runtime/base/file.h"
#include "runtime/base/log.h"
#include "runtime/base/text.h"
#include "runtime/cluster/contract.h"

namespace meshtrain::worker {

namespace {

// Kubernetes' default for a container's terminationMessagePath.
constexpr char kTerminationLog[] = "/dev/termination-log";

}  // namespace

std::string SourceName(const Config& config) {
  return config.file.empty() ? std::string(cluster::kEnvProgram) : config.file;
}

Result<manifest::Manifest> ReadManifest(const Config& config) {
  const manifest::ReadOptions options{.processes = config.job.mesh_processes()};
  if (config.file.empty()) {
    return recipe::ParseManifest(config.job.manifest, SourceName(config), options)
        .From(Origin::kManifest);
  }
  MT_ASSIGN_OR_RETURN(const std::string text,
                      ReadFile(config.file, int64_t{4} << 20).From(Origin::kManifest));
  return recipe::ParseManifest(text, config.file, options).From(Origin::kManifest);
}

std::string JobName(const manifest::Manifest& manifest) {
  return manifest.name.empty() ? "program" : manifest.name;
}

CheckpointFolder CheckpointFolderOf(const Config& config, const manifest::Manifest& manifest) {
  if (manifest.checkpoint.path.empty()) return {config.output + "/checkpoints", true};
  return {manifest.checkpoint.path, false};
}

Result<int> OwnPort(const cluster::TfConfig& config) {
  const std::string host = config.cluster.host(config.task);
  const size_t colon = host.rfind(':');
  const auto port = colon == std::string::npos ? std::nullopt
                                               : ParseInt(std::string_view(host).substr(colon + 1));
  if (!port || *port < 1 || *port > 65535) {
    return InvalidArgument("TF_CONFIG: cluster: expected HOST:PORT for " +
                           cluster::ToString(config.task) +
                           ", got: " + (host.empty() ? "none" : host))
        .From(Origin::kManifest);
  }
  return static_cast<int>(*port);
}

Status CheckBatches(const recipe::Declared& program, const data::Pipeline& train,
                    const data::Pipeline* test) {
  const auto batches = [](const data::Pipeline& data) {
    return recipe::Batches{data.BatchTypes(data.batch_size()), data.batch_sizes()};
  };
  return program.CheckBatches(batches(train),
                              test == nullptr ? std::nullopt : std::optional(batches(*test)));
}

train::SaveTimes SaveTimesOf(const manifest::Manifest& manifest) {
  train::SaveTimes times = train::kSaveByDefault;
  if (manifest.checkpoint.every_steps > 0) {
    times = {.every_steps = manifest.checkpoint.every_steps};
  }
  const auto& early = manifest.program.train.early_stopping;
  times.each_epoch = times.each_epoch || (early && early->restore_best_weights);
  return times;
}

std::optional<train::EarlyStopping> EarlyStoppingOf(const manifest::Manifest& manifest) {
  const auto& early = manifest.program.train.early_stopping;
  if (!early) return std::nullopt;
  return train::EarlyStopping(early->monitor, early->patience, early->min_delta);
}

std::optional<int64_t> BestStep(const manifest::Manifest& manifest,
                                const train::EarlyStopping* early) {
  const auto& asked = manifest.program.train.early_stopping;
  if (!asked || !asked->restore_best_weights || early == nullptr || !early->best()) {
    return std::nullopt;
  }
  return early->best()->step;
}

void Say(const std::string& line) {
  std::printf("%s\n", Printable(line).c_str());
  std::fflush(stdout);
}

void TellTermination(const Config& config, const std::string& message) {
  std::string path = config.job.termination_log;
  if (path.empty() && !config.job.job.empty() && ::access(kTerminationLog, F_OK) == 0) {
    path = kTerminationLog;
  }
  if (path.empty()) return;
  // The container's runtime mounts it by itself, so it cannot be renamed over.
  if (const Status written = WriteFileInPlace(path, message); !written.ok()) {
    LogWarning("cannot write the termination message", {{"error", written.message()}});
  }
}

std::string ModelPath(const Config& config) { return config.output + "/model.safetensors"; }

void TellResults(const Config& config, const Reporter& reporter, const std::string& checkpoint) {
  const std::string& out = config.output;
  Say(fmt::format(
      "\n{}\ncurves      {}/report.html\nmetrics     {}/metrics.jsonl\nevents      {}/events\n"
      "plan        {}/plan.txt",
      reporter.EpochTable(), out, out, out, out));
  if (!checkpoint.empty()) Say("checkpoint  " + checkpoint);
  Say("model       " + ModelPath(config));
}

void TellSaving(const std::string& folder, const train::SaveTimes& times, int64_t keep) {
  std::vector<std::string> when;
  if (times.every_steps > 0) when.push_back(fmt::format("every {} steps", times.every_steps));
  if (times.each_epoch) when.emplace_back("after each epoch");
  if (times.at_latest > Duration(0)) {
    when.push_back(fmt::format(
        "every {} min", std::chrono::duration_cast<std::chrono::minutes>(times.at_latest).count()));
  }
  when.emplace_back("at the end");
  Say(fmt::format(
      "checkpoints in {}: {}; {}", folder, Join(when, ", "),
      keep > 0 ? fmt::format("the newest {} stay, older ones are removed", keep) : "all stay"));
}

void TellNothingLeft(const std::string& checkpoint, int64_t epochs) {
  Say(fmt::format("nothing is left to train: {} is the end of {} {}", checkpoint, epochs,
                  epochs == 1 ? "epoch" : "epochs"));
}

void TellEarlyEnd(const train::FitResult& result, const train::EarlyStopping* early,
                  std::optional<int64_t> best_step, Reporter& reporter) {
  if (result.end == train::FitEnd::kStopped) {
    Say("stopped early: " + result.message);
    reporter.AddFact("stopped early", result.message);
  }
  const bool leaves_model = result.end != train::FitEnd::kNotFinite;
  if (leaves_model && best_step && *best_step != result.position.step) {
    const auto& best = *early->best();
    const std::string whose = fmt::format("epoch {}, step {}, {} {:.4f}", best.epoch, best.step,
                                          early->monitor(), best.value);
    Say("the model is that of the best epoch: " + whose);
    reporter.AddFact("model of", whose);
  }
}

void TellStopped(int64_t step) {
  Say(fmt::format("stopped at step {}, saved; run again to go on", step));
}

}  // namespace meshtrain::worker
