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

Status CheckReplication(const std::string& value, const program::TensorType& type,
                        const Layout& from, const Layout& to, const std::string& reason,
                        const std::string& advice, const Options& options) {
  const auto whole = [](const Layout& layout) {
    const Layout canonical = layout.Canonical();
    return std::all_of(canonical.dims().begin(), canonical.dims().end(),
                       [](const auto& axes) { return axes.empty(); });
  };
  if (type.num_bytes() < options.replication_limit_bytes || whole(from) || !whole(to)) {
    return OkStatus();
  }
  return InvalidArgument("silent replication: " + value + ", split as " + from.ToString() +
                         ", would be gathered (" + HumanBytes(type.num_bytes()) +
                         ") whole onto every device for " + reason +
                         "; expected: a layout that keeps it split (" + advice +
                         "), or in C++ a replication_limit_bytes above its size, got: " +
                         HumanBytes(options.replication_limit_bytes));
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
