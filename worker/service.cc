#include "worker/service.h"

#include <cstdio>

#include "worker/ending.h"
#include "worker/mesh_worker.h"
#include "worker/role.h"

namespace meshtrain::worker {
namespace {

Status CheckDevices(const Config& config, const spec::Manifest& manifest) {
  const mesh::DeviceKind kind = manifest.program.devices.kind;
  if (kind == mesh::DeviceKind::kCpu) return OkStatus();
  return Unimplemented(SourceName(config) + ": program.devices.kind: this worker computes on cpu, got: " +
                       std::string(mesh::DeviceKindName(kind)));
}

Ending Run(const Config& config, std::stop_token stop, const std::function<int()>& stop_exit_code) {
  MT_TRY(spec::Manifest manifest, ReadManifest(config), ManifestExitCode);
  MT_TRY_STATUS(CheckDevices(config, manifest), ManifestExitCode);
  return RunMeshWorker(config, std::move(manifest), stop, stop_exit_code);
}

}  // namespace

int Serve(const Config& config, std::stop_token stop, const std::function<int()>& stop_exit_code) {
  const Ending end = Run(config, stop, stop_exit_code);
  if (!end.status.ok()) std::fprintf(stderr, "meshtrain-worker: %s\n", end.status.message().c_str());
  std::fflush(stdout);
  return end.exit_code;
}

}  // namespace meshtrain::worker
