#include "runtime/recipe/step_plan.h"

#include <optional>
#include <string>
#include <utility>

#include "runtime/plan/widen.h"
#include "runtime/sharding/sharding.h"
#include "runtime/train/programs.h"

namespace meshtrain::recipe {
namespace {

const program::Program& StepOf(const train::Programs& programs, JobStep kind) {
  switch (kind) {
    case JobStep::kEvaluate:
      return programs.eval_step;
    case JobStep::kInitialize:
      return programs.init;
    case JobStep::kTrain:
      break;
  }
  return programs.train_step;
}

Result<plan::Plan> PlanOn(const mesh::Mesh& mesh, const manifest::Program& program,
                          const train::Programs& programs, JobStep kind,
                          const sharding::Given& given) {
  MT_ASSIGN_OR_RETURN(
      sharding::Partitioned partitioned,
      sharding::Shard(StepOf(programs, kind), mesh, given, {.guard_updates = true}));
  const plan::Options options =
      plan::OptionsOn(mesh, {.finite_outputs = {std::string(train::kLossName)}},
                      train::BytesPerPack(PackingOf(program), programs));
  // As the devices' backends lower it: plugins multiply halves themselves.
  partitioned = mesh::IsOfPlugin(program.devices.kind)
                    ? plan::WidenHalves(std::move(partitioned), plan::IsProduct)
                    : plan::WidenHalves(std::move(partitioned));
  return plan::MakePlan(std::move(partitioned), options);
}

sharding::Given GivenOf(const Traced& traced, JobStep kind) {
  sharding::Given given;
  if (kind != JobStep::kInitialize) given.inputs = traced.layouts.inputs;
  for (const program::State& s : StepOf(traced.programs, kind).states) {
    if (const auto it = traced.layouts.states.find(s.name); it != traced.layouts.states.end()) {
      given.states.insert(*it);
    }
  }
  return given;
}

}  // namespace

Result<plan::Plan> StepPlanOf(const manifest::Program& program, const Declared& declared,
                              const std::vector<mesh::TensorType>& types, JobStep kind) {
  MT_ASSIGN_OR_RETURN(const Traced traced, declared.Trace(types));
  return PlanOn(traced.mesh, program, traced.programs, kind, GivenOf(traced, kind));
}

Result<plan::Plan> SharedMemoryPlanOf(const manifest::Program& program, const Declared& declared,
                                      const std::vector<mesh::TensorType>& types) {
  MT_ASSIGN_OR_RETURN(const Traced traced, declared.Trace(types));
  const sharding::Given given = GivenOf(traced, JobStep::kTrain);
  MT_ASSIGN_OR_RETURN(const mesh::Mesh own, sharding::CollapseLocal(traced.mesh));
  MT_ASSIGN_OR_RETURN(const plan::Plan asked,
                      PlanOn(traced.mesh, program, traced.programs, JobStep::kTrain, given));
  return PlanOn(own, program, traced.programs, JobStep::kTrain,
                sharding::OnMesh(asked.partitioned, traced.programs.train_step, own));
}

}  // namespace meshtrain::recipe
