#include "runtime/trainer/job/worker_server.h"

#include <filesystem>
#include <utility>

#include "runtime/base/file.h"
#include "runtime/parameter/chief/environment.h"
#include "runtime/trainer/job/choices.h"

namespace meshtrain::trainer {

Result<std::string> SharedFolder(const JobConfig& config, const manifest::Manifest& manifest) {
  if (manifest.checkpoint.path.empty()) {
    return InvalidArgument(SourceName(config) +
                           ": spec.checkpoint.path: expected a folder that every process of the "
                           "job reaches, since "
                           "parameter servers write checkpoints and their logs there, got: none")
        .From(Origin::kManifest);
  }
  std::error_code error;
  const std::filesystem::path path = std::filesystem::absolute(manifest.checkpoint.path, error);
  if (error) {
    return ErrnoStatus(error.value(), "cannot find", manifest.checkpoint.path)
        .From(Origin::kManifest);
  }
  return path.lexically_normal().string();
}

execute::SessionOptions WorkerSessionOf(const JobConfig& config, const manifest::Devices& own) {
  return {.device_kind = std::string(mesh::DeviceKindName(own.kind)),
          .devices = static_cast<int>(own.count.value_or(1)),
          .isolated = config.isolated,
          .threads = config.threads,
          .memory = config.memory};
}

Result<std::unique_ptr<parameter::WorkerServer>> ServeWorker(const JobConfig& config,
                                                             const manifest::Manifest& manifest) {
  parameter::WorkerOptions options;
  MT_ASSIGN_OR_RETURN(options.port, cluster::ListenPort(*config.job.tf_config));
  options.address = cluster::ListenAddress(*config.job.tf_config);
  MT_ASSIGN_OR_RETURN(options.executor.identity, parameter::IdentityOf(ProcessEnvironment()));
  options.executor.session = WorkerSessionOf(config, manifest.program.devices);
  if (const int64_t devices = options.executor.session.devices; devices > 1) {
    MT_ASSIGN_OR_RETURN(options.executor.mesh, mesh::Mesh::Create({{"batch", devices}}));
  }
  return parameter::WorkerServer::Serve(std::move(options));
}

}  // namespace meshtrain::trainer
