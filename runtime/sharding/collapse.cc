// The mesh that is left when the devices of each process act as one.
#include <algorithm>
#include <map>
#include <set>

#include "runtime/base/check.h"
#include "runtime/sharding/sharding.h"

namespace meshtrain::sharding {

Result<Mesh> CollapseLocal(const Mesh& mesh) {
  const auto unequal = [&](const std::string& got) {
    return Unimplemented("mesh `" + mesh.ToString() +
                         "`: expected processes that hold equal boxes of it, got: " + got);
  };
  // The box of each process: first and last coordinate per axis.
  struct Box {
    std::vector<int64_t> low, high;
    int64_t places = 0;
  };
  std::map<int, Box> boxes;
  for (int64_t rank = 0; rank < mesh.size(); ++rank) {
    const std::vector<int64_t> at = mesh.Coordinates(rank);
    Box& box = boxes[mesh.devices()[rank].process];
    if (box.places++ == 0) box.low = box.high = at;
    for (size_t a = 0; a < at.size(); ++a) {
      box.low[a] = std::min(box.low[a], at[a]);
      box.high[a] = std::max(box.high[a], at[a]);
    }
  }
  const Box& first = boxes.begin()->second;
  std::vector<int64_t> extent;
  for (int a = 0; a < mesh.num_axes(); ++a) extent.push_back(first.high[a] - first.low[a] + 1);
  for (const auto& [process, box] : boxes) {
    const std::string name = "process " + std::to_string(process) + " with ";
    int64_t volume = 1;
    for (int a = 0; a < mesh.num_axes(); ++a) {
      const int64_t here = box.high[a] - box.low[a] + 1;
      volume *= here;
      if (here != extent[a] || box.low[a] % extent[a] != 0) {
        return unequal(name + "coordinates " + std::to_string(box.low[a]) + ".." +
                       std::to_string(box.high[a]) + " of axis `" + mesh.axis(a).name + "`");
      }
    }
    if (volume != box.places) {
      return unequal(name + std::to_string(box.places) + " places in a box of " +
                     std::to_string(volume));
    }
  }
  std::vector<mesh::Axis> axes = mesh.axes();
  for (int a = 0; a < mesh.num_axes(); ++a) axes[a].size /= extent[a];
  // The first device of each box stands for it; boxes come in the order of the ranks.
  std::vector<mesh::Device> devices;
  for (int64_t rank = 0; rank < mesh.size(); ++rank) {
    const std::vector<int64_t> at = mesh.Coordinates(rank);
    bool corner = true;
    for (size_t a = 0; a < at.size(); ++a) corner = corner && at[a] % extent[a] == 0;
    if (corner) devices.push_back(mesh.devices()[rank]);
  }
  if (axes.empty()) return mesh;
  return Mesh::Create(std::move(axes), std::move(devices));
}

Layout OnMesh(const Layout& layout, const Mesh& collapsed) {
  auto moved = Layout::Create(collapsed, layout.dims(), layout.partial());
  MT_CHECK(moved.ok());
  return *std::move(moved);
}

Given OnMesh(const Partitioned& chosen, const program::Program& program, const Mesh& collapsed) {
  Given given;
  for (size_t i = 0; i < program.inputs.size(); ++i) {
    given.inputs[program.inputs[i].name] = OnMesh(chosen.input_layouts[i], collapsed);
  }
  for (size_t i = 0; i < program.states.size(); ++i) {
    given.states[program.states[i].name] = OnMesh(chosen.state_layouts[i], collapsed);
  }
  for (size_t i = 0; i < program.outputs.size(); ++i) {
    given.outputs[program.outputs[i].name] = OnMesh(chosen.output_layouts[i], collapsed);
  }
  return given;
}

}  // namespace meshtrain::sharding
