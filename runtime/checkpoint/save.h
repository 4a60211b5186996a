// Saving: each process writes its blocks into one safetensors file, then one of them writes the
// index, whose atomic rename is the commit. Before it, readers see the checkpoint before; a crash
// leaves a folder without index, which nobody takes for a checkpoint and the next save sweeps away.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <stop_token>
#include <string>
#include <vector>

#include "runtime/base/clock.h"
#include "runtime/base/status.h"
#include "runtime/checkpoint/index.h"
#include "runtime/mesh/tensor.h"

namespace meshtrain::checkpoint {

// A part of a variable's global value; box.sizes == value.dims().
struct Block {
  mesh::Dims offsets;
  mesh::Tensor value;
};

struct SavedVariable {
  std::string name;
  mesh::TensorType type;  // global
  std::string layout;
  std::vector<Block>
      blocks;  // the caller's part: together with the other processes' they cover the variable once
};

// What a checkpoint is made of. The tensors' bytes must not change until it is saved.
struct Snapshot {
  int64_t step = 0;
  std::string mesh;
  std::string program_hash;
  std::string data_cursor;
  std::map<std::string, std::string> metadata;
  std::vector<SavedVariable> variables;
};

struct SaveOptions {
  int keep = 5;                        // complete checkpoints to keep, the newest; 0: all
  std::optional<int64_t> pinned = {};  // the step of one that is kept besides, whatever its age
  // Many processes that share the folder: each saves its part, process 0 commits when all parts are
  // there.
  int process = 0;
  int processes = 1;
  // Equal in all processes, and higher at each new start of any of them (an incarnation): parts
  // that a lost attempt left behind are then not taken for this one's, and a second save of a step
  // writes into no file of the first. 0: one more than what the folder holds, for a single process.
  int64_t generation = 0;
  Duration parts_timeout =
      std::chrono::minutes(5);  // how long process 0 waits for the others' parts
  // In the checkpoint's metadata beside that of the parts, by who commits it: what the others do
  // not know.
  std::map<std::string, std::string> notes = {};
  // Other checkpoints' folders, which go when this one is complete.
  std::vector<std::string> replaces = {};
  std::stop_token abandon;  // when requested, process 0 waits no longer for a part that is not
                            // there: kCancelled
};

// Errors: kInternal of Origin::kNumbers naming a variable with values that are NaN or infinite. No
// such snapshot is saved, so the newest checkpoint is one to go back to.
Status CheckFinite(const Snapshot& snapshot);

// Writes this process's part; process 0 then waits for the others' and commits. Returns the
// checkpoint's folder; in the other processes before the commit. Errors: base/file.h's for a folder
// that cannot be written; CheckFinite's; kInvalidArgument for blocks that do not cover their
// variables;
// kDeadlineExceeded naming the processes whose parts did not appear.
Result<std::string> Save(const std::string& folder, const Snapshot& snapshot,
                         const SaveOptions& options = {});

// The steps of Save, for callers that carry the indexes themselves. A part that is not committed
// costs nothing but disk.
Result<Index> WritePart(const std::string& folder, const Snapshot& snapshot, int process,
                        int processes, int64_t generation = 0);
Result<std::string> Commit(const std::string& folder, const std::vector<Index>& parts,
                           const SaveOptions& options = {});

// `folder`, for whoever made it and is about to save there: Save would make it anew, as if nothing
// had been lost with it. Errors: kNotFound where it is gone.
Result<std::string> CheckFolder(const std::string& folder);

// Removes a complete or an incomplete checkpoint, by its own folder. Its index goes first: whatever
// ends this in between leaves an incomplete checkpoint, never a complete one without its files.
// Errors: base/file.h's; where the index stays, so does all of it.
Status RemoveCheckpoint(const std::string& checkpoint);

// "FOLDER/ckpt-00000100".
std::string CheckpointFolder(const std::string& folder, int64_t step);

}  // namespace meshtrain::checkpoint
