#include "worker/service.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <set>
#include <string>
#include <thread>

#include "runtime/base/file.h"
#include "runtime/checkpoint/weights.h"
#include "runtime/cluster/contract.h"
#include "runtime/cluster/exit_code.h"
#include "runtime/data/pipeline.h"
#include "runtime/execute/session.h"
#include "runtime/spec/spec.h"
#include "runtime/train/callbacks.h"
#include "worker/checkpoints.h"
#include "worker/reporter.h"
#include "worker/runner.h"

namespace meshtrain::worker {
namespace {

// How a run ended: what went wrong, if anything, and what the process leaves with.
struct Ending {
  Status status;
  int exit_code = cluster::kExitInternal;
};

using cluster::DataExitCode;
using cluster::ManifestExitCode;
using cluster::OutputExitCode;

#define MT_TRY(lhs, expr, exit_of)                          \
  auto MT_CONCAT_(try_, __LINE__) = (expr);                 \
  if (!MT_CONCAT_(try_, __LINE__).ok()) {                   \
    const Status s = MT_CONCAT_(try_, __LINE__).status();   \
    return Ending{s, exit_of(s)};                          \
  }                                                         \
  lhs = std::move(*MT_CONCAT_(try_, __LINE__))

#define MT_TRY_STATUS(expr, exit_of) \
  if (const Status s = (expr); !s.ok()) return Ending { s, exit_of(s) }

class PipelineBatches final : public train::BatchSource {
 public:
  explicit PipelineBatches(data::Pipeline& pipeline) : pipeline_(pipeline) {}
  Result<std::optional<train::Batch>> Next(std::stop_token stop) override {
    auto next = pipeline_.Next(stop);
    if (!next.ok()) {
      if (next.status().code() != StatusCode::kCancelled) error_ = next.status();
      return next.status();
    }
    if (!next->has_value()) return std::optional<train::Batch>();
    return std::optional<train::Batch>({std::move((*next)->components), (*next)->size});
  }
  int64_t steps_per_epoch() const override { return pipeline_.steps_per_epoch(); }
  // The data's own error, if one ended the loop: it decides the exit code.
  const Status& error() const { return error_; }

 private:
  data::Pipeline& pipeline_;
  Status error_;
};

Status CheckSupported(const spec::Manifest& manifest, const Config& config) {
  int64_t processes = 0;
  for (const auto& [role, count] : manifest.replicas) processes += count;
  if (processes > 1) {
    return Unimplemented(config.file + ": spec.replicaSpecs: this worker trains in one process, got: " +
                         std::to_string(processes) + " replicas");
  }
  const mesh::DeviceKind kind = manifest.program.devices.kind;
  if (kind != mesh::DeviceKind::kCpu) {
    return Unimplemented(config.file + ": program.devices.kind: this worker computes on cpu, got: " +
                         std::string(mesh::DeviceKindName(kind)));
  }
  if (manifest.program.strict && config.isolated) {
    return Unimplemented(config.file + ": program.numerics: strict holds where the devices share memory, not with --isolated");
  }
  return OkStatus();
}

class Worker {
 public:
  explicit Worker(const Config& config) : config_(config) {}

