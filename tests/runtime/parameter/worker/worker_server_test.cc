// A worker's process, by what it knows of its chief.
#include "runtime/parameter/worker/worker_server.h"

#include <gtest/gtest.h>

#include "runtime/parameter/messages/messages.h"
#include "runtime/parameter/messages/transfer.h"
#include "tests/runtime/parameter/cluster_testing.h"
#include "tests/runtime/parameter/must.h"

namespace meshtrain::parameter {
namespace {

using std::chrono::seconds;

// It left because its chief was lost, which had been setting it up all the time.
TEST(WorkerServerTest, AChiefWhoseSetUpIsRefusedWasHeard) {
  const TestCluster cluster(0, 1);
  const Identity identity = TestIdentity();
  const auto chief =
      Must(Peer::Create("127.0.0.1:" + std::to_string(cluster.worker(0).port()), identity));
  EXPECT_FALSE(cluster.worker(0).chief().heard.has_value());
  const Dataset nothing{"none", {{data::MemoryArrays{}}, {}}};
  const WorkerSetUpRequest request{
      .term = 1, .worker = 0, .workers = 1, .incarnation = 1, .entries = {nothing}};
  const auto refused = chief->CallAndWait(kWorkerSetUp, {Encode(request), {}}, seconds(20), {});
  EXPECT_EQ(refused.status().code(), StatusCode::kInvalidArgument) << refused.status().ToString();
  EXPECT_TRUE(cluster.worker(0).chief().heard.has_value());
}

}  // namespace
}  // namespace meshtrain::parameter
