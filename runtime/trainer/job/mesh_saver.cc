#include "runtime/trainer/job/mesh_saver.h"

#include <utility>

#include "runtime/data/cursor.h"
#include "runtime/saving/final.h"
#include "runtime/saving/position.h"
#include "runtime/saving/shards.h"

namespace meshtrain::trainer {

Result<std::unique_ptr<MeshSaver>> MeshSaver::Create(Options options, execute::Session& session,
                                                     Engine& engine, data::Pipeline& data) {
  auto made = std::unique_ptr<MeshSaver>(new MeshSaver(std::move(options), engine, data));
  const Options& o = made->o_;
  saving::SessionCheckpoints::Options files{.folder = o.folder.path,
                                            .keep = static_cast<int>(o.spec.keep),
                                            .team = o.team,
                                            .parts_timeout = o.parts_timeout,
                                            .data = &data,
                                            .data_may_begin_anew = true,
                                            .shared = o.folder.shared,
                                            .background = true,
                                            .program_hash = o.program_hash,
                                            .advice = o.folder.advice()};
  MT_ASSIGN_OR_RETURN(
      made->files_, saving::SessionCheckpoints::Create(session, engine.states(), std::move(files)));
  return made;
}

Result<std::optional<saving::Resumed>> MeshSaver::Resume(std::stop_token stop) {
  MT_ASSIGN_OR_RETURN(const auto restored,
                      files_->Restore([&] { return Candidates(); }, std::move(stop)));
  resumed_before_ = true;
  last_saved_ = restored ? restored->position.step : -1;
  if (!restored) {
    if (run_id_.empty()) run_id_ = saving::DrawRunId();
    MT_RETURN_IF_ERROR(BeginAnew());
    return std::optional<saving::Resumed>();
  }
  // What only the chief reaches, it alone has to know.
  const auto checkpoint = checkpoint::Checkpoint::Open(restored->path);
  if (checkpoint.ok()) run_id_ = saving::RunIdOf((*checkpoint)->index());
  return std::optional<saving::Resumed>({restored->position, restored->path});
}

Result<std::vector<checkpoint::Candidate>> MeshSaver::Candidates() {
  MT_ASSIGN_OR_RETURN(
      saving::ResumeChoice choice,
      saving::ChooseCheckpoints(
          {.folder = o_.folder.path,
           .own = o_.folder.own,
           .resume = o_.spec.resume || resumed_before_,
           .goes_on = [this](const checkpoint::Index& index) { return GoesOnFrom(index); },
           .run = resumed_before_ ? std::optional(run_) : std::nullopt})
          .From(Origin::kOutput));
  run_ = choice.run;
  files_->set_replaces(std::move(choice.replaced));
  return std::move(choice.candidates);
}

bool MeshSaver::GoesOnFrom(const checkpoint::Index& index) const {
  if (saving::IsFinished(index, o_.epochs, o_.may_end_early)) return false;
  const auto position = saving::PositionOf(index, o_.folder.path);
  const auto data = data::Cursor::Parse(index.data_cursor);
  // Who loads it says what is wrong with it.
  if (!position.ok() || !data.ok()) return true;
  // Behind an epoch's last batch; an epoch of another length would have ended elsewhere.
  const bool whole = position->batch == 0 || position->batch == o_.steps_per_epoch;
  return whole && data->fingerprint == data_.cursor().fingerprint &&
         saving::CheckFits(index, o_.folder.path, engine_.states()).ok();
}

Status MeshSaver::BeginAnew() {
  MT_RETURN_IF_ERROR(engine_.BeginAnew(o_.initial_weights));
  const data::Cursor at = data_.cursor();
  if (at.epoch == 0 && at.batch == 0) return OkStatus();  // batches made ahead stay
  return data_.Restore({.fingerprint = at.fingerprint});
}

Status MeshSaver::Save(const train::Position& position, std::optional<int64_t> pinned) {
  saving::SessionCheckpoints::SaveExtras extras{
      .pinned = pinned,
      .notes = saving::RunMetadata(o_.folder.own ? std::optional(run_) : std::nullopt, run_id_)};
  MT_RETURN_IF_ERROR(files_->Begin(position, std::move(extras)));
  last_saved_ = position.step;
  return OkStatus();
}

}  // namespace meshtrain::trainer
