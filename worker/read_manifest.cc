#include "worker/read_manifest.h"

#include <string>
#include <utility>

#include "runtime/base/file.h"
#include "runtime/trainer/job/choices.h"

namespace meshtrain::worker {

Result<manifest::Manifest> ReadManifest(const trainer::JobConfig& config) {
  const manifest::ReadOptions options{.processes = config.job.mesh_processes()};
  if (config.file.empty()) {
    return recipe::ParseManifest(config.job.manifest, trainer::SourceName(config), options)
        .From(Origin::kManifest);
  }
  MT_ASSIGN_OR_RETURN(
      const std::string text,
      ReadFile(config.file, manifest::DocumentLimits().bytes).From(Origin::kManifest));
  MT_ASSIGN_OR_RETURN(
      manifest::Manifest manifest,
      recipe::ParseManifest(text, trainer::SourceName(config), options).From(Origin::kManifest));
  if (!config.checkpoint_path.empty()) manifest.checkpoint.path = config.checkpoint_path;
  // A program alone has no name; the job that was made of it has.
  if (manifest.name.empty()) manifest.name = config.job.job.substr(config.job.job.find('/') + 1);
  return manifest;
}

}  // namespace meshtrain::worker
