// How variables are cut into shards and which server holds which: the variable_partitioner of
// ParameterServerStrategy.
//
// The three partitioners, the cut along the first dimension and the round robin are
// TensorFlow 2.21's (python/distribute/sharded_variable.py and parameter_server_strategy_v2.py), so
// a job's shards are where its users expect them. Pure.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "runtime/base/status.h"
#include "runtime/mesh/named_type.h"
#include "runtime/mesh/shape.h"

namespace meshtrain::parameter {

struct Whole {};
// As many shards as asked for, or as there are rows.
struct FixedShards {
  int64_t shards = 1;
};
// As many shards as there are pieces of `min_shard_bytes` in the variable, a last incomplete one
// counted.
struct MinSize {
  int64_t min_shard_bytes = int64_t{256} << 10;
  int64_t max_shards = 1;
};
// As few shards as keep each within `max_shard_bytes` (a row is never cut); `max_shards` comes
// first.
struct MaxSize {
  int64_t max_shard_bytes = 0;
  int64_t max_shards = 0;  // 0: any number
};
using Partitioner = std::variant<Whole, FixedShards, MinSize, MaxSize>;

// Errors: kInvalidArgument for a number that is not positive.
Status CheckPartitioner(const Partitioner& partitioner);

// Shards along dimension 0, at least 1. A scalar and a variable without elements are never cut.
int64_t CountShards(const Partitioner& partitioner, const mesh::TensorType& type);

// Rows [row, row + type.dims[0]) of a variable; all of it where it is not cut.
struct Shard {
  std::string name;       // the variable's, with "/part_K" where it is cut
  mesh::TensorType type;  // the shard's
  int variable = 0;       // in the list that was placed
  int part = 0;
  int parts = 1;
  int64_t row = 0;
  int server = 0;
  // Where it begins in the variable: {row, 0, 0}; {} for a scalar.
  mesh::Dims offsets() const;
  friend bool operator==(const Shard&, const Shard&) = default;
};

// Rows are dealt as evenly as can be, longer shards first: 10 rows over 4 are 3, 3, 2, 2. Shards go
// to the servers in turn, in the order of the variables and their parts; `placed` shards went
// before these.
//   [100,4] and [7,64] f32 under MinSize{256, 2} over 2 servers:
//   a/part_0 [50,4] on 0, a/part_1 [50,4] on 1, b/part_0 [4,64] on 0, b/part_1 [3,64] on 1
// Errors: kInvalidArgument for no server, a bad partitioner or a name twice.
Result<std::vector<Shard>> PlaceShards(std::span<const mesh::NamedType> variables,
                                       const Partitioner& partitioner, int servers,
                                       int64_t placed = 0);

}  // namespace meshtrain::parameter
