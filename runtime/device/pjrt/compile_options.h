// What a plugin's compiler is told beside the program.
#pragma once

#include <span>
#include <string>

namespace meshtrain::device::pjrt {

// CompileOptionsProto's bytes: one program, a replica on each of the devices with these global
// numbers. Pure.
//
// `cpu`: without XNNPACK. XLA's products keep the right operand in XNNPACK's packed form as long as
// it stays at its address, and a state that is donated changes there. Steps after the first would
// multiply by its old value (seen with XLA of API 0.81: mlp_test on `batch=1`). And without its
// fast minima and maxima, which lose a NaN that is their right operand.
std::string CompileOptions(std::span<const int> ids, bool cpu);

}  // namespace meshtrain::device::pjrt
