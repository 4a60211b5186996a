#include "runtime/saving/session_checkpoints.h"

#include <chrono>
#include <set>
#include <utility>

#include "runtime/base/file.h"
#include "runtime/checkpoint/restore.h"
#include "runtime/checkpoint/save.h"
#include "runtime/data/cursor.h"
#include "runtime/data/pipeline.h"
#include "runtime/membership/team.h"
#include "runtime/saving/copies.h"
#include "runtime/saving/failure.h"
#include "runtime/saving/newest.h"
#include "runtime/saving/position.h"
#include "runtime/saving/shards.h"

namespace meshtrain::saving {
namespace {

constexpr Duration kMargin = std::chrono::minutes(5);  // beyond what the chief waits for parts

}  // namespace

Result<std::unique_ptr<SessionCheckpoints>> SessionCheckpoints::Create(
    execute::Session& session, std::vector<program::Variable> variables, Options options) {
  if (variables.empty()) {
    return InvalidArgument(options.folder + ": expected variables to save, got: none");
  }
  std::set<std::string> names;
  for (const program::Variable& v : variables) {
    if (names.insert(v.name()).second) continue;
    return InvalidArgument(options.folder +
                           ": expected variables of different names, got two: " + v.name());
  }
  MT_RETURN_IF_ERROR(MakeDirectories(options.folder).From(Origin::kOutput));
  return std::unique_ptr<SessionCheckpoints>(
      new SessionCheckpoints(session, std::move(variables), std::move(options)));
}

Result<std::optional<SessionCheckpoints::Restored>> SessionCheckpoints::Restore(
    std::stop_token stop) {
  // All is read before anything is changed.
  Shards shards;
  Restored restored;
  std::optional<data::Cursor> cursor;
  const auto read = [&](const std::string& path) -> Status {
    const membership::Team::Busy busy(o_.team, "loading " + path);
    MT_ASSIGN_OR_RETURN(const auto checkpoint, checkpoint::Checkpoint::Open(path));
    const checkpoint::Index& index = checkpoint->index();
    MT_RETURN_IF_ERROR(CheckFits(index, path, variables_));
    MT_ASSIGN_OR_RETURN(shards, LoadShards(session_, variables_, *checkpoint));
    MT_ASSIGN_OR_RETURN(restored.position, PositionOf(index, path));
    cursor.reset();
    if (!index.data_cursor.empty()) {
      MT_ASSIGN_OR_RETURN(cursor, data::Cursor::Parse(index.data_cursor));
    }
    return OkStatus();
  };
  const auto load = [&](const std::string& path) { return read(path).From(Origin::kOutput); };
  const auto candidates = checkpoint::ListCheckpoints(o_.folder).From(Origin::kOutput);
  std::optional<checkpoint::Candidate> taken;
  if (o_.team == nullptr) {
    MT_RETURN_IF_ERROR(candidates.status());
    MT_ASSIGN_OR_RETURN(taken, TakeNewest(*candidates, load));
  } else {
    MT_ASSIGN_OR_RETURN(taken,
                        TakeNewestTogether(*o_.team, o_.folder, candidates, load, std::move(stop)));
  }
  if (!taken) return std::optional<Restored>();
  restored.path = taken->path;
  if (o_.data != nullptr && cursor) {
    MT_RETURN_IF_ERROR(o_.data->Restore(*cursor).At(restored.path));
  }
  MT_RETURN_IF_ERROR(WriteShards(session_, variables_, shards));
  return std::optional(std::move(restored));
}

Status SessionCheckpoints::Save(const train::Position& position) {
  MT_ASSIGN_OR_RETURN(const mesh::Layout layout, session_.LayoutOf(variables_[0]));
  MT_RETURN_IF_ERROR(CheckCopies(session_, variables_, o_.team, position.step));
  checkpoint::Snapshot snapshot{
      .step = position.step,
      .mesh = layout.mesh().ToString(),
      .data_cursor = o_.data != nullptr ? o_.data->cursor().ToString() : "",
      .metadata = PositionToMetadata(position)};
  MT_ASSIGN_OR_RETURN(snapshot.variables, CollectShards(session_, variables_));
  checkpoint::SaveOptions options{.keep = o_.keep, .parts_timeout = o_.parts_timeout};
  if (o_.team != nullptr) {
    options.process = o_.team->process();
    options.processes = o_.team->processes();
    options.generation = static_cast<int64_t>(o_.team->incarnation());
    options.abandon = o_.team->lost();
  }
  Status saved = checkpoint::CheckFolder(o_.folder).status().From(Origin::kOutput);
  if (saved.ok()) {
    const membership::Team::Busy busy(o_.team, "saving step " + std::to_string(position.step));
    saved = OfSaving(checkpoint::Save(o_.folder, snapshot, options).status());
  }
  if (o_.team == nullptr || (!saved.ok() && !membership::Team::IsLoss(saved))) return saved;
  // The chief's is the commit: the others know of it before they go on, or leave. Where somebody
  // was lost this says who.
  const Status agreed =
      o_.team->Agree("saved", std::to_string(position.step), o_.parts_timeout + kMargin, {})
          .status();
  return agreed.ok() ? saved : agreed;
}

}  // namespace meshtrain::saving
