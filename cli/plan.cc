#include "runtime/plan/plan.h"

#include <CLI/CLI.hpp>
#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include "cli/manifest.h"
#include "cli/verbs.h"
#include "runtime/base/memory.h"
#include "runtime/base/text.h"
#include "runtime/recipe/step_plan.h"

namespace meshtrain::cli {
namespace {

Result<plan::Plan> PlanOf(const manifest::Manifest& manifest, const DataBatches& batches) {
  MT_ASSIGN_OR_RETURN(const recipe::Declared declared, recipe::Declared::Create(manifest.program));
  MT_RETURN_IF_ERROR(declared.CheckBatches(batches.train, batches.test));
  return recipe::StepPlanOf(manifest.program, declared, batches.train->types);
}

Status Plan(const std::string& file, std::ostream& out) {
  MT_ASSIGN_OR_RETURN(const manifest::Manifest manifest, ReadManifest(file));
  MT_ASSIGN_OR_RETURN(const DataBatches batches, ReadBatches(manifest.program));
  MT_ASSIGN_OR_RETURN(const plan::Plan plan, PlanOf(manifest, batches).From(Origin::kManifest));
  out << Printable(plan.Report());
  // Devices of one process share what they can, so that they need this at most.
  const int64_t devices = plan.partitioned.mesh.size();
  const MemoryLimit limit = UsableMemory();
  out << "on one host  at most " << HumanBytes(plan.peak_bytes * devices) << " for " << devices
      << (devices == 1 ? " device" : " devices") << "; available: " << HumanBytes(limit.bytes)
      << " (" << limit.whose << ")\n";
  return OkStatus();
}

}  // namespace

void AddPlan(CLI::App& app, Action* chosen) {
  auto file = std::make_shared<std::string>();
  CLI::App* verb = app.add_subcommand("plan",
                                      "Print what a training step will do: layouts, collectives "
                                      "with bytes, peak memory per device");
  verb->add_option("-f,--file", *file, "The manifest, YAML or JSON")->required();
  verb->callback([file, chosen] {
    *chosen = [file](const Console& console) {
      return End("plan", Plan(*file, console.out), console.err);
    };
  });
}

}  // namespace meshtrain::cli
