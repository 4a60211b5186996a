// The checkpoints of a training job on a mesh: which one it goes on from, and the data's place in
// it. What lies between variables and files is saving::SessionCheckpoints'.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <vector>

#include "runtime/base/status.h"
#include "runtime/checkpoint/restore.h"
#include "runtime/checkpoint/save.h"
#include "runtime/data/pipeline.h"
#include "runtime/execute/session.h"
#include "runtime/membership/team.h"
#include "runtime/recipe/recipe.h"
#include "runtime/saving/resume.h"
#include "runtime/saving/session_checkpoints.h"
#include "runtime/train/loop.h"
#include "runtime/trainer/engine.h"
#include "runtime/trainer/job/choices.h"
#include "runtime/trainer/job/saver.h"

namespace meshtrain::trainer {

// Called by every process of a team, each with its own session. In a folder that the manifest names
// every process writes and reads its own shards, and the chief completes the checkpoint; else the
// chief alone saves, and sends what it reads. Which checkpoint is taken, and what a new run
// replaces, is the chief's to say.
class MeshSaver final : public Saver {
 public:
  struct Options {
    CheckpointFolder folder;
    manifest::Checkpoint spec;
    membership::Team* team = nullptr;  // null: one process
    // How long the chief waits for the others' parts of a checkpoint in a shared folder.
    Duration parts_timeout = checkpoint::SaveOptions().parts_timeout;
    std::string program_hash;
    std::vector<mesh::Tensor> initial_weights;  // in the place of the weights' own first values
    // What the job asks for. A finished run in a folder of our own that has done so much, or that
    // it cannot go on from, is replaced.
    int64_t epochs = 0, steps_per_epoch = 0;
    bool may_end_early = false;
  };
  // `engine`: prepared, over states that lie in `session`.
  static Result<std::unique_ptr<MeshSaver>> Create(Options options, execute::Session& session,
                                                   Engine& engine, data::Pipeline& data);

  // Where there is no checkpoint, or the manifest begins anew, the states get their first values.
  // A finished run in a folder of our own is not resumed but replaced, whatever its program was:
  // its checkpoints go when the first one of this run is complete. With a team all processes take
  // the same one, after Team::Join. Errors: kFailedPrecondition for a folder of the user's that
  // holds checkpoints although the manifest asks to begin anew; SessionCheckpoints::Restore's.
  Result<std::optional<saving::Resumed>> Resume(std::stop_token stop) override;
  Status Save(const train::Position& position, std::optional<int64_t> pinned) override;
  Status Wait() override { return files_->Wait(); }
  std::optional<checkpoint::SaveReport> last() const override { return files_->last(); }
  int64_t failures() const override { return files_->failures(); }

  // The newest step that was resumed or saved, -1: none.
  int64_t last_saved() const { return last_saved_; }
  saving::SessionCheckpoints& files() { return *files_; }
  const saving::SessionCheckpoints& files() const { return *files_; }

 private:
  MeshSaver(Options options, Engine& engine, data::Pipeline& data)
      : o_(std::move(options)), engine_(engine), data_(data) {}
  // Candidates that the manifest lets us go on from; notes the run, and what it replaces.
  Result<std::vector<checkpoint::Candidate>> Candidates();
  // From the last checkpoint of a run that is done.
  bool GoesOnFrom(const checkpoint::Index& index) const;
  Status BeginAnew();

  const Options o_;
  Engine& engine_;
  data::Pipeline& data_;
  std::unique_ptr<saving::SessionCheckpoints> files_;
  bool resumed_before_ = false;
  int64_t last_saved_ = -1;
  int64_t run_ = 0;     // kRunKey, in a folder of our own
  std::string run_id_;  // kRunIdKey; "": of a run that has none
};

}  // namespace meshtrain::trainer
