// Proves the registry's rules by brute force: an op's factor table, linearity and gradient are
// claims about what may be split and what may stay pending, and each claim is tried out. A case is
// one op on small shapes; it is run whole and run partitioned, on simulated devices
// (tests/support/interpreter/interpreter.h), and both must agree.
//
//   splits      every splittable factor and every operand that passes a pending reduction, forced
//               upon the op
//   layouts     every layout of every input, pending ones included, and the planner's own choice of
//               splits for them, under cost models that make it choose differently; the op alone,
//               and the op with its gradient
//
// One mesh axis of size 1, 2, 3, 4: all of them. Two axes: all forced splits, and layouts drawn by
// seed. Three axes: some of both, drawn by seed.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "runtime/sharding/sharding.h"
#include "tests/support/interpreter/interpreter.h"
#include "tests/support/op_cases/cases.h"

namespace meshtrain::prover {

// A row of the table (tests/support/op_cases/cases.h), with f64 in the place of f32.
using Case = program::OpCase;

// The rows that a prover can run: of ops that a whole program may hold, with elements in their
// operands.
std::vector<Case> AllCases();

// Of them a twin for each other element type that its op takes: the rules are those of every type.
std::vector<Case> TypeCases();

struct Tally {
  int runs = 0;
  std::vector<std::string> failures;  // the first few, with everything needed to look into them
};

// Something that runs a partitioned program for all devices of its mesh.
using Executor = std::function<Result<testing::StepResult>(
    const sharding::Partitioned& partitioned, const testing::StepInput& input, uint64_t seed)>;

// kFew: one axis of size 2 and 3, and some forced splits of two axes.
enum class Extent : uint8_t { kAll, kFew };

// Tries everything on one case, or a few things. `seed` decides numbers and drawn layouts. One run
// of `one_in` goes to `also` too, when there is one: a real backend must give what the interpreter
// gives.
Tally Prove(const Case& c, uint64_t seed, const Executor& also = nullptr, int one_in = 1,
            Extent extent = Extent::kAll);

}  // namespace meshtrain::prover
