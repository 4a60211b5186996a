#include "runtime/mesh/mesh.h"

#include <algorithm>
#include <cctype>
#include <limits>
#include <set>

#include "runtime/base/check.h"
#include "runtime/base/text.h"

namespace meshtrain::mesh {
namespace {

constexpr int64_t kMaxDevices = 1 << 20;
constexpr int kMaxAxes = 8;
constexpr int64_t kMaxNumber = std::numeric_limits<int>::max();  // of a process or device

bool IsName(std::string_view text) {
  if (text.empty() || std::isdigit(static_cast<unsigned char>(text[0]))) return false;
  return std::all_of(text.begin(), text.end(),
                     [](unsigned char c) { return std::isalnum(c) || c == '_'; });
}

}  // namespace

const std::vector<std::string>& DeviceKindNames() {
  static const std::vector<std::string> kNames = {"cpu", "discrete", "cuda", "tpu", "pjrt"};
  return kNames;
}

std::string_view DeviceKindName(DeviceKind kind) {
  return DeviceKindNames()[static_cast<size_t>(kind)];
}

std::optional<DeviceKind> FindDeviceKind(std::string_view name) {
  const std::vector<std::string>& names = DeviceKindNames();
  const auto at = std::find(names.begin(), names.end(), name);
  if (at == names.end()) return std::nullopt;
  return static_cast<DeviceKind>(at - names.begin());
}

std::string Device::ToString() const {
  std::string text = process == 0 ? "" : std::to_string(process) + "/";
  return text + std::string(DeviceKindName(kind)) + ":" + std::to_string(index);
}

Result<Device> Device::Parse(std::string_view text) {
  const auto bad = [&] {
    return InvalidArgument("device: expected a text like cpu:0 or 1/cuda:3, got: " +
                           std::string(text));
  };
  Device device;
  std::string_view rest = text;
  if (const size_t slash = rest.find('/'); slash != std::string_view::npos) {
    const auto process = ParseInt(rest.substr(0, slash));
    if (!process || *process < 0 || *process > kMaxNumber) return bad();
    device.process = static_cast<int>(*process);
    rest.remove_prefix(slash + 1);
  }
  const size_t colon = rest.find(':');
  if (colon == std::string_view::npos) return bad();
  const auto index = ParseInt(rest.substr(colon + 1));
  if (!index || *index < 0 || *index > kMaxNumber) return bad();
  device.index = static_cast<int>(*index);
  std::string kind(rest.substr(0, colon));
  for (char& c : kind) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  if (kind == "gpu") kind = "cuda";
  const auto known = FindDeviceKind(kind);
  if (!known) return bad();
  device.kind = *known;
  return device;
}

Mesh::Mesh() {
  static const auto one = std::make_shared<const Impl>(Impl{{}, {Device{}}});
  impl_ = one;
}

Result<Mesh> Mesh::Create(std::vector<Axis> axes, std::vector<Device> devices) {
  if (static_cast<int>(axes.size()) > kMaxAxes) {
    return InvalidArgument("mesh: expected at most 8 axes, got: " + std::to_string(axes.size()));
  }
  std::set<std::string> names;
  int64_t size = 1;
  for (const Axis& axis : axes) {
    if (!IsName(axis.name)) {
      return InvalidArgument("mesh: expected an axis name of letters, digits and _, got: `" +
                             axis.name + "`");
    }
    if (!names.insert(axis.name).second) {
      return InvalidArgument("mesh: axis `" + axis.name + "` is named twice");
    }
    if (axis.size < 1) {
      return InvalidArgument("mesh: size of axis `" + axis.name +
                             "` must be at least 1, got: " + std::to_string(axis.size));
    }
    if (axis.size > kMaxDevices / size) {
      return InvalidArgument("mesh: expected at most " + std::to_string(kMaxDevices) +
                             " devices, got: more");
    }
    size *= axis.size;
  }
  if (devices.empty()) {
    for (int64_t i = 0; i < size; ++i) {
      devices.push_back({DeviceKind::kCpu, 0, static_cast<int>(i)});
    }
  }
  if (static_cast<int64_t>(devices.size()) != size) {
    return InvalidArgument("mesh: the axes ask for " + std::to_string(size) +
                           " devices, got: " + std::to_string(devices.size()));
  }
  if (std::set<Device>(devices.begin(), devices.end()).size() != devices.size()) {
    return InvalidArgument("mesh: a device is given twice");
  }
  return Mesh(std::make_shared<const Impl>(Impl{std::move(axes), std::move(devices)}));
}

Result<Mesh> Mesh::Parse(std::string_view text) {
  std::vector<Axis> axes;
  if (!Trim(text).empty()) {
    for (const std::string& part : Split(text, ',')) {
      const size_t equals = part.find('=');
      const auto size =
          equals == std::string::npos ? std::nullopt : ParseInt(Trim(part.substr(equals + 1)));
      if (!size) {
        return InvalidArgument("mesh: expected a text like batch=4,model=2, got: " +
                               std::string(text));
      }
      axes.push_back({std::string(Trim(part.substr(0, equals))), *size});
    }
  }
  return Create(std::move(axes));
}

Result<Mesh> Mesh::OverProcesses(int processes) const {
  if (processes < 1 || size() % processes != 0) {
    return InvalidArgument("mesh: expected devices that " + std::to_string(processes) +
                           " processes have equal parts of, got: " + std::to_string(size()) + " (" +
                           ToString() + ")");
  }
  const int64_t each = size() / processes;
  std::vector<Device> devices;
  for (int64_t i = 0; i < size(); ++i) {
    devices.push_back({DeviceKind::kCpu, static_cast<int>(i / each), static_cast<int>(i % each)});
  }
  return Create(axes(), std::move(devices));
}

std::string Mesh::ToString() const {
  std::string text;
  for (const Axis& axis : axes()) {
    if (!text.empty()) text += ',';
    text += axis.name + "=" + std::to_string(axis.size);
  }
  return text;
}

std::string Mesh::ToStringUnlike(const Mesh& other) const {
  std::string text = ToString();
  if (*this == other || axes() != other.axes()) return text;
  text += " on ";
  for (size_t i = 0; i < devices().size(); ++i) {
    text += (i == 0 ? "" : ", ") + devices()[i].ToString();
  }
  return text;
}

std::optional<int> Mesh::FindAxis(std::string_view name) const {
  for (int i = 0; i < num_axes(); ++i) {
    if (axis(i).name == name) return i;
  }
  return std::nullopt;
}

Result<int> Mesh::AxisIndex(std::string_view name) const {
  if (const auto i = FindAxis(name)) return *i;
  std::vector<std::string> names;
  for (const Axis& a : axes()) names.push_back(a.name);
  return InvalidArgument("mesh " + ToString() + ": expected one of its axes, got: `" +
                         std::string(name) + "`" + DidYouMean(name, names));
}

std::vector<int64_t> Mesh::Coordinates(int64_t rank) const {
  MT_CHECK(rank >= 0 && rank < size());
  std::vector<int64_t> coordinates(axes().size());
  for (int i = num_axes(); i-- > 0;) {
    coordinates[i] = rank % axis(i).size;
    rank /= axis(i).size;
  }
  return coordinates;
}

int64_t Mesh::RankAt(const std::vector<int64_t>& coordinates) const {
  MT_CHECK(coordinates.size() == axes().size());
  int64_t rank = 0;
  for (int i = 0; i < num_axes(); ++i) {
    MT_CHECK(coordinates[i] >= 0 && coordinates[i] < axis(i).size);
    rank = rank * axis(i).size + coordinates[i];
  }
  return rank;
}

std::vector<int64_t> Mesh::LocalRanks(int process) const {
  std::vector<int64_t> ranks;
  for (int64_t r = 0; r < size(); ++r) {
    if (devices()[r].process == process) ranks.push_back(r);
  }
  return ranks;
}

std::vector<std::map<std::string, int64_t>> Mesh::LocalDeviceLocations(int process) const {
  std::vector<std::map<std::string, int64_t>> locations;
  for (const int64_t rank : LocalRanks(process)) {
    const auto coordinates = Coordinates(rank);
    auto& location = locations.emplace_back();
    for (int i = 0; i < num_axes(); ++i) location[axis(i).name] = coordinates[i];
  }
  return locations;
}

std::vector<int64_t> Mesh::Group(int64_t rank, const std::vector<int>& over) const {
  std::vector<int64_t> coordinates = Coordinates(rank);
  int64_t count = 1;
  for (const int a : over) count *= axis(a).size;
  std::vector<int64_t> group;
  group.reserve(count);
  for (int64_t k = 0; k < count; ++k) {
    int64_t rest = k;
    for (size_t i = over.size(); i-- > 0;) {
      coordinates[over[i]] = rest % axis(over[i]).size;
      rest /= axis(over[i]).size;
    }
    group.push_back(RankAt(coordinates));
  }
  return group;
}

Result<Mesh> Mesh::SubMesh(const std::map<std::string, int64_t>& fixed) const {
  std::vector<int64_t> at(axes().size(), -1);
  for (const auto& [name, coordinate] : fixed) {
    MT_ASSIGN_OR_RETURN(const int i, AxisIndex(name));
    if (coordinate < 0 || coordinate >= axis(i).size) {
      return InvalidArgument("sub-mesh of " + ToString() + ": coordinate of `" + name +
                             "` must be in 0.." + std::to_string(axis(i).size - 1) +
                             ", got: " + std::to_string(coordinate));
    }
    at[i] = coordinate;
  }
  std::vector<Axis> kept_axes;
  std::vector<Device> kept;
  for (int i = 0; i < num_axes(); ++i) {
    if (at[i] < 0) kept_axes.push_back(axis(i));
  }
  for (int64_t r = 0; r < size(); ++r) {
    const auto coordinates = Coordinates(r);
    bool inside = true;
    for (int i = 0; i < num_axes(); ++i) inside = inside && (at[i] < 0 || at[i] == coordinates[i]);
    if (inside) kept.push_back(devices()[r]);
  }
  return Create(std::move(kept_axes), std::move(kept));
}

}  // namespace meshtrain::mesh
