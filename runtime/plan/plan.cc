#include "runtime/plan/plan.h"

#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>

#include "runtime/base/check.h"
#include "runtime/plan/internal.h"
#include "runtime/program/registry.h"
#include "runtime/sharding/windows.h"

namespace meshtrain::plan {
namespace {

using program::Op;
using program::Program;

// Everything that decides what the devices do, as text.
std::string Identity(const Plan& plan) {
  const auto& p = plan.partitioned;
  std::string text = p.mesh.ToString() + "\n";
  for (const auto& device : p.mesh.devices()) text += device.ToString() + " ";
  const auto layouts = [&](const char* what, const std::vector<mesh::Layout>& list) {
    for (const mesh::Layout& l : list) text += fmt::format("\n{} {}", what, l.ToString());
  };
  layouts("input", p.input_layouts);
  layouts("state", p.state_layouts);
  layouts("output", p.output_layouts);
  text += "\n" + p.local.ToString();
  for (const Step& step : plan.steps) {
    text += fmt::format("\nstep {}", static_cast<int>(step.kind));
    for (const int op : step.ops) text += fmt::format(" {}", op);
    if (step.kind == StepKind::kCopy) {
      text +=
          fmt::format(" {}/{}/{} {}/{}/{}", static_cast<int>(step.copy_from.kind),
                      step.copy_from.index, step.copy_from.offset,
                      static_cast<int>(step.copy_to.kind), step.copy_to.index, step.copy_to.offset);
    }
  }
  for (const Slot& slot : plan.slots) {
    text += fmt::format("\nslot {} {} {} {}", static_cast<int>(slot.kind), slot.index, slot.offset,
                        slot.bytes);
  }
  return text;
}

std::string AxesText(const mesh::Mesh& mesh, const std::vector<int64_t>& axes) {
  std::string text;
  for (const int64_t a : axes) {
    text += (text.empty() ? "" : ",") + mesh.axis(static_cast<int>(a)).name;
  }
  return text;
}

}  // namespace

bool Communicates(const Op& op) {
  return op.kind == "all_reduce" || op.kind == "all_gather" || op.kind == "reduce_scatter" ||
         op.kind == "all_to_all" || op.kind == "halo";
}

int64_t BytesSent(const Program& local, const Op& op) {
  if (!Communicates(op)) return 0;
  const int64_t n = op.attrs.Int("group", 1);
  const program::TensorType& in = local.type(op.operands[0]);
  // The whole that the group handles, padding of uneven shards included.
  const auto padded = [&](int64_t dim) {
    const int64_t chunk = (in.dims[dim] + n - 1) / n;
    return in.dims[dim] == 0 ? 0 : in.num_bytes() / in.dims[dim] * chunk * n;
  };
  if (op.kind == "all_reduce") return 2 * in.num_bytes() * (n - 1) / n;
  if (op.kind == "all_gather") return in.num_bytes() * (n - 1);
  if (op.kind == "reduce_scatter") return padded(op.attrs.Int("dim")) * (n - 1) / n;
  if (op.kind == "halo") {
    sharding::BlocksWanted blocks{.dim = static_cast<int>(op.attrs.Int("dim"))};
    blocks.blocks = {op.attrs.Ints("starts"), op.attrs.Int("extent")};
    return sharding::CostOfHalo(blocks, op.attrs.Int("size"), in.dims, mesh::DTypeBytes(in.dtype),
                                {})
        .bytes;
  }
  return padded(op.attrs.Int("split_dim")) * (n - 1) / n;
}

bool SpansProcesses(const mesh::Mesh& mesh) {
  const auto& devices = mesh.devices();
  return std::any_of(devices.begin(), devices.end(),
                     [&](const mesh::Device& d) { return d.process != devices[0].process; });
}

Options OptionsOn(const mesh::Mesh& mesh, Options options, std::optional<int64_t> bucket_bytes) {
  options.overlap = SpansProcesses(mesh);
  if (mesh::IsOfPlugin(mesh.devices()[0].kind)) options.fuse = false;
  if (bucket_bytes) options.bucket_bytes = options.overlap_bucket_bytes = *bucket_bytes;
  return options;
}

std::vector<CollectiveBytes> Plan::Collectives() const {
  std::vector<CollectiveBytes> rows;
  for (const Step& step : steps) {
    if (step.kind != StepKind::kCollective) continue;
    for (const int i : step.ops) {
      const Op& op = local().ops[i];
      const std::string axes = AxesText(partitioned.mesh, op.attrs.Ints("axes"));
      CollectiveBytes* row = nullptr;
      for (CollectiveBytes& r : rows) {
        if (r.kind == op.kind && r.axes == axes) row = &r;
      }
      if (row == nullptr) row = &rows.emplace_back(CollectiveBytes{op.kind, axes, 0, 0});
      row->bytes += BytesSent(local(), op);
      ++row->count;
    }
  }
  return rows;
}

int64_t Plan::CollectiveBytesPerStep() const {
  int64_t bytes = 0;
  for (const CollectiveBytes& row : Collectives()) bytes += row.bytes;
  return bytes;
}

uint64_t Plan::CollectivesHash() const {
  std::string text = std::to_string(partitioned.mesh.size()) + " devices";
  for (const Step& step : steps) {
    if (step.kind != StepKind::kCollective) continue;
    text += "\nstep";
    for (const int i : step.ops) {
      const Op& op = local().ops[i];
      text += " " + op.kind;
      for (const auto& [name, attr] : op.attrs.items()) {
        text += " " + name + "=" + program::AttrText(attr);
      }
      text += " " + local().type(op.operands[0]).ToString();
    }
  }
  return XXH3_64bits(text.data(), text.size());
}

namespace {

// Collectives name axes of this mesh, and as many devices as these hold together.
Status CheckGroups(const sharding::Partitioned& p) {
  for (const Op& op : p.local.ops) {
    if (!op.attrs.Has("axes") || !op.attrs.Has("group")) continue;
    int64_t group = 1;
    std::vector<int64_t> axes = op.attrs.Ints("axes");
    for (const int64_t axis : axes) {
      if (axis < 0 || axis >= p.mesh.num_axes()) {
        return InvalidArgument("`" + op.kind + "`: expected axes of mesh " + p.mesh.ToString() +
                               ", got: " + std::to_string(axis))
            .At(op.where.ToString());
      }
      group *= p.mesh.axis(static_cast<int>(axis)).size;
    }
    std::sort(axes.begin(), axes.end());
    if (std::adjacent_find(axes.begin(), axes.end()) != axes.end() ||
        group != op.attrs.Int("group")) {
      return InvalidArgument(
                 "`" + op.kind + "`: expected a group of " + std::to_string(group) +
                 " devices, each axis once, got: " + std::to_string(op.attrs.Int("group")))
          .At(op.where.ToString());
    }
  }
  return OkStatus();
}

// A guard looks at what its own process holds, and all processes must find the same.
Status WholeInEachProcess(const mesh::Layout& layout) {
  if (!SpansProcesses(layout.mesh())) return OkStatus();
  const auto between = sharding::CollapseLocal(layout.mesh());
  const mesh::Layout seen = between.ok() ? sharding::OnMesh(layout, *between) : layout;
  if (seen.Canonical().IsReplicated()) return OkStatus();
  return InvalidArgument(
      "expected a layout in which each process holds all of it, since it must be finite before a "
      "state changes, got: " +
      layout.ToString());
}

// A guard is looked at behind the step that makes its value: one that no op makes, an input or a
// state as it was, is passed through one.
void GiveProducer(sharding::Partitioned* p, program::Port* output) {
  Program& local = p->local;
  if (local.values[output->value].op >= 0) return;
  const auto made = static_cast<ValueId>(local.values.size());
  local.values.push_back({local.type(output->value), static_cast<int32_t>(local.ops.size())});
  p->layouts.push_back(mesh::Layout(p->layouts[output->value]));
  p->global_dims.push_back(program::Dims(p->global_dims[output->value]));
  local.ops.push_back({.kind = "stop_gradient", .operands = {output->value}, .results = {made}});
  output->value = made;
}

// The last step before a state changes.
int GuardStep(const Plan& plan) {
  const auto changes = [&](const Step& step) {
    return step.copy_to.kind == SlotKind::kState ||
           std::any_of(step.writes.begin(), step.writes.end(),
                       [&](ValueId v) { return plan.slots[v].kind == SlotKind::kState; });
  };
  const auto first = std::find_if(plan.steps.begin(), plan.steps.end(), changes);
  return static_cast<int>(first - plan.steps.begin()) - 1;
}

}  // namespace

std::vector<ValueId> Plan::GuardValues() const {
  std::vector<ValueId> values;
  for (const int i : guarded) values.push_back(local().outputs[i].value);
  if (zero_output >= 0) values.push_back(local().outputs[zero_output].value);
  return values;
}

Result<Plan> MakePlan(sharding::Partitioned partitioned, const Options& options) {
  MT_RETURN_IF_ERROR(program::Validate(partitioned.local));
  MT_RETURN_IF_ERROR(CheckGroups(partitioned));
  Plan plan;
  plan.partitioned = std::move(partitioned);
  const Program& local = plan.local();
  const bool updates = std::any_of(local.states.begin(), local.states.end(),
                                   [](const program::State& s) { return s.exit != s.entry; });
  for (size_t i = 0; updates && i < local.outputs.size(); ++i) {
    const auto& names = options.finite_outputs;
    const program::Port& output = local.outputs[i];
    if (!mesh::IsFloat(local.type(output.value).dtype) ||
        std::find(names.begin(), names.end(), output.name) == names.end()) {
      continue;
    }
    MT_RETURN_IF_ERROR(
        WholeInEachProcess(plan.partitioned.output_layouts[i]).At("output `" + output.name + "`"));
    plan.guarded.push_back(static_cast<int>(i));
    GiveProducer(&plan.partitioned, &plan.partitioned.local.outputs[i]);
  }
  plan.zero_output = plan.partitioned.guard_output;
  // What is computed twice counts once.
  for (const Op& op : local.ops) {
    std::vector<program::TensorType> operands, results;
    for (const ValueId v : op.operands) operands.push_back(local.type(v));
    for (const ValueId v : op.results) results.push_back(local.type(v));
    plan.flops +=
        program::CostOf(*program::Registry::Standard().Find(op.kind), {operands, op.attrs}, results)
            .flops;
  }
  std::vector<bool> waits(local.ops.size(), false);
  if (options.fuse) {
    const std::vector<bool> chained = Chained(local, options);
    waits = RepeatForReaders(&plan.partitioned, chained, WaitsForReaders(local, chained), options);
  }
  plan.steps = Schedule(local, waits, plan.GuardValues(), options);
  PlaceBuffers(&plan, options.overlap);
  if (!plan.GuardValues().empty()) plan.guard_step = GuardStep(plan);
  MT_RETURN_IF_ERROR(Verify(plan, options.overlap));
  const std::string identity = Identity(plan);
  plan.hash = XXH3_64bits(identity.data(), identity.size());
  return plan;
}

}  // namespace meshtrain::plan
