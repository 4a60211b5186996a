#include "worker/checkpoints.h"

#include <fmt/format.h>

#include "runtime/base/file.h"
#include "runtime/base/log.h"
#include "runtime/data/cursor.h"
#include "runtime/saving/copies.h"
#include "runtime/saving/failure.h"
#include "runtime/saving/newest.h"
#include "runtime/saving/position.h"

namespace meshtrain::worker {
namespace {

constexpr Duration kAgreeTimeout = std::chrono::minutes(10);  // a slow volume may take its time

}  // namespace

Result<std::unique_ptr<Checkpoints>> Checkpoints::Create(Options options, execute::Session& session,
                                                         trainer::MeshRunner& runner,
                                                         data::Pipeline& data) {
  auto checkpoints =
      std::unique_ptr<Checkpoints>(new Checkpoints(std::move(options), session, runner, data));
  const Options& o = checkpoints->o_;
  checkpoint::SaveOptions save{.keep = static_cast<int>(o.spec.keep),
                               .parts_timeout = o.parts_timeout};
  if (o.team != nullptr && checkpoints->shared()) {
    save.process = o.team->process();
    save.processes = o.team->processes();
  }
  MT_ASSIGN_OR_RETURN(checkpoints->saver_, checkpoint::AsyncSaver::Create(o.folder, save));
  return checkpoints;
}

Result<std::optional<Resumed>> Checkpoints::Resume(
    const std::function<bool(const train::Position&)>& finished, uint64_t incarnation,
    std::stop_token stop) {
  // A save that a lost peer left without its part is over, whatever came of it.
  on_loss_.reset();
  saver_->Abandon();
  {
    const membership::Team::Busy busy(o_.team, "the end of an abandoned save");
    if (const Status before = saver_->Wait(); !before.ok()) {
      LogWarning("a checkpoint was not completed", {{"error", before.message()}});
    }
  }
  saver_->set_generation(static_cast<int64_t>(incarnation));
  if (o_.team != nullptr) on_loss_.emplace(o_.team->lost(), [this] { saver_->Abandon(); });
  auto resumed = o_.team == nullptr ? ResumeAlone(finished) : ResumeTogether(finished, stop);
  if (resumed.ok()) {
    resumed_before_ = true;
    runner_.set_last_saved(*resumed ? (*resumed)->position.step : -1);
  }
  return resumed;
}

Result<std::vector<checkpoint::Candidate>> Checkpoints::Candidates(
    const std::function<bool(const train::Position&)>& finished) {
  MT_ASSIGN_OR_RETURN(
      ResumeChoice choice,
      ChooseCheckpoints({.folder = o_.folder,
                         .own = o_.own_folder,
                         .resume = o_.spec.resume || resumed_before_,
                         .finished = finished,
                         .run = resumed_before_ ? std::optional(run_) : std::nullopt})
          .From(Origin::kOutput));
  run_ = choice.run;
  saver_->set_replaces(std::move(choice.replaced));
  return std::move(choice.candidates);
}

Status Checkpoints::BeginAnew() {
  MT_RETURN_IF_ERROR(runner_.Initialize());
  const data::Cursor at = data_.cursor();
  if (at.epoch == 0 && at.batch == 0) return OkStatus();  // batches made ahead stay
  return data_.Restore({.fingerprint = at.fingerprint});
}

Result<std::optional<Resumed>> Checkpoints::ResumeAlone(
    const std::function<bool(const train::Position&)>& finished) {
  MT_ASSIGN_OR_RETURN(const std::vector<checkpoint::Candidate> candidates, Candidates(finished));
  Loaded loaded;
  const auto load = [&](const std::string& path) -> Status {
    MT_ASSIGN_OR_RETURN(loaded, Load(path).From(Origin::kOutput));
    return OkStatus();
  };
  MT_ASSIGN_OR_RETURN(const auto taken, saving::TakeNewest(candidates, load));
  return GoOn(taken, loaded);
}

Result<std::optional<Resumed>> Checkpoints::ResumeTogether(
    const std::function<bool(const train::Position&)>& finished, std::stop_token stop) {
  Result<std::vector<checkpoint::Candidate>> candidates = std::vector<checkpoint::Candidate>();
  if (chief()) candidates = Candidates(finished);
  Loaded loaded;
  const auto load = [&](const std::string& path) -> Status {
    MT_ASSIGN_OR_RETURN(loaded,
                        shared() ? Load(path).From(Origin::kOutput) : LoadTogether(path, stop));
    return OkStatus();
  };
  MT_ASSIGN_OR_RETURN(const auto taken,
                      saving::TakeNewestTogether(*o_.team, o_.folder, candidates, load, stop));
  return GoOn(taken, loaded);
}

Result<std::optional<Resumed>> Checkpoints::GoOn(const std::optional<checkpoint::Candidate>& taken,
                                                 const Loaded& loaded) {
  if (!taken) {
    MT_RETURN_IF_ERROR(BeginAnew());
    return std::optional<Resumed>();
  }
  MT_RETURN_IF_ERROR(Apply(loaded));
  return std::optional<Resumed>({loaded.position, loaded.path});
}

Status Checkpoints::CheckFits(const checkpoint::Index& index, const std::string& path) const {
  if (const Status fits = saving::CheckFits(index, path, states_); !fits.ok()) {
    return fits.WithMessage(
        fits.message() +
        (o_.own_folder ? "; give another --output, or `checkpoint.resume: Never` to begin anew"
                       : "; give another `checkpoint.path`"));
  }
  const std::string ours = ProgramHash();
  if (chief() && !index.program_hash.empty() && index.program_hash != ours) {
    LogWarning("the program has changed since the checkpoint; its states fit and are taken",
               {{"path", path}, {"program", ours}, {"checkpoint", index.program_hash}});
  }
  return OkStatus();
}

std::string Checkpoints::ProgramHash() const {
  return fmt::format("{:016x}", program::HashProgram(runner_.programs().train_step));
}

Result<Checkpoints::Loaded> Checkpoints::Load(const std::string& path) {
  const membership::Team::Busy busy(o_.team, "loading " + path);
  MT_ASSIGN_OR_RETURN(const auto checkpoint, checkpoint::Checkpoint::Open(path));
  MT_RETURN_IF_ERROR(CheckFits(checkpoint->index(), path));
  Loaded loaded{
      .shards = {}, .position = {}, .cursor = checkpoint->index().data_cursor, .path = path};
  MT_ASSIGN_OR_RETURN(loaded.shards, saving::LoadShards(session_, states_, *checkpoint));
  MT_ASSIGN_OR_RETURN(loaded.position, saving::PositionOf(checkpoint->index(), path));
  return loaded;
}

Result<Checkpoints::Loaded> Checkpoints::LoadTogether(const std::string& path,
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
    for (const program::Variable& v : states_) {
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
  Loaded loaded{.shards = {}, .position = {}, .cursor = index.data_cursor, .path = path};
  for (size_t i = 0; i < states_.size(); ++i) {
    mesh::Tensor value = chief() ? std::move(values[i]) : mesh::Tensor(states_[i].type());
    MT_RETURN_IF_ERROR(o_.team->BroadcastFromChief(value.mutable_bytes()));
    const auto read = [&](const mesh::Layout::Slice& slice) -> Result<mesh::Tensor> {
      return value.Slice(slice.offsets, slice.sizes);
    };
    MT_ASSIGN_OR_RETURN(std::vector<mesh::Tensor> shards,
                        saving::ReadShards(session_, states_[i], read));
    loaded.shards.push_back(std::move(shards));
  }
  MT_ASSIGN_OR_RETURN(loaded.position, saving::PositionOf(index, path));
  return loaded;
}

Status Checkpoints::Apply(const Loaded& loaded) {
  if (!loaded.cursor.empty()) {
    MT_ASSIGN_OR_RETURN(const data::Cursor cursor, data::Cursor::Parse(loaded.cursor));
    MT_RETURN_IF_ERROR(data_.Restore(cursor).At(loaded.path).From(Origin::kOutput));
  }
  return saving::WriteShards(session_, states_, loaded.shards);
}

Status Checkpoints::Save(const train::Position& position, std::optional<int64_t> pinned) {
  MT_RETURN_IF_ERROR(saving::CheckCopies(session_, states_, o_.team, position.step));
  checkpoint::Snapshot snapshot;
  snapshot.step = position.step;
  snapshot.mesh = runner_.mesh().ToString();
  snapshot.program_hash = ProgramHash();
  snapshot.data_cursor = data_.cursor().ToString();
  snapshot.metadata = saving::PositionToMetadata(position);
  // By a single process: the others of a team that shares a folder do not know it.
  if (o_.own_folder) snapshot.metadata[std::string(kRunKey)] = std::to_string(run_);
  if (shared()) {
    MT_ASSIGN_OR_RETURN(snapshot.variables, saving::CollectShards(session_, states_));
  } else {
    // All take part in gathering what is split.
    for (const program::Variable& v : states_) {
      MT_ASSIGN_OR_RETURN(mesh::Tensor value, session_.ReadToHost(v));
      if (!chief()) continue;
      MT_ASSIGN_OR_RETURN(const mesh::Layout layout, session_.LayoutOf(v));
      mesh::Dims origin(v.dims().size(), 0);
      snapshot.variables.push_back({v.name(),
                                    v.type(),
                                    layout.ToString(),  // as people wrote it
                                    {{std::move(origin), std::move(value)}}});
    }
    if (!chief()) return OkStatus();
  }
  saver_->set_pinned(pinned);
  return saving::OfSaving(saver_->Save(std::move(snapshot)));
}

Status Checkpoints::Wait() {
  const membership::Team::Busy busy(o_.team, "the last save");
  return saving::OfSaving(saver_->Wait());
}

bool Checkpoints::Holds(int64_t step) const {
  return checkpoint::Checkpoint::Open(checkpoint::CheckpointFolder(o_.folder, step)).ok();
}

}  // namespace meshtrain::worker
