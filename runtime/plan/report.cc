#include <fmt/format.h>

#include "runtime/base/text.h"
#include "runtime/plan/internal.h"
#include "runtime/program/parts.h"

namespace meshtrain::plan {
namespace {

std::string Ports(const std::string& title, const std::vector<std::string>& names,
                  const std::vector<program::TensorType>& types,
                  const std::vector<mesh::Layout>& layouts) {
  size_t width = 0;
  for (const std::string& name : names) width = std::max(width, name.size());
  std::string text = title + "\n";
  for (size_t i = 0; i < names.size(); ++i) {
    const auto local = layouts[i].LocalShape(types[i].dims);
    const program::TensorType shard{types[i].dtype, local.ok() ? *local : types[i].dims};
    text += fmt::format("  {:<{}}  {:<14} {:<22} {:<14} {:>9} a device\n", names[i], width,
                        types[i].ToString(), layouts[i].ToString(), shard.ToString(),
                        HumanBytes(shard.num_bytes()));
  }
  return text;
}

// Of a step that computes its batch in parts, what stays from one to the next; "": it does not.
std::string PartsText(const program::Program& local) {
  int64_t parts = 1, bytes = 0;
  for (const program::Op& op : local.ops) {
    parts = std::max(parts, program::PartOf(op));
    if (program::SumsGradients(op) && program::PartOf(op) == 2) {
      bytes += local.type(op.results[0]).num_bytes();
    }
  }
  if (parts == 1) return "";
  return fmt::format("parts        {} of a batch, one after the other", parts) +
         (bytes == 0
              ? "\n"
              : fmt::format("; sums of gradients {} a device, of the arena\n", HumanBytes(bytes)));
}

std::string Duration(double seconds) {
  if (seconds < 1e-3) return fmt::format("{:.0f} us", seconds * 1e6);
  return fmt::format("{:.2f} ms", seconds * 1e3);
}

}  // namespace

std::string Plan::Report() const {
  const auto& p = partitioned;
  const program::Program& program = p.local;
  std::string text = fmt::format("plan of {} on {} device{}, mesh {}\n",
                                 program.name.empty() ? "a step" : program.name, p.mesh.size(),
                                 p.mesh.size() == 1 ? "" : "s",
                                 p.mesh.num_axes() == 0 ? "(one device)" : p.mesh.ToString());
  std::vector<std::string> inputs, states, outputs;
  for (const auto& port : program.inputs) inputs.push_back(port.name);
  for (const auto& state : program.states) states.push_back(state.name);
  for (const auto& port : program.outputs) outputs.push_back(port.name);
  text += Ports("inputs", inputs, p.input_types, p.input_layouts);
  text += Ports("states", states, p.state_types, p.state_layouts);
  text += Ports("outputs", outputs, p.output_types, p.output_layouts);

  text += "reshards\n";
  if (p.reshards.empty()) text += "  none\n";
  for (const sharding::Reshard& r : p.reshards) {
    std::string kinds;
    for (const int op : r.ops) kinds += (kinds.empty() ? "" : " + ") + program.ops[op].kind;
    text += fmt::format("  {:<28} {} -> {}  {}, {}\n      {}: {}\n", kinds, r.from.ToString(),
                        r.to.ToString(), HumanBytes(r.bytes_per_device),
                        Duration(r.predicted_seconds), r.value, r.reason);
  }
  text += "collectives per step and device\n";
  if (Collectives().empty()) text += "  none\n";
  for (const CollectiveBytes& row : Collectives()) {
    text += fmt::format("  {:<14} over {:<14} {:>4} x  {:>14} bytes ({})\n", row.kind, row.axes,
                        row.count, row.bytes, HumanBytes(row.bytes));
  }
  int fused = 0, fused_ops = 0;
  for (const Step& step : steps) {
    if (step.kind != StepKind::kFused) continue;
    ++fused;
    fused_ops += static_cast<int>(step.ops.size());
  }
  text += fmt::format("steps        {} ({} element-wise chains of {} ops in all)\n", steps.size(),
                      fused, fused_ops);
  text += fmt::format("compute      {:.3g} MFLOP a device\n", flops / 1e6);
  text +=
      fmt::format("memory       peak {} a device = states {} + inputs {} + outputs {} + arena {}\n",
                  HumanBytes(peak_bytes), HumanBytes(state_bytes), HumanBytes(input_bytes),
                  HumanBytes(output_bytes), HumanBytes(arena_bytes));
  text += PartsText(program);
  text += fmt::format("hash         {:016x}\n", hash);
  return text;
}

namespace {

std::string SlotText(const Slot& slot) {
  switch (slot.kind) {
    case SlotKind::kNone:
      return "nowhere";
    case SlotKind::kArena:
      return fmt::format("arena[{},{})", slot.offset, slot.offset + slot.bytes);
    case SlotKind::kInput:
      return fmt::format("input {}", slot.index);
    case SlotKind::kState:
      return fmt::format("state {}", slot.index);
    case SlotKind::kOutput:
      return fmt::format("output {}", slot.index);
  }
  return "";
}

}  // namespace

std::string StepsText(const Plan& plan) {
  const program::Program& local = plan.local();
  const auto values = [&](const std::vector<ValueId>& list) {
    std::string text;
    for (const ValueId v : list) {
      const bool known = v >= 0 && v < static_cast<ValueId>(plan.slots.size());
      text += fmt::format(" %{}={}", v, known ? SlotText(plan.slots[v]) : "?");
    }
    return text.empty() ? " nothing" : text;
  };
  std::string text;
  for (size_t s = 0; s < plan.steps.size(); ++s) {
    const Step& step = plan.steps[s];
    text += fmt::format("step {}:", s);
    if (step.kind == StepKind::kCopy) {
      text += fmt::format(" copy {} to {}", SlotText(step.copy_from), SlotText(step.copy_to));
    } else {
      for (const int i : step.ops) {
        text += fmt::format(" {}(#{})", local.ops[i].kind, i);
      }
      text += " reads" + values(step.reads) + " writes" + values(step.writes);
    }
    for (const int w : step.waits) text += fmt::format(" after step {}", w);
    text += "\n";
  }
  text +=
      fmt::format("guard after step {}, arena of {} bytes\n", plan.guard_step, plan.arena_bytes);
  return text + local.ToString();
}

}  // namespace meshtrain::plan