  Ending Run(std::stop_token stop, const std::function<int()>& stop_exit_code) {
    MT_TRY(const std::string text, ReadFile(config_.file, int64_t{4} << 20), ManifestExitCode);
    MT_TRY(manifest_, spec::ParseManifest(text, config_.file), ManifestExitCode);
    MT_TRY_STATUS(CheckSupported(manifest_, config_), ManifestExitCode);
    const spec::ProgramSpec& program = manifest_.program;

    // Data first: a prefetching pipeline decodes while the program is traced and planned.
    MT_TRY(train_data_, data::Pipeline::Create(spec::TrainPipeline(program.data)), DataExitCode);
    train_data_->Start();
    if (program.data.test) {
      MT_TRY(test_data_, data::Pipeline::Create(spec::TestPipeline(program.data)), DataExitCode);
    }
    if (const Ending ending = Prepare(program); !ending.status.ok()) return ending;

    const int64_t epochs = program.train.epochs;
    const int64_t steps_per_epoch =
        program.train.steps_per_epoch > 0 ? program.train.steps_per_epoch : train_data_->steps_per_epoch();
    const bool own_folder = manifest_.checkpoint.path.empty();
    const std::string folder = own_folder ? config_.output + "/checkpoints" : manifest_.checkpoint.path;
    MT_TRY_STATUS(MakeDirectories(folder), OutputExitCode);
    MT_TRY(checkpoints_,
           Checkpoints::Create(folder, own_folder, manifest_.checkpoint, *session_, *runner_, *train_data_), OutputExitCode);
    MT_TRY(const std::optional<Resumed> resumed,
           checkpoints_->Resume([&](const train::Position& p) { return Finished(p, epochs, steps_per_epoch); }),
           OutputExitCode);
    const train::Position start = resumed ? resumed->position : train::Position{};
    if (resumed) std::printf("resuming from %s at step %lld\n", resumed->path.c_str(), static_cast<long long>(start.step));

    const plan::Plan& plan = runner_->plan();
    MT_TRY(reporter_,
           Reporter::Create(config_,
                            {.name = manifest_.name.empty() ? "program" : manifest_.name,
                             .mesh = runner_->mesh().ToString(),
                             .epochs = epochs,
                             .steps_per_epoch = steps_per_epoch,
                             .plan = {.mesh = runner_->mesh().ToString(),
                                      .peak_bytes_per_device = plan.peak_bytes,
                                      .collective_bytes_per_step = plan.CollectiveBytesPerStep(),
                                      .hash = fmt::format("{:016x}", plan.hash)}},
                            *checkpoints_, start),
           OutputExitCode);
    MT_TRY_STATUS(WriteFileAtomically(config_.output + "/plan.txt", plan.Report()), OutputExitCode);
    std::printf("training %s on mesh %s (%s); output in %s\n", manifest_.name.c_str(),
                runner_->mesh().num_axes() == 0 ? "of one device" : runner_->mesh().ToString().c_str(),
                config_.isolated ? "each device by itself" : "devices share memory", config_.output.c_str());
    if (reporter_->port() > 0) {
      std::printf("live page: http://%s:%d/\n", config_.host.c_str(), reporter_->port());
    }
    std::fflush(stdout);
    return Train(start, stop, stop_exit_code);
  }

 private:
  static bool Finished(const train::Position& p, int64_t epochs, int64_t steps_per_epoch) {
    return p.epoch >= epochs || (p.epoch == epochs - 1 && p.batch >= steps_per_epoch);
  }

  // Session, steps and initial weights.
  Ending Prepare(const spec::ProgramSpec& program) {
    execute::SessionOptions options{.isolated = config_.isolated, .threads = config_.threads};
    options.plan.finite_outputs = {std::string(train::kLossName)};
    MT_TRY(session_, execute::Session::Create(std::move(options)), ManifestExitCode);
    MT_TRY(const spec::Declared declared, spec::Declared::Create(program), ManifestExitCode);
    const int64_t full = train_data_->batch_size();
    SessionRunner::Options sizes{.types = train_data_->BatchTypes(full), .train_sizes = {}, .eval_sizes = {}};
    sizes.train_sizes = {train_data_->last_batch_size()};
    if (train_data_->steps_per_epoch() > 1) sizes.train_sizes.insert(full);
    if (test_data_) {
      sizes.eval_sizes = {test_data_->last_batch_size()};
      if (test_data_->steps_per_epoch() > 1) sizes.eval_sizes.insert(full);
    }
    MT_TRY(runner_, SessionRunner::Create(*session_, declared, std::move(sizes)), ManifestExitCode);
    MT_TRY_STATUS(runner_->Initialize(), ManifestExitCode);
    if (!program.initial_weights.empty()) {
      std::vector<checkpoint::NamedType> wanted;
      for (const nn::Parameter& p : runner_->programs().parameters) wanted.push_back({p.name(), p.type()});
      MT_TRY(const std::vector<mesh::Tensor> weights, checkpoint::LoadWeights(program.initial_weights, wanted), DataExitCode);
      for (size_t i = 0; i < weights.size(); ++i) {
        MT_TRY_STATUS(session_->Write(runner_->programs().parameters[i], weights[i]), DataExitCode);
      }
    }
    return {OkStatus(), cluster::kExitDone};
  }

