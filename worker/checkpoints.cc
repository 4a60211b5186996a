#include "worker/checkpoints.h"

#include <fmt/format.h>

#include <filesystem>
#include <set>

#include "runtime/base/file.h"
#include "runtime/base/log.h"
#include "runtime/base/text.h"
#include "runtime/checkpoint/collect.h"
#include "runtime/checkpoint/restore.h"

namespace meshtrain::worker {
namespace {

// The loop's position in a checkpoint's metadata; sums as hexadecimal floats, which read back bit for bit.
std::map<std::string, std::string> PositionToMetadata(const train::Position& p) {
  std::map<std::string, std::string> metadata = {{"epoch", std::to_string(p.epoch)}, {"batch", std::to_string(p.batch)}};
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
      if (end != text.c_str() + text.size()) return DataLoss(path + ": `" + key + "`: expected a number, got: " + text);
    }
  }
  return position;
}

}  // namespace

Result<std::unique_ptr<Checkpoints>> Checkpoints::Create(std::string folder, bool own_folder,
                                                         const spec::CheckpointSpec& spec, execute::Session& session,
                                                         SessionRunner& runner, data::Pipeline& data) {
  auto checkpoints = std::unique_ptr<Checkpoints>(
      new Checkpoints(std::move(folder), own_folder, spec, session, runner, data));
  MT_ASSIGN_OR_RETURN(checkpoints->saver_, checkpoint::AsyncSaver::Create(
                                               checkpoints->folder_, {.keep = static_cast<int>(spec.keep)}));
  return checkpoints;
}

Result<std::optional<Resumed>> Checkpoints::Resume(const std::function<bool(const train::Position&)>& finished) {
  MT_ASSIGN_OR_RETURN(const std::vector<checkpoint::Candidate> candidates, checkpoint::ListCheckpoints(folder_));
  if (candidates.empty()) return std::optional<Resumed>();
  if (!spec_.resume && !own_folder_) {
    return FailedPrecondition(folder_ + ": it holds checkpoints up to step " + std::to_string(candidates[0].step) +
                              ", but the manifest says not to resume: expected `checkpoint.resume: Latest` or another "
                              "`checkpoint.path`");
  }
  Resumed resumed;
  Status why = OkStatus();
  bool begin_anew = !spec_.resume;
  for (const checkpoint::Candidate& candidate : candidates) {
    if (begin_anew) break;
    why = Load(candidate.path, &resumed);
    if (why.ok()) {
      if (own_folder_ && finished(resumed.position)) {
        begin_anew = true;
        break;
      }
      runner_.set_last_saved(resumed.position.step);
      return std::optional<Resumed>(resumed);
    }
    if (why.code() != StatusCode::kDataLoss) return why;
    LogWarning("checkpoint is damaged, trying the one before", {{"path", candidate.path}, {"error", why.message()}});
  }
  if (!begin_anew) return why.At("no whole checkpoint is left");
  // The run before this one, in the output folder of this one: it is done, and what follows replaces it.
  for (const checkpoint::Candidate& candidate : candidates) {
    std::error_code error;
    std::filesystem::remove_all(candidate.path, error);
    if (error) return ErrnoStatus(error.value(), "cannot remove", candidate.path);
  }
  MT_RETURN_IF_ERROR(runner_.Initialize());
  MT_RETURN_IF_ERROR(data_.Restore({.fingerprint = data_.cursor().fingerprint}));
  return std::optional<Resumed>();
}

Status Checkpoints::Load(const std::string& path, Resumed* resumed) {
  MT_ASSIGN_OR_RETURN(const auto checkpoint, checkpoint::Checkpoint::Open(path));
  // Everything is read before anything is changed: a damaged checkpoint leaves no half of itself behind.
  std::vector<mesh::Tensor> values;
  for (const nn::Parameter& p : runner_.states()) {
    auto value = checkpoint->Load(p.name());
    if (!value.ok()) return value.status();
    if (value->type() != p.type()) {
      return InvalidArgument(path + ": `" + p.name() + "`: expected " + p.type().ToString() + ", got: " +
                             value->type().ToString());
    }
    values.push_back(std::move(*value));
  }
  MT_ASSIGN_OR_RETURN(resumed->position, PositionOf(checkpoint->index(), path));
  resumed->path = path;
  if (const std::string& text = checkpoint->index().data_cursor; !text.empty()) {
    MT_ASSIGN_OR_RETURN(const data::Cursor cursor, data::Cursor::Parse(text));
    MT_RETURN_IF_ERROR(data_.Restore(cursor).At(path));
  }
  for (size_t i = 0; i < values.size(); ++i) MT_RETURN_IF_ERROR(session_.Write(runner_.states()[i], values[i]));
  return OkStatus();
}

Status Checkpoints::Save(int64_t step) {
  checkpoint::Snapshot snapshot;
  snapshot.step = step;
  snapshot.mesh = runner_.mesh().ToString();
  snapshot.program_hash = fmt::format("{:016x}", program::HashProgram(runner_.programs().train_step));
  snapshot.data_cursor = data_.cursor().ToString();
  snapshot.metadata = PositionToMetadata(position_);
  std::vector<checkpoint::VariableSpec> specs;
  for (const nn::Parameter& p : runner_.states()) {
    MT_ASSIGN_OR_RETURN(mesh::Layout layout, session_.LayoutOf(p));
    specs.push_back({p.name(), p.type(), std::move(layout)});
  }
  MT_ASSIGN_OR_RETURN(snapshot.variables, checkpoint::Collect(specs, /*process=*/0, [&](int variable, int64_t rank) {
                        return session_.ReadShard(runner_.states()[variable], rank);
                      }));
  return saver_->Save(std::move(snapshot));
}

Status Checkpoints::Close() { return saver_->Close(); }

Status Checkpoints::Export(const std::string& path) const {
  const auto newest = saver_->last();
  std::string from;
  if (newest) {
    from = newest->path;
  } else {
    MT_ASSIGN_OR_RETURN(const checkpoint::Candidate latest, checkpoint::FindLatest(folder_));
    from = latest.path;
  }
  MT_ASSIGN_OR_RETURN(const auto checkpoint, checkpoint::Checkpoint::Open(from));
  std::set<std::string, std::less<>> weights;
  for (const nn::Parameter& p : runner_.programs().parameters) weights.insert(p.name());
  return checkpoint->Export(path, [&](std::string_view name) { return weights.contains(name); });
}

}  // namespace meshtrain::worker
