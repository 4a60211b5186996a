#include "operator/local/run_folder.h"

#include <filesystem>
#include <nlohmann/json.hpp>
#include <system_error>
#include <utility>

#include "runtime/base/file.h"

namespace meshtrain::local {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kLargestFile = int64_t{4} << 20;

std::string Numbered(const std::string& base, const std::string& name, int number) {
  return base + "/" + name + (number == 1 ? "" : "-" + std::to_string(number));
}

}  // namespace

RunEnd EndOf(const std::string& folder) {
  const auto text = ReadFile(folder + "/" + std::string(kStatusName), kLargestFile);
  if (!text.ok()) return RunEnd::kUnknown;
  const auto status = nlohmann::json::parse(*text, nullptr, /*allow_exceptions=*/false);
  if (!status.is_object() || !status.contains("conditions")) return RunEnd::kNotSucceeded;
  for (const auto& condition : status["conditions"]) {
    const auto says = [&](const char* name, const char* what) {
      return condition.contains(name) && condition[name] == what;
    };
    if (says("type", "Succeeded") && says("status", "True")) return RunEnd::kSucceeded;
  }
  return RunEnd::kNotSucceeded;
}

namespace {

bool IsOf(const std::string& folder, std::string_view manifest) {
  const auto text = ReadFile(folder + "/" + std::string(kManifestName), kLargestFile);
  return text.ok() && *text == manifest;
}

}  // namespace

Result<RunFolder> ChooseRunFolder(const std::string& base, const std::string& name,
                                  std::string_view manifest, Duration patience) {
  int next = 1;
  std::error_code error;
  while (fs::exists(fs::symlink_status(Numbered(base, name, next), error))) ++next;
  if (error && error != std::errc::no_such_file_or_directory) {
    return ErrnoStatus(error.value(), "cannot look into", base);
  }
  for (int number = next - 1; number >= 1; --number) {
    const std::string folder = Numbered(base, name, number);
    if (!IsOf(folder, manifest)) continue;
    if (EndOf(folder) == RunEnd::kSucceeded) break;
    // Taken and let go at once: the run takes it for itself.
    if (FolderLock::Take(folder, patience).ok()) return RunFolder{folder, true};
  }
  return RunFolder{Numbered(base, name, next), false};
}

Result<std::vector<FolderLock>> TakeFolders(const api::TrainingJob& job,
                                            const std::string& output) {
  std::vector<FolderLock> taken;
  const auto take = [&](const std::string& folder) -> Status {
    MT_RETURN_IF_ERROR(MakeDirectories(folder));
    MT_ASSIGN_OR_RETURN(FolderLock lock, FolderLock::Take(folder));
    taken.push_back(std::move(lock));
    return OkStatus();
  };
  MT_RETURN_IF_ERROR(take(output));
  // Of a program alone: what another container's path is, it knows.
  const bool named = !job.spec.program.empty() && job.spec.checkpoint &&
                     job.spec.checkpoint->volume_claim_template.empty() &&
                     !job.spec.checkpoint->path.empty();
  std::error_code none;
  if (named && !fs::equivalent(job.spec.checkpoint->path, output, none)) {
    MT_RETURN_IF_ERROR(take(job.spec.checkpoint->path));
  }
  return taken;
}

}  // namespace meshtrain::local
