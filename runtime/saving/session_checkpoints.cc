#include "runtime/saving/session_checkpoints.h"

#include <chrono>
#include <set>
#include <utility>

#include "runtime/base/file.h"
#include "runtime/base/log.h"
#include "runtime/saving/copies.h"
#include "runtime/saving/failure.h"
#include "runtime/saving/newest.h"
#include "runtime/saving/position.h"

namespace meshtrain::saving {
namespace {

constexpr Duration kMargin = std::chrono::minutes(5);  // beyond what the chief waits for parts
constexpr Duration kAgreeTimeout = std::chrono::minutes(10);  // a slow volume may take its time

// The position and the cursor of a checkpoint at `path`.
Result<SessionCheckpoints::Restored> PlaceOf(const checkpoint::Index& index,
                                             const std::string& path) {
  SessionCheckpoints::Restored at{.position = {}, .cursor = {}, .path = path};
  MT_ASSIGN_OR_RETURN(at.position, PositionOf(index, path));
  if (!index.data_cursor.empty()) {
    MT_ASSIGN_OR_RETURN(at.cursor, data::Cursor::Parse(index.data_cursor));
  }
  return at;
}

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
  auto made = std::unique_ptr<SessionCheckpoints>(
      new SessionCheckpoints(session, std::move(variables), std::move(options)));
  const Options& o = made->o_;
  checkpoint::SaveOptions save{.keep = o.keep, .parts_timeout = o.parts_timeout};
  if (o.team != nullptr && o.shared) {
    save.process = o.team->process();
    save.processes = o.team->processes();
  }
  MT_ASSIGN_OR_RETURN(
      made->saver_,
      checkpoint::AsyncSaver::Create(o.folder, save, o.background).From(Origin::kOutput));
  return made;
}

void SessionCheckpoints::Renew() {
  on_loss_.reset();
  saver_->Abandon();
  {
    const membership::Team::Busy busy(o_.team, "the end of an abandoned save");
    if (const Status before = saver_->Wait(); !before.ok()) {
      LogWarning("a checkpoint was not completed", {{"error", before.message()}});
    }
  }
  incarnation_ = o_.team == nullptr ? 0 : o_.team->incarnation();
  saver_->set_generation(static_cast<int64_t>(incarnation_));
  if (o_.team != nullptr) on_loss_.emplace(o_.team->lost(), [this] { saver_->Abandon(); });
}

Result<std::optional<SessionCheckpoints::Restored>> SessionCheckpoints::Restore(
    std::stop_token stop) {
  const auto all = [this] { return checkpoint::ListCheckpoints(o_.folder).From(Origin::kOutput); };
  return Restore(all, std::move(stop));
}

Result<std::optional<SessionCheckpoints::Restored>> SessionCheckpoints::Restore(
    const Candidates& candidates, std::stop_token stop) {
  Renew();
  Loaded loaded;
  const auto load = [&](const std::string& path) -> Status {
    MT_ASSIGN_OR_RETURN(loaded,
                        shared() ? Load(path).From(Origin::kOutput) : LoadTogether(path, stop));
    return OkStatus();
  };
  Result<std::vector<checkpoint::Candidate>> from = std::vector<checkpoint::Candidate>();
  if (chief()) from = candidates();
  std::optional<checkpoint::Candidate> taken;
  if (o_.team == nullptr) {
    MT_RETURN_IF_ERROR(from.status());
    MT_ASSIGN_OR_RETURN(taken, TakeNewest(*from, load));
  } else {
    MT_ASSIGN_OR_RETURN(taken, TakeNewestTogether(*o_.team, o_.folder, from, load, stop));
  }
  if (!taken) return std::optional<Restored>();
  MT_RETURN_IF_ERROR(WriteShards(session_, variables_, loaded.shards));
  return std::optional(std::move(loaded.at));
}

Status SessionCheckpoints::CheckFits(const checkpoint::Index& index,
                                     const std::string& path) const {
  if (const Status fits = saving::CheckFits(index, path, variables_); !fits.ok()) {
    if (o_.advice.empty()) return fits;
    return fits.WithMessage(fits.message() + "; " + o_.advice);
  }
  const std::string& saved_by = index.program_hash;
  if (chief() && !o_.program_hash.empty() && !saved_by.empty() && saved_by != o_.program_hash) {
    LogWarning("the program has changed since the checkpoint; its states fit and are taken",
               {{"path", path}, {"program", o_.program_hash}, {"checkpoint", saved_by}});
  }
  return OkStatus();
}

Result<SessionCheckpoints::Loaded> SessionCheckpoints::Load(const std::string& path) const {
  const membership::Team::Busy busy(o_.team, "loading " + path);
  MT_ASSIGN_OR_RETURN(const auto checkpoint, checkpoint::Checkpoint::Open(path));
  MT_RETURN_IF_ERROR(CheckFits(checkpoint->index(), path));
  Loaded loaded;
  MT_ASSIGN_OR_RETURN(loaded.shards, LoadShards(session_, variables_, *checkpoint));
  MT_ASSIGN_OR_RETURN(loaded.at, PlaceOf(checkpoint->index(), path));
  return loaded;
}

Result<SessionCheckpoints::Loaded> SessionCheckpoints::LoadTogether(const std::string& path,
                                                                    std::stop_token stop) {
  // What is not a tensor travels as an index without any.
  std::string head;
  std::unique_ptr<checkpoint::Checkpoint> checkpoint;
  Status failed = OkStatus();
  std::vector<mesh::Tensor> values;
  if (chief()) {
    const membership::Team::Busy busy(o_.team, "loading " + path);
    auto opened = checkpoint::Checkpoint::Open(path);
    failed = opened.ok() ? CheckFits((*opened)->index(), path) : opened.status();
    if (opened.ok()) {
      checkpoint = std::move(*opened);
      checkpoint::Index index = checkpoint->index();
      index.variables.clear();
      index.files.clear();
      head = index.ToJson();
    }
    for (const program::Variable& v : variables_) {
      if (!failed.ok()) break;
      auto value = checkpoint->Load(v.name());
      failed = value.status();
      if (value.ok()) values.push_back(std::move(*value));
    }
    if (!failed.ok()) head.clear();
  }
  MT_ASSIGN_OR_RETURN(const std::vector<std::string> said,
                      o_.team->Agree("state of the chief", head, kAgreeTimeout, stop));
  if (!failed.ok()) return failed.From(Origin::kOutput);
  if (said[0].empty()) {
    return DataLoss(path + ": the chief cannot read it").From(Origin::kOutput);
  }
  MT_ASSIGN_OR_RETURN(const checkpoint::Index index, checkpoint::Index::ParsePart(said[0], path));
  Loaded loaded;
  for (size_t i = 0; i < variables_.size(); ++i) {
    mesh::Tensor value = chief() ? std::move(values[i]) : mesh::Tensor(variables_[i].type());
    MT_RETURN_IF_ERROR(o_.team->BroadcastFromChief(value.mutable_bytes()));
    const auto read = [&](const mesh::Layout::Slice& slice) -> Result<mesh::Tensor> {
      return value.Slice(slice.offsets, slice.sizes);
    };
    MT_ASSIGN_OR_RETURN(std::vector<mesh::Tensor> shards,
                        ReadShards(session_, variables_[i], read));
    loaded.shards.push_back(std::move(shards));
  }
  MT_ASSIGN_OR_RETURN(loaded.at, PlaceOf(index, path));
  return loaded;
}

Result<std::vector<checkpoint::SavedVariable>> SessionCheckpoints::Collect() {
  if (shared()) return CollectShards(session_, variables_);
  // All take part in gathering what is split.
  std::vector<checkpoint::SavedVariable> whole;
  for (const program::Variable& v : variables_) {
    MT_ASSIGN_OR_RETURN(mesh::Tensor value, session_.ReadToHost(v));
    if (!chief()) continue;
    MT_ASSIGN_OR_RETURN(const mesh::Layout layout, session_.LayoutOf(v));
    mesh::Dims origin(v.dims().size(), 0);
    whole.push_back({v.name(),
                     v.type(),
                     layout.ToString(),  // as people wrote it
                     {{std::move(origin), std::move(value)}}});
  }
  return whole;
}

Status SessionCheckpoints::Begin(const train::Position& position,
                                 const std::optional<data::Cursor>& cursor, SaveExtras extras) {
  if (o_.team != nullptr && incarnation_ != o_.team->incarnation()) Renew();
  MT_RETURN_IF_ERROR(CheckCopies(session_, variables_, o_.team, position.step));
  MT_ASSIGN_OR_RETURN(const mesh::Layout layout, session_.LayoutOf(variables_[0]));
  checkpoint::Snapshot snapshot{.step = position.step,
                                .mesh = layout.mesh().ToString(),
                                .program_hash = o_.program_hash,
                                .data_cursor = cursor ? cursor->ToString() : "",
                                .metadata = PositionToMetadata(position)};
  snapshot.metadata.merge(extras.metadata);
  MT_ASSIGN_OR_RETURN(snapshot.variables, Collect());
  if (!shared() && !chief()) return OkStatus();
  saver_->set_pinned(extras.pinned);
  const membership::Team::Busy busy(o_.team, "saving step " + std::to_string(position.step));
  return OfSaving(saver_->Save(std::move(snapshot)));
}

Status SessionCheckpoints::Wait() {
  const membership::Team::Busy busy(o_.team, "the last save");
  return OfSaving(saver_->Wait());
}

Status SessionCheckpoints::Save(const train::Position& position,
                                const std::optional<data::Cursor>& cursor) {
  Status saved = Begin(position, cursor, {});
  if (saved.ok()) saved = Wait();
  if (o_.team == nullptr || (!saved.ok() && !membership::Team::IsLoss(saved))) return saved;
  // The chief's is the commit: the others know of it before they go on, or leave. Where somebody
  // was lost this says who.
  const Status agreed =
      o_.team->Agree("saved", std::to_string(position.step), o_.parts_timeout + kMargin, {})
          .status();
  return agreed.ok() ? saved : agreed;
}

bool SessionCheckpoints::Holds(int64_t step) const {
  return checkpoint::Checkpoint::Open(checkpoint::CheckpointFolder(o_.folder, step)).ok();
}

}  // namespace meshtrain::saving
