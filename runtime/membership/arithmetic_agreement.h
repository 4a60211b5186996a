// What all processes of a mesh agree on so that they round alike: the best instruction set that
// every one of them has, and the number of threads that matrix products are cut for
// (device/arithmetic.h). Values that several processes hold copies of would drift apart otherwise.
//
// Kept true: nothing is computed before the processes have agreed, and a process that has settled
// on a set keeps it until it ends. A replacement that has a better processor takes the set that the
// others run with. One that lacks it ends the job's attempt: every process leaves, is started
// again, and they agree on the lesser set. Products are cut for the fewest threads that one of the
// first processes has; a replacement cuts them alike, whatever it has.
#pragma once

#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "runtime/base/status.h"
#include "runtime/device/arithmetic.h"
#include "runtime/membership/environment.h"

namespace meshtrain::membership {

// At most this instruction set ("v3"), for oneDNN too: to compute as a lesser host does.
inline constexpr std::string_view kEnvInstructionSet = "MESHTRAIN_INSTRUCTION_SET";
// For tests of what happens where processes differ all the same: the process runs with this set,
// whatever it has agreed to.
inline constexpr std::string_view kEnvForcedInstructionSet = "MESHTRAIN_FORCED_INSTRUCTION_SET";

// Keeps this process to kEnvInstructionSet, where it is set. Before anything is computed. Errors:
// device::LimitInstructionSet's, naming the variable.
Status LimitInstructionSetBy(const Environment& environment);
// kEnvForcedInstructionSet; "": not set.
std::string ForcedInstructionSet(const Environment& environment);

struct Arithmetic {
  std::string instruction_set;
  int product_threads = 1;
  friend bool operator==(const Arithmetic&, const Arithmetic&) = default;
};

// What a process says of itself.
struct ArithmeticOffer {
  device::InstructionSets sets;  // that it can still run with
  int threads = 1;               // that it computes with; if agreed: that products are cut for
  bool agreed = false;           // it runs with what an incarnation before has agreed on
  std::string ToText() const;
  // Errors: kInvalidArgument.
  static Result<ArithmeticOffer> Parse(std::string_view text);
  friend bool operator==(const ArithmeticOffer&, const ArithmeticOffer&) = default;
};

// What all run with, from what each said, in the order of processes; the same answer in every
// process. Pure. `name(process)`: "worker-2". Errors: kAborted where a process that was here before
// cannot come down to what another has (all start again); kFailedPrecondition where one computed
// before it joined, or where their processors have no set in common; kInvalidArgument for a text
// that no process says.
Result<Arithmetic> AgreedArithmetic(std::span<const std::string> offers,
                                    const std::function<std::string(int)>& name);

}  // namespace meshtrain::membership
