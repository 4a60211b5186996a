// Whether the devices that hold copies of the same values still hold the same bytes. Each computes
// its copy by itself, so a processor that rounds otherwise, memory that flipped a bit or a defect
// of ours lets copies drift apart without any error, and a checkpoint would keep one of them.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "runtime/base/status.h"
#include "runtime/execute/session.h"
#include "runtime/membership/team.h"
#include "runtime/mesh/layout.h"
#include "runtime/program/builder.h"

namespace meshtrain::saving {

// One copy of a part of a variable that several devices hold.
struct Copy {
  int variable = 0;
  int64_t rank = 0;  // the device that holds it, on the variables' mesh
  int part = 0;      // equal for copies of one part, counted from 0 in each variable
  friend bool operator==(const Copy&, const Copy&) = default;
};

// What a variable is stored as. All lie on one mesh.
struct StoredVariable {
  std::string name;
  mesh::Dims dims;  // global
  mesh::Layout layout;
};

// Every copy of every part that more than one device holds, by variable, then rank. Equal in all
// processes. Pure.
std::vector<Copy> CopiesOf(std::span<const StoredVariable> variables);

// Whether the hashes of copies of one part are equal. `hashes[i]` is of `copies[i]`. Pure. Errors:
// kInternal naming the first variable that differs, and which ranks hold what; `name(process)`:
// "worker-2".
Status CompareCopies(std::span<const StoredVariable> variables, std::span<const Copy> copies,
                     std::span<const uint64_t> hashes, const std::function<std::string(int)>& name);

// Compares what all devices of the variables' mesh hold. With a team (null: this process holds the
// whole mesh) every process calls it for the same step, and all get the same answer. Reads every
// copied byte once. Errors: CompareCopies'; the team's.
Status CheckCopies(execute::Session& session, std::span<const program::Variable> variables,
                   membership::Team* team, int64_t step);

}  // namespace meshtrain::saving
