#include "runtime/saving/session_checkpoints.h"

#include <chrono>
#include <set>
#include <utility>

#include "runtime/base/file.h"
#include "runtime/base/log.h"
#include "runtime/checkpoint/async.h"
#include "runtime/checkpoint/restore.h"
#include "runtime/checkpoint/save.h"
#include "runtime/data/cursor.h"
#include "runtime/data/pipeline.h"
#include "runtime/membership/team.h"
#include "runtime/saving/copies.h"
#include "runtime/saving/failure.h"
#include "runtime/saving/final.h"
#include "runtime/saving/newest.h"
#include "runtime/saving/position.h"
#include "runtime/saving/shards.h"

namespace meshtrain::saving {
namespace {

constexpr Duration kMargin = std::chrono::minutes(5);  // beyond what the chief waits for parts

}  // namespace

class SessionCheckpoints::Impl {
 public:
  Impl(execute::Session& session, std::vector<program::Variable> variables, Options options)
      : session_(session), variables_(std::move(variables)), o_(std::move(options)) {}

  Status Open();
  Result<std::optional<Restored>> Restore(const Candidates& candidates, std::stop_token stop);
  Status Save(const train::Position& position);
  Status Begin(const train::Position& position, SaveExtras extras);
  Status Wait();
  bool IsFinal(int64_t step) const;
  const std::string& folder() const { return o_.folder; }
  checkpoint::AsyncSaver& saver() { return *saver_; }

 private:
  // What a checkpoint holds for this process, read before anything is changed.
  struct Loaded {
    Shards shards;
    Restored at;
    std::optional<data::Cursor> cursor;
  };

  bool chief() const { return o_.team == nullptr || o_.team->chief(); }
  bool shared() const { return o_.team == nullptr || o_.shared; }
  // Saves of the team's incarnation from now on; what one before left without its parts is over.
  void Renew();
  // An error of one that does not fit, with what to do about it.
  Status Advised(const Status& error) const;
  Status CheckFits(const checkpoint::Index& index, const std::string& path) const;
  // The position and the cursor.
  static Status ReadPlace(const checkpoint::Index& index, const std::string& path, Loaded* loaded);
  Result<Loaded> Load(const std::string& path) const;
  // By the chief, for all.
  Result<Loaded> LoadTogether(const std::string& path, std::stop_token stop);
  // What this process saves of the variables.
  Result<std::vector<checkpoint::SavedVariable>> Collect();

  execute::Session& session_;
  const std::vector<program::Variable> variables_;
  const Options o_;
  std::unique_ptr<checkpoint::AsyncSaver> saver_;
  uint64_t incarnation_ = 0;  // whose saves these are; 0: none yet
  // Lives as long as the incarnation: the lost will not complete what waits for them.
  std::optional<std::stop_callback<std::function<void()>>> on_loss_;
};

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
  auto impl = std::make_unique<Impl>(session, std::move(variables), std::move(options));
  MT_RETURN_IF_ERROR(impl->Open());
  return std::unique_ptr<SessionCheckpoints>(new SessionCheckpoints(std::move(impl)));
}

