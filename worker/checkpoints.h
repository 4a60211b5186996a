// Saving and resuming a job's states: what lies between the session's variables and the checkpoint
// folder.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <vector>

#include "runtime/base/status.h"
#include "runtime/checkpoint/async.h"
#include "runtime/checkpoint/restore.h"
#include "runtime/data/pipeline.h"
#include "runtime/execute/session.h"
#include "runtime/membership/team.h"
#include "runtime/recipe/recipe.h"
#include "runtime/saving/shards.h"
#include "runtime/train/loop.h"
#include "runtime/trainer/mesh_runner.h"
#include "worker/resume.h"

namespace meshtrain::worker {

// Called by every process of a team, each with its own session. Where `shared`, every process
// writes and reads its own shards in one folder; else the chief alone saves, and sends what it
// reads.
class Checkpoints {
 public:
  struct Options {
    // The manifest's `checkpoint.path`, or `<output>/checkpoints` where it names none
    // (`own_folder`).
    std::string folder;
    bool own_folder = false;
    manifest::Checkpoint spec;
    membership::Team* team = nullptr;  // null: one process
    // How long the chief waits for the others' parts of a checkpoint in a shared folder.
    Duration parts_timeout = checkpoint::SaveOptions().parts_timeout;
  };
  static Result<std::unique_ptr<Checkpoints>> Create(Options options, execute::Session& session,
                                                     trainer::MeshRunner& runner,
                                                     data::Pipeline& data);

  // Loads the newest whole checkpoint into the states and puts the data's cursor where it stood; a
  // damaged one is logged and the one before it taken. Where there is none, or the manifest begins
  // anew, the states get their initial values. `finished`: whether a position is the end of the
  // job. A finished run in a folder of our own is not resumed but replaced, whatever its program
  // was: its checkpoints go when the first one of this run is complete. Of another program than
  // this job's, a checkpoint is taken where its states fit, with a warning. With a team all
  // processes take the same one, after Team::Join; `incarnation` is its id, and a second call rolls
  // back. Files that cannot be read are kOutput, which is no lost peer
  // (saving/failure.h), and all processes get the same code. Errors: kFailedPrecondition for a
  // folder of the user's that holds checkpoints although the manifest asks to begin anew;
  // kInvalidArgument for states that do not fit; kDataLoss when checkpoints are there and none is
  // whole; the team's.
  Result<std::optional<Resumed>> Resume(const std::function<bool(const train::Position&)>& finished,
                                        uint64_t incarnation, std::stop_token stop);

  // Called by the loop, between steps: compares the copies that devices hold of one value, and
  // takes the states now; writing goes on beside training. `pinned`: as SaveOptions'. Errors:
  // kInternal in every process where copies differ (saving/copies.h); those of the save before, as
  // Wait gives them.
  Status Save(const train::Position& position, std::optional<int64_t> pinned);
  // What the others will not complete is not waited for.
  void Abandon() { saver_->Abandon(); }
  // Waits for the last save. With a team: kUnavailable when somebody was lost whose part of it is
  // missing; where all are here and one is missing nevertheless, kDeadlineExceeded of kOutput.
  Status Wait();
  // Whether a complete checkpoint of this step lies in the folder, whoever completed it.
  bool Holds(int64_t step) const;
  // The newest complete one; in processes other than the chief, the newest whose part is written.
  std::optional<checkpoint::SaveReport> last() const { return saver_->last(); }

 private:
  // What a checkpoint holds for this process, read before anything is changed.
  struct Loaded {
    saving::Shards shards;
    train::Position position;
    std::string cursor;
    std::string path;
  };

  Checkpoints(Options options, execute::Session& session, trainer::MeshRunner& runner,
              data::Pipeline& data)
      : o_(std::move(options)),
        session_(session),
        runner_(runner),
        states_(runner.states().begin(), runner.states().end()),
        data_(data) {}
  bool chief() const { return o_.team == nullptr || o_.team->chief(); }
  bool shared() const { return o_.team == nullptr || !o_.own_folder; }
  // Candidates that the manifest lets us go on from; notes the run, and what it replaces.
  Result<std::vector<checkpoint::Candidate>> Candidates(
      const std::function<bool(const train::Position&)>& finished);
  // Whether the checkpoint's states are this job's.
  Status CheckFits(const checkpoint::Index& index, const std::string& path) const;
  // The states are those that were loaded, or where nothing was taken the initial ones.
  Result<std::optional<Resumed>> GoOn(const std::optional<checkpoint::Candidate>& taken,
                                      const Loaded& loaded);
  std::string ProgramHash() const;
  Result<Loaded> Load(const std::string& path);
  Result<Loaded> LoadTogether(const std::string& path, std::stop_token stop);
  Status Apply(const Loaded& loaded);
  Status BeginAnew();
  Result<std::optional<Resumed>> ResumeAlone(
      const std::function<bool(const train::Position&)>& finished);
  Result<std::optional<Resumed>> ResumeTogether(
      const std::function<bool(const train::Position&)>& finished, std::stop_token stop);

  Options o_;
  execute::Session& session_;
  trainer::MeshRunner& runner_;
  const std::vector<program::Variable> states_;  // the runner's
  data::Pipeline& data_;
  std::unique_ptr<checkpoint::AsyncSaver> saver_;
  // Lives between a resume and the next: the lost will not complete what waits for them.
  std::optional<std::stop_callback<std::function<void()>>> on_loss_;
  bool resumed_before_ = false;
  int64_t run_ = 0;  // kRunKey, in a folder of our own
};

}  // namespace meshtrain::worker
