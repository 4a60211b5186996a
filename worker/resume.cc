#include "worker/resume.h"

#include <fmt/format.h>

#include <cstdlib>
#include <filesystem>

#include "runtime/base/file.h"
#include "runtime/base/text.h"

namespace meshtrain::worker {

// Sums are hexadecimal floats, which read back bit for bit.
std::map<std::string, std::string> PositionToMetadata(const train::Position& p) {
  std::map<std::string, std::string> metadata = {{"epoch", std::to_string(p.epoch)},
                                                 {"batch", std::to_string(p.batch)}};
  for (const auto& [name, sum] : p.sums) metadata["sum." + name] = fmt::format("{:a}", sum);
  return metadata;
}

Result<train::Position> PositionOf(const checkpoint::Index& index, const std::string& path) {
  train::Position position{.step = index.step};
  for (const auto& [key, text] : index.metadata) {
    if (key == "epoch" || key == "batch") {
      const auto value = ParseInt(text);
      if (!value) return DataLoss(path + ": `" + key + "`: expected a number, got: " + text);
      (key == "epoch" ? position.epoch : position.batch) = *value;
    } else if (key.starts_with("sum.")) {
      char* end = nullptr;
      position.sums[key.substr(4)] = std::strtod(text.c_str(), &end);
      if (end != text.c_str() + text.size()) {
        return DataLoss(path + ": `" + key + "`: expected a number, got: " + text);
      }
    }
  }
  return position;
}

bool IsEnd(const train::Position& p, int64_t epochs, int64_t steps_per_epoch) {
  return p.epoch >= epochs || (p.epoch == epochs - 1 && p.batch >= steps_per_epoch);
}

Result<std::vector<checkpoint::Candidate>> ResumeCandidates(const std::string& folder, bool own,
                                                            bool resume) {
  MT_ASSIGN_OR_RETURN(std::vector<checkpoint::Candidate> candidates,
                      checkpoint::ListCheckpoints(folder));
  if (candidates.empty() || resume) return candidates;
  if (!own) {
    return FailedPrecondition(
        folder + ": it holds checkpoints up to step " + std::to_string(candidates[0].step) +
        ", but the manifest says not to resume: expected `checkpoint.resume: Latest` or another "
        "`checkpoint.path`");
  }
  MT_RETURN_IF_ERROR(RemoveCheckpoints(candidates));
  return std::vector<checkpoint::Candidate>();
}

Status RemoveCheckpoints(const std::vector<checkpoint::Candidate>& candidates) {
  for (const checkpoint::Candidate& candidate : candidates) {
    std::error_code error;
    std::filesystem::remove_all(candidate.path, error);
    if (error) return ErrnoStatus(error.value(), "cannot remove", candidate.path);
  }
  return OkStatus();
}

}  // namespace meshtrain::worker
