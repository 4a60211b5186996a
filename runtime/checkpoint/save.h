// Saving: each process writes its blocks into one safetensors file, then one of them writes the index, whose atomic
// rename is the commit. Before it, readers see the checkpoint before; a crash leaves a folder without index, which
// nobody takes for a checkpoint and the next save sweeps away.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

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
  std::vector<Block> blocks;  // the caller's part: together with the other processes' they cover the variable once
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
  int keep = 5;  // complete checkpoints to keep, the newest; 0: all
};

// One process: write and commit. Returns the checkpoint's folder. Errors: base/file.h's for a folder that cannot be
// written; kInvalidArgument for blocks that do not cover their variables.
Result<std::string> Save(const std::string& folder, const Snapshot& snapshot, const SaveOptions& options = {});

// Many processes: each writes its part (every process with the same step and `processes`) and sends the index it gets,
// as JSON, to one, which commits all of them. A part that is not committed costs nothing but disk.
Result<Index> WritePart(const std::string& folder, const Snapshot& snapshot, int process, int processes);
Result<std::string> Commit(const std::string& folder, const std::vector<Index>& parts, const SaveOptions& options = {});

// "FOLDER/ckpt-00000100".
std::string CheckpointFolder(const std::string& folder, int64_t step);

}  // namespace meshtrain::checkpoint
