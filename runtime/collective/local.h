// The communicator of a process that holds every device of the mesh: collectives are sums and
// copies in shared memory.
//
// Kept true: a reduction adds the members in the order of the group, so its result depends on
// nothing but its operands. Nothing is ever waited for. Not thread-safe: one thread issues
// collectives.
#pragma once

#include <memory>

#include "runtime/collective/communicator.h"

namespace meshtrain::collective {

// Every call must name each rank of `mesh` once, in any order. Errors of the calls:
// kInvalidArgument (unknown axis or rank, a rank missing or twice, null or overlapping buffers, a
// reduction that the dtype lacks).
std::unique_ptr<Communicator> MakeLocalCommunicator(mesh::Mesh mesh);

}  // namespace meshtrain::collective
