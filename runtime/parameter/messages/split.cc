#include "runtime/parameter/messages/split.h"

#include <algorithm>

#include "runtime/program/builder.h"
#include "runtime/program/ops.h"

namespace meshtrain::parameter {

using mesh::DType;
using mesh::TensorType;
using program::Builder;
using program::Value;
using program::Variable;

namespace {

constexpr std::string_view kGradientPrefix = "gradient/";
constexpr std::string_view kDeltaPrefix = "delta/";

class Tap final : public train::Optimizer {
 public:
  explicit Tap(train::OptimizerOptions options) : Optimizer(options) {}
  std::string_view kind() const override { return "gradient_tap"; }

 protected:
  void Update(const Parameter& weight, const Value& gradient) override {
    gradient.builder()->Output(GradientName(weight.name()), gradient);
  }
  void End() override {}
};

// "optimizer.m.hidden/part_1" of shard "hidden/part_1" -> "optimizer.m.hidden". Kinds of slots have
// no dots, so a slot belongs to one shard at most.
std::optional<std::string> GlobalSlotName(const Parameter& slot, const Shard& shard,
                                          const std::string& variable) {
  constexpr std::string_view kPrefix = "optimizer.";
  const std::string& name = slot.name();
  if (!name.starts_with(kPrefix) || !name.ends_with("." + shard.name) ||
      slot.dims() != shard.type.dims) {
    return {};
  }
  const size_t begin = kPrefix.size();
  if (name.size() < begin + 1 + shard.name.size()) return {};
  const std::string kind = name.substr(begin, name.size() - begin - 1 - shard.name.size());
  if (kind.empty() || kind.find('.') != std::string::npos) return {};
  return std::string(kPrefix) + kind + "." + variable;
}

ServerState StateOfShard(const Shard& shard, const Parameter& variable) {
  return {.name = shard.name,
          .type = shard.type,
          .global_name = variable.name(),
          .global_type = variable.type(),
          .offsets = shard.offsets(),
          .pulled = true};
}

// A slot is cut where its shard is; what belongs to no shard is a copy that each server has for
// itself.
ServerState StateOfSlot(const Parameter& slot, std::span<const Shard> shards,
                        std::span<const Parameter> variables) {
  for (const Shard& shard : shards) {
    const Parameter& variable = variables[shard.variable];
    if (auto global = GlobalSlotName(slot, shard, variable.name())) {
      return {.name = slot.name(),
              .type = slot.type(),
              .global_name = *global,
              .global_type = {slot.type().dtype, variable.dims()},
              .offsets = shard.offsets()};
    }
  }
  return {.name = slot.name(),
          .type = slot.type(),
          .global_name = slot.name(),
          .global_type = slot.type(),
          .offsets = mesh::Dims(slot.dims().size(), 0),
          .copy = true};
}

Result<Program> BuildInit(std::span<const Parameter> states, int64_t seed) {
  Builder b("init");
  Builder::Scope scope(b);
  for (const Parameter& state : states) {
    Builder::NameScope name(b, state.name());
    b.Assign(state, state.RecordInitial(seed));
  }
  return b.Build();
}

// The server's variables that stand for `shard` in a program that is being recorded.
Parameter ShardParameter(const Shard& shard, const Parameter& variable) {
  return Parameter(shard.name, shard.type, variable.initializer(),
                   {.trainable = variable.trainable()});
}

}  // namespace

std::string GradientName(std::string_view variable) {
  return std::string(kGradientPrefix) + std::string(variable);
}

Program CountingExamples(Program step, int64_t examples) {
  const auto op = static_cast<int32_t>(step.ops.size());
  const auto count = static_cast<program::ValueId>(step.values.size());
  step.values.push_back({TensorType{DType::kI64, {}}, op});
  step.ops.push_back({"fill",
                      {{"dims", std::vector<int64_t>{}},
                       {"value", static_cast<double>(examples)},
                       {"dtype", std::string(mesh::DTypeName(DType::kI64))}},
                      {},
                      {count},
                      "",
                      {}});
  step.outputs.push_back({std::string(kExamplesName), count});
  return step;
}

std::unique_ptr<train::Optimizer> GradientTap(const train::Optimizer& original) {
  train::OptimizerOptions options = original.common();
  options.weight_decay.reset();  // the servers'
  return std::make_unique<Tap>(options);
}

Updater UpdaterOf(std::shared_ptr<train::Optimizer> optimizer) {
  // It clips again, on a server: what was clipped as a whole is within the limit, so that changes
  // nothing.
  return {.record = [optimizer](
                        std::span<const Parameter> weights,
                        std::span<const Value> gradients) { optimizer->Apply(weights, gradients); },
          .slots = [optimizer] { return optimizer->slots(); }};
}

Result<WorkerStep> SplitStep(const Program& step) {
  WorkerStep out{.program = step};
  Program& program = out.program;
  const std::string where = "step " + step.name + ": ";
  std::set<std::string> with_gradient;
  std::vector<program::Port> gradients;
  program.outputs.clear();
  for (const program::Port& port : step.outputs) {
    (port.name.starts_with(kGradientPrefix) ? gradients : program.outputs).push_back(port);
  }
  out.outputs = static_cast<int>(program.outputs.size());
  for (const program::Port& port : gradients) {
    const std::string name = port.name.substr(kGradientPrefix.size());
    const auto state = std::find_if(step.states.begin(), step.states.end(),
                                    [&](const program::State& s) { return s.name == name; });
    if (state == step.states.end()) {
      return InvalidArgument(
          where + "expected gradients of variables that it reads, got: one of `" + name + "`");
    }
    if (step.type(port.value) != step.type(state->entry)) {
      return InvalidArgument(where + "gradient of `" + name + "`: expected " +
                             step.type(state->entry).ToString() +
                             ", got: " + step.type(port.value).ToString());
    }
    if (state->exit != state->entry) {
      return InvalidArgument(where + "variable `" + name +
                             "`: expected a gradient or an assignment, got: both");
    }
    with_gradient.insert(name);
    out.pushed.push_back({name, true, static_cast<int>(program.outputs.size())});
    program.outputs.push_back(port);
  }
  for (program::State& state : program.states) {
    if (state.exit == state.entry) continue;
    const TensorType type = program.type(state.entry);
    if (type.dtype == DType::kBool || type.dtype == DType::kU8) {
      return InvalidArgument(where + "variable `" + state.name +
                             "`: expected a type with differences to assign (i32, " +
                             "i64, f32, f64), got: " + type.ToString());
    }
    const auto op = static_cast<int32_t>(program.ops.size());
    const auto delta = static_cast<program::ValueId>(program.values.size());
    program.values.push_back({type, op});
    program.ops.push_back({"sub", {}, {state.exit, state.entry}, {delta}, state.name, {}});
    state.exit = state.entry;
    out.pushed.push_back({state.name, false, static_cast<int>(program.outputs.size())});
    program.outputs.push_back({std::string(kDeltaPrefix) + state.name, delta});
  }
  program = program::WithoutDeadOps(program);
  MT_RETURN_IF_ERROR(program::Validate(program));
  return out;
}

Result<std::vector<ServerStates>> BuildVariables(std::span<const Parameter> variables,
                                                 std::span<const Shard> shards, int servers,
                                                 int64_t seed) {
  std::vector<ServerStates> out(servers);
  for (int server = 0; server < servers; ++server) {
    Builder b("init");
    Builder::Scope scope(b);
    for (const Shard& shard : shards) {
      if (shard.server != server) continue;
      const Parameter& variable = variables[shard.variable];
      Builder::NameScope name(b, variable.name());
      Value initial = variable.RecordInitial(seed);
      if (shard.parts > 1) initial = program::Slice(initial, shard.offsets(), shard.type.dims);
      b.Assign(ShardParameter(shard, variable), initial);
      out[server].states.push_back(StateOfShard(shard, variable));
    }
    MT_ASSIGN_OR_RETURN(out[server].init, b.Build());
  }
  return out;
}

Result<std::vector<ServerUpdate>> BuildUpdate(const std::string& name,
                                              std::span<const Pushed> pushed,
                                              std::span<const Parameter> variables,
                                              std::span<const Shard> shards, int servers,
                                              const Updater& updater, int64_t seed,
                                              const std::vector<std::set<std::string>>& known) {
  std::vector<ServerUpdate> out(servers);
  std::set<std::string> copied;  // slots that an earlier server has and saves for all
  for (int server = 0; server < servers; ++server) {
    for (const Pushed& p : pushed) {
      bool found = false;
      for (const Shard& shard : shards) {
        if (variables[shard.variable].name() != p.variable) continue;
        found = true;
        if (shard.server != server) continue;
        out[server].inputs.push_back({p.variable, shard.name, shard.type, shard.row, p.gradient});
      }
      if (!found) {
        return InvalidArgument("update " + name +
                               ": expected a variable of the servers, got: " + p.variable);
      }
    }
    if (out[server].inputs.empty()) continue;

    Builder b(name);
    Builder::Scope scope(b);
    std::vector<Parameter> weights, all;
    std::vector<Value> gradients;
    for (const PushedRows& rows : out[server].inputs) {
      const auto shard = std::find_if(shards.begin(), shards.end(),
                                      [&](const Shard& s) { return s.name == rows.shard; });
      const Parameter weight = ShardParameter(*shard, variables[shard->variable]);
      const Value value = b.Input(rows.shard, rows.type);
      all.push_back(weight);
      if (rows.gradient) {
        weights.push_back(weight);
        gradients.push_back(value);
      } else {
        program::AssignAdd(weight, value);
      }
    }
    if (!weights.empty()) {
      if (!updater.record) {
        return InvalidArgument("update " + name +
                               ": expected an updater for its gradients, got: none");
      }
      updater.record(weights, gradients);
    }
    MT_ASSIGN_OR_RETURN(out[server].program, b.Build());

    const std::vector<Parameter> slots = updater.slots ? updater.slots() : std::vector<Parameter>();
    std::vector<Parameter> made;
    for (const Variable& used : b.variables()) {
      if (std::find(all.begin(), all.end(), used) != all.end()) continue;
      const auto slot = std::find(slots.begin(), slots.end(), used);
      if (slot == slots.end()) {
        return InvalidArgument(
            "update " + name +
            ": expected it to use the pushed variables and the updater's slots, " + "got: `" +
            used.name() + "`");
      }
      ServerState state = StateOfSlot(*slot, shards, variables);
      // Whoever has it first saves it, in this update or one before.
      if (state.copy) {
        for (int before = 0; before < servers; ++before) {
          if (before != server && known[before].contains(state.name)) state.saved = false;
        }
        if (!copied.insert(state.name).second) state.saved = false;
      }
      if (known[server].contains(state.name)) continue;
      made.push_back(*slot);
      out[server].made.states.push_back(std::move(state));
    }
    MT_ASSIGN_OR_RETURN(out[server].made.init, BuildInit(made, seed));
  }
  return out;
}

}  // namespace meshtrain::parameter
