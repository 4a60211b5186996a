#include "runtime/sharding/lint.h"

#include <algorithm>
#include <optional>
#include <vector>

#include "runtime/base/text.h"

namespace meshtrain::sharding {

Status CheckEven(const std::string& what, const Layout& layout, const program::TensorType& type) {
  for (int d = 0; d < layout.rank(); ++d) {
    const int64_t parts = layout.NumShards(d);
    if (type.dims[d] % parts == 0) continue;
    const std::string parts_text = std::to_string(parts);
    return InvalidArgument(what + ": dimension " + std::to_string(d) + " of " + type.ToString() +
                           " over axis `" + layout.specs()[d] + "`: expected a multiple of " +
                           parts_text +
                           " (uneven shards are refused), got: " + std::to_string(type.dims[d]));
  }
  return OkStatus();
}

std::vector<bool> OfStates(const Program& program) {
  enum Origin : uint8_t { kConstant, kStates, kFed };
  std::vector<Origin> origins(program.values.size(), kConstant);
  for (const program::Port& p : program.inputs) origins[p.value] = kFed;
  for (const program::State& s : program.states) origins[s.entry] = kStates;
  for (const program::Op& op : program.ops) {
    Origin origin = kConstant;
    for (const ValueId v : op.operands) origin = std::max(origin, origins[v]);
    for (const ValueId v : op.results) origins[v] = origin;
  }
  std::vector<bool> of_states;
  for (const Origin origin : origins) of_states.push_back(origin == kStates);
  return of_states;
}

GatherLimit LimitFor(const program::Op& op, const Split& split, bool of_states,
                     int64_t limit_bytes) {
  if (op.kind == "relayout") return {};
  GatherLimit limit{.bytes = limit_bytes};
  if (!of_states) return limit;
  for (const AxisList& axes : split.factors) {
    for (const int axis : axes) limit.asked.Add(axis);
  }
  return limit;
}

Status SilentReplication(const std::string& value, const Layout& from, const Move& gather,
                         const std::string& reason, const std::string& advice,
                         const GatherLimit& limit) {
  std::vector<std::string> axes;
  for (const int axis : gather.axes) axes.push_back(from.mesh().axis(axis).name);
  return InvalidArgument(
      "silent replication: " + value + ", split as " + from.ToString() +
      ", would be gathered over `" + Join(axes, "+") + "`, so that " + HumanBytes(gather.held) +
      " of it lie on every device, for " + reason + "; expected: a layout that keeps it split (" +
      advice +
      "), or in C++ a replication_limit_bytes above that, got: " + HumanBytes(limit.bytes));
}

Status CheckAxesUsed(const Mesh& mesh, const Given& given, const Program* program) {
  std::vector<bool> wished(mesh.num_axes(), false);
  if (program != nullptr) {
    for (const program::Op& op : program->ops) {
      if (op.kind != "relayout") continue;
      const auto layout = Layout::Parse(op.attrs.Text("specs"), mesh);
      if (!layout.ok()) return layout.status().At("relayout at " + op.where.ToString());
      for (int a = 0; a < mesh.num_axes(); ++a) wished[a] = wished[a] || layout->Uses(a);
    }
  }
  for (int a = 0; a < mesh.num_axes(); ++a) {
    if (mesh.axis(a).size == 1 || wished[a]) continue;
    const auto used = [&](const std::map<std::string, Layout>& layouts) {
      return std::any_of(layouts.begin(), layouts.end(), [&](const auto& item) {
        const std::optional<int> axis = item.second.mesh().FindAxis(mesh.axis(a).name);
        return axis.has_value() && item.second.Uses(*axis);
      });
    };
    if (used(given.inputs) || used(given.states) || used(given.outputs)) continue;
    const std::string& name = mesh.axis(a).name;
    return InvalidArgument(
        "mesh `" + mesh.ToString() + "`: expected every axis to be used, got: axis `" + name +
        "` in no layout; split an input or a variable over `" + name + "`, or remove the axis");
  }
  return OkStatus();
}

}  // namespace meshtrain::sharding
