// Which of a block's instructions become runs of machine code.
#pragma once

#include "runtime/device/cpu/fused/code.h"

namespace meshtrain::device::cpu::fused {

// Puts an instruction each in the place of runs of neighbours that there is machine code for;
// registers that nothing reads any more are gone. Changes nothing that the code computes. Leaves
// very long blocks as they are.
void JoinRuns(Code* code);

}  // namespace meshtrain::device::cpu::fused
