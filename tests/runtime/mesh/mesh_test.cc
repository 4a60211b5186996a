#include "runtime/mesh/mesh.h"

#include <gtest/gtest.h>

#include <set>

namespace meshtrain::mesh {
namespace {

TEST(MeshTest, TextRoundTrips) {
  for (const std::string text : {"", "batch=8", "batch=4,model=2", "a=1,b=3,c=2,d=5"}) {
    const auto mesh = Mesh::Parse(text);
    ASSERT_TRUE(mesh.ok()) << mesh.status().ToString();
    EXPECT_EQ(mesh->ToString(), text);
    EXPECT_EQ(*Mesh::Parse(mesh->ToString()), *mesh);
  }
  EXPECT_EQ(Mesh::Parse(" batch = 4 , model = 2 ")->ToString(), "batch=4,model=2");
  EXPECT_EQ(Mesh::Parse("")->size(), 1);
}

TEST(MeshTest, RefusesWithTheReason) {
  const auto message = [](std::string_view text) {
    const auto mesh = Mesh::Parse(text);
    return mesh.ok() ? "accepted" : mesh.status().message();
  };
  EXPECT_EQ(message("batch"), "mesh: expected a text like batch=4,model=2, got: batch");
  EXPECT_EQ(message("batch=x"), "mesh: expected a text like batch=4,model=2, got: batch=x");
  EXPECT_EQ(message("batch=4,"), "mesh: expected a text like batch=4,model=2, got: batch=4,");
  EXPECT_EQ(message("batch=0"), "mesh: size of axis `batch` must be at least 1, got: 0");
  EXPECT_EQ(message("batch=-2"), "mesh: size of axis `batch` must be at least 1, got: -2");
  EXPECT_EQ(message("a=2,a=3"), "mesh: axis `a` is named twice");
  EXPECT_EQ(message("2a=2"), "mesh: expected an axis name of letters, digits and _, got: `2a`");
  EXPECT_EQ(message("a=1,b=1,c=1,d=1,e=1,f=1,g=1,h=1,i=1"),
            "mesh: expected at most 8 axes, got: 9");
  EXPECT_EQ(message("a=1000000,b=1000000"), "mesh: expected at most 1048576 devices, got: more");
  EXPECT_EQ(Mesh::Create({{"batch", 4}}, {Device{}}).status().message(),
            "mesh: the axes ask for 4 devices, got: 1");
  EXPECT_EQ(Mesh::Create({{"batch", 2}}, {Device{}, Device{}}).status().message(),
            "mesh: a device is given twice");
  EXPECT_EQ(Mesh::Parse("batch=4,model=2")->AxisIndex("mode").status().message(),
            "mesh batch=4,model=2: expected one of its axes, got: `mode`, did you mean `model`?");
}

TEST(MeshTest, DevicesHaveTexts) {
  for (const std::string text : {"cpu:0", "discrete:1", "cuda:7", "1/tpu:3", "12/pjrt:0"}) {
    const auto device = Device::Parse(text);
    ASSERT_TRUE(device.ok());
    EXPECT_EQ(device->ToString(), text);
  }
  EXPECT_EQ(Device::Parse("GPU:1")->ToString(), "cuda:1");
  EXPECT_EQ(Device::Parse("0/cpu:2")->ToString(), "cpu:2");
  EXPECT_EQ(Device::Parse("2147483647/cpu:2147483647")->index, 2147483647);  // the largest
  for (const std::string text :
       {"", "cpu", "cpu:", "cpu:-1", "quantum:0", "x/cpu:0", "-1/cpu:0", "cpu:2147483648",
        "cpu:4294967296", "4294967296/cpu:0", "cpu:99999999999999999999"}) {
    EXPECT_EQ(Device::Parse(text).status().message(),
              "device: expected a text like cpu:0 or 1/cuda:3, got: " + text);
  }
}

TEST(MeshTest, BesideAnotherOfTheSameAxesItNamesItsDevices) {
  const Mesh square = *Mesh::Parse("a=2,b=2");
  const Mesh first = *square.SubMesh({{"a", 0}}), second = *square.SubMesh({{"a", 1}});
  EXPECT_EQ(first.ToStringUnlike(second), "b=2 on cpu:0, cpu:1");
  EXPECT_EQ(second.ToStringUnlike(first), "b=2 on cpu:2, cpu:3");
  EXPECT_EQ(first.ToStringUnlike(first), "b=2");
  EXPECT_EQ(first.ToStringUnlike(square), "b=2");
}

TEST(MeshDeathTest, APlaceOutsideTheMeshEndsTheProgram) {
  const Mesh mesh = *Mesh::Parse("a=2,b=3");
  EXPECT_DEATH(mesh.Coordinates(6), "mesh.cc");
  EXPECT_DEATH(mesh.Coordinates(-1), "mesh.cc");
  EXPECT_DEATH(mesh.RankAt({0}), "mesh.cc");
  EXPECT_DEATH(mesh.RankAt({0, 3}), "mesh.cc");
}

TEST(MeshTest, RanksAndCoordinatesAreInverse) {
  const Mesh mesh = *Mesh::Parse("a=2,b=3,c=4");
  ASSERT_EQ(mesh.size(), 24);
  EXPECT_EQ(mesh.Coordinates(0), (std::vector<int64_t>{0, 0, 0}));
  EXPECT_EQ(mesh.Coordinates(1), (std::vector<int64_t>{0, 0, 1}));  // the last axis varies fastest
  EXPECT_EQ(mesh.Coordinates(23), (std::vector<int64_t>{1, 2, 3}));
  for (int64_t rank = 0; rank < mesh.size(); ++rank) {
    EXPECT_EQ(mesh.RankAt(mesh.Coordinates(rank)), rank);
  }
}

TEST(MeshTest, GroupsDifferAlongTheirAxesOnly) {
  const Mesh mesh = *Mesh::Parse("a=2,b=3");
  EXPECT_EQ(mesh.Group(4, {0}), (std::vector<int64_t>{1, 4}));
  EXPECT_EQ(mesh.Group(4, {1}), (std::vector<int64_t>{3, 4, 5}));
  EXPECT_EQ(mesh.Group(4, {0, 1}), (std::vector<int64_t>{0, 1, 2, 3, 4, 5}));
  EXPECT_EQ(mesh.Group(4, {1, 0}),
            (std::vector<int64_t>{0, 3, 1, 4, 2, 5}));  // the first axis slowest
  EXPECT_EQ(mesh.Group(4, {}), (std::vector<int64_t>{4}));
  // The groups over any axes cut the ranks into classes.
  for (const std::vector<int>& axes : {std::vector<int>{0}, {1}, {0, 1}}) {
    for (int64_t rank = 0; rank < mesh.size(); ++rank) {
      for (const int64_t member : mesh.Group(rank, axes)) {
        EXPECT_EQ(mesh.Group(member, axes), mesh.Group(rank, axes));
      }
    }
  }
}

TEST(MeshTest, SubMeshIsARowOfDevices) {
  const Mesh mesh = *Mesh::Parse("a=2,b=3");
  const auto row = mesh.SubMesh({{"a", 1}});
  ASSERT_TRUE(row.ok());
  EXPECT_EQ(row->ToString(), "b=3");
  EXPECT_EQ(row->devices(),
            (std::vector<Device>{
                {DeviceKind::kCpu, 0, 3}, {DeviceKind::kCpu, 0, 4}, {DeviceKind::kCpu, 0, 5}}));
  const auto column = mesh.SubMesh({{"b", 2}});
  EXPECT_EQ(column->devices(),
            (std::vector<Device>{{DeviceKind::kCpu, 0, 2}, {DeviceKind::kCpu, 0, 5}}));
  EXPECT_EQ(mesh.SubMesh({{"a", 1}, {"b", 1}})->devices(),
            (std::vector<Device>{{DeviceKind::kCpu, 0, 4}}));
  EXPECT_EQ(*mesh.SubMesh({}), mesh);
  EXPECT_EQ(mesh.SubMesh({{"b", 3}}).status().message(),
            "sub-mesh of a=2,b=3: coordinate of `b` must be in 0..2, got: 3");
  EXPECT_FALSE(mesh.SubMesh({{"c", 0}}).ok());
}

TEST(MeshTest, ProcessesGetEqualPartsOfTheDevices) {
  const Mesh mesh = Mesh::Parse("a=2,b=3").value();
  EXPECT_EQ(mesh.OverProcesses(1).value(), mesh);
  const Mesh spread = mesh.OverProcesses(3).value();
  EXPECT_EQ(spread.axes(), mesh.axes());
  EXPECT_EQ(spread.LocalRanks(0), (std::vector<int64_t>{0, 1}));
  EXPECT_EQ(spread.LocalRanks(2), (std::vector<int64_t>{4, 5}));
  EXPECT_EQ(spread.devices()[5], (Device{DeviceKind::kCpu, 2, 1}));
  EXPECT_EQ(spread.OverProcesses(1).value(), mesh);
  EXPECT_EQ(mesh.OverProcesses(4).status().message(),
            "mesh: expected devices that 4 processes have equal parts of, got: 6 (a=2,b=3)");
  EXPECT_EQ(mesh.OverProcesses(0).status().code(), StatusCode::kInvalidArgument);
}

TEST(MeshTest, ProcessesKnowTheirDevices) {
  std::vector<Device> devices;
  for (int process = 0; process < 2; ++process) {
    for (int i = 0; i < 2; ++i) devices.push_back({DeviceKind::kCpu, process, i});
  }
  const auto mesh = Mesh::Create({{"batch", 2}, {"model", 2}}, devices);
  ASSERT_TRUE(mesh.ok());
  EXPECT_EQ(mesh->LocalRanks(1), (std::vector<int64_t>{2, 3}));
  EXPECT_EQ(mesh->LocalRanks(7), (std::vector<int64_t>{}));
  const auto locations = mesh->LocalDeviceLocations(1);
  ASSERT_EQ(locations.size(), 2u);
  EXPECT_EQ(locations[0], (std::map<std::string, int64_t>{{"batch", 1}, {"model", 0}}));
  EXPECT_EQ(locations[1], (std::map<std::string, int64_t>{{"batch", 1}, {"model", 1}}));
}

}  // namespace
}  // namespace meshtrain::mesh