  Ending Train(const train::Position& start, std::stop_token stop, const std::function<int()>& stop_exit_code) {
    const spec::TrainSpec& train = manifest_.program.train;
    PipelineBatches batches(*train_data_);
    std::optional<PipelineBatches> validation;
    if (test_data_) validation.emplace(*test_data_);
    runner_->set_saver([&](int64_t step) { return checkpoints_->Save(step); });
    train::CheckpointEvery save(*runner_, manifest_.checkpoint.every_steps);
    train::FunctionCallback note;  // before `save`, which stores it
    note.on_step_end = [&](const train::StepInfo& info) {
      checkpoints_->Note(info.position);
      return OkStatus();
    };
    note.on_train_end = [&](const train::FitResult& result) {
      checkpoints_->Note(result.position);
      return OkStatus();
    };
    std::vector<train::Callback*> callbacks = {&note, reporter_.get(), &save};
    std::optional<train::EarlyStopping> early;
    if (train.early_stopping) {
      early.emplace(train.early_stopping->monitor, train.early_stopping->patience, train.early_stopping->min_delta);
      callbacks.push_back(&*early);
    }
    train::FitOptions fit{.epochs = train.epochs,
                          .steps_per_epoch = train.steps_per_epoch,
                          .validation = validation && train.validate_every > 0 ? &*validation : nullptr,
                          .validation_steps = train.validation_steps,
                          .validate_every = std::max<int64_t>(train.validate_every, 1),
                          .start = start};
    reporter_->Ready();
    const auto result = train::Fit(*runner_, batches, fit, callbacks, stop);
    reporter_->EndLine();
    const Status closed = checkpoints_->Close();
    const Status reported = reporter_->Finish();
    if (!result.ok()) {
      const bool data = !batches.error().ok() || (validation && !validation->error().ok());
      return {result.status(), data ? DataExitCode(result.status()) : OutputExitCode(result.status())};
    }
    MT_TRY_STATUS(closed, OutputExitCode);
    MT_TRY_STATUS(reported, OutputExitCode);
    if (result->end == train::FitEnd::kNotFinite) return {Internal(result->message), cluster::kExitInternal};
    std::printf("\n%s\n", reporter_->EpochTable().c_str());
    const std::string model = config_.output + "/model.safetensors";
    MT_TRY_STATUS(checkpoints_->Export(model), OutputExitCode);
    const auto saved = checkpoints_->last();
    std::printf("curves      %s/report.html\nmetrics     %s/metrics.jsonl\nevents      %s/events\nplan        %s/plan.txt\n",
                config_.output.c_str(), config_.output.c_str(), config_.output.c_str(), config_.output.c_str());
    if (saved) std::printf("checkpoint  %s\n", saved->path.c_str());
    std::printf("model       %s\n", model.c_str());
    if (result->end == train::FitEnd::kStopped && stop.stop_requested()) {
      std::printf("stopped at step %lld, saved; run again to go on\n", static_cast<long long>(result->position.step));
      return {OkStatus(), stop_exit_code()};
    }
    return {OkStatus(), cluster::kExitDone};
  }

  Config config_;
  spec::Manifest manifest_;
  // In the order in which they lean on each other.
  std::unique_ptr<data::Pipeline> train_data_, test_data_;
  std::unique_ptr<execute::Session> session_;
  std::unique_ptr<SessionRunner> runner_;
  std::unique_ptr<Checkpoints> checkpoints_;
  std::unique_ptr<Reporter> reporter_;
};

}  // namespace

int Serve(const Config& config, std::stop_token stop, const std::function<int()>& stop_exit_code) {
  Worker worker(config);
  const Ending end = worker.Run(stop, stop_exit_code);
  if (!end.status.ok()) std::fprintf(stderr, "meshtrain-worker: %s\n", end.status.message().c_str());
  std::fflush(stdout);
  return end.exit_code;
}

}  // namespace meshtrain::worker
