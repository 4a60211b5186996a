// A checkpoint's index: the one file whose appearance makes the checkpoint complete. It says which
// bytes of which shard file hold which part of which variable, with their checksums. Pure.
//
// A checkpoint at step 100 of a job that saves into F:
//   F/ckpt-00000100/shard-00000-of-00002.safetensors   each a valid safetensors file by itself
//   F/ckpt-00000100/shard-00001-of-00002.safetensors
//   F/ckpt-00000100/index.json                          {"index": {...}, "xxh64": of the compact
//                                                       text of "index"}
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/status.h"
#include "runtime/checkpoint/runs.h"
#include "runtime/mesh/shape.h"

namespace meshtrain::checkpoint {

inline constexpr std::string_view kIndexName = "index.json";
// A shard's bytes are summed in pieces of this size, so that reading a slice checks only what it
// reads.
inline constexpr int64_t kChunkBytes = 1 << 20;

// No run comes near it, and sums of steps stay far from the ends of int64_t.
inline constexpr int64_t kMostSteps = int64_t{1} << 53;

struct ShardRecord {
  int file = 0;                  // in Index::files
  std::string key;               // the tensor's name in that file
  Box box;                       // the part of the variable
  int64_t begin = 0;             // bytes in the file; their number follows from the box
  std::vector<uint64_t> chunks;  // XXH64, seed 0, of each piece
  friend bool operator==(const ShardRecord&, const ShardRecord&) = default;
};

// Kept true: the boxes do not overlap and cover the variable.
struct VariableRecord {
  mesh::TensorType type;  // global
  std::string layout;     // when saved; for people: loading does not need it
  std::vector<ShardRecord> shards;
  friend bool operator==(const VariableRecord&, const VariableRecord&) = default;
};

struct FileRecord {
  std::string name;
  int64_t bytes = 0;
  int64_t header_bytes = 0;
  uint64_t header_hash = 0;
  friend bool operator==(const FileRecord&, const FileRecord&) = default;
};

struct Index {
  int64_t step = 0;        // 0 to kMostSteps
  int64_t generation = 0;  // counts saves of the same step; 0 to kMostSteps
  std::string mesh;        // when saved
  std::string program_hash;
  std::string data_cursor;  // data::Cursor's text
  std::map<std::string, std::string> metadata;
  std::vector<FileRecord> files;
  std::map<std::string, VariableRecord> variables;

  std::string ToJson() const;
  // `path` is for messages. Errors: kDataLoss naming the byte for text that is not JSON, whose
  // checksum differs or that breaks a rule above; kUnimplemented for a later version.
  static Result<Index> Parse(std::string_view text, const std::string& path);
  // The same for one process's part, whose shards need not cover the variables.
  static Result<Index> ParsePart(std::string_view text, const std::string& path);
  friend bool operator==(const Index&, const Index&) = default;
};

// Joins what several processes wrote of one checkpoint, in their order. Errors: kInvalidArgument
// when they disagree on anything but files and shards, or when together they do not cover every
// variable.
Result<Index> MergeIndexes(const std::vector<Index>& parts);

// Errors: kInvalidArgument naming the variable whose boxes do not cover it exactly, or lie outside
// of it or its file.
Status CheckIndex(const Index& index);

// "0123456789abcdef".
std::string HashText(uint64_t hash);

}  // namespace meshtrain::checkpoint
