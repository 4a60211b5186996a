// Programs drawn by chance over the registry, for properties and for runs against the interpreter.
//
// The drawer records one op after the other and interprets what it records (Keep::kBounded): an op
// whose result would not be finite, or of which rounding could change much, is not used. So the
// programs are well conditioned, and what a backend gives for them can be held against tight
// bounds.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/program/program.h"
#include "runtime/program/registry.h"
#include "tests/support/interpreter/interpreter.h"

namespace meshtrain::testing {

struct DrawOptions {
  std::vector<std::string> axes;  // of the mesh, which ops on layouts may name; none: no such op
  std::string kind;               // an op that the program must hold; empty: any
  int64_t most_elements = 100'000;
};

// A valid program of 10 to 40 ops and their gradients: states read and written, several versions of
// one among them, paths, odd names, attributes of every kind, dimensions of 1 and such that many
// loops have several blocks. The same arguments give the same program. Without `kind` it never
// fails; with it, kNotFound when some hundred attempts gave no op of that kind.
Result<program::Program> DrawProgram(uint64_t seed, const DrawOptions& options = {});
program::Program RandomProgram(uint64_t seed);  // small ones

// What a program is fed with. The numbers depend on name, type and seed alone; a name says by how
// it begins which they are:
//   x         multiples of 1/64 in [-2, 2];   n: whole numbers in [-8, 8]
//   positive  multiples of 1/64 in (0, 2];    negative: in [-2, 0);    labels: 0, 1, 2
//   wide      numbers of full precision of 0.1 to 2 and both signs;  of integers: their whole range
Array FeedFor(const std::string& name, const mesh::TensorType& type, uint64_t seed);
StepInput FeedFor(const program::Program& program, uint64_t seed);

// True for the ops that a whole program may hold; the others are written by the partitioner, or by
// replicas that run on their own.
bool IsOfWholePrograms(const program::OpDef& def);

// Where a run of a property test begins: MT_TEST_SEED, or 1.
uint64_t FirstSeed();

// Equal in everything but source lines.
bool SameProgram(const program::Program& a, const program::Program& b);

}  // namespace meshtrain::testing
