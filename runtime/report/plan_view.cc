#include "runtime/report/plan_view.h"

#include <algorithm>

namespace meshtrain::report {
namespace {

Variable VariableOf(const std::string& name, const program::TensorType& type,
                    const mesh::Layout& layout) {
  const auto local = layout.LocalShape(type.dims);
  const program::TensorType shard{type.dtype, local.ok() ? *local : type.dims};
  Variable out{.name = name,
               .type = type.ToString(),
               .layout = layout.ToString(),
               .split = {},
               .shard = shard.ToString(),
               .bytes = shard.num_bytes()};
  for (const mesh::DimSharding& dim : layout.dims()) {
    std::vector<std::string>& axes = out.split.emplace_back();
    for (const int axis : dim) axes.push_back(layout.mesh().axis(axis).name);
  }
  return out;
}

}  // namespace

PlanView ViewOf(const plan::Plan& plan) {
  const sharding::Partitioned& p = plan.partitioned;
  PlanView out{.num_devices = p.mesh.size()};
  for (const mesh::Axis& axis : p.mesh.axes()) out.axes.emplace_back(axis.name, axis.size);
  const auto shown = std::min<int64_t>(p.mesh.size(), kMostDevices);
  for (int64_t i = 0; i < shown; ++i) out.devices.push_back(p.mesh.devices()[i].ToString());
  for (size_t i = 0; i < p.local.inputs.size(); ++i) {
    out.inputs.push_back(VariableOf(p.local.inputs[i].name, p.input_types[i], p.input_layouts[i]));
  }
  for (size_t i = 0; i < p.local.states.size(); ++i) {
    out.variables.push_back(
        VariableOf(p.local.states[i].name, p.state_types[i], p.state_layouts[i]));
  }
  for (const plan::CollectiveBytes& row : plan.Collectives()) {
    out.collectives.push_back(
        {.kind = row.kind, .axes = row.axes, .count = row.count, .bytes = row.bytes});
  }
  out.memory = {{"states", plan.state_bytes},
                {"inputs", plan.input_bytes},
                {"outputs", plan.output_bytes},
                {"arena", plan.arena_bytes}};
  out.peak_bytes = plan.peak_bytes;
  return out;
}

}  // namespace meshtrain::report
