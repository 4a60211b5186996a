// The ways to sum over devices of one process that users of tf.distribute know by name.
#pragma once

#include <memory>

#include "runtime/collective/communicator.h"
#include "runtime/strategy/options.h"

namespace meshtrain::strategy {

// A communicator of a process that holds every device of `mesh`. All-reduces go the chosen way; the
// rest, and kAuto, as collective::MakeLocalCommunicator has it. Sums of integers are equal whatever
// the choice, of floats up to rounding, and every device gets the same bits.
std::unique_ptr<collective::Communicator> MakeCrossDeviceCommunicator(const mesh::Mesh& mesh,
                                                                      CrossDeviceOps ops);

}  // namespace meshtrain::strategy
