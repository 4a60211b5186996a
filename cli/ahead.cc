#include "cli/ahead.h"

#include <cstdlib>
#include <deque>
#include <iomanip>
#include <ostream>
#include <sstream>
#include <string>
#include <utility>

#include "runtime/base/text.h"
#include "runtime/device/pjrt/ahead.h"
#include "runtime/recipe/step_plan.h"

namespace meshtrain::cli {
namespace {

using recipe::JobStep;

struct Named {
  std::string name;
  plan::Plan plan;
};

// In the order in which a job runs them first.
Result<std::deque<Named>> PlansOf(const manifest::Program& program,
                                  const recipe::Declared& declared, const DataBatches& batches) {
  std::deque<Named> plans;
  const auto add = [&](std::string name, JobStep step, std::vector<mesh::TensorType> types,
                       int64_t size) -> Status {
    for (mesh::TensorType& type : types) type.dims[0] = size;
    MT_ASSIGN_OR_RETURN(plan::Plan plan, recipe::StepPlanOf(program, declared, types, step));
    plans.push_back({std::move(name), std::move(plan)});
    return OkStatus();
  };
  const recipe::Batches& train = *batches.train;
  const std::string of = ", batches of ";
  MT_RETURN_IF_ERROR(
      add("initial values", JobStep::kInitialize, train.types, train.types[0].dims[0]));
  for (const int64_t size : train.sizes) {
    MT_RETURN_IF_ERROR(
        add("training" + of + std::to_string(size), JobStep::kTrain, train.types, size));
  }
  if (!batches.test) return plans;
  for (const int64_t size : batches.test->sizes) {
    MT_RETURN_IF_ERROR(add("evaluation" + of + std::to_string(size), JobStep::kEvaluate,
                           batches.test->types, size));
  }
  return plans;
}

std::string Seconds(double seconds) {
  std::ostringstream text;
  text << std::fixed << std::setprecision(1) << seconds << " s";
  return text.str();
}

void Row(const std::vector<std::string>& cells, std::ostream& out) {
  out << std::left << std::setw(32) << cells[0] << std::right;
  for (size_t i = 1; i < cells.size(); ++i) out << std::setw(12) << cells[i];
  out << "\n";
}

}  // namespace

Status PrintAhead(const mesh::TpuSlice& target, const manifest::Manifest& manifest,
                  const recipe::Declared& declared, const DataBatches& batches, std::ostream& out) {
  MT_ASSIGN_OR_RETURN(const std::deque<Named> plans,
                      PlansOf(manifest.program, declared, batches).From(Origin::kManifest));
  std::vector<device::AheadProgram> programs;
  for (const Named& named : plans) programs.push_back({named.name, &named.plan});
  const char* library = std::getenv("MESHTRAIN_LIBTPU");
  MT_ASSIGN_OR_RETURN(
      const device::Ahead ahead,
      device::CompileAhead({.library = library == nullptr ? "" : library, .target = target},
                           programs));
  out << "ahead of time  for tpu:" << target.name << " (" << device::LibtpuTopology(target)
      << ") by libtpu of PJRT API " << ahead.api << "; nothing ran on a TPU; bytes of a device:\n";
  Row({"", "code", "arguments", "outputs", "temporary", "compiled in"}, out);
  for (size_t i = 0; i < plans.size(); ++i) {
    const device::CompiledSizes& sizes = ahead.sizes[i];
    const plan::Plan& plan = plans[i].plan;
    // States that change take the place of the arguments that they were.
    Row({plans[i].name, HumanBytes(sizes.code), HumanBytes(sizes.arguments),
         HumanBytes(sizes.outputs - sizes.in_place), HumanBytes(sizes.temporary),
         Seconds(sizes.seconds)},
        out);
    Row({"  by the plan", "", HumanBytes(plan.state_bytes + plan.input_bytes),
         HumanBytes(plan.output_bytes), HumanBytes(plan.arena_bytes)},
        out);
  }
  return OkStatus();
}

}  // namespace meshtrain::cli
