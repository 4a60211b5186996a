// What the last bits of the CPU's results depend on beside their operands, for the whole process:
//
//   - the instruction set that the kernels, and oneDNN's, run with. Where it was settled, it stays:
//       fresh --(SettleInstructionSet, or the first kernel or product that runs)--> settled
//   - how matrix products are cut for threads. oneDNN may add in another order in a smaller
//     product (its AVX2 code does).
//
// Sets from the least to the best: "v2", "v3" (AVX2, FMA), "v4" (AVX-512), which are the x86-64
// levels; on other processors "base" alone. Thread-safe.
#pragma once

#include <string>
#include <string_view>

#include "runtime/base/status.h"

namespace meshtrain::device {

// The sets that this process can still run with are those from `least` to `best`; both are the one
// that is settled, once it is.
struct InstructionSets {
  std::string least, best;
  friend bool operator==(const InstructionSets&, const InstructionSets&) = default;
};
InstructionSets AvailableInstructionSets();

// Whether `a` is a lesser set than `b`. Errors: kInvalidArgument naming a set that this version
// does not know; kFailedPrecondition where they are of different kinds of processors.
Result<bool> IsLesserInstructionSet(std::string_view a, std::string_view b);

// The kernels and oneDNN run with this set from here on. Errors: kInvalidArgument (no such set);
// kUnimplemented where this processor or build lacks it; kFailedPrecondition where another is
// settled, or something else in this process has chosen for oneDNN.
Status SettleInstructionSet(std::string_view name);

// No better set than this one is settled. Errors: kInvalidArgument (no such set);
// kFailedPrecondition where a better one is settled.
Status LimitInstructionSet(std::string_view name);

// Steps that are compiled from here on cut products as for so many threads, whatever number they
// run on; 0: for those that they run on, as in a fresh process. Processes that hold copies of a
// product cut it alike.
void SettleProductThreads(int threads);
int SettledProductThreads();

}  // namespace meshtrain::device
