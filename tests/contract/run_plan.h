// Runs the plan of one process on whole tensors, as the interpreter runs a program.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "runtime/device/backend.h"
#include "runtime/plan/plan.h"
#include "tests/support/interpreter/interpreter.h"

namespace meshtrain::device {

// A backend of so many devices; of those that there are, where a plugin drives fewer (one GPU).
Result<std::unique_ptr<Backend>> BackendOf(const std::string& kind, int devices, int threads = 0);

struct RunOptions {
  uint64_t seed = 0;              // how pending inputs are cut
  int steps = 1;                  // states go from one to the next, inputs stay
  int64_t* bytes_sent = nullptr;  // per device and step, as the backend counted
  // The communicator acts as one between hosts does: calls take their time and may run beside the
  // step. Counts those that did.
  int64_t* calls_overlapped = nullptr;
  // Of a step that was bad (kAborted): the states that it left.
  testing::Arrays* left_states = nullptr;
};
Result<testing::StepResult> RunPlan(Backend& backend, const plan::Plan& plan,
                                    const testing::StepInput& input,
                                    const RunOptions& options = {});

}  // namespace meshtrain::device
