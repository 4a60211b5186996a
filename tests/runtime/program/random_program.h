// Programs drawn by chance, for properties.
#pragma once

#include <cstdint>

#include "runtime/program/program.h"

namespace meshtrain::program {

// A valid program of about 40 ops of most families, with states, paths, odd names and attributes of
// every kind. The same seed gives the same program.
Program RandomProgram(uint64_t seed);

// Where a run of a property test begins: MT_TEST_SEED, or 1.
uint64_t FirstSeed();

// Equal in everything but source lines.
bool SameProgram(const Program& a, const Program& b);

}  // namespace meshtrain::program
