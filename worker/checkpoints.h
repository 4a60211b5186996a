// Saving and resuming a job's states: what lies between the session's variables and the checkpoint folder.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "runtime/base/status.h"
#include "runtime/checkpoint/async.h"
#include "runtime/data/pipeline.h"
#include "runtime/execute/session.h"
#include "runtime/spec/spec.h"
#include "runtime/train/loop.h"
#include "worker/runner.h"

namespace meshtrain::worker {

// Where a resumed job goes on.
struct Resumed {
  train::Position position;
  std::string path;  // the checkpoint's folder
};

class Checkpoints {
 public:
  // `folder` is the manifest's `checkpoint.path`, or `<output>/checkpoints` where it names none (`own_folder`).
  static Result<std::unique_ptr<Checkpoints>> Create(std::string folder, bool own_folder,
                                                     const spec::CheckpointSpec& spec, execute::Session& session,
                                                     SessionRunner& runner, data::Pipeline& data);

  // Loads the newest whole checkpoint into the states and puts the data's cursor where it stood; a damaged one is logged
  // and the one before it taken. Nothing where there is none, or where the manifest begins anew.
  // `finished`: whether a position is the end of the job. A finished run in a folder of our own is not resumed but
  // replaced. Errors: kFailedPrecondition for a folder of the user's that holds checkpoints although the manifest asks
  // to begin anew; kDataLoss when checkpoints are there and none is whole.
  Result<std::optional<Resumed>> Resume(const std::function<bool(const train::Position&)>& finished);

  // Called by the loop, between steps.
  void Note(const train::Position& position) { position_ = position; }
  // Takes the states now; writing goes on beside training. Errors: those of the save before.
  Status Save(int64_t step);
  // Waits for the last save.
  Status Close();
  // The newest complete one.
  std::optional<checkpoint::SaveReport> last() const { return saver_->last(); }
  // The trained weights of the newest checkpoint, whole, in one safetensors file. Errors: kNotFound before any save.
  Status Export(const std::string& path) const;

 private:
  Checkpoints(std::string folder, bool own_folder, const spec::CheckpointSpec& spec, execute::Session& session,
              SessionRunner& runner, data::Pipeline& data)
      : folder_(std::move(folder)), own_folder_(own_folder), spec_(spec), session_(session), runner_(runner), data_(data) {}
  Status Load(const std::string& path, Resumed* resumed);

  std::string folder_;
  bool own_folder_;
  spec::CheckpointSpec spec_;
  execute::Session& session_;
  SessionRunner& runner_;
  data::Pipeline& data_;
  std::unique_ptr<checkpoint::AsyncSaver> saver_;
  train::Position position_;
};

}  // namespace meshtrain::worker
