// Checkpoints of a coordinator whose steps and servers the test holds.
#include <gtest/gtest.h>

#include <thread>

#include "tests/runtime/parameter/server/held_server.h"
#include "tests/runtime/parameter/worker/held_worker.h"
#include "tests/support/temp_folder.h"

namespace meshtrain::parameter {
namespace {

using mesh::DType;
using mesh::Tensor;
using mesh::TensorType;
using std::chrono::milliseconds;
using std::chrono::seconds;
using testing_folder::TempFolder;

CoordinatorOptions OptionsOf(const HeldServer& server, const HeldWorker& worker,
                             const TempFolder& folder) {
  CoordinatorOptions options;
  options.cluster.hosts[cluster::Role::kPs][0] = server.address();
  options.cluster.hosts[cluster::Role::kWorker][0] = worker.address();
  options.identity = TestIdentity();
  options.checkpoint_folder = folder.path();
  return options;
}

// A step that ended while Save waited for it is in the checkpoint; it counted as one that ended
// since, and the checkpoint, once it was given up, could not be made anew.
TEST(SaveTest, StepsThatEndWhileTheGateClosesAreInIt) {
  const TempFolder folder;
  HeldServer server;
  HeldWorker worker;
  CoordinatorOptions options = OptionsOf(server, worker, folder);
  options.start_timeout = options.return_timeout = options.step_timeout = seconds(20);
  options.lost_after = seconds(10);
  const auto coordinator = Must(Coordinator::Create(options));
  const std::vector<Parameter> variables = {
      Parameter("n", TensorType{DType::kI64, {}}, nn::Initializer::Zeros(), {.trainable = false})};
  ASSERT_TRUE(coordinator->CreateVariables(variables).ok());
  const PerWorker value =
      Must(coordinator->CreatePerWorkerValue("v", {Tensor::Scalar<int64_t>(1)}));
  const Function step{{value.entry}};

  ASSERT_TRUE(coordinator->Schedule(step, {}).ok());
  ASSERT_TRUE(worker.WaitForRun());
  server.LoseNextCut();
  {
    std::jthread saving([&] {
      const Status saved = coordinator->Save(1);
      EXPECT_TRUE(saved.ok()) << saved.ToString();
    });
    SystemClock().SleepFor(milliseconds(300), {});  // it stands at the gate
    ASSERT_TRUE(worker.EndRun());
  }
  EXPECT_EQ(coordinator->stats().steps_done, 1);
  const Status made_anew = coordinator->WaitForSave();
  EXPECT_TRUE(made_anew.ok()) << made_anew.ToString();
  EXPECT_EQ(coordinator->last_saved(), 1);

  // One that ended after the cut is not in it.
  server.LoseNextCut();
  ASSERT_TRUE(coordinator->Save(2).ok());
  const RemoteValue later = Must(coordinator->Schedule(step, {}));
  ASSERT_TRUE(worker.EndRun());
  ASSERT_TRUE(coordinator->Fetch(later, {}, seconds(20)).ok());
  EXPECT_EQ(coordinator->WaitForSave().code(), StatusCode::kUnavailable);
  EXPECT_EQ(coordinator->last_saved(), 1);
}

// It was waited for as long as a checkpoint may take to be written, with no step that wanted it.
TEST(SaveTest, AServerThatStaysAwayIsNotWaitedForLongerThanByAStep) {
  const TempFolder folder;
  HeldServer server;
  HeldWorker worker;
  CoordinatorOptions options = OptionsOf(server, worker, folder);
  options.start_timeout = options.step_timeout = options.save_timeout = seconds(60);
  options.return_timeout = seconds(3);
  options.lost_after = milliseconds(500);
  const auto coordinator = Must(Coordinator::Create(options));
  const std::vector<Parameter> variables = {
      Parameter("n", TensorType{DType::kI64, {}}, nn::Initializer::Zeros(), {.trainable = false})};
  ASSERT_TRUE(coordinator->CreateVariables(variables).ok());
  server.FallSilentAtNextWrite();
  const Status asked = coordinator->Save(1);
  ASSERT_TRUE(asked.ok()) << asked.ToString();
  const Status saved = coordinator->WaitForSave();
  EXPECT_EQ(saved.code(), StatusCode::kUnavailable) << saved.ToString();
  EXPECT_EQ(saved.origin(), Origin::kPeers);
  EXPECT_NE(saved.message().find("checkpoint of step 1: ps-0: expected it back within 3 s"),
            std::string::npos)
      << saved.ToString();
  EXPECT_TRUE(coordinator->misses_server());
  EXPECT_EQ(coordinator->last_saved(), -1);
}

}  // namespace
}  // namespace meshtrain::parameter
