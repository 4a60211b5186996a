#include "runtime/plan/plan.h"

#include <CLI/CLI.hpp>
#include <memory>
#include <optional>
#include <ostream>
#include <string>
#include <vector>

#include "cli/ahead.h"
#include "cli/manifest.h"
#include "cli/verbs.h"
#include "runtime/base/memory.h"
#include "runtime/base/text.h"
#include "runtime/recipe/step_plan.h"

namespace meshtrain::cli {
namespace {

struct PlanVerb {
  std::string file;
  std::string target;  // "": what the manifest says
};

Result<recipe::Declared> DeclaredOf(const manifest::Manifest& manifest,
                                    const DataBatches& batches) {
  MT_ASSIGN_OR_RETURN(recipe::Declared declared, recipe::Declared::Create(manifest.program));
  MT_RETURN_IF_ERROR(declared.CheckBatches(batches.train, batches.test));
  return declared;
}

Status Plan(const PlanVerb& verb, std::ostream& out) {
  std::optional<mesh::TpuSlice> target;
  manifest::ReadOptions options;
  if (!verb.target.empty()) {
    MT_ASSIGN_OR_RETURN(target, device::ParseTpuTarget(verb.target));
    options.device_kind = mesh::DeviceKind::kTpu;  // as a TPU's pods run it
  }
  MT_ASSIGN_OR_RETURN(const manifest::Manifest manifest, ReadManifest(verb.file, options));
  MT_ASSIGN_OR_RETURN(const DataBatches batches, ReadBatches(manifest.program));
  MT_ASSIGN_OR_RETURN(const recipe::Declared declared,
                      DeclaredOf(manifest, batches).From(Origin::kManifest));
  MT_ASSIGN_OR_RETURN(const recipe::StepPlans plans,
                      recipe::StepPlansOf(manifest.program, declared, batches.train->types)
                          .From(Origin::kManifest));
  out << Printable(plans.asked.Report());
  if (target) {
    out.flush();
    return PrintAhead(*target, manifest, declared, batches, out);
  }
  const int64_t devices = plans.asked.partitioned.mesh.size();
  const int64_t needed = plans.run.peak_bytes * plans.run.partitioned.mesh.size();
  const MemoryLimit limit = UsableMemory();
  const auto bytes = [](int64_t n) { return HumanBytes(n) + " (" + std::to_string(n) + " bytes)"; };
  out << "on one host  at most " << bytes(needed) << " for " << devices
      << (devices == 1 ? " device" : " devices")
      << ", kernels' scratch aside; available: " << bytes(limit.bytes) << " (" << limit.whose
      << ")\n";
  return OkStatus();
}

}  // namespace

void AddPlan(CLI::App& app, Action* chosen) {
  auto own = std::make_shared<PlanVerb>();
  CLI::App* verb = app.add_subcommand("plan",
                                      "Print what a training step will do: layouts, collectives "
                                      "with bytes, peak memory per device");
  verb->add_option("-f,--file,manifest", own->file, "The manifest, YAML or JSON")->required();
  verb->add_option("--target", own->target,
                   "Also compile the job's programs for these devices, which need not be there, "
                   "and print what they take: tpu:v5e-8 (by MESHTRAIN_LIBTPU)");
  verb->callback([own, chosen] {
    *chosen = [own](const Console& console) {
      return End("plan", Plan(*own, console.out), console.err);
    };
  });
}

}  // namespace meshtrain::cli
