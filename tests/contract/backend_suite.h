// What every backend keeps. A new one joins by
//   INSTANTIATE_TEST_SUITE_P(Cuda, BackendSuite, testing::Values(BackendFactory{...}),
//                            BackendName);
// Numbers are compared with the interpreter (tests/support), which shares no code with any backend.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <ostream>
#include <string>

#include "runtime/device/backend.h"
#include "runtime/plan/plan.h"
#include "tests/support/interpreter.h"

namespace meshtrain::device {

struct BackendFactory {
  std::string name;
  bool computes = true;  // false: shapes and bytes only
  std::function<std::unique_ptr<Backend>()> make;
  friend std::ostream& operator<<(std::ostream& out, const BackendFactory& f) {
    return out << f.name;
  }
};

inline std::string BackendName(const ::testing::TestParamInfo<BackendFactory>& info) {
  return info.param.name;
}

class BackendSuite : public ::testing::TestWithParam<BackendFactory> {};

struct RunOptions {
  uint64_t seed = 0;              // how pending inputs are cut
  int steps = 1;                  // states go from one to the next, inputs stay
  int64_t* bytes_sent = nullptr;  // per device and step, as the communicator counted
  // The communicator acts as one between hosts does: calls take their time and may run beside the
  // step. Counts those that did.
  int64_t* calls_beside = nullptr;
};
// Runs a plan of one process on whole tensors.
Result<testing::StepResult> RunPlan(Backend& backend, const plan::Plan& plan,
                                    const testing::StepInput& input,
                                    const RunOptions& options = {});

}  // namespace meshtrain::device
