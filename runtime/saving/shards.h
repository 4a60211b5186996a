// Between the variables of an execute::Session and a checkpoint: what this process's devices hold
// of each. No byte moves between devices, so each process of a mesh calls these by itself.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "runtime/base/status.h"
#include "runtime/checkpoint/restore.h"
#include "runtime/checkpoint/save.h"
#include "runtime/execute/session.h"
#include "runtime/mesh/layout.h"
#include "runtime/mesh/tensor.h"
#include "runtime/program/builder.h"

namespace meshtrain::saving {

// Of each variable what each device of this process holds, in the order of LocalRanks on the mesh
// that runs.
using Shards = std::vector<std::vector<mesh::Tensor>>;

// Whether `checkpoint` holds every one of `variables`, of its type. Errors: kInvalidArgument naming
// the checkpoint and the first that it does not.
Status CheckFits(const checkpoint::Index& index, const std::string& path,
                 std::span<const program::Variable> variables);

// One variable's, each part from `read`.
using ReadPart = std::function<Result<mesh::Tensor>(const mesh::Layout::Slice&)>;
Result<std::vector<mesh::Tensor>> ReadShards(const execute::Session& session,
                                             const program::Variable& variable,
                                             const ReadPart& read);
// From a checkpoint that fits, saved on whatever mesh. Errors: the checkpoint's.
Result<Shards> LoadShards(const execute::Session& session,
                          std::span<const program::Variable> variables,
                          const checkpoint::Checkpoint& checkpoint);
// Gives the variables what was read for them.
Status WriteShards(execute::Session& session, std::span<const program::Variable> variables,
                   const Shards& shards);

// What this process has to save of the variables, all of one mesh: together with the other
// processes each part once. Their layouts are noted as the user wrote them.
Result<std::vector<checkpoint::SavedVariable>> CollectShards(
    execute::Session& session, std::span<const program::Variable> variables);

}  // namespace meshtrain::saving
