#include "runtime/device/devices.h"

#include <gtest/gtest.h>

#include <cstdlib>

#include "runtime/device/checks.h"
#include "runtime/device/discrete/discrete_backend.h"
#include "runtime/device/pjrt/pjrt_backend.h"
#include "runtime/plan/plan.h"
#include "runtime/program/builder.h"
#include "runtime/program/ops.h"

namespace meshtrain::device {
namespace {

TEST(DevicesTest, EachKindThatIsBuiltMakesItsBackend) {
  for (const Kind& kind : Kinds()) {
    if (!kind.built || mesh::IsOfPlugin(*mesh::FindDeviceKind(kind.name))) continue;
    const auto backend = MakeBackend({.kind = std::string(kind.name), .threads = 1});
    ASSERT_TRUE(backend.ok()) << backend.status().ToString();
    EXPECT_EQ((*backend)->name(), kind.name);
    EXPECT_FALSE((*backend)->traits().types.empty());
  }
}

TEST(DevicesTest, AnUnknownKindIsToldTheKnownOnes) {
  const Status status = MakeBackend({.kind = "abacus"}).status();
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(status.message(),
            "devices: expected a kind of cpu, discrete, pjrt, tpu, cuda, got: abacus");
}

TEST(DevicesTest, AKindWithoutItsPluginIsNamedAsTheManifestDoes) {
  if (!HasPjrt()) GTEST_SKIP() << "this build has no pjrt_c_api.h";
  const char* plugin = std::getenv("MESHTRAIN_PJRT_PLUGIN");
  const std::string before = plugin == nullptr ? "" : plugin;
  ::unsetenv("MESHTRAIN_PJRT_PLUGIN");
  const Status status = MakeBackend({.kind = "cuda"}).status();
  if (plugin != nullptr) ::setenv("MESHTRAIN_PJRT_PLUGIN", before.c_str(), 1);
  EXPECT_EQ(status.code(), StatusCode::kFailedPrecondition);
  EXPECT_EQ(status.origin(), Origin::kManifest);
  EXPECT_EQ(status.message(),
            "program.devices.kind cuda: pjrt: expected a plugin, named by MESHTRAIN_PJRT_PLUGIN, "
            "got: none");
}

TEST(DevicesTest, WhatTheEnvironmentSaysOfDevicesWithWalls) {
  const DiscreteOptions all = ParseDiscreteOptions(
                                  "seed=7, longest_delay_us=5,devices=4,memory_bytes=100,lost=1,"
                                  "lost_after_steps=20")
                                  .value();
  EXPECT_EQ(all.seed, 7);
  EXPECT_EQ(all.longest_delay, std::chrono::microseconds(5));
  EXPECT_EQ(all.devices, 4);
  EXPECT_EQ(all.memory_bytes, 100);
  EXPECT_EQ(all.lost, 1);
  EXPECT_EQ(all.lost_after_steps, 20);
  EXPECT_EQ(ParseDiscreteOptions("").value().lost_after_steps, -1);
  for (const char* bad : {"seed", "seed=", "seed=x", "=3", "devices=-1", "colour=3", "seed=1,,",
                          "longest_delay_us=99999999", "devices=99999999999"}) {
    const Status status = ParseDiscreteOptions(bad).status();
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << bad;
    EXPECT_EQ(status.origin(), Origin::kManifest) << bad;
  }
}

TEST(DevicesTest, MemoryIsSharedUnlessDevicesAreIsolated) {
  EXPECT_TRUE((*MakeBackend({.kind = "cpu"}))->traits().shared_memory);
  EXPECT_FALSE((*MakeBackend({.kind = "cpu", .isolated = true}))->traits().shared_memory);
  const auto discrete = *MakeBackend({.kind = "discrete"});
  EXPECT_FALSE(discrete->traits().shared_memory);
  EXPECT_FALSE(discrete->traits().host_memory);
}

TEST(DevicesTest, ATypeThatABackendLacksIsNamedWithItsOpAndLine) {
  program::Builder b("wide");
  const program::Value x = b.Input("x", {mesh::DType::kF32, {4}});
  const int line = __LINE__ + 1;
  b.Output("y", program::Cast(x, mesh::DType::kF64));
  const plan::Plan plan = *plan::MakePlan(*sharding::Shard(*b.Build(), mesh::Mesh(), {}));
  const mesh::DType known[] = {mesh::DType::kF32};
  const Status status = CheckTypes("small", plan, known);
  EXPECT_EQ(status.code(), StatusCode::kUnimplemented);
  EXPECT_EQ(status.message(), "devices_test.cc:" + std::to_string(line) +
                                  ": small: expected a type that its devices have, got: f64[4] of "
                                  "op `cast`");
  EXPECT_TRUE(CheckTypes("cpu", plan, (*MakeBackend({}))->traits().types).ok());
}

}  // namespace
}  // namespace meshtrain::device
