// Everything that a run of a random program needs, and its text: what a failing run prints, and
// what is kept of one (kept/*.txt). Worked example:
//   mesh batch=2,model=3
//   feed 17 steps 2
//   input "x0" {batch, *} sum(model)
//   state "w1" {*, model}
//   output "y0" {}
//   run isolated fuse=1 bucket=4194304 overlap=0 recorded=0 finite=0 threads=1
//   program drawn
//   input x0: f32[8,4] = %0
//   ...
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/plan/plan.h"
#include "runtime/sharding/sharding.h"
#include "tests/support/random/program.h"

namespace meshtrain::random_programs {

enum class Where : uint8_t {
  kIsolated,  // every device with memory of its own, every collective run
  kMerged,    // on the collapsed mesh
  kOne,       // one device, no layouts
  kSession,   // execute::Session, merged
  kIsolatedSession,
  kTwoProcesses,  // two sessions, joined by real links
  kDiscrete,      // devices with walls, each with a part of the work
  kDiscreteSession,
  kPjrt,  // devices of the plugin that MESHTRAIN_PJRT_PLUGIN names
  kPjrtSession,
};

// One way of running a program.
struct Way {
  Where where = Where::kIsolated;
  plan::Options plan;   // finite_outputs: see `finite`
  bool finite = false;  // the first floating-point output must be finite before a state changes
  int threads = 1;
  std::string ToString() const;
};

struct Case {
  program::Program program;
  mesh::Mesh mesh;
  sharding::Given given;
  uint64_t feed = 0;
  int steps = 1;
  std::vector<Way> ways;

  std::string ToString() const;
  static Result<Case> Parse(std::string_view text);
};

// The case of a seed. `kind`: an op that the program must hold (DrawOptions).
Result<Case> DrawCase(uint64_t seed, const std::string& kind = "");

}  // namespace meshtrain::random_programs
