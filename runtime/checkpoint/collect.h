// Who writes what: variables under their layouts -> each distinct part once, without a word between
// the processes.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "runtime/base/status.h"
#include "runtime/checkpoint/save.h"
#include "runtime/mesh/layout.h"
#include "runtime/mesh/tensor.h"

namespace meshtrain::checkpoint {

struct VariableSpec {
  std::string name;
  mesh::TensorType type;  // global
  mesh::Layout layout;    // all of one mesh, none partial
};

struct Assignment {
  int variable = 0;
  int64_t rank = 0;  // the device whose copy is written
  mesh::Layout::Slice slice;
  friend bool operator==(const Assignment&, const Assignment&) = default;
};

// Every distinct part of every variable, once, given to the holder whose process has the fewest
// bytes so far (ties: the lowest rank). Equal on every process. Pure. Errors: kInvalidArgument for
// a layout that is partial or does not fit.
Result<std::vector<Assignment>> AssignParts(std::span<const VariableSpec> variables);

// The storage of `variable` on device `rank`: layout.LocalShape() elements, of which the valid
// extent is taken; or the valid extent itself.
using FetchLocal = std::function<Result<mesh::Tensor>(int variable, int64_t rank)>;

// The parts that `process` writes, as a snapshot's variables: all of them, those of other processes
// without blocks.
Result<std::vector<SavedVariable>> Collect(std::span<const VariableSpec> variables, int process,
                                           const FetchLocal& fetch);

}  // namespace meshtrain::checkpoint
