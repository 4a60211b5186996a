// A mesh: devices laid out along named axes. `batch=4,model=2` is eight devices; the last axis
// varies fastest.
//
// Kept true: at most 8 axes (one device may have none), names unique and [A-Za-z_][A-Za-z0-9_]*,
// sizes at least 1, one device per place and none twice, at most 2^20 of them. A Mesh is a value;
// copies share one immutable description. Thread-safe.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/status.h"
#include "runtime/mesh/shape.h"

namespace meshtrain::mesh {

enum class DeviceKind : uint8_t { kCpu, kDiscrete, kCuda, kTpu, kPjrt };
std::string_view DeviceKindName(DeviceKind kind);  // "cpu", "discrete", "cuda", "tpu", "pjrt"
std::optional<DeviceKind> FindDeviceKind(std::string_view name);
// Their names, in their order.
const std::vector<std::string>& DeviceKindNames();
// Whether a plugin has them: any plugin's (kPjrt), or one of TPUs (kTpu), of GPUs (kCuda).
inline bool IsOfPlugin(DeviceKind kind) {
  return kind == DeviceKind::kPjrt || kind == DeviceKind::kTpu || kind == DeviceKind::kCuda;
}

// One device of one process. Text: "cpu:3" in process 0, "1/cpu:3" in process 1.
struct Device {
  DeviceKind kind = DeviceKind::kCpu;
  int process = 0;
  int index = 0;
  std::string ToString() const;
  // Upper case is read too, and "gpu" as "cuda". Errors: kInvalidArgument for another text or a
  // number that is negative or beyond an int.
  static Result<Device> Parse(std::string_view text);
  friend auto operator<=>(const Device&, const Device&) = default;
};

struct Axis {
  std::string name;
  int64_t size = 1;
  friend bool operator==(const Axis&, const Axis&) = default;
};

class Mesh {
 public:
  // One device, no axis: what an unsharded program runs on.
  Mesh();
  // `devices` in row-major order of the axes; without them cpu:0, cpu:1, ... of process 0.
  // Errors: kInvalidArgument for a bad axis, too many axes or devices, a device given twice, or
  // when the product of the sizes differs from the number of devices.
  static Result<Mesh> Create(std::vector<Axis> axes, std::vector<Device> devices = {});
  // "batch=4,model=2"; "" is the mesh of one device. Errors: kInvalidArgument quoting the text, and
  // those of Create.
  static Result<Mesh> Parse(std::string_view text);
  // The same axes over CPUs of `processes` processes, as many of each: the first places, in
  // row-major order, are process 0's. Errors: kInvalidArgument where the places do not divide.
  Result<Mesh> OverProcesses(int processes) const;
  // The axes alone: meshes over other devices have the same text.
  std::string ToString() const;
  // For a message that names this mesh beside `other`: with its devices where only these differ,
  // "b=2 on cpu:0, cpu:1".
  std::string ToStringUnlike(const Mesh& other) const;

  int num_axes() const { return static_cast<int>(impl_->axes.size()); }
  const std::vector<Axis>& axes() const { return impl_->axes; }
  const Axis& axis(int i) const { return impl_->axes[i]; }
  std::optional<int> FindAxis(std::string_view name) const;
  // Errors: kInvalidArgument naming the mesh and the nearest axis name.
  Result<int> AxisIndex(std::string_view name) const;

  // Places are numbered 0 .. size()-1, row-major: the device's rank in the mesh. A rank or a
  // coordinate outside the mesh, or coordinates for another number of axes, end the program
  // (MT_CHECK).
  int64_t size() const { return static_cast<int64_t>(impl_->devices.size()); }
  const std::vector<Device>& devices() const { return impl_->devices; }
  std::vector<int64_t> Coordinates(int64_t rank) const;
  int64_t RankAt(const std::vector<int64_t>& coordinates) const;

  // Ranks of the devices that live in `process`, and for each its coordinate per axis name
  // (DTensor's local_device_locations).
  std::vector<int64_t> LocalRanks(int process = 0) const;
  std::vector<std::map<std::string, int64_t>> LocalDeviceLocations(int process = 0) const;

  // The ranks that differ from `rank` only along `axes` (rank itself included), ordered by their
  // coordinates along `axes` (indices, each once), first axis slowest: the members of a collective
  // over those axes.
  std::vector<int64_t> Group(int64_t rank, const std::vector<int>& axes) const;

  // The mesh of the axes that are not fixed, at the given coordinates of those that are.
  // Mesh("a=2,b=3").SubMesh({{"a", 1}}) is "b=3" over the devices of row 1. Errors:
  // kInvalidArgument for an unknown axis or a coordinate outside it.
  Result<Mesh> SubMesh(const std::map<std::string, int64_t>& fixed) const;

  friend bool operator==(const Mesh& a, const Mesh& b) {
    return a.impl_ == b.impl_ ||
           (a.impl_->axes == b.impl_->axes && a.impl_->devices == b.impl_->devices);
  }

 private:
  struct Impl {
    std::vector<Axis> axes;
    std::vector<Device> devices;
  };
  explicit Mesh(std::shared_ptr<const Impl> impl) : impl_(std::move(impl)) {}
  std::shared_ptr<const Impl> impl_;
};

}  // namespace meshtrain::mesh
