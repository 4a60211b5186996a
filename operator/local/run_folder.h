// Where a run writes to that was not told where: BASE/NAME, BASE/NAME-2, BASE/NAME-3, ...
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "operator/api/training_job.h"
#include "operator/local/folder_lock.h"
#include "runtime/base/clock.h"
#include "runtime/base/status.h"

namespace meshtrain::local {

// What a run leaves in its folder beside its results: the manifest as it was given, byte for byte,
// and the job's status.
inline constexpr std::string_view kManifestName = "manifest.as-run.yaml";
inline constexpr std::string_view kStatusName = "status.json";

struct RunFolder {
  std::string path;
  bool unfinished = false;  // it holds a run of this manifest that has not succeeded: go on with it
};

// How the run in `folder` ended, by its status; of a folder that holds no run's status nothing is
// known.
enum class RunEnd : uint8_t { kUnknown, kSucceeded, kNotSucceeded };
RunEnd EndOf(const std::string& folder);

// The newest of these folders that a run of the same manifest wrote to, where that run has not
// succeeded and nobody writes to it now (`patience`: for a writer that is just ending); else the
// first that does not exist. Makes nothing. Errors: base/file.h's for a BASE that cannot be read.
Result<RunFolder> ChooseRunFolder(const std::string& base, const std::string& name,
                                  std::string_view manifest,
                                  Duration patience = std::chrono::seconds(2));

// Makes and takes what a run of this job writes to: `output`, and the folder of checkpoints that
// its manifest names. Errors: FolderLock's, base/file.h's.
Result<std::vector<FolderLock>> TakeFolders(const api::TrainingJob& job, const std::string& output);

}  // namespace meshtrain::local
