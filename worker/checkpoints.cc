#include "worker/checkpoints.h"

#include <fmt/format.h>

#include <set>

#include "runtime/base/file.h"
#include "runtime/base/log.h"
#include "runtime/base/text.h"
#include "runtime/checkpoint/collect.h"
#include "worker/file_error.h"

namespace meshtrain::worker {
namespace {

constexpr Duration kAgreeTimeout = std::chrono::minutes(10);  // a slow volume may take its time

}  // namespace

Result<std::unique_ptr<Checkpoints>> Checkpoints::Create(Options options, execute::Session& session,
                                                         distribute::MeshRunner& runner,
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
    const distribute::Team::Busy busy(o_.team, "the end of an abandoned save");
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

Result<std::vector<checkpoint::Candidate>> Checkpoints::Candidates() {
  return ResumeCandidates(o_.folder, o_.own_folder, o_.spec.resume || resumed_before_);
}

Status Checkpoints::BeginAnew() {
  position_ = {};
  MT_RETURN_IF_ERROR(runner_.Initialize());
  const data::Cursor at = data_.cursor();
  if (at.epoch == 0 && at.batch == 0) return OkStatus();  // batches made ahead stay
  return OfFiles(data_.Restore({.fingerprint = at.fingerprint}));
}

Result<std::optional<Resumed>> Checkpoints::ResumeAlone(
    const std::function<bool(const train::Position&)>& finished) {
  MT_ASSIGN_OR_RETURN(std::vector<checkpoint::Candidate> candidates, Candidates());
  if (!candidates.empty() && IsDone(candidates[0], finished)) {
    MT_RETURN_IF_ERROR(RemoveCheckpoints(candidates));
    candidates.clear();
  }
  Status why = OkStatus();
  for (const checkpoint::Candidate& candidate : candidates) {
    auto loaded = Load(candidate.path);
    if (loaded.ok()) {
      MT_RETURN_IF_ERROR(Apply(*loaded));
      return std::optional<Resumed>({loaded->position, loaded->path});
    }
    why = loaded.status();
    if (why.code() != StatusCode::kDataLoss) return why;
    LogWarning("checkpoint is damaged, trying the one before",
               {{"path", candidate.path}, {"error", why.message()}});
    if (&candidate == &candidates.back()) return why.At("no whole checkpoint is left");
  }
  MT_RETURN_IF_ERROR(BeginAnew());
  return std::optional<Resumed>();
}

Result<std::optional<Resumed>> Checkpoints::ResumeTogether(
    const std::function<bool(const train::Position&)>& finished, std::stop_token stop) {
  distribute::Team& team = *o_.team;
  std::vector<checkpoint::Candidate> candidates;  // the chief's
  Status listed = OkStatus();
  if (chief()) {
    auto list = Candidates();
    listed = OfFiles(list.status());
    if (list.ok()) candidates = std::move(*list);
    if (!candidates.empty() && !resumed_before_ && IsDone(candidates[0], finished)) {
      listed = OfFiles(RemoveCheckpoints(candidates));
      candidates.clear();
    }
  }
  for (size_t next = 0;; ++next) {
    // The chief says which; "" is none, '!' why it cannot go on.
    std::string offer;
    if (!listed.ok()) {
      offer = "!" + TellFailure(listed);
    } else if (next < candidates.size()) {
      offer = std::to_string(candidates[next].step);
    } else if (next > 0) {
      offer = "!" + TellFailure(DataLoss("no whole checkpoint is left"));
    }
    MT_ASSIGN_OR_RETURN(std::vector<std::string> said,
                        team.Agree("resume from", chief() ? offer : "", kAgreeTimeout, stop));
    offer = said[0];
    if (offer.starts_with('!')) return ToldFailure(team.name(0), offer.substr(1));
    if (offer.empty()) {
      MT_RETURN_IF_ERROR(BeginAnew());
      return std::optional<Resumed>();
    }
    const std::string path = checkpoint::CheckpointFolder(o_.folder, ParseInt(offer).value_or(0));
    auto loaded = shared() ? OfFiles(Load(path)) : LoadTogether(path, stop);
    if (!loaded.ok() && distribute::Team::IsLoss(loaded.status())) return loaded.status();
    const bool damaged = !loaded.ok() && loaded.status().code() == StatusCode::kDataLoss;
    MT_ASSIGN_OR_RETURN(said,
                        team.Agree("loaded", TellFailure(loaded.status()), kAgreeTimeout, stop));
    if (!loaded.ok() && !damaged) return loaded.status();
    bool all = true;
    for (int p = 0; p < team.processes(); ++p) {
      const Status theirs = ToldFailure(team.name(p), said[p]);
      if (theirs.ok()) continue;
      if (theirs.code() != StatusCode::kDataLoss) return theirs;
      all = false;
      if (chief()) {
        LogWarning("checkpoint is damaged, trying the one before",
                   {{"path", path}, {"error", theirs.message()}});
      }
    }
    if (!all) continue;
    MT_RETURN_IF_ERROR(Apply(*loaded));
    return std::optional<Resumed>({loaded->position, loaded->path});
  }
}

bool Checkpoints::IsDone(const checkpoint::Candidate& newest,
                         const std::function<bool(const train::Position&)>& finished) const {
  if (!o_.own_folder) return false;
  const auto checkpoint = checkpoint::Checkpoint::Open(newest.path);
  if (!checkpoint.ok()) return false;
  const auto position = PositionOf((*checkpoint)->index(), newest.path);
  return position.ok() && finished(*position);
}

Status Checkpoints::CheckFits(const checkpoint::Index& index, const std::string& path) const {
  for (const nn::Parameter& p : runner_.states()) {
    const auto saved = index.variables.find(p.name());
    if (saved != index.variables.end() && saved->second.type == p.type()) continue;
    return InvalidArgument(
        path + ": it is of another model: `" + p.name() + "`: expected " + p.type().ToString() +
        ", got: " +
        (saved == index.variables.end() ? "no such variable" : saved->second.type.ToString()) +
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
  const distribute::Team::Busy busy(o_.team, "loading " + path);
  MT_ASSIGN_OR_RETURN(const auto checkpoint, checkpoint::Checkpoint::Open(path));
  MT_RETURN_IF_ERROR(CheckFits(checkpoint->index(), path));
  Loaded loaded{
      .shards = {}, .position = {}, .cursor = checkpoint->index().data_cursor, .path = path};
  for (const nn::Parameter& p : runner_.states()) {
    MT_ASSIGN_OR_RETURN(const mesh::Layout layout, session_.StoredLayoutOf(p));
    std::vector<mesh::Tensor>& shards = loaded.shards.emplace_back();
    for (const int64_t rank : layout.mesh().LocalRanks(session_.options().process)) {
      const mesh::Layout::Slice slice = layout.SliceOf(rank, p.type().dims);
      MT_ASSIGN_OR_RETURN(mesh::Tensor shard,
                          checkpoint->LoadSlice(p.name(), slice.offsets, slice.sizes));
      shards.push_back(std::move(shard));
    }
  }
  MT_ASSIGN_OR_RETURN(loaded.position, PositionOf(checkpoint->index(), path));
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
    const distribute::Team::Busy busy(o_.team, "loading " + path);
    auto opened = checkpoint::Checkpoint::Open(path);
    failed = opened.ok() ? CheckFits((*opened)->index(), path) : opened.status();
    if (opened.ok()) {
      checkpoint = std::move(*opened);
      checkpoint::Index index = checkpoint->index();
      index.variables.clear();
      index.files.clear();
      head = index.ToJson();
    }
    for (const nn::Parameter& p : runner_.states()) {
      if (!failed.ok()) break;
      auto value = checkpoint->Load(p.name());
      failed = value.status();
      if (value.ok()) values.push_back(std::move(*value));
    }
    if (!failed.ok()) head.clear();
  }
  MT_ASSIGN_OR_RETURN(const std::vector<std::string> said,
                      o_.team->Agree("state of the chief", head, kAgreeTimeout, stop));
  if (!failed.ok()) return OfFiles(failed);
  if (said[0].empty()) return DataLoss(path + ": the chief cannot read it");
  MT_ASSIGN_OR_RETURN(const checkpoint::Index index, checkpoint::Index::ParsePart(said[0], path));
  Loaded loaded{.shards = {}, .position = {}, .cursor = index.data_cursor, .path = path};
  for (size_t i = 0; i < runner_.states().size(); ++i) {
    const nn::Parameter& p = runner_.states()[i];
    mesh::Tensor value = chief() ? std::move(values[i]) : mesh::Tensor(p.type());
    MT_RETURN_IF_ERROR(o_.team->BroadcastFromChief(value.mutable_bytes()));
    MT_ASSIGN_OR_RETURN(const mesh::Layout layout, session_.StoredLayoutOf(p));
    std::vector<mesh::Tensor>& shards = loaded.shards.emplace_back();
    for (const int64_t rank : layout.mesh().LocalRanks(session_.options().process)) {
      const mesh::Layout::Slice slice = layout.SliceOf(rank, p.type().dims);
      shards.push_back(value.Slice(slice.offsets, slice.sizes));
    }
  }
  MT_ASSIGN_OR_RETURN(loaded.position, PositionOf(index, path));
  return loaded;
}

Status Checkpoints::Apply(const Loaded& loaded) {
  if (!loaded.cursor.empty()) {
    MT_ASSIGN_OR_RETURN(const data::Cursor cursor, data::Cursor::Parse(loaded.cursor));
    MT_RETURN_IF_ERROR(OfFiles(data_.Restore(cursor)).At(loaded.path));
  }
  for (size_t i = 0; i < loaded.shards.size(); ++i) {
    const nn::Parameter& p = runner_.states()[i];
    MT_ASSIGN_OR_RETURN(const mesh::Layout layout, session_.StoredLayoutOf(p));
    const std::vector<int64_t> ranks = layout.mesh().LocalRanks(session_.options().process);
    for (size_t r = 0; r < ranks.size(); ++r) {
      MT_RETURN_IF_ERROR(session_.WriteStored(p, ranks[r], loaded.shards[i][r]));
    }
  }
  position_ = loaded.position;
  return OkStatus();
}

Status Checkpoints::Save(int64_t step) {
  checkpoint::Snapshot snapshot;
  snapshot.step = step;
  snapshot.mesh = runner_.mesh().ToString();
  snapshot.program_hash = ProgramHash();
  snapshot.data_cursor = data_.cursor().ToString();
  snapshot.metadata = PositionToMetadata(position_);
  if (shared()) {
    std::vector<checkpoint::VariableSpec> specs;
    for (const nn::Parameter& p : runner_.states()) {
      MT_ASSIGN_OR_RETURN(mesh::Layout layout, session_.StoredLayoutOf(p));
      specs.push_back({p.name(), p.type(), std::move(layout)});
    }
    const int process = session_.options().process;
    MT_ASSIGN_OR_RETURN(snapshot.variables,
                        checkpoint::Collect(specs, process, [&](int variable, int64_t rank) {
                          return session_.ReadStored(runner_.states()[variable], rank);
                        }));
  } else {
    // All take part in gathering what is split.
    for (const nn::Parameter& p : runner_.states()) {
      MT_ASSIGN_OR_RETURN(mesh::Tensor value, session_.ReadToHost(p));
      mesh::Dims origin(p.type().dims.size(), 0);
      if (chief()) {
        snapshot.variables.push_back(
            {p.name(), p.type(), "", {{std::move(origin), std::move(value)}}});
      }
    }
    if (!chief()) return OkStatus();
  }
  for (size_t i = 0; i < snapshot.variables.size(); ++i) {
    MT_ASSIGN_OR_RETURN(const mesh::Layout layout, session_.LayoutOf(runner_.states()[i]));
    snapshot.variables[i].layout = layout.ToString();  // as people wrote it
  }
  return OfSaving(saver_->Save(std::move(snapshot)));
}

Status Checkpoints::Wait() {
  const distribute::Team::Busy busy(o_.team, "the last save");
  return OfSaving(saver_->Wait());
}

bool Checkpoints::Holds(int64_t step) const {
  return checkpoint::Checkpoint::Open(checkpoint::CheckpointFolder(o_.folder, step)).ok();
}

Status Checkpoints::Export(const std::string& path) const {
  const auto newest = saver_->last();
  std::string from;
  if (newest) {
    from = newest->path;
  } else {
    MT_ASSIGN_OR_RETURN(const checkpoint::Candidate latest, checkpoint::FindLatest(o_.folder));
    from = latest.path;
  }
  MT_ASSIGN_OR_RETURN(const auto checkpoint, checkpoint::Checkpoint::Open(from));
  std::set<std::string, std::less<>> weights;
  for (const nn::Parameter& p : runner_.programs().parameters) weights.insert(p.name());
  return checkpoint->Export(path, [&](std::string_view name) { return weights.contains(name); });
}

}  // namespace meshtrain::worker
