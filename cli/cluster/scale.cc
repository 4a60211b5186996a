#include <CLI/CLI.hpp>
#include <memory>

#include "cli/cluster/change.h"

namespace meshtrain::cli {
namespace {

struct ScaleFlags {
  ChangeFlags change;
  int workers = 0;
};

Status Scale(const ScaleFlags& flags, const Console& console) {
  const std::string workers = std::to_string(flags.workers);
  return ChangeEach(
      flags.change, "scale", "scaled to " + workers + " workers",
      [&](Cluster& cluster, const api::TrainingJob& job) {
        return cluster.client
            ->Patch(TrainingJobs(), cluster.ns, job.metadata.name, "scale", kube::PatchType::kMerge,
                    R"({"spec":{"replicas":)" + workers + "}}", {})
            .status();
      },
      console);
}

}  // namespace

void AddScale(CLI::App& app, Action* chosen) {
  auto flags = std::make_shared<ScaleFlags>();
  CLI::App* verb = app.add_subcommand(
      "scale", "Change the number of workers of elastic jobs, or of suspended ones");
  verb->add_option("jobs", flags->change.names, "The jobs' names")->required()->check(CheckJobName);
  verb->add_option("--workers,--replicas", flags->workers, "How many workers")
      ->required()
      ->check(CLI::Range(0, 10'000));
  AddClusterFlags(verb, &flags->change.cluster);
  verb->callback([flags, chosen] {
    *chosen = [flags](const Console& console) {
      return EndOfCall("scale", Scale(*flags, console), console);
    };
  });
}

}  // namespace meshtrain::cli
