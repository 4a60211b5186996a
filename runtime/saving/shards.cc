#include "runtime/saving/shards.h"

#include <utility>

#include "runtime/checkpoint/collect.h"

namespace meshtrain::saving {

using mesh::Layout;
using mesh::Tensor;
using program::Variable;

Status CheckFits(const checkpoint::Index& index, const std::string& path,
                 std::span<const Variable> variables) {
  for (const Variable& v : variables) {
    const auto saved = index.variables.find(v.name());
    if (saved != index.variables.end() && saved->second.type == v.type()) continue;
    return InvalidArgument(
        path + ": it is of another model: `" + v.name() + "`: expected " + v.type().ToString() +
        ", got: " +
        (saved == index.variables.end() ? "no such variable" : saved->second.type.ToString()));
  }
  return OkStatus();
}

Result<std::vector<Tensor>> ReadShards(const execute::Session& session, const Variable& variable,
                                       const ReadPart& read) {
  MT_ASSIGN_OR_RETURN(const Layout layout, session.StoredLayoutOf(variable));
  std::vector<Tensor> shards;
  for (const int64_t rank : layout.mesh().LocalRanks(session.options().process)) {
    MT_ASSIGN_OR_RETURN(Tensor shard, read(layout.SliceOf(rank, variable.dims())));
    shards.push_back(std::move(shard));
  }
  return shards;
}

Result<Shards> LoadShards(const execute::Session& session, std::span<const Variable> variables,
                          const checkpoint::Checkpoint& checkpoint) {
  Shards all;
  for (const Variable& v : variables) {
    const auto read = [&](const Layout::Slice& slice) {
      return checkpoint.LoadSlice(v.name(), slice.offsets, slice.sizes);
    };
    MT_ASSIGN_OR_RETURN(std::vector<Tensor> shards, ReadShards(session, v, read));
    all.push_back(std::move(shards));
  }
  return all;
}

Status WriteShards(execute::Session& session, std::span<const Variable> variables,
                   const Shards& shards) {
  for (size_t i = 0; i < variables.size(); ++i) {
    MT_ASSIGN_OR_RETURN(const Layout layout, session.StoredLayoutOf(variables[i]));
    const std::vector<int64_t> ranks = layout.mesh().LocalRanks(session.options().process);
    for (size_t r = 0; r < ranks.size(); ++r) {
      MT_RETURN_IF_ERROR(session.WriteStored(variables[i], ranks[r], shards[i][r]));
    }
  }
  return OkStatus();
}

Result<std::vector<checkpoint::SavedVariable>> CollectShards(execute::Session& session,
                                                             std::span<const Variable> variables) {
  std::vector<checkpoint::VariableSpec> specs;
  for (const Variable& v : variables) {
    MT_ASSIGN_OR_RETURN(Layout layout, session.StoredLayoutOf(v));
    specs.push_back({v.name(), v.type(), std::move(layout)});
  }
  const auto fetch = [&](int variable, int64_t rank) {
    return session.ReadStored(variables[static_cast<size_t>(variable)], rank);
  };
  MT_ASSIGN_OR_RETURN(std::vector<checkpoint::SavedVariable> saved,
                      checkpoint::Collect(specs, session.options().process, fetch));
  for (size_t i = 0; i < saved.size(); ++i) {
    MT_ASSIGN_OR_RETURN(const Layout layout, session.LayoutOf(variables[i]));
    saved[i].layout = layout.ToString();
  }
  return saved;
}

}  // namespace meshtrain::saving
