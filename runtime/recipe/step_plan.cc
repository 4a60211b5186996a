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

bool IsIsolated(const manifest::Program& program) {
  return (program.mirrored && program.mirrored->isolated()) ||
         program.devices.kind != mesh::DeviceKind::kCpu;
}

Result<StepPlans> StepPlansOf(const manifest::Program& program, const Declared& declared,
                              const std::vector<mesh::TensorType>& types) {
  constexpr JobStep kStep = JobStep::kTrain;
  MT_ASSIGN_OR_RETURN(const Traced traced, declared.Trace(types));
  StepPlans plans;
  MT_ASSIGN_OR_RETURN(plans.asked,
                      PlanOn(traced.mesh, program, traced.programs, kStep, GivenOf(traced, kStep)));
  mesh::Mesh own = traced.mesh;
  if (!IsIsolated(program)) {
    MT_ASSIGN_OR_RETURN(own, sharding::CollapseLocal(traced.mesh));
  }
  if (own == traced.mesh) {
    plans.run = plans.asked;
    return plans;
  }
  const sharding::Given given =
      sharding::OnMesh(plans.asked.partitioned, StepOf(traced.programs, kStep), own);
  MT_ASSIGN_OR_RETURN(plans.run, PlanOn(own, program, traced.programs, kStep, given));
  return plans;
}

}  // namespace meshtrain::recipe
