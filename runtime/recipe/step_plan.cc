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

}  // namespace

Result<plan::Plan> StepPlanOf(const manifest::Program& program, const Declared& declared,
                              const std::vector<mesh::TensorType>& types, JobStep kind) {
  MT_ASSIGN_OR_RETURN(const Traced traced, declared.Trace(types));
  const program::Program& step = StepOf(traced.programs, kind);
  sharding::Given given;
  if (kind != JobStep::kInitialize) given.inputs = traced.layouts.inputs;
  for (const program::State& s : step.states) {
    if (const auto it = traced.layouts.states.find(s.name); it != traced.layouts.states.end()) {
      given.states.insert(*it);
    }
  }
  MT_ASSIGN_OR_RETURN(sharding::Partitioned partitioned,
                      sharding::Shard(step, traced.mesh, given, {.guard_updates = true}));
  const plan::Options options =
      plan::OptionsOn(traced.mesh, {.finite_outputs = {std::string(train::kLossName)}},
                      train::BytesPerPack(PackingOf(program), traced.programs));
  // As the devices' backends lower it: plugins multiply halves themselves.
  partitioned = mesh::IsOfPlugin(program.devices.kind)
                    ? plan::WidenHalves(std::move(partitioned), plan::IsProduct)
                    : plan::WidenHalves(std::move(partitioned));
  return plan::MakePlan(std::move(partitioned), options);
}

}  // namespace meshtrain::recipe
