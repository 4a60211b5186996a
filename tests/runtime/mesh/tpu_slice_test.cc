#include "runtime/mesh/tpu_slice.h"

#include <gtest/gtest.h>

#include <set>

#include "runtime/base/text.h"

namespace meshtrain::mesh {
namespace {

int64_t Product(std::string_view shape) {
  int64_t product = 1;
  for (const std::string& size : Split(std::string(shape), 'x')) product *= *ParseInt(size);
  return product;
}

TEST(TpuSliceTest, ShapesDevicesAndHostsAgree) {
  std::set<std::string_view> names;
  for (const TpuSlice& slice : TpuSlices()) {
    SCOPED_TRACE(slice.name);
    EXPECT_TRUE(names.insert(slice.name).second);
    EXPECT_EQ(FindTpuSlice(slice.name)->topology, slice.topology);
    EXPECT_TRUE(slice.name.starts_with(slice.generation));
    EXPECT_EQ(slice.chips, Product(slice.topology));
    EXPECT_EQ(slice.devices, slice.chips * (slice.generation == "v4" ? 2 : 1));
    EXPECT_EQ(slice.chips % slice.chips_per_host, 0);
    EXPECT_EQ(slice.hosts() * slice.chips_per_host, slice.chips);
  }
  EXPECT_EQ(FindTpuSlice("v5e-8")->hosts(), 1);
  EXPECT_EQ(FindTpuSlice("v5e-16")->hosts(), 4);
  EXPECT_EQ(FindTpuSlice("v4-8")->hosts(), 1);
  EXPECT_EQ(FindTpuSlice("v5p-16")->hosts(), 2);
  EXPECT_EQ(FindTpuSlice("v5e"), nullptr);
  EXPECT_EQ(FindTpuSlice(""), nullptr);
}

}  // namespace
}  // namespace meshtrain::mesh