SessionCheckpoints::SessionCheckpoints(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
SessionCheckpoints::~SessionCheckpoints() = default;

Status SessionCheckpoints::Impl::Open() {
  checkpoint::SaveOptions save{.keep = o_.keep, .parts_timeout = o_.parts_timeout};
  if (o_.team != nullptr && o_.shared) {
    save.process = o_.team->process();
    save.processes = o_.team->processes();
  }
  MT_ASSIGN_OR_RETURN(
      saver_, checkpoint::AsyncSaver::Create(o_.folder, save, o_.background).From(Origin::kOutput));
  return OkStatus();
}

void SessionCheckpoints::Impl::Renew() {
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
  const auto all = [this] {
    return checkpoint::ListCheckpoints(impl_->folder()).From(Origin::kOutput);
  };
  return impl_->Restore(all, std::move(stop));
}
Result<std::optional<SessionCheckpoints::Restored>> SessionCheckpoints::Restore(
    const Candidates& candidates, std::stop_token stop) {
  return impl_->Restore(candidates, std::move(stop));
}
Status SessionCheckpoints::Save(const train::Position& position) { return impl_->Save(position); }
Status SessionCheckpoints::Begin(const train::Position& position, SaveExtras extras) {
  return impl_->Begin(position, std::move(extras));
}
Status SessionCheckpoints::Wait() { return impl_->Wait(); }
void SessionCheckpoints::Abandon() { impl_->saver().Abandon(); }
void SessionCheckpoints::set_replaces(std::vector<std::string> folders) {
  impl_->saver().set_replaces(std::move(folders));
}
bool SessionCheckpoints::IsFinal(int64_t step) const { return impl_->IsFinal(step); }
std::optional<checkpoint::SaveReport> SessionCheckpoints::last() const {
  return impl_->saver().last();
}
int64_t SessionCheckpoints::failures() const { return impl_->saver().failures(); }

Result<std::optional<SessionCheckpoints::Restored>> SessionCheckpoints::Impl::Restore(
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
  if (o_.data != nullptr && loaded.cursor) {
    MT_RETURN_IF_ERROR(
        Advised(o_.data->Restore(*loaded.cursor).At(loaded.at.path)).From(Origin::kOutput));
  }
  if (o_.data != nullptr && !loaded.cursor && !o_.data_may_begin_anew &&
      loaded.at.position.step > 0) {
    return Advised(FailedPrecondition(
                       "expected a checkpoint that says where its data stood, got: one of step " +
                       std::to_string(loaded.at.position.step) + " that was saved without data")
                       .At(loaded.at.path))
        .From(Origin::kOutput);
  }
  MT_RETURN_IF_ERROR(WriteShards(session_, variables_, loaded.shards));
  return std::optional(std::move(loaded.at));
}

Status SessionCheckpoints::Impl::Advised(const Status& error) const {
  if (error.ok() || o_.advice.empty()) return error;
  return error.WithMessage(error.message() + "; " + o_.advice);
}

Status SessionCheckpoints::Impl::CheckFits(const checkpoint::Index& index,
                                           const std::string& path) const {
  MT_RETURN_IF_ERROR(Advised(saving::CheckFits(index, path, variables_)));
  const std::string& saved_by = index.program_hash;
  if (chief() && !o_.program_hash.empty() && !saved_by.empty() && saved_by != o_.program_hash) {
    LogWarning("the program has changed since the checkpoint; its states fit and are taken",
               {{"path", path}, {"program", o_.program_hash}, {"checkpoint", saved_by}});
  }
  return OkStatus();
}

Status SessionCheckpoints::Impl::ReadPlace(const checkpoint::Index& index, const std::string& path,
                                           Loaded* loaded) {
  loaded->at.path = path;
  MT_ASSIGN_OR_RETURN(loaded->at.position, PositionOf(index, path));
  if (!index.data_cursor.empty()) {
    MT_ASSIGN_OR_RETURN(loaded->cursor, data::Cursor::Parse(index.data_cursor));
  }
  return OkStatus();
}

Result<SessionCheckpoints::Impl::Loaded> SessionCheckpoints::Impl::Load(
    const std::string& path) const {
  const membership::Team::Busy busy(o_.team, "loading " + path);
  MT_ASSIGN_OR_RETURN(const auto checkpoint, checkpoint::Checkpoint::Open(path));
  MT_RETURN_IF_ERROR(CheckFits(checkpoint->index(), path));
  Loaded loaded;
  MT_ASSIGN_OR_RETURN(loaded.shards, LoadShards(session_, variables_, *checkpoint));
  MT_RETURN_IF_ERROR(ReadPlace(checkpoint->index(), path, &loaded));
  return loaded;
}

Result<SessionCheckpoints::Impl::Loaded> SessionCheckpoints::Impl::LoadTogether(
    const std::string& path, std::stop_token stop) {
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
  MT_RETURN_IF_ERROR(ReadPlace(index, path, &loaded));
  return loaded;
}

Result<std::vector<checkpoint::SavedVariable>> SessionCheckpoints::Impl::Collect() {
  if (shared() && !o_.copies) return CollectShards(session_, variables_);
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

Status SessionCheckpoints::Impl::Begin(const train::Position& position, SaveExtras extras) {
  if (o_.team != nullptr && incarnation_ != o_.team->incarnation()) Renew();
  if (!o_.copies) MT_RETURN_IF_ERROR(CheckCopies(session_, variables_, o_.team, position.step));
  MT_ASSIGN_OR_RETURN(const mesh::Layout layout, session_.LayoutOf(variables_[0]));
  checkpoint::Snapshot snapshot{
      .step = position.step,
      .mesh = layout.mesh().ToString(),
      .program_hash = o_.program_hash,
      .data_cursor = o_.data != nullptr ? o_.data->cursor().ToString() : "",
      .metadata = PositionToMetadata(position)};
  MT_ASSIGN_OR_RETURN(snapshot.variables, Collect());
  if (!shared() && !chief()) return OkStatus();
  saver_->set_pinned(extras.pinned);
  saver_->set_notes(std::move(extras.notes));
  const membership::Team::Busy busy(o_.team, "saving step " + std::to_string(position.step));
  return OfSaving(saver_->Save(std::move(snapshot)));
}

Status SessionCheckpoints::Impl::Wait() {
  const membership::Team::Busy busy(o_.team, "the last save");
  return OfSaving(saver_->Wait());
}

Status SessionCheckpoints::Impl::Save(const train::Position& position) {
  Status saved = Begin(position, {});
  if (saved.ok()) saved = Wait();
  if (o_.team == nullptr || (!saved.ok() && !membership::Team::IsLoss(saved))) return saved;
  // The chief's is the commit: the others know of it before they go on, or leave. Where somebody
  // was lost this says who.
  const Status agreed =
      o_.team->Agree("saved", std::to_string(position.step), o_.parts_timeout + kMargin, {})
          .status();
  return agreed.ok() ? saved : agreed;
}

bool SessionCheckpoints::Impl::IsFinal(int64_t step) const {
  const auto found = checkpoint::Checkpoint::Open(checkpoint::CheckpointFolder(o_.folder, step));
  return found.ok() && saving::IsFinal((*found)->index());
}

}  // namespace meshtrain::saving
