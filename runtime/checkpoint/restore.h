// Finding and reading checkpoints. Nothing here decides what to do about a broken one: the caller
// goes down the list.
//
//   MT_ASSIGN_OR_RETURN(const std::vector<Candidate> candidates, ListCheckpoints(folder));
//   for (const Candidate& c : candidates) {
//     auto checkpoint = Checkpoint::Open(c.path);          // kDataLoss: try the next, say so
//     ...
//   }
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/status.h"
#include "runtime/checkpoint/index.h"
#include "runtime/checkpoint/raw_file.h"
#include "runtime/mesh/layout.h"
#include "runtime/mesh/tensor.h"

namespace meshtrain::checkpoint {

struct Candidate {
  int64_t step = 0;
  std::string path;  // the checkpoint's own folder
  friend bool operator==(const Candidate&, const Candidate&) = default;
};

// Complete checkpoints (those with an index), newest first; empty where there are none, or no
// folder. Errors: ErrnoStatus's, also where one that is there cannot be looked into: it may be the
// newest.
Result<std::vector<Candidate>> ListCheckpoints(const std::string& folder);
// The newest complete one. Errors: kNotFound.
Result<Candidate> FindLatest(const std::string& folder);
// Folders of checkpoints that were never committed.
std::vector<Candidate> ListIncomplete(const std::string& folder);

// Thread-safe. Errors everywhere: kDataLoss for bytes that are not those saved, naming file and
// byte range.
class Checkpoint {
 public:
  // Reads the index, checks each shard file's size and header.
  static Result<std::unique_ptr<Checkpoint>> Open(const std::string& path);

  const std::string& path() const { return path_; }
  const Index& index() const { return index_; }

  // The whole value. Errors: kNotFound with the nearest name.
  Result<mesh::Tensor> Load(std::string_view name) const;
  // The box [offsets, offsets + sizes) of the global value, whatever shards it was saved in: reads,
  // and checks, only the pieces that hold it. Errors: also kInvalidArgument when it is not inside.
  Result<mesh::Tensor> LoadSlice(std::string_view name, const mesh::Dims& offsets,
                                 const mesh::Dims& sizes) const;
  // What device `rank` stores under `layout`, on any mesh: layout.LocalShape() elements, padding
  // zero. Errors: also kInvalidArgument for a layout that does not fit or is partial.
  Result<mesh::Tensor> LoadLocal(std::string_view name, const mesh::Layout& layout,
                                 int64_t rank) const;

  // Reads every byte against its checksum.
  Status Verify() const;
  // One safetensors file of whole variables, one at a time in memory; those that `wanted` names
  // (all without it). `notes` stand in its metadata, beside `format` and `step`.
  Status Export(const std::string& path, const std::function<bool(std::string_view)>& wanted = {},
                const std::map<std::string, std::string>& notes = {}) const;

 private:
  Checkpoint(std::string path, Index index, std::vector<std::unique_ptr<RawReader>> files)
      : path_(std::move(path)), index_(std::move(index)), files_(std::move(files)) {}
  Result<const VariableRecord*> Find(std::string_view name) const;
  Status ReadShard(std::string_view name, const VariableRecord& variable, const ShardRecord& shard,
                   const Box& wanted, std::span<std::byte> out) const;

  std::string path_;
  Index index_;
  std::vector<std::unique_ptr<RawReader>> files_;
};

}  // namespace meshtrain::checkpoint
