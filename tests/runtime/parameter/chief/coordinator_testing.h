// A coordinator's connection, and the smallest step that its servers can count.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <utility>

#include "runtime/base/clock.h"
#include "runtime/parameter/chief/coordinator.h"
#include "runtime/program/builder.h"
#include "runtime/program/ops.h"

namespace meshtrain::parameter {

using mesh::DType;
using mesh::TensorType;
using program::Builder;
using std::chrono::milliseconds;

inline std::unique_ptr<Coordinator> Connect(const CoordinatorOptions& options) {
  auto made = Coordinator::Create(options);
  EXPECT_TRUE(made.ok()) << made.status().ToString();
  return made.ok() ? std::move(*made) : nullptr;
}

inline bool WaitForWorkers(const Coordinator& coordinator, int workers) {
  for (int i = 0; i < 600 && coordinator.stats().workers_ready < workers; ++i) {
    SystemClock().SleepFor(milliseconds(50), {});
  }
  return coordinator.stats().workers_ready >= workers;
}

// A step that adds 1 to `n` and gives what it was.
inline Program CountStep() {
  const program::Variable n("n", TensorType{DType::kI64, {}}, false);
  Builder b("count");
  Builder::Scope scope(b);
  b.Output("before", n);
  program::AssignAdd(n, 1);
  return b.Build().value();
}
inline Parameter Counter() {
  return Parameter("n", TensorType{DType::kI64, {}}, nn::Initializer::Zeros(),
                   {.trainable = false});
}

}  // namespace meshtrain::parameter
