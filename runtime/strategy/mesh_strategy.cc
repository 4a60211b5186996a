#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "runtime/checkpoint/restore.h"
#include "runtime/checkpoint/save.h"
#include "runtime/nn/whole_blocks.h"
#include "runtime/plan/plan.h"
#include "runtime/saving/session_checkpoints.h"
#include "runtime/strategy/strategy_impl.h"
#include "runtime/train/programs.h"

namespace meshtrain::strategy {

using mesh::Tensor;
using program::Variable;

Status CheckPacking(const Packing& p) {
  if (p.num_packs && p.bytes_per_pack) {
    return InvalidArgument("packing: expected num_packs or bytes_per_pack, got: both");
  }
  if (p.num_packs.value_or(0) < 0 || p.bytes_per_pack.value_or(1) < 1) {
    return InvalidArgument("packing: expected at least 0 packs or 1 byte, got: " +
                           std::to_string(p.num_packs ? *p.num_packs : *p.bytes_per_pack));
  }
  return OkStatus();
}

MeshStrategy::Impl::Impl(Setup from)
    : setup(std::move(from)),
      variables({.mesh = setup.mesh,
                 .session = [this] { return Session(); },
                 .replicas = setup.replicas,
                 .layout = setup.layout,
                 .seed = setup.seed}) {}

Result<execute::Session*> MeshStrategy::Impl::Session() {
  if (session == nullptr) {
    execute::SessionOptions options = setup.session;
    // A step whose loss is not finite leaves the variables as they were.
    options.plan = {.finite_outputs = {std::string(train::kLossName)}};
    MT_ASSIGN_OR_RETURN(session, execute::Session::Create(std::move(options)));
    session->set_bring_variables([this](std::span<const Variable> used) {
      return variables.ToMesh(variables.KnownOf(used));
    });
  }
  return session.get();
}

Result<std::unique_ptr<MeshStrategy>> Strategy::Mesh(MeshOptions options) {
  const std::string name = "MeshStrategy";
  MT_RETURN_IF_ERROR(CheckPacking(options.packing).At(name));
  int processes = 1;
  for (const mesh::Device& device : options.mesh.devices()) {
    processes = std::max(processes, device.process + 1);
  }
  const int joined = options.team == nullptr ? 1 : options.team->processes();
  if (processes != joined) {
    return InvalidArgument(name + ": expected a team of the " + std::to_string(processes) +
                           " processes of its mesh " + options.mesh.ToString() +
                           ", got: " + (options.team == nullptr ? "none" : std::to_string(joined)));
  }
  MeshStrategy::Impl::Setup setup{.mesh = options.mesh,
                                  .batch_axis = std::move(options.batch_axis),
                                  .layouts = options.layouts,
                                  .packing = options.packing,
                                  .team = std::move(options.team),
                                  .session = {.device_kind = options.common.device_kind,
                                              .isolated = options.common.isolated,
                                              .threads = options.common.threads,
                                              .memory = options.common.memory},
                                  .seed = options.common.seed,
                                  .replicas = nullptr,
                                  .layout = {}};
  const std::optional<int> batch = options.mesh.FindAxis(setup.batch_axis);
  if (!batch) setup.batch_axis.clear();
  int process = 0;
  if (setup.team != nullptr) {
    process = setup.session.process = setup.team->process();
    setup.session.communicator = setup.team->communicators();
  }
  setup.session.devices = static_cast<int>(options.mesh.LocalRanks(process).size());
  setup.layout = [mesh = options.mesh, rules = std::move(options.layouts),
                  batch = setup.batch_axis](const nn::Parameter& weight) -> Result<mesh::Layout> {
    std::optional<nn::LayoutSpecs> specs = weight.layout();
    if (const auto rule = rules.Find(weight.name()); !specs && rule) specs = rules.specs(*rule);
    if (!specs) return mesh::Layout::Replicated(mesh, weight.type().rank());
    auto layout = nn::LayoutOfWeight(weight, mesh, *specs, {batch});
    if (!layout.ok()) return layout.status().At("variable `" + weight.name() + "`");
    return layout;
  };
  const int64_t parts = batch ? options.mesh.axes()[static_cast<size_t>(*batch)].size : 1;
  return std::unique_ptr<MeshStrategy>(new MeshStrategy(
      name, process, parts, std::make_unique<MeshStrategy::Impl>(std::move(setup))));
}

MeshStrategy::MeshStrategy(std::string name, int process, int64_t replicas,
                           std::unique_ptr<Impl> impl)
    : Strategy(std::move(name), process, replicas), impl_(std::move(impl)) {}
MeshStrategy::~MeshStrategy() = default;

const mesh::Mesh& MeshStrategy::mesh() const { return impl_->setup.mesh; }
const std::string& MeshStrategy::batch_axis() const { return impl_->setup.batch_axis; }
const nn::LayoutMap& MeshStrategy::layouts() const { return impl_->setup.layouts; }
const Packing& MeshStrategy::packing() const { return impl_->setup.packing; }
membership::Team* MeshStrategy::team() const { return impl_->setup.team.get(); }
Result<execute::Session*> MeshStrategy::session() { return impl_->Session(); }

void MeshStrategy::Hold(const nn::Parameter& parameter) { impl_->variables.Add(parameter); }

Status MeshStrategy::PutOnMesh(std::span<const Variable> states, const Layouts& layouts) {
  return impl_->variables.ToMesh(states, layouts);
}

Status MeshStrategy::DeclareOnMesh(std::span<const nn::Parameter> states, const Layouts& layouts) {
  for (const nn::Parameter& state : states) impl_->variables.Add(state);
  return impl_->variables.DeclareOnMesh(states, layouts);
}

void MeshStrategy::Retire(const Variable& variable) { impl_->variables.Retire(variable); }
Result<Tensor> MeshStrategy::Read(const Variable& variable) {
  return impl_->variables.Read(variable);
}
Status MeshStrategy::Assign(const Variable& variable, const Tensor& value) {
  return impl_->variables.Assign(variable, value);
}

Result<std::string> MeshStrategy::Save(const std::string& folder, int64_t step,
                                       std::span<const Variable> variables) {
  std::vector<Variable> saved(variables.begin(), variables.end());
  if (saved.empty()) saved = impl_->variables.Valued();
  std::set<std::string> names;
  for (const Variable& v : saved) {
    if (!names.insert(v.name()).second) {
      return FailedPrecondition("save: expected variables of different paths, got two: " +
                                v.name());
    }
  }
  MT_ASSIGN_OR_RETURN(execute::Session * session, impl_->variables.InOneSession(saved));
  // Replicas, and processes that no team joins, each have a copy of everything: the chief's is
  // saved.
  const bool alone = team() == nullptr || session != impl_->session.get();
  if (alone && !chief()) return std::string();
  MT_ASSIGN_OR_RETURN(const auto checkpoints,
                      saving::SessionCheckpoints::Create(*session, std::move(saved),
                                                         {.folder = folder,
                                                          .team = alone ? nullptr : team(),
                                                          .copies = alone,
                                                          .program_hash = {},
                                                          .advice = {}}));
  MT_RETURN_IF_ERROR(checkpoints->Save({.step = step}));
  return chief() ? checkpoint::CheckpointFolder(folder, step) : std::string();
}

Status MeshStrategy::Give(std::unique_ptr<checkpoint::Checkpoint> from) {
  std::map<std::string, Tensor> values;
  for (const auto& [name, record] : from->index().variables) {
    MT_ASSIGN_OR_RETURN(Tensor value, from->Load(name));
    values.emplace(name, std::move(value));
  }
  return impl_->variables.Give(std::move(values)).At(from->path());
}

}  // namespace meshtrain::strategy
