#include "runtime/device/devices.h"

#include <gtest/gtest.h>

namespace meshtrain::device {
namespace {

TEST(DevicesTest, EachKindThatIsBuiltMakesItsBackend) {
  for (const Kind& kind : Kinds()) {
    if (!kind.built || kind.name == "pjrt") continue;  // pjrt needs a plugin
    const auto backend = MakeBackend({.kind = std::string(kind.name), .threads = 1});
    ASSERT_TRUE(backend.ok()) << backend.status().ToString();
    EXPECT_EQ((*backend)->name(), kind.name);
    EXPECT_FALSE((*backend)->traits().types.empty());
  }
}

TEST(DevicesTest, AnUnknownKindIsToldTheKnownOnes) {
  const Status status = MakeBackend({.kind = "abacus"}).status();
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(status.message(), "devices: expected a kind of cpu, discrete, pjrt, got: abacus");
}

TEST(DevicesTest, MemoryIsSharedUnlessDevicesAreIsolated) {
  EXPECT_TRUE((*MakeBackend({.kind = "cpu"}))->traits().shared_memory);
  EXPECT_FALSE((*MakeBackend({.kind = "cpu", .isolated = true}))->traits().shared_memory);
  const auto discrete = *MakeBackend({.kind = "discrete"});
  EXPECT_FALSE(discrete->traits().shared_memory);
  EXPECT_FALSE(discrete->traits().host_memory);
}

}  // namespace
}  // namespace meshtrain::device
