// Proves the registry's rules by brute force: an op's factor table, linearity and gradient are
// claims about what may be split and what may stay pending, and each claim is tried out. A case is
// one op on small shapes; it is run whole and run partitioned, on simulated devices
// (tests/support/interpreter.h), and both must agree.
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

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "runtime/program/builder.h"
#include "runtime/sharding/sharding.h"
#include "tests/support/interpreter.h"

namespace meshtrain::prover {

enum class Numbers : uint8_t {
  kAny,       // multiples of 1/64 in [-2, 2], so that sums of them are exact
  kPositive,  // in (0, 2]
  kBool,
  kLabels,  // 0 .. 2
};

struct CaseInput {
  program::TensorType type;
  Numbers numbers = Numbers::kAny;
};

struct Case {
  std::string name;  // the op's kind, and what is special: "matmul, transposed"
  std::vector<CaseInput> inputs;
  std::function<program::Value(std::span<const program::Value>)> record;

  std::string kind() const { return name.substr(0, name.find(',')); }
};

// The table. Every registered op that a whole program may hold has a row (prover_test.cc checks
// it).
std::vector<Case> AllCases();

struct Tally {
  int runs = 0;
  std::vector<std::string> failures;  // the first few, with everything needed to look into them
};

// Something that runs a partitioned program for all devices of its mesh.
using Executor = std::function<Result<testing::StepResult>(
    const sharding::Partitioned& partitioned, const testing::StepInput& input, uint64_t seed)>;

// Tries everything on one case. `seed` decides numbers and drawn layouts. One run of `one_in` goes
// to `also` too, when there is one: a real backend must give what the interpreter gives.
Tally Prove(const Case& c, uint64_t seed, const Executor& also = nullptr, int one_in = 1);

}  // namespace meshtrain::prover
