#include "runtime/parameter/messages/partitioner.h"

#include <algorithm>
#include <set>

namespace meshtrain::parameter {
namespace {

int64_t CeilDiv(int64_t a, int64_t b) { return a / b + (a % b != 0 ? 1 : 0); }

Status Positive(const char* what, int64_t value) {
  if (value >= 1) return OkStatus();
  return InvalidArgument(std::string("partitioner: ") + what +
                         ": expected at least 1, got: " + std::to_string(value));
}

struct Counter {
  const mesh::TensorType& type;

  int64_t operator()(const Whole&) const { return 1; }
  int64_t operator()(const FixedShards& p) const { return p.shards; }
  int64_t operator()(const MinSize& p) const {
    return std::min(p.max_shards, CeilDiv(type.num_bytes(), p.min_shard_bytes));
  }
  int64_t operator()(const MaxSize& p) const {
    const int64_t row_bytes = type.num_bytes() / type.dims[0];
    const int64_t rows_per_shard = std::max<int64_t>(1, p.max_shard_bytes / row_bytes);
    const int64_t shards = CeilDiv(type.dims[0], rows_per_shard);
    return p.max_shards > 0 ? std::min(p.max_shards, shards) : shards;
  }
};

struct Checker {
  Status operator()(const Whole&) const { return OkStatus(); }
  Status operator()(const FixedShards& p) const { return Positive("shards", p.shards); }
  Status operator()(const MinSize& p) const {
    MT_RETURN_IF_ERROR(Positive("min_shard_bytes", p.min_shard_bytes));
    return Positive("max_shards", p.max_shards);
  }
  Status operator()(const MaxSize& p) const {
    MT_RETURN_IF_ERROR(Positive("max_shard_bytes", p.max_shard_bytes));
    return p.max_shards == 0 ? OkStatus() : Positive("max_shards", p.max_shards);
  }
};

}  // namespace

mesh::Dims Shard::offsets() const {
  mesh::Dims offsets(type.dims.size(), 0);
  if (!offsets.empty()) offsets[0] = row;
  return offsets;
}

Status CheckPartitioner(const Partitioner& partitioner) {
  return std::visit(Checker{}, partitioner);
}

int64_t CountShards(const Partitioner& partitioner, const mesh::TensorType& type) {
  if (type.rank() == 0 || type.num_elements() == 0) return 1;
  return std::clamp<int64_t>(std::visit(Counter{type}, partitioner), 1, type.dims[0]);
}

Result<std::vector<Shard>> PlaceShards(std::span<const mesh::NamedType> variables,
                                       const Partitioner& partitioner, int servers,
                                       int64_t placed) {
  if (servers < 1) {
    return InvalidArgument("parameter servers: expected at least one, got: " +
                           std::to_string(servers));
  }
  MT_RETURN_IF_ERROR(CheckPartitioner(partitioner));
  std::vector<Shard> shards;
  std::set<std::string> names;
  for (const mesh::NamedType& variable : variables) {
    if (!names.insert(variable.name).second) {
      return InvalidArgument("parameter servers: expected each variable once, got: `" +
                             variable.name + "` twice");
    }
  }
  for (size_t v = 0; v < variables.size(); ++v) {
    const mesh::NamedType& variable = variables[v];
    const int64_t parts = CountShards(partitioner, variable.type);
    int64_t row = 0;
    for (int64_t k = 0; k < parts; ++k) {
      Shard shard{.name = variable.name, .type = variable.type, .variable = static_cast<int>(v)};
      shard.part = static_cast<int>(k);
      shard.parts = static_cast<int>(parts);
      shard.server = static_cast<int>((placed + static_cast<int64_t>(shards.size())) % servers);
      if (parts > 1) {
        const int64_t rows = variable.type.dims[0];
        shard.name += "/part_" + std::to_string(k);
        shard.type.dims[0] = rows / parts + (k < rows % parts ? 1 : 0);
        shard.row = row;
        row += shard.type.dims[0];
      }
      if (parts > 1 && !names.insert(shard.name).second) {
        return InvalidArgument(
            "parameter servers: expected a name of its own for each shard, got: `" + shard.name +
            "` for a shard and a variable");
      }
      shards.push_back(std::move(shard));
    }
  }
  return shards;
}

}  // namespace meshtrain::parameter
