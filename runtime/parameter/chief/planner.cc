#include "runtime/parameter/chief/planner.h"

#include <algorithm>

namespace meshtrain::parameter {

std::vector<Shard> Planner::ShardsOf(std::string_view variable) const {
  std::vector<Shard> shards;
  for (const Shard& shard : shards_) {
    if (variables_[shard.variable].name() == variable) shards.push_back(shard);
  }
  return shards;
}

bool Planner::Holds(const Parameter& variable) const {
  return std::find(variables_.begin(), variables_.end(), variable) != variables_.end();
}

void Planner::Remember(const std::vector<std::vector<ServerState>>& made) {
  for (int s = 0; s < servers_; ++s) {
    for (const ServerState& state : made[s]) {
      known_[s].insert(state.name);
      states_[state.global_name].push_back({s, state});
    }
  }
  for (auto& [name, parts] : states_) {
    std::stable_sort(parts.begin(), parts.end(), [](const Part& a, const Part& b) {
      return a.state.offsets < b.state.offsets;
    });
  }
}

Result<std::vector<Definition>> Planner::AddVariables(std::span<const Parameter> variables) {
  std::vector<mesh::NamedType> types;
  for (const Parameter& variable : variables) {
    if (states_.contains(variable.name())) {
      return AlreadyExists("variable `" + variable.name() +
                           "`: expected a new name, got: one that is taken");
    }
    types.push_back({variable.name(), variable.type()});
  }
  MT_ASSIGN_OR_RETURN(std::vector<Shard> shards, PlaceShards(types, partitioner_, servers_,
                                                             static_cast<int64_t>(shards_.size())));
  MT_ASSIGN_OR_RETURN(std::vector<ServerStates> made,
                      BuildVariables(variables, shards, servers_, seed_));
  for (const ServerStates& server : made) {
    for (const ServerState& state : server.states) {
      for (const auto& known : known_) {
        if (known.contains(state.name)) {
          return AlreadyExists("variable `" + state.name +
                               "`: expected a new name, got: one that is taken");
        }
      }
    }
  }
  const int before = static_cast<int>(variables_.size());
  for (Shard& shard : shards) shard.variable += before;
  variables_.insert(variables_.end(), variables.begin(), variables.end());
  shards_.insert(shards_.end(), shards.begin(), shards.end());
  std::vector<Definition> definitions;
  std::vector<std::vector<ServerState>> states;
  for (ServerStates& server : made) {
    states.push_back(server.states);
    definitions.push_back({std::move(server.states), std::move(server.init), {}});
  }
  Remember(states);
  return definitions;
}

Result<std::vector<Definition>> Planner::AddUpdate(const std::string& name,
                                                   std::span<const Pushed> pushed,
                                                   const Updater& updater) {
  if (name.empty() || updates_.contains(name)) {
    return AlreadyExists("update `" + name +
                         "`: expected a name of its own, got: one that is taken or empty");
  }
  MT_ASSIGN_OR_RETURN(
      std::vector<ServerUpdate> updates,
      BuildUpdate(name, pushed, variables_, shards_, servers_, updater, seed_, known_));
  std::vector<Definition> definitions;
  std::vector<std::vector<ServerState>> states;
  auto& inputs = updates_[name];
  for (ServerUpdate& update : updates) {
    states.push_back(update.made.states);
    Definition definition{std::move(update.made.states), std::move(update.made.init), {}};
    if (update.program) definition.updates.push_back({name, std::move(*update.program)});
    definitions.push_back(std::move(definition));
    inputs.push_back(std::move(update.inputs));
  }
  Remember(states);
  return definitions;
}

Result<StepFunction> Planner::MakeFunction(const WorkerStep& step, const std::string& update,
                                           std::vector<std::string> finite) const {
  const std::string where = "step " + step.program.name + ": ";
  StepFunction function{
      .name = step.program.name, .program = step.program, .outputs = step.outputs};
  for (const std::string& name : finite) {
    const bool known =
        std::any_of(step.program.outputs.begin(), step.program.outputs.begin() + step.outputs,
                    [&](const program::Port& p) { return p.name == name; });
    if (!known) {
      return InvalidArgument(where + "expected outputs of its own to be finite, got: `" + name +
                             "`");
    }
  }
  function.finite = std::move(finite);
  for (const program::State& state : step.program.states) {
    const std::vector<Shard> shards = ShardsOf(state.name);
    if (shards.empty()) {
      return InvalidArgument(where + "expected variables of the servers, got: `" + state.name +
                             "`");
    }
    const mesh::TensorType& type = variables_[shards[0].variable].type();
    if (type != step.program.type(state.entry)) {
      return InvalidArgument(where + "variable `" + state.name + "`: expected " + type.ToString() +
                             ", got: " + step.program.type(state.entry).ToString());
    }
    std::vector<PulledPart> parts;
    for (const Shard& shard : shards) {
      parts.push_back({shard.server, shard.name, shard.row, shard.type});
    }
    function.pulls.push_back(std::move(parts));
  }
  if (step.pushed.empty() && update.empty()) return function;
  const auto it = updates_.find(update);
  if (it == updates_.end()) {
    return InvalidArgument(where + "expected a known update, got: `" + update + "`");
  }
  std::set<std::pair<std::string, bool>> wanted, offered;
  for (const Pushed& p : step.pushed) offered.emplace(p.variable, p.gradient);
  for (const auto& inputs : it->second) {
    for (const PushedRows& rows : inputs) wanted.emplace(rows.variable, rows.gradient);
  }
  if (wanted != offered) {
    return InvalidArgument(where + "expected pushes of the variables that update `" + update +
                           "` takes, got: others");
  }
  for (int server = 0; server < servers_; ++server) {
    const std::vector<PushedRows>& inputs = it->second[server];
    if (inputs.empty()) continue;
    ServerPush push{server, update, {}};
    for (const PushedRows& rows : inputs) {
      const auto pushed =
          std::find_if(step.pushed.begin(), step.pushed.end(),
                       [&](const Pushed& p) { return p.variable == rows.variable; });
      push.parts.push_back({pushed->output, rows.row, rows.type});
    }
    function.pushes.push_back(std::move(push));
  }
  return function;
}

}  // namespace meshtrain::parameter
