// The walls, the delays and the losses of devices of host memory.
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "runtime/device/discrete/discrete_backend.h"
#include "runtime/device/discrete/region.h"
#include "runtime/plan/plan.h"
#include "runtime/program/builder.h"
#include "runtime/program/ops.h"

namespace meshtrain::device {
namespace {

using mesh::DType;

// On two devices: out = x + 1.
plan::Plan AddOne() {
  program::Builder b("add");
  b.Output("y", b.Input("x", {DType::kF32, {4}}) + 1.0);
  const mesh::Mesh mesh = *mesh::Mesh::Parse("a=2");
  sharding::Given given;
  given.inputs.insert_or_assign("x", *mesh::Layout::BatchSharded(mesh, "a", 1));
  given.outputs = {{"y", given.inputs.at("x")}};
  return *plan::MakePlan(*sharding::Shard(*b.Build(), mesh, given));
}

// What a wall ends a process by, also where a sanitizer would write about it and exit.
[[noreturn]] void ReadAsTheHost() {
  signal(SIGSEGV, SIG_DFL);
  const auto backend = *MakeDiscreteBackend();
  const auto buffer = *backend->Allocate(0, {DType::kU8, {8}});
  std::vector<std::byte> out(8);
  if (!backend->CopyIn(out, *buffer).ok() || !backend->CopyOut(*buffer, out).ok()) _exit(1);
  volatile const std::byte* at = BehindTheWall(*buffer);
  _exit(std::to_integer<int>(*at));
}

TEST(DiscreteDeathTest, TheHostCannotReadADevice) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(ReadAsTheHost(), ::testing::KilledBySignal(SIGSEGV), "");
}

[[noreturn]] void ReadAsAnotherDevice() {
  signal(SIGSEGV, SIG_DFL);
  const auto mine = *Region::Create(0, 0), other = *Region::Create(1, 0);
  volatile std::byte* a = *mine->Take(8);
  volatile const std::byte* b = *other->Take(8);
  const Opened open(*mine);
  *a = std::byte{1};
  _exit(std::to_integer<int>(*a) == 1 ? std::to_integer<int>(*b) : 2);
}

TEST(DiscreteDeathTest, WhoWorksForADeviceCannotReadAnother) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(ReadAsAnotherDevice(), ::testing::KilledBySignal(SIGSEGV), "");
}

TEST(RegionTest, GivesZerosAndTakesBackWhatIsGiven) {
  const auto region = *Region::Create(3, 5 * 4096);
  std::byte* const a = *region->Take(100);
  std::byte* const b = *region->Take(4097);
  {
    const Opened open(*region);
    std::memset(a, 1, 100);
    std::memset(b, 2, 4097);
  }
  const auto full = region->Take(3 * 4096);
  EXPECT_EQ(full.status().code(), StatusCode::kFailedPrecondition);
  EXPECT_EQ(full.status().message(),
            "discrete: device 3: expected 12288 bytes of its memory of 20480, got: 8192 that are "
            "free");
  region->Give(a, 100);
  region->Give(b, 4097);
  std::byte* const c = *region->Take(3 * 4096);  // where both were
  EXPECT_EQ(c, a);
  const Opened open(*region);
  EXPECT_TRUE(std::all_of(c, c + 3 * 4096, [](std::byte x) { return x == std::byte{0}; }));
}

TEST(DiscreteTest, WorkGoesOnAfterTheCallReturns) {
  // With a delay that is no accident, Enqueue is back long before the step has ended.
  const auto backend = *MakeDiscreteBackend(
      {.threads = 1, .seed = 5, .longest_delay = std::chrono::milliseconds(200)});
  const plan::Plan plan = AddOne();
  const int64_t ranks[] = {0, 1};
  const auto executable = *backend->Compile(plan, ranks, nullptr);
  std::vector<std::unique_ptr<Buffer>> owned;
  std::vector<DeviceBuffers> devices(2);
  const std::vector<float> in = {1, 2};
  for (int d = 0; d < 2; ++d) {
    owned.push_back(*backend->Allocate(d, {DType::kF32, {2}}));
    owned.push_back(*backend->Allocate(d, {DType::kF32, {2}}));
    ASSERT_TRUE(backend->CopyIn(std::as_bytes(std::span(in)), *owned[2 * d]).ok());
    devices[d] = {
        .inputs = {owned[2 * d].get()}, .states = {}, .outputs = {owned[2 * d + 1].get()}};
  }
  ASSERT_TRUE(executable->Enqueue(devices).ok());
  std::vector<float> out(2);
  ASSERT_TRUE(backend->CopyOut(*owned[3], std::as_writable_bytes(std::span(out))).ok());
  EXPECT_EQ(out, (std::vector<float>{2, 3}));
}

TEST(DiscreteTest, ALostDeviceIsNamed) {
  const auto backend = *MakeDiscreteBackend({.threads = 1, .lost_after_steps = 1, .lost = 1});
  const plan::Plan plan = AddOne();
  const int64_t ranks[] = {0, 1};
  const auto executable = *backend->Compile(plan, ranks, nullptr);
  std::vector<std::unique_ptr<Buffer>> owned;
  std::vector<DeviceBuffers> devices(2);
  for (int d = 0; d < 2; ++d) {
    owned.push_back(*backend->Allocate(d, {DType::kF32, {2}}));
    owned.push_back(*backend->Allocate(d, {DType::kF32, {2}}));
    devices[d] = {
        .inputs = {owned[2 * d].get()}, .states = {}, .outputs = {owned[2 * d + 1].get()}};
  }
  EXPECT_TRUE(executable->Run(devices).ok());
  const Status lost = executable->Run(devices);
  EXPECT_EQ(lost.code(), StatusCode::kUnavailable);
  EXPECT_EQ(lost.message(), "discrete: device 1 is lost");
  EXPECT_EQ(lost.origin(), Origin::kDevice);  // exit code 138
  // It stays so, for copies too; the other device is there.
  EXPECT_EQ(executable->Run(devices).message(), lost.message());
  std::vector<float> out(2);
  const auto bytes = std::as_writable_bytes(std::span(out));
  EXPECT_TRUE(backend->CopyOut(*owned[1], bytes).ok());
  EXPECT_EQ(backend->CopyOut(*owned[3], bytes).message(), lost.message());
}

TEST(DiscreteTest, MoreDevicesThanThereAreAreRefused) {
  const auto backend = *MakeDiscreteBackend({.threads = 1, .devices = 1});
  const int64_t ranks[] = {0, 1};
  const Status status = backend->Compile(AddOne(), ranks, nullptr).status();
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(status.message(),
            "discrete: mesh a=2: expected at most 1 devices, which is how many there are, got: "
            "cpu:1");
}

}  // namespace
}  // namespace meshtrain::device
