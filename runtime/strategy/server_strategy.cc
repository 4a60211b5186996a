#include "runtime/strategy/server_strategy.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "runtime/checkpoint/restore.h"
#include "runtime/execute/session.h"
#include "runtime/parameter/chief/steps.h"
#include "runtime/strategy/variables.h"
#include "runtime/train/programs.h"

namespace meshtrain::strategy {

using mesh::Tensor;
using mesh::TensorType;
using program::Variable;

namespace {

// What a state of the servers begins with, put together from its parts, which `parameters` are
// among others.
Result<Tensor> InitialValue(const std::vector<parameter::Planner::Part>& parts,
                            std::span<const nn::Parameter> parameters) {
  MT_ASSIGN_OR_RETURN(const auto session, execute::Session::Create({.threads = 1}));
  Tensor whole(parts.front().state.global_type);
  for (const parameter::Planner::Part& part : parts) {
    const auto made =
        std::find_if(parameters.begin(), parameters.end(),
                     [&](const nn::Parameter& p) { return p.name() == part.state.name; });
    if (made == parameters.end()) {
      return Internal("slot `" + part.state.name + "`: expected one of the optimizer's, got: none");
    }
    MT_RETURN_IF_ERROR(
        session->Declare(*made, mesh::Layout::Replicated(mesh::Mesh(), made->type().rank())));
    MT_ASSIGN_OR_RETURN(const program::Program init, train::BuildInit({*made}, /*seed=*/0));
    const std::vector<Variable> variables = {*made};
    MT_ASSIGN_OR_RETURN(const auto step, session->Load(init, mesh::Mesh(), variables, {}));
    MT_RETURN_IF_ERROR(step->Run());
    MT_ASSIGN_OR_RETURN(const Tensor value, session->ReadToHost(*made));
    whole.Paste(value, part.state.offsets);
    if (part.state.copy) break;  // the others are alike
  }
  return whole;
}

const TensorType& TypeOf(const std::vector<parameter::Planner::Part>& parts) {
  return parts.front().state.global_type;
}

}  // namespace

Result<std::unique_ptr<ServerStrategy>> Strategy::ParameterServer(ParameterServerOptions options,
                                                                  std::stop_token stop) {
  const std::string name = "ParameterServerStrategy";
  if (options.steps_in_flight < 0) {
    return InvalidArgument(name + ": steps_in_flight: expected at least 0, got: " +
                           std::to_string(options.steps_in_flight));
  }
  auto workers = parameter::AddressesOf(options.coordinator.cluster, cluster::Role::kWorker);
  if (!workers.ok()) return workers.status().At(name);
  const parameter::InFlight in_flight =
      parameter::DivideInFlight(options.steps_in_flight, static_cast<int64_t>(workers->size()));
  options.coordinator.steps_in_flight = in_flight.per_worker;
  auto coordinator =
      parameter::Coordinator::Create(std::move(options.coordinator), std::move(stop));
  if (!coordinator.ok()) return coordinator.status().At(name);
  return std::unique_ptr<ServerStrategy>(
      new ServerStrategy(name, std::move(*coordinator), in_flight.ahead));
}

ServerStrategy::ServerStrategy(std::string name,
                               std::unique_ptr<parameter::Coordinator> coordinator, int64_t ahead)
    : Strategy(std::move(name), /*process=*/0, /*replicas=*/1),
      coordinator_(std::move(coordinator)),
      ahead_(ahead) {}
ServerStrategy::~ServerStrategy() = default;

void ServerStrategy::Hold(const nn::Parameter& parameter) {
  by_key_.emplace(parameter.key(), parameter.Unheld());
}

Result<nn::Parameter> ServerStrategy::Find(const Variable& variable) const {
  const auto it = by_key_.find(variable.key());
  if (it == by_key_.end()) return OfAnotherScope(variable);
  return it->second;
}

bool ServerStrategy::OnServers(const nn::Parameter& parameter) const {
  const parameter::Planner& planner = coordinator_->planner();
  if (planner.Holds(parameter)) return true;
  // A slot: of the servers' states, but none of the variables.
  return planner.states().contains(parameter.name()) && planner.ShardsOf(parameter.name()).empty();
}

Status ServerStrategy::PutOnServers(std::span<const Variable> variables) {
  std::vector<nn::Parameter> missing;
  for (const Variable& variable : variables) {
    MT_ASSIGN_OR_RETURN(nn::Parameter parameter, Find(variable));
    if (!OnServers(parameter)) missing.push_back(std::move(parameter));
  }
  if (missing.empty()) return OkStatus();
  MT_RETURN_IF_ERROR(coordinator_->CreateVariables(missing));
  return GiveNew();
}

Status ServerStrategy::GiveRestored(const std::string& name, const TensorType& type) {
  const auto waiting = waiting_.find(name);
  if (waiting == waiting_.end()) return OkStatus();
  MT_ASSIGN_OR_RETURN(const Tensor value, given_->Load(name));
  MT_RETURN_IF_ERROR(CheckTypeOf(name, type, value.type()).At(given_->path()));
  MT_RETURN_IF_ERROR(coordinator_->Write(name, value));
  waiting_.erase(waiting);
  return OkStatus();
}

Status ServerStrategy::GiveNew(std::span<const nn::Parameter> renewed) {
  for (const auto& [name, parts] : coordinator_->planner().states()) {
    const bool began = begun_.contains(name);
    const bool again = began && std::any_of(renewed.begin(), renewed.end(), [&](const auto& slot) {
                         return slot.name() == parts.front().state.name;
                       });
    if (began && !again) continue;
    if (const auto assigned = assigned_.find(name); assigned != assigned_.end()) {
      MT_RETURN_IF_ERROR(CheckTypeOf(name, TypeOf(parts), assigned->second.type()));
      MT_RETURN_IF_ERROR(coordinator_->Write(name, assigned->second));
      assigned_.erase(assigned);
    } else if (again) {
      MT_ASSIGN_OR_RETURN(const Tensor value, InitialValue(parts, renewed));
      MT_RETURN_IF_ERROR(coordinator_->Write(name, value));
    } else {
      MT_RETURN_IF_ERROR(GiveRestored(name, TypeOf(parts)));
    }
    begun_.insert(name);
  }
  return OkStatus();
}

Result<Tensor> ServerStrategy::Read(const Variable& variable) {
  MT_RETURN_IF_ERROR(PutOnServers({&variable, 1}));
  return coordinator_->Read(variable.name());
}

Status ServerStrategy::Assign(const Variable& variable, const Tensor& value) {
  MT_ASSIGN_OR_RETURN(const nn::Parameter parameter, Find(variable));
  MT_RETURN_IF_ERROR(CheckTypeOf(parameter.name(), parameter.type(), value.type()));
  if (OnServers(parameter)) return coordinator_->Write(parameter.name(), value);
  assigned_.insert_or_assign(parameter.name(), value);
  return OkStatus();
}

Result<std::string> ServerStrategy::Save(const std::string& folder, int64_t step,
                                         std::span<const Variable> /*variables*/) {
  MT_RETURN_IF_ERROR(coordinator_->SaveTo(folder, step));
  MT_RETURN_IF_ERROR(coordinator_->WaitForSave());
  const auto saved = coordinator_->last_save();
  if (!saved) return Internal("save: expected a checkpoint of step " + std::to_string(step));
  return saved->path;
}

Status ServerStrategy::Give(std::unique_ptr<checkpoint::Checkpoint> from) {
  MT_RETURN_IF_ERROR(from->Verify());
  const auto& saved = from->index().variables;
  for (const auto& [name, parts] : coordinator_->planner().states()) {
    const auto record = saved.find(name);
    if (record == saved.end()) continue;
    MT_RETURN_IF_ERROR(CheckTypeOf(name, TypeOf(parts), record->second.type).At(from->path()));
  }
  waiting_.clear();
  for (const auto& [name, record] : saved) waiting_.insert(name);
  std::erase_if(assigned_, [&](const auto& item) { return waiting_.contains(item.first); });
  given_ = std::move(from);
  for (const auto& [name, parts] : coordinator_->planner().states()) {
    MT_RETURN_IF_ERROR(GiveRestored(name, TypeOf(parts)));
  }
  return OkStatus();
}

}  // namespace meshtrain::strategy
