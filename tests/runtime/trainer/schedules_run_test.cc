// Schedules where they run: a backend's quotients may round otherwise than the interpreter's, and a
// boundary is met at its very step all the same.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>

#include "runtime/execute/loaded_step.h"
#include "runtime/execute/session.h"
#include "runtime/program/builder.h"
#include "runtime/train/schedules.h"

namespace meshtrain::trainer {
namespace {

using mesh::DType;
using mesh::Tensor;

const mesh::TensorType kScalar{DType::kF64, {}};

// What `rate` is after `steps` steps, computed by the CPU's backend.
std::function<double(int64_t steps)> OnTheCpu(const train::LearningRate& rate) {
  program::Builder builder("rate");
  const program::Builder::Scope scope(builder);
  builder.Output("rate", rate.Record(builder.Input("step", kScalar)));
  const program::Program program = builder.Build().value();
  std::shared_ptr<execute::Session> session = execute::Session::Create({.threads = 1}).value();
  std::shared_ptr<execute::LoadedStep> loaded =
      session->Load(program, mesh::Mesh(), {}, {}).value();
  return [session, loaded](int64_t steps) {
    EXPECT_EQ(loaded->Feed(0, Tensor::Scalar<double>(static_cast<double>(steps))), OkStatus());
    EXPECT_EQ(loaded->Run(), OkStatus());
    return loaded->FetchNumber(0).value();
  };
}

// 1 / length is a little too small for 49, 98 and 103, 1 / 91 a little too large.
TEST(SchedulesRunTest, AStaircaseFallsAtItsVerySteps) {
  for (const int length : {3, 10, 49, 91, 98, 103, 850, 1700}) {
    const auto rate = OnTheCpu(train::schedules::ExponentialDecay(
        {.initial = 1, .decay_steps = length * 1.0, .decay_rate = 0.5, .staircase = true}));
    for (int64_t k = 1; k <= 20; ++k) {
      EXPECT_EQ(rate(k * length - 1), std::ldexp(1, static_cast<int>(1 - k))) << length << " " << k;
      EXPECT_EQ(rate(k * length), std::ldexp(1, static_cast<int>(-k))) << length << " " << k;
    }
  }
}

TEST(SchedulesRunTest, ACycleEndsAtItsVerySteps) {
  for (const int length : {49, 91, 150, 300, 600, 1200}) {
    const auto rate = OnTheCpu(train::schedules::PolynomialDecay(
        {.initial = 1, .decay_steps = length * 1.0, .end = 0.25, .cycle = true}));
    for (int64_t k = 1; k <= 20; ++k) {
      EXPECT_NEAR(rate(k * length), 0.25, 1e-12) << length << " " << k;
      const double share =
          static_cast<double>(k * length + 1) / static_cast<double>((k + 1) * length);
      EXPECT_NEAR(rate(k * length + 1), 0.25 + 0.75 * (1 - share), 1e-12) << length << " " << k;
    }
  }
}

}  // namespace
}  // namespace meshtrain::trainer
